//! Reads blocks from the cache, or once from a device for any number of concurrent readers.
//!
//! A copy of a block is at a *place*: an address, and a device of its vdev. Addresses are tried in
//! order, and the devices of a mirror as they will answer soonest. If a later copy is good, the bad
//! ones before it are rewritten in place. So a reader must keep the block from being freed and its
//! space from being reused until the read has returned (see [`readers`](super::readers)). Otherwise
//! healing could overwrite a newer block.

use forebay_base::arena::Buffer;
use forebay_base::clock::{Clock, SystemClock};
use forebay_cache::{Attributes, Begin, LoadError, Ref, SlotHint};
use forebay_io::Priority;

use super::counters::StoreCounters;
use super::{Store, codec};
use crate::block_cache::BlockRef;
use crate::block_key::BlockKey;
use crate::devices::Place;
use crate::devices::status::LeafSet;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::{BlockPtrPhys, Dva};
use crate::wait::{Wait, would_block};

/// Attempts to start a read again after the load that it waited for was abandoned.
const ATTEMPTS: usize = 8;
/// Number of attempts that ask the L2, which may be the cause of abandoned loads.
const SECONDARY_ATTEMPTS: usize = 4;

/// Why a copy is read. In the order of the counter labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadCause {
    Miss = 0,
    Prefetch = 1,
    Scrub = 2,
}

impl ReadCause {
    pub(super) fn priority(self) -> Priority {
        match self {
            Self::Miss => Priority::SyncRead,
            Self::Prefetch => Priority::AsyncRead,
            Self::Scrub => Priority::Scrub,
        }
    }
}

/// A copy that was read and verified.
pub(super) struct VerifiedCopy {
    pub(super) content: Buffer,
    /// The bytes on the device, if they differ from the content.
    physical: Option<Buffer>,
}

impl VerifiedCopy {
    fn physical(&self) -> &[u8] {
        self.physical.as_ref().unwrap_or(&self.content)
    }
}

impl Store {
    /// Returns the block if it is cached.
    #[inline]
    pub(crate) fn peek(&self, bp: &BlockPtrPhys) -> Option<BlockRef> {
        self.cache.cache().get_owned(&self.key(bp))
    }

