//! CAR: Bansal and Modha, "CAR: clock with adaptive replacement" (FAST 2004), figure 2, with the
//! paper's symbols.
//!
//! T1 and T2 are clocks. The hand is at the back of a list, and passed entries go to the front.

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

/// CAR.
pub struct Car {
    c: usize,
    p: f64,
    /// T1, T2, B1, B2, by `ListId`.
    lists: [List; 4],
    links: Links,
    list_of: Vec<ListId>,
    reference: Vec<bool>,
}

impl Car {
    fn len(&self, list: ListId) -> usize {
        self.lists[list as usize].len()
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

    /// The subroutine `replace()`: advances the hands until an entry without a reference bit is
    /// demoted.
    fn replace(&mut self) {
        loop {
            let (hand, ghosts) = if self.len(ListId::T1) as f64 >= self.p.max(1.0) {
                (ListId::T1, ListId::B1)
            } else {
                (ListId::T2, ListId::B2)
            };
            let Some(key) = self.lists[hand as usize].back() else { return };
            if !std::mem::take(&mut self.reference[key as usize]) {
                return self.put(key, ghosts);
            }
            self.put(key, ListId::T2);
        }
    }

    fn forget_oldest(&mut self, ghosts: ListId) {
        if let Some(key) = self.lists[ghosts as usize].back() {
            self.put(key, ListId::NoList);
        }
    }
}

impl Policy for Car {
    fn new(capacity: usize, keys: usize) -> Self {
        Self {
            c: capacity,
            p: 0.0,
            lists: [List::new(); 4],
            links: Links::new(keys),
            list_of: vec![ListId::NoList; keys],
            reference: vec![false; keys],
        }
    }

    fn access(&mut self, x: u32) -> bool {
        let list = self.list_of[x as usize];
        if matches!(list, ListId::T1 | ListId::T2) {
            self.reference[x as usize] = true;
            return true;
        }
        if self.resident() == self.c {
            self.replace();
            if list == ListId::NoList {
                let l1 = self.len(ListId::T1) + self.len(ListId::B1);
                let all = l1 + self.len(ListId::T2) + self.len(ListId::B2);
                if l1 == self.c {
                    self.forget_oldest(ListId::B1);
                } else if all == 2 * self.c {
                    self.forget_oldest(ListId::B2);
                }
            }
        }
        let (b1, b2) = (self.len(ListId::B1) as f64, self.len(ListId::B2) as f64);
        match list {
            ListId::B1 => self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64),
            ListId::B2 => self.p = (self.p - (b1 / b2).max(1.0)).max(0.0),
            _ => {}
        }
        self.put(x, if list == ListId::NoList { ListId::T1 } else { ListId::T2 });
        self.reference[x as usize] = false;
        false
    }

    fn resident(&self) -> usize {
        self.len(ListId::T1) + self.len(ListId::T2)
    }
}
