//! The policy: how much room each state and class should have, and who goes next.
//!
//! A new block enters *mru*; *mfu* has what has proven its worth. When room is needed, the coldest block of mru, the
//! *newcomer*, meets the coldest block of mfu, its *rival*, and the one that was asked for more often stays, in mfu.
//! All that differs between workloads is how long a newcomer may wait for its second use: the share of the room that
//! is mru's. It follows from small simulations. In full:
//!
//! 1. *Hits move nothing.* A hit sets a mark; the evictor acts on it when it meets the block (Bansal and
//!    Modha, "CAR: Clock with Adaptive Replacement", FAST 2004).
//! 2. *Frequency* is what is counted at misses and marks: a miss counts one, and so does a mark when it is met; hits in
//!    between count nothing, which keeps bursts of references from looking like popularity. Headers have the count and the time of the
//!    last use, ghosts keep them, a miss that meets its ghost takes them up again. Time passes, and counts fade, with the weight of what
//!    is used (`frequency.rs`).
//! 3. *The contest.* The newcomer is the coldest of mru. One that was asked for once only goes at once: a scan touches nothing else. Else
//!    its rival is the coldest block of mfu that is not marked, or the second that is looked at. If the newcomer was
//!    asked for more often, it takes the rival's place; else it goes, and the rival moves to the warm end, so that not
//!    always the same block is asked. On a tie the older one stays: of a loop that does not fit, a part
//!    stays put and hits. (The window, the admission by frequency and the tie are W-TinyLFU's: Einziger, Friedman and Manes, ACM ToS
//!    2017; there the window is an LRU list and the frequency an estimate that sees every hit.) A lead of a single use does not decide
//!    against a rival that a second level would have to write: it may be chance.
//! 4. *The rules.* mru is meant to have 5, 20 or 50 % of the room of its class. Or 1 %, and then not the number of uses decides a contest but
//!    their distance: the newcomer stays if its last two uses are less apart than its rival's last one is
//!    ago, so that what a phase has left behind goes at once, however popular it was (Jiang and Zhang, "LIRS", SIGMETRICS 2002). Or
//!    all of it, and then there is no contest: a marked block goes round in mru, which is a clock. The shares win on popularity,
//!    the distance on loops, the clock where only recency tells. Which rule is in force is decided by sampled
//!    shadow caches of each (`shadow/`).
//! 5. *Changes of the rule* move nothing at once. When mru has more than it is meant to have, a few of its coldest
//!    blocks go over to mfu with each newcomer, without a contest; when it has less, mfu gives up its coldest.
//! 6. *Classes.* There is a mru, a mfu, two ghost lists and a rule for each class, metadata and data, and a balance
//!    `m` between them: the bytes meant for metadata. A ghost hit moves `m` towards its class as ARC moves its
//!    `p` (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003): by its weight times the ratio
//!    of the other class's ghosts to its own class's, at least one. So the class whose ghosts are hit
//!    more often *per byte remembered* gains room. `m` binds only when the cache is full.
//! 7. *Ghosts* of a class are bounded by `ghost_percent` of `c`, 200 by default, but [`MIN_GHOSTS`] may stay in any
//!    cache: what is told from fewer is chance. Of the two lists of a class the one with the oldest gives way.
//! 8. *Hints.* Blocks hinted `once` have a list of their own that is evicted first and leaves no ghosts; a
//!    marked one moves to mru. Blocks hinted `again` begin in mfu, or marked in mru if that is a clock; the shadows see nothing of them.
//! 9. *Batches.* The evictor works in batches from random sublists, so that order is exact only within one.
//! 10. References that follow an insertion at once (the correlated-reference window, off by default)
//!     can be kept from counting: a hand clears the marks of blocks as they leave the window.
//!
//! Sizes are bytes of weight, not blocks; who was asked for more often is compared block by block, whatever they weigh.
//! `docs/decisions/0087-admission-by-uses-and-simulated-rules.md` has the reasons, and
//! `docs/benchmarks.md` the experiments that led here.

