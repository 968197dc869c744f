//! The ring: addresses of blocks, the blocks that a root needs, and the space that may be
//! overwritten.
//!
//! An offset counts all bytes ever written. Its position in the ring is the remainder by the ring's
//! size.
//!
//! Blocks begin and end at multiples of [`LOG_SECTOR_BYTES`]. So no write of a block rewrites a
//! physical sector that holds another one, which a torn write would damage.
//!
//! # Content of a root
//!
//! A block holds records of one or two txgs. The root of txg `T` needs the blocks with a record of
//! a later txg. Replay starts at the first of these, its *head*, and skips records of `T` and
//! older. Blocks written after the root was issued follow and need no bookkeeping. A block is a
//! possible head only if it has a record newer than all records before it. So the ring tracks
//! *runs*: the first block for each newest txg, at most three at a time.
//!
//! # Overwriting
//!
//! The space before the head of the root before the newest durable one may be overwritten. The
//! newest root stores that head as its tail.

use std::collections::VecDeque;

use forebay_base::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::LOG_VDEV;
use crate::format::{
    Dva, DvaPhys, LOG_EXTENTS_MAX, LOG_ROOT_MAGIC, LOG_SECTOR_BYTES, LogExtentPhys, LogHomePhys,
    LogRootPhys,
};

/// Larger sizes and offsets are corrupt.
const OFFSET_MAX: u64 = 1 << 62;
/// Maximum size of a ring.
const RING_BYTES_MAX: u64 = 1 << 40;

/// The extents of the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extents {
    extents: Vec<(Dva, u64)>,
    bytes: u64,
}

impl Extents {
    /// Returns the extents of a root.
    ///
    /// # Errors
    /// `Corrupt` if they are invalid.
    pub(super) fn of(root: &LogRootPhys) -> Result<Self> {
        Self::listed(root.extent_count.get() as usize, &root.extents)
    }

    /// Returns the extents of the ring at home.
    ///
    /// # Errors
    /// `Corrupt` if they are invalid.
    pub(super) fn of_home(home: &LogHomePhys) -> Result<Self> {
        Self::listed(home.extent_count.get() as usize, &home.extents)
    }

    fn listed(count: usize, extents: &[LogExtentPhys; LOG_EXTENTS_MAX]) -> Result<Self> {
        let corrupt = |text: String| Error::new(ErrorKind::Corrupt, format!("log root: {text}"));
        let listed = extents.get(..count);
        let listed = listed.ok_or_else(|| corrupt(format!("has {count} extents")))?;
        let mut extents = Vec::with_capacity(count);
        let mut bytes = 0u64;
        for extent in listed {
            let start = extent
                .start
                .get()
                .ok_or_else(|| corrupt("has an extent without an address".into()))?;
            let len = extent.bytes.get();
            let whole = len.is_multiple_of(LOG_SECTOR_BYTES)
                && start.offset.is_multiple_of(LOG_SECTOR_BYTES);
            if len == 0 || len > RING_BYTES_MAX || !whole {
                return Err(corrupt(format!("has an invalid extent of {len} bytes at {start}")));
            }
            extents.push((start, len));
            bytes += len;
        }
        if bytes > RING_BYTES_MAX {
            return Err(corrupt(format!("has a ring of {bytes} bytes, which is too large")));
        }
        Ok(Self { extents, bytes })
    }

    /// Encodes the extents.
    pub(super) fn encode(&self) -> [LogExtentPhys; LOG_EXTENTS_MAX] {
        let mut phys = [LogExtentPhys::default(); LOG_EXTENTS_MAX];
        for (slot, (start, bytes)) in phys.iter_mut().zip(&self.extents) {
            *slot = LogExtentPhys { start: DvaPhys::new(*start), bytes: (*bytes).into() };
        }
        phys
    }

    /// Number of extents.
    pub(super) fn count(&self) -> u32 {
        self.extents.len() as u32
    }

    /// The number of the log vdev that it is on.
    pub(super) fn log_vdev(&self) -> Option<u16> {
        let (start, _) = self.extents.first()?;
        (start.device & LOG_VDEV != 0).then_some(start.device)
    }

    /// Size of the ring in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps `len` bytes from `offset` on to device addresses with lengths.
    pub(super) fn places(&self, offset: u64, len: u64) -> Vec<(Dva, u64)> {
        assert!(len <= self.bytes, "more than the ring");
        let mut places = Vec::new();
        let (mut at, mut left) = (offset % self.bytes.max(1), len);
        let mut extents = self.extents.iter().cycle();
        while left > 0 {
            let Some(&(start, bytes)) = extents.next() else { break };
            if at >= bytes {
                at -= bytes;
                continue;
            }
            let part = left.min(bytes - at);
            places.push((Dva { offset: start.offset + at, ..start }, part));
            left -= part;
            at = 0;
        }
        places
    }
}

