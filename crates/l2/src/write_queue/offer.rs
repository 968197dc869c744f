//! Offers: decides which blocks that the cache offers are written, and queues them.
//!
//! Metadata is written as far as rate and queue allow. Data has a kind, by its frequency and by
//! whether it was looked up again in memory. A kind is written if the
//! [`AdmissionPolicy`](super::AdmissionPolicy) admits it. Until the ring wraps, no block is
//! evicted, so every kind is written, at first in a burst (see `rate`). Later, blocks without
//! proven reuse use the rate that proven blocks leave. Every refusal is counted with its reason.
//!
//! Nothing here blocks: it runs on the cache's reclaimer, or on a thread that inserts.

use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Candidate, Class, Holding, Key};

use super::QueuedBlock;
use super::admission::CANDIDATE_KINDS;
use super::rate::RateBounds;
use crate::AdmissionRefusal;
use crate::counters::L2Counters;
use crate::record::{KeyHash, RecordState};
use crate::shared::L2Shared;

/// Frequency of a block that was looked up again in memory, or is in mfu.
const REUSED_FREQUENCY: u8 = 2;

/// A block that may be written.
pub(super) struct PreparedBlock {
    pub(super) hash: KeyHash,
    pub(super) value_bytes: usize,
    pub(super) bytes: u64,
    /// Whether the block has proven reuse.
    proven: bool,
}

