//! Gang blocks: blocks stored in several pieces, for when no contiguous free range is large enough.
//!
//! The pieces of a gang are whole sectors with their own copies and checksums. The pointer to the
//! gang has the checksum of all bytes. A gang block also has its own checksum, and identifies the
//! block that it belongs to.
//!
//! The planner takes the largest pieces available. It halves the requested size on failure and
//! keeps what it gets: space that is allocated and freed in the same txg would be unusable in that
//! txg. A gang whose pointers do not suffice becomes a tree. Each level divides by the number of
//! pointers in a sector, so [`GANG_DEPTH`] levels suffice for the largest block.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_io::Priority;
use zerocopy::little_endian::{U32, U64};

use super::read::{ReadCause, check, lost, no_source};
use super::{Allocate, Store, codec};
use crate::devices::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gang::{GANG_DEPTH, GangPhys, gang_capacity, read_gang, write_gang};
use crate::format::{BlockKind, BlockPtrPhys, Compression, Dva, DvaPhys};

/// The writes of a gang.
pub(super) struct GangPlan {
    /// Address of the root gang block.
    pub(super) head: [DvaPhys; 2],
    /// Pieces: addresses and ranges of the block's bytes.
    pub(super) pieces: Vec<([DvaPhys; 2], Range<usize>)>,
    /// Gang blocks: addresses and content.
    pub(super) sectors: Vec<([DvaPhys; 2], Buffer)>,
}

/// Allocates pieces for `bytes`, whole sectors that `bp` describes.
pub(super) fn plan(
    store: &Store,
    bytes: &[u8],
    bp: &BlockPtrPhys,
    copies: usize,
    allocate: &mut dyn Allocate,
) -> Result<GangPlan> {
    let (pieces, sectors) = (Vec::new(), Vec::new());
    let sector = store.sector_bytes() as usize;
    let capacity = gang_capacity(sector);
    let taken = Vec::new();
    let mut planner =
        Planner { store, bytes, sector, capacity, copies, allocate, pieces, sectors, taken };
    let (birth, whole) = (bp.birth_txg.get(), bp.checksum);
    match planner.divide(0..bytes.len(), birth, whole, 1) {
        Ok(head) => {
            let Planner { pieces, sectors, .. } = planner;
            Ok(GangPlan { head, pieces, sectors })
        }
        Err(error) => {
            for (place, bytes) in std::mem::take(&mut planner.taken) {
                for dva in place.into_iter().filter_map(DvaPhys::get) {
                    planner.allocate.free(dva, bytes);
                }
            }
            Err(error)
        }
    }
}

struct Planner<'a> {
    store: &'a Store,
    bytes: &'a [u8],
    sector: usize,
    capacity: usize,
    copies: usize,
    allocate: &'a mut dyn Allocate,
    pieces: Vec<([DvaPhys; 2], Range<usize>)>,
    sectors: Vec<([DvaPhys; 2], Buffer)>,
    // All allocations, to free them if there is not enough space.
    taken: Vec<([DvaPhys; 2], u64)>,
}

