//! The heartbeat of an imported pool: a thread writes it, and writers ask for the lease.
//!
//! The protocol is described in [`crate::devices::heartbeat`].
//!
//! # Locking
//!
//! `pool-heartbeat` is held for a look at the block and the write of the next heartbeat, I/O
//! included. `pool-heartbeat-thread` protects the stop flag and the thread's handle, for a look.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_io::Fence;

use crate::devices::heartbeat::{self, Heartbeat, LEASE};
use crate::devices::label;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::lease::Lease;
use crate::open::Owner;

use super::{Pool, PoolInner};

const NS_PER_MS: u64 = 1_000_000;
/// How often a heartbeat that is too late is tried again at once.
const LATE_MAX: u32 = 8;

/// The heartbeat of a pool; none if no other host can reach its devices, or if it is turned off.
pub(super) struct Heartbeats {
    /// The newest heartbeat written.
    newest: Mutex<Option<Heartbeat>>,
    lease: Arc<Lease>,
    /// The newest generation of labels that this process has read or may have written.
    generation: AtomicU64,
    running: Mutex<Running>,
    wake: Condvar,
}

struct Running {
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeats {
    /// Goes on after the claim of the import. The lease has ended: the import took its time.
    pub(super) fn new(claim: Option<Heartbeat>, lease: Arc<Lease>, generation: u64) -> Self {
        let beats = claim.filter(|claim| claim.interval_ms > 0);
        lease.set_end_ns(if beats.is_some() { 0 } else { u64::MAX });
        Self {
            newest: Mutex::named("pool-heartbeat", beats),
            lease,
            generation: AtomicU64::new(generation),
            running: Mutex::named(
                "pool-heartbeat-thread",
                Running { stopped: false, thread: None },
            ),
            wake: Condvar::new(),
        }
    }

    /// Calls `f` with the newest heartbeat, while no other is written.
    pub(super) fn with_newest<T>(&self, f: impl FnOnce(Option<&Heartbeat>) -> T) -> T {
        f(self.newest.lock().as_ref())
    }

    fn is_stopped(&self) -> bool {
        self.running.lock().stopped
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        let thread = {
            let mut running = self.running.lock();
            running.stopped = true;
            self.wake.notify_all();
            running.thread.take()
        };
        // The panic hook has already reported a panic of the thread.
        thread.map(JoinHandle::join);
    }
}

fn lease_ns(heartbeat: &Heartbeat) -> u64 {
    u64::from(heartbeat.interval_ms) * u64::from(LEASE) * NS_PER_MS
}

impl Pool {
    /// Starts the thread that writes heartbeats, if there are any.
    pub(super) fn start_heartbeat(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let interval_ms = inner.heartbeats.newest.lock().as_ref().map(|newest| newest.interval_ms);
        let Some(interval_ms) = interval_ms else { return Ok(()) };
        let every = Duration::from_millis(interval_ms.into());
        let run = move || inner.run_heartbeat(every);
        let thread = thread::spawn_named("forebay-heartbeat", run)
            .map_err(|error| Error::no_thread("the heartbeat", error))?;
        self.inner.heartbeats.running.lock().thread = Some(thread);
        Ok(())
    }

    /// Writes a heartbeat now, as the pool's thread does at intervals.
    #[cfg(any(test, feature = "testing"))]
    pub fn heartbeat(&self) {
        self.inner.beat_or_suspend();
    }
}

impl PoolInner {
    fn run_heartbeat(&self, every: Duration) {
        loop {
            {
                let mut running = self.heartbeats.running.lock();
                if !running.stopped {
                    self.heartbeats.wake.wait_timeout(&mut running, every);
                }
                if running.stopped {
                    return;
                }
            }
            self.beat_or_suspend();
        }
    }

    /// Writes the next heartbeat. Suspends the pool if another host has it. Without a lease the
    /// next commit suspends it, until it is cleared.
    fn beat_or_suspend(&self) {
        let Err(error) = self.beat() else { return };
        tracing::warn!(pool = &*self.name, %error, "cannot write heartbeat");
        // A suspension that `clear` could end becomes final: those who wait for that give up.
        let goes_on = match self.txgs.suspension() {
            Some(suspension) => suspension.resumable,
            None => self.txgs.check_running().is_ok(),
        };
        if error.kind() == ErrorKind::InUse && goes_on {
            self.events().note(EventKind::Suspended, Event::because(&error));
            self.txgs.suspend(&error);
        }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.heartbeats.lease
    }

    /// Makes sure that this process may write to the devices: no other host can have taken the pool
    /// over. Costs a look at the clock, unless the heartbeat is late.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if another host has the pool, and the errors of the heartbeat.
    pub(super) fn check_lease(&self) -> Result<()> {
        match self.heartbeats.lease.is_valid() {
            true => Ok(()),
            false => self.beat(),
        }
    }

    /// As [`check_lease`](Self::check_lease), before labels of this generation are written. A slow
    /// device may take longer for a label than the lease lasts.
    pub(super) fn may_write_labels(&self, generation: u64) -> Result<()> {
        self.check_lease()?;
        self.heartbeats.generation.fetch_max(generation, Ordering::AcqRel);
        Ok(())
    }

