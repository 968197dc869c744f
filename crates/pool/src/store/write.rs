//! Writes blocks: seal, place, hold, submit.
//!
//! The steps are separate, so that callers can seal blocks before they allocate, and choose the
//! content that readers find meanwhile: seal, place, hold ([`writing`](super::writing)), submit.
//! [`SyncContext::write_new`](crate::sync_context::SyncContext::write_new) performs all of them.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::{Priority, StableBytes};
use zerocopy::little_endian::{U32, U64};

use super::codec::{self, Sealed};
use super::counters::StoreCounters;
use super::gang::{self, GangPlan};
use super::in_flight::{Part, Write};
use super::worker_pool::{Job, OrderedResults};
use super::writing::HeldContent;
use super::{Allocate, Store, WriteProps};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, Checksum, Compression, DvaPhys};

/// The bytes of a block being written, and its content, which readers find until the write has
/// ended.
pub(crate) struct WritePayload {
    packed: Option<Buffer>,
    held: Option<HeldContent>,
    /// Of a gang block: the payload of the block that it belongs to. Without this gang block, the
    /// block cannot be read from the devices.
    _whole: Option<Arc<WritePayload>>,
}

impl WritePayload {
    /// Returns the payload of a sealed and held block.
    pub(crate) fn new(sealed: Sealed, held: HeldContent) -> Self {
        Self { packed: sealed.packed, held: Some(held), _whole: None }
    }

    /// Returns the payload of a gang block of the block with the payload `whole`.
    fn of_gang(packed: Buffer, whole: &Arc<Self>) -> Self {
        Self { packed: Some(packed), held: None, _whole: Some(Arc::clone(whole)) }
    }

    /// Whether the bytes are those of a block in the cache, which counts their memory.
    pub(super) fn is_cached(&self) -> bool {
        self.packed.is_none() && self.held.as_ref().is_some_and(HeldContent::is_cached)
    }

    /// Bytes of memory that it keeps, of the cache or not.
    pub(super) fn kept_bytes(&self) -> u64 {
        let held = self.held.as_ref().map_or(0, |held| held.bytes().len());
        (held + self.packed.as_ref().map_or(0, |packed| packed.len())) as u64
    }
}

// SAFETY: the bytes are those of a buffer, or of content in a pinned block or shared buffer: both
// stay where they are while this exists, wherever it is moved, and nobody writes to them.
unsafe impl StableBytes for WritePayload {
    fn bytes(&self) -> &[u8] {
        match (&self.packed, &self.held) {
            (Some(packed), _) => packed,
            (None, Some(held)) => held.bytes(),
            (None, None) => &[],
        }
    }
}

/// Content of a block to write.
pub(crate) enum Content {
    Own(Buffer),
    /// Shared with the object's dirty record, which readers still use.
    Shared(Arc<Buffer>),
}

/// A sealed block without an address.
pub(crate) struct Packed {
    pub(crate) content: Content,
    pub(crate) sealed: Sealed,
}

/// `None` for a block of zeros, which is not written.
pub(super) type MaybePacked = Result<Option<Packed>>;

/// A job that packs a block.
pub(crate) type PackJob = Job<MaybePacked>;

/// Blocks being packed, in order.
pub(crate) type Packing<'a> = OrderedResults<'a, MaybePacked>;

/// Packs blocks, on any thread.
#[derive(Clone)]
pub(crate) struct Packer {
    cache: Arc<BlockCache>,
    compression: Compression,
    kind: BlockKind,
    sector_bytes: usize,
}

impl Packer {
    /// Allocates a buffer of `len` bytes.
    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer> {
        self.cache.alloc(len)
    }

    /// Packs a block.
    ///
    /// # Errors
    /// As [`Store::seal`].
    pub(crate) fn pack(&self, content: Content) -> Result<Packed> {
        let bytes: &[u8] = match &content {
            Content::Own(content) => content,
            Content::Shared(content) => content,
        };
        let alloc = |len| self.cache.alloc(len);
        let sealed = codec::seal(bytes, (self.compression, self.kind), self.sector_bytes, alloc)?;
        Ok(Packed { content, sealed })
    }
}

