//! W-TinyLFU: Einziger, Friedman, Manes, "TinyLFU: a highly efficient cache admission policy" (ACM Transactions on Storage
//! 2017), with a window of a fixed share.
//!
//! New entries pass an LRU window. Whoever leaves it competes with the victim of the main part, a segmented LRU:
//! the one that was used more often, by an approximate count of all accesses, stays. The count is a sketch of
//! small counters, all of which are halved now and then, so that it forgets.
//!
//! The paper leaves width and hashes of the sketch open: by them implementations differ by up to a point of hit ratio in
//! small caches. The variant that adapts the window's share ("adaptive cache management", 2018) is not here.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Window,
    Probation,
    Protected,
}

/// W-TinyLFU.
pub struct WTinyLfu {
    /// Entries of the window: a hundredth of the cache.
    window_most: usize,
    /// Entries of the main part.
    main_most: usize,
    /// Entries of its protected segment: four fifths of it.
    protected_most: usize,
    window: List,
    probation: List,
    protected: List,
    links: Links,
    place: Vec<Place>,
    sketch: Sketch,
}

impl WTinyLfu {
    fn main_len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    fn put_on_probation(&mut self, key: u32) {
        self.links.push_front(&mut self.probation, key);
        self.place[key as usize] = Place::Probation;
    }

    /// A hit in probation: the entry is protected, and the oldest protected one beyond the share is no longer.
    fn protect(&mut self, key: u32) {
        self.links.remove(&mut self.probation, key);
        self.links.push_front(&mut self.protected, key);
        self.place[key as usize] = Place::Protected;
        if self.protected.len() > self.protected_most
            && let Some(oldest) = self.links.pop_back(&mut self.protected)
        {
            self.put_on_probation(oldest);
        }
    }

    /// The oldest of the window moves on, if there is room or it is worth more than the main part's victim.
    fn pass_on(&mut self) {
        let Some(candidate) = self.links.pop_back(&mut self.window) else { return };
        if self.main_len() < self.main_most {
            return self.put_on_probation(candidate);
        }
        let from_probation = self.probation.back();
        let Some(victim) = from_probation.or(self.protected.back()) else {
            // A cache of one entry has no main part.
            self.place[candidate as usize] = Place::Nowhere;
            return;
        };
        if self.sketch.estimate(candidate) > self.sketch.estimate(victim) {
            let segment =
                if from_probation.is_some() { &mut self.probation } else { &mut self.protected };
            self.links.remove(segment, victim);
            self.place[victim as usize] = Place::Nowhere;
            self.put_on_probation(candidate);
        } else {
            self.place[candidate as usize] = Place::Nowhere;
        }
    }
}

impl Policy for WTinyLfu {
    fn new(capacity: usize, keys: usize) -> Self {
        let window_most = (capacity / 100).max(1);
        let main_most = capacity - window_most;
        Self {
            window_most,
            main_most,
            protected_most: main_most * 4 / 5,
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            links: Links::new(keys),
            place: vec![Place::Nowhere; keys],
            sketch: Sketch::new(capacity),
        }
    }

    fn access(&mut self, key: u32) -> bool {
        self.sketch.count(key);
        match self.place[key as usize] {
            Place::Window => self.links.move_to_front(&mut self.window, key),
            Place::Probation => self.protect(key),
            Place::Protected => self.links.move_to_front(&mut self.protected, key),
            Place::Nowhere => {
                self.links.push_front(&mut self.window, key);
                self.place[key as usize] = Place::Window;
                if self.window.len() > self.window_most {
                    self.pass_on();
                }
                return false;
            }
        }
        true
    }

    fn resident(&self) -> usize {
        self.window.len() + self.main_len()
    }
}

/// A count-min sketch of counters of four bits (here a byte each), all of which are halved after a number of counts.
struct Sketch {
    rows: [Vec<u8>; ROWS],
    mask: u64,
    counted: usize,
    /// After so many counts all counters are halved.
    period: usize,
}

const ROWS: usize = 4;
const MOST: u8 = 15;
/// Counters of a row for each entry of the cache, at least.
const WIDTH_FACTOR: usize = 8;
/// Counts between two halvings for each entry of the cache.
const PERIOD_FACTOR: usize = 10;
/// Odd numbers by which the rows' hashes multiply.
const MULTIPLIERS: [u64; ROWS] =
    [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0xd6e8_feb8_6659_fd93];

impl Sketch {
    fn new(capacity: usize) -> Self {
        let width = (capacity * WIDTH_FACTOR).next_power_of_two();
        Self {
            rows: std::array::from_fn(|_| vec![0; width]),
            mask: width as u64 - 1,
            counted: 0,
            period: (capacity * PERIOD_FACTOR).max(1),
        }
    }

    fn place(&self, row: usize, key: u32) -> usize {
        let mixed = (u64::from(key) + 1).wrapping_mul(MULTIPLIERS[row]);
        ((mixed ^ mixed >> 32).wrapping_mul(MULTIPLIERS[row]) >> 32 & self.mask) as usize
    }

    fn count(&mut self, key: u32) {
        for row in 0..ROWS {
            let place = self.place(row, key);
            let counter = &mut self.rows[row][place];
            *counter = (*counter + 1).min(MOST);
        }
        self.counted += 1;
        if self.counted == self.period {
            self.rows.iter_mut().flatten().for_each(|counter| *counter /= 2);
            self.counted /= 2;
        }
    }

    fn estimate(&self, key: u32) -> u8 {
        (0..ROWS).map(|row| self.rows[row][self.place(row, key)]).min().unwrap_or(0)
    }
}
