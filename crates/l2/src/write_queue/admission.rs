//! The admission policy: which kinds of blocks the L2 writes, by measured reuse.
//!
//! A block that is written evicts an older one. Which of the two will be loaded sooner is unknown,
//! but how often blocks of their kinds were loaded lately can be measured. The kind of a candidate
//! is its frequency (see [`FrequencySketch`](super::FrequencySketch)). Blocks that the ring evicted
//! are a kind of their own, [`DROPPED_KIND`].
//!
//! A sample of the offered and dropped blocks is tracked from the moment when memory does not hold
//! them: either a block is loaded within a *horizon*, or not. The *reuse rate* of a kind is the
//! share that was loaded. A block that memory keeps for a whole horizon has no outcome, because it
//! is never loaded here. A kind is admitted if its reuse rate is below neither that of dropped
//! blocks nor [`MIN_REUSE_RATE`]. Refused blocks are tracked too, so no trial writes are needed.
//!
//! So a scan is not written. After a change of the workload, new blocks are admitted at once.
//!
//! # Invariants
//!
//! - At most [`MAX_TRACKED`] entries are tracked. A block that was offered and then evicted has
//!   two. Beyond the limit, the sample is halved. After fewer than [`MIN_TRACKED`] entries for a
//!   horizon, it is doubled, so that one flood does not leave too small a sample.
//! - The horizon is as many loads as the L2 has blocks. Time is counted in loads of the sample.
//! - If nothing was dropped for a horizon, the rate of dropped blocks is halved, so that an L2 that
//!   admits nothing recovers.
//!
//! Locking: `l2-admission`, a leaf lock, held for a few steps in a map, for sampled blocks only.

use std::collections::{HashMap, VecDeque};

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU32, Ordering};

use crate::record::KeyHash;

/// Number of candidate kinds: frequency 0, 1, 2, and more.
pub(crate) const CANDIDATE_KINDS: usize = 4;
/// The kind of blocks that the ring evicted.
pub(crate) const DROPPED_KIND: usize = CANDIDATE_KINDS;
/// Maximum number of tracked entries.
const MAX_TRACKED: usize = if cfg!(forebay_model) { 8 } else { 4096 };
/// The sample is doubled below this number, unless it contains all blocks. Far below half of
/// [`MAX_TRACKED`], so that the sample does not oscillate.
const MIN_TRACKED: usize = MAX_TRACKED / 8;
/// The smallest sample contains one block in two to the power of this.
const MAX_SAMPLE_SHIFT: u32 = 32;
/// The shortest horizon, in loads of the sample. Fewer loads are not significant.
const MIN_HORIZON: u64 = 64;
/// Outcomes that a reuse rate averages. Later outcomes weigh more.
const MAX_OUTCOMES: i64 = 512;
/// Weight of the initial rates, in outcomes.
const PRIOR_OUTCOMES: i64 = 64;
/// A reuse rate of one: all blocks were loaded.
const ONE: i64 = 1 << 20;
/// Kinds with a lower reuse rate are never admitted.
const MIN_REUSE_RATE: i64 = ONE / 50;

/// The admission policy; see the module head.
pub(crate) struct AdmissionPolicy {
    /// The sample contains one block in two to the power of this.
    shift: AtomicU32,
    sample: Mutex<SampleState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrackedBlock {
    kind: usize,
    since: u64,
    /// Memory has evicted the block.
    evicted: bool,
}

struct SampleState {
    /// Time, in loads of the sample.
    now: u64,
    dropped_at: u64,
    /// When the sample changed last, or last had enough entries.
    enough_at: u64,
    /// The latest entry of each tracked block, by key hash.
    by_hash: HashMap<u64, TrackedBlock>,
    /// Entries in order of time, obsolete ones included.
    queue: VecDeque<(u64, TrackedBlock)>,
    estimates: [ReuseEstimate; CANDIDATE_KINDS + 1],
}

#[derive(Clone, Copy)]
struct ReuseEstimate {
    rate: i64,
    outcomes: i64,
}

impl ReuseEstimate {
    fn record(&mut self, outcome: bool) {
        self.outcomes = (self.outcomes + 1).min(MAX_OUTCOMES);
        let outcome = if outcome { ONE } else { 0 };
        self.rate += (outcome - self.rate) / self.outcomes;
    }
}

/// Whether a block belongs to the sample of one in two to the power of `shift`.
fn is_sampled(hash: KeyHash, shift: u32) -> bool {
    // Uses bits that choose neither an index slot nor a sketch counter.
    let spread = hash.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (spread >> 32) & ((1 << shift.min(MAX_SAMPLE_SHIFT)) - 1) == 0
}

impl AdmissionPolicy {
    pub(crate) fn new() -> Self {
        let prior =
            |percent: i64| ReuseEstimate { rate: ONE / 100 * percent, outcomes: PRIOR_OUTCOMES };
        let sample = SampleState {
            now: 0,
            dropped_at: 0,
            enough_at: 0,
            by_hash: HashMap::new(),
            queue: VecDeque::new(),
            estimates: [prior(10), prior(50), prior(50), prior(50), prior(25)],
        };
        Self { shift: AtomicU32::new(0), sample: Mutex::named("l2-admission", sample) }
    }

