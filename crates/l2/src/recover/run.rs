//! The rebuild's threads: headers first, then segments.

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::spawn_named;
use forebay_cache::Key;

use super::segment::Reader;
use crate::counters::LevelCounters;
use crate::format::{BatchHead, PAGE_BYTES, SegmentHead};
use crate::geometry::Geometry;
use crate::inner::Inner;
use crate::label::{self, LabelInfo};
use crate::medium::Trouble;
use crate::record::{MAX_SEGMENT_UNITS, Place};
use crate::writer::Start;

/// The header of a segment, and the chain's value after it.
pub(super) type Head = Option<(SegmentHead, u64)>;

/// What the headers say.
pub(super) struct Heads {
    pub(super) heads: Vec<Head>,
    /// The largest sequence number; 0 if nothing was ever written.
    newest: u64,
    /// Of the segments that may hold something.
    oldest: u64,
    /// Segments whose headers the device did not give.
    unread: Vec<bool>,
}

/// The thread's body.
pub(crate) fn run<K: Key, V: Send + Sync + 'static>(inner: &Arc<Inner<K, V>>) {
    inner.enter_thread();
    let outcome = rebuild(inner);
    if let Err(why) = outcome {
        inner.rebuild.stop();
        inner.fail(&why);
    }
    inner.rebuild.end(inner.clock.now_ns());
    inner.index.sweep_tombstones();
}

/// Of a level that was made just now there is nothing to find out.
pub(crate) fn nothing<K: Key, V: Send + Sync + 'static>(inner: &Inner<K, V>) {
    let next_seq = inner.ring.geometry.first_seq();
    inner.feed.start(Start { next_seq, ..Start::default() });
    inner.rebuild.end(inner.clock.now_ns());
}

fn rebuild<K: Key, V: Send + Sync + 'static>(inner: &Arc<Inner<K, V>>) -> Result<(), String> {
    let say = |trouble: Trouble| trouble.to_string();
    let geometry = inner.ring.geometry;
    let mut heads = read_heads(inner).map_err(say)?;
    let lost_newest = find_newest(inner, &mut heads);
    for seq in heads.oldest..=heads.newest {
        if heads.newest > 0 && heads.of(geometry.segment_of(seq), seq).is_some() {
            inner.ring.set_seq(geometry.segment_of(seq), seq);
        }
    }
    let mut start = Start { next_seq: heads.newest + 1, ..Start::default() };
    if heads.newest == 0 {
        if heads.unread.contains(&true) {
            // Numbers of segments that cannot be seen must not be used again.
            return Err("no header of a segment can be read".to_owned());
        }
        start.next_seq = geometry.first_seq();
        inner.feed.start(start);
        return Ok(());
    }
    // A first use of the ring has not been everywhere.
    let used = heads.newest + 1 - geometry.first_seq();
    inner.came_round.store(used >= u64::from(geometry.segments), Ordering::Relaxed);
    let reader = Reader::new(Arc::clone(inner), heads);
    let mut whole = true;
    let newest = reader.heads.newest;
    if lost_newest {
        if inner.max_stamp < u64::MAX {
            // Only its header would tell how young the blocks are that were written before it.
            return empty(inner, &reader.heads);
        }
        // Its batches may have had tombstones: nothing older is believed.
        inner.rebuild.damaged((newest, MAX_SEGMENT_UNITS));
        let known = || reader.heads.heads.iter().flatten();
        start.stamp = known().map(|(head, _)| head.stamp).max().unwrap_or(0);
        start.floor = known().map(|(head, _)| head.floor).max().unwrap_or_default();
        inner.ring.set_head(newest, geometry.footer_offset());
    } else {
        let read = reader.read_newest(newest).map_err(say)?;
        if inner.rebuild.was_incomplete() {
            // Perhaps not all was read: nothing must say that this was all.
            return Ok(());
        }
        start.stamp = read.stamp;
        start.floor = read.floor;
        start.last = read.contents;
        inner.ring.set_head(newest, read.end);
        whole = read.whole;
        if start.stamp > inner.max_stamp {
            return empty(inner, &reader.heads);
        }
    }
    let settled = inner.immutable_keys || settle_end(inner, &mut start, whole).map_err(say)?;
    inner.rebuild.begin(reader.heads.oldest, newest, inner.clock.now_ns());
    reader.note_missing();
    inner.feed.start(start);
    read_the_rest(&Arc::new(reader))?;
    settle(inner, settled)
}

