//! Events of pools: what an operator wants to know, such as a device that has failed.
//!
//! * [`EventKind`]: what happened; the one list of all kinds.
//! * [`EventLog`]: the newest events of all pools of a process, in memory. It outlives the pools.
//! * [`PoolEvents`]: notes the events of one pool, in the log, in `tracing` and in counters.
//!   Nothing else does.
//!
//! An event that repeats is one entry with a count for [`REPEAT_MS`], so that a device that fails
//! each request does not push everything else out. `tracing` and counters get each of them. A
//! follower gets the entry at once, and again with its count when it has paused ([`Followed`]).
//!
//! # Locking
//!
//! `pool-events` protects the entries. Threads that wait for the next event sleep on it. Only the
//! clock is called under it.

mod followed;
mod kinds;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::{Arc, Condvar, Mutex};

pub use followed::Followed;
pub use kinds::{EventCounters, EventKind};

/// Entries that a log keeps.
const EVENTS_MAX: usize = 1024;
/// Time in which an event that repeats counts as the same one.
const REPEAT_MS: u64 = 60_000;

/// An event of a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolEvent {
    /// Its number in the log, from 1.
    pub number: u64,
    /// When it happened first, in milliseconds since 1970.
    pub unix_ms: u64,
    /// When it happened last.
    pub last_unix_ms: u64,
    /// Name of the pool.
    pub pool: Arc<str>,
    /// GUID of the pool.
    pub pool_guid: u64,
    /// What happened.
    pub kind: EventKind,
    /// Path of the device that it is about, if it is about one.
    pub device: Option<Arc<str>>,
    /// The cause or the result, in words; empty if there is nothing to add.
    pub detail: String,
    /// How often it has happened.
    pub count: u64,
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.message())?;
        if let Some(device) = &self.device {
            write!(f, " {device}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        match self.count {
            1 => Ok(()),
            count => write!(f, " ({count} times)"),
        }
    }
}

/// What an event says besides its kind.
#[derive(Default)]
pub(crate) struct Event<'a> {
    pub(crate) device: Option<&'a str>,
    pub(crate) txg: Option<u64>,
    pub(crate) detail: Option<String>,
}

impl<'a> Event<'a> {
    /// An event with this cause or result.
    pub(crate) fn because(detail: impl ToString) -> Self {
        Self { detail: Some(detail.to_string()), ..Self::default() }
    }

    /// An event about a device.
    pub(crate) fn of_device(device: &'a str) -> Self {
        Self { device: Some(device), ..Self::default() }
    }

    /// The error of a request, about its device.
    pub(crate) fn of_error(error: &'a forebay_io::Error) -> Self {
        Self { device: Some(error.device()), ..Self::because(error) }
    }

    pub(crate) fn in_txg(self, txg: u64) -> Self {
        Self { txg: Some(txg), ..self }
    }
}

/// The newest events of all pools that share it.
pub struct EventLog {
    entries: Mutex<Entries>,
    added: Condvar,
    clock: Arc<dyn WallClock>,
}

/// Protected by `pool-events`.
#[derive(Default)]
struct Entries {
    newest: u64,
    events: VecDeque<PoolEvent>,
}

impl EventLog {
    /// Creates an empty log.
    pub fn new() -> Arc<Self> {
        Self::with_clock(Arc::new(SystemWallClock))
    }

    fn with_clock(clock: Arc<dyn WallClock>) -> Arc<Self> {
        let entries = Mutex::named("pool-events", Entries::default());
        Arc::new(Self { entries, added: Condvar::new(), clock })
    }

    /// The events after the one with this number, oldest first. The oldest ones are forgotten when
    /// there are too many.
    pub fn after(&self, number: u64) -> Vec<PoolEvent> {
        self.entries.lock().after(number)
    }

