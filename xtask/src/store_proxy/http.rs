//! HTTP/1.1 as far as a proxy needs it: heads, and how long the body after one is.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// The most bytes of a head.
const HEAD_MAX: u64 = 64 << 10;
/// Bytes that are relayed at a time.
const PIECE: usize = 128 << 10;

/// The first line of a message and its header, as they came.
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
}

/// How long the body of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    /// In chunks, each of which tells its length.
    Chunked,
    /// Until the connection ends.
    Open,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Head {
    /// Reads a head, or nothing if the connection has ended.
    pub(super) fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut limited = from.take(HEAD_MAX);
        loop {
            let line = limited.read_until(b'\n', &mut bytes)?;
            match line {
                0 if bytes.is_empty() => return Ok(None),
                0 => return Err(invalid("a head that does not end")),
                1 | 2 if bytes.ends_with(b"\r\n\r\n") => return Ok(Some(Self { bytes })),
                _ => {}
            }
        }
    }

    /// The first line.
    pub(super) fn first_line(&self) -> String {
        let end = self.bytes.iter().position(|byte| *byte == b'\r').unwrap_or(0);
        String::from_utf8_lossy(&self.bytes[..end]).into_owned()
    }

    /// The method of a request.
    pub(super) fn method(&self) -> String {
        self.first_line().split(' ').next().unwrap_or_default().to_owned()
    }

    /// The status of a response.
    pub(super) fn status(&self) -> u16 {
        let line = self.first_line();
        line.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// The value of a field, in lower case.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut fields = text.lines().skip(1).filter_map(|line| line.split_once(':'));
        let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_ascii_lowercase())
    }

    /// Whether the connection ends after this message.
    pub(super) fn closes(&self) -> bool {
        self.field("connection").is_some_and(|value| value == "close")
    }

    /// The body of this request.
    pub(super) fn request_body(&self) -> Length {
        self.framing().unwrap_or(Length::Bytes(0))
    }

    /// The body of this response to a request of this method.
    pub(super) fn response_body(&self, method: &str) -> Length {
        match self.status() {
            204 | 304 => Length::Bytes(0),
            _ if method == "HEAD" => Length::Bytes(0),
            _ => self.framing().unwrap_or(Length::Open),
        }
    }

    fn framing(&self) -> Option<Length> {
        if self.field("transfer-encoding").is_some_and(|value| value.ends_with("chunked")) {
            return Some(Length::Chunked);
        }
        self.field("content-length").and_then(|value| value.parse().ok()).map(Length::Bytes)
    }

    /// This head with another length of the body.
    pub(super) fn with_length(&self, length: u64) -> Self {
        let text = String::from_utf8_lossy(&self.bytes);
        let is_length = |line: &str| line.to_ascii_lowercase().starts_with("content-length:");
        let mut changed = String::new();
        for line in text.split_inclusive("\r\n") {
            match is_length(line) {
                true => changed.push_str(&format!("Content-Length: {length}\r\n")),
                false => changed.push_str(line),
            }
        }
        Self { bytes: changed.into_bytes() }
    }
}

/// Relays a body; `passed` is told of the bytes before they are sent.
pub(super) fn relay(
    from: &mut impl BufRead,
    to: &mut impl Write,
    length: Length,
    passed: impl Fn(u64),
) -> io::Result<()> {
    match length {
        Length::Bytes(count) => relay_bytes(from, to, count, &passed),
        Length::Open => loop {
            let piece = from.fill_buf()?;
            if piece.is_empty() {
                return Ok(());
            }
            let count = piece.len();
            passed(count as u64);
            to.write_all(piece)?;
            from.consume(count);
        },
        Length::Chunked => loop {
            let mut line = Vec::new();
            from.read_until(b'\n', &mut line)?;
            to.write_all(&line)?;
            let text = String::from_utf8_lossy(&line);
            let digits = text.split([';', '\r']).next().unwrap_or_default();
            let size = u64::from_str_radix(digits, 16).map_err(|_| invalid("a chunk's size"))?;
            if size > 0 {
                // Its line end as well.
                relay_bytes(from, to, size + 2, &passed)?;
                continue;
            }
            // The fields after the last chunk.
            while line != b"\r\n" {
                line.clear();
                if from.read_until(b'\n', &mut line)? == 0 {
                    return Err(invalid("a body in chunks that does not end"));
                }
                to.write_all(&line)?;
            }
            return Ok(());
        },
    }
}

fn relay_bytes(
    from: &mut impl Read,
    to: &mut impl Write,
    mut left: u64,
    passed: &impl Fn(u64),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE.min(left as usize)];
    while left > 0 {
        let wanted = piece.len().min(left as usize);
        let count = from.read(&mut piece[..wanted])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        passed(count as u64);
        to.write_all(&piece[..count])?;
        left -= count as u64;
    }
    Ok(())
}