pub(crate) mod admission;
pub(crate) mod simulation;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::thread_slot;

use crate::attributes::Class;
use crate::frequency::TICKS;
use crate::header::List;
use crate::lists::ghosts::GhostList;
use crate::tunables::CacheTunables;
use admission::{FIRST_RULE, RULES, Rule, rebalances, surplus};

/// An epoch of frequencies ends when so many times the capacity has been used.
pub(crate) const EPOCH_CAPACITIES: u64 = 20;
/// As many ghosts are remembered in any cache.
pub(crate) const MIN_GHOSTS: u64 = if cfg!(forebay_model) { 2 } else { 512 };

/// How many ticks such uses are, by weight times `TICKS`, and what is left over.
pub(crate) fn ticks(parts: u64, capacity: u64) -> (u32, u64) {
    let tick = capacity.max(1).saturating_mul(EPOCH_CAPACITIES);
    if parts < tick { (0, parts) } else { ((parts / tick) as u32, parts % tick) }
}

/// Bytes in each list, by class (`Class as usize`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) t1: [u64; 2],
    pub(crate) t2: [u64; 2],
    pub(crate) once: [u64; 2],
    pub(crate) b1: [u64; 2],
    pub(crate) b2: [u64; 2],
}

impl Sizes {
    /// Makes a list look empty.
    pub(crate) fn hide(&mut self, list: List, class: Class) {
        let list = match list {
            List::Mru => &mut self.t1,
            List::Mfu => &mut self.t2,
            List::Once => &mut self.once,
        };
        list[class as usize] = 0;
    }
    pub(crate) fn resident(&self, class: usize) -> u64 {
        self.t1[class] + self.t2[class] + self.once[class]
    }
    /// What mru and mfu of a class have between them.
    fn shared(&self, class: usize) -> u64 {
        self.t1[class] + self.t2[class]
    }
    fn ghosts(&self, class: usize) -> u64 {
        self.b1[class] + self.b2[class]
    }
}

/// Ghost hits that the policy has not learnt of yet, by shard, so that inserts that meet ghosts share
/// no line. The evictor collects them when it decides.
pub(crate) struct GhostHits {
    shards: Box<[CachePadded<Hits>]>,
}

/// By `GhostList::number`: weight in the upper bits, number of hits in the lower ones, so that a hit is
/// one update. And the weight of all blocks that came in.
#[derive(Default)]
struct Hits([AtomicU64; 4], AtomicU64);

const HIT_WEIGHT_SHIFT: u32 = 24;

impl GhostHits {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: (0..shards).map(|_| CachePadded::new(Hits::default())).collect() }
    }

    /// A block of that weight came in, whose ghost was still in that list, if in any. Evictions collect the hits long
    /// before their number overflows, since every ghost hit brings a block in. Of the weight of all blocks, some may be lost or told twice if
    /// threads share a shard, which shortens or lengthens an epoch by as much.
    pub(crate) fn note(&self, ghost: Option<GhostList>, weight: u32) {
        let Hits(hits, uses) = &*self.shards[thread_slot().index(self.shards.len())];
        if let Some(list) = ghost {
            let hit = (u64::from(weight) << HIT_WEIGHT_SHIFT) | 1;
            hits[list.number()].fetch_add(hit, Ordering::Relaxed);
        }
        uses.store(uses.load(Ordering::Relaxed).wrapping_add(weight.into()), Ordering::Relaxed);
    }

    /// Weight of the blocks that came in; it is forgotten here.
    fn drain_uses(&self) -> u64 {
        let waiting = self.shards.iter().filter(|s| s.1.load(Ordering::Relaxed) > 0);
        waiting.map(|s| s.1.swap(0, Ordering::Relaxed)).sum()
    }

    /// Weight and number of the hits by list; they are forgotten here.
    fn drain(&self) -> [(u64, u64); 4] {
        let sum = |n: usize| {
            let waiting = self.shards.iter().filter(|s| s.0[n].load(Ordering::Relaxed) > 0);
            waiting.map(|s| s.0[n].swap(0, Ordering::Relaxed)).fold(
                (0, 0),
                |(bytes, count), hits| {
                    (
                        bytes + (hits >> HIT_WEIGHT_SHIFT),
                        count + (hits & ((1 << HIT_WEIGHT_SHIFT) - 1)),
                    )
                },
            )
        };
        std::array::from_fn(sum)
    }
}

