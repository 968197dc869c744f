//! FIFO: evicts the entry that was inserted first.

use super::Policy;
use super::lists::{Links, List};

/// FIFO.
pub struct Fifo {
    capacity: usize,
    queue: List,
    links: Links,
    is_resident: Vec<bool>,
}

impl Policy for Fifo {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            queue: List::new(),
            links: Links::new(keys),
            is_resident: vec![false; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.is_resident[key as usize] {
            return true;
        }
        if self.queue.len() == self.capacity
            && let Some(oldest) = self.links.pop_back(&mut self.queue)
        {
            self.is_resident[oldest as usize] = false;
        }
        self.links.push_front(&mut self.queue, key);
        self.is_resident[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.queue.len()
    }
}
