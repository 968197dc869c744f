//! The process's side of the control socket: a thread that listens, and one for each connection.
//!
//! Bounded are the connections served at a time, the size of a request, and the time that a client may take to send it. Who
//! breaks off while long work runs for it interrupts that work.

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
use super::{Answer, REQUEST_BYTES_MAX, parse_request, read_line, run_dir};
use crate::daemon::Daemon;
use crate::error::{Failure, Result};
use crate::pool_locks;

/// Connections served at a time; more are closed at once.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take to send its request, or to read a part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Progress is told at most so often, and at least that often a client is looked after.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// The socket of this process. It goes when this is dropped.
pub(crate) struct Listening {
    pub(crate) socket: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Who finds it dead removes it as well.
        let _ = std::fs::remove_file(&self.socket);
        pool_locks::remove_stale();
    }
}

/// Begins to listen.
///
/// # Errors
/// If there can be no socket.
pub(crate) fn listen(daemon: &Arc<Daemon>) -> Result<Listening> {
    let directory = run_dir::made()?;
    let socket = run_dir::socket(&directory, std::process::id());
    // Of a process that had this number before and was killed.
    let _ = std::fs::remove_file(&socket);
    let failed = |error: std::io::Error| Failure::about(&socket, "listen", &error);
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    let listening = Listening { socket: socket.clone() };
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let daemon = Arc::clone(daemon);
    spawn_named("forebay-control", move || accept(&daemon, &listener)).map_err(failed)?;
    Ok(listening)
}

fn accept(daemon: &Arc<Daemon>, listener: &UnixListener) {
    let serving = Arc::new(AtomicUsize::new(0));
    for connection in listener.incoming() {
        let Ok(stream) = connection else {
            // Too many files are open: that passes.
            std::thread::sleep(PROGRESS_PERIOD);
            continue;
        };
        if !may_ask(&stream) || serving.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        serving.fetch_add(1, Ordering::Relaxed);
        let (daemon, serving_it) = (Arc::clone(daemon), Arc::clone(&serving));
        let serve = move || {
            // It is over for the client as well; there is nobody to tell.
            let _ = converse(&daemon, &stream);
            serving_it.fetch_sub(1, Ordering::Relaxed);
        };
        if spawn_named("forebay-request", serve).is_err() {
            serving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the other end is this process's user, or root.
fn may_ask(stream: &UnixStream) -> bool {
    // SAFETY: all zeros are a `ucred`, which is three numbers.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes, the size of what the pointer leads to.
    let told = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    told == 0 && (peer.uid == 0 || peer.uid == run_dir::uid())
}

fn converse(daemon: &Arc<Daemon>, stream: &UnixStream) -> Result<()> {
    let broken = |error: std::io::Error| Failure::new(error.to_string());
    stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
    let Some(line) = read_line(&mut BufReader::new(stream), REQUEST_BYTES_MAX)? else {
        return Ok(());
    };
    let _under_way = daemon.request();
    let mut told = Instant::now();
    let mut on_progress = |info: &JobProgress| {
        if told.elapsed() < PROGRESS_PERIOD {
            return ControlFlow::Continue(());
        }
        told = Instant::now();
        match send(stream, &Answer::Progress(*info)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let served = parse_request(&line).and_then(|request| daemon.serve(request, &mut on_progress));
    let answer = match served {
        Ok(value) => Answer::Done(value),
        Err(failure) => Answer::Failed(failure.message),
    };
    // While the request counts as under way: the process may end after that.
    send(stream, &answer)
}

fn send(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    let broken = |error: String| Failure::new(error);
    let mut line = serde_json::to_string(answer).map_err(|error| broken(error.to_string()))?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(|error| broken(error.to_string()))
}
