//! What is known of the devices of a vdev: which are used, what they miss, how fast they answer.
//!
//! A device that has all blocks of the vdev is *whole*. A write of a mirror succeeds if a whole
//! device has it; a device that fails meanwhile *misses* the txg, and is whole no more. So at least
//! one device stays whole, whatever fails at the same time. A device that fails again and again, or
//! loses a flush, is *faulted*: it gets nothing any more, and misses what is written from then on.
//!
//! A change of what devices miss is in memory first. [`changes`](VdevStatus::changes) tells the
//! pool to store it in the labels before a txg counts that relies on it.
//!
//! # Locking
//!
//! `pool-vdev` serialises changes of state and of missed txgs. Reads of them take no lock: the
//! block store verifies what it reads.

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, MutexGuard};

use super::config::{LeafConfig, Missed};
use super::slots::Slots;
use crate::events::{Event, EventKind, PoolEvents};
use crate::format::label::{MAX_LEAVES, StoredState};

/// Writes in a row that fail before a device is faulted.
const FAULT_WRITES: u32 = 16;
/// One of so many reads goes to another device than the one that seems fastest, so that its time
/// is known.
const EXPLORE: u64 = 64;
/// What a device that fails reads is expected to take, at most.
const FAILED_READ_NS_MAX: u64 = 1_000_000_000;
/// `Missed::to` of a device that still misses what is written.
pub(crate) const STILL: u64 = u64::MAX;

/// What is known of a device.
struct LeafStatus {
    /// A [`StoredState`].
    state: AtomicU8,
    /// As [`Missed`]; 0 for none.
    missed_from: AtomicU64,
    missed_to: AtomicU64,
    checksums_failed: AtomicU64,
    /// Writes that have failed since the last success.
    in_a_row: AtomicU32,
    /// Reads in flight.
    reading: AtomicU64,
    /// Moving average of the time of a read; 0 before the first.
    read_ns: AtomicU64,
    /// Whether it has left the vdev.
    removed: AtomicBool,
    /// The GUID of the device that leaves once this one is whole; 0 for none.
    replaces: AtomicU64,
}

impl LeafStatus {
    fn new(config: &LeafConfig) -> Self {
        let missed = config.missed.unwrap_or(Missed { from: 0, to: 0 });
        Self {
            state: AtomicU8::new(config.state as u8),
            missed_from: AtomicU64::new(missed.from),
            missed_to: AtomicU64::new(missed.to),
            checksums_failed: AtomicU64::new(config.errors.checksums),
            in_a_row: AtomicU32::new(0),
            reading: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            replaces: AtomicU64::new(config.replaces.unwrap_or(0)),
        }
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    fn is_used(&self) -> bool {
        self.state() == StoredState::Online && !self.is_removed()
    }

    fn state(&self) -> StoredState {
        StoredState::from_raw(self.state.load(Ordering::Acquire)).unwrap_or_default()
    }

    fn missed(&self) -> Option<Missed> {
        let from = self.missed_from.load(Ordering::Acquire);
        (from > 0).then(|| Missed { from, to: self.missed_to.load(Ordering::Acquire) })
    }

    /// Whether it has all blocks.
    fn is_whole(&self) -> bool {
        self.is_used() && self.missed().is_none()
    }

    /// Adds txgs to those that it misses. Returns whether that is new.
    fn miss(&self, from: u64, to: u64) -> bool {
        let known = self.missed().unwrap_or(Missed { from, to: 0 });
        let wider = Missed { from: known.from.min(from), to: known.to.max(to) };
        let changes = self.missed() != Some(wider);
        self.missed_to.store(wider.to, Ordering::Release);
        self.missed_from.store(wider.from, Ordering::Release);
        changes
    }
}

/// Devices of a vdev, by index.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeafSet([u64; 4]);

impl LeafSet {
    pub(crate) fn insert(&mut self, leaf: u8) {
        self.0[usize::from(leaf / 64)] |= 1 << (leaf % 64);
    }

