//! The policy: the target size of each state and class, and the list that gives up the next block.
//!
//! 1. *Hits move nothing.* A hit sets a mark, and the evictor acts on it (Bansal and Modha, "CAR:
//!    Clock with Adaptive Replacement", FAST 2004). Misses and examined marks count as uses
//!    (`frequency`). Ghosts keep the count, and a ghost hit restores it.
//! 2. *Admission* ([`admission`]). A new block enters *mru*. *mfu* holds blocks with proven reuse.
//!    The *candidate*, the coldest block of mru, is evicted if it has one use. Otherwise it
//!    replaces the *victim*, a cold block of mfu, if it has more uses.
//! 3. *Rules.* The share of mru, and what is compared, is one of five rules. [`simulation`]
//!    chooses. A change moves nothing at once: above its target, mru gives a few blocks to mfu for
//!    each candidate; below it, mfu gives up its coldest blocks.
//! 4. *Classes.* Metadata and data each have mru, mfu, two ghost lists and a rule. The balance `m`
//!    is the target of metadata in bytes, and matters only while the cache is full. A ghost hit
//!    moves `m` towards its class as ARC moves `p` (Megiddo and Modha, FAST 2003): by its weight,
//!    times the ratio of the other class's ghosts to its own, at least one.
//! 5. *Ghosts* of a class are bounded by `ghost_percent` of `c`, but [`MIN_GHOSTS`] may always
//!    stay. The oldest ghost of the class goes first.
//! 6. *Hints.* Blocks hinted `once` have a list of their own, which is evicted first and leaves no
//!    ghosts. A marked one moves to mru. Blocks hinted `again` begin in mfu, or marked in a CLOCK.
//! 7. *Correlated references*, off by default: a hand clears the marks of blocks that leave the
//!    window, so references soon after the insertion do not count.
//!
//! Locking: none. All fields are relaxed atomics; `docs/locking.md` says who writes them.

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

/// An epoch of frequencies ends when this many times the capacity was used.
pub(crate) const EPOCH_CAPACITIES: u64 = 20;
/// Number of ghosts that may always stay.
pub(crate) const MIN_GHOSTS: u64 = if cfg!(forebay_model) { 2 } else { 512 };

/// Ticks in `parts` (weight of uses, times `TICKS`), and the remainder.
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
    /// Makes a list appear empty.
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
    /// Bytes of MRU and MFU of a class.
    fn shared(&self, class: usize) -> u64 {
        self.t1[class] + self.t2[class]
    }
    fn ghosts(&self, class: usize) -> u64 {
        self.b1[class] + self.b2[class]
    }
}

/// Ghost hits and inserted weight that the policy has not collected yet, by shard, so that inserts
/// share no cache line.
pub(crate) struct GhostHits {
    shards: Box<[CachePadded<Hits>]>,
}

/// By `GhostList::number`: weight in the upper bits, number of hits in the lower bits, so that a
/// hit is one update. The last field is the weight of all inserted blocks.
#[derive(Default)]
struct Hits([AtomicU64; 4], AtomicU64);

const HIT_WEIGHT_SHIFT: u32 = 24;

