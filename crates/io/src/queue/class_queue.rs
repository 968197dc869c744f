//! The queue of one class: requests sorted by age and by offset.
//!
//! Two sorted ring buffers of small keys. The requests themselves stay in the submission queue's
//! [`Slots`]. A ring is searched by bisection and shifted on insertion and removal. At the longest
//! allowed length (`queue_limit`) that moves some kilobytes. So there is no tree, and no allocation
//! once the rings have grown.
//!
//! Service order: synchronous classes serve the oldest request. The others serve in one direction
//! by offset (an elevator): the first request at or after the end of the last one served, then
//! again from the lowest. An elevator alone could starve a request. So the oldest request goes
//! first once [`MAX_PASSED_OVER`] others were served since it came.

use std::collections::VecDeque;

use crate::priority::Priority;
use crate::request::{Op, Request};

/// Requests that an elevator may serve before one that was queued earlier.
pub(super) const MAX_PASSED_OVER: u64 = 256;

/// Returns whether the class serves by age.
pub(super) fn by_age(class: Priority) -> bool {
    matches!(class, Priority::SyncRead | Priority::SyncWrite)
}

/// A queued request with its scheduling data.
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    /// Flushes that the submission queue had accepted before. Only requests of one epoch are
    /// merged.
    pub(super) flush_epoch: u64,
    /// The request is never merged.
    pub(super) no_merge: bool,
    /// Requests that the class had served when this one came.
    served_before: u64,
}

/// The queued requests of all classes of a submission queue.
#[derive(Default)]
pub(super) struct Slots {
    queued: Vec<Option<QueuedRequest>>,
    free: Vec<u32>,
}

impl Slots {
    fn put(&mut self, queued: QueuedRequest) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.queued[slot as usize] = Some(queued);
            return slot;
        }
        let slot = u32::try_from(self.queued.len()).expect("queues are far shorter");
        self.queued.push(Some(queued));
        slot
    }

    fn take(&mut self, slot: u32) -> QueuedRequest {
        let queued = self.queued[slot as usize].take().expect("a key names a full slot");
        self.free.push(slot);
        queued
    }

    pub(super) fn get(&self, slot: u32) -> &QueuedRequest {
        self.queued[slot as usize].as_ref().expect("a key names a full slot")
    }
}

/// A queued request by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) offset: u64,
    pub(super) id: u64,
    pub(super) slot: u32,
}

#[derive(Clone, Copy)]
struct AgeEntry {
    id: u64,
    offset: u64,
    slot: u32,
}

/// The queued requests of one class. Identifiers grow with age: the lowest is the oldest.
pub(super) struct ClassQueue {
    by_offset: VecDeque<Key>,
    by_age: VecDeque<AgeEntry>,
    serves_by_age: bool,
    /// One past the last byte served.
    cursor: u64,
    served: u64,
}

impl ClassQueue {
    pub(super) fn new(class: Priority) -> Self {
        Self {
            by_offset: VecDeque::new(),
            by_age: VecDeque::new(),
            serves_by_age: by_age(class),
            cursor: 0,
            served: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Queues a request.
    pub(super) fn insert(
        &mut self,
        slots: &mut Slots,
        id: u64,
        (request, flush_epoch, no_merge): (Request, u64, bool),
    ) {
        let offset = request.offset();
        let slot =
            slots.put(QueuedRequest { request, flush_epoch, no_merge, served_before: self.served });
        // Nearly always the youngest. Only a raised request keeps its age.
        let aged = AgeEntry { id, offset, slot };
        match self.by_age.back() {
            Some(last) if last.id > id => {
                let at = self.by_age.partition_point(|other| other.id < id);
                self.by_age.insert(at, aged);
            }
            _ => self.by_age.push_back(aged),
        }
        let at = self.position(offset, id);
        self.by_offset.insert(at, Key { offset, id, slot });
    }

    /// Returns the request to serve next.
    pub(super) fn pick(&self, slots: &Slots) -> Option<Key> {
        let oldest = *self.by_age.front()?;
        if self.serves_by_age
            || self.by_age.len() == 1
            || self.served - slots.get(oldest.slot).served_before >= MAX_PASSED_OVER
        {
            return Some(Key { offset: oldest.offset, id: oldest.id, slot: oldest.slot });
        }
        let at = self.position(self.cursor, 0);
        Some(*self.by_offset.get(at).unwrap_or(&self.by_offset[0]))
    }

    /// Returns the request `id`, if it is queued here.
    pub(super) fn find(&self, id: u64) -> Option<Key> {
        let at = self.by_age.binary_search_by_key(&id, |aged| aged.id).ok()?;
        let AgeEntry { id, offset, slot } = self.by_age[at];
        Some(Key { offset, id, slot })
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, slots: &mut Slots, key: Key) -> QueuedRequest {
        let at = self.position(key.offset, key.id);
        let removed = self.by_offset.remove(at);
        debug_assert_eq!(removed, Some(key), "every request is in both rings");
        let at = self.by_age.partition_point(|aged| aged.id < key.id);
        self.by_age.remove(at);
        slots.take(key.slot)
    }

    /// Notes that this many `requests`, the last of which ends at `end`, were served.
    pub(super) fn note_served(&mut self, requests: usize, end: u64) {
        self.served += requests as u64;
        self.cursor = end;
    }

    /// Returns the oldest request at `offset` that can be merged behind an operation that ends
    /// there.
    pub(super) fn back_merge(
        &self,
        slots: &Slots,
        offset: u64,
        merge_filter: MergeFilter,
    ) -> Option<Key> {
        let at = self.position(offset, 0);
        let mut here = self.by_offset.range(at..).take_while(|key| key.offset == offset);
        here.find(|key| merge_filter.fits(slots.get(key.slot))).copied()
    }

    /// Returns the oldest request that can be merged before an operation at `offset`: it ends
    /// there, and begins at the nearest lower offset in the queue.
    pub(super) fn front_merge(
        &self,
        slots: &Slots,
        offset: u64,
        merge_filter: MergeFilter,
    ) -> Option<Key> {
        let end = self.position(offset, 0);
        let below = self.by_offset.get(end.checked_sub(1)?)?.offset;
        let mut here = self.by_offset.range(self.position(below, 0)..end);
        here.find(|key| {
            let queued = slots.get(key.slot);
            queued.request.end() == Some(offset) && merge_filter.fits(queued)
        })
        .copied()
    }

    /// Returns the position by offset at which a request `id` at `offset` is or would be.
    fn position(&self, offset: u64, id: u64) -> usize {
        self.by_offset.partition_point(|key| (key.offset, key.id) < (offset, id))
    }
}

/// The properties that a request needs to be merged into an operation.
#[derive(Clone, Copy)]
pub(super) struct MergeFilter {
    pub(super) op: Op,
    pub(super) flush_epoch: u64,
    /// Bytes by which the operation may still grow.
    pub(super) max_bytes: u64,
}

impl MergeFilter {
    fn fits(self, queued: &QueuedRequest) -> bool {
        let QueuedRequest { request, flush_epoch, no_merge, .. } = queued;
        request.op() == self.op
            && *flush_epoch == self.flush_epoch
            && !*no_merge
            && request.len() <= self.max_bytes
            && !request.is_cancelled()
    }
}
