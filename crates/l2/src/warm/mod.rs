//! The warm-up: after a restart, blocks are put back into memory before anybody asks for them.
//!
//! A block that is asked for costs a read of its own; read in the order in which they lie, many blocks cost one. So once it is
//! known what a segment holds, and all that are newer, some threads look up in the index which of its blocks are
//! current, read those in large pieces, and put them into the cache's [spare room](forebay_cache::SpareRoom), from the newest segment to the oldest.
//! What was in memory only when the level was closed was written last, and comes first.
//!
//! # Invariants
//!
//! - Nothing old comes back. The key's slot in the cache is taken first, then it is looked whether the index still has the block at that place, in
//!   that use of its segment, whether a load would be served from there, and whether the level is open; only then the block is published. Who overwrites or removes the key later takes the slot
//!   over; who did so earlier has taken the record out of the index, unless the level was not open any more by then.
//! - Nobody waits for it: a slot is taken when the bytes are there. Its reads have a lower priority than loads have.
//! - It evicts nothing, and ends when no room is spare. It goes once through the log as it was when the level was opened: what was written since was in
//!   memory since.
//! - What it holds is bounded: a lot of batches' records, and a few pieces on their way.
//!
//! Locking: `l2-warm` for a look, or for a wait until it has ended; nothing else is locked under it. `l2-warm-search` is held by one of its threads
//! while that finds out which batches are next: over reads, and while it waits for the rebuild (`l2-rebuild`). Only its threads take it.
//!
//! # What it does not do
//!
//! It does not adapt the number of its threads, which is larger than processors would ask for: beside many threads that read what is in memory
//! already, one thread gets one thread's share of the processors.
//!
//! It knows nothing of what the rebuild has read: it reads logs a second time, which are a hundredth of what there is.

mod put;
mod search;

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Key, SpareRoom};

use crate::counters::LevelCounters;
use crate::inner::Inner;
use crate::medium::Trouble;
use put::Pieces;
use search::Search;

/// How putting blocks back into memory goes, see [`Level::warm_up`](crate::Level::warm_up).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarmUp {
    /// Nobody has asked for it.
    #[default]
    NotAsked,
    /// It waits for the rebuild, or reads.
    Running,
    /// It has ended.
    Ended(WarmUpEnd),
}

/// How it ended. The order is that of counter labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarmUpEnd {
    /// All that the level has was looked at.
    Done = 0,
    /// Memory had no room left that nobody needed, or had to evict something, or there was no memory for reads.
    NoRoom = 1,
    /// The codec cannot make keys of what is written.
    NoKeys = 2,
    /// It was switched off.
    Off = 3,
    /// The level or the cache was closed.
    Closed = 4,
    /// The level's device has failed or hangs, there was no thread, or the cache's weigher panicked.
    Failed = 5,
}

/// Whether it runs, and who waits for that.
pub(crate) struct Warming {
    state: Mutex<WarmUp>,
    changed: Condvar,
}

impl Warming {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::named("l2-warm", WarmUp::NotAsked), changed: Condvar::new() }
    }

    /// False if it has begun before.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let first = *state == WarmUp::NotAsked;
        if first {
            *state = WarmUp::Running;
        }
        first
    }

    pub(crate) fn state(&self) -> WarmUp {
        *self.state.lock()
    }

    /// Waits until it does not run.
    pub(crate) fn wait(&self) -> WarmUp {
        let mut state = self.state.lock();
        while *state == WarmUp::Running {
            self.changed.wait(&mut state);
        }
        *state
    }
}

/// What its threads share.
struct Work<K: Key, V: Send + Sync + 'static> {
    room: SpareRoom<K, V>,
    search: Mutex<Search>,
}

/// The other threads. They are waited for in every case: whoever is told that it has ended may take away what they use.
struct Helpers(Vec<JoinHandle<WarmUpEnd>>);

impl Helpers {
    /// Waits for them. How those ended that were not done, if any.
    fn join(&mut self) -> Option<WarmUpEnd> {
        let mut end = None;
        for helper in self.0.drain(..) {
            let other = helper.join().unwrap_or(WarmUpEnd::Failed);
            if other != WarmUpEnd::Done {
                end = end.or(Some(other));
            }
        }
        end
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.join();
    }
}

/// Tells how it has ended, also if it does so by a panic of the user's weigher.
struct Ending<'a, K: Key, V: Send + Sync + 'static>(&'a Inner<K, V>, WarmUpEnd);

impl<K: Key, V: Send + Sync + 'static> Drop for Ending<'_, K, V> {
    fn drop(&mut self) {
        self.0.end_warm_up(self.1);
    }
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// It has begun, and has ended so.
    pub(crate) fn end_warm_up(&self, end: WarmUpEnd) {
        self.counters.add(LevelCounters::WARM_ENDED, end as usize, 1);
        *self.warming.state.lock() = WarmUp::Ended(end);
        self.warming.changed.notify_all();
    }

    /// The thread's body.
    pub(crate) fn warm_up(self: &Arc<Self>, room: SpareRoom<K, V>) {
        self.enter_thread();
        let mut ending = Ending(self, WarmUpEnd::Failed);
        ending.1 = match self.rebuild.wait_begun() {
            Some(newest) => self.go_through(room, newest),
            None => self.why_not_open(),
        };
    }

    fn go_through(self: &Arc<Self>, room: SpareRoom<K, V>, newest: u64) -> WarmUpEnd {
        let search = Mutex::named("l2-warm-search", Search::new(self, newest));
        let work = Arc::new(Work { room, search });
        let helpers = (1..self.tunables.warm_up_threads())
            .map_while(|number| {
                let (inner, work) = (Arc::clone(self), Arc::clone(&work));
                let body = move || {
                    inner.enter_thread();
                    inner.work_off(&work)
                };
                spawn_named(&format!("l2-warm-{number}"), body).ok()
            })
            .collect();
        let mut helpers = Helpers(helpers);
        let end = self.work_off(&work);
        match (end, helpers.join()) {
            (WarmUpEnd::Done, Some(other)) => other,
            _ => end,
        }
    }

    fn work_off(&self, work: &Work<K, V>) -> WarmUpEnd {
        loop {
            if !self.status.is_open() {
                return self.why_not_open();
            }
            if work.room.bytes() == 0 {
                return WarmUpEnd::NoRoom;
            }
            let batches = work.search.lock().next_batches(self);
            let found = match batches {
                Ok(batches) if batches.is_empty() && !self.status.is_open() => {
                    return self.why_not_open();
                }
                Ok(batches) if batches.is_empty() => return WarmUpEnd::Done,
                Ok(batches) => self.blocks_of(&batches),
                Err(trouble) => Err(trouble),
            };
            let put = match found {
                Ok(found) => Pieces::of(self, &found).put(&work.room),
                Err(trouble) => Err(self.why_not_read(&trouble)),
            };
            if let Err(end) = put {
                return end;
            }
        }
    }

    fn why_not_open(&self) -> WarmUpEnd {
        match self.status.refusal() {
            Some(crate::Refusal::Failed) => WarmUpEnd::Failed,
            _ => WarmUpEnd::Closed,
        }
    }

    /// What a read that did not even begin, or did not end, means.
    fn why_not_read(&self, trouble: &Trouble) -> WarmUpEnd {
        match trouble {
            Trouble::NoMemory(_) => WarmUpEnd::NoRoom,
            Trouble::Stalled(_) | Trouble::Device(_) => WarmUpEnd::Failed,
        }
    }
}
