//! Clients that want the server to hang, to grow or to end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_metrics::Limits;

use crate::client::{
    PATIENCE, connect, exchange, get, read_all, server, server_of, wait_for_answer, wait_until,
};

/// Limits that a client meets soon.
fn impatient() -> Limits {
    let (header_time, connection_time) = (Duration::from_millis(100), Duration::from_millis(300));
    Limits { header_time, connection_time, ..Limits::default() }
}

#[test]
fn a_header_that_comes_slowly_or_never_ends_the_connection() {
    let server = server(impatient());
    let mut silent = connect(server.address());
    let mut slow = connect(server.address());
    // Each byte in time, and the header never complete. The server resets what it does not read.
    while slow.write_all(b"x").is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    read_all(&mut silent);
    wait_for_answer(server.address());
}

#[test]
fn a_client_that_does_not_read_loses_its_connection() {
    // More than the buffers of both sockets hold.
    let bytes = 64 << 20;
    // On a busy machine the time may be over before the answer begins, so longer ones are tried.
    for connection_ms in [300, 3_000, 30_000] {
        let connection_time = Duration::from_millis(connection_ms);
        let limits = Limits {
            connections: 1,
            answer_bytes: 2 * bytes,
            header_time: PATIENCE,
            connection_time,
            ..Limits::default()
        };
        let server = server_of(limits, bytes);
        let address = server.address();
        let mut slow = connect(address);
        let sent = write!(slow, "GET /stats.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
        if sent.and_then(|()| slow.read_exact(&mut [0])).is_err() {
            continue;
        }
        // There is one slot, and the slow client has it until the server drops it.
        wait_for_answer(address);
        assert!(read_all(&mut slow).len() < bytes);
        return;
    }
    panic!("no answer begins");
}

#[test]
fn an_answer_beyond_the_limit_is_not_sent() {
    let limits = Limits { answer_bytes: 1000, ..Limits::default() };
    let server = server_of(limits, 1000);
    let answer = get(server.address(), "/stats.json", "");
    assert!(answer.contains(" 500 ") && answer.contains("too long"), "{answer}");
    wait_for_answer(server.address());
}

#[test]
fn huge_headers_are_refused() {
    let server = server(Limits::default());
    let address = server.address();
    let long = format!("X: {}\r\n", "x".repeat(1 << 20));
    let many = "X: x\r\n".repeat(1 << 16);
    let target = format!("/{}", "x".repeat(1 << 20));
    for answer in [
        get(address, "/metrics", &long),
        get(address, "/metrics", &many),
        get(address, &target, ""),
    ] {
        // It may be reset before the answer is read.
        assert!(
            answer.is_empty() || answer.contains(" 431 ") || answer.contains(" 414 "),
            "{answer}"
        );
    }
    wait_for_answer(address);
}

#[test]
fn bodies_and_further_requests_are_not_read() {
    let server = server(Limits::default());
    let address = server.address();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let answers = exchange(address, request.repeat(3).as_bytes());
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
    let body = "Content-Length: 1000000000000\r\n";
    assert!(get(address, "/metrics", body).starts_with("HTTP/1.1 200 "));
    let chunked = "Transfer-Encoding: chunked\r\n";
    assert!(get(address, "/metrics", chunked).starts_with("HTTP/1.1 200 "));
    wait_for_answer(address);
}

#[test]
fn other_bytes_than_requests_do_no_harm() {
    let server = server(impatient());
    let address = server.address();
    let mut rng = SmallRng::from_seed(forebay_base::testing::seed(1));
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes();
    for round in 0..200 {
        let bytes: Vec<u8> = match round % 2 {
            0 => (0..rng.next_u64() % 300).map(|_| rng.next_u64() as u8).collect(),
            _ => {
                let mut bent = request.clone();
                let at = rng.next_u64() as usize % bent.len();
                bent[at] = rng.next_u64() as u8;
                bent
            }
        };
        let mut stream = connect(address);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        read_all(&mut stream);
    }
    wait_for_answer(address);
}

/// Whether the server has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a mode");
    match stream.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn a_thousand_connections_take_no_more_than_the_slots() {
    // Time ends no connection here.
    let (header_time, connection_time) = (10 * PATIENCE, 10 * PATIENCE);
    let limits = Limits { connections: 8, header_time, connection_time, ..Limits::default() };
    let server = server(limits);
    // In parts, because both ends of a connection are files of this process.
    for _ in 0..4 {
        let clients: Vec<TcpStream> = (0..250).map(|_| connect(server.address())).collect();
        wait_until("all but the slots are closed", || {
            clients.iter().filter(|client| !is_closed(client)).count() <= limits.connections
        });
    }
    wait_for_answer(server.address());
}
