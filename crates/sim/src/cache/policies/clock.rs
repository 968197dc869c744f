//! CLOCK, or second chance, with one bit: Corbató, "A paging experiment with the Multics system"
//! (1968).
//!
//! The circle is a queue. The hand is at its back, and passed entries go to the front.

use super::Policy;
use super::lists::{Links, List};

/// CLOCK.
pub struct Clock {
    capacity: usize,
    circle: List,
    links: Links,
    is_resident: Vec<bool>,
    used: Vec<bool>,
}

impl Policy for Clock {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            circle: List::new(),
            links: Links::new(keys),
            is_resident: vec![false; keys],
            used: vec![false; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.is_resident[key as usize] {
            self.used[key as usize] = true;
            return true;
        }
        while self.circle.len() == self.capacity
            && let Some(under_hand) = self.links.pop_back(&mut self.circle)
        {
            if std::mem::take(&mut self.used[under_hand as usize]) {
                self.links.push_front(&mut self.circle, under_hand);
            } else {
                self.is_resident[under_hand as usize] = false;
            }
        }
        self.links.push_front(&mut self.circle, key);
        self.is_resident[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.circle.len()
    }
}
