//! ARC: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003), figure 4, with the paper's
//! symbols. `p` is a real number.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    T1,
    T2,
    B1,
    B2,
    Nowhere,
}

/// ARC.
pub struct Arc {
    c: usize,
    p: f64,
    /// T1, T2, B1, B2, by `Place`.
    lists: [List; 4],
    links: Links,
    place: Vec<Place>,
}

impl Arc {
    fn len(&self, place: Place) -> usize {
        self.lists[place as usize].len()
    }

    /// The target of T1.
    #[cfg(test)]
    pub(super) fn p(&self) -> f64 {
        self.p
    }

    fn put(&mut self, key: u32, to: Place) {
        let from = std::mem::replace(&mut self.place[key as usize], to);
        if from != Place::Nowhere {
            self.links.remove(&mut self.lists[from as usize], key);
        }
        if to != Place::Nowhere {
            self.links.push_front(&mut self.lists[to as usize], key);
        }
    }

    fn put_oldest(&mut self, from: Place, to: Place) {
        if let Some(key) = self.lists[from as usize].back() {
            self.put(key, to);
        }
    }

    /// The subroutine REPLACE(x, p).
    fn replace(&mut self, x_in_b2: bool) {
        let t1 = self.len(Place::T1) as f64;
        if t1 > 0.0 && (t1 > self.p || (x_in_b2 && t1 == self.p)) {
            self.put_oldest(Place::T1, Place::B1);
        } else {
            self.put_oldest(Place::T2, Place::B2);
        }
    }

    /// Case IV: room for a key that is in none of the lists.
    fn make_room(&mut self) {
        let l1 = self.len(Place::T1) + self.len(Place::B1);
        let all = l1 + self.len(Place::T2) + self.len(Place::B2);
        if l1 == self.c {
            if self.len(Place::T1) < self.c {
                self.put_oldest(Place::B1, Place::Nowhere);
                self.replace(false);
            } else {
                self.put_oldest(Place::T1, Place::Nowhere);
            }
        } else if all >= self.c {
            if all == 2 * self.c {
                self.put_oldest(Place::B2, Place::Nowhere);
            }
            self.replace(false);
        }
    }
}

impl Policy for Arc {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            c: capacity,
            p: 0.0,
            lists: [List::new(); 4],
            links: Links::new(keys),
            place: vec![Place::Nowhere; keys],
        }
    }

    fn access(&mut self, x: u32) -> bool {
        let (b1, b2) = (self.len(Place::B1) as f64, self.len(Place::B2) as f64);
        match self.place[x as usize] {
            Place::T1 | Place::T2 => {
                self.put(x, Place::T2);
                return true;
            }
            Place::B1 => {
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
                self.replace(false);
                self.put(x, Place::T2);
            }
            Place::B2 => {
                self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
                self.replace(true);
                self.put(x, Place::T2);
            }
            Place::Nowhere => {
                self.make_room();
                self.put(x, Place::T1);
            }
        }
        false
    }

    fn resident(&self) -> usize {
        self.len(Place::T1) + self.len(Place::T2)
    }
}
