//! Reference models of the policies with several lists: the papers' rules on vectors, searched
//! linearly. The most recent key is the last of its vector.

use super::Policy;
use super::arc::Arc;
use super::car::Car;
use super::lfu::Lfu;
use super::lirs::Lirs;
use super::s3_fifo::S3Fifo;
use super::tests::{KEYS, agree, mixed};
use super::two_q::TwoQ;

fn take(list: &mut Vec<u32>, key: u32) -> bool {
    let at = list.iter().position(|k| *k == key);
    at.map(|at| list.remove(at)).is_some()
}

fn pop_first(list: &mut Vec<u32>) -> Option<u32> {
    (!list.is_empty()).then(|| list.remove(0))
}

/// ARC's four lists and `p`.
#[derive(Default)]
struct NaiveArc {
    c: usize,
    p: f64,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl NaiveArc {
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if t1 > 0.0 && (t1 > self.p || (in_b2 && t1 == self.p)) {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.extend(pop_first(&mut self.t2));
        }
    }

    fn request(&mut self, x: u32) -> bool {
        if take(&mut self.t1, x) || take(&mut self.t2, x) {
            self.t2.push(x);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&x) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            self.replace(false);
            take(&mut self.b1, x);
            self.t2.push(x);
        } else if self.b2.contains(&x) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            self.replace(true);
            take(&mut self.b2, x);
            self.t2.push(x);
        } else {
            let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if self.t1.len() + self.b1.len() == self.c {
                if pop_first(&mut self.b1).is_some() {
                    self.replace(false);
                } else {
                    self.t1.remove(0);
                }
            } else if all >= self.c {
                if all == 2 * self.c {
                    self.b2.remove(0);
                }
                self.replace(false);
            }
            self.t1.push(x);
        }
        false
    }
}

#[test]
fn arc_is_its_definition() {
    agree::<Arc>("arc", |c| {
        let mut arc = NaiveArc { c, ..NaiveArc::default() };
        Box::new(move |x| arc.request(x))
    });
    for seed in 0..20 {
        let (mut arc, mut naive) = (Arc::new(13, KEYS), NaiveArc { c: 13, ..NaiveArc::default() });
        for x in mixed(seed, 2000) {
            assert_eq!((arc.access(x), arc.p()), (naive.request(x), naive.p));
        }
    }
}

#[test]
fn car_is_its_definition() {
    agree::<Car>("car", |c| {
        // Clocks with the hand at the beginning, each entry with its reference bit.
        let (mut t1, mut t2): (Vec<(u32, bool)>, Vec<(u32, bool)>) = Default::default();
        let (mut b1, mut b2, mut p): (Vec<u32>, Vec<u32>, f64) = (Vec::new(), Vec::new(), 0.0);
        Box::new(move |x| {
            if let Some(entry) = t1.iter_mut().chain(&mut t2).find(|(k, _)| *k == x) {
                entry.1 = true;
                return true;
            }
            if t1.len() + t2.len() == c {
                loop {
                    let (from_t1, limit) = (t1.len() as f64, p.max(1.0));
                    let (clock, ghosts) =
                        if from_t1 >= limit { (&mut t1, &mut b1) } else { (&mut t2, &mut b2) };
                    let (key, referenced) = clock.remove(0);
                    if !referenced {
                        ghosts.push(key);
                        break;
                    }
                    t2.push((key, false));
                }
                if !b1.contains(&x) && !b2.contains(&x) {
                    if t1.len() + b1.len() == c {
                        b1.remove(0);
                    } else if t1.len() + t2.len() + b1.len() + b2.len() == 2 * c {
                        b2.remove(0);
                    }
                }
            }
            let (n1, n2) = (b1.len() as f64, b2.len() as f64);
            if take(&mut b1, x) {
                p = (p + (n2 / n1).max(1.0)).min(c as f64);
                t2.push((x, false));
            } else if take(&mut b2, x) {
                p = (p - (n1 / n2).max(1.0)).max(0.0);
                t2.push((x, false));
            } else {
                t1.push((x, false));
            }
            false
        })
    });
}

#[test]
fn two_q_is_its_definition() {
    agree::<TwoQ>("2q", |capacity| {
        let (kin, kout) = ((capacity / 4).max(1), (capacity / 2).max(1));
        let (mut a1in, mut a1out, mut am): (Vec<u32>, Vec<u32>, Vec<u32>) = Default::default();
        Box::new(move |x| {
            if take(&mut am, x) {
                am.push(x);
                return true;
            }
            if a1in.contains(&x) {
                return true;
            }
            let remembered = take(&mut a1out, x);
            if a1in.len() + am.len() == capacity {
                if a1in.len() > kin || am.is_empty() {
                    a1out.push(a1in.remove(0));
                    if a1out.len() > kout {
                        a1out.remove(0);
                    }
                } else {
                    am.remove(0);
                }
            }
            if remembered {
                am.push(x)
            } else {
                a1in.push(x)
            }
            false
        })
    });
}

