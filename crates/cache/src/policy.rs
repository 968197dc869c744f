//! The policy: how much room each state and class should have, and who goes next.
//!
//! ARC (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), with the
//! paper's symbols: `c` is the capacity, `p` the share meant for T1 (here *mru*); T2 is *mfu*, B1
//! and B2 are their ghosts. Sizes are bytes of weight, not blocks. Departures from the paper:
//!
//! 1. Hits move nothing. A hit sets a mark, and the evictor acts on it when it meets the block: a
//!    marked block of T1 goes to the head of T2, a marked block of T2 to the head of T2 again
//!    (Bansal and Modha, "CAR: Clock with Adaptive Replacement", FAST 2004).
//! 2. There is a T1, T2, B1, B2 and `p` for each class, metadata and data, and a balance `m` between
//!    the classes: the bytes meant for metadata. A ghost hit moves `m` towards its class by the
//!    same rule by which it moves `p`: by its weight times the ratio of the other class's ghosts to
//!    its own class's, at least one. So the class whose ghosts are hit more often *per byte
//!    remembered* gains room. `m` binds only when the cache is full.
//! 3. B1 and B2 of a class are bounded together by `ghost_percent` of c, 200 by default (the paper: T1 and B1
//!    by c, all four by 2c). R5's leaves come back after twice the cache has passed: with the paper's
//!    bound their ghosts are gone by then, and nothing tells the policy that they were wanted.
//! 4. Blocks hinted `once` have a list of their own that is evicted first and leaves no ghosts; a
//!    marked one moves to T1.
//! 5. Eviction works in batches from random sublists, so that order is exact only within one.
//! 6. References that follow an insertion at once (the correlated-reference window, off by default)
//!    can be kept from counting as reuse: a hand clears the marks of blocks as they leave the window.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::thread_slot;

use crate::attributes::Class;
use crate::header::List;
use crate::lists::ghosts::GhostList;
use crate::tunables::CacheTunables;

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
    fn resident(&self, class: usize) -> u64 {
        self.t1[class] + self.t2[class] + self.once[class]
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
/// one update.
#[derive(Default)]
struct Hits([AtomicU64; 4]);

const HIT_WEIGHT_SHIFT: u32 = 24;

impl GhostHits {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: (0..shards).map(|_| CachePadded::new(Hits::default())).collect() }
    }

    /// A block of that weight was asked for whose ghost was still there. Evictions collect the hits long
    /// before their number overflows, since every ghost hit brings a block in.
    pub(crate) fn note(&self, list: GhostList, weight: u64) {
        let hits = &self.shards[thread_slot().index(self.shards.len())];
        let weight = weight.min(u64::from(u32::MAX));
        hits.0[list.number()].fetch_add((weight << HIT_WEIGHT_SHIFT) | 1, Ordering::Relaxed);
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
    /// `p` of each class.
    p: [AtomicU64; 2],
    /// `m`, the bytes meant for metadata.
    metadata: AtomicU64,
}

