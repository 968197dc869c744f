//! Writes of data: they gather in windows, each of which becomes an object.
//!
//! A *window* is a range of addresses of the size of an object. It is sealed when all its sectors
//! were written, when somebody waits for its writes who has no more of them
//! ([`unplug`](Engine::unplug)), or when no write has come for some time. Then its writes are
//! sorted by address and put as one object, from the memory of the requests. They complete when the
//! put has ended: so memory is bounded by the writes that the user has in flight.
//!
//! An address is written once. A repeated write completes at once. One of an address that may have
//! been written before the open, or many labels ago, is refused.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use forebay_io::{Error, ErrorKind, Payload, Request};
use tokio::time::sleep;

use crate::client::Persist;
use crate::counters::ObjectCounters;
use crate::engine::{Engine, State};
use crate::format::directory::{self, Extent, checksum_of};
use crate::format::{SECTOR_BYTES, WINDOW_SECTORS, names};
use crate::map::Object;
use crate::store::Body;

/// A window that waits for more writes.
#[derive(Default)]
pub(crate) struct Window {
    parts: Vec<Part>,
    sectors: u64,
    /// Changes with each write, so that the timer sees whether one came.
    writes: u64,
}

/// The part of a write that is in one window.
struct Part {
    /// Its first sector.
    sector: u64,
    bytes: Bytes,
    job: Arc<Job>,
}

/// A write with its memory, until all its parts are durable.
///
/// Locking: `object-write`, a leaf lock.
struct Job(Mutex<JobState>);

struct JobState {
    request: Option<Request>,
    payload: Option<Arc<Payload>>,
    parts: usize,
    error: Option<Error>,
}

/// Memory that a put borrows from a write.
struct Lent(Arc<Payload>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Which sectors were written since the store was opened, of windows that may still get writes.
#[derive(Debug, Default)]
pub(crate) struct WrittenSectors {
    windows: BTreeMap<u64, Box<[u64; WINDOW_SECTORS as usize / 64]>>,
    /// Windows before this one are forgotten: many labels are durable since their last write.
    floor: u64,
    /// Floors after the next labels.
    next_floors: VecDeque<u64>,
}

/// Labels that are published before a window is forgotten. A pool writes what it has allocated
/// before it publishes the next one or two.
pub(crate) const LABELS_TO_FORGET: usize = 8;

/// Whether a write is the first one of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Novelty {
    New,
    Repeated,
    Partly,
    Forgotten,
}

impl WrittenSectors {
    /// That of a store whose addresses from `next_unused` on were never written. Those before get
    /// no more writes: they may have been written by other owners.
    pub(crate) fn from(next_unused: u64) -> Self {
        Self { floor: State::window_of(next_unused / SECTOR_BYTES), ..Self::default() }
    }

    /// Notes a write, if all its sectors are new.
    fn note(&mut self, sectors: Range<u64>) -> Novelty {
        if sectors.start / WINDOW_SECTORS < self.floor {
            return Novelty::Forgotten;
        }
        let known = sectors.clone().filter(|sector| self.has(*sector)).count() as u64;
        if known > 0 {
            let all = known == sectors.end - sectors.start;
            return if all { Novelty::Repeated } else { Novelty::Partly };
        }
        for sector in sectors {
            let (window, word, bit) = place(sector);
            let empty = || Box::new([0; WINDOW_SECTORS as usize / 64]);
            self.windows.entry(window).or_insert_with(empty)[word] |= bit;
        }
        Novelty::New
    }

    fn has(&self, sector: u64) -> bool {
        let (window, word, bit) = place(sector);
        self.windows.get(&window).is_some_and(|words| words[word] & bit != 0)
    }

    /// A label is durable: forgets windows that were complete many labels ago.
    pub(crate) fn label_published(&mut self, next_unused: u64) {
        self.next_floors.push_back(State::window_of(next_unused / SECTOR_BYTES));
        if self.next_floors.len() > LABELS_TO_FORGET {
            self.floor = self.next_floors.pop_front().unwrap_or(self.floor);
            self.windows = self.windows.split_off(&self.floor);
        }
    }

    /// The first sector of windows that may still get writes.
    pub(crate) fn floor_sector(&self) -> u64 {
        self.floor * WINDOW_SECTORS
    }
}

fn place(sector: u64) -> (u64, usize, u64) {
    let within = sector % WINDOW_SECTORS;
    (sector / WINDOW_SECTORS, (within / 64) as usize, 1 << (within % 64))
}

impl Engine {
    /// Accepts a write of data.
    pub(crate) fn write(self: &Arc<Self>, mut state: MutexGuard<'_, State>, mut request: Request) {
        let start = request.offset() / SECTOR_BYTES;
        let end = start + request.len() / SECTOR_BYTES;
        let novelty = if request.offset() < self.first_unused {
            Novelty::Forgotten
        } else {
            state.written.note(start..end)
        };
        if novelty != Novelty::New {
            drop(state);
            if novelty == Novelty::Repeated {
                self.count(ObjectCounters::REWRITES_IGNORED, 1);
                return request.finish(Ok(()));
            }
            let text = "each address is written once; allocate another one";
            let error = self.error(&request, ErrorKind::InvalidRequest, text);
            return request.finish(Err(error));
        }
        state.in_flight += 1;
        let payload = Arc::new(request.take_payload().expect("a write has memory"));
        let bytes = Bytes::from_owner(Lent(Arc::clone(&payload)));
        let parts = ((end - 1) / WINDOW_SECTORS - start / WINDOW_SECTORS + 1) as usize;
        let job = JobState { request: Some(request), payload: Some(payload), parts, error: None };
        let job = Arc::new(Job(Mutex::named("object-write", job)));
        let mut sector = start;
        while sector < end {
            let window = State::window_of(sector);
            let part_end = end.min((window + 1) * WINDOW_SECTORS);
            let within = |sector: u64| ((sector - start) * SECTOR_BYTES) as usize;
            let bytes = bytes.slice(within(sector)..within(part_end));
            let part = Part { sector, bytes, job: Arc::clone(&job) };
            self.add_part(&mut state, window, part, part_end - sector);
            sector = part_end;
        }
    }

