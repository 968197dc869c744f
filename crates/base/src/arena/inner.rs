//! The arena itself: allocation, freeing, and the end.
//!
//! Purpose: join shards, classes, pool and account. See the head of [`super`] for the whole.
//!
//! The end. `Inner` lives until the last handle *and* the last buffer are gone, without a
//! count that every allocation and free would share. While the arena is open each shard
//! counts for itself ([`super::shard`]). [`Inner::close`] marks every shard and adds up what
//! is handed out into `orphans`; a free that finds its shard marked subtracts itself there.
//! Until the sum is complete, `orphans` carries [`OPEN`], so that it cannot reach zero early.
//! Whoever brings it to zero frees everything. A free whose shard was not marked yet has been
//! included in the sum, and touches nothing of the arena afterwards.

use std::ptr::NonNull;
// tidy: std, because errors are shared in plain memory in every build, and the shim of the model build is not.
use std::sync::Arc as ErrorArc;

use super::budget::{Account, Leave};
use super::buffer::{Buffer, footprint, run_chunks};
use super::class::{Class, Given};
use super::classes::class_of;
use super::classes::{CHUNK_BYTES, CLASSES, Geometry, MAGAZINE_CLASSES, RUN, SIZES};
use super::error::{AllocError, Error};
use super::lists::ChunkPtr;
use super::pages::PageSet;
use super::pool::Pool;
use super::region;
use super::shard::{Magazine, Shard, State};
use super::{ArenaConfig, HugePages, MAX_LEN};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_slot};
use crate::vm::{self, PageSize};

/// In `orphans` until the sum over the shards is complete; more than any sum.
const OPEN: u64 = 1 << 63;

/// `HugePages::Auto` uses none below this limit: a single chunk would be too large a share.
const AUTO_HUGE_LEAST: u64 = 64 << 20;
/// `HugePages::Auto` commits whole chunks while this share of the limit stays free.
const AUTO_HUGE_SPARE: u64 = 8;
/// Blocks are backed in batches while this share of the limit stays free.
const BATCH_SPARE: u64 = 16;

/// A class's lock, on cache lines of its own.
#[repr(align(128))]
struct ClassSlot(Mutex<Class>);

/// Events, counted where they happen; all of them are rare.
#[derive(Default)]
pub(super) struct Events {
    pub(super) purges: AtomicU64,
    pub(super) purged_bytes: AtomicU64,
    pub(super) exhausted: AtomicU64,
}

/// See the module's head.
pub(super) struct Inner {
    /// The size of a page, in which memory is committed and given back.
    pub(super) page: PageSize,
    pub(super) account: Account,
    pub(super) events: Events,
    huge: HugePages,
    pub(super) shards: Box<[Shard]>,
    classes: Box<[ClassSlot]>,
    pub(super) pool: Mutex<Pool>,
    /// Purgers work one at a time; holds the class at which the next one starts.
    pub(super) reclaim: Mutex<usize>,
    pub(super) closed: AtomicBool,
    /// The system did not take pages back when it was last asked: the process has locked them.
    pub(super) locked: AtomicBool,
    orphans: AtomicU64,
}