impl Policy {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity: AtomicU64::new(capacity),
            p: [AtomicU64::new(0), AtomicU64::new(0)],
            metadata: AtomicU64::new(capacity / 2),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Follows a change of `c`: `p` and `m` keep their shares.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        let before = self.capacity.swap(capacity, Ordering::Relaxed).max(1);
        let scale = |cell: &AtomicU64| {
            let now = u128::from(cell.load(Ordering::Relaxed)) * u128::from(capacity);
            cell.store((now / u128::from(before)) as u64, Ordering::Relaxed);
        };
        self.p.iter().for_each(scale);
        scale(&self.metadata);
    }

    pub(crate) fn p(&self, class: Class) -> u64 {
        self.p[class as usize].load(Ordering::Relaxed)
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

    /// Adapts `p` and `m` to the ghost hits since it was last called. Tells `gone` how many ghosts of
    /// which list have lost their slots by them.
    pub(crate) fn learn(&self, hits: &GhostHits, sizes: &Sizes, gone: impl Fn(usize, u64)) {
        let c = self.capacity();
        for (number, (bytes, count)) in hits.drain().into_iter().enumerate() {
            if count == 0 {
                continue;
            }
            gone(number, count);
            let list = GhostList::from_number(number);
            let class = list.class as usize;
            let other = list.class.other() as usize;
            let step = |own: u64, others: u64| {
                let ratio = (others as f64 / own.max(1) as f64).max(1.0);
                (bytes as f64 * ratio).min(c as f64) as i64
            };
            // The ghosts that were hit count among the ghosts still, as in the paper.
            let (b1, b2) = (sizes.b1[class], sizes.b2[class]);
            let p = if list.frequent { -step(b2, b1) } else { step(b1, b2) };
            add(&self.p[class], p, c);
            let toward = step(b1 + b2, sizes.ghosts(other));
            let toward = if list.class == Class::Metadata { toward } else { -toward };
            add(&self.metadata, toward, c);
        }
    }

    /// Which list the next victim comes from; `None` if nothing is resident.
    pub(crate) fn victim(&self, sizes: &Sizes, tunables: &CacheTunables) -> Option<(List, Class)> {
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
        let from_t1 = t2 == 0 || (t1 > 0 && t1 > self.p(class));
        Some((if from_t1 { List::Mru } else { List::Mfu }, class))
    }

    /// Which ghosts are too many, and by how many bytes, given what each ring remembers. Each of a class's
    /// two lists has half of the bound, and what the other leaves of its half.
    pub(crate) fn surplus_ghosts(
        &self,
        remembered: impl Fn(GhostList) -> u64,
        ghost_percent: u32,
    ) -> Option<(GhostList, u64)> {
        let bound = (u128::from(self.capacity()) * u128::from(ghost_percent) / 100) as u64;
        Class::ALL.into_iter().find_map(|class| {
            let of = |frequent| remembered(GhostList { frequent, class });
            let (b1, b2) = (of(false), of(true));
            let over = (b1 + b2).saturating_sub(bound);
            let frequent = b1 == 0 || b2 > bound / 2;
            (over > 0).then_some((GhostList { frequent, class }, over))
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
    use crate::header::List;
    use crate::lists::ghosts::GhostList;
    use crate::tunables::CacheTunables;

    const RECENT_DATA: GhostList = GhostList { frequent: false, class: Class::Data };

    fn hit(policy: &Policy, list: GhostList, weight: u64, sizes: Sizes) {
        let hits = GhostHits::new(2);
        hits.note(list, weight);
        policy
            .learn(&hits, &sizes, |number, count| assert_eq!((number, count), (list.number(), 1)));
        policy.learn(&hits, &sizes, |_, _| unreachable!("nothing is learnt twice"));
    }

    #[test]
    fn a_ghost_hit_moves_p_and_the_balance_towards_it_once() {
        let policy = Policy::new(1000);
        hit(&policy, RECENT_DATA, 5, Sizes { b1: [0, 10], b2: [0, 40], ..Sizes::default() });
        assert_eq!(policy.p(Class::Data), 20);
        assert_eq!(policy.target(Class::Data, &CacheTunables::default()), 505);
        let frequent = GhostList { frequent: true, ..RECENT_DATA };
        hit(&policy, frequent, 5, Sizes { b1: [0, 10], b2: [0, 40], ..Sizes::default() });
        assert_eq!(policy.p(Class::Data), 15);
    }

    #[test]
    fn a_resize_keeps_the_shares() {
        let policy = Policy::new(1000);
        hit(&policy, RECENT_DATA, 100, Sizes::default());
        policy.set_capacity(500);
        assert_eq!(policy.p(Class::Data), 50);
        assert_eq!(policy.target(Class::Metadata, &CacheTunables::default()), 200);
    }

    #[test]
    fn hinted_blocks_go_first_then_the_class_above_its_target() {
        let (policy, tunables) = (Policy::new(100), CacheTunables::default());
        let mut sizes = Sizes { t1: [60, 40], once: [0, 1], ..Sizes::default() };
        assert_eq!(policy.victim(&sizes, &tunables), Some((List::Once, Class::Data)));
        sizes.once = [0, 0];
        assert_eq!(policy.victim(&sizes, &tunables), Some((List::Mru, Class::Metadata)));
        sizes.t1 = [40, 60];
        assert_eq!(policy.victim(&sizes, &tunables), Some((List::Mru, Class::Data)));
        assert_eq!(policy.victim(&Sizes::default(), &tunables), None);
    }

    #[test]
    fn floors_and_ceilings_bind() {
        let (policy, tunables) = (Policy::new(1000), CacheTunables::default());
        tunables.set_metadata_floor_percent(70).unwrap();
        assert_eq!(policy.target(Class::Metadata, &tunables), 700);
        tunables.set_metadata_floor_percent(0).unwrap();
        tunables.set_data_floor_percent(80).unwrap();
        assert_eq!(policy.target(Class::Metadata, &tunables), 200);
    }
}
