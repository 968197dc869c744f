//! A server with a source of its own, and clients that send any bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_metrics::{Limits, Server, ServerOptions, Snapshot, Source};

/// What is waited for comes within this time, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A source with a metric, and with statistics of a given size.
pub(crate) struct TestSource {
    pub(crate) stats_bytes: usize,
}

impl Source for TestSource {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        snapshot.counter("forebay_reads_total", "Reads.", &[("pool", "tank")], 7);
        snapshot
    }

    fn stats_json(&self) -> String {
        format!("\"{}\"", "x".repeat(self.stats_bytes))
    }
}

pub(crate) fn options(address: &str, limits: Limits) -> ServerOptions {
    let address = address.parse().expect("an address");
    ServerOptions { address, allow_remote: false, limits }
}

pub(crate) fn server(limits: Limits) -> Server {
    server_of(limits, 1000)
}

pub(crate) fn server_of(limits: Limits, stats_bytes: usize) -> Server {
    let source = Arc::new(TestSource { stats_bytes });
    Server::start(&options("127.0.0.1:0", limits), source).expect("a server")
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends bytes, and reads until the server closes the connection. A server that closes it before it
/// has read everything resets it.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    String::from_utf8_lossy(&read_all(&mut stream)).into_owned()
}

pub(crate) fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 64 << 10]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the server does not close the connection: {error}");
            }
            Err(_) => return all,
        }
    }
}

/// Sends a request with these lines after the first, and `Host` before them.
pub(crate) fn get(address: SocketAddr, path: &str, lines: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n");
    exchange(address, request.as_bytes())
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}: in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the server answers.
#[track_caller]
pub(crate) fn wait_for_answer(address: SocketAddr) {
    wait_until("it answers", || get(address, "/metrics", "").starts_with("HTTP/1.1 200 "));
}