    pub(crate) fn contains(&self, leaf: u8) -> bool {
        self.0[usize::from(leaf / 64)] & (1 << (leaf % 64)) != 0
    }
}

/// Protected by `pool-vdev`.
#[derive(Default)]
pub(super) struct Changing {
    /// Notes what devices miss. None before the vdev belongs to a pool.
    events: Option<Arc<PoolEvents>>,
}

/// What is known of the devices of a vdev. Outlives the devices, for callbacks of requests.
pub(crate) struct VdevStatus {
    /// Also those that were removed.
    leaves: Slots<LeafStatus>,
    changing: Mutex<Changing>,
    /// The txg that writes count for.
    txg: AtomicU64,
    changes: AtomicU64,
    /// Number of times that a device came into use, or went out of it.
    use_changes: AtomicU64,
    choices: AtomicU64,
    clock: SystemClock,
}

impl VdevStatus {
    pub(super) fn new(leaves: &[LeafConfig], txg: u64) -> Self {
        let slots = Slots::new(MAX_LEAVES);
        for leaf in leaves {
            let pushed = slots.push(LeafStatus::new(leaf));
            debug_assert!(pushed.is_ok(), "more devices than a pool can have");
        }
        Self {
            leaves: slots,
            changing: Mutex::named("pool-vdev", Changing::default()),
            txg: AtomicU64::new(txg.max(1)),
            changes: AtomicU64::new(0),
            use_changes: AtomicU64::new(0),
            choices: AtomicU64::new(0),
            clock: SystemClock::new(),
        }
    }

    pub(super) fn set_events(&self, events: &Arc<PoolEvents>) {
        self.changing.lock().events = Some(Arc::clone(events));
    }

    /// Adds a device that misses something.
    pub(super) fn push(&self, config: &LeafConfig) {
        debug_assert!(config.missed.is_some(), "nothing was written to it");
        self.change_members(Some(config), None);
    }

    /// Adds a device with this state, in the place of one that leaves the vdev.
    pub(super) fn exchange(&self, old: u8, config: &LeafConfig) {
        self.change_members(Some(config), Some(old));
    }

    /// A device leaves the vdev.
    pub(super) fn remove(&self, leaf: u8) {
        self.change_members(None, Some(leaf));
    }

