//! ARC exactly as Megiddo and Modha print it (FAST 2003, figure 4), and LRU. One thread,
//! blocks of size one, keys only: oracles of the hit ratio, with the paper's symbols.

use hashbrown::HashMap;

use super::FastHash;
use super::list::{List, Slab};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    T1,
    T2,
    B1,
    B2,
}

/// ARC of `c` blocks.
pub(crate) struct TextbookArc {
    c: u64,
    p: f64,
    lists: [List; 4],
    slab: Slab<u64>,
    index: HashMap<u64, (Place, u32), FastHash>,
}

impl TextbookArc {
    /// An empty cache of `c` blocks.
    pub(crate) fn new(c: u64) -> Self {
        assert!(c > 0, "a cache holds a block");
        Self {
            c,
            p: 0.0,
            lists: [List::new(); 4],
            slab: Slab::new(),
            index: HashMap::with_hasher(FastHash::default()),
        }
    }

    fn len(&self, place: Place) -> u64 {
        self.lists[place as usize].len()
    }

    /// Blocks resident.
    pub(crate) fn resident(&self) -> u64 {
        self.len(Place::T1) + self.len(Place::T2)
    }

    /// ARC(c) on a request for `x`. Returns true for a hit.
    pub(crate) fn request(&mut self, x: u64) -> bool {
        match self.index.get(&x).copied() {
            // Case I: x is in T1 or T2.
            Some((place @ (Place::T1 | Place::T2), node)) => {
                self.transfer(x, node, place, Place::T2);
                return true;
            }
            // Case II: x is in B1.
            Some((Place::B1, node)) => {
                let delta = (self.len(Place::B2) as f64 / self.len(Place::B1) as f64).max(1.0);
                self.p = (self.p + delta).min(self.c as f64);
                self.replace(false);
                self.transfer(x, node, Place::B1, Place::T2);
            }
            // Case III: x is in B2.
            Some((Place::B2, node)) => {
                let delta = (self.len(Place::B1) as f64 / self.len(Place::B2) as f64).max(1.0);
                self.p = (self.p - delta).max(0.0);
                self.replace(true);
                self.transfer(x, node, Place::B2, Place::T2);
            }
            // Case IV: x is nowhere.
            None => {
                self.make_room();
                let node = self.slab.insert(&mut self.lists[Place::T1 as usize], x);
                self.index.insert(x, (Place::T1, node));
            }
        }
        false
    }

    fn make_room(&mut self) {
        let l1 = self.len(Place::T1) + self.len(Place::B1);
        let all = l1 + self.len(Place::T2) + self.len(Place::B2);
        if l1 == self.c {
            if self.len(Place::T1) < self.c {
                self.delete_oldest(Place::B1);
                self.replace(false);
            } else {
                self.delete_oldest(Place::T1);
            }
        } else if all >= self.c {
            if all == 2 * self.c {
                self.delete_oldest(Place::B2);
            }
            self.replace(false);
        }
    }

    /// The subroutine REPLACE(x, p).
    fn replace(&mut self, x_in_b2: bool) {
        let t1 = self.len(Place::T1) as f64;
        let from_t1 = t1 > 0.0 && (t1 > self.p || (x_in_b2 && t1 == self.p));
        let (from, to) = if from_t1 { (Place::T1, Place::B1) } else { (Place::T2, Place::B2) };
        if let Some(node) = self.lists[from as usize].tail() {
            let key = *self.slab.item(node);
            self.transfer(key, node, from, to);
        }
    }

    fn transfer(&mut self, key: u64, node: u32, from: Place, to: Place) {
        self.slab.unlink(&mut self.lists[from as usize], node);
        self.slab.link(&mut self.lists[to as usize], node);
        self.index.insert(key, (to, node));
    }

    fn delete_oldest(&mut self, place: Place) {
        if let Some(node) = self.lists[place as usize].tail() {
            let key = *self.slab.item(node);
            self.slab.remove(&mut self.lists[place as usize], node);
            self.index.remove(&key);
        }
    }
}

/// LRU of a number of blocks.
pub(crate) struct TextbookLru {
    capacity: u64,
    list: List,
    slab: Slab<u64>,
    index: HashMap<u64, u32, FastHash>,
}

