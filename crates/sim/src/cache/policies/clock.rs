//! CLOCK, or second chance, with one bit: Corbató, "A paging experiment with the Multics system" (1968).
//!
//! The circle is a queue: the hand is at its back, and what it passes goes to the front.

use super::Policy;
use super::lists::{Links, List};

/// CLOCK.
pub struct Clock {
    capacity: usize,
    circle: List,
    links: Links,
    here: Vec<bool>,
    used: Vec<bool>,
}

impl Policy for Clock {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            capacity,
            circle: List::new(),
            links: Links::new(keys),
            here: vec![false; keys],
            used: vec![false; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        if self.here[key as usize] {
            self.used[key as usize] = true;
            return true;
        }
        while self.circle.len() == self.capacity
            && let Some(under_hand) = self.links.pop_back(&mut self.circle)
        {
            if std::mem::take(&mut self.used[under_hand as usize]) {
                self.links.push_front(&mut self.circle, under_hand);
            } else {
                self.here[under_hand as usize] = false;
            }
        }
        self.links.push_front(&mut self.circle, key);
        self.here[key as usize] = true;
        false
    }

    fn resident(&self) -> usize {
        self.circle.len()
    }
}
