//! LRU: evicts the entry that was used least recently.

use super::Policy;
use super::lists::{Links, List};

/// LRU.
pub struct Lru {
    capacity: usize,
    list: List,
    links: Links,
    is_resident: Vec<bool>,
}

impl Policy for Lru {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            list: List::new(),
            links: Links::new(keys),
            is_resident: vec![false; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.is_resident[key as usize] {
            self.links.move_to_front(&mut self.list, key);
            return true;
        }
        if self.list.len() == self.capacity
            && let Some(oldest) = self.links.pop_back(&mut self.list)
        {
            self.is_resident[oldest as usize] = false;
        }
        self.links.push_front(&mut self.list, key);
        self.is_resident[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.list.len()
    }
}
