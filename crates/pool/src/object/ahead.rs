//! Reading ahead of an object's reads: what `prefetch` recognizes, carried out.

use std::ops::Range;

use forebay_base::clock::Clock;
use forebay_base::sync::Arc;

use crate::prefetch::{self, Limits, Plan, PrefetchCounters, PrefetchTunables, Prefetcher};
use crate::waiting;

use super::node::{Node, State};

/// What all objects of a pool share for it.
pub(crate) struct ReadAhead {
    tunables: Arc<PrefetchTunables>,
    counters: PrefetchCounters,
    clock: Arc<dyn Clock>,
}

impl ReadAhead {
    pub(crate) fn new(tunables: Arc<PrefetchTunables>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { tunables, counters: PrefetchCounters::new(), clock })
    }

    /// What it has counted.
    pub(crate) fn counters(&self) -> &PrefetchCounters {
        &self.counters
    }
}

/// Reads, as ranges of blocks, that were noted and then not served, because that would have had to wait: whoever comes back for
/// one is not noted again.
#[derive(Default)]
pub(super) struct Unserved(Vec<Range<u64>>);

/// Reads that may come back; of more, the oldest are noted again.
const UNSERVED_MAX: usize = 64;

impl Unserved {
    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether such a read was noted already.
    #[inline]
    pub(super) fn take(&mut self, blocks: &Range<u64>) -> bool {
        !self.0.is_empty() && self.find(blocks)
    }

    #[cold]
    fn find(&mut self, blocks: &Range<u64>) -> bool {
        let found = self.0.iter().position(|unserved| unserved == blocks);
        found.map(|at| self.0.swap_remove(at)).is_some()
    }

    pub(super) fn put(&mut self, blocks: Range<u64>) {
        if self.0.len() == UNSERVED_MAX {
            self.0.remove(0);
        }
        self.0.push(blocks);
    }
}

impl Node {
    /// Notes a read of blocks, and says what will be wanted next. How the one noted before was served is what the
    /// stream learns from: this one is not served yet.
    pub(super) fn note_read(&self, state: &mut State, blocks: &Range<u64>) -> Option<Plan> {
        let ahead = &self.objset.ahead;
        let limits = Limits::new(&ahead.tunables, self.record_bytes() as u64);
        let found = state.last_found;
        if found != prefetch::Found::Hit {
            state.last_found = prefetch::Found::Hit;
        }
        let end = (state.size + self.record_bytes() as u64 - 1) >> self.record_shift;
        let count = (blocks.end - blocks.start).min(u64::from(u32::MAX)) as u32;
        let prefetcher = state.prefetcher.get_or_insert_with(|| Box::new(Prefetcher::new()));
        let now_ns = || ahead.clock.now_ns();
        prefetcher.on_read((blocks.start, count), end, found, now_ns, &limits, &ahead.counters)
    }

    /// Begins to read blocks that will be wanted.
    pub(super) fn read_ahead(&self, plan: Plan) {
        let _reading = self.objset.store.readers().enter();
        // Pointers that are not in memory are read for once; the reader would wait for them soon anyway.
        let mut may_pin = true;
        for block in plan.blocks() {
            let mut found = self.whereabouts(block);
            if found.is_none() && may_pin {
                may_pin = false;
                let pinned = self.pin(block);
                if waiting::is_would_block(&pinned) {
                    // It is on its way by now.
                    self.lock().postponed = Some(plan);
                    return;
                }
                found = pinned.is_ok().then(|| self.whereabouts(block)).flatten();
            }
            match found {
                Some(Some(ptr)) => {
                    self.objset.store.prefetch(&ptr, self.attributes(), Box::new(|_| {}));
                }
                Some(None) => {}
                None => return,
            }
        }
    }
}
