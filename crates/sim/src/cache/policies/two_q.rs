//! 2Q, full version: Johnson and Shasha, "2Q: a low overhead high performance buffer management
//! replacement algorithm" (VLDB 1994), with the paper's names and recommended sizes.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListId {
    NoList,
    A1in,
    A1out,
    Am,
}

/// 2Q.
pub struct TwoQ {
    capacity: usize,
    /// Target size of A1in: a quarter of the cache.
    kin: usize,
    /// Keys that A1out remembers: half as many as the cache has entries.
    kout: usize,
    a1in: List,
    a1out: List,
    am: List,
    links: Links,
    list_of: Vec<ListId>,
}

impl TwoQ {
    /// The paper's `reclaimfor`: frees a slot if there is none.
    fn reclaim_for(&mut self) {
        if self.resident() < self.capacity {
            return;
        }
        if (self.a1in.len() > self.kin || self.am.len() == 0)
            && let Some(oldest) = self.links.pop_back(&mut self.a1in)
        {
            self.links.push_front(&mut self.a1out, oldest);
            self.list_of[oldest as usize] = ListId::A1out;
            if self.a1out.len() > self.kout
                && let Some(forgotten) = self.links.pop_back(&mut self.a1out)
            {
                self.list_of[forgotten as usize] = ListId::NoList;
            }
        } else if let Some(oldest) = self.links.pop_back(&mut self.am) {
            // Not into A1out: it has not been used for a long time.
            self.list_of[oldest as usize] = ListId::NoList;
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
            list_of: vec![ListId::NoList; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        match self.list_of[key as usize] {
            ListId::Am => {
                self.links.move_to_front(&mut self.am, key);
                true
            }
            ListId::A1in => true,
            ListId::A1out => {
                // Removed first, because `reclaim_for` might forget it.
                self.links.remove(&mut self.a1out, key);
                self.reclaim_for();
                self.links.push_front(&mut self.am, key);
                self.list_of[key as usize] = ListId::Am;
                false
            }
            ListId::NoList => {
                self.reclaim_for();
                self.links.push_front(&mut self.a1in, key);
                self.list_of[key as usize] = ListId::A1in;
                false
            }
        }
    }

    fn resident(&self) -> usize {
        self.a1in.len() + self.am.len()
    }
}
