//! Starts daemons in the background.
//!
//! A command runs its own program with the hidden command [`COMMAND`], in a new session, and reads
//! one line from it: [`READY`], or an error. The command then sends its request over the control
//! socket, as to a daemon that ran before. A daemon ends with its last pool, or after
//! [`IDLE_TIMEOUT`] without one; at once if the command has ended before it could read the line.
//!
//! # Invariant
//!
//! A user has one shared daemon, beside those that are ending: it has the memory limit for all
//! pools. So the search for it and the start of one are under one lock, and none is started while
//! one does not answer.

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
use crate::control::client::{self, Daemons, Process};
use crate::control::messages::ProcessInfo;
use crate::control::{run_dir, server};
use crate::error::{Failure, Result, one_line};
use crate::logging::{DefaultLevel, LogArgs};
use crate::memory::MemoryPlan;
use crate::pool_locks;
use crate::units;

/// Name of the hidden command.
pub(crate) const COMMAND: &str = "serve-in-background";
/// Its option for a daemon that only the command that started it uses.
const SEPARATE: &str = "--separate";
/// The line that a listening daemon prints.
const READY: &str = "ready";
/// How many daemons that end meanwhile are asked one after the other.
const ATTEMPTS: u32 = 5;
/// A daemon without a pool ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of a daemon that a command may start.
pub(crate) struct DaemonOptions<'a> {
    /// Memory limit in bytes; `None` for the default.
    pub(crate) memory: Option<u64>,
    /// Threads per mount; `None` for the default.
    pub(crate) threads: Option<usize>,
    pub(crate) log: &'a LogArgs,
}

impl DaemonOptions<'_> {
    /// Prints the options that have no effect, because the daemon `process` runs already.
    pub(crate) fn warn_ignored(&self, process: &Process) {
        let (pid, memory) = (process.info.pid, process.info.memory_bytes);
        if self.memory.is_some_and(|wanted| wanted != memory) {
            let memory = units::bytes(memory);
            eprintln!(
                "forebay: process {pid} keeps its memory limit of {memory}; use --separate to start another daemon"
            );
        }
        if self.log.is_set() {
            let path = process.info.log.display();
            eprintln!(
                "forebay: process {pid} keeps its log {path}; use --separate to start another daemon"
            );
        }
    }
}

/// Has the shared daemon of this user, which is started if there is none, do what `ask` asks. If
/// one that ran before ends before it does so, another daemon is asked. If one that was started
/// ends, the request may be the cause, unless the daemon has done nothing about it.
///
/// # Errors
/// Those of `ask`, as [`start`], or if a daemon that may be the shared one does not answer.
pub(crate) fn ask_shared<T>(
    options: &DaemonOptions<'_>,
    ask: impl Fn(&Process) -> Result<T>,
) -> Result<(Process, T)> {
    let ((process, started), answer) = ask_one(|| find_or_start(options), ask)?;
    if !started {
        options.warn_ignored(&process);
    }
    Ok((process, answer))
}

