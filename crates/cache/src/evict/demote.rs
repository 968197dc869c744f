//! Demotion: replaces a batch of retired blocks by ghosts, then frees their headers and capacity.
//!
//! Each index line, header and lock is touched once per batch. A retired block keeps the data of
//! its ghost. Its index line is prefetched when it is retired; the lines of surplus ghosts are
//! prefetched before the first is removed. A partition is locked once for all its retired blocks
//! and surplus ghosts.
//!
//! Locking: `ghost-sublist`, then `index-partition`, one after the other; `slab-magazine` at the
//! end.

use std::ptr::NonNull;

use crate::attributes::{Cause, Class};
use crate::counters::CacheCounters;
use crate::evict::{Scratch, evicted_row};
use crate::header::{Header, List};
use crate::index::{Locked, PARTITIONS, partition_of};
use crate::inner::CacheInner;
use crate::key::{Key, OwnerId};
use crate::lists::ghosts::{Ghost, GhostList, Ghosts};

/// A block that the evictor has retired.
pub(crate) struct RetiredBlock<K, V> {
    pub(crate) header: NonNull<Header<K, V>>,
    pub(crate) hash: u64,
    pub(crate) weight: u32,
    pub(crate) owner: OwnerId,
    /// Position of its ghost; [`NO_GHOST`] if it leaves none.
    pub(crate) ghost: u64,
}

pub(crate) const NO_GHOST: u64 = u64::MAX;

/// What became of the slot of a retired block.
enum Replaced {
    ByGhost,
    ByNothing,
    /// It is not where the key's hash says, so that hash has changed: see `key_calls`.
    NotFound,
}

/// Surplus ghosts removed at once, unless more blocks are evicted at once.
const MAX_TRIMMED: usize = 64;
/// End of a partition's list.
const NONE: u32 = u32::MAX;

/// Numbers of items by the partition of their hash: a linked list for each, in one vector.
pub(crate) struct ByPartition {
    /// The last item of each partition in `used`.
    last: [u32; PARTITIONS],
    used: u64,
    /// The previous item of the same partition.
    before: Vec<u32>,
}

const _: () = assert!(PARTITIONS <= u64::BITS as usize);

impl Default for ByPartition {
    fn default() -> Self {
        Self { last: [NONE; PARTITIONS], used: 0, before: Vec::new() }
    }
}

impl ByPartition {
    /// Adds the next item.
    fn add(&mut self, hash: u64) {
        let (number, at) = (self.before.len() as u32, partition_of(hash));
        let others = self.used & (1 << at) != 0;
        self.before.push(if others { self.last[at] } else { NONE });
        self.last[at] = number;
        self.used |= 1 << at;
    }

    /// Calls `each` with the last item of each partition that has items. [`from`](Self::from)
    /// iterates over the others.
    fn each_partition(&self, mut each: impl FnMut(usize)) {
        let mut used = self.used;
        while used != 0 {
            each(self.last[used.trailing_zeros() as usize] as usize);
            used &= used - 1;
        }
    }

    /// An item and the earlier items of its partition.
    fn from(&self, item: usize) -> impl Iterator<Item = usize> {
        let before = |item: &usize| Some(self.before[*item]).filter(|i| *i != NONE);
        std::iter::successors(Some(item), move |item| before(item).map(|i| i as usize))
    }