/// Reads all headers; what is none is `None`.
fn read_heads<K: Key, V: Send + Sync + 'static>(
    inner: &Arc<Inner<K, V>>,
) -> Result<Heads, Trouble> {
    let geometry = inner.ring.geometry;
    let mut heads: Vec<Head> = vec![None; geometry.segments as usize];
    let (mut stalled, mut unread) = (None, vec![false; geometry.segments as usize]);
    let guid = inner.ring.guid();
    let ranges = (0..geometry.segments).map(|segment| (geometry.offset(segment), PAGE_BYTES));
    inner.medium.read_each(ranges, |segment, read| match read {
        Ok(page) => {
            let fits = |(head, _): &(SegmentHead, u64)| {
                geometry.segment_of(head.seq) as usize == segment
                    && head.seq >= geometry.first_seq()
                    // Far from where the ring's numbers end.
                    && head.seq < 1 << 41
            };
            heads[segment] = SegmentHead::parse(guid, &page).filter(fits);
        }
        Err(trouble @ Trouble::Stalled(_)) => stalled = Some(trouble),
        Err(_) => unread[segment] = true,
    });
    let errors = unread.iter().filter(|unread| **unread).count();
    inner.counters.add(LevelCounters::READ_ERRORS, 0, errors as u64);
    if let Some(trouble) = stalled {
        return Err(trouble);
    }
    let newest = heads.iter().flatten().map(|(head, _)| head.seq).max().unwrap_or(0);
    Ok(Heads { heads, newest, oldest: 0, unread })
}

/// Finds out whether the newest segment is one whose header is lost; and which is the oldest. Several may be lost one
/// after the other, and some of them may have no batch: a number that may have been used is not used again.
fn find_newest<K: Key, V: Send + Sync + 'static>(
    inner: &Arc<Inner<K, V>>,
    heads: &mut Heads,
) -> bool {
    let geometry = inner.ring.geometry;
    let next = (heads.newest + 1).max(geometry.first_seq());
    let unread = heads.unread.contains(&true);
    let mut lost = None;
    for seq in next..next + u64::from(geometry.segments) {
        let segment = geometry.segment_of(seq);
        if heads.heads[segment as usize].is_some() {
            break;
        }
        // A header is durable before any batch: if there is a batch of that number, there was a header.
        let at = geometry.offset(segment) + geometry.first_batch();
        let used = match inner.medium.read(at, PAGE_BYTES) {
            Ok(page) => BatchHead::claimed_seq(inner.ring.guid(), &page) == Some(seq),
            // If its header could not be read either, there may have been one.
            Err(_) => unread,
        };
        if used {
            lost = Some(seq);
        } else if !heads.unread[segment as usize] {
            break;
        }
    }
    heads.newest = lost.unwrap_or(heads.newest);
    let round = u64::from(geometry.segments) - 1;
    heads.oldest = heads.newest.saturating_sub(round).max(geometry.first_seq());
    lost.is_some()
}