pub(crate) struct Policy {
    /// `c`.
    capacity: AtomicU64,
    /// The rule of each class, by its place in `RULES`.
    rules: [AtomicUsize; 2],
    /// `m`, the bytes meant for metadata.
    metadata: AtomicU64,
    /// Of frequencies.
    tick: AtomicU32,
    /// Weight of uses in this tick, times `TICKS`.
    used: AtomicU64,
    /// Whether blocks go over from mru to mfu, by class.
    rebalancing: [AtomicBool; 2],
    /// One list for all, and no contest.
    plain_lru: bool,
}

impl Policy {
    pub(crate) fn new(capacity: u64, plain_lru: bool) -> Self {
        let rule = if plain_lru { RULES.len() - 1 } else { FIRST_RULE };
        Self {
            capacity: AtomicU64::new(capacity),
            rules: [AtomicUsize::new(rule), AtomicUsize::new(rule)],
            metadata: AtomicU64::new(capacity / 2),
            tick: AtomicU32::new(0),
            used: AtomicU64::new(0),
            rebalancing: [AtomicBool::new(false), AtomicBool::new(false)],
            plain_lru,
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Follows a change of `c`: `m` keeps its share.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        let before = self.capacity.swap(capacity, Ordering::Relaxed).max(1);
        let metadata = u128::from(self.metadata.load(Ordering::Relaxed)) * u128::from(capacity);
        self.metadata.store((metadata / u128::from(before)) as u64, Ordering::Relaxed);
    }

    /// The number of the rule that is in force for a class.
    pub(crate) fn rule_number(&self, class: Class) -> usize {
        self.rules[class as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn rule(&self, class: Class) -> Rule {
        RULES[self.rule_number(class)]
    }

    /// Has a class follow a rule from now on.
    pub(crate) fn follow(&self, class: Class, rule: usize) {
        if !self.plain_lru && self.rule_number(class) != rule {
            self.rules[class as usize].store(rule, Ordering::Relaxed);
        }
    }

    /// The bytes meant for mru of a class.
    pub(crate) fn p(&self, class: Class, sizes: &Sizes) -> u64 {
        self.rule(class).share(sizes.shared(class as usize))
    }

    /// How much of mru of a class is to go over to mfu: never all, since what is new must be asked for first.
    pub(crate) fn mru_excess(&self, class: Class, sizes: &Sizes) -> u64 {
        let n = class as usize;
        let (mru, mru_target) = (sizes.t1[n], self.p(class, sizes));
        let did = self.rebalancing[n].load(Ordering::Relaxed);
        let rebalances = rebalances(did, mru, mru_target, sizes.shared(n));
        if did != rebalances {
            self.rebalancing[n].store(rebalances, Ordering::Relaxed);
        }
        if rebalances { surplus(mru, mru_target) } else { 0 }
    }

    /// The tick in which uses are counted now.
    pub(crate) fn now(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Counts uses, by which time passes.
    pub(crate) fn count_uses(&self, weight: u64) {
        let parts = weight.saturating_mul(u64::from(TICKS));
        let parts = self.used.fetch_add(parts, Ordering::Relaxed).saturating_add(parts);
        let passed = ticks(parts, self.capacity());
        if passed.0 > 0 {
            // Two at once may both end a tick, or lose a part of one.
            self.used.store(passed.1, Ordering::Relaxed);
            self.tick.fetch_add(passed.0, Ordering::Relaxed);
        }
    }

    /// The bytes meant for a class, within its floor and ceiling.
    pub(crate) fn target(&self, class: Class, tunables: &CacheTunables) -> u64 {
        let c = self.capacity();
        let percent = |p: u32| (u128::from(c) * u128::from(p) / 100) as u64;
        // Data's floor is metadata's ceiling, and the other way round.
        let floor = percent(tunables.metadata_floor_percent())
            .max(c - percent(tunables.data_ceiling_percent()));
        let ceiling = percent(tunables.metadata_ceiling_percent())
            .min(c - percent(tunables.data_floor_percent()))
            .max(floor);
        let metadata = self.metadata.load(Ordering::Relaxed).clamp(floor, ceiling);
        match class {
            Class::Metadata => metadata,
            Class::Data => c - metadata,
        }
    }

    /// Adapts `m` to the ghost hits since it was last called, and the epoch to the blocks that came in. Tells `removed`
    /// how many ghosts of which list have lost their slots.
    pub(crate) fn learn(&self, hits: &GhostHits, sizes: &Sizes, removed: impl Fn(usize, u64)) {
        let c = self.capacity();
        let used = hits.drain_uses();
        if used > 0 {
            self.count_uses(used);
        }
        for (number, (bytes, count)) in hits.drain().into_iter().enumerate() {
            if count == 0 {
                continue;
            }
            removed(number, count);
            let list = GhostList::from_number(number);
            let class = list.class as usize;
            let other = list.class.other() as usize;
            let step = |own: u64, others: u64| {
                let ratio = (others as f64 / own.max(1) as f64).max(1.0);
                (bytes as f64 * ratio).min(c as f64) as i64
            };
            // The ghosts that were hit count among the ghosts still, as in the paper.
            let toward = step(sizes.ghosts(class), sizes.ghosts(other));
            let toward = if list.class == Class::Metadata { toward } else { -toward };
            add(&self.metadata, toward, c);
        }
    }

    /// Which list the next victim comes from; `None` if nothing is resident.
    pub(crate) fn next_list(
        &self,
        sizes: &Sizes,
        tunables: &CacheTunables,
    ) -> Option<(List, Class)> {
        let target = self.target(Class::Metadata, tunables);
        let (metadata, data) = (sizes.resident(0), sizes.resident(1));
        let class = match (metadata, data) {
            (0, 0) => return None,
            (_, 0) => Class::Metadata,
            (0, _) => Class::Data,
            (m, _) if m > target => Class::Metadata,
            _ => Class::Data,
        };
        // Blocks that were hinted go first, whichever class's turn it is.
        if let Some(once) = Class::ALL.into_iter().find(|c| sizes.once[*c as usize] > 0) {
            return Some((List::Once, once));
        }
        let (t1, t2) = (sizes.t1[class as usize], sizes.t2[class as usize]);
        let from_t1 = t2 == 0 || self.rule(class).takes_from_mru(t1, t1 + t2);
        Some((if from_t1 { List::Mru } else { List::Mfu }, class))
    }

    /// Which ghosts are too many, and by how many bytes, given the weight and number that each ring remembers and the age
    /// of its oldest: of a class's two lists the one with the older ones gives way.
    pub(crate) fn surplus_ghosts(
        &self,
        remembered: impl Fn(GhostList) -> (u64, u64, u32),
        ghost_percent: u32,
    ) -> Option<(GhostList, u64)> {
        let fewest = if ghost_percent > 0 { MIN_GHOSTS } else { 0 };
        let bound = (u128::from(self.capacity()) * u128::from(ghost_percent) / 100) as u64;
        Class::ALL.into_iter().find_map(|class| {
            let of = |frequent| remembered(GhostList { frequent, class });
            let ((b1, n1, age1), (b2, n2, age2)) = (of(false), of(true));
            let over = (b1 + b2).saturating_sub(bound);
            let few = n1 + n2 <= fewest;
            let frequent = b1 == 0 || (b2 > 0 && age2 > age1);
            (over > 0 && !few).then_some((GhostList { frequent, class }, over))
        })
    }
}

/// Adds within `0..=most`.
fn add(cell: &AtomicU64, change: i64, most: u64) {
    let mut now = cell.load(Ordering::Relaxed);
    loop {
        let next = now.saturating_add_signed(change).min(most);
        match cell.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{GhostHits, Policy, Sizes};
    use crate::attributes::Class;
    use crate::frequency::{Frequency, TICKS};
    use crate::header::List;
    use crate::lists::ghosts::GhostList;
    use crate::tunables::CacheTunables;

    const MRU_DATA_GHOSTS: GhostList = GhostList { frequent: false, class: Class::Data };

    fn hit(policy: &Policy, list: GhostList, weight: u32, sizes: Sizes) {
        let hits = GhostHits::new(2);
        hits.note(Some(list), weight);
        policy
            .learn(&hits, &sizes, |number, count| assert_eq!((number, count), (list.number(), 1)));
        policy.learn(&hits, &sizes, |_, _| unreachable!("nothing is learnt twice"));
    }

    #[test]
    fn a_ghost_hit_moves_the_balance_towards_its_class_once() {
        let policy = Policy::new(1000, false);
        hit(&policy, MRU_DATA_GHOSTS, 5, Sizes { b1: [0, 10], b2: [0, 40], ..Sizes::default() });
        assert_eq!(policy.target(Class::Data, &CacheTunables::default()), 505);
        // Metadata is remembered less, so that a hit of it weighs more.
        let metadata = GhostList { frequent: true, class: Class::Metadata };
        hit(&policy, metadata, 5, Sizes { b1: [10, 10], b2: [0, 40], ..Sizes::default() });
        assert_eq!(policy.target(Class::Data, &CacheTunables::default()), 480);
    }

    #[test]
    fn mru_gives_way_when_it_has_what_the_rule_means_for_it() {
        let (policy, tunables) = (Policy::new(100, false), CacheTunables::default());
        let sizes = |mru, mfu| Sizes { t1: [0, mru], t2: [0, mfu], ..Sizes::default() };
        for (number, rule) in super::admission::RULES.into_iter().enumerate() {
            policy.follow(Class::Data, number);
            assert_eq!(policy.rule(Class::Data), rule);
            let mru_target = rule.share(100);
            assert_eq!(policy.p(Class::Data, &sizes(mru_target, 100 - mru_target)), mru_target);
            let next_list = policy.next_list(&sizes(mru_target, 100 - mru_target), &tunables);
            assert_eq!(next_list, Some((List::Mru, Class::Data)));
            let slack = if rule.admission { 3 } else { 0 };
            if mru_target > slack + 1 {
                let below = sizes(mru_target - slack - 1, 101 - mru_target + slack);
                assert_eq!(policy.next_list(&below, &tunables), Some((List::Mfu, Class::Data)));
            }
            assert_eq!(policy.next_list(&sizes(0, 100), &tunables), Some((List::Mfu, Class::Data)));
            let mru_excess = |more| {
                policy.mru_excess(Class::Data, &sizes(mru_target + more, 100 - mru_target - more))
            };
            if rule.admission {
                // A little is no matter; but once it flows, it flows until mru has what it should have.
                assert_eq!([0, 3, 5, 3, 1, 0, 3].map(mru_excess), [0, 0, 5, 3, 1, 0, 0]);
                // The last block stays.
                assert_eq!(
                    policy
                        .mru_excess(Class::Data, &Sizes { t1: [0, 5], ..Sizes::default() })
                        .min(5),
                    4.min(5 - rule.share(5))
                );
            }
        }
        assert_eq!(policy.next_list(&sizes(100, 0), &tunables), Some((List::Mru, Class::Data)));
    }

    #[test]
    fn uses_of_many_times_the_capacity_end_an_epoch() {
        for (capacity, weight) in [(100, 10), (1 << 40, 1 << 33), (1, 1), (3, 3)] {
            let policy = Policy::new(capacity, false);
            let uses = super::EPOCH_CAPACITIES * capacity / weight;
            (0..uses - 1).for_each(|_| policy.count_uses(weight));
            assert!(policy.now() < TICKS);
            policy.count_uses(weight);
            assert_eq!(policy.now(), TICKS);
            (0..9 * uses).for_each(|_| policy.count_uses(weight));
            assert_eq!(policy.now(), 10 * TICKS, "nothing is lost between ticks");
        }
    }

    #[test]
    fn admission_compares_uses_or_gaps() {
        let now = 1000;
        let candidate = Frequency::of(1, now - 50).used(now);
        // Asked for often, but not for longer than it took the newcomer to come back; and the other way round.
        let (steady, stale) = (Frequency::of(9, now - 50), Frequency::of(1, now - 51));
        let [by_reuse_distance, by_count, ..] = super::admission::RULES;
        assert!(
            !by_reuse_distance.prefers(candidate, steady, now)
                && by_reuse_distance.prefers(candidate, stale, now)
        );
        assert!(!by_count.prefers(candidate, steady, now));
        assert!(by_count.prefers(candidate, stale, now));
        let often = Frequency::of(9, now - 51);
        assert!(
            by_reuse_distance.prefers(candidate, often, now)
                && !by_count.prefers(candidate, often, now)
        );
    }

    #[test]
    fn few_ghosts_stay_though_they_weigh_much() {
        let policy = Policy::new(100, false);
        let of =
            |n: u64| move |list| if list == MRU_DATA_GHOSTS { (10 * n, n, 0) } else { (0, 0, 9) };
        assert_eq!(policy.surplus_ghosts(of(super::MIN_GHOSTS), 200), None);
        let more = super::MIN_GHOSTS + 1;
        let surplus = policy.surplus_ghosts(of(more), 200);
        assert_eq!(surplus, Some((MRU_DATA_GHOSTS, 10 * more - 200)));
        assert_eq!(policy.surplus_ghosts(of(1), 0), Some((MRU_DATA_GHOSTS, 10)));
        // Of two lists, the older one.
        let frequent = GhostList { frequent: true, ..MRU_DATA_GHOSTS };
        for (age, list) in [(3, frequent), (1, MRU_DATA_GHOSTS)] {
            let both = |list: GhostList| (500, more, if list.frequent { age } else { 2 });
            let other_class =
                |list: GhostList| if list.class == Class::Data { both(list) } else { (0, 0, 0) };
            assert_eq!(policy.surplus_ghosts(other_class, 200), Some((list, 800)));
        }
    }

    #[test]
    fn a_resize_keeps_the_shares() {
        let policy = Policy::new(1000, false);
        hit(&policy, MRU_DATA_GHOSTS, 100, Sizes::default());
        policy.set_capacity(500);
        assert_eq!(policy.target(Class::Metadata, &CacheTunables::default()), 200);
    }

    #[test]
    fn hinted_blocks_go_first_then_the_class_above_its_target() {
        let (policy, tunables) = (Policy::new(100, false), CacheTunables::default());
        let mut sizes = Sizes { t1: [60, 40], once: [0, 1], ..Sizes::default() };
        assert_eq!(policy.next_list(&sizes, &tunables), Some((List::Once, Class::Data)));
        sizes.once = [0, 0];
        assert_eq!(policy.next_list(&sizes, &tunables), Some((List::Mru, Class::Metadata)));
        sizes.t1 = [40, 60];
        assert_eq!(policy.next_list(&sizes, &tunables), Some((List::Mru, Class::Data)));
        assert_eq!(policy.next_list(&Sizes::default(), &tunables), None);
    }

    #[test]
    fn floors_and_ceilings_bind() {
        let (policy, tunables) = (Policy::new(1000, false), CacheTunables::default());
        tunables.set_metadata_floor_percent(70).unwrap();
        assert_eq!(policy.target(Class::Metadata, &tunables), 700);
        tunables.set_metadata_floor_percent(0).unwrap();
        tunables.set_data_floor_percent(80).unwrap();
        assert_eq!(policy.target(Class::Metadata, &tunables), 200);
    }
}