    /// As [`may_write_labels`](Self::may_write_labels), before the first label of an import. Makes
    /// sure that no other import has written one since the labels were read here.
    pub(super) fn confirm_claim(&self, generation: u64) -> Result<()> {
        let beats = self.heartbeats.newest.lock().is_some();
        // After the heartbeat: another import writes its label, and looks for that.
        let confirmed = self.beat().and_then(|()| match !beats || self.is_label_ours()? {
            true => Ok(()),
            false => Err(self.taken_over("another host")),
        });
        confirmed.map_err(|error| self.given_up(error))?;
        self.heartbeats.generation.fetch_max(generation, Ordering::AcqRel);
        Ok(())
    }

    /// As [`may_write_labels`](Self::may_write_labels), before the back labels of an import. Its
    /// front labels may have been queued, and have overwritten newer ones of another import: those
    /// remain in the back labels.
    pub(super) fn keep_claim(&self, generation: u64) -> Result<()> {
        self.beat().map_err(|error| self.given_up(error))?;
        self.may_write_labels(generation)
    }

    /// The first labels of an import are durable. Makes sure that no other import has claimed the
    /// pool before it could see them. From now on heartbeats name the owner.
    pub(super) fn complete_claim(&self, owner: Option<Owner>) -> Result<()> {
        if let (Some(newest), Some(owner)) = (&mut *self.heartbeats.newest.lock(), owner) {
            newest.owner = owner;
        }
        self.beat().map_err(|error| self.given_up(error))
    }

    /// The error of an import that gives the pool up, because another one has it or wants it.
    fn given_up(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::InUse {
            return error;
        }
        self.heartbeats.lease.set_end_ns(0);
        let text = format!(
            "pool {}: another host imports it at the same time; import it again here if it does not stay \
             imported there",
            self.name
        );
        Error::new(ErrorKind::InUse, text).because(error)
    }

    /// Looks whether the pool is still this session's, and writes the next heartbeat. Looks again
    /// if a slow device had no time for it while the look counted, unless the pool is exported.
    fn beat(&self) -> Result<()> {
        for _ in 0..LATE_MAX {
            match self.look_and_beat() {
                Err(error) if label::is_cancelled(&error) && !self.heartbeats.is_stopped() => {}
                done => return done,
            }
        }
        self.look_and_beat()
    }

    /// # Errors
    /// As [`check_lease`](Self::check_lease), and a cancelled request if the device took longer for
    /// the heartbeat than a lease lasts.
    fn look_and_beat(&self) -> Result<()> {
        let mut newest = self.heartbeats.newest.lock();
        let Some(newest) = &mut *newest else { return Ok(()) };
        let lease = &self.heartbeats.lease;
        let ended = lease.end_ns();
        let Some(first) = self.devices.get(0) else { return Ok(()) };
        let used: Vec<_> = first.used().collect();
        let beaten: Vec<_> = used.iter().map(|(_, leaf)| &**leaf.device()).collect();
        let memory = self.store.cache();
        let doing = |error: Error| {
            let interval = newest.interval_ms;
            error.doing(format_args!(
                "pool {}: no heartbeat for {LEASE} intervals of {interval} ms, so another host may take the pool over",
                self.name
            ))
        };
        let began = self.clock.now_ns();
        let seen = heartbeat::read(&beaten, self.guid, memory).map_err(doing)?;
        let other = seen.heartbeats.into_iter().find(|seen| seen.session != newest.session);
        if let Some(other) = other {
            lease.set_end_ns(0);
            return Err(self.taken_over(&format!("host {}", other.host)));
        }
        // After the lease, another host may have come and gone.
        if began >= ended && !self.is_label_ours()? {
            lease.set_end_ns(0);
            return Err(self.taken_over("another host"));
        }
        let next = Heartbeat { sequence: newest.sequence + 1, ..newest.clone() };
        // Once a lease has passed since the look, another host may have the pool.
        let (clock, until_ns) = (Arc::clone(&self.clock), began + lease_ns(&next));
        let fence = Fence::new(move || clock.now_ns() < until_ns);
        let with = (Some(&fence), &**memory);
        let written = heartbeat::write_fenced(&beaten, self.guid, &next, with).map_err(doing)?;
        for (at, error) in written {
            // Unless it is the only whole one.
            first.status().fault(used[at].0, &error);
        }
        lease.set_end_ns(began + lease_ns(&next));
        *newest = next;
        Ok(())
    }

    /// Whether no other session has written a label after this process.
    fn is_label_ours(&self) -> Result<bool> {
        let Some(first) = self.devices.get(0) else { return Ok(true) };
        // Not under the lock of the configuration: changes of labels hold it.
        let newest = self.heartbeats.generation.load(Ordering::Acquire);
        let mut labels = Vec::new();
        for (_, leaf) in first.used() {
            labels.push(label::read(&**leaf.device(), self.store.cache()));
        }
        let readable = labels.len() > 1 && labels.iter().any(|label| matches!(label, Ok(Some(_))));
        for label in labels {
            match label {
                // A side of a mirror that cannot be read says nothing.
                Err(_) | Ok(None) if readable => {}
                label => match label? {
                    Some(label) if label.config.generation <= newest => {}
                    _ => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    fn taken_over(&self, by: &str) -> Error {
        let text = format!(
            "pool {}: {by} has taken it over, because this process was late; nothing is written any more: export \
             the pool here, and import it where it is needed",
            self.name
        );
        Error::new(ErrorKind::InUse, text)
    }
}
