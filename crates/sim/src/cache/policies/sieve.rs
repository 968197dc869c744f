//! SIEVE: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU" (NSDI 2024).
//!
//! A queue in which entries do not move. The hand goes from the back to the front, clears marks,
//! and evicts the first unmarked entry. The next search continues there. New entries enter at the
//! front.

use super::Policy;
use super::lists::{Links, List};

/// SIEVE.
pub struct Sieve {
    capacity: usize,
    queue: List,
    links: Links,
    /// Start of the next search; the back of the queue if none.
    hand: Option<u32>,
    is_resident: Vec<bool>,
    visited: Vec<bool>,
}

impl Sieve {
    fn evict(&mut self) {
        let Some(mut at) = self.hand.or(self.queue.back()) else { return };
        while std::mem::take(&mut self.visited[at as usize]) {
            at = self.links.toward_front(at).or(self.queue.back()).unwrap_or(at);
        }
        self.hand = self.links.toward_front(at);
        self.links.remove(&mut self.queue, at);
        self.is_resident[at as usize] = false;
    }
}

impl Policy for Sieve {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            queue: List::new(),
            links: Links::new(keys),
            hand: None,
            is_resident: vec![false; keys],
            visited: vec![false; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.is_resident[key as usize] {
            self.visited[key as usize] = true;
            return true;
        }
        if self.queue.len() == self.capacity {
            self.evict();
        }
        self.links.push_front(&mut self.queue, key);
        self.is_resident[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.queue.len()
    }
}
