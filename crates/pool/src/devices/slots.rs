//! A list that only grows, and that is read without a lock.

use std::marker::PhantomData;
use std::ops::Index;
use std::ptr;

use forebay_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Values with numbers that never change, up to a maximum.
pub(super) struct Slots<T> {
    /// The first ones are filled. A filled slot never changes.
    slots: Box<[AtomicPtr<T>]>,
    /// Number of filled slots.
    count: AtomicUsize,
    owned: PhantomData<T>,
}

impl<T> Slots<T> {
    /// A list of at most `most` values.
    pub(super) fn new(most: usize) -> Self {
        Self {
            slots: (0..most).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            count: AtomicUsize::new(0),
            owned: PhantomData,
        }
    }

    /// Adds a value, and returns its number; or the value if the list is full.
    pub(super) fn push(&self, value: T) -> Result<usize, Box<T>> {
        let value = Box::into_raw(Box::new(value));
        for (at, slot) in self.slots.iter().enumerate().skip(self.len()) {
            let null = ptr::null_mut();
            if slot.compare_exchange(null, value, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.count.fetch_max(at + 1, Ordering::AcqRel);
                return Ok(at);
            }
        }
        // SAFETY: a box that was leaked above, and that no slot has taken.
        Err(unsafe { Box::from_raw(value) })
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The value with this number.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        let value = self.slots.get(at)?.load(Ordering::Acquire);
        // SAFETY: null, or a box that `push` leaked for this slot. It is freed when the list is
        // dropped, after this borrow has ended.
        unsafe { value.as_ref() }
    }

    /// All values, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        let found = self.get(at);
        found.unwrap_or_else(|| panic!("slot {at} of {} is empty", self.len()))
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            let value = slot.swap(ptr::null_mut(), Ordering::AcqRel);
            if !value.is_null() {
                // SAFETY: a box that `push` leaked for this slot, removed from the slot here.
                drop(unsafe { Box::from_raw(value) });
            }
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;
    use forebay_base::sync::Arc;

    #[test]
    fn values_keep_their_numbers_and_are_dropped_with_the_list() {
        let counted = Arc::new(());
        let slots = Slots::new(2);
        assert!(slots.get(0).is_none());
        for at in 0..2 {
            assert_eq!(slots.push((at, Arc::clone(&counted))).ok(), Some(at));
        }
        assert!(slots.push((2, Arc::clone(&counted))).is_err(), "it is full");
        assert_eq!(slots.iter().map(|one| one.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(slots[1].0, 1);
        assert_eq!(Arc::strong_count(&counted), 3);
        drop(slots);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
