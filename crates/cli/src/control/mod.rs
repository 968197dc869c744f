//! The control socket: how commands talk to processes that have pools.
//!
//! A process that has pools listens on a socket of its own, `PID.sock`, in the run directory of its user. A command
//! asks all sockets there who has a pool. A request is one line of JSON, at most [`REQUEST_BYTES_MAX`] long, with the
//! protocol's version; the answer is any number of lines with progress and one with the end. A connection serves one request.
//! Closing it interrupts long work.
//!
//! # Who may
//!
//! The directory is its user's alone (mode 0700), and so is the socket (0600); the listener also asks the kernel who
//! has connected, and serves its own user and root only.

pub(crate) mod client;
pub(crate) mod messages;
pub(crate) mod run_dir;
pub(crate) mod server;

use std::io::{BufRead, ErrorKind, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::daemon::MountRequest;
use crate::error::{Failure, Result};
use crate::pools::ImportRequest;

/// The version of the protocol. Commands and processes of different versions refuse each other.
pub(crate) const VERSION: u32 = 1;
/// The longest request.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// The longest line of an answer.
pub(crate) const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A request as it travels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) version: u32,
    pub(crate) request: Request,
}

/// What can be asked of a process that has pools. Pools are named by their guid.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Who it is, and what pools and mounts it has: [`messages::ProcessInfo`].
    Hello,
    /// Have a pool: [`messages::PoolInfo`].
    Import { import: ImportRequest },
    /// Have a pool, if it has it not yet, and mount a dataset of it: [`messages::MountInfo`].
    Mount { import: ImportRequest, mount: MountRequest },
    /// Change flags of what is mounted there, named as mount(8) does: [`messages::MountInfo`].
    Remount { at: PathBuf, flags: Vec<String> },
    /// Unmount what is mounted there, and export its pool if that was all: nothing.
    Unmount { at: PathBuf, lazy: bool },
    /// Unmount all of a pool, and export it: nothing.
    Export { pool: u64, lazy: bool },
    /// All that is known of a pool: [`messages::PoolStatus`].
    Status { pool: u64 },
    /// Use what devices have grown by, and add some: [`messages::ExpandReport`].
    Expand { pool: u64, add: Vec<PathBuf>, force: bool },
    /// Read everything and verify it: [`messages::JobReport`], with progress.
    Check { pool: u64 },
    /// Read everything and heal it: [`messages::JobReport`], with progress.
    Scrub { pool: u64 },
    /// Add an L2 device: [`messages::L2DeviceInfo`].
    AddL2 { pool: u64, device: PathBuf, force: bool },
    /// Remove one, named by path or number: nothing.
    RemoveL2 { pool: u64, device: String },
    /// Empty the cache: [`messages::FlushReport`].
    FlushCache,
    /// Tunables of the cache and of a pool: a list of [`messages::TunableInfo`].
    Tunables { pool: u64 },
    /// Set one: nothing.
    SetTunable { pool: u64, name: String, value: String },
    /// Figures: [`messages::ProcessStats`].
    Stats,
}

/// A line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It goes on.
    Progress(messages::JobProgress),
    /// It is done, and this is what came of it.
    Done(serde_json::Value),
    /// It could not be done.
    Failed(String),
}

/// Reads one line of at most `limit` bytes; nothing at the end.
///
/// # Errors
/// If it is longer, is no UTF-8, or cannot be read.
pub(crate) fn read_line(from: &mut impl BufRead, limit: u64) -> Result<Option<String>> {
    let mut line = Vec::new();
    match from.by_ref().take(limit + 1).read_until(b'\n', &mut line) {
        Ok(_) => {}
        // The other end has gone without reading everything.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(Failure::new("the other end says nothing; is it stopped?"));
        }
        Err(error) => return Err(Failure::new(format!("the control socket: {error}"))),
    }
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > limit {
        return Err(Failure::new(format!("a message of more than {limit} bytes")));
    }
    let line = String::from_utf8(line).map_err(|_| Failure::new("a message that is no UTF-8"))?;
    Ok(Some(line))
}

/// Understands a request.
///
/// # Errors
/// If it is none, or of another version.
pub(crate) fn parse_request(line: &str) -> Result<Request> {
    #[derive(Deserialize)]
    struct VersionOnly {
        version: u32,
    }
    let nonsense = |error: serde_json::Error| Failure::new(format!("no request: {error}"));
    let VersionOnly { version } = serde_json::from_str(line).map_err(nonsense)?;
    if version != VERSION {
        return Err(Failure::new(format!(
            "a request of version {version}, this process speaks {VERSION}; use the `forebay` that started it"
        )));
    }
    let Envelope { request, .. } = serde_json::from_str(line).map_err(nonsense)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_travels() {
        let request = Request::Export { pool: u64::MAX, lazy: true };
        let line = serde_json::to_string(&Envelope { version: VERSION, request }).unwrap();
        assert!(matches!(parse_request(&line), Ok(Request::Export { pool: u64::MAX, lazy: true })));
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(10));
        let other = format!("{{\"version\":{},\"request\":\"who_knows\"}}", VERSION + 1);
        for line in
            ["", "{", "null", "{\"version\":1}", "{\"version\":1,\"request\":\"evil\"}", &deep]
        {
            assert!(parse_request(line).is_err(), "{line}");
        }
        let said = parse_request(&other).unwrap_err().message;
        assert!(said.contains("version"), "{said}");
    }

    #[test]
    fn lines_are_bounded() {
        let endless = vec![b'x'; 1000];
        assert!(read_line(&mut &endless[..], 100).is_err());
        assert_eq!(read_line(&mut &b"ab\nc"[..], 100).unwrap().as_deref(), Some("ab\n"));
        assert_eq!(read_line(&mut &b""[..], 100).unwrap(), None);
        assert!(read_line(&mut &b"\xff\n"[..], 100).is_err());
    }
}