impl GhostHits {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: (0..shards).map(|_| CachePadded::new(Hits::default())).collect() }
    }

    /// Notes that a block of this weight was inserted, and which list its ghost was in, if any.
    /// Evictions collect the hits long before their number overflows, because each hit inserts a
    /// block. Threads that share a shard may lose or repeat some of the inserted weight, which
    /// changes the length of an epoch a little.
    pub(crate) fn note(&self, ghost: Option<GhostList>, weight: u32) {
        let Hits(hits, uses) = &*self.shards[thread_slot().index(self.shards.len())];
        if let Some(list) = ghost {
            let hit = (u64::from(weight) << HIT_WEIGHT_SHIFT) | 1;
            hits[list.number()].fetch_add(hit, Ordering::Relaxed);
        }
        uses.store(uses.load(Ordering::Relaxed).wrapping_add(weight.into()), Ordering::Relaxed);
    }

    /// Takes the weight of inserted blocks.
    fn drain_uses(&self) -> u64 {
        let waiting = self.shards.iter().filter(|s| s.1.load(Ordering::Relaxed) > 0);
        waiting.map(|s| s.1.swap(0, Ordering::Relaxed)).sum()
    }

    /// Takes weight and number of the hits of each list.
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
    /// The target `c`.
    capacity: AtomicU64,
    /// Index of each class's rule in `RULES`.
    rules: [AtomicUsize; 2],
    /// `m`, the target of metadata in bytes.
    metadata: AtomicU64,
    /// The clock of frequencies.
    tick: AtomicU32,
    /// Weight of uses in this tick, times `TICKS`.
    used: AtomicU64,
    /// Whether blocks move from MRU to MFU without admission, by class.
    rebalancing: [AtomicBool; 2],
    /// One list for all blocks and no admission.
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

    #[inline]
    pub(crate) fn is_plain_lru(&self) -> bool {
        self.plain_lru
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Changes `c`. `m` keeps its share.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        let before = self.capacity.swap(capacity, Ordering::Relaxed).max(1);
        let metadata = u128::from(self.metadata.load(Ordering::Relaxed)) * u128::from(capacity);
        self.metadata.store((metadata / u128::from(before)) as u64, Ordering::Relaxed);
    }

    /// The number of the class's current rule.
    pub(crate) fn rule_number(&self, class: Class) -> usize {
        self.rules[class as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn rule(&self, class: Class) -> Rule {
        RULES[self.rule_number(class)]
    }

    /// Changes the rule of a class.
    pub(crate) fn follow(&self, class: Class, rule: usize) {
        if !self.plain_lru && self.rule_number(class) != rule {
            self.rules[class as usize].store(rule, Ordering::Relaxed);
        }
    }

    /// The target of MRU of a class in bytes.
    pub(crate) fn p(&self, class: Class, sizes: &Sizes) -> u64 {
        self.rule(class).share(sizes.shared(class as usize))
    }

    /// Bytes of MRU that should move to MFU without admission. Never all of MRU: new blocks must be
    /// requested again first.
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

    /// The current tick.
    pub(crate) fn now(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Counts uses, which advance the clock.
    pub(crate) fn count_uses(&self, weight: u64) {
        let parts = weight.saturating_mul(u64::from(TICKS));
        let parts = self.used.fetch_add(parts, Ordering::Relaxed).saturating_add(parts);
        let passed = ticks(parts, self.capacity());
        if passed.0 > 0 {
            // Two threads may both end a tick, or lose a part of one.
            self.used.store(passed.1, Ordering::Relaxed);
            self.tick.fetch_add(passed.0, Ordering::Relaxed);
        }
    }

    /// The target of a class in bytes, within its floor and ceiling.
    pub(crate) fn target(&self, class: Class, tunables: &CacheTunables) -> u64 {
        let c = self.capacity();
        let percent = |p: u32| (u128::from(c) * u128::from(p) / 100) as u64;
        // The floor of data is the ceiling of metadata, and the reverse.
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

    /// Adapts `m` to the ghost hits, and the clock to the inserted weight, since the last call.
    /// Calls `removed` with the number of ghosts of each list that lost their slots.
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
            // The ghosts that were hit still count as ghosts, as in the paper.
            let toward = step(sizes.ghosts(class), sizes.ghosts(other));
            let toward = if list.class == Class::Metadata { toward } else { -toward };
            add(&self.metadata, toward, c);
        }
    }

    /// The list that gives up the next block; `None` if nothing is resident.
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
        // Blocks hinted `once` go first, whichever class exceeds its target.
        if let Some(once) = Class::ALL.into_iter().find(|c| sizes.once[*c as usize] > 0) {
            return Some((List::Once, once));
        }
        let (t1, t2) = (sizes.t1[class as usize], sizes.t2[class as usize]);
        let from_t1 = t2 == 0 || self.rule(class).takes_from_mru(t1, t1 + t2);
        Some((if from_t1 { List::Mru } else { List::Mfu }, class))
    }

    /// A list with too many ghosts, and its surplus in bytes. `remembered` returns weight and
    /// number of a list's ghosts and the age of the oldest. Of a class's two lists, the one with
    /// the older ghost gives way.
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
        // Metadata has fewer ghosts, so a hit of one counts more.
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
                // A small excess is tolerated. Once blocks move, they move until MRU is at its
                // target.
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
        // `steady` has many uses, but its last one is more recent than the candidate's gap is long.
        // `stale` is the opposite.
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