    /// A block of this kind was offered, or the ring evicted a block that memory does not hold.
    pub(crate) fn observe(&self, hash: KeyHash, kind: usize) {
        self.track(hash, |_| Some((kind, kind == DROPPED_KIND)));
    }

    /// Memory evicted a block. If it was offered within the last horizon, its tracking begins.
    pub(crate) fn on_evicted(&self, hash: KeyHash) {
        self.track(hash, |tracked| {
            tracked.filter(|tracked| !tracked.evicted).map(|w| (w.kind, true))
        });
    }

    /// Tracks a sampled block from now on. `f` maps its current entry to its kind and to whether
    /// memory has evicted it.
    fn track(&self, hash: KeyHash, f: impl FnOnce(Option<TrackedBlock>) -> Option<(usize, bool)>) {
        if !is_sampled(hash, self.shift.load(Ordering::Relaxed)) {
            return;
        }
        let mut sample = self.sample.lock();
        let sample = &mut *sample;
        let Some((kind, evicted)) = f(sample.by_hash.get(&hash.0).copied()) else { return };
        if sample.queue.len() >= MAX_TRACKED {
            let shift = (self.shift.load(Ordering::Relaxed) + 1).min(MAX_SAMPLE_SHIFT);
            sample.halve(shift);
            self.shift.store(shift, Ordering::Relaxed);
            if sample.queue.len() >= MAX_TRACKED || !is_sampled(hash, shift) {
                return;
            }
        }
        if kind == DROPPED_KIND {
            sample.dropped_at = sample.now;
        }
        let tracked = TrackedBlock { kind, since: sample.now, evicted };
        sample.by_hash.insert(hash.0, tracked);
        sample.queue.push_back((hash.0, tracked));
    }

    /// A block that memory does not hold is loaded from an L2 that has `blocks` blocks.
    pub(crate) fn on_load(&self, hash: KeyHash, blocks: u64) {
        let shift = self.shift.load(Ordering::Relaxed);
        if is_sampled(hash, shift) {
            let horizon = (blocks >> shift).max(MIN_HORIZON);
            let mut sample = self.sample.lock();
            sample.on_load(hash, horizon);
            let now = sample.now;
            if sample.queue.len() >= MIN_TRACKED {
                sample.enough_at = now;
            }
            // Another thread may have halved the sample meanwhile.
            if now - sample.enough_at > horizon
                && self.shift.load(Ordering::Relaxed) == shift
                && shift > 0
            {
                sample.double();
                self.shift.store(shift - 1, Ordering::Relaxed);
            }
        }
    }

    /// Whether candidates of this kind are admitted.
    pub(crate) fn admits(&self, kind: usize) -> bool {
        let sample = self.sample.lock();
        sample.estimates[kind].rate >= sample.estimates[DROPPED_KIND].rate.max(MIN_REUSE_RATE)
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let sample = self.sample.lock();
        // A hash map has one control byte per slot and keeps an eighth of its slots free.
        let by_hash = sample.by_hash.capacity() * 8 / 7 * (size_of::<(u64, TrackedBlock)>() + 1);
        (by_hash + sample.queue.capacity() * size_of::<(u64, TrackedBlock)>()) as u64
    }
}

impl SampleState {
    fn on_load(&mut self, hash: KeyHash, horizon: u64) {
        self.now += 1;
        while let Some((hash, tracked)) = self.queue.front().copied()
            && self.now - tracked.since > horizon
        {
            self.queue.pop_front();
            if self.by_hash.get(&hash) == Some(&tracked) {
                self.by_hash.remove(&hash);
                if tracked.evicted {
                    self.estimates[tracked.kind].record(false);
                }
            }
        }
        if self.now - self.dropped_at > horizon {
            self.dropped_at = self.now;
            self.estimates[DROPPED_KIND].rate /= 2;
        }
        if let Some(tracked) = self.by_hash.remove(&hash.0) {
            self.estimates[tracked.kind].record(true);
        }
    }

