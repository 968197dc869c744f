//! The rebuild's threads: read the headers, then the segments.
//!
//! If the stamp of the newest segment tells that the user was rolled back, the index is cleared
//! before anything is served, and the label gets a new GUID, which voids the log. If the label
//! cannot be written, the L2 fails with an empty index. The log is still there, so the user must
//! open the L2 with the same maximum stamp until a rebuild has succeeded.

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::spawn_named;
use forebay_cache::Key;

use super::RebuildStats;
use super::reads::RebuildError;
use super::segment::Reader;
use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::format::{BatchHeader, PAGE_BYTES, SegmentHeader};
use crate::geometry::Geometry;
use crate::label::{self, LabelInfo};
use crate::record::{BlockAddr, MAX_SEGMENT_UNITS};
use crate::shared::L2Shared;
use crate::writer::LogStart;

/// A segment's header, and the chain value after it.
pub(super) type HeaderEntry = Option<(SegmentHeader, u64)>;

/// The headers of all segments.
pub(super) struct SegmentHeaders {
    pub(super) headers: Vec<HeaderEntry>,
    /// The largest sequence number. 0 if nothing was ever written.
    newest: u64,
    /// The oldest sequence number that may be in use.
    oldest: u64,
    /// Segments whose headers could not be read.
    unread: Vec<bool>,
}

/// The body of the first rebuild thread.
pub(crate) fn run<K: Key, V: Send + Sync + 'static>(shared: &Arc<L2Shared<K, V>>) {
    shared.enter_thread();
    let outcome = rebuild(shared);
    match &outcome {
        Ok(()) => {}
        Err(RebuildError::Failed(why)) => {
            shared.rebuild.stop();
            shared.fail(why);
        }
        Err(RebuildError::NoMemory(why)) => {
            shared.rebuild.stop();
            shared.fail_intact(&format!(
                "the rebuild found no free memory ({why}); raise the limit and open the L2 again"
            ));
        }
    }
    shared.rebuild.end(shared.clock.now_ns());
    log_end(shared, outcome.is_err());
    shared.index.sweep_tombstones();
    shared.catch_panic(|| shared.rebuild.wake_futures());
}

/// Logs how the rebuild ended. The reason of a failure was logged before.
fn log_end<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, failed: bool) {
    let device = &*shared.io.device.info().name;
    let RebuildStats { done, records, damaged, .. } = shared.rebuild.stats(shared.clock.now_ns());
    let outcome = match (failed, done, damaged) {
        (true, ..) => "failed",
        (false, false, _) => "stopped",
        (false, true, 0) => "complete",
        (false, true, _) => "damaged",
    };
    if matches!(outcome, "failed" | "damaged") {
        tracing::warn!(device, outcome, records, damaged, "ended L2 rebuild");
    } else {
        tracing::info!(device, outcome, records, damaged, "ended L2 rebuild");
    }
}

/// Ends the rebuild of an L2 that was just created.
pub(crate) fn finish_empty<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>) {
    let next_seq = shared.ring.geometry.first_seq();
    shared.write_queue.start(LogStart { next_seq, ..LogStart::default() });
    shared.rebuild.end(shared.clock.now_ns());
    shared.rebuild.wake_futures();
}

