//! The cleaner: it deletes objects without live blocks, and merges objects with few of them.
//!
//! Discards only tell where to look: they may come twice, and are lost in a crash. What is live is
//! asked of [`LiveRanges`] before anything is given up.
//!
//! A merge takes neighbours in the map, at least one of which is less than half live, as long as
//! their live blocks fit in one object. The blocks keep their addresses; the generation is one more
//! than the highest. Objects that are not whole yet (their windows may still get writes), and those
//! that no root names, are left alone. No other object may overlap a merged one, so a merge takes
//! all objects of a window that overlap.
//!
//! The old objects are released with the delta that names the new one, and deleted after the grace
//! period that follows the next root.
//!
//! The cleaner rests three times as long as it works: a quarter of the time at most. What it reads
//! meanwhile is read at the same time, see [`survey`]. Objects that it could not clean, because the
//! store was away, are tried again later, less and less often. The others do not wait for them.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::sync::Arc;
use tokio::time::{Instant, sleep};

use crate::client::Persist;
use crate::counters::ObjectCounters;
use crate::engine::{Engine, State};
use crate::format::directory::{self, Extent, checksum_of};
use crate::format::{SECTOR_BYTES, WINDOW_SECTORS, names};
use crate::map::Object;
use crate::store::Body;
use crate::survey::{Survey, survey};
use crate::writer::object_of;

/// Says which addresses are in use.
pub trait LiveRanges: Send + Sync {
    /// Returns the sorted, disjoint ranges of `start..end`, in bytes, that are in use: allocated by
    /// a transaction that is durable or may become so, or freed so lately that a root still names
    /// them. It may read from the device. It is called on a thread that may block.
    ///
    /// # Errors
    /// If it does not know. Then the cleaner leaves the range alone.
    fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String>;
}

/// How long the cleaner sleeps when there is nothing to do.
const IDLE: Duration = Duration::from_secs(1);
/// How long objects that could not be cleaned are left alone at first.
const RETRY: Duration = Duration::from_secs(60);
/// How often that time doubles.
const DOUBLINGS_MAX: u32 = 6;
/// Neighbours with at most so many live sectors are merged along: many small flushes leave many
/// small objects.
const SMALL_SECTORS: u64 = WINDOW_SECTORS / 8;
/// The most objects of a merge.
const MERGE_MAX: usize = 64;
/// The most sectors from the first one to the last one of a merge: 64 GiB. Addresses are never used
/// again, so neighbours in the map may be as far from each other as all that was ever written.
const SPAN_MAX: u64 = 1 << 24;

/// Cleans until the device is closed.
pub(crate) async fn run(engine: Arc<Engine>, oracle: Arc<dyn LiveRanges>) {
    let cleaner = Cleaner { engine: Arc::clone(&engine), oracle };
    let mut retries = Retries::default();
    loop {
        let before = now();
        let searched = engine.lock().searched;
        let done = searched && cleaner.step().await;
        {
            let mut state = engine.lock();
            if state.closing || state.fenced.is_some() {
                return;
            }
            retries.look(&mut state, done);
        }
        let worked = now() - before;
        sleep(if done { worked * 3 } else { IDLE }).await;
    }
}

/// When the objects are tried again that could not be cleaned.
#[derive(Default)]
struct Retries {
    due: Option<Instant>,
    failures: u32,
}

impl Retries {
    /// Lets objects be tried again if it is time. `done` says whether there was anything to clean.
    fn look(&mut self, state: &mut State, done: bool) {
        let now = now();
        match self.due {
            Some(due) if now < due => {}
            Some(_) => {
                self.due = None;
                let again = std::mem::take(&mut state.unclean);
                state.to_clean.extend(again);
            }
            None if !state.unclean.is_empty() => {
                self.due = Some(now + RETRY * (1 << self.failures));
                self.failures = DOUBLINGS_MAX.min(self.failures + 1);
            }
            None if done => {}
            // All have been cleaned.
            None => self.failures = 0,
        }
    }
}

/// The time of the runtime, which tests simulate.
pub(crate) fn now() -> Instant {
    sleep(Duration::ZERO).deadline()
}

pub(crate) struct Cleaner {
    pub(crate) engine: Arc<Engine>,
    pub(crate) oracle: Arc<dyn LiveRanges>,
}

