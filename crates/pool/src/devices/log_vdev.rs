//! The log vdev: a device or a mirror that holds the ring of the intent log, and nothing else.
//!
//! It is beside the vdevs that hold blocks. Nothing but the log writes to it, and its failure fails
//! nothing: the log goes back to the space of the pool, and the next commit makes all durable.
//!
//! # Stamps
//!
//! Before a commit writes the uberblock of a txg, the log vdev gets one of that txg too, as a
//! *stamp*; nobody reads the pool from it. A root that names the log vdev has the newest stamp that
//! is durable there. A log device whose newest stamp is older is an older copy of itself.
//!
//! # Invariants
//!
//! - A log vdev that has failed gets no request any more until the next import or until it is
//!   [tried again](Devices::retry_log), and labels say so.
//! - An error of a log vdev is never one of the pool.

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_io::{Fence, Priority};

use super::config::{Config, LeafConfig, Missed};
use super::label::{self, MayWrite, Uberblock};
use super::slots::Slots;
use super::status::STILL;
use super::vdev::LeafState;
use super::{Devices, Leaf, Vdev, exported};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::{Dva, DvaPhys};
use crate::log::Extent;

/// Log vdevs that a pool can have one after the other until it is closed.
const MAX_LOGS: usize = 64;
/// Maximum size of the ring on a log vdev: more than two transaction groups ever hold.
const RING_BYTES_MAX: u64 = 16 << 30;

/// Writes count for the txg whose commit began last, also once that is durable. By then the next
/// one may have quiesced, and a record be of the one after it, which is open.
const TXGS_AHEAD: u64 = 2;

/// Whether the log vdev has a stamp.
pub(crate) enum Stamped {
    /// The vdev with this number.
    Yes(u16),
    No,
    /// The lease has ended.
    Cancelled,
}

/// What a root needs of a log vdev.
#[derive(Clone, Copy)]
pub(crate) struct LogNeeds {
    pub(crate) number: u16,
    pub(crate) stamp: u64,
    /// Records of this txg and older ones are not needed.
    pub(crate) txg: u64,
}

/// What [`Devices::judge_log`] judges by.
pub(crate) struct LogJudged<'a> {
    pub(crate) needs: Option<LogNeeds>,
    /// The devices of the log vdev, as labels describe them.
    pub(crate) leaves: &'a [LeafConfig],
    /// The newest stamp of each, by guid.
    pub(crate) stamps: &'a [(u64, u64)],
}

/// The log vdev of a pool, and those that it had.
pub(super) struct LogVdevs {
    vdevs: Slots<Vdev>,
    /// 1 + the index of the one in use, or 0.
    current: AtomicUsize,
    flush_failures: AtomicU64,
}

impl LogVdevs {
    pub(super) fn new() -> Self {
        Self {
            vdevs: Slots::new(MAX_LOGS),
            current: AtomicUsize::new(0),
            flush_failures: AtomicU64::new(0),
        }
    }

    /// All of them, also those that have left.
    pub(super) fn all(&self) -> impl Iterator<Item = &Vdev> {
        self.vdevs.iter()
    }

    #[inline]
    pub(super) fn current(&self) -> Option<&Vdev> {
        self.vdevs.get(self.current.load(Ordering::Acquire).checked_sub(1)?)
    }
}

impl Devices {
    /// The log vdev, whatever its state.
    pub(crate) fn log(&self) -> Option<&Vdev> {
        self.logs.current()
    }

    /// Takes a log vdev into use. Its labels must be written before.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if its sectors are larger than the pool's, or the pool has had too
    /// many; [`ErrorKind::Closed`].
    pub(crate) fn set_log(&self, vdev: Vdev) -> Result<()> {
        vdev.leaves().try_for_each(|(_, leaf)| self.check_sectors(leaf))?;
        vdev.status().set_events(self.events());
        let is_closed = self.adding.lock();
        if *is_closed {
            return Err(exported());
        }
        let at = self.logs.vdevs.push(vdev).map_err(|_| too_many())?;
        self.logs.current.store(at + 1, Ordering::Release);
        Ok(())
    }

    /// Checks that the pool may get another log vdev.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it has had too many since its import.
    pub(crate) fn check_log_room(&self) -> Result<()> {
        match self.logs.all().count() < MAX_LOGS {
            true => Ok(()),
            false => Err(too_many()),
        }
    }