impl TextbookLru {
    /// An empty cache.
    pub(crate) fn new(capacity: u64) -> Self {
        assert!(capacity > 0, "a cache holds a block");
        Self {
            capacity,
            list: List::new(),
            slab: Slab::new(),
            index: HashMap::with_hasher(FastHash::default()),
        }
    }

    /// Blocks resident.
    pub(crate) fn resident(&self) -> u64 {
        self.list.len()
    }

    /// A request for `x`. Returns true for a hit.
    pub(crate) fn request(&mut self, x: u64) -> bool {
        if let Some(&node) = self.index.get(&x) {
            self.slab.unlink(&mut self.list, node);
            self.slab.link(&mut self.list, node);
            return true;
        }
        if self.list.len() == self.capacity
            && let Some(node) = self.list.tail()
        {
            let key = *self.slab.item(node);
            self.slab.remove(&mut self.list, node);
            self.index.remove(&key);
        }
        let node = self.slab.insert(&mut self.list, x);
        self.index.insert(x, node);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::XorShift;

    /// The definition, with vectors whose first element is the most recent.
    struct Naive {
        c: usize,
        p: f64,
        t1: Vec<u64>,
        t2: Vec<u64>,
        b1: Vec<u64>,
        b2: Vec<u64>,
    }

    fn take(list: &mut Vec<u64>, x: u64) -> bool {
        let at = list.iter().position(|k| *k == x);
        at.map(|i| list.remove(i)).is_some()
    }

    impl Naive {
        fn replace(&mut self, in_b2: bool) {
            let t1 = self.t1.len() as f64;
            if t1 > 0.0 && (t1 > self.p || (in_b2 && t1 == self.p)) {
                let key = self.t1.pop().expect("t1 is not empty");
                self.b1.insert(0, key);
            } else if let Some(key) = self.t2.pop() {
                self.b2.insert(0, key);
            }
        }

        fn request(&mut self, x: u64) -> bool {
            if take(&mut self.t1, x) || take(&mut self.t2, x) {
                self.t2.insert(0, x);
                return true;
            }
            let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
            if self.b1.contains(&x) {
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
                self.replace(false);
                take(&mut self.b1, x);
                self.t2.insert(0, x);
            } else if self.b2.contains(&x) {
                self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
                self.replace(true);
                take(&mut self.b2, x);
                self.t2.insert(0, x);
            } else {
                let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
                if self.t1.len() + self.b1.len() == self.c {
                    if self.t1.len() < self.c {
                        self.b1.pop();
                        self.replace(false);
                    } else {
                        self.t1.pop();
                    }
                } else if all >= self.c {
                    if all == 2 * self.c {
                        self.b2.pop();
                    }
                    self.replace(false);
                }
                self.t1.insert(0, x);
            }
            false
        }
    }

    #[test]
    fn arc_agrees_with_its_definition() {
        let mut rng = XorShift::new(3);
        let mut arc = TextbookArc::new(20);
        let mut naive = Naive { c: 20, p: 0.0, t1: vec![], t2: vec![], b1: vec![], b2: vec![] };
        for i in 0..20_000u64 {
            // Loops, scans and a skewed set in turns, so that p travels.
            let x = match (i / 500) % 3 {
                0 => i % 30,
                1 => 1000 + i,
                _ => rng.below(8) * rng.below(8),
            };
            assert_eq!(arc.request(x), naive.request(x), "request {i} of {x}");
            assert_eq!(arc.p, naive.p);
            let lens = [&naive.t1, &naive.t2, &naive.b1, &naive.b2].map(|l| l.len() as u64);
            assert_eq!(arc.lists.map(|l| l.len()), lens);
        }
    }

    #[test]
    fn lru_evicts_the_oldest() {
        let mut lru = TextbookLru::new(2);
        assert!(!lru.request(1) && !lru.request(2) && lru.request(1));
        assert!(!lru.request(3), "3 pushes 2 out");
        assert!(lru.request(1) && !lru.request(2));
        assert_eq!(lru.resident(), 2);
    }
}
