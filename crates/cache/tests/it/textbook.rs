//! ARC as Megiddo and Modha print it (FAST 2003, figure 4): the oracle of the hit ratio. Slow and
//! simple. `forebay-sim` has an ARC too, but depends on this crate.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    T1,
    T2,
    B1,
    B2,
}

/// ARC of `c` blocks.
pub(crate) struct TextbookArc {
    c: usize,
    p: f64,
    clock: u64,
    /// By age. The first is the LRU end.
    lists: [BTreeMap<u64, u64>; 4],
    index: HashMap<u64, (Place, u64)>,
}

impl TextbookArc {
    pub(crate) fn new(c: usize) -> Self {
        Self { c, p: 0.0, clock: 0, lists: Default::default(), index: HashMap::new() }
    }

    fn len(&self, place: Place) -> usize {
        self.lists[place as usize].len()
    }

    /// A request for `x`; true if it hits.
    pub(crate) fn request(&mut self, x: u64) -> bool {
        match self.index.get(&x).copied() {
            Some((Place::T1 | Place::T2, _)) => {
                self.put(x, Place::T2);
                return true;
            }
            Some((Place::B1, _)) => {
                let delta = (self.len(Place::B2) as f64 / self.len(Place::B1) as f64).max(1.0);
                self.p = (self.p + delta).min(self.c as f64);
                self.replace(false);
                self.put(x, Place::T2);
            }
            Some((Place::B2, _)) => {
                let delta = (self.len(Place::B1) as f64 / self.len(Place::B2) as f64).max(1.0);
                self.p = (self.p - delta).max(0.0);
                self.replace(true);
                self.put(x, Place::T2);
            }
            None => {
                let l1 = self.len(Place::T1) + self.len(Place::B1);
                let all = l1 + self.len(Place::T2) + self.len(Place::B2);
                if l1 == self.c {
                    if self.len(Place::T1) < self.c {
                        self.forget_oldest(Place::B1);
                        self.replace(false);
                    } else {
                        self.forget_oldest(Place::T1);
                    }
                } else if all >= self.c {
                    if all == 2 * self.c {
                        self.forget_oldest(Place::B2);
                    }
                    self.replace(false);
                }
                self.put(x, Place::T1);
            }
        }
        false
    }

    /// REPLACE(x, p).
    fn replace(&mut self, x_in_b2: bool) {
        let t1 = self.len(Place::T1) as f64;
        let from_t1 = t1 > 0.0 && (t1 > self.p || (x_in_b2 && t1 == self.p));
        let (from, to) = if from_t1 { (Place::T1, Place::B1) } else { (Place::T2, Place::B2) };
        if let Some(key) = self.lists[from as usize].values().next().copied() {
            self.put(key, to);
        }
    }

    fn put(&mut self, x: u64, to: Place) {
        self.clock += 1;
        if let Some((from, age)) = self.index.insert(x, (to, self.clock)) {
            self.lists[from as usize].remove(&age);
        }
        self.lists[to as usize].insert(self.clock, x);
    }

    fn forget_oldest(&mut self, place: Place) {
        if let Some((_, key)) = self.lists[place as usize].pop_first() {
            self.index.remove(&key);
        }
    }
}

#[test]
fn it_keeps_to_its_size_and_adapts() {
    let mut arc = TextbookArc::new(10);
    // A loop of 4 beside a scan: the loop stays once it was seen twice.
    let mut hits = 0;
    for i in 0..10_000u64 {
        hits += u64::from(arc.request(i % 4));
        arc.request(1000 + i);
        assert!(arc.len(Place::T1) + arc.len(Place::T2) <= 10);
        assert!(arc.index.len() <= 20);
    }
    assert!(hits > 9900, "{hits}");
}
