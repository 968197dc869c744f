//! What kinds of blocks are worth their place on the device, as measured.
//!
//! A block that is written takes the place of one that the ring drops for it. Which of the two will be asked for sooner nobody knows;
//! how often blocks of their kinds were, lately, can be counted. The kind of a candidate is how often it was seen lately (see
//! [`Seen`](super::Seen)); blocks that the ring ran over are a kind of their own, [`DROPPED`]. Of a sample, each block that is
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
//! - At most [`MOST`] blocks are watched, of which one that was offered and has left counts twice: when there would be more, the sample is halved. When there have been fewer than [`FEW`] for
//!   a horizon, it is doubled: what was a flood once must not leave too small a sample for good.
//! - The horizon is as many loads as the level has blocks. Time is told in loads of the sample.
//! - If nothing was dropped for a horizon, what is known of that halves: a level that takes nothing finds out when that is wrong.
//!
//! Locking: `l2-worth`, a leaf lock, for a few steps in a map; for blocks of the sample only.

use std::collections::{HashMap, VecDeque};

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU32, Ordering};

use crate::record::Identity;

/// Kinds of candidates: seen never, once, twice, or more often.
pub(crate) const CANDIDATES: usize = 4;
/// The kind of what the ring has dropped.
pub(crate) const DROPPED: usize = CANDIDATES;
/// Blocks that are watched at once, at most.
const MOST: usize = if cfg!(forebay_model) { 8 } else { 4096 };
/// So few are too few, unless all are watched: far enough from half of [`MOST`] for the sample not to go to and fro.
const FEW: usize = MOST / 8;
/// The smallest sample is one block in two to the power of this.
const MOST_SHIFT: u32 = 32;
/// The shortest horizon, in loads of the sample: what is told from fewer is chance.
const LEAST_HORIZON: u64 = 64;
/// A worth is the mean of so many outcomes, the later the weightier.
const OUTCOMES: i64 = 512;
/// What is taken for granted at first counts as so many.
const GRANTED: i64 = 64;
/// A worth of one: everything was asked for again.
const ONE: i64 = 1 << 20;
/// What is worth less than this is not written, even if nothing else is worth anything.
const LEAST_WORTH: i64 = ONE / 50;

/// See the module's head.
pub(crate) struct Worth {
    /// One block in two to the power of this is of the sample.
    shift: AtomicU32,
    watch: Mutex<Watch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watched {
    kind: usize,
    since: u64,
    /// Memory has let go of it.
    left: bool,
}

struct Watch {
    /// Loads of the sample.
    now: u64,
    dropped_at: u64,
    /// When the sample changed last, or there were enough.
    enough_at: u64,
    /// What is watched, by identity: the latest that was noted of it.
    open: HashMap<u64, Watched>,
    /// The same in the order in which it was noted, and what is over already.
    queue: VecDeque<(u64, Watched)>,
    means: [Mean; CANDIDATES + 1],
}

#[derive(Clone, Copy)]
struct Mean {
    worth: i64,
    outcomes: i64,
}

impl Mean {
    fn learn(&mut self, outcome: bool) {
        self.outcomes = (self.outcomes + 1).min(OUTCOMES);
        let outcome = if outcome { ONE } else { 0 };
        self.worth += (outcome - self.worth) / self.outcomes;
    }
}

/// Whether a block belongs to one in two to the power of `shift`.
fn is_sampled(id: Identity, shift: u32) -> bool {
    // Bits that choose neither a slot of the index nor one of the filter.
    let spread = id.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (spread >> 32) & ((1 << shift.min(MOST_SHIFT)) - 1) == 0
}

impl Worth {
    pub(crate) fn new() -> Self {
        let granted = |percent: i64| Mean { worth: ONE / 100 * percent, outcomes: GRANTED };
        let watch = Watch {
            now: 0,
            dropped_at: 0,
            enough_at: 0,
            open: HashMap::new(),
            queue: VecDeque::new(),
            means: [granted(10), granted(50), granted(50), granted(50), granted(25)],
        };
        Self { shift: AtomicU32::new(0), watch: Mutex::named("l2-worth", watch) }
    }

