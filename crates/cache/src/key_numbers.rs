//! A table from sampled keys to the numbers of their entries.
//!
//! It is for samples whose memory is bounded. Linear probing without tombstones: a removal moves
//! later entries back. So the memory depends on the most keys that were there at once, and not on
//! how many came and went. At most half of the places are taken.
//!
//! The keys are the caller's: each call gets a function that tells the key of a number.
//!
//! Locking: none; a part of structures under a lock.

/// A place without a number.
const FREE: u16 = u16::MAX;
/// Places of the smallest table. A power of two.
const MIN_PLACES: usize = 16;
/// Scatters keys. The low bits of a sampled key are zero.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Default)]
pub(crate) struct KeyNumbers {
    /// None, or a power of two of them.
    places: Vec<u16>,
    taken: usize,
}

impl KeyNumbers {
    /// Bytes of a table that never had more than so many keys at once.
    #[cfg(any(test, feature = "insight"))]
    pub(crate) const fn most_bytes(keys: usize) -> u64 {
        (Self::places_for(keys) * size_of::<u16>()) as u64
    }

    const fn places_for(keys: usize) -> usize {
        let places = (2 * keys).next_power_of_two();
        if places < MIN_PLACES { MIN_PLACES } else { places }
    }

    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// All numbers, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        self.places.iter().copied().filter(|number| *number != FREE)
    }

    /// The number of a key.
    pub(crate) fn get(&self, key: u64, key_of: impl Fn(u16) -> u64) -> Option<u16> {
        self.place_of(key, key_of).map(|place| self.places[place])
    }

    /// Adds a key that is not there. `number` is below `u16::MAX`.
    pub(crate) fn insert(&mut self, key: u64, number: u16, key_of: impl Fn(u16) -> u64) {
        debug_assert_ne!(number, FREE);
        let places = Self::places_for(self.taken + 1);
        if places > self.places.len() {
            let before = std::mem::replace(&mut self.places, vec![FREE; places]);
            for number in before.into_iter().filter(|number| *number != FREE) {
                self.put(key_of(number), number);
            }
        }
        self.put(key, number);
        self.taken += 1;
    }

    /// Gives a key that is there another number.
    #[cfg(feature = "insight")]
    pub(crate) fn renumber(&mut self, key: u64, number: u16, key_of: impl Fn(u16) -> u64) {
        if let Some(place) = self.place_of(key, key_of) {
            self.places[place] = number;
        }
    }

    /// Removes a key. Returns its number, if it was there.
    pub(crate) fn remove(&mut self, key: u64, key_of: impl Fn(u16) -> u64) -> Option<u16> {
        let mut hole = self.place_of(key, &key_of)?;
        let removed = self.places[hole];
        let mask = self.places.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let number = self.places[place];
            if number == FREE {
                break;
            }
            // It may move back as far as its home.
            let from_home = place.wrapping_sub(self.home(key_of(number))) & mask;
            if from_home >= place.wrapping_sub(hole) & mask {
                self.places[hole] = number;
                hole = place;
            }
        }
        self.places[hole] = FREE;
        self.taken -= 1;
        Some(removed)
    }

    /// Replaces all by the numbers below `count`, in a table that is no larger than they need.
    #[cfg(feature = "insight")]
    pub(crate) fn rebuild(&mut self, count: usize, key_of: impl Fn(u16) -> u64) {
        self.places = vec![FREE; Self::places_for(count)];
        self.taken = count;
        for number in 0..count as u16 {
            self.put(key_of(number), number);
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.places.capacity() * size_of::<u16>()) as u64
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(FACTOR) >> (u64::BITS - self.places.len().ilog2())) as usize
    }

    fn place_of(&self, key: u64, key_of: impl Fn(u16) -> u64) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut place = self.home(key);
        loop {
            match self.places[place] {
                FREE => return None,
                number if key_of(number) == key => return Some(place),
                _ => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    /// Stores a number in the first free place. There is one.
    fn put(&mut self, key: u64, number: u16) {
        let mut place = self.home(key);
        while self.places[place] != FREE {
            place = (place + 1) & (self.places.len() - 1);
        }
        self.places[place] = number;
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::HashMap;

    use forebay_base::rng::SmallRng;
    use proptest::prelude::*;

    use super::KeyNumbers;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
        /// Many come and go, and the table stays as large as the most at once need.
        #[test]
        fn it_agrees_with_a_map(seed in any::<u64>(), most in 1..400usize, shift in 0..12u32) {
            let mut rng = SmallRng::from_seed(seed);
            let (mut table, mut map) = (KeyNumbers::default(), HashMap::new());
            let mut keys = vec![0; most];
            let mut free: Vec<u16> = (0..most as u16).collect();
            for _ in 0..4000 {
                let key = rng.below(2 * most as u64) << shift;
                let known = map.get(&key).copied();
                prop_assert_eq!(table.get(key, |n| keys[n as usize]), known);
                match (known, free.pop()) {
                    (None, Some(number)) => {
                        keys[number as usize] = key;
                        table.insert(key, number, |n| keys[n as usize]);
                        map.insert(key, number);
                    }
                    (_, number) => {
                        free.extend(number);
                        prop_assert_eq!(table.remove(key, |n| keys[n as usize]), map.remove(&key));
                        free.extend(known);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
            }
            let mut numbers: Vec<u16> = table.iter().collect();
            let mut wanted: Vec<u16> = map.values().copied().collect();
            numbers.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(numbers, wanted);
            prop_assert!(table.memory_bytes() <= KeyNumbers::most_bytes(most));
        }
    }
}
