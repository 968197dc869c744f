//! The main loop of a daemon: status line, signals, and the shutdown.
//!
//! The first SIGINT, SIGTERM or SIGHUP starts the shutdown: all datasets are unmounted and all
//! pools exported. Busy mounts are tried again. A second signal unmounts them lazily, and after
//! [`DETACHED_TIMEOUT`] closes files that are still open. SIGTERM and SIGHUP may come without a
//! user at a terminal, so after [`BUSY_TIMEOUT`] they act as two signals.
//!
//! An export waits for an object store that is away. Once nothing is mounted, another signal gives
//! it up, and so does [`STORE_TIMEOUT`] without a user: what is not durable is lost.

use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_fuse::MountError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::registry::GivingUp;
use super::screen::line;
use super::{Daemon, Event, stats};
use crate::error::{Failure, Result};

/// How long a shutdown without a user waits for busy mounts.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// A mount that was unmounted and has not ended by then is kept by another one.
const KEPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of attempts to unmount busy mounts.
const BUSY_PERIOD: Duration = Duration::from_millis(300);
/// How long a lazily unmounted file system is served before its files are closed.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a shutdown without a user waits for an object store that is away.
const STORE_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of the main loop during the shutdown.
const SHUTDOWN_PERIOD: Duration = Duration::from_millis(100);

/// True once a thread has panicked. The other threads go on, so the exit code reports it.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Installs a panic hook that records panics and prints them as before.
fn record_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::Relaxed);
        print(panic);
    }));
}

