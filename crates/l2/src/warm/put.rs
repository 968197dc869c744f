//! Reading blocks in large pieces, and putting them into memory.

use std::cell::Cell;
use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_cache::{Attributes, Hint, Key, NotTaken, SpareRoom};

use super::WarmUpEnd;
use super::search::Found;
use crate::counters::LevelCounters;
use crate::format::{Block, BlockSeed, verify_block};
use crate::inner::Inner;
use crate::medium::Trouble;
use crate::record::{Record, State, UNIT_BYTES};

/// Bytes of a piece; one block may be more.
const PIECE_BYTES: u64 = 512 << 10;
/// What lies between two blocks is read too, rather than beginning another piece, if it is no more than this.
const GAP_BYTES: u64 = 64 << 10;
/// Pieces of a thread that are on their way at once, at most: a lot's. A thread that has to wait for a processor each time that it has to wait for the device is to have
/// much to do when it gets one.
const AT_ONCE: usize = 8;
/// The part of the arena that pieces of all threads take, at most.
const ARENA_SHARE: u64 = 4;

/// Why a block was passed over; the order of counter labels.
#[derive(Clone, Copy)]
enum Passed {
    There = 0,
    LetGo = 1,
    NoRoom = 2,
    NoMemory = 3,
    Unwanted = 4,
    UnknownOwner = 5,
    Undecodable = 6,
    Rotten = 7,
    Outdated = 8,
}

/// What is read at once.
struct Piece {
    start: u64,
    end: u64,
    /// Which of the blocks it has.
    blocks: Range<usize>,
}

/// A lot of blocks in pieces.
pub(super) struct Pieces<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a Inner<K, V>,
    found: &'a [Found],
    pieces: Vec<Piece>,
}

