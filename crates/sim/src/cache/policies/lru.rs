//! The entry that was used longest ago goes.

use super::Policy;
use super::lists::{Links, List};

/// LRU.
pub struct Lru {
    capacity: usize,
    list: List,
    links: Links,
    here: Vec<bool>,
}

impl Policy for Lru {
    fn new(capacity: usize, keys: usize) -> Self {
        Self { capacity, list: List::new(), links: Links::new(keys), here: vec![false; keys] }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.here[key as usize] {
            self.links.move_to_front(&mut self.list, key);
            return true;
        }
        if self.list.len() == self.capacity
            && let Some(oldest) = self.links.pop_back(&mut self.list)
        {
            self.here[oldest as usize] = false;
        }
        self.links.push_front(&mut self.list, key);
        self.here[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.list.len()
    }
}