    /// A block of that kind was offered, or the ring has dropped one that memory does not have.
    pub(crate) fn note(&self, id: Identity, kind: usize) {
        self.watch(id, |_| Some((kind, kind == DROPPED)));
    }

    /// Memory has let go of a block: if it was offered, no longer than a horizon ago, it is watched from now on.
    pub(crate) fn left(&self, id: Identity) {
        self.watch(id, |watched| watched.filter(|watched| !watched.left).map(|w| (w.kind, true)));
    }

    /// Watches a block from now on, if it is of the sample: as of the kind that `f` makes of what is known of it, and whether memory has
    /// let go of it.
    fn watch(&self, id: Identity, f: impl FnOnce(Option<Watched>) -> Option<(usize, bool)>) {
        if !is_sampled(id, self.shift.load(Ordering::Relaxed)) {
            return;
        }
        let mut watch = self.watch.lock();
        let watch = &mut *watch;
        let Some((kind, left)) = f(watch.open.get(&id.0).copied()) else { return };
        if watch.queue.len() >= MOST {
            let shift = (self.shift.load(Ordering::Relaxed) + 1).min(MOST_SHIFT);
            watch.halve(shift);
            self.shift.store(shift, Ordering::Relaxed);
            if watch.queue.len() >= MOST || !is_sampled(id, shift) {
                return;
            }
        }
        if kind == DROPPED {
            watch.dropped_at = watch.now;
        }
        let watched = Watched { kind, since: watch.now, left };
        watch.open.insert(id.0, watched);
        watch.queue.push_back((id.0, watched));
    }

    /// A block is asked for that memory does not have, at a level that has so many.
    pub(crate) fn asked(&self, id: Identity, blocks: u64) {
        let shift = self.shift.load(Ordering::Relaxed);
        if is_sampled(id, shift) {
            let horizon = (blocks >> shift).max(LEAST_HORIZON);
            let mut watch = self.watch.lock();
            watch.asked(id, horizon);
            let now = watch.now;
            if watch.queue.len() >= FEW {
                watch.enough_at = now;
            }
            // Another may have halved it meanwhile.
            if now - watch.enough_at > horizon
                && self.shift.load(Ordering::Relaxed) == shift
                && shift > 0
            {
                watch.double();
                self.shift.store(shift - 1, Ordering::Relaxed);
            }
        }
    }

    /// Whether candidates of that kind are worth writing.
    pub(crate) fn is_enough(&self, kind: usize) -> bool {
        let watch = self.watch.lock();
        watch.means[kind].worth >= watch.means[DROPPED].worth.max(LEAST_WORTH)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let watch = self.watch.lock();
        // A map has a byte of its own for each place, and an eighth of them is free.
        let open = watch.open.capacity() * 8 / 7 * (size_of::<(u64, Watched)>() + 1);
        (open + watch.queue.capacity() * size_of::<(u64, Watched)>()) as u64
    }
}

impl Watch {
    fn asked(&mut self, id: Identity, horizon: u64) {
        self.now += 1;
        while let Some((id, watched)) = self.queue.front().copied()
            && self.now - watched.since > horizon
        {
            self.queue.pop_front();
            if self.open.get(&id) == Some(&watched) {
                self.open.remove(&id);
                if watched.left {
                    self.means[watched.kind].learn(false);
                }
            }
        }
        if self.now - self.dropped_at > horizon {
            self.dropped_at = self.now;
            self.means[DROPPED].worth /= 2;
        }
        if let Some(watched) = self.open.remove(&id.0) {
            self.means[watched.kind].learn(true);
        }
    }

