//! LIRS: Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy"
//! (SIGMETRICS 2002), with the paper's names.
//!
//! Departure from the paper: it leaves the number of non-resident entries in the stack S unbounded.
//! Here S has at most `STACK_FACTOR` times as many keys as the cache has entries. Beyond that the
//! oldest non-resident key is forgotten.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Low inter-reference recency: protected.
    Lir,
    /// High inter-reference recency, resident.
    Hir,
    /// High inter-reference recency, at most remembered in S.
    NonResident,
}

/// Largest size of S as a multiple of the cache: its entries, and non-resident keys of two caches.
const STACK_FACTOR: usize = 3;
/// Least number of resident HIR entries, if the cache is larger. One entry leaves no choice of
/// victim.
const MIN_HIRS: usize = 2;

/// LIRS.
pub struct Lirs {
    /// Target number of LIR entries: all but a hundredth of the cache.
    lirs: usize,
    /// Target number of resident HIR entries.
    hirs: usize,
    lir_count: usize,
    /// S: ordered by recency, the most recent at the front, a LIR entry at the back.
    stack: List,
    in_stack: Vec<bool>,
    stack_links: Links,
    /// Q: resident HIR entries, the next victim at the back.
    queue: List,
    queue_links: Links,
    /// Non-resident keys of S, the oldest at the back.
    non_resident: List,
    non_resident_links: Links,
    status: Vec<Status>,
}

impl Lirs {
    fn push_on_stack(&mut self, key: u32) {
        self.remove_from_stack(key);
        self.stack_links.push_front(&mut self.stack, key);
        self.in_stack[key as usize] = true;
    }

    fn remove_from_stack(&mut self, key: u32) {
        if std::mem::take(&mut self.in_stack[key as usize]) {
            self.stack_links.remove(&mut self.stack, key);
        }
    }

    /// Stack pruning: removes HIR entries from the bottom of S until a LIR entry is there.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.back() {
            match self.status[bottom as usize] {
                Status::Lir => return,
                Status::Hir => {}
                Status::NonResident => {
                    self.non_resident_links.remove(&mut self.non_resident, bottom)
                }
            }
            self.remove_from_stack(bottom);
        }
    }

    /// Turns the LIR entry at the bottom of S into a resident HIR entry.
    fn demote_bottom(&mut self) {
        let Some(bottom) = self.stack.back() else { return };
        self.remove_from_stack(bottom);
        self.status[bottom as usize] = Status::Hir;
        self.lir_count -= 1;
        self.queue_links.push_front(&mut self.queue, bottom);
        self.prune();
    }

    /// Evicts the resident HIR entry at the end of Q. S may remember it.
    fn evict(&mut self) {
        let Some(victim) = self.queue_links.pop_back(&mut self.queue) else { return };
        self.status[victim as usize] = Status::NonResident;
        if self.in_stack[victim as usize] {
            self.non_resident_links.push_front(&mut self.non_resident, victim);
        }
    }

    fn bound_stack(&mut self) {
        while self.stack.len() > STACK_FACTOR * (self.lirs + self.hirs)
            && let Some(oldest) = self.non_resident_links.pop_back(&mut self.non_resident)
        {
            self.remove_from_stack(oldest);
        }
    }

    fn hit_lir(&mut self, key: u32) {
        let was_bottom = self.stack.back() == Some(key);
        self.push_on_stack(key);
        if was_bottom {
            self.prune();
        }
    }

    fn hit_hir(&mut self, key: u32) {
        self.queue_links.remove(&mut self.queue, key);
        if self.in_stack[key as usize] && self.lirs > 0 {
            self.status[key as usize] = Status::Lir;
            self.lir_count += 1;
            self.push_on_stack(key);
            self.demote_bottom();
        } else {
            self.queue_links.push_front(&mut self.queue, key);
            self.push_on_stack(key);
        }
    }

    fn miss(&mut self, key: u32) {
        if self.resident() >= self.lirs + self.hirs {
            self.evict();
        }
        let remembered = self.in_stack[key as usize];
        if remembered {
            self.non_resident_links.remove(&mut self.non_resident, key);
        }
        self.push_on_stack(key);
        // While the cache fills, the first entries are LIR.
        if (remembered && self.lirs > 0) || self.lir_count < self.lirs {
            self.status[key as usize] = Status::Lir;
            self.lir_count += 1;
            if self.lir_count > self.lirs {
                self.demote_bottom();
            }
        } else {
            self.status[key as usize] = Status::Hir;
            self.queue_links.push_front(&mut self.queue, key);
        }
        self.bound_stack();
    }
}

impl Policy for Lirs {
    fn new(capacity: usize, keys: usize) -> Self {
        // A cache of several entries has at least one LIR entry. A cache of one entry has none and
        // is LRU.
        let hirs = (capacity / 100).max(MIN_HIRS).min((capacity - 1).max(1));
        Self {
            lirs: capacity - hirs,
            hirs,
            lir_count: 0,
            stack: List::new(),
            in_stack: vec![false; keys],
            stack_links: Links::new(keys),
            queue: List::new(),
            queue_links: Links::new(keys),
            non_resident: List::new(),
            non_resident_links: Links::new(keys),
            status: vec![Status::NonResident; keys],
        }
    }

    fn access(&mut self, key: u32) -> bool {
        match self.status[key as usize] {
            Status::Lir => self.hit_lir(key),
            Status::Hir => self.hit_hir(key),
            Status::NonResident => {
                self.miss(key);
                return false;
            }
        }
        true
    }

    fn resident(&self) -> usize {
        self.lir_count + self.queue.len()
    }
}