    /// Doubles the sample. Tracked blocks stay in it, and time runs twice as fast.
    fn double(&mut self) {
        self.now *= 2;
        self.dropped_at *= 2;
        self.enough_at = self.now;
        self.by_hash.values_mut().for_each(|tracked| tracked.since *= 2);
        self.queue.iter_mut().for_each(|(_, tracked)| tracked.since *= 2);
    }

    /// Halves the sample to one block in two to the power of `shift`.
    fn halve(&mut self, shift: u32) {
        let later = |tracked: TrackedBlock| TrackedBlock { since: tracked.since / 2, ..tracked };
        self.now /= 2;
        self.dropped_at /= 2;
        self.enough_at = self.now;
        self.by_hash.retain(|hash, _| is_sampled(KeyHash(*hash), shift));
        // Removes obsolete entries too.
        self.queue.retain(|(hash, tracked)| self.by_hash.get(hash) == Some(tracked));
        self.by_hash.values_mut().for_each(|tracked| *tracked = later(*tracked));
        self.queue.iter_mut().for_each(|(_, tracked)| *tracked = later(*tracked));
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::rng::SmallRng;
    use proptest::prelude::*;

    use super::*;

    fn hash(n: u64) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
    }

    fn percent(admission: &AdmissionPolicy, kind: usize) -> i64 {
        admission.sample.lock().estimates[kind].rate * 100 / ONE
    }

    /// All entries ever made, in order, with whether they are still open.
    struct ReferenceModel {
        now: u64,
        dropped_at: u64,
        noted: Vec<(u64, TrackedBlock, bool)>,
        estimates: [ReuseEstimate; CANDIDATE_KINDS + 1],
    }

    impl ReferenceModel {
        fn close(&mut self, which: impl Fn(u64, TrackedBlock) -> bool, outcome: Option<bool>) {
            for (hash, tracked, by_hash) in &mut self.noted {
                if *by_hash && which(*hash, *tracked) {
                    *by_hash = false;
                    if let Some(outcome) = outcome.filter(|again| *again || tracked.evicted) {
                        self.estimates[tracked.kind].record(outcome);
                    }
                }
            }
        }

        fn observe(&mut self, n: u64, kind: usize, evicted: bool) {
            self.close(|other, _| other == n, None);
            self.noted.push((n, TrackedBlock { kind, since: self.now, evicted }, true));
        }
    }

    proptest! {
        #[test]
        fn matches_a_reference_model_that_remembers_everything(ops in prop::collection::vec((0..40u64, 0..14usize, 0..200u64), 1..1500)) {
            let admission = AdmissionPolicy::new();
            let estimates = admission.sample.lock().estimates;
            let mut model = ReferenceModel { now: 0, dropped_at: 0, noted: Vec::new(), estimates };
            for (n, kind, blocks) in ops {
                if kind <= DROPPED_KIND {
                    admission.observe(hash(n), kind);
                    if kind == DROPPED_KIND {
                        model.dropped_at = model.now;
                    }
                    model.observe(n, kind, kind == DROPPED_KIND);
                } else if kind <= 2 * DROPPED_KIND {
                    admission.on_evicted(hash(n));
                    let by_hash = |(other, tracked, by_hash): &&(u64, TrackedBlock, bool)| {
                        *by_hash && *other == n && !tracked.evicted
                    };
                    if let Some((_, tracked, _)) = model.noted.iter().find(by_hash).copied() {
                        model.observe(n, tracked.kind, true);
                    }
                } else {
                    admission.on_load(hash(n), blocks);
                    model.now += 1;
                    let (now, horizon) = (model.now, blocks.max(MIN_HORIZON));
                    // Entries behind one that has not expired have not expired either.
                    let is_over = |tracked: TrackedBlock| now - tracked.since > horizon;
                    model.close(|_, tracked| is_over(tracked), Some(false));
                    if now - model.dropped_at > horizon {
                        model.dropped_at = now;
                        model.estimates[DROPPED_KIND].rate /= 2;
                    }
                    model.close(|other, _| other == n, Some(true));
                }
                for kind in 0..=DROPPED_KIND {
                    prop_assert_eq!(admission.sample.lock().estimates[kind].rate, model.estimates[kind].rate, "of {}", kind);
                }
            }
        }
    }

