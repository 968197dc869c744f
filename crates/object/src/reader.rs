//! Reads of data: ranged gets of exactly the bytes that are asked for.
//!
//! Reads that are queued together and are neighbours in one dense object share a get, a [`Run`],
//! also with the parts of reads that are in two such objects. All others are gets of their own, all
//! in flight at the same time. Read-ahead waits a moment for more of it: its gets are large then.
//!
//! An object may be gone because the cleaner has merged it: the read then resolves its address
//! again. If the cleaner is that of another host, because this one has opened the store read-only,
//! it loads the newest map before, as a fallback: of the objects that it knew, others may be there
//! still.

use std::time::Duration;

use bytes::Bytes;
use forebay_base::sync::Arc;
use forebay_io::{Error, ErrorKind, Priority, Request};
use tokio::time::timeout;

use crate::client::Persist;
use crate::conditional::read_super_at_last;
use crate::counters::ObjectCounters;
use crate::directories::Extents;
use crate::engine::{Engine, Fenced};
use crate::format::directory::{self, bytes_of, checksum_of, directory_bytes};
use crate::format::{FormatError, SECTOR_BYTES, WINDOW_BYTES, names};
use crate::map::Object;
use crate::open;
use crate::run::{Part, PartEnd, Run};
use crate::store::{StoreError, StoreErrorKind};

/// Times that an address is resolved.
const ATTEMPTS: u32 = 4;

/// How long read-ahead waits for more of it, and how often at most. A request takes much longer.
const GATHER_MOMENT: Duration = Duration::from_millis(1);
const GATHER_MOMENTS: u32 = 8;

/// Serves reads until the device is closed.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        engine.reads_wanted.notified().await;
        engine.gather_reads().await;
        let (reads, closed) = {
            let mut state = engine.lock();
            (std::mem::take(&mut state.reads), state.closed)
        };
        engine.start_reads(reads);
        if closed {
            return;
        }
    }
}

impl Engine {
    /// Lets reads that nobody waits for gather: read-ahead submits them one by one, and those of
    /// neighbours share a get. Ends once none has come for a moment, or one is submitted that is
    /// needed now. One that comes to be needed while it waits, waits for the end of the moment.
    async fn gather_reads(&self) {
        let mut before = 0;
        for _ in 0..GATHER_MOMENTS {
            let gathered = {
                let state = self.lock();
                let may_wait = |read: &Request| read.priority() > Priority::SyncRead;
                if state.closing || !state.reads.iter().all(may_wait) {
                    return;
                }
                state.reads.len()
            };
            if gathered == before {
                return;
            }
            before = gathered;
            // Only a read that is needed now wakes this task before its time.
            if timeout(GATHER_MOMENT, self.reads_wanted.notified()).await.is_ok() {
                return;
            }
        }
    }

    fn start_reads(self: &Arc<Self>, mut reads: Vec<Request>) {
        reads.sort_unstable_by_key(Request::offset);
        let mut runs: Vec<Run> = Vec::new();
        let mut others = Vec::new();
        let mut add = |object: Object, part: Part| {
            let added = match runs.last_mut() {
                Some(run) => run.add(&object, part),
                None => Err(part),
            };
            match added {
                Ok(()) => self.count(ObjectCounters::COALESCED_READS, 1),
                Err(part) => runs.push(Run::new(self, object, part)),
            }
        };
        let state = self.lock();
        for request in reads {
            match state.map.dense_at(request.offset() / SECTOR_BYTES) {
                Some(object) if request.offset() + request.len() <= object.end_byte() => {
                    add(object, Part::Whole(request));
                }
                Some(object) => match Part::split(&state.map, object, request) {
                    Ok(parts) => parts.into_iter().for_each(|(object, part)| add(object, part)),
                    Err(request) => others.push(request),
                },
                None => others.push(request),
            }
        }
        drop(state);
        for run in runs {
            self.spawn(|engine| async move { engine.read_run(run).await });
        }
        for request in others {
            self.spawn(|engine| async move { engine.read_resolved(request).await });
        }
    }

    async fn read_run(self: Arc<Self>, run: Run) {
        let persist = Persist::Budget(self.options.read_budget);
        let key = names::data(&run.object);
        let read = self.client.read_range(&key, || run.rest(), &run, persist).await;
        let end = match read {
            Ok(()) => return,
            Err(error) if error.kind() == StoreErrorKind::NotFound => PartEnd::Gone,
            Err(error) => PartEnd::Failed(key, error),
        };
        self.end_parts(run.into_parts(), &end);
    }