/// Sends signals to the main thread, and records panics, from now on.
///
/// # Errors
/// If the handlers cannot be installed.
pub(crate) fn watch_signals(events: Sender<Event>) -> Result<()> {
    record_panics();
    let refused = |error: std::io::Error| Failure::new(format!("cannot handle signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(refused)?;
    let tell = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    spawn_named("forebay-signals", tell).map_err(refused)?;
    Ok(())
}

/// Runs until the last pool is exported.
///
/// # Errors
/// If a pool or mount could not be closed cleanly, or a thread panicked.
pub(crate) fn run(
    daemon: &Arc<Daemon>,
    events: &Receiver<Event>,
    idle: Option<Duration>,
) -> Result<()> {
    let mut ending: Option<Shutdown> = None;
    let mut before = stats::process(daemon);
    let mut show_at = Instant::now() + daemon.screen.period();
    let started = Instant::now();
    let mut suspensions = Suspensions::default();
    loop {
        suspensions.tell(daemon);
        let idle_over = ending.is_none() && idle.is_some_and(|idle| started.elapsed() > idle);
        if daemon.end_if_done(idle_over) {
            break;
        }
        if let Some(ending) = &mut ending
            && ending.has_been_forced(daemon)?
        {
            break;
        }
        let wait = match &ending {
            Some(_) => SHUTDOWN_PERIOD,
            None => show_at.saturating_duration_since(Instant::now()).min(Duration::from_secs(1)),
        };
        match events.recv_timeout(wait) {
            Ok(Event::Signal(signal)) => on_signal(daemon, &mut ending, signal)?,
            Ok(Event::Changed) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some(ending) = &mut ending {
            ending.tick(daemon);
        } else if Instant::now() >= show_at && !daemon.in_background {
            let after = stats::process(daemon);
            daemon.screen.show(&line(&before, &after, daemon.screen.is_wide()));
            before = after;
            show_at = Instant::now() + daemon.screen.period();
        } else if Instant::now() >= show_at {
            show_at = Instant::now() + daemon.screen.period();
        }
    }
    match daemon.failures().first() {
        None if PANICKED.load(Ordering::Relaxed) => Err(Failure::new(
            "a thread of this process panicked, which is a bug; report its message, and run `forebay check` on the pools \
             that were imported",
        )),
        None => Ok(()),
        Some(first) => Err(Failure::new(first.clone())),
    }
}

fn on_signal(daemon: &Arc<Daemon>, ending: &mut Option<Shutdown>, signal: i32) -> Result<()> {
    match ending {
        Some(ending) if daemon.mounts().is_empty() => ending.give_up_stores(daemon),
        Some(ending) => ending.unmount_lazily(daemon),
        None => *ending = Some(Shutdown::begin(daemon, signal)?),
    }
    Ok(())
}

/// The suspended pools whose cause was printed.
#[derive(Default)]
struct Suspensions(HashMap<u64, String>);

impl Suspensions {
    /// Prints the cause of each suspension, and its end.
    fn tell(&mut self, daemon: &Daemon) {
        for imported in daemon.pools() {
            let pool = &imported.pool();
            match (stats::why_suspended(pool), self.0.get(&pool.guid())) {
                (Some(why), told) if told != Some(&why) => {
                    daemon.screen.alert(&format!("pool {} is suspended: {why}", pool.name()));
                    self.0.insert(pool.guid(), why);
                }
                (None, Some(_)) => {
                    daemon.screen.alert(&format!("pool {} goes on: it was cleared", pool.name()));
                    self.0.remove(&pool.guid());
                }
                _ => {}
            }
        }
    }
}

/// The state of a shutdown.
struct Shutdown {
    since: Instant,
    /// True to unmount lazily after a timeout, without a second signal.
    unattended: bool,
    lazily: Arc<AtomicBool>,
    lazy_since: Option<Instant>,
    /// Once stores that are away are not waited for any more: for each pool that was left.
    gave_up: Option<Vec<GivingUp>>,
    /// The thread that closes what is still open.
    forced: Option<JoinHandle<()>>,
}

impl Shutdown {
    fn begin(daemon: &Arc<Daemon>, signal: i32) -> Result<Self> {
        daemon.screen.say("unmounting and exporting");
        let lazily = Arc::new(AtomicBool::new(false));
        let unattended = signal != SIGINT || daemon.in_background;
        let (of_thread, wanted) = (Arc::clone(daemon), Arc::clone(&lazily));
        spawn_named("forebay-ending", move || unmount_all(&of_thread, &wanted, unattended))
            .map_err(|error| Failure::no_thread("cannot unmount and export", &error))?;
        let since = Instant::now();
        Ok(Self { since, unattended, lazily, lazy_since: None, gave_up: None, forced: None })
    }

    /// Unmounts lazily from now on, after another signal.
    fn unmount_lazily(&mut self, daemon: &Daemon) {
        if self.lazy_since.is_none() {
            if !daemon.mounts().is_empty() {
                daemon.screen.say("still busy: unmounting lazily");
            }
            self.lazy_since = Some(Instant::now());
            self.lazily.store(true, Ordering::Relaxed);
        }
    }

    /// Lets exports fail that wait for an object store that is away.
    fn give_up_stores(&mut self, daemon: &Daemon) {
        let pools = daemon.pools();
        if !pools.is_empty() {
            daemon.screen.say("not waiting any longer for object stores that do not answer");
        }
        self.gave_up = Some(pools.iter().map(|imported| imported.give_up()).collect());
    }

    fn tick(&mut self, daemon: &Daemon) {
        if self.unattended && self.gave_up.is_none() && self.since.elapsed() > STORE_TIMEOUT {
            self.give_up_stores(daemon);
        }
        if self.unattended && self.lazy_since.is_none() && self.since.elapsed() > BUSY_TIMEOUT {
            self.lazy_since = Some(Instant::now());
            self.lazily.store(true, Ordering::Relaxed);
        }
    }

    /// Closes what is still open after a timeout, in a thread: it may wait for an object store, and
    /// signals must be heard meanwhile. Returns whether that has ended.
    fn has_been_forced(&mut self, daemon: &Arc<Daemon>) -> Result<bool> {
        if let Some(forced) = &self.forced {
            return Ok(forced.is_finished());
        }
        if self.is_over() {
            if daemon.mounts().iter().any(|mount| !mount.is_covered()) {
                daemon.screen.say(
                    "files are still open: closing them now; programs that use them get errors",
                );
            }
            let of_thread = Arc::clone(daemon);
            let thread = spawn_named("forebay-forced", move || of_thread.force_end())
                .map_err(|error| Failure::no_thread("cannot close open files", &error))?;
            self.forced = Some(thread);
        }
        Ok(false)
    }

    fn is_over(&self) -> bool {
        self.lazy_since.is_some_and(|since| since.elapsed() > DETACHED_TIMEOUT)
    }
}

/// Unmounts until nothing is mounted, all mounts together: one that does not end keeps no other
/// from being unmounted. Prints the first error.
fn unmount_all(daemon: &Daemon, lazily: &AtomicBool, unattended: bool) {
    daemon.begin_shutdown();
    let began = Instant::now();
    let mut printed = false;
    while !daemon.mounts().is_empty() {
        let lazy = lazily.load(Ordering::Relaxed);
        for mount in daemon.mounts() {
            let is_late = !lazy && began.elapsed() > KEPT_TIMEOUT;
            let kept = || mount.kept_elsewhere().filter(|_| is_late);
            if let Some(error) = mount.begin_unmount(lazy).err().or_else(kept)
                && !printed
            {
                printed = true;
                // Below another mount, it is not unmounted lazily either.
                let is_covered = matches!(error, MountError::Covered { .. });
                daemon.screen.say(&Failure::from(error).message);
                if !is_covered {
                    daemon.screen.say(match unattended {
                        true => "it is unmounted lazily after a timeout",
                        false => "trying again; press Ctrl-C again to unmount it lazily",
                    });
                }
            }
        }
        std::thread::sleep(BUSY_PERIOD);
    }
}

/// Notifies the service manager, if `NOTIFY_SOCKET` is set, that the mount is ready.
pub(crate) fn notify_ready() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = place.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    // The service manager has its own timeout.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(b"READY=1", &address);
    }
}