/// The first block for which `txg_high` is the newest txg.
#[derive(Clone, Copy, Debug)]
struct Run {
    txg_high: u64,
    head: BlockPosition,
}

/// Position of a block in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockPosition {
    pub(super) offset: u64,
    pub(super) sequence: u64,
}

/// A root that was issued and is not durable yet.
struct IssuedRoot {
    txg: u64,
    head: BlockPosition,
    /// Whether it begins a generation, in which blocks can be written.
    opens: bool,
    /// Whether it contains all replayed changes.
    ends_replay: bool,
    /// Whether the ring has moved with it.
    moves: bool,
}

/// A replay that has not ended, or whose last changes are not durable.
struct Replaying {
    /// The root from which the replay started.
    root: LogRootPhys,
    /// Number of records applied, and the txg of the last of them, by txg slot.
    applied: [(u64, u64); 2],
    /// The number of applied records stored in the newest issued root.
    reported: u64,
    done: bool,
}

/// A part of the log: from one offset to another, in the ring of a generation.
#[derive(Clone)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) end: u64,
    pub(super) generation: u64,
    pub(super) extents: Arc<Extents>,
}

impl Span {
    /// Whether a part of it is on a vdev.
    fn is_on(&self, vdev: u16) -> bool {
        let bytes = self.end.saturating_sub(self.offset).min(self.extents.bytes());
        self.extents.places(self.offset, bytes).iter().any(|(dva, _)| dva.device == vdev)
    }
}

/// State protected by `log-ring`.
///
/// # Moves
///
/// The ring may move to other extents: to a log vdev, or back home, into the space of the pool. A
/// root moves it when it begins a generation. It needs no block of the old place then, and the root
/// before still finds all of its blocks there. It moves to a log vdev only with a root whose txg
/// that vdev was stamped with; each root there stores the newest stamp.
///
/// # Generations
///
/// After an import, and after a failed write, stale blocks may follow the last valid one. A new
/// block in the gap would make them its successors. So nothing is written until a root with a new
/// generation is durable; blocks of older generations are then invalid. A root may change the
/// generation only if it needs no block of the old one.
pub(super) struct Ring {
    guid: u64,
    generation: u64,
    extents: Arc<Extents>,
    /// Where the next generation will be.
    target: Arc<Extents>,
    /// The log vdev that was stamped last, and its newest stamp.
    stamp: Option<(u16, u64)>,
    /// The newest txg whose root names a log vdev; 0 if none.
    away_txg: u64,
    /// Position of the next block.
    next: BlockPosition,
    runs: VecDeque<Run>,
    /// Whether writing waits for a new generation to become durable.
    closed: bool,
    issued: Option<IssuedRoot>,
    /// Head of the newest durable root.
    durable: u64,
    /// Head of the root before it. Space from here on must not be overwritten.
    tail: u64,
    replaying: Option<Replaying>,
    /// The batch that is being written.
    writing: Option<Span>,
    /// The newest durable batch; at first what a replay reads.
    written: Span,
}

/// Space reserved for blocks.
pub(super) struct Reserved {
    pub(super) head: BlockPosition,
    pub(super) generation: u64,
    pub(super) extents: Arc<Extents>,
}

