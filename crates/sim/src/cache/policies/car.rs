//! CAR: Bansal and Modha, "CAR: clock with adaptive replacement" (FAST 2004), figure 2, with the paper's symbols.
//!
//! T1 and T2 are clocks: the hand is at the back of a list, and what it passes goes to the front.

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

/// CAR.
pub struct Car {
    c: usize,
    p: f64,
    /// T1, T2, B1, B2, by `Place`.
    lists: [List; 4],
    links: Links,
    place: Vec<Place>,
    reference: Vec<bool>,
}

impl Car {
    fn len(&self, place: Place) -> usize {
        self.lists[place as usize].len()
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

    /// The subroutine `replace()`: the hands go on until an entry without a reference bit is demoted.
    fn replace(&mut self) {
        loop {
            let (hand, ghosts) = if self.len(Place::T1) as f64 >= self.p.max(1.0) {
                (Place::T1, Place::B1)
            } else {
                (Place::T2, Place::B2)
            };
            let Some(key) = self.lists[hand as usize].back() else { return };
            if !std::mem::take(&mut self.reference[key as usize]) {
                return self.put(key, ghosts);
            }
            self.put(key, Place::T2);
        }
    }

    fn forget_oldest(&mut self, ghosts: Place) {
        if let Some(key) = self.lists[ghosts as usize].back() {
            self.put(key, Place::Nowhere);
        }
    }
}

impl Policy for Car {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            c: capacity,
            p: 0.0,
            lists: [List::new(); 4],
            links: Links::new(keys),
            place: vec![Place::Nowhere; keys],
            reference: vec![false; keys],
        }
    }

    fn access(&mut self, x: u32) -> bool {
        let place = self.place[x as usize];
        if matches!(place, Place::T1 | Place::T2) {
            self.reference[x as usize] = true;
            return true;
        }
        if self.resident() == self.c {
            self.replace();
            if place == Place::Nowhere {
                let l1 = self.len(Place::T1) + self.len(Place::B1);
                let all = l1 + self.len(Place::T2) + self.len(Place::B2);
                if l1 == self.c {
                    self.forget_oldest(Place::B1);
                } else if all == 2 * self.c {
                    self.forget_oldest(Place::B2);
                }
            }
        }
        let (b1, b2) = (self.len(Place::B1) as f64, self.len(Place::B2) as f64);
        match place {
            Place::B1 => self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64),
            Place::B2 => self.p = (self.p - (b1 / b2).max(1.0)).max(0.0),
            _ => {}
        }
        self.put(x, if place == Place::Nowhere { Place::T1 } else { Place::T2 });
        self.reference[x as usize] = false;
        false
    }

    fn resident(&self) -> usize {
        self.len(Place::T1) + self.len(Place::T2)
    }
}
