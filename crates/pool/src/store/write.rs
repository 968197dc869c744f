//! Writing blocks: sealing, placing, submitting.
//!
//! The steps are apart so that a caller can seal blocks before it is the allocator's turn, and
//! choose what readers find meanwhile: seal, place, hold ([`writing`](super::writing)), submit.
//! [`Store::write_new`] does all of them.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::{Priority, StableBytes};
use zerocopy::little_endian::{U32, U64};

use super::codec::{self, Sealed};
use super::counters::StoreCounters;
use super::gang::{self, GangPlan};
use super::worker_pool::{Job, OrderedResults};
use super::writing::HeldContent;
use super::{Allocate, Store, WriteProps};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, Checksum, Compression, DvaPhys};

/// The bytes of a block on their way to a device, and its content, which readers find until then.
pub(crate) struct WritePayload {
    packed: Option<Buffer>,
    held: Option<HeldContent>,
}

impl WritePayload {
    /// What is to be written of a block that was sealed, and held then.
    pub(crate) fn new(sealed: Sealed, held: HeldContent) -> Self {
        Self { packed: sealed.packed, held: Some(held) }
    }

    /// Whole sectors of which nobody but their writer knows.
    fn of_sectors(packed: Buffer) -> Self {
        Self { packed: Some(packed), held: None }
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

/// A part of a payload, or all of it, shared by several writes.
struct PayloadPart {
    whole: Arc<WritePayload>,
    range: Range<usize>,
}

// SAFETY: as for the payload, which the count keeps where it is.
unsafe impl StableBytes for PayloadPart {
    fn bytes(&self) -> &[u8] {
        &self.whole.bytes()[self.range.clone()]
    }
}

/// What a block is to have.
pub(crate) enum Content {
    Own(Buffer),
    /// Who changes the object may still look at it.
    Shared(Arc<Buffer>),
}

/// A block that has no place yet.
pub(crate) struct Packed {
    pub(crate) content: Content,
    pub(crate) sealed: Sealed,
}

/// Nothing comes of a block that is all zeros.
pub(super) type MaybePacked = Result<Option<Packed>>;

/// The packing of a block, to be done by whoever has time.
pub(crate) type PackJob = Job<MaybePacked>;

/// Blocks that are being packed, in order.
pub(crate) type Packing<'a> = OrderedResults<'a, MaybePacked>;

/// Packs blocks, on whatever thread.
#[derive(Clone)]
pub(crate) struct Packer {
    cache: Arc<BlockCache>,
    compression: Compression,
    sector_bytes: usize,
}

impl Packer {
    /// Memory for `len` bytes.
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
        let sealed = codec::seal(bytes, self.compression, self.sector_bytes, alloc)?;
        Ok(Packed { content, sealed })
    }
}

/// A block that has its place.
pub(crate) struct Placed {
    /// The pointer to it.
    pub(crate) bp: BlockPtrPhys,
    pub(super) gang: Option<GangPlan>,
}

impl Store {
    /// Packs content as `props` say, and computes its checksum. Any thread may, at any time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the content is empty or too long; [`ErrorKind::NoMemory`].
    pub(crate) fn seal(&self, content: &[u8], props: &WriteProps) -> Result<Sealed> {
        let alloc = |len| self.cache.alloc(len);
        codec::seal(content, props.compression, self.sector_bytes() as usize, alloc)
    }

    /// Who packs as `props` say.
    pub(crate) fn packer(&self, props: &WriteProps) -> Packer {
        Packer {
            cache: Arc::clone(&self.cache),
            compression: props.compression,
            sector_bytes: self.sector_bytes() as usize,
        }
    }

    /// Has blocks packed by several threads, for who takes them in order.
    pub(crate) fn pack(&self, jobs: Vec<PackJob>) -> Packing<'_> {
        self.packers.give(jobs)
    }

    /// Finds space for a sealed block: in one place, or in pieces if there is none. `content` is
    /// what was sealed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; whatever else `allocate` says; [`ErrorKind::NoMemory`]. Space that
    /// was found is given back.
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

