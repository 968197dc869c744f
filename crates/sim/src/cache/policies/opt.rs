//! The optimum: the most hits of any policy that knows the future.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer" (1966), with bypass:
//! of the resident entries and the new one, the one with the farthest next use is evicted or not
//! inserted.
//!
//! The first pass finds the next use of each access. The second keeps the resident entries as a set
//! of their next uses, each of which belongs to one entry only. An access hits if its own position
//! is in the set. The farthest next use is the largest element.

/// No next use: later than any access.
const NEVER: u32 = u32::MAX;

/// The hits of the optimum over a whole trace.
pub fn hits(accesses: &[u32], keys: usize, capacity: usize) -> u64 {
    let next = next_uses(accesses, keys);
    let mut resident = NextUseSet::new(accesses.len());
    let (mut len, mut hits) = (0, 0);
    for (now, next) in next.into_iter().enumerate() {
        if resident.remove(now) {
            hits += 1;
            len -= 1;
        }
        if next == NEVER {
            continue;
        }
        if len < capacity {
            len += 1;
        } else if let Some(farthest) =
            resident.largest().filter(|farthest| *farthest > next as usize)
        {
            resident.remove(farthest);
        } else {
            continue;
        }
        resident.insert(next as usize);
    }
    hits
}

/// The next use of each access's key.
fn next_uses(accesses: &[u32], keys: usize) -> Vec<u32> {
    assert!(accesses.len() < NEVER as usize, "traces are shorter");
    let mut upcoming = vec![NEVER; keys];
    let mut next = vec![NEVER; accesses.len()];
    for (now, key) in accesses.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut upcoming[*key as usize], now as u32);
    }
    next
}

/// A set of positions below a bound: a tree of words, in which each bit says whether the word below
/// it is not empty.
struct NextUseSet {
    /// From the root word to the elements.
    levels: Vec<Vec<u64>>,
}

const WORD_SHIFT: u32 = u64::BITS.trailing_zeros();

impl NextUseSet {
    fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound;
        loop {
            words = words.div_ceil(u64::BITS as usize).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                break;
            }
        }
        levels.reverse();
        Self { levels }
    }

    fn insert(&mut self, element: usize) {
        let mut at = element;
        for level in self.levels.iter_mut().rev() {
            level[at >> WORD_SHIFT] |= 1 << (at % u64::BITS as usize);
            at >>= WORD_SHIFT;
        }
    }

    /// Returns true if the element was in the set.
    fn remove(&mut self, element: usize) -> bool {
        let mut at = element;
        for (height, level) in self.levels.iter_mut().rev().enumerate() {
            let word = &mut level[at >> WORD_SHIFT];
            let bit = 1 << (at % u64::BITS as usize);
            if height == 0 && *word & bit == 0 {
                return false;
            }
            *word &= !bit;
            if *word != 0 {
                return true;
            }
            at >>= WORD_SHIFT;
        }
        true
    }

    fn largest(&self) -> Option<usize> {
        let mut at = 0;
        for level in &self.levels {
            let bit = level[at].checked_ilog2()?;
            at = at << WORD_SHIFT | bit as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_base::rng::SmallRng;

    use super::{NextUseSet, hits};

    #[test]
    fn next_uses_are_a_set() {
        for bound in [1, 64, 65, 5000] {
            let (mut set, mut naive) = (NextUseSet::new(bound), BTreeSet::new());
            let mut rng = SmallRng::from_seed(bound as u64);
            for _ in 0..4000 {
                let element = rng.below(bound as u64) as usize;
                if rng.below(2) == 0 {
                    set.insert(element);
                    naive.insert(element);
                } else {
                    assert_eq!(set.remove(element), naive.remove(&element));
                }
                assert_eq!(set.largest(), naive.last().copied());
            }
        }
    }

    /// The most hits there can be, by trying everything: which entries to keep after each access.
    fn by_trying(accesses: &[u32], capacity: usize) -> u64 {
        let mut states = vec![(BTreeSet::new(), 0)];
        for key in accesses {
            let mut after: Vec<(BTreeSet<u32>, u64)> = Vec::new();
            let mut reach =
                |set: BTreeSet<u32>, hits: u64| match after.iter_mut().find(|(s, _)| *s == set) {
                    Some((_, most)) => *most = hits.max(*most),
                    None => after.push((set, hits)),
                };
            for (set, hits) in &states {
                if set.contains(key) {
                    reach(set.clone(), hits + 1);
                    continue;
                }
                reach(set.clone(), *hits);
                let mut with = set.clone();
                with.insert(*key);
                if with.len() <= capacity {
                    reach(with, *hits);
                } else {
                    for victim in set {
                        let mut with = with.clone();
                        with.remove(victim);
                        reach(with, *hits);
                    }
                }
            }
            states = after;
        }
        states.into_iter().map(|(_, hits)| hits).max().unwrap_or(0)
    }

    #[test]
    fn nothing_does_better() {
        let mut rng = SmallRng::from_seed(5);
        for _ in 0..60 {
            let keys = 2 + rng.below(5);
            let accesses: Vec<u32> = (0..16).map(|_| rng.below(keys) as u32).collect();
            let capacity = 1 + rng.below(3) as usize;
            let found = hits(&accesses, keys as usize, capacity);
            assert_eq!(found, by_trying(&accesses, capacity), "{accesses:?}, {capacity}");
        }
    }
}
