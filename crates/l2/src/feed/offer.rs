//! Admission: which of the blocks that the cache offers are written.
//!
//! Metadata is. Data is of a kind, by what proves its reuse: how often it was offered lately, and whether it was looked up in
//! memory; a kind is written if its blocks are asked for no less often than those that the ring drops for them (see [`Worth`](super::Worth)). While
//! the ring has not come round, everything is, as far as the rate allows it: nothing is lost for it; what has not proven its reuse waits
//! for what has. Each refusal has a reason, which is counted.
//!
//! Nothing here waits: it runs on the cache's reclaimer, or on one who inserts.

use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Candidate, Class, Key};

use super::Queued;
use super::rate::Bounds;
use super::worth::CANDIDATES;
use crate::Refusal;
use crate::counters::LevelCounters;
use crate::inner::Inner;
use crate::record::{Identity, State};

/// A block that was looked up again in memory, or is in mfu, counts as one that was seen so often.
const REUSED: u8 = 2;

/// What is known of a block that may be written.
pub(super) struct Wish {
    pub(super) id: Identity,
    pub(super) value_bytes: usize,
    pub(super) bytes: u64,
    /// Whether it has proven reuse.
    proven: bool,
}

/// What is to be done with a candidate.
enum Verdict {
    Write(Wish),
    /// The level has it.
    Known,
    Refused(Refusal),
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// The cache offers blocks.
    pub(crate) fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        let closed = self.refusal();
        let mut chosen = Vec::with_capacity(candidates.len());
        // Dropped at the end: the last pin of a value runs its drop.
        let mut passed = Vec::new();
        for candidate in candidates {
            self.counters.add(LevelCounters::OFFERED, candidate.class as usize, 1);
            let verdict = match closed {
                Some(reason) => Verdict::Refused(reason),
                None => self.judge(&candidate),
            };
            match verdict {
                Verdict::Write(wish) => chosen.push((candidate, wish)),
                Verdict::Known => {
                    self.counters.add(LevelCounters::OFFERED_KNOWN, candidate.class as usize, 1);
                    passed.push(candidate);
                }
                Verdict::Refused(reason) => {
                    self.refuse(reason);
                    passed.push(candidate);
                }
            }
        }
        if !chosen.is_empty() {
            self.queue(chosen, &mut passed);
        }
    }

    /// The cache has let go of blocks.
    pub(crate) fn evicted(&self, keys: &[K]) {
        for id in keys.iter().filter_map(|key| self.identity(key)) {
            self.index.leave_memory(id);
            self.worth.left(id);
        }
    }

    /// Whether the block would be written if memory let go of it, as far as that can be told.
    pub(crate) fn would_write(&self, key: &K, class: Class) -> bool {
        self.refusal().is_none()
            && self.ask(|codec| codec.admit(key, class)) == Some(Ok(()))
            && self.identity(key).is_some_and(|id| self.index.find(id).is_none())
    }

    /// Nothing will be written any more: who waits is told, and what waits is dropped.
    pub(crate) fn end_feed(&self) {
        self.lose(self.feed.die());
    }

    /// Drops blocks that will not be written.
    pub(crate) fn lose(&self, blocks: impl IntoIterator<Item = Queued<K, V>>) {
        for block in blocks {
            self.counters.add(LevelCounters::ADMITTED_LOST, block.class as usize, 1);
        }
    }

    pub(super) fn refuse(&self, reason: Refusal) {
        let label = Refusal::ALL.iter().position(|other| *other == reason).expect("all are there");
        self.counters.add(LevelCounters::REFUSED, label, 1);
    }

    /// Why nothing is taken at all, if it is so.
    fn refusal(&self) -> Option<Refusal> {
        if let Some(reason) = self.status.refusal() {
            return Some(reason);
        }
        // What is on the device already would be written again.
        self.rebuild.is_running().then_some(Refusal::Rebuilding)
    }

    fn judge(&self, candidate: &Candidate<K, V>) -> Verdict {
        let mut wish = match self.wish(candidate) {
            Ok(Some(wish)) => wish,
            Ok(None) => return Verdict::Known,
            Err(reason) => return Verdict::Refused(reason),
        };
        if candidate.class == Class::Metadata || self.tunables.admit_all() {
            return Verdict::Write(wish);
        }
        let seen = self.seen.note(wish.id) + if candidate.reused { REUSED } else { 0 };
        let kind = usize::from(seen).min(CANDIDATES - 1);
        self.worth.note(wish.id, kind);
        wish.proven = kind > 0;
        if self.came_round.load(Ordering::Relaxed) && !self.worth.is_enough(kind) {
            let reason = if wish.proven { Refusal::LittleReuse } else { Refusal::NoProvenReuse };
            return Verdict::Refused(reason);
        }
        Verdict::Write(wish)
    }

    /// What would be written, if it may be at all. `None`: the level has it.
    pub(super) fn wish(&self, candidate: &Candidate<K, V>) -> Result<Option<Wish>, Refusal> {
        let (key, class) = (candidate.key(), candidate.class);
        let panicked = Refusal::CodecPanicked;
        self.ask(|codec| codec.admit(key, class)).ok_or(panicked)??;
        let value_bytes = self.ask(|codec| codec.encoded_len(candidate.value())).ok_or(panicked)?;
        let bytes = self.block_bytes(value_bytes);
        if value_bytes as u64 > u64::from(u32::MAX) || bytes > self.max_block_bytes() {
            return Err(Refusal::TooLarge);
        }
        let id = self.identity(key).ok_or(panicked)?;
        let known = |state| matches!(state, State::Live | State::Pending);
        if self.index.find(id).is_some_and(|record| known(record.state)) {
            return Ok(None);
        }
        Ok(Some(Wish { id, value_bytes, bytes, proven: true }))
    }

    /// Queues what is chosen, as far as there is room and the rate allows it.
    fn queue(&self, chosen: Vec<(Candidate<K, V>, Wish)>, passed: &mut Vec<Candidate<K, V>>) {
        let now = self.clock.now_ns();
        let (bounds, room) = (self.rate_bounds(), self.tunables.queue_bytes());
        let lot = self.lot_bytes();
        let mut refused = Vec::new();
        let mut admitted = [0; 2];
        let mut in_vain = [0; 2];
        let ready = self.feed.with(|state| {
            state.rate.fill(bounds, now);
            let was_empty = state.queue.is_empty();
            for (candidate, wish) in chosen {
                let class = candidate.class;
                let reason = if state.stopping {
                    Some(Refusal::Removed)
                } else if state.queued_bytes >= room {
                    Some(Refusal::QueueFull)
                } else if !state.rate.take(wish.bytes, wish.proven) {
                    Some(Refusal::Rate)
                } else {
                    None
                };
                if let Some(reason) = reason {
                    refused.push(reason);
                    passed.push(candidate);
                    continue;
                }
                admitted[class as usize] += 1;
                let Wish { id, value_bytes, bytes, .. } = wish;
                match candidate.try_write() {
                    Ok(block) => {
                        state.queued_bytes += bytes;
                        let since_ns = now;
                        state.queue.push_back(Queued {
                            id,
                            class,
                            value_bytes,
                            bytes,
                            since_ns,
                            block,
                        });
                    }
                    Err(candidate) => {
                        passed.push(candidate);
                        in_vain[class as usize] += 1;
                        state.rate.give_back(bytes);
                    }
                }
            }
            // Once it knows that something waits, the writer looks by itself when that has waited long enough.
            let first = was_empty && !state.queue.is_empty();
            first || state.queued_bytes >= lot
        });
        if ready {
            self.feed.wake();
        }
        refused.into_iter().for_each(|reason| self.refuse(reason));
        for class in Class::ALL.map(|class| class as usize) {
            self.counters.add(LevelCounters::ADMITTED, class, admitted[class]);
            self.counters.add(LevelCounters::ADMITTED_IN_VAIN, class, in_vain[class]);
        }
    }

    /// How much may be written a second, at least and at most.
    pub(crate) fn rate_bounds(&self) -> Bounds {
        let max = self.tunables.write_max_bytes_per_s();
        Bounds { min: self.tunables.write_min_bytes_per_s().min(max), max }
    }
}
