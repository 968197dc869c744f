//! LFU without history: evicts the entry with the fewest uses since its insertion, and of several
//! the least recently used one. Evicted keys are forgotten.

use super::Policy;
use super::lists::{Links, List};

/// LFU.
pub struct Lfu {
    capacity: usize,
    /// Entries by number of uses, up to the largest number in use.
    by_uses: Vec<List>,
    links: Links,
    /// Uses of each key since its insertion; zero if it is not resident.
    uses: Vec<u32>,
    least: usize,
    len: usize,
}

impl Lfu {
    fn count(&mut self, key: u32) {
        self.uses[key as usize] += 1;
        let uses = self.uses[key as usize] as usize;
        if self.by_uses.len() <= uses {
            self.by_uses.resize(uses + 1, List::new());
        }
        self.links.push_front(&mut self.by_uses[uses], key);
    }
}

impl Policy for Lfu {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            by_uses: vec![List::new(); 2],
            links: Links::new(keys),
            uses: vec![0; keys],
            least: 1,
            len: 0,
        }
    }

    fn access(&mut self, key: u32) -> bool {
        let uses = self.uses[key as usize] as usize;
        if uses > 0 {
            self.links.remove(&mut self.by_uses[uses], key);
            if uses == self.least && self.by_uses[uses].len() == 0 {
                // It was the only entry with the least number of uses, and gets one more.
                self.least += 1;
            }
            self.count(key);
            return true;
        }
        if self.len == self.capacity
            && let Some(victim) = self.links.pop_back(&mut self.by_uses[self.least])
        {
            self.uses[victim as usize] = 0;
            self.len -= 1;
        }
        self.count(key);
        self.least = 1;
        self.len += 1;
        false
    }

    fn resident(&self) -> usize {
        self.len
    }
}