impl Planner<'_> {
    fn take(&mut self, bytes: usize) -> Result<[DvaPhys; 2]> {
        let place = self.allocate.allocate(bytes as u64, self.copies)?;
        self.taken.push((place, bytes as u64));
        Ok(place)
    }

    /// As [`take`](Self::take), but returns `None` if no contiguous free range is large enough.
    fn try_take(&mut self, bytes: usize) -> Result<Option<[DvaPhys; 2]>> {
        match self.take(bytes) {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Divides a range into pieces and returns the address of its gang block.
    fn divide(
        &mut self,
        range: Range<usize>,
        birth: u64,
        whole: [u8; 16],
        depth: usize,
    ) -> Result<[DvaPhys; 2]> {
        if range.len() <= self.sector || depth > GANG_DEPTH {
            let text = "no free sector is left on the devices";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let head = self.take(self.sector)?;
        let mut pointers = Vec::with_capacity(self.capacity);
        let mut size = (range.len() / self.sector).div_ceil(2) * self.sector;
        let mut at = range.start;
        while at < range.end {
            let left = range.end - at;
            // Smaller pieces would need more pointers than are left.
            let slots = self.capacity - pointers.len();
            let least = (left / self.sector).div_ceil(slots) * self.sector;
            size = size.clamp(least, left);
            let place = self.try_take(size)?;
            if place.is_none() && size > least {
                size = ((size / self.sector).div_ceil(2) * self.sector).max(least);
                continue;
            }
            let part = at..at + size;
            pointers.push(self.piece(part, place, birth, depth)?);
            at += size;
        }
        let mut sector = self.store.cache.alloc(self.sector)?;
        let head_phys = GangPhys { birth_txg: U64::new(birth), whole, ..GangPhys::default() };
        write_gang(&mut sector, head_phys, &pointers);
        self.sectors.push((head, sector));
        Ok(head)
    }

    /// Returns the pointer to a piece: at `place`, or divided again if `place` is `None`.
    fn piece(
        &mut self,
        part: Range<usize>,
        place: Option<[DvaPhys; 2]>,
        birth: u64,
        depth: usize,
    ) -> Result<BlockPtrPhys> {
        let bytes = U32::new(part.len() as u32);
        let mut bp = BlockPtrPhys {
            checksum: codec::checksum(&self.bytes[part.clone()]),
            birth_txg: U64::new(birth),
            logical_bytes: bytes,
            physical_bytes: bytes,
            kind: BlockKind::Gang as u8,
            ..BlockPtrPhys::HOLE
        };
        match place {
            Some(place) => {
                bp.copies = place;
                self.pieces.push((place, part));
            }
            None => {
                bp.copies = self.divide(part, birth, bp.checksum, depth + 1)?;
                bp.flags = BlockPtrPhys::GANG;
            }
        }
        Ok(bp)
    }
}

impl Store {
    /// Reads the bytes of a gang, whole sectors. With `n`, uses only copy `n` of each piece.
    /// Without, uses the first good copy and heals the others.
    pub(super) fn read_gang(&self, bp: &BlockPtrPhys, n: Option<usize>) -> Result<Buffer> {
        let mut bytes = self.cache.alloc(bp.allocated_bytes(self.sector_bytes()) as usize)?;
        self.read_pieces(bp, n, 1, &mut bytes)?;
        Ok(bytes)
    }

    fn read_pieces(
        &self,
        bp: &BlockPtrPhys,
        n: Option<usize>,
        depth: usize,
        mut to: &mut [u8],
    ) -> Result<()> {
        for piece in self.pieces(bp, n, depth)? {
            let (here, rest) = to.split_at_mut(piece.logical_bytes.get() as usize);
            to = rest;
            if piece.is_gang() {
                self.read_pieces(&piece, n, depth + 1, here)?;
                continue;
            }
            let content = match n.map(|n| self.gang_place(&piece, n)) {
                Some(place) => self.load_place(&piece, place?, ReadCause::Scrub)?.content,
                None => self.load_from_devices(&piece)?,
            };
            here.copy_from_slice(&content);
        }
        Ok(())
    }

    /// Returns the pointers of a gang block, checked: their sizes add up to the size of the block.
    fn pieces(
        &self,
        bp: &BlockPtrPhys,
        n: Option<usize>,
        depth: usize,
    ) -> Result<Vec<BlockPtrPhys>> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("gang {bp:?}: {what}"));
        if depth > GANG_DEPTH {
            return Err(corrupt("is nested too deeply"));
        }
        let (_, pieces) = self.gang_sector(bp, n)?;
        let sector = self.sector_bytes();
        let mut left = bp.allocated_bytes(sector);
        for piece in &pieces {
            check(piece)?;
            let bytes = u64::from(piece.logical_bytes.get());
            let fits = piece.birth_txg == bp.birth_txg
                && piece.block_kind() == Some(BlockKind::Gang)
                && piece.compression == Compression::Off as u8
                && bytes.is_multiple_of(sector)
                && bytes <= left;
            if !fits {
                return Err(corrupt("has an invalid piece"));
            }
            left -= bytes;
        }
        match left {
            0 => Ok(pieces),
            _ => Err(corrupt("its pieces are shorter than the block")),
        }
    }

    /// The n-th place of a gang block or piece. Pieces may be on vdevs with fewer devices.
    fn gang_place(&self, bp: &BlockPtrPhys, n: usize) -> Result<Place> {
        let sides = self.devices.sides();
        let none = || Error::new(ErrorKind::Corrupt, format!("gang {bp:?}: has no copy {n}"));
        let dva = bp.dvas().nth(n / sides).ok_or_else(none)?;
        let side = (n % sides).min(self.devices.place_count(dva) - 1);
        Ok(self.devices.nth_place(dva, side))
    }

    /// All places of a gang block.
    fn gang_places(&self, bp: &BlockPtrPhys) -> Vec<Place> {
        let of = |dva| {
            let count = self.devices.place_count(dva);
            (0..count).map(move |side| self.devices.nth_place(dva, side))
        };
        bp.dvas().flat_map(of).collect()
    }

    /// Reads a gang block: from the n-th place, or from the first good copy.
    fn gang_sector(
        &self,
        bp: &BlockPtrPhys,
        n: Option<usize>,
    ) -> Result<(Buffer, Vec<BlockPtrPhys>)> {
        let places = match n {
            Some(n) => vec![self.gang_place(bp, n)?],
            None => self.gang_places(bp),
        };
        let mut failures = Vec::new();
        for (at, place) in places.iter().enumerate() {
            match self.gang_copy(bp, *place, n.is_some()) {
                Ok((sector, pieces)) => {
                    if self.may_heal() {
                        // A failure is counted.
                        let bad = places[..at].iter();
                        let write = Priority::SyncWrite;
                        bad.for_each(|bad| drop(self.rewrite_bytes(bp, *bad, &sector, write)));
                    }
                    return Ok((sector, pieces));
                }
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                Err(error) => failures.push((*place, error)),
            }
        }
        Err(lost(bp, self.judge(bp, failures)?))
    }

    fn gang_copy(
        &self,
        bp: &BlockPtrPhys,
        place: Place,
        scrub: bool,
    ) -> Result<(Buffer, Vec<BlockPtrPhys>)> {
        let priority = if scrub { Priority::Scrub } else { Priority::SyncRead };
        let buffer = self.cache.alloc(self.sector_bytes() as usize)?;
        let sector = self.devices.read(place, buffer, priority)?;
        match read_gang(&sector, bp.birth_txg.get(), &bp.checksum) {
            Some(pieces) => Ok((sector, pieces)),
            None => {
                let text = format!("{place} of gang {bp:?}: checksum mismatch");
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }

    /// Rewrites the bad `n`-th copies of a gang's blocks and pieces.
    pub(super) fn heal_gang(&self, bp: &BlockPtrPhys, n: usize) -> Result<()> {
        self.heal_gang_at(bp, n, 1)
    }

    fn heal_gang_at(&self, bp: &BlockPtrPhys, n: usize, depth: usize) -> Result<()> {
        let pieces = self.pieces(bp, None, depth).map_err(no_source)?;
        let sides = self.devices.sides();
        if n / sides < bp.copy_count() {
            let place = self.gang_place(bp, n)?;
            if self.gang_copy(bp, place, true).is_err() {
                let (sector, _) = self.gang_sector(bp, None).map_err(no_source)?;
                self.rewrite_bytes(bp, place, &sector, Priority::Scrub)?;
            }
        }
        for piece in pieces.iter().filter(|piece| n / sides < piece.copy_count()) {
            if piece.is_gang() {
                self.heal_gang_at(piece, n, depth + 1)?;
                continue;
            }
            let place = self.gang_place(piece, n)?;
            if self.load_place(piece, place, ReadCause::Scrub).is_err() {
                self.heal_place(piece, place)?;
            }
        }
        Ok(())
    }

    /// Calls `report` for each extent of a block: its copies, or the gang blocks and pieces of a
    /// gang.
    ///
    /// # Errors
    /// If a gang block cannot be read. `report` may have been called for some extents.
    pub(crate) fn for_each_piece(
        &self,
        bp: &BlockPtrPhys,
        report: &mut dyn FnMut(Dva, u64),
    ) -> Result<()> {
        self.report_pieces(bp, None, 1, report)
    }

    /// The extents of a block, as [`for_each_piece`](Self::for_each_piece) reports them. Reads the
    /// gang blocks of a gang from one copy after the other and heals none, so the caller need not
    /// be a reader.
    ///
    /// # Errors
    /// If no copy of a gang block can be read; [`ErrorKind::NoMemory`].
    pub(crate) fn extents(&self, bp: &BlockPtrPhys) -> Result<Vec<(Dva, u64)>> {
        let copies = if bp.is_gang() { self.place_count(bp) } else { 1 };
        let mut found = Ok(Vec::new());
        for n in 0..copies.max(1) {
            let mut extents = Vec::new();
            let read =
                self.report_pieces(bp, Some(n), 1, &mut |dva, bytes| extents.push((dva, bytes)));
            found = read.map(|()| extents);
            match &found {
                Err(error) if error.kind() != ErrorKind::NoMemory => {}
                _ => break,
            }
        }
        found
    }

    fn report_pieces(
        &self,
        bp: &BlockPtrPhys,
        n: Option<usize>,
        depth: usize,
        report: &mut dyn FnMut(Dva, u64),
    ) -> Result<()> {
        let sector = self.sector_bytes();
        let bytes = if bp.is_gang() { sector } else { bp.allocated_bytes(sector) };
        bp.dvas().for_each(|dva| report(dva, bytes));
        if bp.is_gang() {
            for piece in self.pieces(bp, n, depth)? {
                self.report_pieces(&piece, n, depth + 1, report)?;
            }
        }
        Ok(())
    }
}