    /// As [`after`](Self::after), but waits for the next event if there is none, for at most
    /// `timeout`.
    pub fn wait_after(&self, number: u64, timeout: Duration) -> Vec<PoolEvent> {
        let mut entries = self.entries.lock();
        if entries.newest <= number {
            self.added.wait_timeout(&mut entries, timeout);
        }
        entries.after(number)
    }

    /// The event with this number, if it is remembered.
    fn get(&self, number: u64) -> Option<PoolEvent> {
        let entries = self.entries.lock();
        let at = entries.events.binary_search_by_key(&number, |event| event.number).ok()?;
        entries.events.get(at).cloned()
    }

    /// Adds an event, which happens now. The time is taken under the lock: an entry that a look at
    /// a later time found too old takes no more.
    fn add(&self, event: PoolEvent) {
        let mut entries = self.entries.lock();
        let now_ms = self.now_ms();
        entries.add(PoolEvent { unix_ms: now_ms, last_unix_ms: now_ms, ..event });
        drop(entries);
        self.added.notify_all();
    }

    fn now_ms(&self) -> u64 {
        let now = self.clock.unix_time();
        now.seconds.max(0) as u64 * 1000 + u64::from(now.nanos) / 1_000_000
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").field("newest", &self.entries.lock().newest).finish()
    }
}

impl Entries {
    fn after(&self, number: u64) -> Vec<PoolEvent> {
        let first = self.events.partition_point(|event| event.number <= number);
        self.events.iter().skip(first).cloned().collect()
    }

    fn add(&mut self, mut event: PoolEvent) {
        let repeated = |known: &&mut PoolEvent| {
            (known.kind, known.pool_guid, &known.device)
                == (event.kind, event.pool_guid, &event.device)
        };
        if event.kind.repeats()
            && let Some(known) = self.events.iter_mut().rev().find(repeated)
            && event.unix_ms.saturating_sub(known.unix_ms) < REPEAT_MS
        {
            known.count += 1;
            known.last_unix_ms = event.unix_ms.max(known.unix_ms);
            return;
        }
        self.newest += 1;
        event.number = self.newest;
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// Notes the events of one pool.
pub(crate) struct PoolEvents {
    log: Arc<EventLog>,
    pool: Arc<str>,
    guid: u64,
    counters: Arc<EventCounters>,
}

impl PoolEvents {
    /// Returns what notes the events of this pool; in a log of its own if `log` is `None`.
    pub(crate) fn new(log: Option<&Arc<EventLog>>, pool: &str, guid: u64) -> Arc<Self> {
        Self::with_counters(log, pool, guid, Arc::new(EventCounters::new()))
    }

    /// As [`new`](Self::new), counting in these counters.
    pub(crate) fn with_counters(
        log: Option<&Arc<EventLog>>,
        pool: &str,
        guid: u64,
        counters: Arc<EventCounters>,
    ) -> Arc<Self> {
        let log = log.map_or_else(EventLog::new, Arc::clone);
        Arc::new(Self { log, pool: pool.into(), guid, counters })
    }

    pub(crate) fn log(&self) -> &Arc<EventLog> {
        &self.log
    }

    pub(crate) fn counters(&self) -> &EventCounters {
        &self.counters
    }

    /// Something has happened.
    pub(crate) fn note(&self, kind: EventKind, event: Event<'_>) {
        let Event { device, txg, detail } = event;
        kind.trace(&self.pool, device, txg, detail.as_deref());
        self.counters.add(EventCounters::EVENTS, kind as usize, 1);
        self.log.add(PoolEvent {
            // The log gives it its number and time.
            number: 0,
            unix_ms: 0,
            last_unix_ms: 0,
            pool: Arc::clone(&self.pool),
            pool_guid: self.guid,
            kind,
            device: device.map(Arc::from),
            detail: detail.unwrap_or_default(),
            count: 1,
        });
    }

    /// A request of a device has failed.
    pub(crate) fn note_failure(&self, error: &forebay_io::Error) {
        self.note(EventKind::DeviceFailed, Event::of_error(error));
    }
}
