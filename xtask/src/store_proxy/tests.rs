//! The proxy in front of a server that answers each get with the same body.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::clock::Clock;
use super::http::{Head, Length, relay};
use super::{Behaviour, Fault, Proxy};

const BODY: &[u8] = b"the body of a response";

/// A server. `received` counts requests that came as a whole.
struct Server {
    address: std::net::SocketAddr,
    received: Arc<AtomicU64>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let counter = Arc::clone(&counter);
                thread::spawn(move || answer(stream.unwrap(), &counter));
            }
        });
        Self { address, received }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }
}

/// Answers the requests of a connection: `/chunked` in chunks, `/last` and then ends.
fn answer(stream: TcpStream, received: &AtomicU64) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let head = Head::read(&mut stream).ok()??;
        relay(&mut stream, &mut io::sink(), head.request_body(), |_| ()).ok()?;
        received.fetch_add(1, Ordering::SeqCst);
        let mut answer = b"HTTP/1.1 200 OK\r\n".to_vec();
        if head.first_line().contains("/chunked") {
            answer.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in BODY.chunks(10) {
                answer.extend(format!("{:x}\r\n", piece.len()).as_bytes());
                answer.extend(piece);
                answer.extend(b"\r\n");
            }
            answer.extend(b"0\r\n\r\n");
        } else {
            answer.extend(format!("Content-Length: {}\r\n\r\n", BODY.len()).as_bytes());
            answer.extend(BODY);
        }
        stream.get_mut().write_all(&answer).ok()?;
        if head.first_line().contains("/last") {
            return None;
        }
    }
}

/// A connection to a proxy.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(proxy: &Proxy) -> Self {
        Self(BufReader::new(TcpStream::connect(proxy.address()).unwrap()))
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        self.0.get_mut().write_all(head.as_bytes())?;
        self.0.get_mut().write_all(body)
    }

    /// The head and the body of a response.
    fn receive(&mut self) -> io::Result<(Head, Vec<u8>)> {
        let head = Head::read(&mut self.0)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut body = Vec::new();
        relay(&mut self.0, &mut body, head.response_body("GET"), |_| ())?;
        Ok((head, body))
    }

    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<(Head, Vec<u8>)> {
        self.send(method, path, body)?;
        self.receive()
    }
}

fn proxy() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.address, 1).unwrap();
    (server, proxy)
}

fn always(fault: Fault) -> Behaviour {
    Behaviour { fault: Some((fault, 1000)), ..Behaviour::default() }
}

#[test]
fn requests_of_one_connection_pass_and_are_counted() {
    let (server, proxy) = proxy();
    let mut client = Client::new(&proxy);
    assert_eq!(client.ask("PUT", "/object", &[7; 300_000]).unwrap().1, BODY);
    assert_eq!(client.ask("GET", "/object", b"").unwrap().1, BODY);
    let (head, body) = client.ask("GET", "/chunked", b"").unwrap();
    assert_eq!(head.response_body("GET"), Length::Chunked);
    assert!(body.ends_with(b"0\r\n\r\n"));
    assert!(body.windows(10).any(|piece| piece == &BODY[..10]));
    assert_eq!(server.received(), 3);
    let counts = proxy.take_counts();
    assert_eq!((counts.requests, counts.faults, counts.in_flight_max), (3, 0, 1));
    assert!(counts.body_bytes >= 300_000 + 2 * BODY.len() as u64);
    assert_eq!(proxy.take_counts().requests, 0);
}

#[test]
fn a_server_that_ends_its_connection_is_connected_to_again() {
    let (server, proxy) = proxy();
    let mut client = Client::new(&proxy);
    for _ in 0..3 {
        assert_eq!(client.ask("GET", "/last", b"").unwrap().1, BODY);
        // Until the end of its connection has arrived, a request may be lost.
        while Arc::strong_count(&server.received) > 2 {
            thread::yield_now();
        }
    }
    assert_eq!(server.received(), 3);
}

#[test]
fn a_client_that_waits_to_send_its_body_is_told_to() {
    let (server, proxy) = proxy();
    let mut client = Client::new(&proxy);
    let head = b"PUT /object HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    client.0.get_mut().write_all(head).unwrap();
    assert_eq!(Head::read(&mut client.0).unwrap().unwrap().status(), 100);
    client.0.get_mut().write_all(b"body").unwrap();
    assert_eq!(client.receive().unwrap().1, BODY);
    assert_eq!(server.received(), 1);
}