    /// Removes the log vdev for good: the labels forget it, and its own are erased. The log must
    /// have left it.
    ///
    /// # Errors
    /// [`ErrorKind::Device`], after which the pool still has it; what `may_write` returns.
    pub(crate) fn remove_log(
        &self,
        config: &mut Config,
        memory: &BlockCache,
        may_write: MayWrite<'_>,
    ) -> Result<()> {
        let current = self.logs.current.swap(0, Ordering::AcqRel);
        let Some(log) = current.checked_sub(1).and_then(|at| self.logs.vdevs.get(at)) else {
            let text = format!("pool {:?} has no log device", config.pool_name);
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let mut without = Config { log: None, ..config.clone() };
        let updated = label::update_config(self, &mut without, memory, may_write);
        // Some labels may have this generation, even after a failure.
        config.generation = without.generation;
        updated.inspect_err(|_| self.logs.current.store(current, Ordering::Release))?;
        *config = without;
        for (_, leaf) in log.leaves() {
            leaf.close_roots();
            leaf.drain();
            if !leaf.is_missing()
                && let Err(error) = label::erase(&**leaf.device(), leaf.size_bytes(), memory)
            {
                // No other label lists it.
                tracing::warn!(device = leaf.name(), %error, "cannot erase the labels of a log device");
            }
            leaf.leave();
        }
        Ok(())
    }

    /// Whether the log can be on the log vdev: it is there, and has not failed.
    pub(crate) fn has_usable_log(&self) -> bool {
        self.log().is_some_and(|log| log.used().any(|(_, leaf)| !leaf.is_missing()))
    }

    /// The ring on the log vdev, if that is usable.
    pub(crate) fn log_extent(&self) -> Option<Extent> {
        let span = self.log().filter(|_| self.has_usable_log())?.span();
        let place = DvaPhys::new(Dva { device: span.device, offset: span.start });
        let bytes = (span.end - span.start).min(RING_BYTES_MAX);
        Some(Extent { place, bytes })
    }

    /// Writes to the ring on the log vdev and waits, while `fence` allows it. A vdev that fails is
    /// not used any more.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub(crate) fn write_log(&self, writes: Vec<(Dva, Buffer)>, fence: Option<Fence>) -> Result<()> {
        self.check_log()?;
        self.write_fenced(writes, (Priority::SyncWrite, fence))
            .inspect_err(|error| self.log_failed(error))
    }