/// The decision on a candidate.
enum Decision {
    Write(PreparedBlock),
    /// The L2 holds the block.
    Known,
    Refused(AdmissionRefusal),
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Handles blocks that the cache offers.
    pub(crate) fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        let closed = self.refusal();
        let mut accepted = Vec::with_capacity(candidates.len());
        // Dropped at the end: the last pin of a value runs its drop.
        let mut declined = Vec::new();
        for candidate in candidates {
            self.counters.add(L2Counters::OFFERED, candidate.class as usize, 1);
            let decision = match closed {
                Some(reason) => Decision::Refused(reason),
                None => self.decide(&candidate),
            };
            match decision {
                Decision::Write(prepared) => accepted.push((candidate, prepared)),
                Decision::Known => {
                    self.counters.add(L2Counters::OFFERED_KNOWN, candidate.class as usize, 1);
                    declined.push(candidate);
                }
                Decision::Refused(reason) => {
                    self.count_refusal(reason);
                    declined.push(candidate);
                }
            }
        }
        if !accepted.is_empty() {
            self.queue(accepted, &mut declined);
        }
    }

    /// Handles the eviction of blocks from the cache.
    pub(crate) fn evicted(&self, keys: &[K]) {
        for hash in keys.iter().filter_map(|key| self.key_hash(key)) {
            self.index.clear_in_memory(hash);
            self.admission.on_evicted(hash);
        }
    }

    /// Estimates whether the block would be written if the cache evicted it.
    pub(crate) fn would_write(&self, key: &K, class: Class) -> bool {
        self.refusal().is_none()
            && self.with_codec(|codec| codec.admit(key, class)) == Some(Ok(()))
            && self.key_hash(key).is_some_and(|hash| !self.has_value_of_memory(key, hash))
    }

    /// Whether the block is stored, or may not be.
    pub(crate) fn holding(&self, key: &K, class: Class) -> Holding {
        if self.key_hash(key).is_some_and(|hash| self.find_of(key, hash).is_some()) {
            return Holding::Stored;
        }
        match self.with_codec(|codec| codec.admit(key, class)) {
            Some(Err(AdmissionRefusal::ClassExcluded | AdmissionRefusal::OwnerExcluded)) => {
                Holding::Excluded
            }
            _ => Holding::NotStored,
        }
    }

    /// Terminates the write queue, wakes waiting threads, drops queued blocks, and ends forgets
    /// whose tombstones are not durable.
    pub(crate) fn end_write_queue(&self) {
        let (blocks, forgets) = self.write_queue.terminate();
        self.drop_blocks(blocks);
        forgets.into_iter().for_each(|forget| self.end_unwritten(forget));
    }

    /// Counts and drops blocks that will not be written.
    pub(crate) fn drop_blocks(&self, blocks: impl IntoIterator<Item = QueuedBlock<K, V>>) {
        for block in blocks {
            self.counters.add(L2Counters::ADMITTED_LOST, block.class as usize, 1);
        }
    }

    pub(super) fn count_refusal(&self, reason: AdmissionRefusal) {
        let label = AdmissionRefusal::ALL
            .iter()
            .position(|other| *other == reason)
            .expect("ALL lists every reason");
        self.counters.add(L2Counters::REFUSED, label, 1);
    }

    /// The reason to refuse all blocks, if there is one.
    fn refusal(&self) -> Option<AdmissionRefusal> {
        if let Some(reason) = self.status.refusal() {
            return Some(reason);
        }
        // Blocks on the device would be written again.
        self.rebuild.is_running().then_some(AdmissionRefusal::Rebuilding)
    }

    fn decide(&self, candidate: &Candidate<K, V>) -> Decision {
        let mut prepared = match self.prepare(candidate) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Decision::Known,
            Err(reason) => return Decision::Refused(reason),
        };
        if candidate.class == Class::Metadata || self.tunables.admit_all() {
            return Decision::Write(prepared);
        }
        let frequency = self.frequency_sketch.increment(prepared.hash)
            + if candidate.reused { REUSED_FREQUENCY } else { 0 };
        let kind = usize::from(frequency).min(CANDIDATE_KINDS - 1);
        self.admission.observe(prepared.hash, kind);
        prepared.proven = kind > 0;
        if self.has_wrapped.load(Ordering::Relaxed) && !self.admission.admits(kind) {
            let reason = if prepared.proven {
                AdmissionRefusal::LittleReuse
            } else {
                AdmissionRefusal::NoProvenReuse
            };
            return Decision::Refused(reason);
        }
        Decision::Write(prepared)
    }

    /// Whether the L2 does not hold the block, and would write it if all were written.
    pub(crate) fn lacks(&self, candidate: &Candidate<K, V>) -> bool {
        matches!(self.prepare(candidate), Ok(Some(_)))
    }

    /// Prepares a block for writing. Returns `None` if the L2 holds it.
    pub(super) fn prepare(
        &self,
        candidate: &Candidate<K, V>,
    ) -> Result<Option<PreparedBlock>, AdmissionRefusal> {
        let (key, class) = (candidate.key(), candidate.class);
        let panicked = AdmissionRefusal::CodecPanicked;
        self.with_codec(|codec| codec.admit(key, class)).ok_or(panicked)??;
        match self.with_codec(|codec| codec.admit_value(key, candidate.value())) {
            Some(true) => {}
            Some(false) => return Err(AdmissionRefusal::ValueExcluded),
            None => return Err(panicked),
        }
        let value_bytes =
            self.with_codec(|codec| codec.encoded_len(candidate.value())).ok_or(panicked)?;
        let bytes = self.block_bytes(value_bytes);
        if value_bytes as u64 > u64::from(u32::MAX) || bytes > self.max_block_bytes() {
            return Err(AdmissionRefusal::TooLarge);
        }
        let hash = self.key_hash(key).ok_or(panicked)?;
        if self.has_value_of_memory(key, hash) {
            return Ok(None);
        }
        Ok(Some(PreparedBlock { hash, value_bytes, bytes, proven: true }))
    }

    /// Whether the index has a block with the value that memory has. That is each block, live or
    /// pending: it is bad before memory has a newer value.
    fn has_value_of_memory(&self, key: &K, hash: KeyHash) -> bool {
        self.find_of(key, hash)
            .is_some_and(|record| matches!(record.state, RecordState::Live | RecordState::Pending))
    }

    /// Queues the accepted blocks, as far as the queue and the rate allow.
    fn queue(
        &self,
        accepted: Vec<(Candidate<K, V>, PreparedBlock)>,
        declined: &mut Vec<Candidate<K, V>>,
    ) {
        let now = self.clock.now_ns();
        let (bounds, queue_limit) = (self.rate_bounds(), self.tunables.queue_bytes());
        let batch_bytes = self.batch_block_bytes();
        let has_wrapped = self.has_wrapped.load(Ordering::Relaxed);
        let mut refused = Vec::new();
        let mut admitted = [0; 2];
        let mut dropped = [0; 2];
        let ready = self.write_queue.with(|state| {
            state.rate.fill(bounds, now, !has_wrapped);
            let was_empty = state.queue.is_empty();
            for (candidate, prepared) in accepted {
                let class = candidate.class;
                let reason = if state.stopping {
                    Some(AdmissionRefusal::Removed)
                } else if state.queued_bytes >= queue_limit {
                    Some(AdmissionRefusal::QueueFull)
                } else if !state.rate.take(prepared.bytes, prepared.proven) {
                    Some(AdmissionRefusal::Rate)
                } else {
                    None
                };
                if let Some(reason) = reason {
                    refused.push(reason);
                    declined.push(candidate);
                    continue;
                }
                admitted[class as usize] += 1;
                let PreparedBlock { hash, value_bytes, bytes, .. } = prepared;
                match candidate.try_write() {
                    Ok(block) => {
                        state.queued_bytes += bytes;
                        let since_ns = now;
                        state.queue.push_back(QueuedBlock {
                            hash,
                            class,
                            value_bytes,
                            bytes,
                            since_ns,
                            block,
                        });
                    }
                    Err(candidate) => {
                        declined.push(candidate);
                        dropped[class as usize] += 1;
                        state.rate.give_back(bytes);
                    }
                }
            }
            // The writer checks the time itself once it knows that a block waits.
            let first = was_empty && !state.queue.is_empty();
            first || state.queued_bytes >= batch_bytes
        });
        if ready {
            self.write_queue.wake();
        }
        refused.into_iter().for_each(|reason| self.count_refusal(reason));
        for class in Class::ALL.map(|class| class as usize) {
            self.counters.add(L2Counters::ADMITTED, class, admitted[class]);
            self.counters.add(L2Counters::ADMITTED_DROPPED, class, dropped[class]);
        }
    }

    /// The minimum and maximum write rate.
    pub(crate) fn rate_bounds(&self) -> RateBounds {
        let max = self.tunables.write_max_bytes_per_s();
        RateBounds { min: self.tunables.write_min_bytes_per_s().min(max), max }
    }
}