/// A block with an address.
pub(crate) struct Placed {
    /// The pointer to the block.
    pub(crate) bp: BlockPtrPhys,
    pub(super) gang: Option<GangPlan>,
}

impl Store {
    /// Compresses content as `props` say and computes its checksum. Callable from any thread.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the content is empty or too long; [`ErrorKind::NoMemory`].
    pub(crate) fn seal(&self, content: &[u8], props: &WriteProps) -> Result<Sealed> {
        let alloc = |len| self.cache.alloc(len);
        let form = (props.compression, props.kind);
        codec::seal(content, form, self.sector_bytes() as usize, alloc)
    }

    /// Returns a packer for `props`.
    pub(crate) fn packer(&self, props: &WriteProps) -> Packer {
        Packer {
            cache: Arc::clone(&self.cache),
            compression: props.compression,
            kind: props.kind,
            sector_bytes: self.sector_bytes() as usize,
        }
    }

    /// Packs blocks on several threads. Returns them in order.
    pub(crate) fn pack(&self, jobs: Vec<PackJob>) -> Packing<'_> {
        self.packers.submit(jobs)
    }

    /// Allocates space for a sealed block: one extent per copy, or a gang if there is none.
    /// `content` is the content that was sealed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; other errors of `allocate`; [`ErrorKind::NoMemory`]. Space allocated
    /// so far is freed.
    pub(crate) fn place(
        &self,
        sealed: &Sealed,
        content: &[u8],
        props: &WriteProps,
        allocate: &mut dyn Allocate,
    ) -> Result<Placed> {
        let bytes = sealed.bytes(content);
        let mut bp = pointer(sealed, props);
        match allocate.allocate(bytes.len() as u64, props.copies) {
            Ok(copies) => {
                bp.copies = copies;
                Ok(Placed { bp, gang: None })
            }
            Err(error)
                if error.kind() == ErrorKind::NoSpace
                    && bytes.len() as u64 > self.sector_bytes() =>
            {
                let plan = gang::plan(self, bytes, &bp, props.copies, allocate)?;
                self.count(StoreCounters::GANGS, 1);
                bp.copies = plan.head;
                bp.flags |= BlockPtrPhys::GANG;
                Ok(Placed { bp, gang: Some(plan) })
            }
            Err(error) => Err(error),
        }
    }

    /// Starts the writes of a block, after [`Pause::before_write`](super::barrier::Pause). Waits
    /// while too many bytes are in flight, so it must not be called in an I/O callback. The next
    /// barrier, see [`barrier`](super::barrier), handles failures.
    pub(crate) fn submit(&self, placed: Placed, payload: WritePayload) {
        let Placed { bp, gang } = placed;
        let copies = bp.copy_count() as u64;
        self.count(StoreCounters::BLOCKS_WRITTEN, 1);
        self.count(StoreCounters::LOGICAL_BYTES, u64::from(bp.logical_bytes.get()));
        self.count(StoreCounters::PHYSICAL_BYTES, copies * u64::from(bp.physical_bytes.get()));
        let payload = Arc::new(payload);
        let block = bp.copies[0];
        match gang {
            None => {
                let whole = 0..payload.bytes().len();
                self.submit_part((bp.copies, block), &payload, whole);
            }
            Some(plan) => {
                for (copies, range) in plan.pieces {
                    self.submit_part((copies, block), &payload, range);
                }
                for (copies, sector) in plan.sectors {
                    let whole = 0..sector.len();
                    let sector = Arc::new(WritePayload::of_gang(sector, &payload));
                    self.submit_part((copies, block), &sector, whole);
                }
            }
        }
        drop(payload);
        self.limit_unflushed();
    }

    /// Writes all copies of a part of a block, whose first copy is at `block`.
    fn submit_part(
        &self,
        (copies, block): ([DvaPhys; 2], DvaPhys),
        payload: &Arc<WritePayload>,
        range: Range<usize>,
    ) {
        let Some(block) = block.get() else {
            let error = Error::new(ErrorKind::Invalid, "cannot write a block without an address");
            self.shared.in_flight.begin(0);
            return self.shared.in_flight.refuse(0, error);
        };
        let part = Part::new(payload, range, (copies, block), &self.cache);
        for copy in (0..copies.len()).filter(|copy| copies[*copy] != DvaPhys::NONE) {
            self.submit_write(Write { part: Arc::clone(&part), copy, is_retry: false });
        }
    }

    pub(super) fn submit_write(&self, write: Write) {
        let bytes = write.part.len();
        if self.shared.in_flight.begin(bytes) {
            self.count(StoreCounters::WRITE_WAITS, 1);
        }
        // It may have waited for longer than the lease lasts. The next barrier goes on.
        if self.lease.as_ref().is_some_and(|lease| !lease.is_valid()) {
            self.count(StoreCounters::WRITES_DEFERRED, 1);
            return self.shared.in_flight.defer(write);
        }
        self.count(StoreCounters::WRITES, 1);
        let Some(dva) = write.place() else {
            let error = Error::new(ErrorKind::Invalid, "cannot write a copy without an address");
            return self.shared.in_flight.refuse(bytes, error);
        };
        let (shared, kept) = (Arc::clone(&self.shared), write.clone());
        let done = move |result: Result<(), forebay_io::Error>| {
            if let Err(error) = &result {
                if error.kind() == forebay_io::ErrorKind::Cancelled {
                    // The lease ended while it was queued.
                    shared.counters.add(StoreCounters::WRITES_DEFERRED, 0, 1);
                    return shared.in_flight.defer(kept);
                }
                shared.counters.add(StoreCounters::WRITE_ERRORS, 0, 1);
                shared.events.note_failure(error);
            }
            shared.in_flight.end(kept, result);
        };
        let payload = Box::new(write);
        if let Err(error) = self.devices.write_async(dva, payload, Priority::AsyncWrite, done) {
            self.shared.in_flight.refuse(bytes, error);
        }
    }

    /// Seals, holds and submits a new block, at addresses that the caller has allocated for the
    /// uncompressed content. Ignores `props.compression`. Its pointer can be followed at once.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub(crate) fn write_at(
        &self,
        places: [DvaPhys; 2],
        content: Buffer,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let props = WriteProps { compression: Compression::Off, ..*props };
        let sealed = self.seal(&content, &props)?;
        let mut bp = pointer(&sealed, &props);
        bp.copies = places;
        let held = self.hold(&bp, content, props.cache);
        self.submit(Placed { bp, gang: None }, WritePayload::new(sealed, held));
        Ok(bp)
    }

    /// Bytes of writes in flight.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.shared.in_flight.bytes()
    }

    /// Frees the space of a block, all copies and pieces, and removes it from the cache.
    ///
    /// # Errors
    /// If it is a gang whose gang blocks cannot be read: nothing is freed.
    pub(crate) fn free(&self, bp: &BlockPtrPhys, allocate: &mut dyn Allocate) -> Result<()> {
        if bp.is_gang() {
            // Collects all pieces first, so that an error frees nothing.
            let mut pieces = Vec::new();
            self.for_each_piece(bp, &mut |dva, bytes| pieces.push((dva, bytes)))?;
            pieces.into_iter().for_each(|(dva, bytes)| allocate.free(dva, bytes));
        } else {
            let bytes = bp.allocated_bytes(self.sector_bytes());
            bp.dvas().for_each(|dva| allocate.free(dva, bytes));
        }
        self.cache.cache().remove(&self.key(bp));
        Ok(())
    }
}

/// Returns the pointer of a sealed block, without addresses.
fn pointer(sealed: &Sealed, props: &WriteProps) -> BlockPtrPhys {
    BlockPtrPhys {
        checksum: sealed.checksum,
        birth_txg: U64::new(props.txg),
        logical_bytes: U32::new(sealed.logical_bytes),
        physical_bytes: U32::new(sealed.physical_bytes),
        compression: sealed.compression as u8,
        checksum_kind: Checksum::Xxh3 as u8,
        level: props.level,
        kind: props.kind as u8,
        fill: U64::new(props.fill),
        ..BlockPtrPhys::HOLE
    }
}