/// The user was set back: what the level knows may be of another future. It is made anew.
fn empty<K: Key, V: Send + Sync + 'static>(
    inner: &Arc<Inner<K, V>>,
    heads: &Heads,
) -> Result<(), String> {
    inner.counters.add(LevelCounters::SET_BACK, 0, 1);
    inner.index.clear();
    // Never the same guid again, whatever the seed: those on the device go into it.
    let newest = heads.heads.iter().flatten().map(|(_, chain)| *chain);
    let mixed = newest.fold(inner.seed ^ inner.ring.guid(), |seed, chain| {
        seed.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chain
    });
    let guid = SmallRng::from_seed(mixed).next_u64();
    let label = LabelInfo { guid, ..inner.label };
    label::write(&inner.medium, &label).map_err(|error| error.to_string())?;
    inner.ring.empty(guid);
    inner.came_round.store(false, Ordering::Relaxed);
    let next_seq = inner.ring.geometry.first_seq();
    inner.feed.start(Start { next_seq, ..Start::default() });
    Ok(())
}

/// Reads all other segments, on several threads.
fn read_the_rest<K: Key, V: Send + Sync + 'static>(
    reader: &Arc<Reader<K, V>>,
) -> Result<(), String> {
    let inner = reader.inner();
    let helpers: Vec<_> = (1..inner.tunables.threads())
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
        let ended = helper.join().unwrap_or_else(|_| Err("a thread of it panicked".to_owned()));
        outcome = outcome.and(ended);
    }
    outcome
}

/// Makes durable what was found in the newest segment, and where that ends. A missing batch may
/// arrive later, and a batch that was read may be in the device's volatile cache only. After the
/// rebuild, keys are forgotten without a tombstone because of what it found. False if the device
/// failed: then the next header has to say it.
fn settle_end<K: Key, V: Send + Sync + 'static>(
    inner: &Inner<K, V>,
    start: &mut Start,
    whole: bool,
) -> Result<bool, Trouble> {
    if let Some(damage) = inner.rebuild.fresh_damage() {
        // A footer would hide the hole from the next rebuild. The next header tells of it.
        start.floor = start.floor.max(damage);
        start.last.sealed = true;
        return Ok(false);
    }
    let settled = inner.medium.flush().and_then(|()| {
        if whole {
            start.last.durable = start.last.places.len() as u32;
        }
        if start.last.sealed || start.last.seq == 0 {
            return Ok(());
        }
        start.last.seal(inner, start.stamp)?;
        inner.medium.flush()
    });
    match settled {
        Ok(()) => Ok(true),
        Err(trouble @ Trouble::Stalled(_)) => Err(trouble),
        Err(_) => Ok(false),
    }
}

/// Voids what is older than what could not be read, and has the next header say so. Unless the end
/// of the newest segment is `settled`, the next header says that too.
fn settle<K: Key, V: Send + Sync + 'static>(
    inner: &Arc<Inner<K, V>>,
    settled: bool,
) -> Result<(), String> {
    if inner.rebuild.was_incomplete() {
        return Ok(());
    }
    let fresh = inner.rebuild.fresh_damage().filter(|_| !inner.immutable_keys);
    if fresh.is_none() && settled {
        return Ok(());
    }
    let damage = fresh.unwrap_or_default();
    let mut void = Vec::new();
    let is_void = |place: Place| (inner.ring.seq(place.segment), place.unit) < damage;
    inner.index.for_each(|id, record| {
        if is_void(record.place) {
            void.push((id, record.place));
        }
    });
    for (id, place) in void {
        inner.index.remove_if_at(id, place);
    }
    match inner.feed.raise_floor(damage) {
        true => Ok(()),
        false => Err("the log's floor could not be raised".to_owned()),
    }
}

impl Heads {
    /// The header of that use of a segment.
    pub(super) fn of(&self, segment: u32, seq: u64) -> Head {
        self.heads[segment as usize].filter(|(head, _)| head.seq == seq)
    }

    /// Sequence numbers of segments that should have a header and have none. If the ring has come round, the oldest may
    /// just have been about to be used again.
    pub(super) fn missing(&self, geometry: Geometry) -> Vec<u64> {
        let round = self.newest + 1 - self.oldest >= u64::from(geometry.segments);
        (self.oldest + u64::from(round)..self.newest)
            .filter(|seq| self.of(geometry.segment_of(*seq), *seq).is_none())
            .collect()
    }
}
