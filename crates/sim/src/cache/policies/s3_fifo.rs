//! S3-FIFO: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction" (SOSP
//! 2023), algorithm 1, with the paper's names and sizes.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListId {
    NoList,
    Small,
    Main,
    Ghost,
}

/// Largest count of uses: two bits.
const MAX_USES: u8 = 3;

/// S3-FIFO.
pub struct S3Fifo {
    capacity: usize,
    /// Target size of S: a tenth of the cache.
    small_target: usize,
    /// Keys that G remembers: as many as M has entries.
    ghosts: usize,
    small: List,
    main: List,
    ghost: List,
    links: Links,
    list_of: Vec<ListId>,
    uses: Vec<u8>,
}

impl S3Fifo {
    fn evict(&mut self) {
        if self.small.len() >= self.small_target || self.main.len() == 0 {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    /// EVICTS: moves the oldest entry of S to M if it was used more than once, else to G. The
    /// caller then chooses the queue again.
    fn evict_small(&mut self) {
        let Some(key) = self.links.pop_back(&mut self.small) else { return };
        if self.uses[key as usize] > 1 {
            self.uses[key as usize] = 0;
            self.links.push_front(&mut self.main, key);
            self.list_of[key as usize] = ListId::Main;
            return;
        }
        if self.ghost.len() == self.ghosts
            && let Some(forgotten) = self.links.pop_back(&mut self.ghost)
        {
            self.list_of[forgotten as usize] = ListId::NoList;
        }
        self.links.push_front(&mut self.ghost, key);
        self.list_of[key as usize] = ListId::Ghost;
    }

    /// EVICTM: an entry gets a second chance for each counted use.
    fn evict_main(&mut self) {
        while let Some(key) = self.links.pop_back(&mut self.main) {
            if self.uses[key as usize] == 0 {
                self.list_of[key as usize] = ListId::NoList;
                return;
            }
            self.uses[key as usize] -= 1;
            self.links.push_front(&mut self.main, key);
        }
    }
}

impl Policy for S3Fifo {
    fn new(capacity: usize, keys: usize) -> Self {
        let small_target = (capacity / 10).max(1);
        Self {
            capacity,
            small_target,
            ghosts: (capacity - small_target).max(1),
            small: List::new(),
            main: List::new(),
            ghost: List::new(),
            links: Links::new(keys),
            list_of: vec![ListId::NoList; keys],
            uses: vec![0; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        let uses = &mut self.uses[key as usize];
        if matches!(self.list_of[key as usize], ListId::Small | ListId::Main) {
            *uses = (*uses + 1).min(MAX_USES);
            return true;
        }
        // Removed before the eviction, which might forget it.
        let remembered = self.list_of[key as usize] == ListId::Ghost;
        if remembered {
            self.links.remove(&mut self.ghost, key);
        }
        while self.resident() >= self.capacity {
            self.evict();
        }
        let (list, id) = match remembered {
            true => (&mut self.main, ListId::Main),
            false => (&mut self.small, ListId::Small),
        };
        self.links.push_front(list, key);
        self.list_of[key as usize] = id;
        self.uses[key as usize] = 0;
        false
    }

    fn resident(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