impl Inner {
    /// A new arena; [`Inner::close`] ends it.
    pub(super) fn open(
        config: &ArenaConfig,
        shards: usize,
        page: PageSize,
    ) -> Result<NonNull<Self>, Error> {
        assert!(shards.is_power_of_two(), "the shard is found by masking");
        let class = |class| ClassSlot(Mutex::named("arena-class", Class::new(class, page)));
        let inner = NonNull::from(Box::leak(Box::new(Self {
            page,
            account: Account::new(config.limit_bytes),
            events: Events::default(),
            huge: config.huge_pages,
            shards: (0..shards).map(|_| Shard::new()).collect(),
            classes: (0..CLASSES).map(class).collect(),
            pool: Mutex::named("arena-pool", Pool::new(page)),
            reclaim: Mutex::named("arena-reclaim", 0),
            closed: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            orphans: AtomicU64::new(OPEN),
        })));
        // SAFETY: just made, and known to nobody else.
        let grown = unsafe { inner.as_ref() }.pool.lock().grow(inner.as_ptr());
        if let Err(error) = grown {
            // SAFETY: as above; no region points at it.
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
                return Ok(hand_out(shard, &mut state, block, (class, len), self.page));
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
        Ok(hand_out(shard, &mut state, block, (class, len), self.page))
    }

    /// Takes a buffer's memory back.
    ///
    /// # Safety
    /// `block` is a live block of `class`, or run of `len` bytes, of the arena `inner`; it was
    /// handed out for `len` bytes, and nobody uses it any more.
    #[inline]
    pub(super) unsafe fn free(inner: NonNull<Self>, block: NonNull<u8>, class: usize, len: usize) {
        // SAFETY: the arena exists until this buffer is accounted for, in `note_free` below.
        let this = unsafe { inner.as_ref() };
        let shard = this.shard();
        let mut state = shard.state.lock();
        state.live[class] -= 1;
        state.requested -= len as i64;
        if class < MAGAZINE_CLASSES && !this.account.is_over() {
            let magazine = &mut state.magazines[class];
            if magazine.is_full() {
                let batch = magazine.batch();
                this.drain(class, magazine, batch);
            }
            magazine.push(block);
            drop(state);
        } else {
            drop(state);
            // SAFETY: forwarded from the caller.
            unsafe { this.give_back(block, class, len) };
        }
        let units = units(class, len, this.page);
        if shard.note_free(units) {
            // SAFETY: the arena is closed, and these units are still in the sum.
            unsafe { Self::settle(inner, units) };
        }
    }

    #[cold]
    unsafe fn give_back(&self, block: NonNull<u8>, class: usize, len: usize) {
        if class == RUN {
            // SAFETY: a live run lies in a region of this arena.
            let first = unsafe { region::chunk_of(block) };
            let mut pool = self.pool.lock();
            for index in 0..run_chunks(len) {
                // SAFETY: the chunks of the run were the buffer's, which is gone.
                unsafe { pool.put(first.add(index)) };
            }
        } else {
            let mut c = self.class(class);
            // SAFETY: a live block of this class that nobody uses any more.
            let given = unsafe { c.give(block) };
            self.retire(given);
        }
        if self.account.is_over() {
            self.trim();
        }
    }

    /// Moves up to `count` blocks from a magazine to their class.
    #[cold]
    pub(super) fn drain(&self, class: usize, magazine: &mut Magazine, count: usize) {
        let mut c = self.class(class);
        // SAFETY: blocks in a magazine are live blocks of its class that nobody uses.
        magazine.take_oldest(count, |block| self.retire(unsafe { c.give(block) }));
    }

    /// Puts a chunk that a class has given up into the pool. Called under the class's lock, so
    /// that a purger always finds the chunk in one of the two.
    pub(super) fn retire(&self, given: Given) {
        if let Given::Retired(chunk) = given {
            // SAFETY: the class has given the chunk up to us.
            unsafe { self.pool.lock().put(chunk) };
        }
    }

    /// Fills half a magazine, or less if there is not as much within the limit.
    #[cold]
    fn refill(&self, class: usize, magazine: &mut Magazine) {
        // A refusal by the system is met again, and reported, on the slow path.
        let _ = self.take_blocks(class, magazine.batch(), None, |block| magazine.push(block));
    }

    fn take_block(&self, class: usize, len: usize) -> Result<NonNull<u8>, AllocError> {
        let needed = (Geometry::of(class, self.page).pages * self.page.bytes()) as u64;
        let reserve = |source| AllocError::Reserve { len, source: ErrorArc::new(source) };
        let mut block = None;
        self.take_blocks(class, 1, None, |b| block = Some(b)).map_err(reserve)?;
        if block.is_none() {
            // Without leave too: what was called back and is locked serves any class as it is.
            let leave = self.reserve_hard(needed);
            self.take_blocks(class, 1, leave, |b| block = Some(b)).map_err(reserve)?;
        }
        block.ok_or_else(|| self.exhausted(len, needed))
    }

    /// Takes up to `want` blocks of a class: warm ones; or those of a warm chunk from the pool;
    /// or, within `leave` (without it: within the limit), blocks that need new pages.
    /// Returns their number: at least one if there was leave for one.
    fn take_blocks(
        &self,
        class: usize,
        want: usize,
        leave: Option<Leave<'_>>,
        mut out: impl FnMut(NonNull<u8>),
    ) -> Result<usize, vm::Error> {
        let g = Geometry::of(class, self.page);
        let mut c = self.class(class);
        let taken = c.take_warm(want, &mut out);
        if taken > 0 {
            return Ok(taken);
        }
        let warm = self.pool.lock().take_warm(g.pages);
        if let Some(chunk) = warm {
            // SAFETY: just taken from the pool.
            unsafe { c.adopt(chunk) };
            return Ok(c.take_warm(want, &mut out));
        }
        let unit = (g.pages * self.page.bytes()) as u64;
        let spare = self.account.limit() / BATCH_SPARE;
        let leave = leave
            .or_else(|| self.account.try_reserve(unit * want as u64, spare))
            .or_else(|| self.account.try_reserve(unit, 0));
        let Some(mut leave) = leave else { return Ok(0) };
        if !c.has_free() {
            let chunk = self.pool.lock().take(self)?;
            if c.counts().0 > 0 || self.huge == HugePages::Always {
                self.make_huge(chunk);
            }
            // SAFETY: just taken from the pool.
            unsafe { c.adopt(chunk) };
        }
        let mut taken = 0;
        while taken < want && leave.bytes() >= unit {
            let Some((block, added)) = c.take_any() else { break };
            leave.spend(added as u64);
            out(block);
            taken += 1;
        }
        Ok(taken)
    }

    /// Asks for a huge page for a chunk of which nothing is backed, if the policy wants one and
    /// there is room to account for all of it.
    fn make_huge(&self, chunk: ChunkPtr) {
        let limit = self.account.limit();
        let spare = match self.huge {
            HugePages::Never => return,
            HugePages::Auto if limit < AUTO_HUGE_LEAST => return,
            HugePages::Auto => limit / AUTO_HUGE_SPARE,
            HugePages::Always => 0,
        };
        // SAFETY: the caller has the chunk to itself.
        let c = unsafe { chunk.get() };
        if !c.backed.is_empty() {
            return;
        }
        if let Some(mut leave) = self.account.try_reserve(CHUNK_BYTES as u64, spare) {
            // SAFETY: a chunk of this arena.
            unsafe { region::advise_huge(chunk, true) };
            leave.spend((c.set_huge(&self.all_pages()) * self.page.bytes()) as u64);
        }
    }

    fn take_run(&self, len: usize) -> Result<NonNull<u8>, AllocError> {
        let needed = footprint(RUN, len, self.page) as u64;
        let mut leave = self
            .account
            .try_reserve(needed, 0)
            .or_else(|| self.reserve_hard(needed))
            .ok_or_else(|| self.exhausted(len, needed))?;
        let first = self
            .pool
            .lock()
            .take_run(self, run_chunks(len))
            .map_err(|source| AllocError::Reserve { len, source: ErrorArc::new(source) })?;
        for index in 0..run_chunks(len) {
            // SAFETY: the run's chunks are adjacent and ours.
            let chunk = unsafe { first.add(index) };
            let pages = self.page.count((len - index * CHUNK_BYTES).min(CHUNK_BYTES));
            self.back_run_chunk(chunk, pages, &mut leave);
        }
        // SAFETY: a chunk of this arena.
        Ok(unsafe { region::data_of(first) })
    }

    /// Backs the first `pages` pages of a chunk and releases the others: while the run is out
    /// no purger could find them.
    fn back_run_chunk(&self, chunk: ChunkPtr, pages: usize, leave: &mut Leave<'_>) {
        // SAFETY: the chunk was taken for a run and is ours.
        let c = unsafe { chunk.get() };
        let mut others = c.backed;
        others.remove_range(0, pages);
        if !others.is_empty() {
            let was_huge = std::mem::replace(&mut c.huge, false);
            c.backed.remove_all(&self.release(chunk, &others, was_huge, leave));
        }
        let whole = pages == self.page.number_of(CHUNK_BYTES) && c.backed.is_empty();
        let wanted = match self.huge {
            HugePages::Never => false,
            HugePages::Auto => self.account.limit() >= AUTO_HUGE_LEAST,
            HugePages::Always => true,
        };
        if whole && wanted {
            // SAFETY: a chunk of this arena.
            unsafe { region::advise_huge(chunk, true) };
            c.huge = true;
        }
        let missing = pages - c.backed.count_range(0, pages);
        leave.spend((missing * self.page.bytes()) as u64);
        c.backed.insert_range(0, pages);
    }

    fn exhausted(&self, len: usize, needed: u64) -> AllocError {
        self.events.exhausted.fetch_add(1, Ordering::Relaxed);
        AllocError::Exhausted {
            len,
            needed,
            used: self.used(),
            committed: self.account.committed(),
            limit: self.account.limit(),
            locked: self.locked.load(Ordering::Relaxed),
        }
    }

    /// Bytes of blocks handed out; never more than at some moment during the call.
    pub(super) fn used(&self) -> u64 {
        // All allocations are read before any free, so that no free is missed whose
        // allocation was seen.
        let allocated = self.shards.iter().fold(0u64, |n, s| n.wrapping_add(s.allocated()));
        let freed = self.shards.iter().fold(0u64, |n, s| n.wrapping_add(s.freed()));
        let units = (allocated.wrapping_sub(freed) << 1).cast_signed() >> 1;
        units.max(0).cast_unsigned() * u64::from(SIZES[0])
    }

    /// The last handle is gone: frees everything, now or with the last buffer.
    ///
    /// # Safety
    /// `inner` came from [`Inner::open`], nobody allocates from it any more, and it is closed once.
    pub(super) unsafe fn close(inner: NonNull<Self>) {
        // SAFETY: it exists at least until `orphans` loses `OPEN`, below.
        let this = unsafe { inner.as_ref() };
        this.closed.store(true, Ordering::SeqCst);
        this.account.set_limit(0);
        this.purge();
        let sum = this.shards.iter().fold(0u64, |n, shard| n.wrapping_add(shard.close()));
        // Shards count modulo 2^63.
        let live = sum & (OPEN - 1);
        this.orphans.fetch_add(live, Ordering::Relaxed);
        // SAFETY: `OPEN` is in `orphans`, and only this call takes it out.
        unsafe { Self::settle(inner, OPEN) };
    }

    /// # Safety
    /// `amount` is in `orphans` on behalf of the caller, who does not use `inner` afterwards.
    #[cold]
    unsafe fn settle(inner: NonNull<Self>, amount: u64) {
        // SAFETY: by contract it exists until the caller's amount is gone.
        let before = unsafe { inner.as_ref() }.orphans.fetch_sub(amount, Ordering::AcqRel);
        if before == amount {
            // SAFETY: no handle and no buffer is left, and it was made as a box.
            drop(unsafe { Box::from_raw(inner.as_ptr()) });
        }
    }
}

#[inline]
fn hand_out(
    shard: &Shard,
    state: &mut State,
    block: NonNull<u8>,
    (class, len): (usize, usize),
    page: PageSize,
) -> Buffer {
    shard.note_alloc(state, class, len, units(class, len, page));
    // SAFETY: the block was taken for this buffer and holds at least `len` bytes.
    unsafe { Buffer::new(block, len, class) }
}

/// A buffer's memory in units of the smallest block.
#[inline]
fn units(class: usize, len: usize, page: PageSize) -> u64 {
    (footprint(class, len, page) / SIZES[0] as usize) as u64
}