    /// Ends parts of reads. A read ends with its last part.
    pub(crate) fn end_parts(
        self: &Arc<Self>,
        parts: impl IntoIterator<Item = Part>,
        end: &PartEnd,
    ) {
        let mut ended = Vec::new();
        for (request, end) in parts.into_iter().filter_map(|part| part.end(end)) {
            match end {
                PartEnd::Filled => ended.push((request, Ok(()))),
                PartEnd::Gone => {
                    self.spawn(|engine| async move { engine.read_resolved(request).await });
                }
                PartEnd::Failed(key, error) => {
                    let failed = self.read_failed(&request, &key, &error);
                    ended.push((request, Err(failed)));
                }
            }
        }
        if !ended.is_empty() {
            self.finish(ended);
        }
    }

    /// Reads sectors of any objects, piece by piece.
    async fn read_resolved(self: Arc<Self>, mut request: Request) {
        let offset = request.offset();
        let len = request.len();
        let result = self.read_bytes(offset, len).await;
        let result = match result {
            Ok(pieces) => {
                let mut into = request.bytes_mut().expect("a read owns its memory");
                for piece in pieces {
                    let (part, rest) = into.split_at_mut(piece.len());
                    part.copy_from_slice(&piece);
                    into = rest;
                }
                Ok(())
            }
            Err(ReadError::Unwritten(sector)) => {
                let at = sector * SECTOR_BYTES;
                self.lock().lost = self.read_only;
                let cause = match self.read_only {
                    true if self.follows => "its owner has freed it since; open the file again",
                    true => "its owner has freed it since; import the pool again",
                    false => "nothing was written there",
                };
                let text = format!("no object holds the address {at}; {cause}");
                Err(self.error(&request, ErrorKind::Device, &text))
            }
            Err(ReadError::Store(key, error)) => {
                let is_gone = error.kind() == StoreErrorKind::NotFound && !self.read_only;
                match if is_gone { self.new_owner().await } else { None } {
                    Some(fenced) => Err(self.fenced_error(&request, &fenced)),
                    None => Err(self.read_failed(&request, &key, &error)),
                }
            }
        };
        self.finish(vec![(request, result)]);
    }

    /// Who has taken the store over, and may have deleted what was read. Nothing is published from
    /// then on.
    async fn new_owner(&self) -> Option<Fenced> {
        if let Some(fenced) = self.lock().fenced.clone() {
            return Some(fenced);
        }
        let look = timeout(self.options.read_budget, read_super_at_last(&self.client));
        let fenced = match look.await.ok()? {
            Ok(known) if known.content.epoch != self.epoch => {
                Fenced { owner: known.content.owner, epoch: known.content.epoch }
            }
            Err(error) if error.kind() == StoreErrorKind::NotFound => Fenced::destroyed(self.epoch),
            _ => return None,
        };
        self.lock().fenced = Some(fenced.clone());
        Some(fenced)
    }

    fn read_failed(&self, request: &Request, key: &str, error: &StoreError) -> Error {
        let kind = match error.kind() {
            StoreErrorKind::Closed => ErrorKind::Closed,
            _ => ErrorKind::Device,
        };
        self.error(request, kind, &format!("object {key}: {error}"))
    }

