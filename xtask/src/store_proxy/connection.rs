//! A connection of a client: its requests, one after the other.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use super::Shared;
use super::fault::Fault;
use super::http::{Head, Length, relay};

/// Bytes that a side is read ahead.
const BUFFER: usize = 64 << 10;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What happens to the connection after a request.
enum After {
    /// The next request.
    Next,
    /// It ends.
    End,
    /// It is reset.
    Reset,
}

/// Both sides of a connection.
struct Connection<'a> {
    shared: &'a Shared,
    client: BufReader<TcpStream>,
    /// Made by the first request that reaches the server.
    server: Option<BufReader<TcpStream>>,
}

/// Serves all requests of a client.
pub(super) fn serve(client: TcpStream, shared: &Shared) {
    let _ = client.set_nodelay(true);
    let client = BufReader::with_capacity(BUFFER, client);
    let mut connection = Connection { shared, client, server: None };
    loop {
        // A server that does not answer is one that the client cannot reach.
        match connection.request().unwrap_or(After::End) {
            After::Next => {}
            After::End => return,
            After::Reset => {
                let _ = SockRef::from(connection.client.get_ref()).set_linger(Some(Duration::ZERO));
                return;
            }
        }
    }
}

impl Connection<'_> {
    /// Serves a request.
    fn request(&mut self) -> io::Result<After> {
        let Some(head) = Head::read(&mut self.client)? else { return Ok(After::End) };
        let _in_flight = self.shared.begin();
        let method = head.method();
        match self.shared.fault(&method) {
            None => self.forward(&head, &method, None),
            Some((Fault::Busy, _)) => {
                let text = "Please reduce your request rate.";
                self.refuse(&head, "503 Service Unavailable", "SlowDown", text)
            }
            Some((Fault::Full, _)) => {
                let text = "Storage backend has reached its minimum free drive threshold.";
                self.refuse(&head, "507 Insufficient Storage", "XMinioStorageFull", text)
            }
            Some((Fault::Stalled, _)) => match self.shared.wait_for_stall() {
                true => self.forward(&head, &method, None),
                false => Ok(After::End),
            },
            Some((Fault::Reset, random)) => match random % 4 {
                0 => Ok(After::Reset),
                1 => self.cut_request(&head).map(|()| After::Reset),
                2 => self.forward(&head, &method, Some(Loss::Response)),
                _ => self.forward(&head, &method, Some(Loss::Half)).map(|_| After::Reset),
            },
            Some((Fault::Cut, _)) => match head.request_body() {
                Length::Bytes(0) => self.forward(&head, &method, Some(Loss::Half)),
                _ => self.cut_request(&head).map(|()| After::End),
            },
            Some((Fault::Short, _)) => self.forward(&head, &method, Some(Loss::Short)),
        }
    }

    /// Answers for the server.
    fn refuse(&mut self, head: &Head, status: &str, code: &str, text: &str) -> io::Result<After> {
        self.promise(head)?;
        relay(&mut self.client, &mut io::sink(), head.request_body(), |_| ())?;
        let body = format!(
            "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{text}</Message></Error>"
        );
        let body = if head.method() == "HEAD" { String::new() } else { body };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nRetry-After: 1\r\nContent-Type: application/xml\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.client.get_mut().write_all(answer.as_bytes())?;
        Ok(After::Next)
    }

    /// Lets a client go on that waits before it sends a body.
    fn promise(&mut self, head: &Head) -> io::Result<()> {
        match head.field("expect").is_some_and(|value| value == "100-continue") {
            true => self.client.get_mut().write_all(CONTINUE),
            false => Ok(()),
        }
    }

    /// A connection to the server, which is not taken up again if it has ended meanwhile.
    fn server(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.server.as_ref().is_none_or(|server| has_ended(server.get_ref())) {
            let server = TcpStream::connect(self.shared.upstream)?;
            server.set_nodelay(true)?;
            self.server = Some(BufReader::with_capacity(BUFFER, server));
        }
        Ok(self.server.as_mut().expect("it was made above"))
    }

    /// Sends the server half of a request, and ends the connection to it.
    fn cut_request(&mut self, head: &Head) -> io::Result<()> {
        self.promise(head)?;
        self.server()?.get_mut().write_all(&head.bytes)?;
        if let Length::Bytes(length) = head.request_body() {
            let server = self.server.as_mut().expect("it was made above").get_mut();
            relay(&mut self.client, server, Length::Bytes(length / 2), |_| ())?;
        }
        if let Some(server) = self.server.take() {
            let _ = server.get_ref().shutdown(Shutdown::Both);
        }
        Ok(())
    }

    /// Sends the server a request, and the client what of the response is not lost.
    fn forward(&mut self, head: &Head, method: &str, loss: Option<Loss>) -> io::Result<After> {
        self.promise(head)?;
        let shared = self.shared;
        self.server()?.get_mut().write_all(&head.bytes)?;
        let server = self.server.as_mut().expect("it was made above");
        relay(&mut self.client, server.get_mut(), head.request_body(), |n| shared.pass(n))?;
        let response = loop {
            let Some(response) = Head::read(server)? else { return Ok(After::End) };
            // The client has had that.
            if response.status() != 100 {
                break response;
            }
        };
        let body = response.response_body(method);
        let client = self.client.get_mut();
        match (loss, body) {
            (Some(Loss::Response), _) => {
                relay(server, &mut io::sink(), body, |_| ())?;
                return Ok(After::Reset);
            }
            (Some(Loss::Half), Length::Bytes(length)) => {
                client.write_all(&response.bytes)?;
                relay(server, client, Length::Bytes(length / 2), |n| shared.pass(n))?;
                return Ok(After::End);
            }
            (Some(Loss::Short), Length::Bytes(length)) if response.status() < 300 => {
                client.write_all(&response.with_length(length / 2).bytes)?;
                relay(server, client, Length::Bytes(length / 2), |n| shared.pass(n))?;
                relay(server, &mut io::sink(), Length::Bytes(length - length / 2), |_| ())?;
            }
            _ => {
                client.write_all(&response.bytes)?;
                relay(server, client, body, |n| shared.pass(n))?;
            }
        }
        let ends = head.closes() || response.closes() || body == Length::Open;
        Ok(if ends { After::End } else { After::Next })
    }
}

/// What of a response is lost.
#[derive(Clone, Copy)]
enum Loss {
    /// All of it.
    Response,
    /// The second half of its body, and the connection.
    Half,
    /// The second half of its body. Its head says so.
    Short,
}

/// Whether an idle connection was ended by the other side.
fn has_ended(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let ended = !matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    ended || stream.set_nonblocking(false).is_err()
}
