//! 2Q, full version: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
//! algorithm" (VLDB 1994), with the paper's names and its advice for sizes.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    A1in,
    A1out,
    Am,
}

/// 2Q.
pub struct TwoQ {
    capacity: usize,
    /// Entries that A1in is meant to have: a quarter of the cache.
    kin: usize,
    /// Keys that A1out remembers: as many as half of the cache has entries.
    kout: usize,
    a1in: List,
    a1out: List,
    am: List,
    links: Links,
    place: Vec<Place>,
}

impl TwoQ {
    /// The paper's `reclaimfor`, if there is no free slot.
    fn make_room(&mut self) {
        if self.resident() < self.capacity {
            return;
        }
        if (self.a1in.len() > self.kin || self.am.len() == 0)
            && let Some(oldest) = self.links.pop_back(&mut self.a1in)
        {
            self.links.push_front(&mut self.a1out, oldest);
            self.place[oldest as usize] = Place::A1out;
            if self.a1out.len() > self.kout
                && let Some(forgotten) = self.links.pop_back(&mut self.a1out)
            {
                self.place[forgotten as usize] = Place::Nowhere;
            }
        } else if let Some(oldest) = self.links.pop_back(&mut self.am) {
            // Not into A1out: it has not been used for long.
            self.place[oldest as usize] = Place::Nowhere;
        }
    }
}

impl Policy for TwoQ {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            kin: (capacity / 4).max(1),
            kout: (capacity / 2).max(1),
            a1in: List::new(),
            a1out: List::new(),
            am: List::new(),
            links: Links::new(keys),
            place: vec![Place::Nowhere; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        match self.place[key as usize] {
            Place::Am => {
                self.links.move_to_front(&mut self.am, key);
                true
            }
            Place::A1in => true,
            Place::A1out => {
                // First, since making room might forget it.
                self.links.remove(&mut self.a1out, key);
                self.make_room();
                self.links.push_front(&mut self.am, key);
                self.place[key as usize] = Place::Am;
                false
            }
            Place::Nowhere => {
                self.make_room();
                self.links.push_front(&mut self.a1in, key);
                self.place[key as usize] = Place::A1in;
                false
            }
        }
    }

    fn resident(&self) -> usize {
        self.a1in.len() + self.am.len()
    }
}
