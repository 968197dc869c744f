//! Commits: one leader thread takes the changes that waiting fsyncs need and writes them as one
//! batch.

use forebay_base::arena::Buffer;
use forebay_base::probe;
use forebay_base::sync::atomic::{AtomicU8, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use forebay_base::waits::{self, WaitKind};

use super::objects::{Attributes, CommitLookup, ObjectChanges, Touch, Touched};
use super::pending::Records;
use super::ring::{Extents, Reserved};
use super::{IntentLog, LogCounters};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    LOG_BLOCK_HEAD_BYTES, LOG_BLOCK_MAGIC, LOG_BLOCK_MAX_BYTES, LOG_RECORD_HEAD_BYTES,
    LOG_RECORD_MAX_BYTES, LOG_SECTOR_BYTES, LogBlockPhys, LogEntry, LogRecord, LogRecordKind,
    LogRecordPhys,
};

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The changes are durable.
    Durable,
    /// The log cannot make them durable: the caller must wait for the open transaction group.
    WaitForTxg,
}

/// Source of content for commits. The leader calls it without any lock of the log, for objects of
/// all waiters. It must return the newest content.
pub(crate) trait Fetch {
    /// Runs `f` while no transaction is open, so that none is taken in part.
    ///
    /// # Errors
    /// If the pool is suspended or closed; `f` was not run.
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()>;

    /// Fills `out` with an object's content from `offset` on. Holes and the range past the end read
    /// as zeros.
    ///
    /// # Errors
    /// `NotFound` or `Closed` if the object was destroyed: its record becomes void. Other errors
    /// fail the commit.
    fn content(&self, dataset: u64, object: u64, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// Why a commit falls back to the transaction group.
#[derive(Clone, Copy)]
pub(super) enum FallbackCause {
    Closed = 0,
    Large = 1,
    Lost = 2,
    Full = 3,
    Failed = 4,
}

/// Changes taken of one object.
struct TakenObject {
    dataset: u64,
    object: u64,
    changes: ObjectChanges,
    /// [`Objects::invalidations`](super::objects::Objects::invalidations) when they were taken.
    invalidations: u64,
}

/// Maximum number of attempts to read content that is truncated meanwhile. Few for the model
/// checker, so that it finds how the last one fails.
const FETCHES_MAX: usize = if cfg!(forebay_model) { 2 } else { 4 };

/// All changes taken for a batch.
#[derive(Default)]
struct BatchChanges {
    records: Vec<Records>,
    touched: Vec<TakenObject>,
    /// The newest durable txg when the last changes were taken.
    synced: u64,
}

impl BatchChanges {
    /// The newest txg of the changes.
    fn txg_high(&self) -> u64 {
        newest(&self.records).max(newest_touch(&self.touched))
    }
}

/// An encoded block without an address.
struct FilledBlock {
    buffer: Buffer,
    payload_bytes: usize,
    records: u32,
    txg_low: u64,
    txg_high: u64,
}

/// Commits that are written together.
#[derive(Default)]
pub(super) struct Batch {
    // 0: in progress. 1: durable. 2: falls back to the txg. Accessed under `log-commit`.
    ended: AtomicU8,
}

pub(super) struct CommitQueue {
    /// Whether there is a leader.
    pub(super) has_leader: bool,
    /// The batch that new commits join.
    pub(super) batch: Arc<Batch>,
    /// Objects of that batch: dataset and number.
    pub(super) objects: Vec<(u64, u64)>,
    /// Whether a commit waits for the leading thread.
    pub(super) wanted: bool,
    /// Whether the leading thread takes no further batch.
    pub(super) ends: bool,
}

/// The leader and the waiters.
pub(super) struct Commits {
    pub(super) queue: Mutex<CommitQueue>,
    pub(super) ended: Condvar,
    /// Wakes the leading thread.
    pub(super) wanted: Condvar,
}

impl Commits {
    pub(super) fn new() -> Self {
        let queue = CommitQueue {
            has_leader: false,
            batch: Arc::default(),
            objects: Vec::new(),
            wanted: false,
            ends: false,
        };
        Self {
            queue: Mutex::named("log-commit", queue),
            ended: Condvar::new(),
            wanted: Condvar::new(),
        }
    }
}

/// A record of a batch.
enum BatchItem<'a> {
    /// Already encoded when it was recorded.
    Encoded { txg: u64, bytes: &'a [u8] },
    /// A write whose content is read now.
    Write { entry: LogEntry<'static>, offset: u64, len: usize },
    /// Encoded for this batch.
    Owned { txg: u64, bytes: Vec<u8> },
}

impl BatchItem<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Encoded { bytes, .. } => bytes.len(),
            Self::Write { len, .. } => LOG_RECORD_HEAD_BYTES + len,
            Self::Owned { bytes, .. } => bytes.len(),
        }
    }

