//! The state that all handles and buffers of an arena share: allocation, freeing, destruction.
//!
//! It joins shards, classes, pool and budget; [`super`] has the overview.
//!
//! Destruction. `ArenaInner` exists until the last handle *and* the last buffer are dropped,
//! without a counter that all allocations and frees share. While the arena is open, each shard
//! counts its own units ([`super::shard`]). [`ArenaInner::close`] marks every shard and adds the
//! units of live buffers to `outstanding`. A free that finds its shard marked subtracts its units
//! there. Until the sum is complete, `outstanding` includes [`HANDLES_OPEN`], so that it cannot
//! reach zero early. The thread that brings it to zero frees everything. A free that finds its
//! shard unmarked is part of the sum, and accesses nothing of the arena afterwards.

use std::ptr::NonNull;
// tidy: std, because the source of an error must be an error, which the `Arc` of the shim is not.
use std::sync::Arc as ErrorArc;

use super::budget::{Budget, Reservation};
use super::buffer::{Buffer, footprint, run_chunks};
use super::class::{AfterFree, Class};
use super::classes::class_of;
use super::classes::{CHUNK_BYTES, CLASSES, Geometry, MAGAZINE_CLASSES, RUN, SIZES};
use super::error::{AllocError, Error};
use super::lists::ChunkPtr;
use super::pages::PageSet;
use super::pool::Pool;
use super::region;
use super::shard::{Magazine, Shard, ShardState};
use super::{ArenaConfig, HugePages, MAX_LEN};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_slot};
use crate::vm::{self, PageSize};

/// Part of `outstanding` until the sum over the shards is complete; greater than any sum.
const HANDLES_OPEN: u64 = 1 << 63;

/// `HugePages::Auto` uses no huge pages below this limit, because a chunk would be too large a
/// share.
const AUTO_HUGE_MIN_LIMIT: u64 = 64 << 20;
/// `HugePages::Auto` commits whole chunks while `limit / AUTO_HUGE_HEADROOM` stays free.
const AUTO_HUGE_HEADROOM: u64 = 8;
/// Blocks are backed in batches while `limit / BATCH_HEADROOM` stays free.
const BATCH_HEADROOM: u64 = 16;

/// The lock of a class, on cache lines of its own.
#[repr(align(128))]
struct ClassLock(Mutex<Class>);

/// Counts of rare events.
#[derive(Default)]
pub(super) struct Events {
    pub(super) purges: AtomicU64,
    pub(super) purged_bytes: AtomicU64,
    pub(super) exhausted: AtomicU64,
}

/// The shared state of an arena.
pub(super) struct ArenaInner {
    /// The unit in which memory is committed and released.
    pub(super) page: PageSize,
    pub(super) budget: Budget,
    pub(super) events: Events,
    huge: HugePages,
    pub(super) shards: Box<[Shard]>,
    classes: Box<[ClassLock]>,
    pub(super) pool: Mutex<Pool>,
    /// Serialises purgers; has the class at which the next one starts.
    pub(super) reclaim: Mutex<usize>,
    pub(super) closed: AtomicBool,
    /// The system refused the last release of pages, because the process has locked them.
    pub(super) locked: AtomicBool,
    outstanding: AtomicU64,
}

impl ArenaInner {
    /// Creates an arena; [`ArenaInner::close`] closes it.
    pub(super) fn open(
        config: &ArenaConfig,
        shards: usize,
        page: PageSize,
    ) -> Result<NonNull<Self>, Error> {
        assert!(shards.is_power_of_two(), "the number of shards is a power of two");
        let class = |class| ClassLock(Mutex::named("arena-class", Class::new(class, page)));
        let inner = NonNull::from(Box::leak(Box::new(Self {
            page,
            budget: Budget::new(config.limit_bytes),
            events: Events::default(),
            huge: config.huge_pages,
            shards: (0..shards).map(|_| Shard::new()).collect(),
            classes: (0..CLASSES).map(class).collect(),
            pool: Mutex::named("arena-pool", Pool::new(page)),
            reclaim: Mutex::named("arena-reclaim", 0),
            closed: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            outstanding: AtomicU64::new(HANDLES_OPEN),
        })));
        // SAFETY: it was just created, and no other thread has it.
        let grown = unsafe { inner.as_ref() }.pool.lock().grow(inner.as_ptr());
        if let Err(error) = grown {
            // SAFETY: `open` has just created it as a box, no region points to it, and no other
            // thread has it.
            drop(unsafe { Box::from_raw(inner.as_ptr()) });
            return Err(error.into());
        }
        Ok(inner)
    }