/// Asks a daemon that `find` finds, or starts.
fn ask_one<P, T>(
    find: impl Fn() -> Result<(P, bool)>,
    ask: impl Fn(&P) -> Result<T>,
) -> Result<((P, bool), T)> {
    let mut attempt = 1;
    loop {
        let (process, started) = find()?;
        match ask(&process) {
            Ok(answer) => return Ok(((process, started), answer)),
            Err(failure)
                if failure.is_ending && (failure.did_nothing || !started) && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Finds the shared daemon of this user, or starts it. Returns true with it if it was started.
/// Concurrent callers get the same daemon.
fn find_or_start(options: &DaemonOptions<'_>) -> Result<(Process, bool)> {
    let file = run_dir::create()?.join(format!("start.{}", pool_locks::LOCK_EXTENSION));
    // Held until the daemon listens.
    let _start_lock = pool_locks::lock(&file, false, true)?;
    let Daemons { answering, silent } = client::daemons();
    let is_shared = |info: &ProcessInfo| info.daemon && !info.separate && !info.ending;
    if let Some(process) = answering.into_iter().find(|process| is_shared(&process.info)) {
        return Ok((process, false));
    }
    if let Some(silent) = silent.into_iter().find(|silent| may_be_shared(silent.pid)) {
        let end = silent.pid.map_or_else(String::new, |pid| format!(" (`kill {pid}`)"));
        return Err(Failure::new(format!(
            "{}; it may be the shared daemon, so none is started beside it: let it go on or end it{end}, or give \
             `forebay mount` --separate",
            silent.failure
        )));
    }
    Ok((start(options, DaemonMode::Shared)?, true))
}

/// Whether a process may be a shared daemon, by its command line.
fn may_be_shared(pid: Option<u32>) -> bool {
    let Some(pid) = pid else { return true };
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return true };
    let mut words = line.split(|byte| *byte == 0);
    words.any(|word| word == COMMAND.as_bytes()) && !words.any(|word| word == SEPARATE.as_bytes())
}

/// Starts a daemon, and waits until it listens.
///
/// # Errors
/// If the daemon cannot be started, or reports an error.
pub(crate) fn start(options: &DaemonOptions<'_>, mode: DaemonMode) -> Result<Process> {
    // The daemon would refuse it too, but not as an error of the command line.
    MemoryPlan::new(options.memory, options.threads)?;
    run_dir::create()?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the path of this program: {error}")))?;
    let mut command = Command::new(program);
    command.arg(COMMAND);
    if let Some(memory) = options.memory {
        command.arg(format!("--memory={memory}"));
    }
    if let Some(threads) = options.threads {
        command.arg(format!("--threads={threads}"));
    }
    if mode == DaemonMode::Separate {
        command.arg(SEPARATE);
    }
    options.log.pass_on(&mut command)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |error: std::io::Error| Failure::new(format!("cannot start the daemon: {error}"));
    let mut child = command.spawn().map_err(failed)?;
    let pid = child.id();
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
    }
    if line.trim() != READY {
        let _ = child.wait();
        let why =
            if line.trim().is_empty() { "the daemon ended without a message" } else { line.trim() };
        return Err(Failure::new(why));
    }
    let found = client::processes().into_iter().find(|process| process.info.pid == pid);
    found.ok_or_else(|| Failure::new("the daemon ended at once; see its log in the run directory"))
}

/// Path of the log of a daemon.
pub(crate) fn log_of(pid: u32) -> PathBuf {
    run_dir::path().join(format!("{pid}.log"))
}

/// Runs a daemon until its last pool is exported.
///
/// # Errors
/// If the start fails, or a pool cannot be closed cleanly; the error is in the log as well.
pub(crate) fn serve(
    memory: Option<u64>,
    threads: Option<usize>,
    separate: bool,
    logging: &LogArgs,
) -> Result<()> {
    let mode = if separate { DaemonMode::Separate } else { DaemonMode::Shared };
    let (events, receiver) = channel();
    let started = (|| {
        let log = detach()?;
        logging.install(DefaultLevel::Info)?;
        let plan = MemoryPlan::new(memory, threads)?;
        let events_log = logging.file().unwrap_or(&log);
        let screen = Arc::new(Screen::background(events_log));
        let daemon = Daemon::new(plan, mode, screen, events.clone())?;
        run::watch_signals(events)?;
        let listening = server::listen(&daemon)?;
        Ok((log, daemon, listening))
    })();
    let mut out = std::io::stdout();
    let (log, daemon, listening) = match started {
        Ok(started) => started,
        Err(failure) => {
            let failure: Failure = failure;
            let _ = writeln!(out, "{}", one_line(&failure.message));
            return Err(failure);
        }
    };
    let idle = match writeln!(out, "{READY}").and_then(|()| out.flush()) {
        Ok(()) => IDLE_TIMEOUT,
        // Killed: its lock is gone, and another command may have started a daemon meanwhile.
        Err(error) => {
            daemon.screen.say(&format!("the command that started this daemon has ended: {error}"));
            Duration::ZERO
        }
    };
    redirect_stdout()?;
    let ended = run::run(&daemon, &receiver, Some(idle));
    drop(listening);
    match ended {
        // A clean end leaves no log.
        Ok(()) => drop(std::fs::remove_file(log)),
        Err(failure) => {
            daemon.screen.warn(&failure.message);
            return Err(failure);
        }
    }
    Ok(())
}

/// Starts a new session in `/`, and redirects standard error to the log.
fn detach() -> Result<PathBuf> {
    let failed =
        |error: std::io::Error| Failure::new(format!("cannot run in the background: {error}"));
    // SAFETY: setsid takes no pointers. It fails for a process group leader, which does no harm.
    unsafe { libc::setsid() };
    let path = log_of(std::process::id());
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|error| Failure::about(&path, "write the log", &error))?;
    // SAFETY: both descriptors are open; no object owns standard error.
    if unsafe { libc::dup2(log.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    std::env::set_current_dir("/").map_err(failed)?;
    Ok(path)
}

/// Closes the pipe to the command that started the daemon.
fn redirect_stdout() -> Result<()> {
    // SAFETY: both descriptors are open; no object owns them.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(Failure::new(format!("standard output: {}", std::io::Error::last_os_error())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many daemons are asked if each ends, and so many run before.
    fn asked(before: u32, did_nothing: bool) -> u32 {
        let ended = Cell::new(0);
        let refused = ask_one(
            || Ok(((), ended.get() >= before)),
            |()| {
                ended.set(ended.get() + 1);
                Err::<(), _>(Failure { did_nothing, ..Failure::ending("the daemon has ended") })
            },
        );
        assert!(refused.is_err_and(|failure| failure.is_ending));
        ended.get()
    }

    #[test]
    fn a_request_that_ends_a_daemon_ends_no_more_than_one_that_was_started_for_it() {
        for (before, wanted) in [(0, 1), (1, 2), (3, 4), (9, ATTEMPTS)] {
            assert_eq!(asked(before, false), wanted, "{before} before");
            assert_eq!(asked(before, true), ATTEMPTS, "the request is not the cause");
        }
        let ended = Cell::new(0);
        let ask = |_: &u32| match ended.replace(1) {
            0 => Err(Failure::ending("the daemon is ending")),
            _ => Ok("answer"),
        };
        let answered = ask_one(|| Ok((ended.get(), ended.get() == 1)), ask);
        assert_eq!(answered.ok(), Some(((1, true), "answer")), "it is started after that");
    }
}
