//! ARC: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003), figure
//! 4, with the paper's symbols. `p` is a real number.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListId {
    T1,
    T2,
    B1,
    B2,
    NoList,
}

/// ARC.
pub struct Arc {
    c: usize,
    p: f64,
    /// T1, T2, B1, B2, by `ListId`.
    lists: [List; 4],
    links: Links,
    list_of: Vec<ListId>,
}

impl Arc {
    fn len(&self, list: ListId) -> usize {
        self.lists[list as usize].len()
    }

    /// The target of T1.
    #[cfg(test)]
    pub(super) fn p(&self) -> f64 {
        self.p
    }

    fn put(&mut self, key: u32, to: ListId) {
        let from = std::mem::replace(&mut self.list_of[key as usize], to);
        if from != ListId::NoList {
            self.links.remove(&mut self.lists[from as usize], key);
        }
        if to != ListId::NoList {
            self.links.push_front(&mut self.lists[to as usize], key);
        }
    }

    fn put_oldest(&mut self, from: ListId, to: ListId) {
        if let Some(key) = self.lists[from as usize].back() {
            self.put(key, to);
        }
    }

    /// The subroutine REPLACE(x, p).
    fn replace(&mut self, x_in_b2: bool) {
        let t1 = self.len(ListId::T1) as f64;
        if t1 > 0.0 && (t1 > self.p || (x_in_b2 && t1 == self.p)) {
            self.put_oldest(ListId::T1, ListId::B1);
        } else {
            self.put_oldest(ListId::T2, ListId::B2);
        }
    }

    /// Case IV: makes space for a key that is in no list.
    fn evict_for_miss(&mut self) {
        let l1 = self.len(ListId::T1) + self.len(ListId::B1);
        let all = l1 + self.len(ListId::T2) + self.len(ListId::B2);
        if l1 == self.c {
            if self.len(ListId::T1) < self.c {
                self.put_oldest(ListId::B1, ListId::NoList);
                self.replace(false);
            } else {
                self.put_oldest(ListId::T1, ListId::NoList);
            }
        } else if all >= self.c {
            if all == 2 * self.c {
                self.put_oldest(ListId::B2, ListId::NoList);
            }
            self.replace(false);
        }
    }
}

impl Policy for Arc {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            c: capacity,
            p: 0.0,
            lists: [List::new(); 4],
            links: Links::new(keys),
            list_of: vec![ListId::NoList; keys],
        }
    }

    fn access(&mut self, x: u32) -> bool {
        let (b1, b2) = (self.len(ListId::B1) as f64, self.len(ListId::B2) as f64);
        match self.list_of[x as usize] {
            ListId::T1 | ListId::T2 => {
                self.put(x, ListId::T2);
                return true;
            }
            ListId::B1 => {
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
                self.replace(false);
                self.put(x, ListId::T2);
            }
            ListId::B2 => {
                self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
                self.replace(true);
                self.put(x, ListId::T2);
            }
            ListId::NoList => {
                self.evict_for_miss();
                self.put(x, ListId::T1);
            }
        }
        false
    }

    fn resident(&self) -> usize {
        self.len(ListId::T1) + self.len(ListId::T2)
    }
}