#[test]
fn resets_hit_requests_at_all_their_moments() {
    let (server, proxy) = proxy();
    proxy.behave(always(Fault::Reset));
    let mut was_reset = 0;
    for _ in 0..60 {
        let error = Client::new(&proxy).ask("PUT", "/object", &[7; 100_000]).err().unwrap();
        was_reset += u64::from(error.kind() == io::ErrorKind::ConnectionReset);
    }
    assert!(was_reset > 0, "no connection was reset");
    // Some reach the server, whose response is lost; others do not.
    assert!((1..60).contains(&server.received()), "{}", server.received());
    assert_eq!(proxy.take_counts().faults, 60);
}

#[test]
fn a_fault_hits_so_many_of_a_thousand_requests() {
    let (server, proxy) = proxy();
    proxy.behave(Behaviour { fault: Some((Fault::Busy, 250)), ..Behaviour::default() });
    let mut client = Client::new(&proxy);
    for _ in 0..400 {
        client.ask("GET", "/object", b"").unwrap();
    }
    let faults = proxy.take_counts().faults;
    assert!((50..150).contains(&faults), "{faults}");
    assert_eq!(server.received(), 400 - faults);
}

#[test]
fn a_cut_body_ends_in_its_middle() {
    let (server, proxy) = proxy();
    proxy.behave(always(Fault::Cut));
    let mut client = Client::new(&proxy);
    client.send("GET", "/object", b"").unwrap();
    let head = Head::read(&mut client.0).unwrap().unwrap();
    assert_eq!(head.response_body("GET"), Length::Bytes(BODY.len() as u64));
    let mut body = Vec::new();
    let _ = client.0.read_to_end(&mut body);
    assert_eq!(body, BODY[..BODY.len() / 2]);
    assert_eq!(server.received(), 1);
    assert!(Client::new(&proxy).ask("PUT", "/object", &[7; 100_000]).is_err());
    assert_eq!(server.received(), 1, "the body of a put must not arrive");
}

#[test]
fn a_short_response_is_sound_but_for_its_length() {
    let (_server, proxy) = proxy();
    proxy.behave(always(Fault::Short));
    let mut client = Client::new(&proxy);
    for _ in 0..2 {
        assert_eq!(client.ask("GET", "/object", b"").unwrap().1, BODY[..BODY.len() / 2]);
    }
    assert_eq!(client.ask("PUT", "/object", b"body").unwrap().1, BODY);
}

#[test]
fn a_busy_server_refuses_all_and_a_full_one_refuses_puts() {
    let (server, proxy) = proxy();
    let mut client = Client::new(&proxy);
    for (fault, status, code) in [(Fault::Busy, 503, "SlowDown"), (Fault::Full, 507, "StorageFull")]
    {
        proxy.behave(always(fault));
        let (head, body) = client.ask("PUT", "/object", &[7; 300_000]).unwrap();
        assert_eq!(head.status(), status);
        assert_eq!(head.field("retry-after").as_deref(), Some("1"));
        assert!(String::from_utf8_lossy(&body).contains(code));
    }
    assert_eq!(server.received(), 0);
    assert_eq!(client.ask("GET", "/object", b"").unwrap().1, BODY);
    proxy.behave(always(Fault::Busy));
    assert_eq!(client.ask("GET", "/object", b"").unwrap().0.status(), 503);
}

#[test]
fn stalled_requests_go_on_when_the_fault_ends() {
    let (server, proxy) = proxy();
    proxy.behave(always(Fault::Stalled));
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(&proxy)).collect();
    for client in &mut clients {
        client.send("GET", "/object", b"").unwrap();
    }
    let mut most = 0;
    while most < 8 {
        most = most.max(proxy.take_counts().in_flight_max);
        thread::yield_now();
    }
    assert_eq!(server.received(), 0);
    proxy.behave(Behaviour::default());
    for client in &mut clients {
        assert_eq!(client.receive().unwrap().1, BODY);
    }
}

/// A clock on which time passes only while somebody sleeps.
#[derive(Clone, Default)]
struct SleptTime(Arc<Mutex<Duration>>);

impl Clock for SleptTime {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

#[test]
fn requests_are_delayed_and_bodies_take_their_time() {
    let (server, clock) = (Server::start(), SleptTime::default());
    let proxy = Proxy::start_with(server.address, 1, Box::new(clock.clone())).unwrap();
    let mut client = Client::new(&proxy);
    let delay = Duration::from_millis(20);
    proxy.behave(Behaviour { delay, ..Behaviour::default() });
    client.ask("GET", "/object", b"").unwrap();
    assert_eq!(clock.now(), delay);
    // Both bodies, at 250 ns a byte.
    proxy.behave(Behaviour { bytes_per_second: Some(4_000_000), ..Behaviour::default() });
    client.ask("PUT", "/object", &[7; 200_000]).unwrap();
    let bytes = 200_000 + BODY.len() as u64;
    assert_eq!(clock.now() - delay, Duration::from_nanos(250 * bytes));
}