    /// Twice as many blocks are watched from now on: what was is among them, and time runs twice as fast.
    fn double(&mut self) {
        self.now *= 2;
        self.dropped_at *= 2;
        self.enough_at = self.now;
        self.open.values_mut().for_each(|watched| watched.since *= 2);
        self.queue.iter_mut().for_each(|(_, watched)| watched.since *= 2);
    }

    /// Only one block in two to the power of `shift` is watched from now on: half as many as before.
    fn halve(&mut self, shift: u32) {
        let later = |watched: Watched| Watched { since: watched.since / 2, ..watched };
        self.now /= 2;
        self.dropped_at /= 2;
        self.enough_at = self.now;
        self.open.retain(|id, _| is_sampled(Identity(*id), shift));
        // What is over goes too.
        self.queue.retain(|(id, watched)| self.open.get(id) == Some(watched));
        self.open.values_mut().for_each(|watched| *watched = later(*watched));
        self.queue.iter_mut().for_each(|(_, watched)| *watched = later(*watched));
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::rng::SmallRng;
    use proptest::prelude::*;

    use super::*;

    fn id(n: u64) -> Identity {
        Identity(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
    }

    fn percent(worth: &Worth, kind: usize) -> i64 {
        worth.watch.lock().means[kind].worth * 100 / ONE
    }

    /// All that was ever noted, in order, with whether it is still open.
    struct Twin {
        now: u64,
        dropped_at: u64,
        noted: Vec<(u64, Watched, bool)>,
        means: [Mean; CANDIDATES + 1],
    }

    impl Twin {
        fn close(&mut self, which: impl Fn(u64, Watched) -> bool, outcome: Option<bool>) {
            for (id, watched, open) in &mut self.noted {
                if *open && which(*id, *watched) {
                    *open = false;
                    if let Some(outcome) = outcome.filter(|again| *again || watched.left) {
                        self.means[watched.kind].learn(outcome);
                    }
                }
            }
        }

        fn note(&mut self, n: u64, kind: usize, left: bool) {
            self.close(|other, _| other == n, None);
            self.noted.push((n, Watched { kind, since: self.now, left }, true));
        }
    }

    proptest! {
        #[test]
        fn learns_as_one_that_remembers_all(ops in prop::collection::vec((0..40u64, 0..14usize, 0..200u64), 1..1500)) {
            let worth = Worth::new();
            let means = worth.watch.lock().means;
            let mut twin = Twin { now: 0, dropped_at: 0, noted: Vec::new(), means };
            for (n, kind, blocks) in ops {
                if kind <= DROPPED {
                    worth.note(id(n), kind);
                    if kind == DROPPED {
                        twin.dropped_at = twin.now;
                    }
                    twin.note(n, kind, kind == DROPPED);
                } else if kind <= 2 * DROPPED {
                    worth.left(id(n));
                    let open = |(other, watched, open): &&(u64, Watched, bool)| {
                        *open && *other == n && !watched.left
                    };
                    if let Some((_, watched, _)) = twin.noted.iter().find(open).copied() {
                        twin.note(n, watched.kind, true);
                    }
                } else {
                    worth.asked(id(n), blocks);
                    twin.now += 1;
                    let (now, horizon) = (twin.now, blocks.max(LEAST_HORIZON));
                    // Those behind one that is not over wait for it: it is over no later.
                    let is_over = |watched: Watched| now - watched.since > horizon;
                    twin.close(|_, watched| is_over(watched), Some(false));
                    if now - twin.dropped_at > horizon {
                        twin.dropped_at = now;
                        twin.means[DROPPED].worth /= 2;
                    }
                    twin.close(|other, _| other == n, Some(true));
                }
                for kind in 0..=DROPPED {
                    prop_assert_eq!(worth.watch.lock().means[kind].worth, twin.means[kind].worth, "of {}", kind);
                }
            }
        }
    }

    #[test]
    fn a_sample_tells_what_all_would_and_is_bounded() {
        let worth = Worth::new();
        let mut rng = SmallRng::from_seed(7);
        let blocks = 100_000;
        for n in 0..300_000 {
            // Of kind 2, three in ten are asked for again; of what is dropped, one in ten.
            let (kind, tenths) = if n % 2 == 0 { (2, 3) } else { (DROPPED, 1) };
            worth.note(id(n), kind);
            worth.left(id(n));
            let again = rng.below(10) < tenths;
            worth.asked(if again { id(n) } else { id(u64::MAX - n) }, blocks);
            let watch = worth.watch.lock();
            assert!(watch.queue.len() <= MOST && watch.open.len() <= watch.queue.len());
        }
        assert!(worth.shift.load(Ordering::Relaxed) >= 4);
        let found = [2, DROPPED].map(|kind| percent(&worth, kind));
        assert!((24..=36).contains(&found[0]) && (5..=15).contains(&found[1]), "{found:?}");
        assert!(worth.memory_bytes() < 1 << 19, "{}", worth.memory_bytes());
    }

    #[test]
    fn a_sample_grows_again_when_little_is_left_to_watch() {
        let worth = Worth::new();
        let mut rng = SmallRng::from_seed(9);
        let shift = || worth.shift.load(Ordering::Relaxed);
        // A flood at a large level.
        for n in 0..200_000 {
            worth.note(id(n), DROPPED);
            worth.asked(id(rng.next_u64() | 1 << 63), 100_000);
        }
        let flooded = shift();
        assert!(flooded >= 4, "{flooded}");
        // Then one in fifty loads is noted, and of those two thirds are asked for again: a sample of as few would take long to find out.
        for n in 1 << 32..(1 << 32) + 20_000u64 {
            worth.note(id(n), 2);
            worth.left(id(n));
            (0..50).for_each(|_| worth.asked(id(rng.next_u64() | 1 << 63), 5_000));
            if n % 3 > 0 {
                worth.asked(id(n), 5_000);
            }
        }
        assert_eq!(shift(), 0, "of {flooded}");
        assert!((60..=72).contains(&percent(&worth, 2)), "{}", percent(&worth, 2));
    }

    #[test]
    fn what_stays_in_memory_tells_nothing_of_its_kind() {
        let worth = Worth::new();
        let mut rng = SmallRng::from_seed(11);
        for n in 0..20_000 {
            // Of kind 3 half stay in memory, where they are asked for; of the others half are asked for here.
            worth.note(id(n), 3);
            if n % 2 == 0 {
                worth.left(id(n));
            }
            worth.asked(id(if n % 4 == 0 { n } else { rng.next_u64() | 1 << 63 }), 1000);
        }
        assert!((42..=58).contains(&percent(&worth, 3)), "{}", percent(&worth, 3));
    }

    #[test]
    fn one_block_again_and_again_is_no_reason_for_a_smaller_sample() {
        let worth = Worth::new();
        (0..10 * MOST).for_each(|_| worth.note(id(1), 1));
        assert!(worth.shift.load(Ordering::Relaxed) <= 10);
        assert!(worth.watch.lock().queue.len() <= MOST);
    }

    #[test]
    fn a_level_that_takes_nothing_finds_out_when_that_is_wrong() {
        let worth = Worth::new();
        // All that was dropped was asked for, and of what is new nothing: a loop that does not fit.
        for n in 0..2000 {
            worth.note(id(n), DROPPED);
            worth.asked(id(n), 100);
            worth.note(id(1 << 32 | n), 0);
            worth.left(id(1 << 32 | n));
        }
        assert!(!worth.is_enough(0) && percent(&worth, DROPPED) > 90);
        // Then something else, of which a third comes again. Nothing is dropped.
        for n in 0..2000 {
            worth.note(id(1 << 40 | n), 0);
            worth.left(id(1 << 40 | n));
            worth.asked(id(1 << 40 | if n % 3 == 0 { n } else { u64::MAX }), 100);
        }
        assert!(worth.is_enough(0), "{}", percent(&worth, 0));
    }
}