impl Cleaner {
    /// Looks at one object that was discarded from. Returns false if there is none.
    pub(crate) async fn step(&self) -> bool {
        let Some(run) = self.engine.lock().next_run() else { return false };
        match self.clean(&run).await {
            Ok(()) => {}
            Err(error) => {
                let text = "objects are left as they are for now";
                tracing::warn!(store = %self.engine.name, error, text);
                let firsts = run.iter().map(|object| object.first);
                self.engine.lock().unclean.extend(firsts);
            }
        }
        true
    }

    async fn clean(&self, run: &[Object]) -> Result<(), String> {
        let start = run[0].first;
        let end = run.iter().map(Object::end).max().unwrap_or(start);
        let live = self.live(start..end).await?;
        // The counts of objects with gaps may be too high, never too low.
        let counted = run.iter().map(|object| (*object, overlap(&live, object)));
        let (dead, mut kept): (Vec<_>, Vec<_>) = counted.partition(|(_, count)| *count == 0);
        if !dead.is_empty() {
            self.replace(dead.into_iter().map(|(object, _)| object), None);
        }
        let (mut sectors, mut live_sectors) = (0, 0);
        for (object, count) in &mut kept {
            let mut state = self.engine.lock();
            let discarded = discarded_since(object, state.map.get(object.first));
            let again = state.to_clean.contains(&object.first);
            state.set_counted(object.first, *count, discarded, again);
            object.live = *count;
            sectors += u64::from(object.payload_sectors);
            live_sectors += u64::from(*count);
        }
        let pays = live_sectors * 2 <= sectors || kept.len() > 1;
        if kept.is_empty() || live_sectors > WINDOW_SECTORS || !pays {
            return Ok(());
        }
        let objects = kept.into_iter().map(|(object, _)| object).collect();
        self.merge(survey(&self.engine, objects, live).await?).await
    }

    /// Asks which sectors of a range are live.
    async fn live(&self, sectors: Range<u64>) -> Result<Vec<Range<u64>>, String> {
        let oracle = Arc::clone(&self.oracle);
        let (start, end) = (sectors.start * SECTOR_BYTES, sectors.end * SECTOR_BYTES);
        let asked = tokio::task::spawn_blocking(move || oracle.live(start, end)).await;
        let ranges = asked.map_err(|error| error.to_string())??;
        // Sectors that are live in part are live.
        let to_sectors =
            |(start, end): (u64, u64)| start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES);
        Ok(ranges.into_iter().map(to_sectors).collect())
    }

    /// Writes the live extents as one object.
    async fn merge(&self, surveys: Vec<Survey>) -> Result<(), String> {
        let generation = surveys.iter().map(|survey| survey.object.generation).max().unwrap_or(0);
        // After so many merges the objects stay as they are.
        let Some(generation) = generation.checked_add(1) else { return Ok(()) };
        let count = surveys.len() as u64;
        let (mut objects, mut pieces) = (Vec::with_capacity(surveys.len()), Vec::new());
        for Survey { object, live } in surveys {
            objects.push(object);
            pieces.extend(live);
        }
        if pieces.is_empty() {
            // What is live in their spans is in other objects.
            self.replace(objects, None);
            return Ok(());
        }
        pieces.sort_unstable_by_key(|(extent, _)| extent.start);
        let mut offset = 0;
        for (extent, bytes) in &mut pieces {
            extent.offset = offset;
            extent.checksum = checksum_of(bytes);
            offset += extent.sectors;
        }
        let (extents, mut body): (Vec<Extent>, Vec<Bytes>) = pieces.into_iter().unzip();
        let object = object_of(&extents, self.engine.epoch as u32, generation);
        body.push(directory::encode(&object, &extents).into());
        let body = Body::new(body);
        {
            let mut state = self.engine.lock();
            if state.closing {
                // The close looks once whether a merge is under way.
                return Ok(());
            }
            state.merging = true;
        }
        let put = self.engine.client.put(&names::data(&object), &body, Persist::Forever).await;
        put.map_err(|error| error.to_string())?;
        self.engine.count(ObjectCounters::MERGED_OBJECTS, count);
        self.engine.count(ObjectCounters::MERGED_BYTES, object.payload_bytes());
        self.engine.directories.insert(&object, &Arc::new(extents));
        self.replace(objects, Some(object));
        self.engine.lock().merging = false;
        Ok(())
    }

    /// Replaces objects by the one that they were merged into, or by nothing.
    fn replace(&self, objects: impl IntoIterator<Item = Object>, merged: Option<Object>) {
        let mut state = self.engine.lock();
        let (mut discarded, mut again) = (0, false);
        for object in objects {
            let removed = state.map.remove(object.first);
            assert_eq!(removed.map(|removed| removed.epoch), Some(object.epoch), "{object:?}");
            discarded += discarded_since(&object, removed.as_ref());
            state.removed.push(object);
            again |= state.to_clean.remove(&object.first);
        }
        if let Some(object) = merged {
            state.map.insert(object);
            state.unpublished.push(object);
            state.set_counted(object.first, object.live, discarded, again);
        }
        drop(state);
        self.engine.flush_wanted.notify_one();
    }
}

