//! First in, first out: the entry that came longest ago goes, whether it was used or not.

use super::Policy;
use super::lists::{Links, List};

/// FIFO.
pub struct Fifo {
    capacity: usize,
    queue: List,
    links: Links,
    here: Vec<bool>,
}

impl Policy for Fifo {
    fn new(capacity: usize, keys: usize) -> Self {
        Self { capacity, queue: List::new(), links: Links::new(keys), here: vec![false; keys] }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.here[key as usize] {
            return true;
        }
        if self.queue.len() == self.capacity
            && let Some(oldest) = self.links.pop_back(&mut self.queue)
        {
            self.here[oldest as usize] = false;
        }
        self.links.push_front(&mut self.queue, key);
        self.here[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.queue.len()
    }
}