#[test]
fn s3_fifo_is_its_definition() {
    agree::<S3Fifo>("s3-fifo", |capacity| {
        let target = (capacity / 10).max(1);
        let ghosts = (capacity - target).max(1);
        let (mut small, mut main): (Vec<(u32, u8)>, Vec<(u32, u8)>) = Default::default();
        let mut ghost: Vec<u32> = Vec::new();
        Box::new(move |x| {
            if let Some(entry) = small.iter_mut().chain(&mut main).find(|(k, _)| *k == x) {
                entry.1 = (entry.1 + 1).min(3);
                return true;
            }
            let remembered = take(&mut ghost, x);
            while small.len() + main.len() >= capacity {
                let from_small = small.len() >= target || main.is_empty();
                let (key, uses) = if from_small { small.remove(0) } else { main.remove(0) };
                match (from_small, uses) {
                    (true, 2..) => main.push((key, 0)),
                    (true, _) => {
                        ghost.push(key);
                        if ghost.len() > ghosts {
                            ghost.remove(0);
                        }
                    }
                    (false, 1..) => main.push((key, uses - 1)),
                    (false, 0) => {}
                }
            }
            let list = if remembered { &mut main } else { &mut small };
            list.push((x, 0));
            false
        })
    });
}

#[test]
fn lfu_is_its_definition() {
    agree::<Lfu>("lfu", |capacity| {
        // Key, uses, last use.
        let (mut entries, mut now): (Vec<(u32, u64, u64)>, u64) = (Vec::new(), 0);
        Box::new(move |x| {
            now += 1;
            if let Some(entry) = entries.iter_mut().find(|(k, ..)| *k == x) {
                (entry.1, entry.2) = (entry.1 + 1, now);
                return true;
            }
            if entries.len() == capacity {
                let least = (0..capacity).min_by_key(|i| (entries[*i].1, entries[*i].2)).unwrap();
                entries.remove(least);
            }
            entries.push((x, 1, now));
            false
        })
    });
}

/// LIRS by its definition: statuses and one recency order, nothing derived is stored.
struct NaiveLirs {
    capacity: usize,
    hirs: usize,
    /// S, the bottom first.
    stack: Vec<u32>,
    lir: Vec<u32>,
    /// Q, the next victim first.
    queue: Vec<u32>,
    /// Keys in the order of their evictions.
    left: Vec<u32>,
}

impl NaiveLirs {
    fn prune(&mut self) {
        while self.stack.first().is_some_and(|key| !self.lir.contains(key)) {
            self.stack.remove(0);
        }
    }

    fn demote(&mut self) {
        if let Some(bottom) = pop_first(&mut self.stack) {
            take(&mut self.lir, bottom);
            self.queue.push(bottom);
            self.prune();
        }
    }

    fn request(&mut self, x: u32) -> bool {
        if self.lir.contains(&x) {
            take(&mut self.stack, x);
            self.stack.push(x);
            self.prune();
            return true;
        }
        let hit = take(&mut self.queue, x);
        if !hit && self.lir.len() + self.queue.len() == self.capacity {
            self.left.extend(pop_first(&mut self.queue));
        }
        let low = take(&mut self.stack, x);
        self.stack.push(x);
        let filling = !hit && self.lir.len() < self.capacity - self.hirs;
        if low && self.capacity > 1 || filling {
            self.lir.push(x);
            if self.lir.len() > self.capacity - self.hirs {
                self.demote();
            }
        } else {
            self.queue.push(x);
        }
        if !hit {
            while self.stack.len() > 3 * self.capacity {
                let here = |key: &u32| self.lir.contains(key) || self.queue.contains(key);
                let in_stack = |key: &&u32| self.stack.contains(key) && !here(key);
                // A key may have been evicted several times: its last eviction counts.
                self.left = {
                    let last = |i: usize| !self.left[i + 1..].contains(&self.left[i]);
                    (0..self.left.len()).filter(|i| last(*i)).map(|i| self.left[i]).collect()
                };
                let Some(oldest) = self.left.iter().find(in_stack).copied() else { break };
                take(&mut self.stack, oldest);
            }
        }
        hit
    }
}

#[test]
fn lirs_is_its_definition() {
    agree::<Lirs>("lirs", |capacity| {
        let (stack, lir, queue, left) = Default::default();
        let hirs = (capacity / 100).max(2).min((capacity - 1).max(1));
        let mut naive = NaiveLirs { capacity, hirs, stack, lir, queue, left };
        Box::new(move |x| naive.request(x))
    });
}