    /// The new device comes first, so that there is always one.
    fn change_members(&self, added: Option<&LeafConfig>, removed: Option<u8>) {
        let _changing = self.changing.lock();
        if let Some(config) = added {
            let pushed = self.leaves.push(LeafStatus::new(config));
            debug_assert!(pushed.is_ok(), "the vdev has room for the device");
        }
        if let Some(leaf) = removed {
            self.leaves[usize::from(leaf)].removed.store(true, Ordering::Release);
        }
        self.use_changes.fetch_add(1, Ordering::AcqRel);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a device has left the vdev.
    pub(super) fn is_removed(&self, leaf: u8) -> bool {
        self.leaves[usize::from(leaf)].is_removed()
    }

    /// The devices that were not removed.
    pub(super) fn members(&self) -> impl Iterator<Item = u8> {
        let all = self.leaves.iter().enumerate();
        all.filter(|(_, one)| !one.is_removed()).map(|(at, _)| at as u8)
    }

    /// The devices that were removed.
    pub(super) fn removed(&self) -> impl Iterator<Item = u8> {
        let all = self.leaves.iter().enumerate();
        all.filter(|(_, one)| one.is_removed()).map(|(at, _)| at as u8)
    }

    /// The GUID of the device that leaves once this one is whole.
    pub(super) fn replaces(&self, leaf: u8) -> Option<u64> {
        let guid = self.leaves[usize::from(leaf)].replaces.load(Ordering::Acquire);
        (guid > 0).then_some(guid)
    }

    /// From now on writes count for this txg.
    pub(super) fn begin_txg(&self, txg: u64) {
        self.txg.fetch_max(txg, Ordering::AcqRel);
    }

    /// The txg that writes count for.
    pub(super) fn txg(&self) -> u64 {
        self.txg.load(Ordering::Acquire)
    }

    /// Number of changes of states and missed txgs.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Number of times that a device came into use, or went out of it.
    pub(crate) fn use_changes(&self) -> u64 {
        self.use_changes.load(Ordering::Acquire)
    }

    /// The state of a device, as labels store it.
    pub(crate) fn state(&self, leaf: u8) -> StoredState {
        self.leaves[usize::from(leaf)].state()
    }

    /// Whether requests may go to the device.
    pub(crate) fn is_used(&self, leaf: u8) -> bool {
        self.leaves[usize::from(leaf)].is_used()
    }

    /// The txgs that the device misses.
    pub(crate) fn missed(&self, leaf: u8) -> Option<Missed> {
        self.leaves[usize::from(leaf)].missed()
    }

    /// Whether a device has all blocks.
    pub(crate) fn has_whole_leaf(&self) -> bool {
        self.leaves.iter().any(LeafStatus::is_whole)
    }

    /// Whether a device has all blocks.
    pub(super) fn is_whole(&self, leaf: u8) -> bool {
        self.leaves[usize::from(leaf)].is_whole()
    }

    /// Serialises changes of states and missed txgs.
    pub(super) fn changing(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock()
    }

    /// Changes the state of a device, which misses what is written from now on. The caller holds
    /// [`changing`](Self::changing).
    pub(super) fn change(&self, leaf: u8, state: StoredState) {
        let one = &self.leaves[usize::from(leaf)];
        one.miss(self.txg.load(Ordering::Acquire), STILL);
        one.in_a_row.store(0, Ordering::Relaxed);
        if one.state() != state {
            self.use_changes.fetch_add(1, Ordering::AcqRel);
        }
        one.state.store(state as u8, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A device in use gets all writes of txgs after `to`. Returns false if it is not in use.
    pub(super) fn end_missing(&self, leaf: u8, to: u64) -> bool {
        let _changing = self.changing.lock();
        let one = &self.leaves[usize::from(leaf)];
        if !one.is_used() {
            return false;
        }
        if one.missed().is_some_and(|missed| missed.to == STILL) {
            one.missed_to.store(to, Ordering::Release);
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Blocks of the device with a wrong checksum.
    pub(super) fn checksums(&self, leaf: u8) -> u64 {
        self.leaves[usize::from(leaf)].checksums_failed.load(Ordering::Relaxed)
    }

    /// Forgets the wrong checksums of all devices.
    pub(super) fn forget_errors(&self) {
        self.leaves.iter().for_each(|one| one.checksums_failed.store(0, Ordering::Relaxed));
    }

    /// Chooses the device of a mirror that will answer a read sooner: by its reads in flight and
    /// their usual time. Devices that miss the block come last. `None` if all have been tried.
    pub(super) fn choose(&self, birth: Option<u64>, tried: &LeafSet) -> Option<u8> {
        let nth = self.choices.fetch_add(1, Ordering::Relaxed);
        let explores = nth.is_multiple_of(EXPLORE);
        let misses = |one: &LeafStatus| match (one.missed(), birth) {
            (Some(missed), Some(birth)) => missed.contains(birth),
            (missed, None) => missed.is_some(),
            (None, _) => false,
        };
        let cost = |one: &LeafStatus| {
            let reading = one.reading.load(Ordering::Relaxed);
            let ns = one.read_ns.load(Ordering::Relaxed);
            // Exploring, the devices take turns.
            (reading + 1).saturating_mul(if explores { 1 } else { ns })
        };
        let turn = if explores { nth / EXPLORE } else { nth } as usize;
        let count = self.leaves.len();
        (0..count)
            .map(|step| (turn + step) % count)
            .filter(|at| self.is_used(*at as u8) && !tried.contains(*at as u8))
            .min_by_key(|at| (misses(&self.leaves[*at]), cost(&self.leaves[*at])))
            .map(|at| at as u8)
    }

    /// A read of a device begins. Returns the time.
    pub(super) fn begin_read(&self, leaf: u8) -> u64 {
        self.leaves[usize::from(leaf)].reading.fetch_add(1, Ordering::Relaxed);
        self.clock.now_ns()
    }

    /// The read that began then has ended.
    pub(super) fn end_read(&self, leaf: u8, began_ns: u64, is_good: bool) {
        let one = &self.leaves[usize::from(leaf)];
        one.reading.fetch_sub(1, Ordering::Relaxed);
        let took = self.clock.now_ns().saturating_sub(began_ns).max(1);
        let known = one.read_ns.load(Ordering::Relaxed);
        let average = match (is_good, known) {
            (true, 0) => took,
            (true, _) => known - known / 8 + took / 8,
            // A device that fails soon is not a fast one. Good answers make up for it.
            (false, _) => known.max(took).saturating_mul(2).min(FAILED_READ_NS_MAX),
        };
        one.read_ns.store(average, Ordering::Relaxed);
    }

    /// A block of a device has a wrong checksum.
    pub(crate) fn note_checksum(&self, leaf: u8) {
        self.leaves[usize::from(leaf)].checksums_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides whether a write or flush of several devices counts, and marks those that failed.
    ///
    /// # Errors
    /// The first failure, if no whole device has it, or the request was refused.
    pub(super) fn settle(
        &self,
        done: &LeafSet,
        mut failed: Vec<(u8, forebay_io::Error)>,
        is_flush: bool,
    ) -> Result<(), forebay_io::Error> {
        let mut ok = self.members().filter(|leaf| done.contains(*leaf));
        if !failed.is_empty() {
            // A device that was removed meanwhile is closed, and does not count; nor does one that
            // went out of use, and is opened again.
            let mut removed = None;
            failed.retain(|(leaf, error)| {
                let is_closed = error.kind() == forebay_io::ErrorKind::Closed;
                let is_member = !self.is_removed(*leaf) && (!is_closed || self.is_used(*leaf));
                if !is_member {
                    removed = Some(error.clone());
                }
                is_member
            });
            let counts = self.members().any(|leaf| done.contains(leaf) && self.is_whole(leaf));
            if let Some(error) = removed.filter(|_| failed.is_empty() && !counts) {
                return Err(error);
            }
        }
        if failed.is_empty() {
            for one in ok.map(|leaf| &self.leaves[usize::from(leaf)]) {
                if one.in_a_row.load(Ordering::Relaxed) > 0 {
                    one.in_a_row.store(0, Ordering::Relaxed);
                }
            }
            return Ok(());
        }
        let changing = self.changing.lock();
        let counts = ok.any(|leaf| self.leaves[usize::from(leaf)].is_whole());
        let refused = failed.iter().find(|(_, error)| !is_failure(error));
        if let Some((_, error)) = refused.or_else(|| failed.first().filter(|_| !counts)) {
            return Err(error.clone());
        }
        let txg = self.txg.load(Ordering::Acquire);
        let mut noted = Vec::new();
        for (leaf, error) in failed {
            let one = &self.leaves[usize::from(leaf)];
            let in_a_row = one.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
            let was_used = one.is_used();
            let is_gone = error.kind() == forebay_io::ErrorKind::Gone;
            let faults = was_used && (is_flush || is_gone || in_a_row >= FAULT_WRITES);
            if faults {
                self.use_changes.fetch_add(1, Ordering::AcqRel);
                one.state.store(StoredState::Faulted as u8, Ordering::Release);
            }
            let is_new = one.miss(txg, if faults || !was_used { STILL } else { txg });
            if faults || is_new {
                self.changes.fetch_add(1, Ordering::AcqRel);
                let faulted = EventKind::DeviceFaulted;
                noted.push((if faults { faulted } else { EventKind::DeviceDegraded }, error));
            }
        }
        let events = changing.events.clone();
        drop(changing);
        for (kind, error) in noted {
            events.iter().for_each(|to| to.note(kind, Event::of_error(&error).in_txg(txg)));
        }
        Ok(())
    }

    /// All blocks up to this txg were verified on the devices in use, bad ones rewritten, and a
    /// flush covers them. Returns the devices that miss nothing any more.
    pub(super) fn caught_up(&self, until_txg: u64) -> LeafSet {
        let _changing = self.changing.lock();
        let mut whole = LeafSet::default();
        for (at, one) in self.leaves.iter().enumerate() {
            let is_covered = one.missed().is_some_and(|missed| missed.to <= until_txg);
            if is_covered && one.is_used() {
                // Not the end: who has seen the first txg without the lock reads a whole range.
                one.missed_from.store(0, Ordering::Release);
                self.changes.fetch_add(1, Ordering::AcqRel);
                whole.insert(at as u8);
            }
        }
        whole
    }

    /// Sets what a device misses. For a log vdev that is not in use yet.
    pub(super) fn set_missed(&self, leaf: u8, missed: Option<Missed>) {
        let _changing = self.changing.lock();
        let one = &self.leaves[usize::from(leaf)];
        if one.missed() != missed {
            let Missed { from, to } = missed.unwrap_or(Missed { from: 0, to: 0 });
            one.missed_to.store(to, Ordering::Release);
            one.missed_from.store(from, Ordering::Release);
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A request has failed on all devices: none is used any more. What each misses does not
    /// change, so that what was written before can still be read after an import. Returns whether
    /// one was used.
    pub(super) fn fault_all(&self) -> bool {
        let _changing = self.changing.lock();
        let used = self.leaves.iter().filter(|one| one.is_used());
        let used: Vec<&LeafStatus> = used.collect();
        for one in &used {
            one.state.store(StoredState::Faulted as u8, Ordering::Release);
            self.use_changes.fetch_add(1, Ordering::AcqRel);
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        !used.is_empty()
    }

    /// A device that is not in use misses what is written from now on, if it did not before.
    pub(super) fn misses_on(&self, leaf: u8) {
        let _changing = self.changing.lock();
        let one = &self.leaves[usize::from(leaf)];
        if one.miss(self.txg.load(Ordering::Acquire), STILL) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A device that still misses what is written also misses what was written since this txg.
    pub(super) fn misses_since(&self, leaf: u8, from: u64) {
        let _changing = self.changing();
        if self.leaves[usize::from(leaf)].miss(from, STILL) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Uses a faulted device again, which misses what was written meanwhile. Returns false if it
    /// was not faulted.
    pub(super) fn retry(&self, leaf: u8) -> bool {
        let _changing = self.changing.lock();
        let one = &self.leaves[usize::from(leaf)];
        if one.is_removed() || one.state() != StoredState::Faulted {
            return false;
        }
        if one.missed().is_some_and(|missed| missed.to == STILL) {
            one.missed_to.store(self.txg.load(Ordering::Acquire), Ordering::Release);
        }
        one.in_a_row.store(0, Ordering::Relaxed);
        one.state.store(StoredState::Online as u8, Ordering::Release);
        self.use_changes.fetch_add(1, Ordering::AcqRel);
        self.changes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// A label of a device could not be written.
    pub(crate) fn fault(&self, leaf: u8, error: &forebay_io::Error) -> bool {
        let mut others = LeafSet::default();
        self.members().filter(|other| *other != leaf).for_each(|other| others.insert(other));
        self.settle(&others, vec![(leaf, error.clone())], true).is_ok()
    }
}

/// Whether an error says something about the device.
fn is_failure(error: &forebay_io::Error) -> bool {
    !matches!(error.kind(), forebay_io::ErrorKind::Cancelled | forebay_io::ErrorKind::Closed)
}
