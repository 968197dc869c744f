//! What kinds of blocks are worth their place on the device, as measured.
//!
//! A block that is written takes the place of one that the ring drops for it. Which of the two will be asked for sooner nobody knows;
//! how often blocks of their kinds were, lately, can be counted. The kind of a candidate is how often it was seen lately (see
//! [`FrequencySketch`](super::Seen)); blocks that the ring ran over are a kind of their own, [`DROPPED_KIND`]. Of a sample, each block that is
//! offered or dropped is watched from when memory does not have it any more: either it is asked for within a *horizon*, or it is not. A
//! kind's *worth* is the share that was. What memory keeps for a horizon though it was offered tells nothing: nobody asks here for what is there.
//! Candidates of a kind are worth writing as long as its worth is no less than that of what is dropped: then the
//! device gains by each. What is refused is watched like what is written, so that nothing has to be tried.
//!
//! So a scan is not written, popular keys are only once they have shown that they are, and when what is asked for changes, what is
//! dropped loses its worth, and new blocks are welcome at their first sight.
//!
//! # Invariants
//!
//! - At most [`MAX_TRACKED`] blocks are watched, of which one that was offered and has left counts twice: when there would be more, the sample is halved. When there have been fewer than [`MIN_TRACKED`] for
//!   a horizon, it is doubled: what was a flood once must not leave too small a sample for good.
//! - The horizon is as many loads as the level has blocks. Time is told in loads of the sample.
//! - If nothing was dropped for a horizon, what is known of that halves: a level that takes nothing finds out when that is wrong.
//!
//! Locking: `l2-admission`, a leaf lock, for a few steps in a map; for blocks of the sample only.

use std::collections::{HashMap, VecDeque};

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU32, Ordering};

use crate::record::KeyHash;

/// Kinds of candidates: seen never, once, twice, or more often.
pub(crate) const CANDIDATE_KINDS: usize = 4;
/// The kind of what the ring has dropped.
pub(crate) const DROPPED_KIND: usize = CANDIDATE_KINDS;
/// Blocks that are watched at once, at most.
const MAX_TRACKED: usize = if cfg!(forebay_model) { 8 } else { 4096 };
/// So few are too few, unless all are watched: far enough from half of [`MAX_TRACKED`] for the sample not to go to and fro.
const MIN_TRACKED: usize = MAX_TRACKED / 8;
/// The smallest sample is one block in two to the power of this.
const MAX_SAMPLE_SHIFT: u32 = 32;
/// The shortest horizon, in loads of the sample: what is told from fewer is chance.
const MIN_HORIZON: u64 = 64;
/// A worth is the mean of so many outcomes, the later the weightier.
const MAX_OUTCOMES: i64 = 512;
/// What is taken for granted at first counts as so many.
const PRIOR_OUTCOMES: i64 = 64;
/// A worth of one: everything was asked for again.
const ONE: i64 = 1 << 20;
/// What is worth less than this is not written, even if nothing else is worth anything.
const MIN_REUSE_RATE: i64 = ONE / 50;

/// See the module's head.
pub(crate) struct AdmissionPolicy {
    /// One block in two to the power of this is of the sample.
    shift: AtomicU32,
    sample: Mutex<SampleState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrackedBlock {
    kind: usize,
    since: u64,
    /// Memory has let go of it.
    evicted: bool,
}

struct SampleState {
    /// Loads of the sample.
    now: u64,
    dropped_at: u64,
    /// When the sample changed last, or there were enough.
    enough_at: u64,
    /// What is watched, by identity: the latest that was noted of it.
    by_hash: HashMap<u64, TrackedBlock>,
    /// The same in the order in which it was noted, and what is over already.
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

/// Whether a block belongs to one in two to the power of `shift`.
fn is_sampled(hash: KeyHash, shift: u32) -> bool {
    // Bits that choose neither a slot of the index nor one of the filter.
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

    /// A block of that kind was offered, or the ring has dropped one that memory does not have.
    pub(crate) fn observe(&self, hash: KeyHash, kind: usize) {
        self.track(hash, |_| Some((kind, kind == DROPPED_KIND)));
    }

    /// Memory has let go of a block: if it was offered, no longer than a horizon ago, it is watched from now on.
    pub(crate) fn on_evicted(&self, hash: KeyHash) {
        self.track(hash, |tracked| {
            tracked.filter(|tracked| !tracked.evicted).map(|w| (w.kind, true))
        });
    }

    /// Watches a block from now on, if it is of the sample: as of the kind that `f` makes of what is known of it, and whether memory has
    /// let go of it.
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

    /// A block is asked for that memory does not have, at a level that has so many.
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
            // Another may have halved it meanwhile.
            if now - sample.enough_at > horizon
                && self.shift.load(Ordering::Relaxed) == shift
                && shift > 0
            {
                sample.double();
                self.shift.store(shift - 1, Ordering::Relaxed);
            }
        }
    }

    /// Whether candidates of that kind are worth writing.
    pub(crate) fn admits(&self, kind: usize) -> bool {
        let sample = self.sample.lock();
        sample.estimates[kind].rate >= sample.estimates[DROPPED_KIND].rate.max(MIN_REUSE_RATE)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let sample = self.sample.lock();
        // A map has a byte of its own for each place, and an eighth of them is free.
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

    /// Twice as many blocks are watched from now on: what was is among them, and time runs twice as fast.
    fn double(&mut self) {
        self.now *= 2;
        self.dropped_at *= 2;
        self.enough_at = self.now;
        self.by_hash.values_mut().for_each(|tracked| tracked.since *= 2);
        self.queue.iter_mut().for_each(|(_, tracked)| tracked.since *= 2);
    }

    /// Only one block in two to the power of `shift` is watched from now on: half as many as before.
    fn halve(&mut self, shift: u32) {
        let later = |tracked: TrackedBlock| TrackedBlock { since: tracked.since / 2, ..tracked };
        self.now /= 2;
        self.dropped_at /= 2;
        self.enough_at = self.now;
        self.by_hash.retain(|hash, _| is_sampled(KeyHash(*hash), shift));
        // What is over goes too.
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

    /// All that was ever noted, in order, with whether it is still open.
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
                    // Those behind one that is not over wait for it: it is over no later.
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
            // Of kind 2, three in ten are asked for again; of what is dropped, one in ten.
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
        // A flood at a large level.
        for n in 0..200_000 {
            admission.observe(hash(n), DROPPED_KIND);
            admission.on_load(hash(rng.next_u64() | 1 << 63), 100_000);
        }
        let flooded = shift();
        assert!(flooded >= 4, "{flooded}");
        // Then one in fifty loads is noted, and of those two thirds are asked for again: a sample of as few would take long to find out.
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
            // Of kind 3 half stay in memory, where they are asked for; of the others half are asked for here.
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
        // All that was dropped was asked for, and of what is new nothing: a loop that does not fit.
        for n in 0..2000 {
            admission.observe(hash(n), DROPPED_KIND);
            admission.on_load(hash(n), 100);
            admission.observe(hash(1 << 32 | n), 0);
            admission.on_evicted(hash(1 << 32 | n));
        }
        assert!(!admission.admits(0) && percent(&admission, DROPPED_KIND) > 90);
        // Then something else, of which a third comes again. Nothing is dropped.
        for n in 0..2000 {
            admission.observe(hash(1 << 40 | n), 0);
            admission.on_evicted(hash(1 << 40 | n));
            admission.on_load(hash(1 << 40 | if n % 3 == 0 { n } else { u64::MAX }), 100);
        }
        assert!(admission.admits(0), "{}", percent(&admission, 0));
    }
}