    fn clear(&mut self) {
        self.used = 0;
        self.before.clear();
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Finishes the retired blocks of a batch: those of the `n`th sublist of `list`, and those of
    /// the `m`th MFU sublist that admission has retired. Replaces each by a ghost. Removes as many
    /// of the oldest ghosts if there are too many.
    pub(crate) fn demote(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        (list, n): (List, usize),
        m: Option<usize>,
    ) {
        self.push_ghosts(&mut scratch.retired, class, list, n);
        let first_mfu = scratch.retired.len();
        if let Some(m) = m {
            self.push_ghosts(&mut scratch.mfu_retired, class, List::Mfu, m);
            scratch.retired.append(&mut scratch.mfu_retired);
        }
        if scratch.retired.is_empty() {
            return;
        }
        let most = scratch.retired.len().max(MAX_TRIMMED);
        let trimmed = self.take_surplus(scratch, most);
        self.replace_by_ghosts(scratch, class, (list, first_mfu), trimmed);
        if self.active_secondary().is_some() {
            // SAFETY: retired with a pin for this thread.
            let keys = scratch.retired.iter().map(|v| unsafe { *v.header.as_ref().key() });
            scratch.evicted_keys.extend(keys);
        }
        let mut released = 0;
        for retired in &scratch.retired {
            // SAFETY: retired by this thread for capacity and out of the index, so no other thread
            // pins it.
            let state = unsafe { self.finish_evicted(retired.header, |w| released += w) };
            scratch.headers.push(retired.header);
            self.note_freed(state);
        }
        self.slab.give_all(&mut scratch.headers);
        self.count_evicted(class, list, first_mfu as u64);
        self.count_evicted(class, List::Mfu, (scratch.retired.len() - first_mfu) as u64);
        scratch.retired.clear();
        self.capacity.release_all(released);
    }

    fn count_evicted(&self, class: Class, list: List, evicted: u64) {
        if evicted == 0 {
            return;
        }
        let counters = self.counters.shard();
        counters.add(evicted_row(list), class as usize, evicted);
        counters.add(CacheCounters::LEFT, Cause::Capacity as usize, evicted);
        counters.add(CacheCounters::EVICTED_UNDER, self.policy.rule_number(class), evicted);
        if list == List::Mfu {
            counters.add(CacheCounters::DEMOTED, class as usize, evicted);
        }
    }

    /// Adds ghosts of retired blocks to their ghost list, unless the list keeps none.
    fn push_ghosts(&self, retired: &mut [RetiredBlock<K, V>], class: Class, list: List, n: usize) {
        if retired.is_empty() || list == List::Once || self.tunables.ghost_percent() == 0 {
            return;
        }
        let now = self.policy.now();
        let ghosts = retired.iter_mut().map(|v| {
            let ghost = Ghost::new(v.hash, v.weight, v.owner, now);
            (ghost, &mut v.ghost)
        });
        self.ghosts_of(class, list).1.push_all(n, ghosts);
    }

    fn ghosts_of(&self, class: Class, list: List) -> (GhostList, &Ghosts) {
        let list = GhostList { frequent: list == List::Mfu, class };
        (list, &self.ghosts[list.number()])
    }

    /// Replaces the slots of retired blocks by their ghosts', and removes the slots of trimmed
    /// ghosts.
    fn replace_by_ghosts(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        (list, first_mfu): (List, usize),
        trimmed_of: Option<GhostList>,
    ) {
        let Scratch { retired, trimmed, groups, .. } = scratch;
        retired.iter().for_each(|retired| groups.add(retired.hash));
        trimmed.iter().for_each(|(_, ghost)| groups.add(ghost.hash));
        let hash = |item: usize| match retired.get(item) {
            Some(retired) => retired.hash,
            None => trimmed[item - retired.len()].1.hash,
        };
        let (mut made, mut removed) = ([0, 0], 0);
        let mut lost = Vec::new();
        groups.each_partition(|first| {
            let mut locked = self.index.lock(hash(first));
            for item in groups.from(first) {
                locked.set_hash(hash(item));
                if let Some(retired) = retired.get(item) {
                    let mfu_retired = item >= first_mfu;
                    let (of, ghosts) =
                        self.ghosts_of(class, if mfu_retired { List::Mfu } else { list });
                    match self.replace_by_ghost(&mut locked, retired, (of, ghosts)) {
                        Replaced::ByGhost => made[usize::from(mfu_retired)] += 1,
                        Replaced::ByNothing => {}
                        Replaced::NotFound => lost.push(retired.header.addr().get()),
                    }
                } else if let Some(of) = trimmed_of {
                    let (position, _) = trimmed[item - retired.len()];
                    removed += u64::from(remove_ghost(&mut locked, of, position));
                }
            }
        });
        groups.clear();
        trimmed.clear();
        for address in lost {
            self.index.remove_anywhere(address);
        }
        self.ghosts_of(class, list).1.count_slots(made[0], 0);
        self.ghosts_of(class, List::Mfu).1.count_slots(made[1], 0);
        if let Some(of) = trimmed_of {
            self.count_trimmed(of, removed);
        }
    }

    fn count_trimmed(&self, of: GhostList, removed: u64) {
        self.ghosts[of.number()].count_slots(0, removed);
        self.counters.add(CacheCounters::GHOSTS_TRIMMED, of.class as usize, removed);
    }

    fn replace_by_ghost(
        &self,
        locked: &mut Locked<'_>,
        retired: &RetiredBlock<K, V>,
        (list, ghosts): (GhostList, &Ghosts),
    ) -> Replaced {
        let address = retired.header.addr().get();
        // SAFETY: headers are type-stable, and this one is retired with a pin for this thread.
        let h = unsafe { retired.header.as_ref() };
        let Some((slot_ref, _)) = locked.find_resident(|a| a == address) else {
            // If an insert of the same key has taken the slot, no ghost is needed.
            let is_gone = h.state().is_unlinked();
            return if is_gone { Replaced::ByNothing } else { Replaced::NotFound };
        };
        if retired.ghost == NO_GHOST || ghosts.is_over(retired.ghost) {
            locked.remove(slot_ref);
            return Replaced::ByNothing;
        }
        let slot = locked.ghost_slot(list.number(), retired.ghost);
        locked.replace(slot_ref, slot.with_uses(h.frequency(), self.policy.now()));
        Replaced::ByGhost
    }

    /// Removes the oldest ghosts of lists that have too many.
    pub(crate) fn trim_ghosts(&self, scratch: &mut Scratch<K, V>) {
        while let Some(list) = self.take_surplus(scratch, MAX_TRIMMED) {
            let Scratch { trimmed, groups, .. } = scratch;
            self.unlink_ghosts(list, trimmed, groups);
        }
    }

    /// Pops up to `most` of the oldest ghosts of a list that has too many, and prefetches their
    /// index lines. The caller removes their slots.
    fn take_surplus(&self, scratch: &mut Scratch<K, V>, most: usize) -> Option<GhostList> {
        let now = self.policy.now();
        let remembered = |list: GhostList| self.ghosts[list.number()].remembered(now);
        let percent = self.tunables.ghost_percent();
        let (list, surplus) = self.policy.surplus_ghosts(remembered, percent)?;
        let ghosts = &self.ghosts[list.number()];
        let (bytes, entries, _) = ghosts.remembered(now);
        let average = bytes / entries.max(1);
        let most = (surplus / average.max(1)).clamp(1, most as u64) as usize;
        let n = ghosts.draw(|all| scratch.rng.below(all))?;
        ghosts.pop(n, most, &mut scratch.trimmed);
        // None if they were counted but not pushed yet.
        let some = !scratch.trimmed.is_empty();
        scratch.trimmed.retain(|(_, ghost)| ghost.weight > 0);
        scratch.trimmed.iter().for_each(|(_, ghost)| self.index.prefetch(ghost.hash));
        some.then_some(list)
    }

    /// Removes the slots of popped ghosts.
    fn unlink_ghosts(
        &self,
        list: GhostList,
        entries: &mut Vec<(u64, Ghost)>,
        groups: &mut ByPartition,
    ) {
        entries.iter().for_each(|(_, ghost)| groups.add(ghost.hash));
        let mut removed = 0;
        groups.each_partition(|first| {
            let mut locked = self.index.lock(entries[first].1.hash);
            for item in groups.from(first) {
                let (position, ghost) = entries[item];
                locked.set_hash(ghost.hash);
                removed += u64::from(remove_ghost(&mut locked, list, position));
            }
        });
        groups.clear();
        entries.clear();
        self.count_trimmed(list, removed);
    }

    /// Removes the ghosts whose owner is `wanted`.
    pub(crate) fn remove_ghosts(&self, wanted: impl Fn(OwnerId) -> bool) {
        for (number, ghosts) in self.ghosts.iter().enumerate() {
            let mut found = ghosts.extract(|ghost| wanted(ghost.owner()));
            let list = GhostList::from_number(number);
            self.unlink_ghosts(list, &mut found, &mut ByPartition::default());
        }
    }
}

/// Removes the slot of a ghost. False if its block has come back and has taken the slot.
fn remove_ghost(locked: &mut Locked<'_>, list: GhostList, position: u64) -> bool {
    let slot_ref = locked.find_ghost_at(list.number(), position);
    slot_ref.map(|slot_ref| locked.remove(slot_ref)).is_some()
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{ByPartition, partition_of};

    proptest! {
        #[test]
        fn items_are_found_by_partition_each_once(rounds in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..300), 1..4)) {
            let mut groups = ByPartition::default();
            for hashes in rounds {
                let mut model: HashMap<usize, Vec<usize>> = HashMap::new();
                for (item, hash) in hashes.iter().enumerate() {
                    groups.add(*hash);
                    model.entry(partition_of(*hash)).or_default().push(item);
                }
                groups.each_partition(|first| {
                    let mut found: Vec<usize> = groups.from(first).collect();
                    found.reverse();
                    assert_eq!(model.remove(&partition_of(hashes[first])), Some(found));
                });
                prop_assert!(model.is_empty(), "{model:?}");
                groups.clear();
            }
        }
    }
}
