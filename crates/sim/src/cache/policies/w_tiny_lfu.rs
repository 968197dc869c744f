//! W-TinyLFU: Einziger, Friedman, Manes, "TinyLFU: a highly efficient cache admission policy" (ACM
//! Transactions on Storage 2017), with a fixed window.
//!
//! New entries pass an LRU window. An entry that leaves it is a candidate for the main region, a
//! segmented LRU. It is admitted if it was used more often than the region's victim, by an
//! approximate count of all accesses. The count is a sketch of small counters, which are halved
//! periodically.
//!
//! The paper leaves width and hashes of the sketch open; implementations differ by up to a point of
//! hit ratio in small caches. The adaptive window ("adaptive cache management", 2018) is not
//! implemented.

use super::Policy;
use super::lists::{Links, List};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListId {
    NoList,
    Window,
    Probation,
    Protected,
}

/// W-TinyLFU.
pub struct WTinyLfu {
    /// Size of the window: a hundredth of the cache.
    window_max: usize,
    /// Size of the main region.
    main_max: usize,
    /// Size of its protected segment: four fifths.
    protected_max: usize,
    window: List,
    probation: List,
    protected: List,
    links: Links,
    list_of: Vec<ListId>,
    sketch: Sketch,
}

impl WTinyLfu {
    fn main_len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    fn insert_into_probation(&mut self, key: u32) {
        self.links.push_front(&mut self.probation, key);
        self.list_of[key as usize] = ListId::Probation;
    }

    /// Promotes an entry from probation, and demotes the oldest protected entry beyond the
    /// segment's size.
    fn protect(&mut self, key: u32) {
        self.links.remove(&mut self.probation, key);
        self.links.push_front(&mut self.protected, key);
        self.list_of[key as usize] = ListId::Protected;
        if self.protected.len() > self.protected_max
            && let Some(oldest) = self.links.pop_back(&mut self.protected)
        {
            self.insert_into_probation(oldest);
        }
    }

    /// Moves the window's oldest entry to the main region if there is space or it beats the victim.
    fn admit_candidate(&mut self) {
        let Some(candidate) = self.links.pop_back(&mut self.window) else { return };
        if self.main_len() < self.main_max {
            return self.insert_into_probation(candidate);
        }
        let from_probation = self.probation.back();
        let Some(victim) = from_probation.or(self.protected.back()) else {
            // A cache of one entry has no main region.
            self.list_of[candidate as usize] = ListId::NoList;
            return;
        };
        if self.sketch.estimate(candidate) > self.sketch.estimate(victim) {
            let segment =
                if from_probation.is_some() { &mut self.probation } else { &mut self.protected };
            self.links.remove(segment, victim);
            self.list_of[victim as usize] = ListId::NoList;
            self.insert_into_probation(candidate);
        } else {
            self.list_of[candidate as usize] = ListId::NoList;
        }
    }
}

impl Policy for WTinyLfu {
    fn new(capacity: usize, keys: usize) -> Self {
        let window_max = (capacity / 100).max(1);
        let main_max = capacity - window_max;
        Self {
            window_max,
            main_max,
            protected_max: main_max * 4 / 5,
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            links: Links::new(keys),
            list_of: vec![ListId::NoList; keys],
            sketch: Sketch::new(capacity),
        }
    }

    fn access(&mut self, key: u32) -> bool {
        self.sketch.count(key);
        match self.list_of[key as usize] {
            ListId::Window => self.links.move_to_front(&mut self.window, key),
            ListId::Probation => self.protect(key),
            ListId::Protected => self.links.move_to_front(&mut self.protected, key),
            ListId::NoList => {
                self.links.push_front(&mut self.window, key);
                self.list_of[key as usize] = ListId::Window;
                if self.window.len() > self.window_max {
                    self.admit_candidate();
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

/// A count-min sketch of four-bit counters (a byte each here), which are halved periodically.
struct Sketch {
    rows: [Vec<u8>; ROWS],
    mask: u64,
    counted: usize,
    /// Counts between two halvings.
    period: usize,
}

const ROWS: usize = 4;
const COUNTER_MAX: u8 = 15;
/// Least number of counters in a row, per entry of the cache.
const WIDTH_FACTOR: usize = 8;
/// Counts between two halvings, per entry of the cache.
const PERIOD_FACTOR: usize = 10;
/// Odd multipliers of the rows' hashes.
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

    fn slot(&self, row: usize, key: u32) -> usize {
        let mixed = (u64::from(key) + 1).wrapping_mul(MULTIPLIERS[row]);
        ((mixed ^ mixed >> 32).wrapping_mul(MULTIPLIERS[row]) >> 32 & self.mask) as usize
    }

    fn count(&mut self, key: u32) {
        for row in 0..ROWS {
            let slot = self.slot(row, key);
            let counter = &mut self.rows[row][slot];
            *counter = (*counter + 1).min(COUNTER_MAX);
        }
        self.counted += 1;
        if self.counted == self.period {
            self.rows.iter_mut().flatten().for_each(|counter| *counter /= 2);
            self.counted /= 2;
        }
    }

    fn estimate(&self, key: u32) -> u8 {
        (0..ROWS).map(|row| self.rows[row][self.slot(row, key)]).min().unwrap_or(0)
    }
}