/// Sectors of `live` that are in the span of `object`.
fn overlap(live: &[Range<u64>], object: &Object) -> u16 {
    let within = |range: &Range<u64>| {
        range.end.min(object.end()).saturating_sub(range.start.max(object.first))
    };
    live.iter().map(within).sum::<u64>().min(object.payload_sectors.into()) as u16
}

/// Sectors of an object that were discarded since it had the count of `before`.
fn discarded_since(before: &Object, now: Option<&Object>) -> u64 {
    now.map_or(0, |now| before.live.saturating_sub(now.live)).into()
}

impl State {
    /// Notes that an object had `count` live sectors when the cleaner asked, or copied them.
    /// Discards since then need not be part of the answer, so they are subtracted. `again` says
    /// that one has asked for another look. It gets it, also if the count was too low to tell of
    /// it.
    fn set_counted(&mut self, first: u64, count: u16, discarded: u64, again: bool) {
        let Some(payload_sectors) = self.map.get(first).map(|object| object.payload_sectors) else {
            return;
        };
        let left = u64::from(count).saturating_sub(discarded) as u16;
        let live = if again { left.min(payload_sectors / 2) } else { left };
        self.map.set_live(first, live);
        if again || discarded > 0 && live <= payload_sectors / 2 {
            self.to_clean.insert(first);
        }
    }

    /// The objects to look at next: those around one that is believed to be at most half live.
    fn next_run(&mut self) -> Option<Vec<Object>> {
        let (mut stale, mut found) = (Vec::new(), None);
        for first in &self.to_clean {
            let small = self.map.get(*first).filter(|object| is_half_dead(object));
            match small.map(|object| self.run_around(object)) {
                None => stale.push(*first),
                // It has to wait.
                Some(run) if run.is_empty() => {}
                Some(run) => {
                    found = Some(run);
                    break;
                }
            }
        }
        let looked_at = found.iter().flatten().map(|object| object.first);
        for first in stale.into_iter().chain(looked_at) {
            self.to_clean.remove(&first);
        }
        found
    }

    /// An object with those that overlap it, and with its next neighbours as long as they are small
    /// and the live blocks of all fit in one object. Empty if it must be left alone.
    fn run_around(&self, object: &Object) -> Vec<Object> {
        let mut first = object.first;
        // Those before it in its window may overlap it.
        let window_start = first / WINDOW_SECTORS * WINDOW_SECTORS;
        for before in self.map.iter_from(window_start).take_while(|other| other.first < first) {
            if before.end() > first {
                first = before.first;
                break;
            }
        }
        let mut run: Vec<Object> = Vec::new();
        let (mut end, mut live) = (first, 0);
        for next in self.map.iter_from(first) {
            let fits = live + u64::from(next.live) <= WINDOW_SECTORS && run.len() < MERGE_MAX;
            let near = next.end() - first <= SPAN_MAX;
            let joins =
                fits && near && (is_half_dead(next) || u64::from(next.live) <= SMALL_SECTORS);
            if !run.is_empty() && next.first >= end && !joins {
                break;
            }
            let is_unpublished =
                || self.unpublished.iter().any(|object| object.first == next.first);
            if next.end() > self.written.floor_sector() || is_unpublished() {
                // What overlaps must be merged as well, and cannot be yet.
                let overlaps = next.first < end;
                return if overlaps { Vec::new() } else { run };
            }
            live += u64::from(next.live);
            end = end.max(next.end());
            run.push(*next);
        }
        run
    }
}

fn is_half_dead(object: &Object) -> bool {
    object.live * 2 <= object.payload_sectors
}