    fn add_part(self: &Arc<Self>, state: &mut State, window: u64, part: Part, sectors: u64) {
        let is_new = !state.windows.contains_key(&window);
        let open = state.windows.entry(window).or_default();
        open.parts.push(part);
        open.sectors += sectors;
        open.writes += 1;
        if open.sectors == WINDOW_SECTORS {
            self.seal(state, window);
        } else if is_new {
            self.spawn(|engine| async move { engine.seal_when_idle(window).await });
        }
    }

    /// Seals all windows: somebody waits for what they have.
    pub(crate) fn unplug(self: &Arc<Self>) {
        let mut state = self.lock();
        for window in std::mem::take(&mut state.windows).into_values() {
            self.spawn(|engine| async move { engine.put_window(window).await });
        }
    }

    /// Seals the window once no write has come for some time.
    async fn seal_when_idle(self: Arc<Self>, window: u64) {
        let mut seen = 0;
        loop {
            sleep(self.options.seal_after).await;
            let mut state = self.lock();
            match state.windows.get(&window).map(|open| open.writes) {
                None => return,
                Some(writes) if writes == seen => return self.seal(&mut state, window),
                Some(writes) => seen = writes,
            }
        }
    }

    /// Starts the put of the window's object.
    fn seal(self: &Arc<Self>, state: &mut State, window: u64) {
        if let Some(window) = state.windows.remove(&window) {
            self.spawn(|engine| async move { engine.put_window(window).await });
        }
    }

    async fn put_window(self: Arc<Self>, window: Window) {
        let mut parts = window.parts;
        parts.sort_unstable_by_key(|part| part.sector);
        let (object, extents) = describe(&parts, self.epoch as u32);
        let mut body: Vec<Bytes> = parts.iter().map(|part| part.bytes.clone()).collect();
        body.push(directory::encode(&object, &extents).into());
        let key = names::data(&object);
        let result = self.client.put(&key, &Body::new(body), Persist::Forever).await;
        if result.is_ok() && !object.is_dense() {
            self.directories.insert(&object, &Arc::new(extents));
        }
        let failure = {
            let mut state = self.lock();
            match (&result, &state.fenced) {
                (_, Some(fenced)) => Some(Failure::Fenced(fenced.clone())),
                (Err(error), _) => Some(Failure::Store(error.to_string())),
                (Ok(_), None) => {
                    self.count(ObjectCounters::SEALED_OBJECTS, 1);
                    state.add_object(object);
                    None
                }
            }
        };
        let ended = parts.into_iter().filter_map(|part| self.end_part(part, failure.as_ref()));
        self.finish(ended.collect());
    }

    /// Ends a part of a write. Returns the request with its result after the last one.
    fn end_part(
        &self,
        part: Part,
        failure: Option<&Failure>,
    ) -> Option<(Request, Result<(), Error>)> {
        let Part { bytes, job, .. } = part;
        // Usually the last reference to the payload but the job's.
        drop(bytes);
        let mut state = job.0.lock();
        state.parts -= 1;
        if let Some(failure) = failure {
            let request = state.request.as_ref().expect("it has not ended");
            let error = match failure {
                Failure::Fenced(fenced) => self.fenced_error(request, fenced),
                Failure::Store(text) => self.error(request, ErrorKind::Closed, text),
            };
            state.error = Some(error);
        }
        if state.parts > 0 {
            return None;
        }
        let mut request = state.request.take().expect("it has not ended");
        let payload = state.payload.take().expect("it is taken once");
        // The transport may hold on to the bytes for longer. Then it frees them.
        if let Ok(payload) = Arc::try_unwrap(payload) {
            request.put_payload(payload);
        }
        let result = state.error.take().map_or(Ok(()), Err);
        Some((request, result))
    }
}

enum Failure {
    Fenced(crate::engine::Fenced),
    Store(String),
}

/// The object of sorted parts, and its extents.
fn describe(parts: &[Part], epoch: u32) -> (Object, Vec<Extent>) {
    let mut extents = Vec::with_capacity(parts.len());
    let mut offset = 0;
    for part in parts {
        let sectors = (part.bytes.len() as u64 / SECTOR_BYTES) as u16;
        let checksum = checksum_of(&part.bytes);
        extents.push(Extent { start: part.sector, sectors, offset, checksum });
        offset += sectors;
    }
    (object_of(&extents, epoch, 0), extents)
}

/// The object that holds `extents`, which are in order.
pub(crate) fn object_of(extents: &[Extent], epoch: u32, generation: u16) -> Object {
    let first = extents[0].start;
    let end = extents[extents.len() - 1].end();
    let payload_sectors = extents.iter().map(|extent| extent.sectors).sum();
    Object {
        first,
        span: u32::try_from(end - first).expect("merges are of objects near each other"),
        epoch,
        generation,
        payload_sectors,
        extents: extents.len() as u16,
        live: payload_sectors,
    }
}