    fn txg(&self) -> u64 {
        match self {
            Self::Encoded { txg, .. } | Self::Owned { txg, .. } => *txg,
            Self::Write { entry, .. } => entry.txg,
        }
    }
}

impl IntentLog {
    /// Makes durable all changes of existence and names so far, and the changes of `object`
    /// (dataset and number), if given. The calling thread must not have a hold, nor a lock that
    /// `fetch` takes.
    pub(crate) fn commit(&self, object: Option<(u64, u64)>, fetch: &dyn Fetch) -> Committed {
        self.counters.add(LogCounters::COMMITS, 0, 1);
        if let Err(cause) = self.check(object) {
            return self.to_txg(cause);
        }
        let mut queue = self.commits.queue.lock();
        queue.objects.extend(object);
        let batch = Arc::clone(&queue.batch);
        {
            // The leader writes to devices.
            let _wait = waits::measure(WaitKind::Device);
            while queue.has_leader && batch.ended.load(Ordering::Relaxed) == 0 {
                self.commits.ended.wait(&mut queue);
            }
        }
        if batch.ended.load(Ordering::Relaxed) == 0 {
            return self.write_as_leader(queue, fetch);
        }
        let outcome = batch.outcome().unwrap_or(Committed::WaitForTxg);
        drop(queue);
        self.counters.add(LogCounters::JOINED, 0, 1);
        outcome
    }

    /// Writes the batch of the queue.
    pub(super) fn write_as_leader(
        &self,
        mut queue: MutexGuard<'_, CommitQueue>,
        fetch: &dyn Fetch,
    ) -> Committed {
        queue.has_leader = true;
        let batch = std::mem::take(&mut queue.batch);
        let objects = std::mem::take(&mut queue.objects);
        drop(queue);
        // The guard ends the batch if `fetch` panics, so that no waiter waits forever.
        let mut leader = Leader { log: self, batch: &batch, is_durable: false };
        let outcome = self.write_batch(objects, fetch);
        leader.is_durable = outcome.is_ok();
        drop(leader);
        match outcome {
            Ok(()) => Committed::Durable,
            Err(cause) => self.to_txg(cause),
        }
    }

    pub(super) fn to_txg(&self, cause: FallbackCause) -> Committed {
        self.counters.add(LogCounters::TO_TXG, cause as usize, 1);
        Committed::WaitForTxg
    }

    /// Whether the log can take the commit.
    pub(super) fn check(&self, object: Option<(u64, u64)>) -> Result<(), FallbackCause> {
        if !self.ring.lock().is_open() {
            return Err(FallbackCause::Closed);
        }
        if self.has_lost() {
            return Err(FallbackCause::Lost);
        }
        let Some((dataset, object)) = object else { return Ok(()) };
        match self.objects.lookup_changes(dataset, object) {
            CommitLookup::Lost(txg) if txg > self.synced.load(Ordering::SeqCst) => {
                Err(FallbackCause::Lost)
            }
            CommitLookup::Bytes(bytes) if bytes > self.tunables.log_commit_max_bytes() => {
                Err(FallbackCause::Large)
            }
            _ => Ok(()),
        }
    }