    #[test]
    fn the_sample_estimates_reuse_and_is_bounded() {
        let admission = AdmissionPolicy::new();
        let mut rng = SmallRng::from_seed(7);
        let blocks = 100_000;
        for n in 0..300_000 {
            // Of kind 2, three in ten blocks are loaded again. Of dropped blocks, one in ten.
            let (kind, tenths) = if n % 2 == 0 { (2, 3) } else { (DROPPED_KIND, 1) };
            admission.observe(hash(n), kind);
            admission.on_evicted(hash(n));
            let again = rng.below(10) < tenths;
            admission.on_load(if again { hash(n) } else { hash(u64::MAX - n) }, blocks);
            let sample = admission.sample.lock();
            assert!(
                sample.queue.len() <= MAX_TRACKED && sample.by_hash.len() <= sample.queue.len()
            );
        }
        assert!(admission.shift.load(Ordering::Relaxed) >= 4);
        let found = [2, DROPPED_KIND].map(|kind| percent(&admission, kind));
        assert!((24..=36).contains(&found[0]) && (5..=15).contains(&found[1]), "{found:?}");
        assert!(admission.memory_bytes() < 1 << 19, "{}", admission.memory_bytes());
    }

    #[test]
    fn the_sample_grows_when_few_blocks_are_tracked() {
        let admission = AdmissionPolicy::new();
        let mut rng = SmallRng::from_seed(9);
        let shift = || admission.shift.load(Ordering::Relaxed);
        // A flood at a large L2.
        for n in 0..200_000 {
            admission.observe(hash(n), DROPPED_KIND);
            admission.on_load(hash(rng.next_u64() | 1 << 63), 100_000);
        }
        let flooded = shift();
        assert!(flooded >= 4, "{flooded}");
        // Then one in fifty loads is tracked, and two thirds of these blocks are loaded again. A
        // small sample would converge slowly.
        for n in 1 << 32..(1 << 32) + 20_000u64 {
            admission.observe(hash(n), 2);
            admission.on_evicted(hash(n));
            (0..50).for_each(|_| admission.on_load(hash(rng.next_u64() | 1 << 63), 5_000));
            if n % 3 > 0 {
                admission.on_load(hash(n), 5_000);
            }
        }
        assert_eq!(shift(), 0, "of {flooded}");
        assert!((60..=72).contains(&percent(&admission, 2)), "{}", percent(&admission, 2));
    }

    #[test]
    fn blocks_that_stay_in_memory_do_not_change_the_estimate() {
        let admission = AdmissionPolicy::new();
        let mut rng = SmallRng::from_seed(11);
        for n in 0..20_000 {
            // Half of the blocks of kind 3 stay in memory. Half of the others are loaded.
            admission.observe(hash(n), 3);
            if n % 2 == 0 {
                admission.on_evicted(hash(n));
            }
            admission.on_load(hash(if n % 4 == 0 { n } else { rng.next_u64() | 1 << 63 }), 1000);
        }
        assert!((42..=58).contains(&percent(&admission, 3)), "{}", percent(&admission, 3));
    }

    #[test]
    fn repeated_offers_of_one_block_do_not_shrink_the_sample_forever() {
        let admission = AdmissionPolicy::new();
        (0..10 * MAX_TRACKED).for_each(|_| admission.observe(hash(1), 1));
        assert!(admission.shift.load(Ordering::Relaxed) <= 10);
        assert!(admission.sample.lock().queue.len() <= MAX_TRACKED);
    }

    #[test]
    fn an_l2_that_admits_nothing_resumes_when_reuse_returns() {
        let admission = AdmissionPolicy::new();
        // All dropped blocks are loaded again, and no new block is: a loop larger than the device.
        for n in 0..2000 {
            admission.observe(hash(n), DROPPED_KIND);
            admission.on_load(hash(n), 100);
            admission.observe(hash(1 << 32 | n), 0);
            admission.on_evicted(hash(1 << 32 | n));
        }
        assert!(!admission.admits(0) && percent(&admission, DROPPED_KIND) > 90);
        // Then another workload, of which a third is loaded again. Nothing is dropped.
        for n in 0..2000 {
            admission.observe(hash(1 << 40 | n), 0);
            admission.on_evicted(hash(1 << 40 | n));
            admission.on_load(hash(1 << 40 | if n % 3 == 0 { n } else { u64::MAX }), 100);
        }
        assert!(admission.admits(0), "{}", percent(&admission, 0));
    }
}
