//! The queue of one class: requests by age and by place.
//!
//! Two sorted rings of small keys; the requests themselves stay put in the lane's [`Slots`]. A ring is
//! searched by halving and shifted on insertion and removal, which for a queue of one is nothing
//! and for the longest allowed (`queue_limit`) a move of some kilobytes: no tree, and no allocation once
//! the rings have grown.
//!
//! Whom the class serves next: the oldest, if somebody waits for it (the synchronous classes); else
//! the first at or after the place where it served last, from the lowest again after the highest (an
//! elevator in one direction). An elevator alone could pass one by for ever, so the oldest request goes first
//! once [`PASSED_BY`] others that came later or not have been served since it came.

use std::collections::VecDeque;

use crate::priority::Priority;
use crate::request::{Op, Request};

/// Requests that an elevator may serve before one that was there already.
pub(super) const PASSED_BY: u64 = 256;

/// Whether the class serves in the order of age.
pub(super) fn by_age(class: Priority) -> bool {
    matches!(class, Priority::SyncRead | Priority::SyncWrite)
}

/// A queued request and what the queue knows of it.
pub(super) struct Queued {
    pub(super) request: Request,
    /// Flushes that the lane had taken before: only requests of the same era are merged.
    pub(super) era: u64,
    /// Never to be merged.
    pub(super) alone: bool,
    /// What the class had served when this came.
    born: u64,
}

/// The requests of all classes of a lane, each in a slot until it is taken.
#[derive(Default)]
pub(super) struct Slots {
    queued: Vec<Option<Queued>>,
    free: Vec<u32>,
}

impl Slots {
    fn put(&mut self, queued: Queued) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.queued[slot as usize] = Some(queued);
            return slot;
        }
        let slot = u32::try_from(self.queued.len()).expect("queues are bounded far below");
        self.queued.push(Some(queued));
        slot
    }

    fn take(&mut self, slot: u32) -> Queued {
        let queued = self.queued[slot as usize].take().expect("keys name full slots");
        self.free.push(slot);
        queued
    }

    pub(super) fn get(&self, slot: u32) -> &Queued {
        self.queued[slot as usize].as_ref().expect("keys name full slots")
    }
}

/// A request by its place on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) offset: u64,
    pub(super) id: u64,
    pub(super) slot: u32,
}

#[derive(Clone, Copy)]
struct Aged {
    id: u64,
    offset: u64,
    slot: u32,
}

/// The requests of one class that wait. Identifiers grow with age: the lowest is the oldest.
pub(super) struct ClassQueue {
    by_place: VecDeque<Key>,
    by_age: VecDeque<Aged>,
    serves_by_age: bool,
    /// One past the last byte that was served.
    cursor: u64,
    served: u64,
}

impl ClassQueue {
    pub(super) fn new(class: Priority) -> Self {
        Self {
            by_place: VecDeque::new(),
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

    /// Takes a request in.
    pub(super) fn insert(
        &mut self,
        slots: &mut Slots,
        id: u64,
        (request, era, alone): (Request, u64, bool),
    ) {
        let offset = request.offset();
        let slot = slots.put(Queued { request, era, alone, born: self.served });
        // Nearly always the youngest; a raised one keeps its age.
        let aged = Aged { id, offset, slot };
        match self.by_age.back() {
            Some(last) if last.id > id => {
                let at = self.by_age.partition_point(|other| other.id < id);
                self.by_age.insert(at, aged);
            }
            _ => self.by_age.push_back(aged),
        }
        let at = self.place(offset, id);
        self.by_place.insert(at, Key { offset, id, slot });
    }

    /// The request to serve next.
    pub(super) fn pick(&self, slots: &Slots) -> Option<Key> {
        let oldest = *self.by_age.front()?;
        if self.serves_by_age
            || self.by_age.len() == 1
            || self.served - slots.get(oldest.slot).born >= PASSED_BY
        {
            return Some(Key { offset: oldest.offset, id: oldest.id, slot: oldest.slot });
        }
        let at = self.place(self.cursor, 0);
        Some(*self.by_place.get(at).unwrap_or(&self.by_place[0]))
    }

    /// The request called `id`, if it waits here.
    pub(super) fn find(&self, id: u64) -> Option<Key> {
        let at = self.by_age.binary_search_by_key(&id, |aged| aged.id).ok()?;
        let Aged { id, offset, slot } = self.by_age[at];
        Some(Key { offset, id, slot })
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, slots: &mut Slots, key: Key) -> Queued {
        let at = self.place(key.offset, key.id);
        let removed = self.by_place.remove(at);
        debug_assert_eq!(removed, Some(key), "every request is in both rings");
        let at = self.by_age.partition_point(|aged| aged.id < key.id);
        self.by_age.remove(at);
        slots.take(key.slot)
    }

    /// Notes that `pieces` requests, the last of which ends at `end`, are served.
    pub(super) fn note_served(&mut self, pieces: usize, end: u64) {
        self.served += pieces as u64;
        self.cursor = end;
    }

    /// The oldest request at `offset` that can be merged with what ends there.
    pub(super) fn follower(&self, slots: &Slots, offset: u64, like: Like) -> Option<Key> {
        let at = self.place(offset, 0);
        let mut here = self.by_place.range(at..).take_while(|key| key.offset == offset);
        here.find(|key| like.fits(slots.get(key.slot))).copied()
    }

    /// The oldest request that ends at `offset` and can be merged with what begins there, of those
    /// that begin at the nearest place below.
    pub(super) fn predecessor(&self, slots: &Slots, offset: u64, like: Like) -> Option<Key> {
        let end = self.place(offset, 0);
        let below = self.by_place.get(end.checked_sub(1)?)?.offset;
        let mut here = self.by_place.range(self.place(below, 0)..end);
        here.find(|key| {
            let queued = slots.get(key.slot);
            queued.request.end() == Some(offset) && like.fits(queued)
        })
        .copied()
    }

    /// Where a request called `id` at `offset` is or would be in the ring by place.
    fn place(&self, offset: u64, id: u64) -> usize {
        self.by_place.partition_point(|key| (key.offset, key.id) < (offset, id))
    }
}

/// What a request must be like to be merged with others.
#[derive(Clone, Copy)]
pub(super) struct Like {
    pub(super) op: Op,
    pub(super) era: u64,
    /// Bytes that the operation may still grow by.
    pub(super) room: u64,
}

impl Like {
    fn fits(self, queued: &Queued) -> bool {
        let Queued { request, era, alone, .. } = queued;
        request.op() == self.op
            && *era == self.era
            && !*alone
            && request.len() <= self.room
            && !request.is_cancelled()
    }
}