    /// Begins to write a block to its place. Waits while too many bytes are on their way; so never
    /// call it in a request's callback. What fails is told by
    /// [`finish_writes`](Self::finish_writes).
    pub(crate) fn submit(&self, placed: Placed, payload: WritePayload) {
        let Placed { bp, gang } = placed;
        let copies = bp.copy_count() as u64;
        self.count(StoreCounters::BLOCKS_WRITTEN, 1);
        self.count(StoreCounters::LOGICAL_BYTES, u64::from(bp.logical_bytes.get()));
        self.count(StoreCounters::PHYSICAL_BYTES, copies * u64::from(bp.physical_bytes.get()));
        match gang {
            None if copies == 1 => self.submit_one(bp.copies[0], Box::new(payload)),
            None => {
                let whole = 0..payload.bytes().len();
                self.submit_part(bp.copies, &Arc::new(payload), whole);
            }
            Some(plan) => {
                let payload = Arc::new(payload);
                for (copies, range) in plan.pieces {
                    self.submit_part(copies, &payload, range);
                }
                for (copies, sector) in plan.sectors {
                    let whole = 0..sector.len();
                    let sector = Arc::new(WritePayload::of_sectors(sector));
                    self.submit_part(copies, &sector, whole);
                }
            }
        }
    }

    fn submit_part(&self, copies: [DvaPhys; 2], whole: &Arc<WritePayload>, range: Range<usize>) {
        for copy in copies.into_iter().filter(|copy| *copy != DvaPhys::NONE) {
            let part = PayloadPart { whole: Arc::clone(whole), range: range.clone() };
            self.submit_one(copy, Box::new(part));
        }
    }

    fn submit_one(&self, copy: DvaPhys, payload: Box<dyn StableBytes>) {
        let bytes = payload.bytes().len() as u64;
        if self.shared.in_flight.begin(bytes) {
            self.count(StoreCounters::WRITE_WAITS, 1);
        }
        self.count(StoreCounters::WRITES, 1);
        let Some(dva) = copy.get() else {
            let error = Error::new(ErrorKind::Invalid, "a block was placed nowhere");
            return self.shared.in_flight.end(bytes, Err(error));
        };
        let shared = Arc::clone(&self.shared);
        let done = move |result: Result<(), forebay_io::Error>| {
            if result.is_err() {
                shared.counters.add(StoreCounters::WRITE_ERRORS, 0, 1);
            }
            shared.in_flight.end(bytes, result.map_err(crate::devices::failed));
        };
        if let Err(error) = self.devices.write_async(dva, payload, Priority::AsyncWrite, done) {
            self.shared.in_flight.end(bytes, Err(error));
        }
    }

    /// Seals, places, holds and submits a new block. The pointer may be followed at once.
    ///
    /// # Errors
    /// As [`seal`](Self::seal) and [`place`](Self::place).
    pub(crate) fn write_new(
        &self,
        content: Buffer,
        props: &WriteProps,
        allocate: &mut dyn Allocate,
    ) -> Result<BlockPtrPhys> {
        let sealed = self.seal(&content, props)?;
        self.write_sealed(content, sealed, props, allocate)
    }

    /// The rest of that, for a block that was sealed.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub(crate) fn write_sealed(
        &self,
        content: Buffer,
        sealed: Sealed,
        props: &WriteProps,
        allocate: &mut dyn Allocate,
    ) -> Result<BlockPtrPhys> {
        let placed = self.place(&sealed, &content, props, allocate)?;
        let bp = placed.bp;
        let held = self.hold(&bp, content, props.cache);
        self.submit(placed, WritePayload::new(sealed, held));
        Ok(bp)
    }

    /// As [`write_new`](Self::write_new), to places that the caller has already, which take the
    /// content unpacked: `props.compression` is not looked at.
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

    /// Waits until all that was submitted has ended, and makes it durable.
    ///
    /// # Errors
    /// The first failure of a write since the last call, or of a flush: nothing of it may be relied
    /// on then.
    pub(crate) fn finish_writes(&self) -> Result<()> {
        self.shared.in_flight.finish()?;
        self.devices.flush_all()
    }

    /// Bytes on their way to devices.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.shared.in_flight.bytes()
    }

    /// Gives back the space of a block, all copies and pieces, and removes it from the cache.
    ///
    /// # Errors
    /// If it is in pieces, and what says where they are cannot be read: nothing is given back then.
    pub(crate) fn free(&self, bp: &BlockPtrPhys, allocate: &mut dyn Allocate) -> Result<()> {
        if bp.is_gang() {
            // Nothing is given back before all is known.
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

/// The pointer to a sealed block, without its places.
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