fn rebuild<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<L2Shared<K, V>>,
) -> Result<(), RebuildError> {
    let geometry = shared.ring.geometry;
    let mut headers = read_headers(shared)?;
    let lost_newest = find_newest(shared, &mut headers)?;
    for seq in headers.oldest..=headers.newest {
        if headers.newest > 0 && headers.get(geometry.segment_of(seq), seq).is_some() {
            shared.ring.set_seq(geometry.segment_of(seq), seq);
        }
    }
    let mut start = LogStart { next_seq: headers.newest + 1, ..LogStart::default() };
    if headers.newest == 0 {
        if headers.unread.contains(&true) {
            // The sequence numbers of unreadable segments must not be used again.
            return Err(RebuildError::Failed("no segment header can be read".to_owned()));
        }
        start.next_seq = geometry.first_seq();
        shared.write_queue.start(start);
        return Ok(());
    }
    // In its first round, the ring has not used all segments.
    let used = headers.newest + 1 - geometry.first_seq();
    shared.has_wrapped.store(used >= u64::from(geometry.segments), Ordering::Relaxed);
    let reader = Reader::new(Arc::clone(shared), headers);
    let mut complete = true;
    let newest = reader.headers.newest;
    if lost_newest {
        if shared.max_stamp < u64::MAX {
            // Only the lost header has the newest stamp of the blocks written before it.
            return reset_after_rollback(shared, &reader.headers);
        }
        // Its batches may have held tombstones, so nothing older is valid.
        shared.rebuild.record_damage((newest, MAX_SEGMENT_UNITS));
        let known = || reader.headers.headers.iter().flatten();
        start.stamp = known().map(|(header, _)| header.stamp).max().unwrap_or(0);
        start.floor = known().map(|(header, _)| header.floor).max().unwrap_or_default();
        shared.ring.set_head(newest, geometry.footer_offset());
    } else {
        let read = reader.read_newest(newest)?;
        if shared.rebuild.was_incomplete() {
            // The segment may have been read in part. That must not become durable.
            return Ok(());
        }
        start.stamp = read.stamp;
        start.floor = read.floor;
        start.last = read.contents;
        shared.ring.set_head(newest, read.end);
        complete = read.complete;
        if start.stamp > shared.max_stamp {
            return reset_after_rollback(shared, &reader.headers);
        }
    }
    let persisted = shared.immutable_keys || persist_newest(shared, &mut start, complete)?;
    shared.rebuild.begin(reader.headers.oldest, newest, shared.clock.now_ns());
    reader.note_missing();
    shared.write_queue.start(start);
    read_remaining(&Arc::new(reader))?;
    persist_damage(shared, persisted)?;
    shared.rebuild.wait_for_reuse();
    Ok(())
}

/// Reads all headers. Invalid ones are `None`.
fn read_headers<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<L2Shared<K, V>>,
) -> Result<SegmentHeaders, RebuildError> {
    let geometry = shared.ring.geometry;
    let mut headers: Vec<HeaderEntry> = vec![None; geometry.segments as usize];
    let mut unread = vec![false; geometry.segments as usize];
    let guid = shared.ring.guid();
    let range = |segment: usize| (geometry.offset(segment as u32), PAGE_BYTES);
    shared.read_for_rebuild(geometry.segments as usize, range, |segment, read| match read {
        Some(page) => {
            let fits = |(header, _): &(SegmentHeader, u64)| {
                geometry.segment_of(header.seq) as usize == segment
                    && header.seq >= geometry.first_seq()
                    // Far below the maximum sequence number.
                    && header.seq < 1 << 41
            };
            headers[segment] = SegmentHeader::parse(guid, &page).filter(fits);
        }
        None => unread[segment] = true,
    })?;
    let newest = headers.iter().flatten().map(|(header, _)| header.seq).max().unwrap_or(0);
    Ok(SegmentHeaders { headers, newest, oldest: 0, unread })
}

/// Detects whether the header of the newest segment is lost, and finds the oldest segment. Several
/// consecutive headers may be lost, and some of their segments may have no batch. A sequence number
/// that may have been used is not used again.
fn find_newest<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<L2Shared<K, V>>,
    headers: &mut SegmentHeaders,
) -> Result<bool, RebuildError> {
    let geometry = shared.ring.geometry;
    let next = (headers.newest + 1).max(geometry.first_seq());
    let unread = headers.unread.contains(&true);
    let mut lost = None;
    for seq in next..next + u64::from(geometry.segments) {
        let segment = geometry.segment_of(seq);
        if headers.headers[segment as usize].is_some() {
            break;
        }
        // A header is durable before any batch, so a batch proves that there was a header.
        let at = geometry.offset(segment) + geometry.first_batch_offset();
        let used = match shared.read_one_for_rebuild(at, PAGE_BYTES)? {
            Some(page) => BatchHeader::claimed_seq(shared.ring.guid(), &page) == Some(seq),
            // If its header could not be read either, there may have been one.
            None => unread,
        };
        if used {
            lost = Some(seq);
        } else if !headers.unread[segment as usize] {
            break;
        }
    }
    headers.newest = lost.unwrap_or(headers.newest);
    let round = u64::from(geometry.segments) - 1;
    headers.oldest = headers.newest.saturating_sub(round).max(geometry.first_seq());
    Ok(lost.is_some())
}

