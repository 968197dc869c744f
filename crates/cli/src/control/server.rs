//! The daemon's side of the control socket: one thread that accepts, and one per connection.
//!
//! The number of connections, the size of a request and the time to send it are limited. A client
//! beyond the limit is told so: a connection that closes without an answer may be that of a daemon
//! that ends. It closes so too if the client is of another user or too slow, if the system has no
//! thread for it, or if its thread panics. A client that disconnects, or ends its side of the
//! connection, interrupts its running job.

use std::io::{BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_base::sync::thread::spawn_named;

use super::messages::JobProgress;
use super::{
    Answer, RAW_BYTES_MAX, REQUEST_BYTES_MAX, Request, parse_request, peer, read_line, run_dir,
};
use crate::daemon::{Daemon, events, trace};
use crate::error::{Failure, Result};
use crate::pool_locks;

/// Limit of concurrent connections.
const CONNECTIONS_MAX: usize = 32;
/// Connections beyond the limit that may ask who this is: commands find pools that way.
const HELLO_EXTRA: usize = 8;
/// The answer beyond the limits.
const BUSY: &str =
    "does not answer: it serves as many commands as it can; try again when one of them has ended";
/// Time limit for a client to send its request, or to read a part of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between progress lines.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// The socket of this process, removed on drop.
pub(crate) struct ControlSocket {
    pub(crate) socket: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // It holds each lock for a moment. Who waits until the socket is gone does not meet that.
        pool_locks::remove_stale();
        // Other commands remove the socket of a dead process as well.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Creates the socket and starts to serve it.
///
/// # Errors
/// If the socket or the thread cannot be created.
pub(crate) fn listen(daemon: &Arc<Daemon>) -> Result<ControlSocket> {
    let directory = run_dir::create()?;
    let socket = run_dir::socket(&directory, std::process::id());
    // A killed process with the same id may have left it.
    let _ = std::fs::remove_file(&socket);
    let failed = |error: std::io::Error| Failure::about(&socket, "listen on the socket", &error);
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    let listening = ControlSocket { socket: socket.clone() };
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let daemon = Arc::clone(daemon);
    spawn_named("forebay-control", move || accept(&daemon, &listener)).map_err(failed)?;
    Ok(listening)
}

fn accept(daemon: &Arc<Daemon>, listener: &UnixListener) {
    let active = Arc::default();
    for connection in listener.incoming() {
        let Ok(stream) = connection else {
            // Out of file descriptors: a transient error.
            std::thread::sleep(PROGRESS_PERIOD);
            continue;
        };
        if !is_allowed(&stream) {
            continue;
        }
        let slot = Slot::take(&active);
        if slot.number > CONNECTIONS_MAX + HELLO_EXTRA {
            refuse(&stream);
            continue;
        }
        let daemon = Arc::clone(daemon);
        let serve = move || {
            // The client is gone, so the error has no receiver.
            let _ = serve_connection(&daemon, &stream, slot.number > CONNECTIONS_MAX);
            drop(slot);
        };
        // Without a thread, the connection is closed, and its slot is free.
        let _ = spawn_named("forebay-request", serve);
    }
}

/// A connection, counted until this is dropped, also if its thread panics.
struct Slot {
    active: Arc<AtomicUsize>,
    /// How many there are with it.
    number: usize,
}

impl Slot {
    fn take(active: &Arc<AtomicUsize>) -> Self {
        let before = active.fetch_add(1, Ordering::Relaxed);
        Self { active: Arc::clone(active), number: before + 1 }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a client that it is one too many. Its request has not been read.
fn refuse(stream: &UnixStream) {
    // The buffer of a new connection has space for the line.
    if stream.set_nonblocking(true).is_ok() {
        let _ = send(stream, &Answer::Busy(BUSY.to_owned()));
    }
}

/// True if the peer is the user of this process or root.
fn is_allowed(stream: &UnixStream) -> bool {
    peer(stream).is_some_and(|peer| peer.uid == 0 || peer.uid == run_dir::uid())
}

/// Whether the client has ended its side of the connection.
fn has_ended(stream: &UnixStream) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most 1 byte, the size of `byte`.
    let got = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    got == 0
}

fn wants_more(stream: &UnixStream) -> ControlFlow<()> {
    match has_ended(stream) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Serves a connection. One that `is_extra` may only ask who this is.
fn serve_connection(daemon: &Arc<Daemon>, stream: &UnixStream, is_extra: bool) -> Result<()> {
    let broken = |error: std::io::Error| Failure::new(error.to_string());
    stream.set_read_timeout(Some(CLIENT_TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT)).map_err(broken)?;
    let Some(line) = read_line(&mut BufReader::new(stream), REQUEST_BYTES_MAX)? else {
        return Ok(());
    };
    let request = parse_request(&line);
    if is_extra && !matches!(request, Err(_) | Ok(Request::Hello)) {
        return send(stream, &Answer::Busy(BUSY.to_owned()));
    }
    let _request_guard = daemon.request();
    let mut last_sent = Instant::now();
    let mut on_progress = |info: &JobProgress| {
        if last_sent.elapsed() < PROGRESS_PERIOD {
            return ControlFlow::Continue(());
        }
        last_sent = Instant::now();
        match send(stream, &Answer::Progress(*info)) {
            Ok(()) if !has_ended(stream) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let served = request.and_then(|request| match request {
        Request::Trace { pool, seconds, names } => {
            let report = trace::record(daemon, pool, (seconds, names), &mut |bytes| {
                send_raw(stream, bytes)?;
                Ok(wants_more(stream))
            })?;
            serde_json::to_value(report).map_err(|error| Failure::new(error.to_string()))
        }
        Request::Events { follow } => {
            events::send(daemon, follow, &mut |event| {
                event.map_or(Ok(()), |event| send(stream, &Answer::Event(event)))?;
                Ok(wants_more(stream))
            })?;
            Ok(serde_json::Value::Null)
        }
        request => daemon.serve(request, &mut on_progress),
    });
    let answer = match served {
        Ok(value) => Answer::Done(value),
        Err(failure) => failure.into(),
    };
    // Before the request guard is dropped, since the process may end after that.
    send(stream, &answer)
}

/// Sends bytes behind lines that announce them.
fn send_raw(mut stream: &UnixStream, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(RAW_BYTES_MAX as usize) {
        send(stream, &Answer::Raw(piece.len() as u64))?;
        stream.write_all(piece).map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(())
}

fn send(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    let broken = |error: String| Failure::new(error);
    let mut line = serde_json::to_string(answer).map_err(|error| broken(error.to_string()))?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(|error| broken(error.to_string()))
}