    /// Takes and writes the changes that commits of `objects` need.
    fn write_batch(
        &self,
        mut objects: Vec<(u64, u64)>,
        fetch: &dyn Fetch,
    ) -> Result<(), FallbackCause> {
        objects.sort_unstable();
        objects.dedup();
        for object in &objects {
            self.check(Some(*object))?;
        }
        let requested = objects.len() as u64;
        let mut taken =
            TakenGuard { log: self, changes: BatchChanges::default(), are_written: false };
        fetch
            .run_between_transactions(&mut || self.take(&mut objects, &mut taken.changes))
            .or(Err(FallbackCause::Failed))?;
        for _ in 0..FETCHES_MAX {
            self.check_taken(&taken.changes, requested)?;
            let items = items(&taken.changes.records, &taken.changes.touched)?;
            // Read after the changes were taken: changes dropped before or meanwhile are of this
            // txg or older.
            let needs_txg = self.synced.load(Ordering::SeqCst);
            if self.has_lost() {
                return Err(FallbackCause::Lost);
            }
            if items.is_empty() {
                taken.are_written = true;
                self.counters.add(LogCounters::EMPTY, 0, 1);
                return Ok(());
            }
            let fetches = items.iter().any(|item| matches!(item, BatchItem::Write { .. }));
            let blocks = self.fill_blocks(&items, fetch).or(Err(FallbackCause::Failed))?;
            if !fetches || self.is_whole_or_take(&mut objects, &mut taken.changes, fetch)? {
                self.write_blocks(blocks, needs_txg)?;
                taken.are_written = true;
                return Ok(());
            }
            self.counters.add(LogCounters::REFETCHED, 0, 1);
        }
        Err(FallbackCause::Failed)
    }

    /// Takes all changes of names and existence, and those of `objects` and of bound objects, which
    /// it adds to `objects`. Must run while no transaction is open.
    fn take(&self, objects: &mut Vec<(u64, u64)>, batch_changes: &mut BatchChanges) {
        batch_changes.synced = self.synced.load(Ordering::SeqCst);
        batch_changes.records.extend(self.pending.take_below(self.pending.cutoff()));
        // After the records: an object is bound before the names that depend on it are recorded.
        let before = objects.len();
        self.objects.take_bound(batch_changes.synced, objects);
        if objects.len() > before {
            objects.sort_unstable();
            objects.dedup();
            self.counters.add(LogCounters::BOUND, 0, (objects.len() - before) as u64);
        }
        let of = |&(dataset, object): &(u64, u64)| TakenObject {
            dataset,
            object,
            changes: self.objects.take(dataset, object),
            invalidations: 0,
        };
        let taken = objects.iter().map(of).filter(|taken| !taken.changes.is_empty());
        batch_changes.touched.extend(taken);
        for taken in &mut batch_changes.touched {
            taken.invalidations = self.objects.invalidations(taken.dataset, taken.object);
        }
    }

    /// Checks whether the taken changes may be written.
    fn check_taken(
        &self,
        batch_changes: &BatchChanges,
        requested: u64,
    ) -> Result<(), FallbackCause> {
        let changes = || batch_changes.touched.iter().map(|taken| &taken.changes);
        // Checked again: since the first check, other threads may have exceeded the limit of an
        // object.
        if changes().any(|changes| changes.lost_txg > batch_changes.synced) {
            return Err(FallbackCause::Lost);
        }
        // The limit applies per commit, plus once for all bound objects.
        let bytes = changes().map(ObjectChanges::bytes).fold(0, u64::saturating_add);
        match bytes > self.tunables.log_commit_max_bytes().saturating_mul(requested + 1) {
            true => Err(FallbackCause::Large),
            false => Ok(()),
        }
    }

