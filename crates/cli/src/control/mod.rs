//! The control socket: the protocol between commands and daemons.
//!
//! Each daemon listens on `PID.sock` in the run directory of its user. A command queries all
//! sockets there to find the daemon of a pool. A request is one line of JSON with the protocol
//! version, at most [`REQUEST_BYTES_MAX`] bytes. The answer is any number of lines with progress,
//! with events, or that announce bytes, and one final line. A connection carries one request. A
//! client that ends its side of the connection interrupts a running job, and still gets the final
//! line.
//!
//! # Access
//!
//! The run directory has mode 0700 and the socket 0600. The listener also checks the credentials of
//! its peer, and serves its own user and root only.

pub(crate) mod client;
pub(crate) mod follow;
pub(crate) mod messages;
pub(crate) mod run_dir;
pub(crate) mod sample;
pub(crate) mod server;

use std::io::{BufRead, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::daemon::MountRequest;
use crate::daemon::metrics::MetricsRequest;
use crate::error::{Failure, Result};
use crate::pools::ImportRequest;

/// Version of the protocol. Daemons refuse requests of other versions.
pub(crate) const VERSION: u32 = 6;
/// Length limit of a request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Length limit of a line of an answer, in bytes.
pub(crate) const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Most bytes that follow [`Answer::Raw`].
pub(crate) const RAW_BYTES_MAX: u64 = 1 << 20;

/// A request with the version of the protocol.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) version: u32,
    pub(crate) request: Request,
}

/// A request to a daemon. Pools are named by guid.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Describe the daemon, its pools and mounts: [`messages::ProcessInfo`].
    Hello,
    /// Import a pool: [`messages::PoolInfo`].
    Import { import: ImportRequest },
    /// Import a pool if it is not imported, and mount one of its datasets: [`messages::MountInfo`].
    Mount { import: ImportRequest, mount: MountRequest },
    /// Change the flags of a mount, named as in mount(8): [`messages::MountInfo`].
    Remount { at: PathBuf, flags: Vec<String> },
    /// Unmount a dataset, and export its pool with the last mount: no content.
    Unmount {
        at: PathBuf,
        lazy: bool,
        /// The pool, if the mount must be one of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<u64>,
    },
    /// Unmount all datasets of a pool, and export it: no content.
    Export {
        pool: u64,
        lazy: bool,
        /// Do not wait for an object store that is away.
        #[serde(default)]
        force: bool,
    },
    /// Status of a pool: [`messages::PoolStatus`].
    Status { pool: u64 },
    /// Use the added space of grown devices, and add vdevs, each a device or the devices of a
    /// mirror: [`messages::ExpandReport`].
    Expand { pool: u64, add: Vec<Vec<PathBuf>>, force: bool, sector: Option<u32> },
    /// Check a pool: [`messages::JobReport`], with progress.
    Check { pool: u64 },
    /// Start the scrub of a pool, or go on with it, at this rate: [`messages::JobReport`], with
    /// progress. The scrub goes on if the connection is closed.
    Scrub { pool: u64, rate_bytes: Option<u64>, wait: bool },
    /// Change the scrub of a pool, or only show it: [`messages::ScrubInfo`].
    ControlScrub { pool: u64, change: Option<ScrubChange> },
    /// Discard the free space of a pool: [`messages::TrimReport`], with progress.
    Trim { pool: u64 },
    /// Take a device of a mirror out of use or back, named by path or guid:
    /// [`messages::ResilverInfo`].
    ChangeSide { pool: u64, device: String, change: SideChange },
    /// Resume a pool if it is suspended, and empty its error log: no content.
    Clear { pool: u64 },
    /// Add an L2 device: [`messages::L2DeviceInfo`].
    AddL2 { pool: u64, device: PathBuf, force: bool },
    /// Remove an L2 device, named by path or number: no content.
    RemoveL2 { pool: u64, device: String },
    /// Add a log device, or a mirror of them: no content.
    AddLog { pool: u64, devices: Vec<PathBuf>, force: bool },
    /// Remove the log device: no content.
    RemoveLog { pool: u64 },
    /// Empty the cache in memory: [`messages::FlushReport`].
    FlushCache,
    /// List the tunables of the cache and of a pool: [`messages::TunableInfo`].
    Tunables { pool: u64 },
    /// Set a tunable: no content.
    SetTunable { pool: u64, name: String, value: String },
    /// Trace the accesses to the blocks of a pool for a time, or until the client ends its side of
    /// the connection: a trace file in pieces, then [`messages::TraceReport`].
    Trace { pool: u64, seconds: Option<u64>, names: bool },
    /// The events of its pools, a line each; with `follow` also those that come, until the client
    /// ends its side of the connection or the last pool is exported. Then no content.
    Events { follow: bool },
    /// Statistics of the daemon: [`messages::ProcessStats`].
    Stats,
    /// All counts and measurements of the daemon: [`sample::ProcessSample`].
    Sample,
    /// Serve metrics over HTTP: [`messages::MetricsInfo`].
    Metrics { metrics: MetricsRequest },
    /// The miss-ratio curve of the cache: [`messages::CurveReport`].
    Curve,
    /// Explain misses: [`messages::ExplainReport`].
    Explain(ExplainScope),
}