/// Empties the L2 after a rollback of its user: its blocks may belong to an abandoned history.
fn reset_after_rollback<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<L2Shared<K, V>>,
    headers: &SegmentHeaders,
) -> Result<(), RebuildError> {
    shared.counters.add(L2Counters::ROLLBACKS, 0, 1);
    shared.index.clear();
    shared.groups.clear();
    // The guids and chain values on the device go into the new guid, so that it never repeats,
    // whatever the seed.
    let newest = headers.headers.iter().flatten().map(|(_, chain)| *chain);
    let mixed = newest.fold(shared.seed ^ shared.ring.guid(), |seed, chain| {
        seed.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chain
    });
    let guid = SmallRng::from_seed(mixed).next_u64();
    let label = LabelInfo { guid, ..shared.label };
    {
        let _voiding = shared.voiding.lock();
        label::write(&shared.io, &label)
            .map_err(|error| RebuildError::Failed(error.to_string()))?;
    }
    shared.ring.reset(guid);
    shared.has_wrapped.store(false, Ordering::Relaxed);
    let next_seq = shared.ring.geometry.first_seq();
    shared.write_queue.start(LogStart { next_seq, ..LogStart::default() });
    let device = &*shared.io.device.info().name;
    tracing::warn!(device, "emptied L2: its user has gone back to an older state");
    Ok(())
}

/// Reads all other segments on several threads.
fn read_remaining<K: Key, V: Send + Sync + 'static>(
    reader: &Arc<Reader<K, V>>,
) -> Result<(), RebuildError> {
    let shared = reader.shared();
    let helpers: Vec<_> = (1..shared.tunables.threads())
        .map_while(|number| {
            let reader = Arc::clone(reader);
            let work = move || {
                reader.enter_thread();
                reader.work()
            };
            spawn_named(&format!("l2-rebuild-{number}"), work).ok()
        })
        .collect();
    let mut outcome = reader.work();
    for helper in helpers {
        let panicked = |_| Err(RebuildError::Failed("a rebuild thread panicked".to_owned()));
        outcome = outcome.and(helper.join().unwrap_or_else(panicked));
    }
    outcome
}

/// Makes the contents and the end of the newest segment durable. A missing batch may arrive later,
/// and a batch that was read may be in the device's volatile cache only. After the rebuild, keys
/// are forgotten without a tombstone because of these contents. Returns false if the device failed.
/// The next header must then record the end.
fn persist_newest<K: Key, V: Send + Sync + 'static>(
    shared: &L2Shared<K, V>,
    start: &mut LogStart,
    complete: bool,
) -> Result<bool, IoError> {
    if let Some(damage) = shared.rebuild.new_damage() {
        // A footer would hide the hole from the next rebuild. The next header records it instead.
        start.floor = start.floor.max(damage);
        start.last.sealed = true;
        return Ok(false);
    }
    let persisted = shared.io.flush().and_then(|()| {
        if complete {
            start.last.durable = start.last.extents.len() as u32;
        }
        if start.last.sealed || start.last.seq == 0 {
            return Ok(());
        }
        start.last.seal(shared, start.stamp)?;
        shared.io.flush()
    });
    match persisted {
        Ok(()) => Ok(true),
        Err(error @ IoError::Stalled(_)) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Voids all records before the damage and records it in the next header. Unless the end of the
/// newest segment is `persisted`, the next header records that too.
fn persist_damage<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<L2Shared<K, V>>,
    persisted: bool,
) -> Result<(), RebuildError> {
    if shared.rebuild.was_incomplete() {
        return Ok(());
    }
    let fresh = shared.rebuild.new_damage().filter(|_| !shared.immutable_keys);
    if fresh.is_none() && persisted {
        return Ok(());
    }
    let damage = fresh.unwrap_or_default();
    let mut void = Vec::new();
    let is_void = |addr: BlockAddr| (shared.ring.seq(addr.segment), addr.unit) < damage;
    shared.index.for_each(|hash, record| {
        if is_void(record.addr) {
            void.push((hash, record.addr));
        }
    });
    for (hash, addr) in void {
        shared.index.remove_if_at(hash, addr);
    }
    match shared.write_queue.raise_floor(damage) {
        true => Ok(()),
        false => Err(RebuildError::Failed("the log's floor could not be raised".to_owned())),
    }
}

impl SegmentHeaders {
    /// The header of a segment with this sequence number.
    pub(super) fn get(&self, segment: u32, seq: u64) -> HeaderEntry {
        self.headers[segment as usize].filter(|(header, _)| header.seq == seq)
    }

    /// Sequence numbers of segments whose headers are missing. In a wrapped ring the oldest segment
    /// may just have been reused, so it may have none.
    pub(super) fn missing(&self, geometry: Geometry) -> Vec<u64> {
        let round = self.newest + 1 - self.oldest >= u64::from(geometry.segments);
        (self.oldest + u64::from(round)..self.newest)
            .filter(|seq| self.get(geometry.segment_of(*seq), *seq).is_none())
            .collect()
    }
}