    /// Whether the content that was read is valid: no object was truncated, punched or destroyed
    /// since its changes were taken. Otherwise takes the changes made since, so that everything can
    /// be read again.
    fn is_whole_or_take(
        &self,
        objects: &mut Vec<(u64, u64)>,
        batch_changes: &mut BatchChanges,
        fetch: &dyn Fetch,
    ) -> Result<bool, FallbackCause> {
        let mut whole = true;
        // While no transaction is open, every truncation is recorded.
        let quiesced = fetch.run_between_transactions(&mut || {
            let is_same = |taken: &TakenObject| {
                self.objects.invalidations(taken.dataset, taken.object) == taken.invalidations
            };
            whole = batch_changes.touched.iter().all(is_same);
            if !whole {
                self.take(objects, batch_changes);
            }
        });
        quiesced.map(|()| whole).or(Err(FallbackCause::Failed))
    }

    fn fill_blocks(&self, items: &[BatchItem<'_>], fetch: &dyn Fetch) -> Result<Vec<FilledBlock>> {
        let filled = |items: &[BatchItem<'_>]| {
            let mut buffer = self.storage.alloc(block_bytes(items))?;
            let payload_bytes = fill(items, &mut buffer[LOG_BLOCK_HEAD_BYTES..], fetch)?;
            let txgs = || items.iter().map(BatchItem::txg);
            Ok(FilledBlock {
                buffer,
                payload_bytes,
                records: items.len() as u32,
                txg_low: txgs().min().unwrap_or(0),
                txg_high: txgs().max().unwrap_or(0),
            })
        };
        pack(items).into_iter().map(filled).collect()
    }

    fn write_blocks(&self, blocks: Vec<FilledBlock>, needs_txg: u64) -> Result<(), FallbackCause> {
        let count = blocks.len() as u64;
        let records = blocks.iter().map(|block| u64::from(block.records)).sum();
        let total = blocks.iter().map(|block| block.buffer.len() as u64).sum();
        let txg_high = blocks.iter().map(|block| block.txg_high).max().unwrap_or(0);
        let reserved = {
            let mut ring = self.ring.lock();
            if !ring.is_open() {
                return Err(FallbackCause::Closed);
            }
            ring.reserve(total, count, txg_high).ok_or(FallbackCause::Full)?
        };
        probe!(log_commit, self.guid, count, records, total);
        let written = self.write_reserved(blocks, reserved, needs_txg);
        self.ring.lock().end_batch(written.is_ok());
        probe!(log_committed, self.guid, written.is_ok());
        if let Err(error) = written {
            tracing::warn!(pool_guid = self.guid, %error, "closed intent log until the next commit");
            return Err(FallbackCause::Failed);
        }
        self.counters.add(LogCounters::BATCHES, 0, 1);
        self.counters.add(LogCounters::BLOCKS, 0, count);
        self.counters.add(LogCounters::BYTES, 0, total);
        self.counters.add(LogCounters::RECORDS, 0, records);
        Ok(())
    }

    fn write_reserved(
        &self,
        blocks: Vec<FilledBlock>,
        reserved: Reserved,
        needs_txg: u64,
    ) -> Result<()> {
        let Reserved { mut head, generation, extents } = reserved;
        let mut writes = Vec::with_capacity(blocks.len() + 1);
        let mut following = blocks.len() as u32;
        for FilledBlock { mut buffer, payload_bytes, records, txg_low, txg_high } in blocks {
            following -= 1;
            let bytes = buffer.len();
            let phys = LogBlockPhys {
                checksum: [0; 16],
                magic: LOG_BLOCK_MAGIC.into(),
                guid: self.guid.into(),
                generation: generation.into(),
                sequence: head.sequence.into(),
                offset: head.offset.into(),
                needs_txg: needs_txg.into(),
                txg_low: txg_low.into(),
                txg_high: txg_high.into(),
                block_bytes: (bytes as u32).into(),
                payload_bytes: (payload_bytes as u32).into(),
                records: records.into(),
                following: following.into(),
            };
            phys.seal(&mut buffer);
            self.place((&extents, head.offset), buffer, &mut writes)?;
            head.offset += bytes as u64;
            head.sequence += 1;
        }
        let failures = self.storage.flush_failures();
        let Some(&(first, _)) = writes.first() else { return Ok(()) };
        self.storage.write(writes)?;
        self.storage.flush(first)?;
        match self.storage.flush_failures() == failures {
            true => Ok(()),
            false => {
                let text = "another flush failed meanwhile, and may have lost the log's writes";
                Err(Error::new(ErrorKind::Device, text))
            }
        }
    }

    /// Adds the writes of a block, split at the end of an extent.
    fn place(
        &self,
        (extents, offset): (&Extents, u64),
        buffer: Buffer,
        writes: &mut Vec<(crate::format::Dva, Buffer)>,
    ) -> Result<()> {
        let places = extents.places(offset, buffer.len() as u64);
        if let [(dva, _)] = places[..] {
            writes.push((dva, buffer));
            return Ok(());
        }
        let mut done = 0;
        for (dva, bytes) in places {
            let mut part = self.storage.alloc(bytes as usize)?;
            part.copy_from_slice(&buffer[done..done + bytes as usize]);
            writes.push((dva, part));
            done += bytes as usize;
        }
        Ok(())
    }
}

/// Changes taken from memory. Unless they were written, they are lost when this is dropped: all of
/// them, however late they were taken.
struct TakenGuard<'a> {
    log: &'a IntentLog,
    changes: BatchChanges,
    /// Whether the changes are written, or there were none.
    are_written: bool,
}