    pub(super) fn class(&self, class: usize) -> MutexGuard<'_, Class> {
        self.classes[class].0.lock()
    }

    /// All pages of a chunk.
    fn all_pages(&self) -> PageSet {
        PageSet::first(self.page.number_of(CHUNK_BYTES))
    }

    /// The shard of the calling thread.
    #[inline]
    fn shard(&self) -> &Shard {
        let slot = thread_slot();
        let index = match slot.exclusive() {
            Some(slot) => slot & (self.shards.len() - 1),
            None => slot.index(self.shards.len()),
        };
        &self.shards[index]
    }

    #[inline]
    pub(super) fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        if len == 0 {
            return Err(AllocError::Empty);
        }
        let class = class_of(len);
        if class < MAGAZINE_CLASSES {
            let shard = self.shard();
            let mut state = shard.state.lock();
            let magazine = &mut state.magazines[class];
            if magazine.is_empty() {
                self.refill(class, magazine);
            }
            if let Some(block) = magazine.pop() {
                return Ok(new_buffer(shard, &mut state, block, (class, len), self.page));
            }
        }
        self.alloc_slow(class, len)
    }

    #[cold]
    fn alloc_slow(&self, class: usize, len: usize) -> Result<Buffer, AllocError> {
        let block = match class {
            RUN if len > MAX_LEN => return Err(AllocError::TooLarge { len, max: MAX_LEN }),
            RUN => self.take_run(len)?,
            _ => self.take_block(class, len)?,
        };
        let shard = self.shard();
        let mut state = shard.state.lock();
        Ok(new_buffer(shard, &mut state, block, (class, len), self.page))
    }

    /// Frees the memory of a buffer.
    ///
    /// # Safety
    /// `block` is a live block of `class`, or a live run, of the arena `inner`. It was allocated
    /// for `len` bytes, and no code uses it any more.
    #[inline]
    pub(super) unsafe fn free(inner: NonNull<Self>, block: NonNull<u8>, class: usize, len: usize) {
        // SAFETY: the arena exists until `record_free` below counts this buffer.
        let this = unsafe { inner.as_ref() };
        let shard = this.shard();
        let mut state = shard.state.lock();
        state.live[class] -= 1;
        state.requested -= len as i64;
        if class < MAGAZINE_CLASSES && !this.budget.is_over_limit() {
            let magazine = &mut state.magazines[class];
            if magazine.is_full() {
                let batch = magazine.batch();
                this.drain(class, magazine, batch);
            }
            magazine.push(block);
            drop(state);
        } else {
            drop(state);
            // SAFETY: the caller's contract; `outstanding` still counts the block.
            unsafe { this.free_slow(block, class, len) };
        }
        let units = units(class, len, this.page);
        if shard.record_free(units) {
            // SAFETY: the arena is closed, and `outstanding` includes these units.
            unsafe { Self::release_units(inner, units) };
        }
    }

    /// Returns a block to its class, or the chunks of a run to the pool.
    ///
    /// # Safety
    /// As [`free`](Self::free), and this arena exists during the call.
    #[cold]
    unsafe fn free_slow(&self, block: NonNull<u8>, class: usize, len: usize) {
        if class == RUN {
            // SAFETY: a live run is in a region of this arena.
            let first = unsafe { region::chunk_of(block) };
            let mut pool = self.pool.lock();
            for index in 0..run_chunks(len) {
                // SAFETY: the dropped buffer owned the chunks of the run.
                unsafe { pool.put(first.add(index)) };
            }
        } else {
            let mut c = self.class(class);
            // SAFETY: a live block of this class that no code uses any more.
            let after = unsafe { c.free_block(block) };
            self.retire(after);
        }
        if self.budget.is_over_limit() {
            self.trim();
        }
    }

    /// Moves up to `count` blocks from a magazine to their class.
    #[cold]
    pub(super) fn drain(&self, class: usize, magazine: &mut Magazine, count: usize) {
        let mut c = self.class(class);
        // SAFETY: blocks in a magazine are live blocks of its class that no code uses.
        magazine.drain_oldest(count, |block| self.retire(unsafe { c.free_block(block) }));
    }

    /// Puts a chunk that left its class into the pool. The caller holds the lock of the class, so
    /// that a purger always finds the chunk in the class or in the pool.
    pub(super) fn retire(&self, after: AfterFree) {
        if let AfterFree::Retired(chunk) = after {
            // SAFETY: the class passed the chunk to this function.
            unsafe { self.pool.lock().put(chunk) };
        }
    }

    /// Fills half of a magazine, or less if the limit does not allow it.
    #[cold]
    fn refill(&self, class: usize, magazine: &mut Magazine) {
        // The slow path repeats and reports an error of the system.
        let _ = self.take_blocks(class, magazine.batch(), None, |block| magazine.push(block));
    }

    fn take_block(&self, class: usize, len: usize) -> Result<NonNull<u8>, AllocError> {
        let needed = (Geometry::of(class, self.page).pages * self.page.bytes()) as u64;
        let reserve = |source| AllocError::Reserve { len, source: ErrorArc::new(source) };
        let mut block = None;
        self.take_blocks(class, 1, None, |b| block = Some(b)).map_err(reserve)?;
        if block.is_none() {
            // Try again even without a reservation: drained blocks that are locked can serve any
            // class.
            let reservation = self.reserve_with_reclaim(needed);
            self.take_blocks(class, 1, reservation, |b| block = Some(b)).map_err(reserve)?;
        }
        block.ok_or_else(|| self.exhausted(len, needed))
    }

    /// Takes up to `wanted` blocks of a class: backed blocks of the class; else blocks of a backed
    /// chunk from the pool; else blocks that need new pages, within `reservation`, or within the
    /// limit if it is `None`. Returns their number: at least one if the bytes of one were reserved.
    fn take_blocks(
        &self,
        class: usize,
        wanted: usize,
        reservation: Option<Reservation<'_>>,
        mut out: impl FnMut(NonNull<u8>),
    ) -> Result<usize, vm::Error> {
        let g = Geometry::of(class, self.page);
        let mut c = self.class(class);
        let taken = c.alloc_backed(wanted, &mut out);
        if taken > 0 {
            return Ok(taken);
        }
        let pooled = self.pool.lock().take_backed(g.pages);
        if let Some(chunk) = pooled {
            // SAFETY: the chunk was just taken from the pool.
            unsafe { c.add_chunk(chunk) };
            return Ok(c.alloc_backed(wanted, &mut out));
        }
        let unit = (g.pages * self.page.bytes()) as u64;
        let headroom = self.budget.limit() / BATCH_HEADROOM;
        let reservation = reservation
            .or_else(|| self.budget.try_reserve(unit * wanted as u64, headroom))
            .or_else(|| self.budget.try_reserve(unit, 0));
        let Some(mut reservation) = reservation else { return Ok(0) };
        if !c.has_free() {
            let chunk = self.pool.lock().take(self)?;
            if c.counts().0 > 0 || self.huge == HugePages::Always {
                self.make_huge(chunk);
            }
            // SAFETY: the chunk was just taken from the pool.
            unsafe { c.add_chunk(chunk) };
        }
        let mut taken = 0;
        while taken < wanted && reservation.bytes() >= unit {
            let Some((block, added)) = c.alloc_any() else { break };
            reservation.consume(added as u64);
            out(block);
            taken += 1;
        }
        Ok(taken)
    }

    /// Advises a huge page for a chunk without backed pages, if the policy wants one and all of it
    /// can be reserved.
    fn make_huge(&self, chunk: ChunkPtr) {
        let limit = self.budget.limit();
        let headroom = match self.huge {
            HugePages::Never => return,
            HugePages::Auto if limit < AUTO_HUGE_MIN_LIMIT => return,
            HugePages::Auto => limit / AUTO_HUGE_HEADROOM,
            HugePages::Always => 0,
        };
        // SAFETY: the caller owns the chunk.
        let c = unsafe { chunk.get() };
        if !c.backed.is_empty() {
            return;
        }
        if let Some(mut reservation) = self.budget.try_reserve(CHUNK_BYTES as u64, headroom) {
            // SAFETY: a chunk of this arena.
            unsafe { region::advise_huge(chunk, true) };
            reservation.consume((c.set_huge(&self.all_pages()) * self.page.bytes()) as u64);
        }
    }

    fn take_run(&self, len: usize) -> Result<NonNull<u8>, AllocError> {
        let needed = footprint(RUN, len, self.page) as u64;
        let mut reservation = self
            .budget
            .try_reserve(needed, 0)
            .or_else(|| self.reserve_with_reclaim(needed))
            .ok_or_else(|| self.exhausted(len, needed))?;
        let first = self
            .pool
            .lock()
            .take_run(self, run_chunks(len))
            .map_err(|source| AllocError::Reserve { len, source: ErrorArc::new(source) })?;
        for index in 0..run_chunks(len) {
            // SAFETY: the chunks of the run are adjacent, and this function took them.
            let chunk = unsafe { first.add(index) };
            let pages = self.page.count((len - index * CHUNK_BYTES).min(CHUNK_BYTES));
            self.back_run_chunk(chunk, pages, &mut reservation);
        }
        // SAFETY: a chunk of this arena.
        Ok(unsafe { region::data_of(first) })
    }

    /// Backs the first `pages` pages of a chunk and releases the others, because purgers do not
    /// find chunks of a run.
    fn back_run_chunk(&self, chunk: ChunkPtr, pages: usize, reservation: &mut Reservation<'_>) {
        // SAFETY: the caller took the chunk for a run and owns it.
        let c = unsafe { chunk.get() };
        let mut others = c.backed;
        others.remove_range(0, pages);
        if !others.is_empty() {
            let was_huge = std::mem::replace(&mut c.huge, false);
            c.backed.remove_all(&self.release(chunk, &others, was_huge, reservation));
        }
        let whole = pages == self.page.number_of(CHUNK_BYTES) && c.backed.is_empty();
        let wanted = match self.huge {
            HugePages::Never => false,
            HugePages::Auto => self.budget.limit() >= AUTO_HUGE_MIN_LIMIT,
            HugePages::Always => true,
        };
        if whole && wanted {
            // SAFETY: a chunk of this arena.
            unsafe { region::advise_huge(chunk, true) };
            c.huge = true;
        }
        let missing = pages - c.backed.count_range(0, pages);
        reservation.consume((missing * self.page.bytes()) as u64);
        c.backed.insert_range(0, pages);
    }

    fn exhausted(&self, len: usize, needed: u64) -> AllocError {
        self.events.exhausted.fetch_add(1, Ordering::Relaxed);
        AllocError::Exhausted {
            len,
            needed,
            used: self.used(),
            committed: self.budget.committed(),
            limit: self.budget.limit(),
            locked: self.locked.load(Ordering::Relaxed),
        }
    }

    /// Bytes of live buffers; at most the largest value during the call.
    pub(super) fn used(&self) -> u64 {
        // Reads all allocations before any free, so that the sum includes the free of each
        // allocation that was read and freed before.
        let allocated = self.shards.iter().fold(0u64, |n, s| n.wrapping_add(s.allocated()));
        let freed = self.shards.iter().fold(0u64, |n, s| n.wrapping_add(s.freed()));
        let units = (allocated.wrapping_sub(freed) << 1).cast_signed() >> 1;
        units.max(0).cast_unsigned() * u64::from(SIZES[0])
    }

    /// Closes the arena after the last handle was dropped. Frees everything, now or with the last
    /// buffer.
    ///
    /// # Safety
    /// `inner` came from [`ArenaInner::open`], no thread allocates from it any more, and it is
    /// closed once.
    pub(super) unsafe fn close(inner: NonNull<Self>) {
        // SAFETY: it exists at least until `HANDLES_OPEN` is subtracted from `outstanding` below.
        let this = unsafe { inner.as_ref() };
        this.closed.store(true, Ordering::SeqCst);
        this.budget.set_limit(0);
        this.purge();
        let sum = this.shards.iter().fold(0u64, |n, shard| n.wrapping_add(shard.close()));
        // Shards count modulo 2^63.
        let live = sum & (HANDLES_OPEN - 1);
        this.outstanding.fetch_add(live, Ordering::Relaxed);
        // SAFETY: `outstanding` includes `HANDLES_OPEN`, and only this call subtracts it.
        unsafe { Self::release_units(inner, HANDLES_OPEN) };
    }

    /// Subtracts `amount` from `outstanding` and destroys the arena if the result is zero.
    ///
    /// # Safety
    /// `outstanding` includes `amount` for the caller, and the caller does not use `inner`
    /// afterwards.
    #[cold]
    unsafe fn release_units(inner: NonNull<Self>, amount: u64) {
        // SAFETY: by contract it exists until the amount is subtracted.
        let before = unsafe { inner.as_ref() }.outstanding.fetch_sub(amount, Ordering::AcqRel);
        if before == amount {
            // SAFETY: no handle and no buffer is left, and `open` created it as a box.
            drop(unsafe { Box::from_raw(inner.as_ptr()) });
        }
    }
}

#[inline]
fn new_buffer(
    shard: &Shard,
    state: &mut ShardState,
    block: NonNull<u8>,
    (class, len): (usize, usize),
    page: PageSize,
) -> Buffer {
    shard.record_alloc(state, class, len, units(class, len, page));
    // SAFETY: the block was taken for this buffer and has at least `len` bytes.
    unsafe { Buffer::new(block, len, class) }
}

/// Memory of a buffer, in units of the smallest block.
#[inline]
fn units(class: usize, len: usize, page: PageSize) -> u64 {
    (footprint(class, len, page) / SIZES[0] as usize) as u64
}