impl Ring {
    /// Opens the ring of a durable root. Nothing is written to it before a replay has ended.
    ///
    /// # Errors
    /// `Corrupt` if the root is invalid.
    pub(super) fn open(root: &LogRootPhys, extents: &Arc<Extents>) -> Result<Self> {
        let head =
            BlockPosition { offset: root.head_offset.get(), sequence: root.head_sequence.get() };
        let tail = root.tail_offset.get();
        let sound = root.magic.get() == LOG_ROOT_MAGIC
            && head.offset.is_multiple_of(LOG_SECTOR_BYTES)
            && head.offset <= OFFSET_MAX
            && head.sequence <= OFFSET_MAX
            && root.generation.get() <= OFFSET_MAX
            && tail <= head.offset
            && head.offset - tail <= extents.bytes();
        if !sound {
            let text = format!("log root: invalid head {} or tail {tail}", head.offset);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let reported = root.replayed.get();
        let replaying =
            Replaying { root: *root, applied: [(0, reported); 2], reported, done: false };
        let away = extents.log_vdev();
        let generation = root.generation.get();
        let written = Span { offset: 0, end: 0, generation, extents: Arc::clone(extents) };
        Ok(Self {
            guid: root.guid.get(),
            generation,
            extents: Arc::clone(extents),
            target: Arc::clone(extents),
            stamp: away.map(|number| (number, root.stamp.get())),
            away_txg: if away.is_some() { root.txg.get() } else { 0 },
            next: head,
            runs: VecDeque::new(),
            closed: true,
            issued: None,
            durable: head.offset,
            tail,
            replaying: Some(replaying),
            writing: None,
            written,
        })
    }

    /// Skips the generations of groups that were given up: each may have begun one.
    pub(super) fn skip_generations(&mut self, groups: u64) {
        self.generation = self.generation.saturating_add(groups);
    }

    /// Whether blocks can be written.
    pub(super) fn is_open(&self) -> bool {
        !self.closed && self.replaying.is_none()
    }

    /// Reserves space for `blocks` blocks of `bytes` bytes in total, with newest txg `txg_high`.
    /// Returns `None` if the ring is full.
    pub(super) fn reserve(&mut self, bytes: u64, blocks: u64, txg_high: u64) -> Option<Reserved> {
        debug_assert!(self.is_open());
        let end = self.next.offset + bytes;
        if end - self.tail > self.extents.bytes() {
            return None;
        }
        let head = self.next;
        if self.runs.back().is_none_or(|run| run.txg_high < txg_high) {
            self.runs.push_back(Run { txg_high, head });
        }
        self.next = BlockPosition { offset: end, sequence: head.sequence + blocks };
        let extents = Arc::clone(&self.extents);
        let generation = self.generation;
        let span = Span { offset: head.offset, end, generation, extents: Arc::clone(&extents) };
        self.writing = Some(span);
        Some(Reserved { head, generation, extents })
    }

    /// The batch of the space that was reserved last ends with this result.
    pub(super) fn end_batch(&mut self, is_durable: bool) {
        let batch = self.writing.take();
        match batch.filter(|_| is_durable) {
            Some(batch) => self.written = batch,
            None => self.fail(),
        }
    }

    /// Whether a batch is being written that is on a vdev.
    pub(super) fn writes_to(&self, vdev: u16) -> bool {
        self.writing.as_ref().is_some_and(|batch| batch.is_on(vdev))
    }

    /// What a replay from the newest durable root would read, as far as it is durable, if some of
    /// that is on a vdev.
    pub(super) fn needed_on(&self, vdev: u16) -> Option<Span> {
        let needed = Span { offset: self.durable, ..self.written.clone() };
        needed.is_on(vdev).then_some(needed)
    }

    /// The extents of the ring.
    pub(super) fn extents(&self) -> Arc<Extents> {
        Arc::clone(&self.extents)
    }

    /// Moves the ring as soon as a root can. Until then nothing is written. On a log vdev that
    /// has it already, it stays as it is: a longer one would overwrite what the root before needs.
    pub(super) fn move_to(&mut self, target: &Arc<Extents>) {
        let vdev = target.log_vdev();
        let stays = vdev.is_some() && vdev == self.extents.log_vdev();
        let target = if stays { &Arc::clone(&self.extents) } else { target };
        if self.target != *target {
            self.target = Arc::clone(target);
            self.fail();
        }
    }

    /// Whether the ring is at home, in the space of the pool, and stays there.
    pub(super) fn is_home(&self) -> bool {
        self.extents.log_vdev().is_none() && self.target.log_vdev().is_none()
    }

    /// Whether the ring is on a log vdev, and stays there.
    pub(super) fn is_away(&self) -> bool {
        self.extents.log_vdev().is_some() && !self.is_moving()
    }

    /// Whether the ring waits for a root to move it.
    pub(super) fn is_moving(&self) -> bool {
        self.target != self.extents
    }

    /// The log vdev with this number has the stamp of `txg`, durably.
    pub(super) fn stamped(&mut self, number: u16, txg: u64) {
        self.stamp = Some((number, txg));
    }

    /// The newest txg whose root names a log vdev. `None` if the next one may.
    pub(super) fn left_log_vdev(&self) -> Option<u64> {
        self.is_home().then_some(self.away_txg)
    }

    /// Whether the issued root contains all replayed changes.
    pub(super) fn ends_replay(&self) -> bool {
        self.issued.as_ref().is_some_and(|issued| issued.ends_replay)
    }

    /// Handles a failed write: no block is written until a new generation is durable.
    pub(super) fn fail(&mut self) {
        self.closed = true;
        // A root that was to reopen the ring may have been issued before blocks were reserved.
        if let Some(issued) = &mut self.issued {
            issued.opens = false;
        }
    }

    /// Returns the log's part of the root of `txg`. For the sync thread, after the txg's holds are
    /// gone.
    pub(super) fn root_for(&mut self, txg: u64) -> LogRootPhys {
        let unfinished = self.replaying.as_mut().and_then(|replaying| replaying.root_for(txg));
        if let Some(root) = unfinished {
            let head = BlockPosition { offset: self.durable, sequence: root.head_sequence.get() };
            let (opens, ends_replay, moves) = (false, false, false);
            self.issued = Some(IssuedRoot { txg, head, opens, ends_replay, moves });
            if self.extents.log_vdev().is_some() {
                self.away_txg = txg;
            }
            return root;
        }
        let first = self.runs.iter().find(|run| run.txg_high > txg);
        let head = first.map_or(self.next, |run| run.head);
        // Without the stamp, a log vdev would pass for an older copy of itself.
        let may_open = match self.target.log_vdev() {
            Some(number) if self.is_moving() => self.stamp == Some((number, txg)),
            _ => true,
        };
        let opens = self.closed && first.is_none() && may_open;
        let moves = opens && self.is_moving();
        if opens {
            self.generation += 1;
            self.extents = Arc::clone(&self.target);
        }
        let away = self.extents.log_vdev();
        if away.is_some() {
            self.away_txg = txg;
        }
        let stamp = self.stamp.filter(|(number, _)| away == Some(*number));
        self.issued = Some(IssuedRoot { txg, head, opens, ends_replay: true, moves });
        LogRootPhys {
            magic: LOG_ROOT_MAGIC.into(),
            guid: self.guid.into(),
            generation: self.generation.into(),
            txg: txg.into(),
            head_offset: head.offset.into(),
            head_sequence: head.sequence.into(),
            // The new place holds nothing that a root needs.
            tail_offset: if moves { head.offset } else { self.durable }.into(),
            replayed: 0.into(),
            extent_count: self.extents.count().into(),
            stamp: stamp.map_or(0, |(_, txg)| txg).into(),
            reserved: Default::default(),
            extents: self.extents.encode(),
        }
    }

    /// The root of `txg`, with the result of [`root_for`](Self::root_for), is durable.
    pub(super) fn synced(&mut self, txg: u64) {
        let Some(issued) = self.issued.take_if(|issued| issued.txg == txg) else { return };
        self.tail = if issued.moves { issued.head.offset } else { self.durable };
        self.durable = issued.head.offset;
        while self.runs.front().is_some_and(|run| run.txg_high <= txg) {
            self.runs.pop_front();
        }
        if issued.opens {
            self.closed = false;
        }
        if issued.ends_replay {
            self.replaying = None;
        }
    }

    /// A record was replayed; its change was made in `txg`.
    pub(super) fn applied(&mut self, txg: u64) {
        if let Some(replaying) = &mut self.replaying {
            let before = replaying.applied[0].1.max(replaying.applied[1].1);
            replaying.applied[crate::txg::slot_of(txg)] = (txg, before + 1);
        }
    }

    /// All records were replayed. The next block goes to `next`.
    pub(super) fn replayed(&mut self, next: BlockPosition) {
        if let Some(replaying) = &mut self.replaying {
            replaying.done = true;
            self.next = next;
            self.written.end = next.offset;
        }
    }

    /// Skips the replay: the next block overwrites the first one that would be replayed.
    pub(super) fn discard(&mut self) {
        self.replayed(self.next);
    }
}

impl Replaying {
    /// Number of records applied in txgs up to `txg`.
    fn applied_by(&self, txg: u64) -> u64 {
        let by = self.applied.iter().filter(|(of, _)| *of <= txg).map(|(_, count)| *count);
        by.max().unwrap_or(0).max(self.reported)
    }

    fn is_over(&self, txg: u64) -> bool {
        self.done && self.applied.iter().all(|(of, _)| *of <= txg)
    }

    /// Returns the root of a replay in progress; `None` if the replay ends with `txg`.
    fn root_for(&mut self, txg: u64) -> Option<LogRootPhys> {
        if self.is_over(txg) {
            return None;
        }
        self.reported = self.applied_by(txg);
        Some(LogRootPhys { replayed: self.reported.into(), ..self.root })
    }
}