    /// Makes completed writes to the log vdev durable.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub(crate) fn flush_log(&self) -> Result<()> {
        self.check_log()?;
        let flushed = self.log().map_or(Ok(()), |log| log.begin_flush(true).wait());
        flushed.map_err(|error| {
            self.logs.flush_failures.fetch_add(1, Ordering::SeqCst);
            let error = Error::from(self.noted(error));
            self.log_failed(&error);
            error
        })
    }

    /// Number of failed flushes of log vdevs.
    pub(crate) fn log_flush_failures(&self) -> u64 {
        self.logs.flush_failures.load(Ordering::SeqCst)
    }

    fn check_log(&self) -> Result<()> {
        match self.has_usable_log() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Device, "the log device cannot be used")),
        }
    }

    /// A request to the log vdev failed, on all of its devices.
    fn log_failed(&self, error: &Error) {
        // A request that was refused says nothing about the device.
        let says = error.device_error().is_some_and(|io| {
            use forebay_io::ErrorKind as Io;
            !matches!(io.kind(), Io::Cancelled | Io::Closed)
        });
        let Some(log) = self.log().filter(|_| says) else { return };
        if log.status().fault_all() {
            let device = log.name();
            let event = Event { device: Some(&device), ..Event::because(error) };
            self.events().note(EventKind::DeviceFaulted, event);
        }
    }

    /// Uses devices of the log vdev again that have failed. Returns whether there are any. If the
    /// log had left the vdev, the caller moves it back.
    pub(crate) fn retry_log(&self) -> bool {
        let Some(log) = self.log() else { return false };
        let mut found = false;
        for (at, leaf) in log.leaves().filter(|(_, leaf)| !leaf.is_missing()) {
            if log.status().retry(at) {
                leaf.device().retry_flushes();
                found = true;
            }
        }
        found
    }

    /// Stamps the log vdev, durably: it knows that this txg may become the newest.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn stamp_log(
        &self,
        pool_guid: u64,
        uberblock: &Uberblock,
        memory: &BlockCache,
    ) -> Result<Stamped> {
        let Some(log) = self.log().filter(|_| self.has_usable_log()) else {
            return Ok(Stamped::No);
        };
        let stamped = label::write_stamp(self, pool_guid, uberblock, memory);
        match stamped.and_then(|()| self.flush_log()) {
            Ok(()) => Ok(Stamped::Yes(log.number())),
            Err(error) if error.kind() == ErrorKind::NoMemory => Err(error),
            Err(error) if label::is_cancelled(&error) => Ok(Stamped::Cancelled),
            Err(error) => {
                self.log_failed(&error);
                Ok(Stamped::No)
            }
        }
    }

    /// A txg is durable, and needs no record of itself or before: what sides of the log vdev had
    /// missed before is not needed any more.
    pub(crate) fn log_caught_up(&self, txg: u64) {
        let Some(log) = self.log() else { return };
        let whole = log.status().caught_up(txg.saturating_sub(TXGS_AHEAD));
        for (_, leaf) in log.leaves().filter(|(leaf, _)| whole.contains(*leaf)) {
            let event = Event::of_device(leaf.name()).in_txg(txg);
            self.events().note(EventKind::DeviceWhole, event);
        }
    }

    /// Whether a device of the log vdev in use misses records that an older root may need.
    pub(crate) fn log_catches_up(&self) -> bool {
        let misses = |log: &Vdev| log.used().any(|(at, _)| log.status().missed(at).is_some());
        self.log().is_some_and(misses)
    }

    /// Whether a device of the log vdev takes the place of another one.
    pub(crate) fn replaces_log(&self) -> bool {
        let replaces = |log: &Vdev| log.leaves().any(|(at, _)| log.replaced_by(at).is_some());
        self.log().is_some_and(replaces)
    }

    /// The log moves to the log vdev, and no root needs records there: the devices that are not in
    /// use miss what comes.
    pub(crate) fn log_begins(&self) {
        let Some(log) = self.log().filter(|_| self.has_usable_log()) else { return };
        let is_away = |at: u8, leaf: &Leaf| !log.status().is_used(at) && !leaf.is_missing();
        for (at, _) in log.leaves().filter(|(at, leaf)| is_away(*at, leaf)) {
            log.status().misses_on(at);
        }
    }

    /// Decides at an import which devices of the log vdev have all records that a root needs, and
    /// adds to `notes` which are older copies. Returns why the vdev may lack records, if it may.
    pub(crate) fn judge_log(&self, of: &LogJudged<'_>, notes: &mut Vec<String>) -> Option<String> {
        let log = self.log()?;
        let is_alone = log.leaves().count() == 1;
        let needs = of.needs.filter(|needs| needs.number == log.number());
        for ((at, leaf), config) in log.leaves().zip(of.leaves) {
            if !log.status().is_used(at) || leaf.is_missing() {
                continue;
            }
            let Some(needs) = needs else {
                // It is written from the first commit on, as all of them are.
                log.status().set_missed(at, None);
                continue;
            };
            let stamp = of.stamps.iter().find(|(guid, _)| *guid == leaf.guid());
            let stamp = stamp.map_or(0, |(_, txg)| *txg);
            if stamp < needs.stamp {
                let (name, to) = (leaf.name(), needs.stamp);
                notes.push(format!(
                    "log device {name} has nothing after txg {stamp}, of {to}: it had failed, or is an older copy of itself"
                ));
            }
            // Each record is on some side: with one only, on that.
            let has_caught_up = |missed: Missed| {
                missed.to != STILL && missed.to.saturating_add(TXGS_AHEAD) <= needs.txg
            };
            let is_whole = is_alone || config.missed.is_none_or(has_caught_up);
            let missed = (stamp < needs.stamp || !is_whole).then(|| {
                // From the first commit of this import on, it misses nothing.
                let to = needs.txg.saturating_sub(TXGS_AHEAD - 1).max(1);
                let from = config.missed.map_or(stamp + 1, |missed| missed.from.min(stamp + 1));
                Missed { from: from.min(to), to }
            });
            log.status().set_missed(at, missed);
        }
        lacking(log)
    }

    /// Writes the labels of the log vdev, durably. If that fails, it is not used any more.
    pub(super) fn label_log(&self, config: &Config, at_back: bool, memory: &BlockCache) {
        let Some(log) = self.log().filter(|_| self.has_usable_log()) else { return };
        match label::write_configs(&[log], config, at_back, Some(self), memory) {
            Ok(()) => drop(self.flush_log()),
            Err(error) => self.log_failed(&error),
        }
    }
}

/// Why the log vdev may lack records; `None` if a device of it has all.
fn lacking(log: &Vdev) -> Option<String> {
    if log.status().has_whole_leaf() {
        return None;
    }
    let describe = |(at, leaf): (u8, &Leaf)| match (log.status().missed(at), log.leaf_state(at)) {
        (_, LeafState::Missing) => leaf.name().to_owned(),
        (_, LeafState::Offline) => format!("{}, which is offline", leaf.name()),
        (Some(missed), _) => {
            format!("{}, which lacks what came after txg {}", leaf.name(), missed.from - 1)
        }
        (None, state) => format!("{}, which is {state}", leaf.name()),
    };
    Some(log.leaves().map(describe).collect::<Vec<_>>().join(", "))
}

fn too_many() -> Error {
    let text = "the pool has had too many log devices since its import; import it again";
    Error::new(ErrorKind::Invalid, text)
}