    /// Reads a range, in pieces that follow each other.
    pub(crate) async fn read_bytes(&self, offset: u64, len: u64) -> Result<Vec<Bytes>, ReadError> {
        let (mut sector, end) = (offset / SECTOR_BYTES, (offset + len) / SECTOR_BYTES);
        let mut pieces = Vec::new();
        let mut attempts = 0;
        while sector < end {
            match self.read_piece(sector, end).await {
                Ok(piece) => {
                    sector += piece.len() as u64 / SECTOR_BYTES;
                    pieces.push(piece);
                    attempts = 0;
                }
                Err(ReadError::Store(key, error))
                    if error.kind() == StoreErrorKind::NotFound && attempts < ATTEMPTS =>
                {
                    attempts += 1;
                    if self.read_only {
                        self.reload(sector, key).await?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(pieces)
    }

    /// Forgets the object `key`, which is gone. Loads the newest map if no other object may hold
    /// `sector`.
    async fn reload(&self, sector: u64, key: String) -> Result<(), ReadError> {
        let _one = self.reloading.lock().await;
        {
            let mut state = self.lock();
            let is_gone = |object: &Object| names::data(object) == key;
            let gone = state.map.candidates(sector).into_iter().find(is_gone);
            if let Some(gone) = gone {
                state.map.remove(gone.first);
            } else if !state.fallback.candidates(sector).iter().any(is_gone) {
                // Another read has done so.
                return Ok(());
            }
            let others = state.fallback.candidates(sector);
            if others.iter().any(|object| !is_gone(object)) {
                return Ok(());
            }
        }
        match open::current_map(self).await {
            Ok(None) => Ok(()),
            Ok(Some(map)) => {
                self.lock().fallback = map;
                Ok(())
            }
            Err(error) => {
                let text = format!("it is gone, and so is the map: {error}");
                Err(ReadError::Store(key, StoreError::new(StoreErrorKind::Other, text)))
            }
        }
    }

    /// Reads from `sector` on as much as one get can, at most to `end`.
    async fn read_piece(&self, sector: u64, end: u64) -> Result<Bytes, ReadError> {
        let candidates = self.candidates(sector);
        let persist = Persist::Budget(self.options.read_budget);
        for object in candidates {
            let key = names::data(&object);
            let (start, sectors) = if object.is_dense() {
                (sector - object.first, end.min(object.end()) - sector)
            } else {
                let extents = self.directory(&object).await?;
                match place(&extents, sector, end) {
                    Some(place) => place,
                    None => continue,
                }
            };
            let sectors = sectors.min(WINDOW_BYTES / SECTOR_BYTES);
            let range = start * SECTOR_BYTES..(start + sectors) * SECTOR_BYTES;
            let read = self.client.get_range(&key, range, persist).await;
            return read.map_err(|error| ReadError::Store(key, error));
        }
        Err(ReadError::Unwritten(sector))
    }

    /// The extents of an object with gaps.
    async fn directory(&self, object: &Object) -> Result<Extents, ReadError> {
        if let Some(extents) = self.directories.get(object) {
            return Ok(extents);
        }
        self.count(ObjectCounters::DIRECTORIES_FETCHED, 1);
        let persist = Persist::Budget(self.options.read_budget);
        let fetched = self.fetch_directory(object, persist).await;
        let extents = fetched.map_err(|error| ReadError::Store(names::data(object), error))?;
        self.directories.insert(object, &extents);
        Ok(extents)
    }

    /// Reads the extents of an object.
    pub(crate) async fn fetch_directory(
        &self,
        object: &Object,
        persist: Persist,
    ) -> Result<Extents, StoreError> {
        let key = names::data(object);
        let start = object.payload_bytes();
        let range = start..start + directory_bytes(object.extents.into()) as u64;
        let get = || self.client.get_range(&key, range.clone(), persist);
        let parse = |bytes: Bytes| directory::decode(object, &bytes);
        let extents = self.client.fetch_sound(get, parse).await?;
        extents.map(Arc::new).map_err(|defect| damaged_directory(&defect))
    }

    /// Reads a whole object, and verifies all of it. The cleaner deletes what it has read.
    pub(crate) async fn read_object(
        &self,
        object: &Object,
    ) -> Result<(Bytes, Extents), StoreError> {
        let key = names::data(object);
        let len = object.payload_bytes() + directory_bytes(object.extents.into()) as u64;
        let get = || self.client.get_range(&key, 0..len, Persist::Background);
        self.client.fetch_sound(get, |body| verified(object, &body)).await?
    }
}

/// The payload and the extents of a whole object.
fn verified(object: &Object, body: &Bytes) -> Result<(Bytes, Extents), StoreError> {
    let payload = body.slice(..object.payload_bytes() as usize);
    let decoded = directory::decode(object, &body[payload.len()..]);
    let extents = decoded.map_err(|defect| damaged_directory(&defect))?;
    let is_sound = |extent: &directory::Extent| {
        let at = bytes_of(extent.offset) as usize;
        checksum_of(&payload[at..at + bytes_of(extent.sectors) as usize]) == extent.checksum
    };
    if extents.iter().all(is_sound) {
        return Ok((payload, Arc::new(extents)));
    }
    Err(damaged_block())
}

pub(crate) fn damaged_block() -> StoreError {
    StoreError::new(StoreErrorKind::Damaged, "the checksum of a block is wrong")
}

fn damaged_directory(defect: &FormatError) -> StoreError {
    StoreError::new(StoreErrorKind::Damaged, format!("its directory: {defect}"))
}

/// Where `sector` and those after it are in the payload: first sector and count, at most to `end`.
fn place(extents: &Extents, sector: u64, end: u64) -> Option<(u64, u64)> {
    let at = extents.partition_point(|extent| extent.end() <= sector);
    let first = extents.get(at).filter(|extent| extent.start <= sector)?;
    let start = u64::from(first.offset) + (sector - first.start);
    // Extents that follow each other do so in the payload, too.
    let mut known = first.end();
    for extent in &extents[at + 1..] {
        if extent.start != known || known >= end {
            break;
        }
        known = extent.end();
    }
    Some((start, known.min(end) - sector))
}

/// Why a range cannot be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// Nothing was written there.
    Unwritten(u64),
    /// A request failed.
    Store(String, StoreError),
}