    /// Returns the block if it is cached. Tries the hinted slot first.
    #[inline]
    pub(crate) fn peek_at(
        &self,
        bp: &BlockPtrPhys,
        place: SlotHint,
    ) -> Option<Ref<'_, BlockKey, Buffer>> {
        self.peek_key_at(&self.key(bp), place)
    }

    /// As [`peek_at`](Self::peek_at), for a known key.
    #[inline]
    pub(crate) fn peek_key_at(
        &self,
        key: &BlockKey,
        place: SlotHint,
    ) -> Option<Ref<'_, BlockKey, Buffer>> {
        self.cache.cache().get_at(place, key)
    }

    /// Prefetches the memory that [`peek_at`](Self::peek_at) reads.
    #[inline]
    pub(crate) fn prefetch_header(&self, place: SlotHint) {
        self.cache.cache().prefetch(place);
    }

    /// As [`read`](Self::read), but waits for a device only if it may.
    ///
    /// # Errors
    /// As [`read`](Self::read). [`ErrorKind::WouldBlock`] in non-blocking mode if the block is not
    /// cached; its read has then started if possible.
    pub(crate) fn read_with(
        &self,
        bp: &BlockPtrPhys,
        attributes: Attributes,
        wait: Wait,
    ) -> Result<BlockRef> {
        match wait {
            Wait::Allowed => self.read(bp, attributes),
            Wait::Refused => self.read_non_blocking(bp, attributes),
        }
    }

    fn read_non_blocking(&self, bp: &BlockPtrPhys, attributes: Attributes) -> Result<BlockRef> {
        if let Some(block) = self.peek(bp) {
            return Ok(block);
        }
        self.fetch(bp, attributes, Box::new(|_| {}));
        // The read may have completed already, for example on an in-memory device.
        self.peek(bp).ok_or_else(|| would_block("a block that is not in memory"))
    }

    /// Returns the block from the cache, or reads, verifies and caches it with `attributes`. If the
    /// cache refuses the block, it is returned for the caller alone.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no copy passes its checksum or the pointer is invalid,
    /// [`ErrorKind::Device`] if no copy can be read, [`ErrorKind::NoMemory`], [`ErrorKind::Closed`]
    /// if the pool is being exported.
    pub(crate) fn read(&self, bp: &BlockPtrPhys, attributes: Attributes) -> Result<BlockRef> {
        let key = self.key(bp);
        for attempt in 0..ATTEMPTS {
            // The size is capped until the pointer has been verified, below.
            let weight = u64::from(bp.logical_bytes.get()).min(codec::MAX_LOGICAL_BYTES as u64);
            let cache = self.cache.cache();
            let begun = match attempt < SECONDARY_ATTEMPTS {
                true => cache.begin(key, weight, attributes),
                false => cache.begin_without_secondary(key, weight, attributes),
            };
            match begun {
                Ok(Begin::Hit(block)) => return Ok(block.into_owned()),
                Ok(Begin::InFlight(waiter)) => {
                    if self.shared.prefetches.raise_priority(&key) {
                        self.count(StoreCounters::PREFETCHES_JOINED, 1);
                    }
                    match waiter.wait() {
                        Ok(block) => return Ok(block),
                        // A failed prefetch has tried only one copy, and the L2 may have lost the
                        // block. Start over.
                        Err(LoadError::Abandoned) => {}
                        Err(error) => return Err(load_failed(bp, error)),
                    }
                }
                Ok(Begin::Vacant(load_guard)) => {
                    return match self.load(bp) {
                        Ok(content) => Ok(load_guard.publish(content)),
                        Err(error) => {
                            load_guard.fail(LoadError::failed(SharedCause::of(&error)));
                            Err(error)
                        }
                    };
                }
                Err(error) => return Err(load_failed(bp, error)),
            }
        }
        // That others gave their loads up says nothing of the block. If it cannot be read, the
        // devices say why, and whether they are gone.
        self.load(bp)?;
        Err(load_failed(bp, LoadError::Abandoned))
    }

    /// Reads a block from the devices into the caller's memory, bypassing the cache.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_uncached(&self, bp: &BlockPtrPhys) -> Result<Buffer> {
        self.load(bp)
    }

    /// Reads several blocks from the devices concurrently, bypassing the cache. Only first copies
    /// are read together; a block with a bad first copy is read as by
    /// [`read_uncached`](Self::read_uncached).
    ///
    /// # Errors
    /// As [`read`](Self::read), for the first block that cannot be read.
    pub(crate) fn read_many_uncached(&self, pointers: &[BlockPtrPhys]) -> Result<Vec<Buffer>> {
        let mut found: Vec<Option<Buffer>> = pointers.iter().map(|_| None).collect();
        let (mut places, mut reads) = (Vec::new(), Vec::new());
        for (at, bp) in pointers.iter().enumerate() {
            check(bp)?;
            let is_being_written = self.shared.writing.get(&self.key(bp)).is_some();
            let dva = bp.copies[0].get().filter(|_| !bp.is_gang() && !is_being_written);
            if let Some(place) = dva.and_then(|dva| self.first_place(bp, dva)) {
                let bytes = bp.allocated_bytes(self.sector_bytes());
                reads.push((place, self.cache.alloc(bytes as usize)?));
                places.push(at);
                self.shared.counters.add(StoreCounters::READS, ReadCause::Miss as usize, 1);
                self.shared.counters.add(
                    StoreCounters::READ_BYTES,
                    ReadCause::Miss as usize,
                    bytes,
                );
            }
        }
        let (count, clock) = (reads.len() as u64, SystemClock::new());
        let ends = self.devices.read_all(reads, Priority::SyncRead);
        let read_ns = clock.now_ns().saturating_mul(count);
        self.shared.counters.add(StoreCounters::READ_NS, ReadCause::Miss as usize, read_ns);
        for (at, physical) in places.into_iter().zip(ends) {
            let bp = &pointers[at];
            // The single read below repeats a failed read and counts the error.
            if let Some(physical) = physical.ok().filter(|physical| codec::verify(bp, physical)) {
                found[at] = Some(self.unpack(bp, physical)?.content);
            }
        }
        let alone = |(content, bp): (Option<Buffer>, &BlockPtrPhys)| match content {
            Some(content) => Ok(content),
            None => self.load(bp),
        };
        found.into_iter().zip(pointers).map(alone).collect()
    }

    /// Passes the content of a block to `take`: from memory, or from the first good copy. Heals and
    /// caches nothing, so the caller need not be a reader: a block that was freed meanwhile fails
    /// its checksum once its space is reused. For a scrub.
    ///
    /// # Errors
    /// As [`read_copy`](Self::read_copy), of the last copy; and the error of `take`.
    pub(crate) fn with_content<T>(
        &self,
        bp: &BlockPtrPhys,
        take: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        check(bp)?;
        if let Some(block) = self.peek(bp) {
            return take(&block);
        }
        if let Some(written) = self.shared.writing.get(&self.key(bp)) {
            return take(&written);
        }
        let mut last = lost(bp, Vec::new());
        for n in 0..self.place_count(bp) {
            match self.load_nth(bp, n, ReadCause::Scrub) {
                Ok(good) => return take(&good.content),
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Number of places at which copies of a block are: of each address, the devices in use.
    pub(crate) fn place_count(&self, bp: &BlockPtrPhys) -> usize {
        match bp.is_gang() {
            true => bp.copy_count() * self.devices.sides(),
            false => bp.dvas().map(|dva| self.devices.place_count(dva)).sum(),
        }
    }

    /// The n-th place of a block that is no gang.
    pub(super) fn nth_place(&self, bp: &BlockPtrPhys, n: usize) -> Option<Place> {
        let mut left = n;
        for dva in bp.dvas() {
            let here = self.devices.place_count(dva);
            if left < here {
                return Some(self.devices.nth_place(dva, left));
            }
            left -= here;
        }
        None
    }

    /// The place of an address from which the block will be read soonest.
    #[inline]
    pub(super) fn first_place(&self, bp: &BlockPtrPhys, dva: Dva) -> Option<Place> {
        self.devices.choose(dva, Some(bp.birth_txg.get()), &mut LeafSet::default())
    }

    /// Reads and verifies the copy at the n-th place. For a scrub.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if its checksum is wrong or there is no such copy,
    /// [`ErrorKind::Device`] if it cannot be read, [`ErrorKind::NoMemory`].
    pub(crate) fn read_copy(&self, bp: &BlockPtrPhys, n: usize) -> Result<Buffer> {
        check(bp)?;
        self.load_nth(bp, n, ReadCause::Scrub).map(|good| good.content)
    }

    /// Whether the n-th place of a block still exists, and its device is known to miss the block;
    /// of a gang, whether any device misses blocks of its birth.
    pub(crate) fn misses(&self, bp: &BlockPtrPhys, n: usize) -> bool {
        if bp.is_gang() {
            return self.devices.any_misses(bp.birth_txg.get());
        }
        self.nth_place(bp, n).is_some_and(|place| self.devices.misses(place, bp.birth_txg.get()))
    }

    /// Whether the device of the n-th place of a block that is no gang is known to miss all blocks.
    pub(crate) fn is_empty(&self, bp: &BlockPtrPhys, n: usize) -> bool {
        !bp.is_gang()
            && self.nth_place(bp, n).is_some_and(|place| {
                let birth = bp.birth_txg.get();
                self.devices.misses(place, birth) && self.devices.misses(place, 1)
            })
    }

    /// Whether the n-th place of a block exists: a device may have been taken out of use.
    pub(crate) fn has_place(&self, bp: &BlockPtrPhys, n: usize) -> bool {
        n < self.place_count(bp)
    }

    /// Reads and verifies all copies of a block, for people. Of a gang, those of its addresses.
    pub(crate) fn copies(&self, bp: &BlockPtrPhys) -> Vec<(Place, Result<()>)> {
        let place = |n| match bp.is_gang() {
            true => {
                bp.dvas().nth(n / self.devices.sides()).map(|dva| self.devices.nth_place(dva, 0))
            }
            false => self.nth_place(bp, n),
        };
        let step = if bp.is_gang() { self.devices.sides() } else { 1 };
        let read = |n| Some((place(n)?, self.read_copy(bp, n).map(drop)));
        (0..self.place_count(bp)).step_by(step).filter_map(read).collect()
    }

    fn load_nth(&self, bp: &BlockPtrPhys, n: usize, cause: ReadCause) -> Result<VerifiedCopy> {
        if bp.is_gang() {
            let physical = self.read_gang(bp, Some(n))?;
            return self.verified(bp, physical, None, cause);
        }
        let none = || Error::new(ErrorKind::Corrupt, format!("{bp:?}: has no copy {n}"));
        self.load_place(bp, self.nth_place(bp, n).ok_or_else(none)?, cause)
    }

    /// Rewrites the copy at the n-th place from a good copy. For a scrub. The caller has entered
    /// [`heals`](Self::heals), or is a reader. The write is durable after the next flush. Successes
    /// and failures are counted.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no copy is good; [`ErrorKind::Device`] if the write fails;
    /// [`ErrorKind::ReadOnly`]; [`ErrorKind::NoMemory`].
    pub(crate) fn heal(&self, bp: &BlockPtrPhys, n: usize) -> Result<()> {
        check(bp)?;
        if !self.can_heal {
            return Err(Error::new(ErrorKind::ReadOnly, "the pool is imported for reading only"));
        }
        if bp.is_gang() {
            return self.heal_gang(bp, n);
        }
        // Without the place, its device was taken out of use meanwhile.
        self.nth_place(bp, n).map_or(Ok(()), |place| self.heal_place(bp, place))
    }

    /// Whether no device of the n-th place of a block is there.
    pub(crate) fn is_missing(&self, bp: &BlockPtrPhys, n: usize) -> bool {
        let dva = match bp.is_gang() {
            true => bp.dvas().nth(n / self.devices.sides()),
            false => self.nth_place(bp, n).map(|place| place.dva),
        };
        dva.is_some_and(|dva| self.devices.is_missing(dva))
    }

    /// Rewrites the copy at a place of a block that is no gang from a good copy.
    pub(super) fn heal_place(&self, bp: &BlockPtrPhys, bad: Place) -> Result<()> {
        let others = (0..self.place_count(bp)).filter_map(|other| self.nth_place(bp, other));
        let mut errors = Vec::new();
        for other in others.filter(|other| *other != bad) {
            match self.load_place(bp, other, ReadCause::Scrub) {
                Ok(good) => {
                    self.rewrite_bytes(bp, bad, good.physical(), Priority::Scrub)?;
                    self.devices.note_healed(bad, bp.birth_txg.get());
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                Err(error) => errors.push(error),
            }
        }
        Err(no_source(lost(bp, errors)))
    }

    /// Loads the content of a block that is not cached.
    fn load(&self, bp: &BlockPtrPhys) -> Result<Buffer> {
        check(bp)?;
        if let Some(content) = self.written(bp)? {
            return Ok(content);
        }
        self.load_from_devices(bp)
    }

    /// Returns the block if it is being written: the device may still hold older bytes.
    fn written(&self, bp: &BlockPtrPhys) -> Result<Option<Buffer>> {
        let Some(written) = self.shared.writing.get(&self.key(bp)) else { return Ok(None) };
        let mut content = self.cache.alloc(written.len())?;
        content.copy_from_slice(&written);
        Ok(Some(content))
    }

    /// Returns the first good copy and heals the bad ones before it. If no copy is good, all are
    /// read once more: the device may have returned wrong bytes for correct data, and losing this
    /// block may suspend the pool or leak space.
    pub(super) fn load_from_devices(&self, bp: &BlockPtrPhys) -> Result<Buffer> {
        if bp.is_gang() {
            let mut errors = Vec::new();
            for _ in 0..2 {
                let physical = self.read_gang(bp, None);
                let read = physical
                    .and_then(|physical| self.verified(bp, physical, None, ReadCause::Miss));
                match read {
                    Ok(good) => return Ok(good.content),
                    Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                    Err(error) => errors = vec![error],
                }
            }
            return Err(self.is_lost(bp, errors));
        }
        let birth = Some(bp.birth_txg.get());
        let (mut bad, mut failures) = (Vec::new(), Vec::new());
        let mut suspect = self.suspect(bp);
        for _ in 0..2 {
            failures.clear();
            for dva in bp.dvas() {
                let mut tried = LeafSet::default();
                let first = suspect.take();
                first.iter().for_each(|place| tried.insert(place.leaf));
                let mut next = first.or_else(|| self.devices.choose(dva, birth, &mut tried));
                while let Some(place) = next {
                    match self.load_place(bp, place, ReadCause::Miss) {
                        Ok(good) => {
                            if !bad.is_empty() && self.may_heal() {
                                bad.retain(|bad| *bad != place);
                                // A failure is counted. The next reader tries again.
                                bad.into_iter().for_each(|bad| {
                                    let write = Priority::SyncWrite;
                                    drop(self.rewrite_bytes(bp, bad, good.physical(), write));
                                });
                            }
                            return Ok(good.content);
                        }
                        Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                        Err(error) => {
                            if !bad.contains(&place) {
                                bad.push(place);
                            }
                            failures.push((place, error));
                        }
                    }
                    next = self.devices.choose(dva, birth, &mut tried);
                }
            }
        }
        Err(self.is_lost(bp, self.judge(bp, failures)?))
    }

    /// The errors of reads of a block, one of each place. If no device answers that could have it,
    /// only theirs, which say so. A device that is known to miss the block could not have it.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    #[cold]
    pub(super) fn judge(
        &self,
        bp: &BlockPtrPhys,
        failures: Vec<(Place, Error)>,
    ) -> Result<Vec<Error>> {
        let birth = bp.birth_txg.get();
        let could_have = |(place, _): &(Place, Error)| !self.devices.misses(*place, birth);
        let mut are_gone = false;
        for (place, error) in failures.iter().filter(|failure| could_have(failure)) {
            are_gone = self.devices.is_silent(*place, error, self.cache())?;
            if !are_gone {
                break;
            }
        }
        Ok(match are_gone {
            true => {
                let able = failures.into_iter().filter(could_have);
                able.map(|(_, error)| error.gone()).collect()
            }
            false => failures.into_iter().map(|(_, error)| error).collect(),
        })
    }

    /// The place of the first address of which an asynchronous read has got a bad copy.
    fn suspect(&self, bp: &BlockPtrPhys) -> Option<Place> {
        let place = self.shared.suspects.take(&self.key(bp))?;
        let is_first = bp.copies[0].get() == Some(place.dva);
        (is_first && self.devices.is_used(place)).then_some(place)
    }

    #[cold]
    fn is_lost(&self, bp: &BlockPtrPhys, errors: Vec<Error>) -> Error {
        let error = lost(bp, errors);
        // A device that comes back has lost nothing.
        if !error.is_gone() && self.devices.outage().is_none() {
            self.count(StoreCounters::BLOCKS_LOST, 1);
            self.shared.events.note(EventKind::BlockLost, Event::because(&error));
        }
        error
    }

    /// Reads and verifies the copy at a place. The pointer was checked.
    pub(super) fn load_place(
        &self,
        bp: &BlockPtrPhys,
        place: Place,
        cause: ReadCause,
    ) -> Result<VerifiedCopy> {
        let bytes = bp.allocated_bytes(self.sector_bytes());
        let counters = &self.shared.counters;
        counters.add(StoreCounters::READS, cause as usize, 1);
        counters.add(StoreCounters::READ_BYTES, cause as usize, bytes);
        let buffer = self.cache.alloc(bytes as usize)?;
        let clock = SystemClock::new();
        let read = self.devices.read(place, buffer, cause.priority()).inspect_err(|error| {
            if error.kind() == ErrorKind::Device {
                counters.add(StoreCounters::READ_ERRORS, cause as usize, 1);
            }
        });
        counters.add(StoreCounters::READ_NS, cause as usize, clock.now_ns());
        self.verified(bp, read?, Some(place), cause)
    }

    /// A reader has found a wrong checksum. It is an error unless the device is known to miss the
    /// block.
    #[cold]
    fn note_mismatch(&self, bp: &BlockPtrPhys, place: Option<Place>) {
        if place.is_some_and(|place| self.devices.misses(place, bp.birth_txg.get())) {
            return;
        }
        tracing::warn!(block = ?bp, ?place, "checksum mismatch");
        place.into_iter().for_each(|place| self.devices.note_checksum(place));
        let cause = ReadCause::Miss as usize;
        self.shared.counters.add(StoreCounters::VERIFY_FAILURES, cause, 1);
    }

    /// A walk has read a bad copy of a block that was not freed meanwhile. Counts it if its
    /// checksum is wrong, and its device is not known to miss the block.
    pub(crate) fn note_bad_copy(&self, bp: &BlockPtrPhys, n: usize, error: &Error) {
        if error.kind() == ErrorKind::Corrupt && !self.misses(bp, n) {
            let cause = ReadCause::Scrub as usize;
            self.shared.counters.add(StoreCounters::VERIFY_FAILURES, cause, 1);
        }
    }

    /// Verifies the bytes of a copy, whole sectors, and decompresses them.
    fn verified(
        &self,
        bp: &BlockPtrPhys,
        physical: Buffer,
        place: Option<Place>,
        cause: ReadCause,
    ) -> Result<VerifiedCopy> {
        if codec::verify(bp, &physical) {
            return self.unpack(bp, physical);
        }
        // A scrub reads without being a reader: the block may have been freed meanwhile.
        if cause != ReadCause::Scrub {
            self.note_mismatch(bp, place);
        }
        let text = match place {
            Some(place) => format!("{place} of {bp:?}: checksum mismatch"),
            None => format!("{bp:?}: checksum mismatch"),
        };
        Err(Error::new(ErrorKind::Corrupt, text))
    }

    /// Decompresses verified bytes.
    fn unpack(&self, bp: &BlockPtrPhys, physical: Buffer) -> Result<VerifiedCopy> {
        if codec::is_plain(bp, &physical) {
            return Ok(VerifiedCopy { content: physical, physical: None });
        }
        let mut content = self.cache.alloc(bp.logical_bytes.get() as usize)?;
        codec::open(bp, &physical, &mut content)?;
        Ok(VerifiedCopy { content, physical: Some(physical) })
    }

    /// Rewrites the bytes of a copy of a block, whole sectors. A reader that waits for the block
    /// gives another priority than a walk.
    pub(super) fn rewrite_bytes(
        &self,
        bp: &BlockPtrPhys,
        place: Place,
        bytes: &[u8],
        priority: Priority,
    ) -> Result<()> {
        let healed = self.rewrite_uncounted(place, bytes, priority);
        match &healed {
            // The copy was not bad, but not there. A resilver says how much it has written.
            Ok(()) if self.devices.misses(place, bp.birth_txg.get()) => {}
            Ok(()) => {
                self.count(StoreCounters::HEALED, 1);
                let event = Event { device: self.devices.name_of(place), ..Event::because(place) };
                self.shared.events.note(EventKind::Healed, event);
            }
            Err(error) => {
                self.count(StoreCounters::HEAL_FAILURES, 1);
                tracing::warn!(%place, %error, "cannot heal block");
            }
        }
        healed
    }

    fn rewrite_uncounted(&self, place: Place, bytes: &[u8], priority: Priority) -> Result<()> {
        let mut buffer = self.cache.alloc(bytes.len())?;
        buffer.copy_from_slice(bytes);
        self.devices.write(place, buffer, priority)
    }
}

/// Checks that a pointer is valid.
pub(super) fn check(bp: &BlockPtrPhys) -> Result<()> {
    match codec::pointer_defect(bp) {
        None => Ok(()),
        Some(what) => Err(Error::new(ErrorKind::Corrupt, format!("a pointer ({bp:?}): {what}"))),
    }
}

/// Returns the error for a block without a good copy. If all failures are device errors, the copies
/// may still be good, so the error is a device error. If all say that no device answers, it does.
#[cold]
pub(super) fn lost(bp: &BlockPtrPhys, errors: Vec<Error>) -> Error {
    let devices = !errors.is_empty() && errors.iter().all(|e| e.kind() == ErrorKind::Device);
    let kind = if devices { ErrorKind::Device } else { ErrorKind::Corrupt };
    let why: Vec<String> = errors.iter().map(Error::to_string).collect();
    let text = format!("no good copy of {bp:?}: {}", why.join("; "));
    let error = match devices && errors.iter().all(Error::is_gone) {
        true => Error::new(kind, text).gone(),
        false => Error::new(kind, text),
    };
    match errors.into_iter().next() {
        Some(first) => error.because(first),
        None => error,
    }
}

/// The error of a heal for which no good copy was found. Only a failed write is an error of the
/// device that is healed.
pub(super) fn no_source(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Device => Error::new(ErrorKind::Corrupt, error.to_string()).because(error),
        _ => error,
    }
}

/// An error that is shared with all waiters of a load: kind and text.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct SharedCause {
    kind: ErrorKind,
    text: String,
    gone: bool,
}

impl SharedCause {
    fn of(error: &Error) -> Self {
        Self { kind: error.kind(), text: error.to_string(), gone: error.is_gone() }
    }

    /// The error for a waiter.
    fn error(&self) -> Error {
        let error = Error::new(self.kind, self.text.clone());
        if self.gone { error.gone() } else { error }
    }
}

/// Converts the error of another thread's load, or of the cache.
#[cold]
fn load_failed(bp: &BlockPtrPhys, error: LoadError) -> Error {
    let kind = match &error {
        LoadError::Failed(source) => {
            return match source.downcast_ref::<SharedCause>() {
                Some(shared_cause) => shared_cause.error(),
                None => Error::new(ErrorKind::Device, source.to_string()),
            };
        }
        LoadError::Closed => ErrorKind::Closed,
        LoadError::NoMemory(_) => ErrorKind::NoMemory,
        _ => ErrorKind::Device,
    };
    Error::new(kind, format!("{bp:?}: {error}")).because(error)
}