impl Drop for TakenGuard<'_> {
    fn drop(&mut self) {
        if !self.are_written {
            self.log.lose(self.changes.txg_high());
        }
    }
}

impl Batch {
    /// How it has ended; `None` if it has not. The caller has locked `log-commit`.
    pub(super) fn outcome(&self) -> Option<Committed> {
        match self.ended.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Committed::Durable),
            _ => Some(Committed::WaitForTxg),
        }
    }
}

/// The leader of a batch. The batch ends when it is dropped.
struct Leader<'a> {
    log: &'a IntentLog,
    batch: &'a Batch,
    /// Whether the batch is durable.
    is_durable: bool,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut queue = self.log.commits.queue.lock();
        let ended = if self.is_durable { 1 } else { 2 };
        self.batch.ended.store(ended, Ordering::Relaxed);
        queue.has_leader = false;
        self.log.commits.ended.notify_all();
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed)
}

/// Returns all records of a batch, ordered by serial number.
fn items<'r>(
    records: &'r [Records],
    objects: &[TakenObject],
) -> Result<Vec<BatchItem<'r>>, FallbackCause> {
    let mut items: Vec<(u64, BatchItem<'r>)> = Vec::new();
    for (serial, bytes) in records.iter().flat_map(Records::iter) {
        items.push((serial, BatchItem::Encoded { txg: LogRecordPhys::txg_of(bytes), bytes }));
    }
    for &TakenObject { dataset, object, ref changes, .. } in objects {
        for &Touched { txg, serial, touch } in &changes.touched {
            // A placeholder: `push_touch` sets the record, or only the head of a write is encoded.
            let record = LogRecord::Destroy;
            push_touch(LogEntry { txg, dataset, object, serial, record }, touch, &mut items)?;
        }
        for &Attributes { txg, serial, ref bytes } in &changes.attributes {
            let record = LogRecord::SetAttributes { attributes: bytes };
            let entry = LogEntry { txg, dataset, object, serial, record };
            items.push((serial, encoded(entry)?));
        }
    }
    // The sort is stable: parts of one write stay in order.
    items.sort_by_key(|(serial, _)| *serial);
    Ok(items.into_iter().map(|(_, item)| item).collect())
}

