//! A process with pools in the background: how it is started, and what it does first.
//!
//! A command starts its own program anew with the hidden command [`COMMAND`], in a session of its own, and reads
//! one line from it: that it listens, or why it cannot. What is wanted is then asked of it over its control
//! socket, like of one that ran before. It ends with its last pool, or if nobody brings it one.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::screen::Screen;
use super::{Daemon, DaemonMode, run};
use crate::control::client::{self, Process};
use crate::control::{run_dir, server};
use crate::error::{Failure, Result, one_line};
use crate::memory::MemoryPlan;
use crate::pool_locks;

/// The hidden command.
pub(crate) const COMMAND: &str = "serve-in-background";
/// The first line of one that listens.
const READY: &str = "ready";
/// It ends if it has no pool after this time.
const IDLE: Duration = Duration::from_secs(20);

/// The one of this user that is there for all of its pools, started if there is none, and whether it was. Who asks at the same time gets the same.
///
/// # Errors
/// As [`start`].
pub(crate) fn find_or_start(
    memory: Option<u64>,
    threads: Option<usize>,
) -> Result<(Process, bool)> {
    let file = run_dir::made()?.join(format!("start.{}", pool_locks::LOCK_ENDING));
    // Until it listens; it ends with this function.
    let _alone = pool_locks::lock(&file, false, true)?;
    match client::processes()
        .into_iter()
        .find(|process| process.info.daemon && !process.info.separate)
    {
        Some(process) => Ok((process, false)),
        None => Ok((start(memory, threads, DaemonMode::Shared)?, true)),
    }
}

/// Starts one, and returns when it listens.
///
/// # Errors
/// If it cannot be started, or says why it cannot work.
pub(crate) fn start(
    memory: Option<u64>,
    threads: Option<usize>,
    mode: DaemonMode,
) -> Result<Process> {
    run_dir::made()?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program itself: {error}")))?;
    let mut command = Command::new(program);
    command.arg(COMMAND);
    if let Some(memory) = memory {
        command.arg(format!("--memory={memory}"));
    }
    if let Some(threads) = threads {
        command.arg(format!("--threads={threads}"));
    }
    if mode == DaemonMode::Separate {
        command.arg("--separate");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot start the background process: {error}"))
    };
    let mut child = command.spawn().map_err(failed)?;
    let pid = child.id();
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
    }
    if line.trim() != READY {
        let _ = child.wait();
        let why = if line.trim().is_empty() { "it ended without a word" } else { line.trim() };
        return Err(Failure::new(why));
    }
    let found = client::processes().into_iter().find(|process| process.info.pid == pid);
    found.ok_or_else(|| {
        Failure::new("the background process ended at once; see its log in the run directory")
    })
}

/// Where a background process writes what happens.
pub(crate) fn log_of(pid: u32) -> PathBuf {
    run_dir::path().join(format!("{pid}.log"))
}

/// The hidden command: serves until there is nothing left to serve.
///
/// # Errors
/// What went wrong; it is in the log as well.
pub(crate) fn serve(memory: Option<u64>, threads: Option<usize>, separate: bool) -> Result<()> {
    let mode = if separate { DaemonMode::Separate } else { DaemonMode::Shared };
    let (events, heard) = channel();
    let begun = (|| {
        let log = detach()?;
        let plan = MemoryPlan::new(memory, threads)?;
        let daemon = Daemon::new(plan, mode, Arc::new(Screen::background()), events.clone())?;
        run::hear_signals(events)?;
        let listening = server::listen(&daemon)?;
        Ok((log, daemon, listening))
    })();
    let mut out = std::io::stdout();
    let (log, daemon, listening) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            let failure: Failure = failure;
            let _ = writeln!(out, "{}", one_line(&failure.message));
            return Err(failure);
        }
    };
    let _ = writeln!(out, "{READY}");
    let _ = out.flush();
    redirect_stdout()?;
    let ended = run::run(&daemon, &heard, Some(IDLE));
    drop(listening);
    match ended {
        // Nobody needs to read it.
        Ok(()) => drop(std::fs::remove_file(log)),
        Err(failure) => {
            daemon.screen.say(&failure.message);
            return Err(failure);
        }
    }
    Ok(())
}

/// Leaves the terminal's session and the working directory, and has standard error go to the log.
fn detach() -> Result<PathBuf> {
    let failed =
        |error: std::io::Error| Failure::new(format!("cannot go to the background: {error}"));
    // SAFETY: it takes no pointers. That this process leads a group already makes it fail, which does no harm.
    unsafe { libc::setsid() };
    let path = log_of(std::process::id());
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|error| Failure::about(&path, "write the log", &error))?;
    // SAFETY: both descriptors are open; the second is standard error, which nobody owns.
    if unsafe { libc::dup2(log.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    std::env::set_current_dir("/").map_err(failed)?;
    Ok(path)
}

/// Lets go of the pipe to who started it.
fn redirect_stdout() -> Result<()> {
    // SAFETY: both descriptors are open; nobody owns either.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(Failure::new(format!("standard output: {}", std::io::Error::last_os_error())));
    }
    Ok(())
}
