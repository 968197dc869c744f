//! What the newest transaction groups took: time by phase, and bytes.
//!
//! # Invariants
//!
//! - Only the sync thread adds, one group at a time. A group is listed once it is durable.
//! - The phases of a group are disjoint and cover its commit, so their sum is its time.
//! - The list is bounded. The sums cover all groups since the import.
//!
//! # Locking
//!
//! `pool-txg-history`, a leaf lock, for a look.

use std::collections::VecDeque;

use forebay_base::clock::Clock;
use forebay_base::sync::{Arc, Mutex};

/// Groups that are remembered.
const RECORDS_MAX: usize = 64;

/// A phase of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TxgPhase {
    /// The group is closed: changes wait until its last transaction has ended.
    Quiesce,
    /// Waits for readers, repairs and checks that still use pointers of past groups.
    Readers,
    /// Compresses, places and submits data, directories and dnodes. Reads what they need.
    Objects,
    /// Waits for the submitted writes.
    Writes,
    /// Writes space maps and the root block.
    Space,
    /// Flushes all devices.
    Flush,
    /// Writes the uberblocks and flushes all devices again.
    Uberblock,
}

impl TxgPhase {
    /// Number of phases.
    pub const COUNT: usize = 7;

    /// All phases, in their order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Quiesce,
        Self::Readers,
        Self::Objects,
        Self::Writes,
        Self::Space,
        Self::Flush,
        Self::Uberblock,
    ];

    /// The phase as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiesce => "quiesce",
            Self::Readers => "readers",
            Self::Objects => "objects",
            Self::Writes => "writes",
            Self::Space => "space",
            Self::Flush => "flush",
            Self::Uberblock => "uberblock",
        }
    }
}

/// A durable transaction group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxgRecord {
    /// Its number.
    pub txg: u64,
    /// How long it was open for changes, in nanoseconds.
    pub open_ns: u64,
    /// Dirty bytes when it was closed, as in [`PoolStats::dirty_bytes`](super::PoolStats).
    pub dirty_bytes: u64,
    /// Bytes of blocks written, all copies.
    pub written_bytes: u64,
    /// Nanoseconds of each phase, in the order of [`TxgPhase::ALL`].
    pub phase_ns: [u64; TxgPhase::COUNT],
}

/// The newest transaction groups of a pool, and sums since the import.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TxgHistoryInfo {
    /// Groups that became durable.
    pub count: u64,
    /// Nanoseconds of each phase, of all groups.
    pub phase_ns: [u64; TxgPhase::COUNT],
    /// The newest groups, oldest first.
    pub newest: Vec<TxgRecord>,
}

struct HistoryState {
    records: VecDeque<TxgRecord>,
    count: u64,
    phase_ns: [u64; TxgPhase::COUNT],
    /// The group that is being committed.
    current: TxgRecord,
    /// When the open group was opened, and when the last phase has ended.
    opened_ns: u64,
    marked_ns: u64,
    /// Bytes that the store had written when the commit began.
    written_before: u64,
}

/// Records the commits of a pool.
pub(super) struct TxgHistory {
    state: Mutex<HistoryState>,
    clock: Arc<dyn Clock>,
}

impl TxgHistory {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = HistoryState {
            records: VecDeque::with_capacity(RECORDS_MAX),
            count: 0,
            phase_ns: [0; TxgPhase::COUNT],
            current: TxgRecord::default(),
            opened_ns: clock.now_ns(),
            marked_ns: 0,
            written_before: 0,
        };
        Self { state: Mutex::named("pool-txg-history", state), clock }
    }

    /// A commit begins with its first phase: the open group is about to be closed.
    pub(super) fn begin(&self, written_bytes: u64) {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        let open_ns = now_ns.saturating_sub(state.opened_ns);
        state.current = TxgRecord { open_ns, ..TxgRecord::default() };
        (state.marked_ns, state.written_before) = (now_ns, written_bytes);
    }

    /// The group is closed, and the next one open.
    pub(super) fn closed(&self, txg: u64, dirty_bytes: u64) {
        self.end(TxgPhase::Quiesce);
        let mut state = self.state.lock();
        state.opened_ns = state.marked_ns;
        (state.current.txg, state.current.dirty_bytes) = (txg, dirty_bytes);
    }

    /// A phase has ended. It may end several times: its parts are added.
    pub(super) fn end(&self, phase: TxgPhase) {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        state.current.phase_ns[phase as usize] += now_ns.saturating_sub(state.marked_ns);
        state.marked_ns = now_ns;
    }

    /// The group is durable.
    pub(super) fn durable(&self, written_bytes: u64) {
        let mut state = self.state.lock();
        let before = state.written_before;
        let record =
            TxgRecord { written_bytes: written_bytes.saturating_sub(before), ..state.current };
        if state.records.len() == RECORDS_MAX {
            state.records.pop_front();
        }
        state.records.push_back(record);
        state.count += 1;
        for (sum, took) in state.phase_ns.iter_mut().zip(record.phase_ns) {
            *sum += took;
        }
    }

    pub(super) fn info(&self) -> TxgHistoryInfo {
        let state = self.state.lock();
        TxgHistoryInfo {
            count: state.count,
            phase_ns: state.phase_ns,
            newest: state.records.iter().copied().collect(),
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::clock::ManualClock;

    use super::*;

    #[test]
    fn phases_are_what_passes_between_their_ends() {
        let clock = Arc::new(ManualClock::default());
        let history = TxgHistory::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let pass = |ns| clock.advance(ns);
        for txg in 1..=RECORDS_MAX as u64 + 1 {
            pass(1000);
            history.begin(10 * txg);
            pass(1);
            history.closed(txg, 77);
            for (at, phase) in TxgPhase::ALL.into_iter().enumerate().skip(1) {
                pass(10 * at as u64);
                history.end(phase);
            }
            // A phase that is repeated.
            pass(5);
            history.end(TxgPhase::Writes);
            history.durable(10 * txg + 3);
        }
        let info = history.info();
        assert_eq!((info.count, info.newest.len()), (RECORDS_MAX as u64 + 1, RECORDS_MAX));
        let newest = info.newest[RECORDS_MAX - 1];
        assert_eq!(newest.txg, RECORDS_MAX as u64 + 1);
        assert_eq!(newest.phase_ns, [1, 10, 20, 35, 40, 50, 60]);
        // It was open while the group before was written.
        assert_eq!(newest.open_ns, 1000 + 10 + 20 + 35 + 40 + 50 + 60);
        assert_eq!((newest.dirty_bytes, newest.written_bytes), (77, 3));
        assert_eq!(info.phase_ns[2], 20 * info.count);
    }
}