/// Adds the records of a touch, with all fields of `entry` but its record.
fn push_touch(
    entry: LogEntry<'static>,
    touch: Touch,
    items: &mut Vec<(u64, BatchItem<'_>)>,
) -> Result<(), FallbackCause> {
    let record = match touch {
        Touch::Write { offset, len } => {
            let mut done = 0;
            while done < len {
                let part = (len - done).min(LOG_RECORD_MAX_BYTES as u64);
                let (offset, len) = (offset + done, part as usize);
                items.push((entry.serial, BatchItem::Write { entry, offset, len }));
                done += part;
            }
            return Ok(());
        }
        Touch::Truncate { size } => LogRecord::Truncate { size },
        Touch::Punch { offset, len } => LogRecord::Punch { offset, len },
        Touch::Preallocate { offset, len } => LogRecord::Preallocate { offset, len },
    };
    items.push((entry.serial, encoded(LogEntry { record, ..entry })?));
    Ok(())
}

/// Encodes a record.
fn encoded(entry: LogEntry<'_>) -> Result<BatchItem<'static>, FallbackCause> {
    let mut bytes = Vec::new();
    match entry.encode(&mut bytes) {
        true => Ok(BatchItem::Owned { txg: entry.txg, bytes }),
        false => Err(FallbackCause::Large),
    }
}

/// The newest txg of these records.
fn newest(records: &[Records]) -> u64 {
    let all = records.iter().flat_map(Records::iter);
    all.map(|(_, bytes)| LogRecordPhys::txg_of(bytes)).max().unwrap_or(0)
}

/// The newest txg of the changes taken of these objects.
fn newest_touch(objects: &[TakenObject]) -> u64 {
    let of = |taken: &TakenObject| {
        let touched = taken.changes.touched.iter().map(|touched| touched.txg);
        touched.chain(taken.changes.attributes.iter().map(|one| one.txg)).max()
    };
    objects.iter().filter_map(of).max().unwrap_or(0)
}

/// Distributes records to blocks.
fn pack<'i, 'r>(items: &'i [BatchItem<'r>]) -> Vec<&'i [BatchItem<'r>]> {
    let mut blocks = Vec::new();
    let (mut start, mut bytes) = (0, LOG_BLOCK_HEAD_BYTES);
    for (at, item) in items.iter().enumerate() {
        if bytes + item.bytes() > LOG_BLOCK_MAX_BYTES {
            blocks.push(&items[start..at]);
            (start, bytes) = (at, LOG_BLOCK_HEAD_BYTES);
        }
        bytes += item.bytes();
    }
    blocks.push(&items[start..]);
    blocks
}

fn block_bytes(items: &[BatchItem<'_>]) -> usize {
    let records: usize = items.iter().map(BatchItem::bytes).sum();
    (LOG_BLOCK_HEAD_BYTES + records).next_multiple_of(LOG_SECTOR_BYTES as usize)
}

/// Encodes records into a block and zeroes the rest. Returns the number of bytes used.
fn fill(items: &[BatchItem<'_>], out: &mut [u8], fetch: &dyn Fetch) -> Result<usize> {
    let mut at = 0;
    for item in items {
        let end = at + item.bytes();
        let out = &mut out[at..end];
        match item {
            BatchItem::Encoded { bytes, .. } => out.copy_from_slice(bytes),
            BatchItem::Owned { bytes, .. } => out.copy_from_slice(bytes),
            BatchItem::Write { entry, offset, .. } => fill_write(entry, *offset, out, fetch)?,
        }
        at = end;
    }
    out[at..].fill(0);
    Ok(at)
}

fn fill_write(entry: &LogEntry<'_>, offset: u64, out: &mut [u8], fetch: &dyn Fetch) -> Result<()> {
    let (head_out, body) = out.split_at_mut(LOG_RECORD_HEAD_BYTES);
    let kind = match fetch.content(entry.dataset, entry.object, offset, body) {
        Ok(()) => LogRecordKind::Write,
        Err(error) if is_gone(&error) => {
            body.fill(0);
            LogRecordKind::Void
        }
        Err(error) => return Err(error),
    };
    entry.encode_write_head(kind, offset, body.len(), head_out);
    Ok(())
}
