//! The life of a process with pools: it shows figures, hears signals, and ends when its last pool has gone.
//!
//! The first SIGINT, SIGTERM or SIGHUP asks for the end: all is unmounted and exported, and what is busy is tried again until
//! it is not. A second one unmounts lazily, and after [`LAST_PATIENCE`] closes the files in spite of their users. SIGTERM and
//! SIGHUP, behind which nobody may sit who could send a second one, count as two after [`BUSY_PATIENCE`].

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use forebay_base::sync::thread::spawn_named;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::screen::line;
use super::{Daemon, Event, stats};
use crate::error::{Failure, Result};

/// How long what is busy is waited for when nobody can be asked.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// What is busy is tried again after this time.
const BUSY_PERIOD: Duration = Duration::from_millis(300);
/// How long a lazily unmounted file system is served before its files are closed.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// The main thread looks around at least this often while the process ends.
const ENDING_PERIOD: Duration = Duration::from_millis(100);

/// Whether a thread has panicked. It would not be seen otherwise: the others go on.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Has panics noticed, from now on; they are printed as ever.
fn notice_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::Relaxed);
        print(panic);
    }));
}

/// Has signals told to the main thread, and panics noticed, from now on.
///
/// # Errors
/// If the system refuses.
pub(crate) fn hear_signals(events: Sender<Event>) -> Result<()> {
    notice_panics();
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

/// Runs until there is nothing left to do.
///
/// # Errors
/// If something could not be closed cleanly.
pub(crate) fn run(
    daemon: &Arc<Daemon>,
    events: &Receiver<Event>,
    idle: Option<Duration>,
) -> Result<()> {
    let mut ending: Option<Ending> = None;
    let mut before = stats::process(daemon);
    let mut show_at = Instant::now() + daemon.screen.period();
    let started = Instant::now();
    loop {
        let idle_over =
            idle.is_some_and(|idle| started.elapsed() > idle && daemon.pools().is_empty());
        if daemon.is_done() || (idle_over && ending.is_none() && daemon.is_quiet()) {
            break;
        }
        if ending.as_ref().is_some_and(Ending::is_over) {
            daemon
                .screen
                .say("files are still open; they are closed now, and their users get errors");
            daemon.force_end();
            break;
        }
        let wait = match &ending {
            Some(_) => ENDING_PERIOD,
            None => show_at.saturating_duration_since(Instant::now()).min(Duration::from_secs(1)),
        };
        match events.recv_timeout(wait) {
            Ok(Event::Signal(signal)) => hear(daemon, &mut ending, signal)?,
            Ok(Event::Changed) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some(ending) = &mut ending {
            ending.look();
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
            "a thread of this process panicked, which is a bug: please report what it said; `forebay check` tells whether \
             the pool has suffered",
        )),
        None => Ok(()),
        Some(first) => Err(Failure::new(first.clone())),
    }
}

fn hear(daemon: &Arc<Daemon>, ending: &mut Option<Ending>, signal: i32) -> Result<()> {
    match ending {
        Some(ending) => ending.hurry(daemon),
        None => *ending = Some(Ending::begin(daemon, signal)?),
    }
    Ok(())
}

impl Daemon {
    /// Whether nobody wants anything just now.
    fn is_quiet(&self) -> bool {
        self.state.lock().requests == 0
    }
}

/// The process is ending.
struct Ending {
    since: Instant,
    /// Whether to go on lazily by itself if it takes long.
    alone: bool,
    lazily: Arc<AtomicBool>,
    lazily_since: Option<Instant>,
}

impl Ending {
    fn begin(daemon: &Arc<Daemon>, signal: i32) -> Result<Self> {
        daemon.screen.say("unmounting and exporting");
        let lazily = Arc::new(AtomicBool::new(false));
        let alone = signal != SIGINT || daemon.in_background;
        let (of_thread, wanted) = (Arc::clone(daemon), Arc::clone(&lazily));
        spawn_named("forebay-ending", move || unmount_all(&of_thread, &wanted, alone))
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
        Ok(Self { since: Instant::now(), alone, lazily, lazily_since: None })
    }

    /// It was asked for again.
    fn hurry(&mut self, daemon: &Daemon) {
        if self.lazily_since.is_none() {
            if !daemon.mounts().is_empty() {
                daemon.screen.say("still busy: unmounting lazily");
            }
            self.lazily_since = Some(Instant::now());
            self.lazily.store(true, Ordering::Relaxed);
        }
    }

    fn look(&mut self) {
        if self.alone && self.lazily_since.is_none() && self.since.elapsed() > BUSY_PATIENCE {
            self.lazily_since = Some(Instant::now());
            self.lazily.store(true, Ordering::Relaxed);
        }
    }

    fn is_over(&self) -> bool {
        self.lazily_since.is_some_and(|since| since.elapsed() > LAST_PATIENCE)
    }
}

/// Unmounts until nothing is mounted. Says once what is in the way.
fn unmount_all(daemon: &Daemon, lazily: &AtomicBool, alone: bool) {
    daemon.begin_ending();
    let mut told = false;
    while !daemon.mounts().is_empty() {
        let lazy = lazily.load(Ordering::Relaxed);
        for mount in daemon.mounts() {
            if let Err(error) = mount.unmount(lazy)
                && !told
            {
                told = true;
                daemon.screen.say(&Failure::from(error).message);
                daemon.screen.say(match alone {
                    true => "it is unmounted lazily in a moment",
                    false => "trying again; Ctrl-C once more unmounts it lazily",
                });
            }
        }
        std::thread::sleep(BUSY_PERIOD);
    }
}

/// Tells the service manager that started this, if one did and wants to know, that all is there.
pub(crate) fn notify_ready() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = place.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    // It will notice by itself if it never hears.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(b"READY=1", &address);
    }
}