/// The blocks to explain; by default those of all pools of the daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ExplainScope {
    pub(crate) pool: Option<u64>,
    /// A dataset of the pool.
    pub(crate) dataset: Option<String>,
    /// A file or directory of the dataset.
    pub(crate) inode: Option<u64>,
    /// How far to look back, in seconds.
    pub(crate) since_s: u64,
}

/// A change of a side of a mirror.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SideChange {
    Offline,
    /// Then the resilver starts, and the answer may wait for its end.
    Online {
        wait: bool,
    },
    /// A new device joins, or takes the place of the other one. Then as `Online`.
    Attach {
        new: PathBuf,
        replaces: bool,
        force: bool,
        sector: Option<u32>,
        wait: bool,
    },
    Detach,
}

impl SideChange {
    /// The same change, whose answer waits for the end of the resilver.
    pub(crate) fn waiting(self) -> Self {
        match self {
            Self::Online { .. } => Self::Online { wait: true },
            Self::Attach { new, replaces, force, sector, .. } => {
                Self::Attach { new, replaces, force, sector, wait: true }
            }
            change @ (Self::Offline | Self::Detach) => change,
        }
    }
}

/// A change of a scrub.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScrubChange {
    Pause,
    Stop,
    /// Scrub so many seconds after the end of the scrub before; 0 for never.
    Every {
        seconds: u64,
    },
}

/// A line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The job is running.
    Progress(messages::JobProgress),
    /// Something has happened to a pool.
    Event(messages::EventInfo),
    /// So many bytes follow the line, at most [`RAW_BYTES_MAX`].
    Raw(u64),
    /// The request succeeded, with its result.
    Done(serde_json::Value),
    /// The request failed, with the message.
    Failed(String),
    /// As `Failed`, because this process is ending.
    Ending(String),
    /// This process serves too many connections. It has not read the request, or has done nothing
    /// about it.
    Busy(String),
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        match failure.is_ending {
            true => Self::Ending(failure.message),
            false => Self::Failed(failure.message),
        }
    }
}

/// The process at the other end of a connection, with its id in this process's namespace (0 if it
/// has none there); `None` if the system does not say.
fn peer(stream: &UnixStream) -> Option<libc::ucred> {
    // SAFETY: `ucred` consists of integers, for which zero is valid.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes, the size of `peer`.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    (rc == 0).then_some(peer)
}

/// Reads one line of at most `limit` bytes; `None` at the end.
///
/// # Errors
/// If the line is longer, is not UTF-8, or cannot be read.
pub(crate) fn read_line(from: &mut impl BufRead, limit: u64) -> Result<Option<String>> {
    let mut line = Vec::new();
    match from.by_ref().take(limit + 1).read_until(b'\n', &mut line) {
        Ok(_) => {}
        // The peer closed the connection without reading all data.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(Failure::new(
                "does not answer in time; check whether it is stopped (`kill -CONT` continues it), or waits for a device",
            ));
        }
        Err(error) => return Err(Failure::new(format!("the control socket: {error}"))),
    }
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > limit {
        return Err(Failure::new(format!("the control socket: a message exceeds {limit} bytes")));
    }
    let line = String::from_utf8(line)
        .map_err(|_| Failure::new("the control socket: a message is not UTF-8"))?;
    Ok(Some(line))
}

/// Parses a request.
///
/// # Errors
/// If the line is not a request, or has another version.
pub(crate) fn parse_request(line: &str) -> Result<Request> {
    #[derive(Deserialize)]
    struct VersionOnly {
        version: u32,
    }
    let invalid = |error: serde_json::Error| {
        Failure::new(format!("the control socket: not a request: {error}"))
    };
    let VersionOnly { version } = serde_json::from_str(line).map_err(invalid)?;
    if version != VERSION {
        return Err(Failure::new(format!(
            "the request has version {version}, but this daemon uses version {VERSION}; use the `forebay` that started it"
        )));
    }
    let Envelope { request, .. } = serde_json::from_str(line).map_err(invalid)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_serialisation() {
        let request = Request::Export { pool: u64::MAX, lazy: true, force: false };
        let line = serde_json::to_string(&Envelope { version: VERSION, request }).unwrap();
        assert!(matches!(
            parse_request(&line),
            Ok(Request::Export { pool: u64::MAX, lazy: true, force: false })
        ));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(10));
        let other = format!("{{\"version\":{},\"request\":\"unknown\"}}", VERSION + 1);
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