impl<'a, K: Key, V: Send + Sync + 'static> Pieces<'a, K, V> {
    /// `found` is sorted by segment, and by place within each.
    pub(super) fn of(inner: &'a Inner<K, V>, found: &'a [Found]) -> Self {
        let sector = u64::from(inner.medium.device.info().sector_bytes);
        let mut pieces: Vec<Piece> = Vec::new();
        for (number, one) in found.iter().enumerate() {
            let at = offset(inner, one);
            let start = at / sector * sector;
            let end = (at + bytes(one)).next_multiple_of(sector);
            if let Some(last) = pieces.last_mut()
                && found[last.blocks.start].seq == one.seq
                && start <= last.end + GAP_BYTES
                && end.max(last.end) - last.start <= PIECE_BYTES
            {
                last.end = last.end.max(end);
                last.blocks.end = number + 1;
            } else {
                pieces.push(Piece { start, end, blocks: number..number + 1 });
            }
        }
        Self { inner, found, pieces }
    }

    /// Reads all of them, and puts what is in them into memory.
    ///
    /// # Errors
    /// Why there is no use in going on.
    pub(super) fn put(&self, room: &SpareRoom<K, V>) -> Result<(), WarmUpEnd> {
        let inner = self.inner;
        let ended: Cell<Option<WarmUpEnd>> = Cell::new(None);
        let goes_on = |_: &&Piece| ended.get().is_none() && inner.status.is_open();
        let ranges = self.pieces.iter().take_while(goes_on);
        let ranges = ranges.map(|piece| (piece.start, piece.end - piece.start));
        inner.medium.read_some(self.at_once(), ranges, |number, read| {
            // What was on its way when it ended is let go.
            if ended.get().is_some() {
                return;
            }
            match read {
                Ok(buffer) => {
                    inner.counters.add(LevelCounters::WARM_BYTES, 0, buffer.len() as u64);
                    ended.set(self.put_piece(&self.pieces[number], &buffer, room).err());
                }
                Err(Trouble::Device(_)) => inner.counters.add(LevelCounters::WARM_ERRORS, 0, 1),
                Err(trouble) => ended.set(Some(inner.why_not_read(&trouble))),
            }
        });
        match ended.get() {
            Some(end) => Err(end),
            None => Ok(()),
        }
    }

    /// Pieces on their way at once, as far as there is memory for them.
    fn at_once(&self) -> usize {
        let share = self.inner.medium.arena.limit_bytes() / ARENA_SHARE;
        let each = share / u64::from(self.inner.tunables.warm_up_threads());
        ((each / PIECE_BYTES) as usize).clamp(1, AT_ONCE)
    }

    fn put_piece(
        &self,
        piece: &Piece,
        buffer: &Buffer,
        room: &SpareRoom<K, V>,
    ) -> Result<(), WarmUpEnd> {
        let inner = self.inner;
        for one in &self.found[piece.blocks.clone()] {
            let at = (offset(inner, one) - piece.start) as usize;
            let block = buffer.get(at..at + bytes(one) as usize).unwrap_or_default();
            match self.put_block(one, block, room) {
                Ok(()) => inner.counters.add(LevelCounters::WARMED, one.class as usize, 1),
                Err(passed) => {
                    inner.counters.add(LevelCounters::WARM_PASSED, passed as usize, 1);
                    if matches!(passed, Passed::NoRoom) {
                        return Err(WarmUpEnd::NoRoom);
                    }
                }
            }
            if !inner.status.is_open() {
                return Err(inner.why_not_open());
            }
        }
        Ok(())
    }

    /// Puts a block into memory, if it is what was written, and is still what its key stands for.
    fn put_block(&self, one: &Found, bytes: &[u8], room: &SpareRoom<K, V>) -> Result<(), Passed> {
        let inner = self.inner;
        let used_again = || inner.ring.seq(one.place.segment) != one.seq;
        let seed = BlockSeed::new(inner.ring.guid(), one.seq);
        let Some(Block { key, note, value }) = verify_block(seed, bytes) else {
            if used_again() {
                return Err(Passed::Outdated);
            }
            inner.flag(one.id, one.place);
            return Err(Passed::Rotten);
        };
        // The log says whose it is, and so does the block.
        if key.len() != inner.label.key_bytes || inner.identity_of(key) != one.id {
            return Err(Passed::Rotten);
        }
        let key = inner.ask(|codec| codec.decode_key(key, note)).ok_or(Passed::Undecodable)?;
        let key = key.ok_or(Passed::UnknownOwner)?;
        if inner.identity(&key) != Some(one.id) {
            return Err(Passed::Undecodable);
        }
        if room.has(&key) {
            return Err(Passed::There);
        }
        let value = inner.ask(|codec| codec.decode(&key, value)).flatten();
        let value = value.ok_or(Passed::Undecodable)?;
        let hint = if one.hits > 0 { Hint::Again } else { Hint::Normal };
        let attributes = Attributes { class: one.class, hint };
        // See the module's head. The level's status last: once it is not open, who forgets a key may leave its record in the index.
        let is_current = || {
            let mut live = false;
            // Memory has it from now on; it will say when it lets go of it.
            inner.index.change(one.id, one.place, |record| {
                live = record.state == State::Live;
                Some(Record { in_memory: record.in_memory || live, ..record })
            });
            live && !used_again()
                && (inner.immutable_keys || !inner.rebuild.hides(one.seq))
                && inner.status.is_open()
        };
        room.put(key, value, attributes, is_current).map_err(|why| match why {
            NotTaken::There => Passed::There,
            NotTaken::LetGo => Passed::LetGo,
            NotTaken::NoMemory => Passed::NoMemory,
            NotTaken::Unwanted | NotTaken::Closed => Passed::Unwanted,
            NotTaken::Outdated => Passed::Outdated,
            _ => Passed::NoRoom,
        })
    }
}

/// Where a block lies on the device.
fn offset<K: Key, V: Send + Sync + 'static>(inner: &Inner<K, V>, one: &Found) -> u64 {
    inner.ring.geometry.offset(one.place.segment) + u64::from(one.place.unit) * UNIT_BYTES
}

/// Bytes of a block, with its header.
fn bytes(one: &Found) -> u64 {
    u64::from(one.place.units) * UNIT_BYTES
}
