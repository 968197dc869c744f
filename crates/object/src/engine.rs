//! The state that requests, flushes and the cleaner share, and the entry of all requests.
//!
//! Reads and writes of the mutable area are copies from and to memory. Those of data are tasks:
//! [`reader`](crate::reader), [`writer`](crate::writer). Flushes are one task, which owns the
//! [`Publisher`](crate::publish::Publisher).
//!
//! Invariants: an object is in the map only after its put has ended. It is in `unpublished` until a
//! published delta names it. An object that left the map is in `removed` until a root is published.
//!
//! # Locking
//! `object-state` protects [`State`]. It is held for a look or an update in memory, never across a
//! request, and no callback runs under it. The task lock `reloading` is taken before it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use forebay_io::{Error, ErrorKind, Op, Priority, Request};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::client::Client;
use crate::counters::ObjectCounters;
use crate::deferred;
use crate::directories::Directories;
use crate::format::{DEVICE_BYTES, SECTOR_BYTES, WINDOW_SECTORS};
use crate::map::{Map, Object};
use crate::mutable::{Mutable, Region, region};
use crate::options::Options;
use crate::pins::Pins;
use crate::writer::{Window, WrittenSectors};

/// Who has taken the store over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The name of the host.
    pub owner: String,
    /// Its epoch.
    pub epoch: u64,
}

impl Fenced {
    /// There is no `super` any more.
    pub(crate) fn destroyed(epoch: u64) -> Self {
        Self { owner: "a host that has destroyed the pool".to_owned(), epoch }
    }
}

/// What requests, flushes and the cleaner share.
pub(crate) struct Engine {
    /// The name of the store, for people.
    pub(crate) name: Arc<str>,
    pub(crate) client: Arc<Client>,
    pub(crate) options: Options,
    pub(crate) epoch: u64,
    pub(crate) store_guid: u64,
    pub(crate) read_only: bool,
    /// It is a view of a [`Follower`](crate::Follower), whose client it shares.
    pub(crate) follows: bool,
    /// Addresses from here on had never been written when the store was opened.
    pub(crate) first_unused: u64,
    pub(crate) runtime: Handle,
    pub(crate) directories: Arc<Directories>,
    state: Mutex<State>,
    pub(crate) flush_wanted: Notify,
    pub(crate) reads_wanted: Notify,
    /// Held while a reader loads the map again, across requests.
    pub(crate) reloading: tokio::sync::Mutex<()>,
    pub(crate) pins: Pins,
    /// A request has ended, or the last task.
    quiet: Condvar,
}

/// Under the lock `object-state`.
pub(crate) struct State {
    pub(crate) map: Map,
    /// Of a reader: a newer map, for addresses whose objects are gone.
    pub(crate) fallback: Map,
    /// Of a reader: the owner has freed what was read.
    pub(crate) lost: bool,
    pub(crate) mutable: Mutable,
    /// Windows that wait for more writes.
    pub(crate) windows: BTreeMap<u64, Window>,
    pub(crate) written: WrittenSectors,
    pub(crate) next_unused: u64,
    /// Objects in the map that no published delta names.
    pub(crate) unpublished: Vec<Object>,
    /// Objects that left the map since the last published root.
    pub(crate) removed: Vec<Object>,
    /// Objects that wait for their deletion.
    pub(crate) freed: deferred::Queue,
    /// The search for orphans has ended. Until then the cleaner rests: what it would remove is
    /// of earlier epochs, and would look like orphans.
    pub(crate) searched: bool,
    /// The cleaner has written an object that is not in the map yet.
    pub(crate) merging: bool,
    /// First sectors of objects for the cleaner to look at: half of them was discarded.
    pub(crate) to_clean: BTreeSet<u64>,
    /// First sectors of objects that the cleaner has tried in vain. It looks at them later.
    pub(crate) unclean: BTreeSet<u64>,
    pub(crate) reads: Vec<Request>,
    pub(crate) flushes: Vec<Request>,
    /// Requests of data, and flushes, that have not ended.
    pub(crate) in_flight: usize,
    pub(crate) closing: bool,
    /// The final root was published, or could not be.
    pub(crate) closed: bool,
    pub(crate) fenced: Option<Fenced>,
    pub(crate) errors: u64,
}

/// What an opened store starts with.
pub(crate) struct Start {
    pub(crate) map: Map,
    pub(crate) mutable: Mutable,
    pub(crate) next_unused: u64,
    pub(crate) epoch: u64,
    pub(crate) store_guid: u64,
    pub(crate) read_only: bool,
    pub(crate) follows: bool,
    pub(crate) directories: Arc<Directories>,
}

impl Engine {
    pub(crate) fn new(
        name: &str,
        client: Arc<Client>,
        options: Options,
        start: Start,
    ) -> Arc<Self> {
        let state = State {
            map: start.map,
            fallback: Map::default(),
            lost: false,
            mutable: start.mutable,
            windows: BTreeMap::new(),
            written: WrittenSectors::from(start.next_unused),
            next_unused: start.next_unused,
            unpublished: Vec::new(),
            removed: Vec::new(),
            freed: deferred::Queue::default(),
            searched: false,
            merging: false,
            to_clean: BTreeSet::new(),
            unclean: BTreeSet::new(),
            reads: Vec::new(),
            flushes: Vec::new(),
            in_flight: 0,
            closing: false,
            closed: false,
            fenced: None,
            errors: 0,
        };
        Arc::new(Self {
            name: name.into(),
            client,
            options,
            epoch: start.epoch,
            store_guid: start.store_guid,
            read_only: start.read_only,
            follows: start.follows,
            first_unused: start.next_unused,
            runtime: Handle::current(),
            directories: start.directories,
            state: Mutex::named("object-state", state),
            flush_wanted: Notify::new(),
            reads_wanted: Notify::new(),
            reloading: tokio::sync::Mutex::const_new(()),
            pins: Pins::default(),
            quiet: Condvar::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Accepts a request, and completes it now or later.
    pub(crate) fn submit(self: &Arc<Self>, request: Request) {
        let mut state = self.lock();
        let refused = self.malformed(&request).or_else(|| self.refusal(&state, &request));
        if let Some(error) = refused {
            drop(state);
            return request.finish(Err(error));
        }
        match (request.op(), region(request.offset(), request.len())) {
            (Op::Flush, _) => {
                state.in_flight += 1;
                state.flushes.push(request);
                drop(state);
                self.flush_wanted.notify_one();
            }
            (_, Region::Mixed) => {
                drop(state);
                let text = "the range is partly in the mutable area; split the request";
                let error = self.error(&request, ErrorKind::InvalidRequest, text);
                request.finish(Err(error));
            }
            (_, Region::Mutable(block)) => mutable(state, block, request),
            (Op::Read, Region::Data) => {
                state.in_flight += 1;
                // The reader gathers what can wait, and is awake if there is any.
                let wakes = state.reads.is_empty() || request.priority() == Priority::SyncRead;
                state.reads.push(request);
                drop(state);
                if wakes {
                    self.reads_wanted.notify_one();
                }
            }
            (Op::Write, Region::Data) => self.write(state, request),
            (Op::Discard, Region::Data) => discard(state, request),
        }
    }

    /// Why a request can never succeed.
    fn malformed(&self, request: &Request) -> Option<Error> {
        if request.op() == Op::Flush {
            return None;
        }
        let (offset, len) = (request.offset(), request.len());
        let aligned = offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES);
        let text = if !aligned || len == 0 {
            "offset and length must be multiples of the sector size"
        } else if request.end().is_none_or(|end| end > DEVICE_BYTES) {
            "the range is past the end of the device"
        } else {
            return None;
        };
        Some(self.error(request, ErrorKind::InvalidRequest, text))
    }

    /// Why a request is refused now.
    fn refusal(&self, state: &State, request: &Request) -> Option<Error> {
        let is_read = request.op() == Op::Read;
        let (kind, text) = match &state.fenced {
            _ if state.closing => (ErrorKind::Closed, "the device is closed; open it again"),
            _ if request.is_cancelled() => {
                (ErrorKind::Cancelled, "the request was cancelled before it was issued")
            }
            _ if self.read_only && !is_read => {
                let text = "the store was opened read-only; open it for writing";
                (ErrorKind::ReadOnly, text)
            }
            Some(fenced) if !is_read => return Some(self.fenced_error(request, fenced)),
            _ => return None,
        };
        Some(self.error(request, kind, text))
    }

    /// The error of a write after another host has taken the store over.
    pub(crate) fn fenced_error(&self, request: &Request, fenced: &Fenced) -> Error {
        let Fenced { owner, epoch } = fenced;
        let text = format!(
            "{owner} has taken the store over (epoch {epoch}, ours was {}); import the pool there, \
             or here again",
            self.epoch
        );
        self.error(request, ErrorKind::Gone, &text)
    }

    pub(crate) fn error(&self, request: &Request, kind: ErrorKind, text: &str) -> Error {
        let range = (request.offset(), request.len());
        Error::new(kind, request.op(), &(*self.name).into(), range, text)
    }

    /// Completes requests that count as in flight.
    pub(crate) fn finish(&self, ended: Vec<(Request, Result<(), Error>)>) {
        let count = ended.len();
        let failed = ended.iter().filter(|(_, result)| result.is_err()).count();
        for (request, result) in ended {
            request.finish(result);
        }
        let mut state = self.lock();
        state.in_flight -= count;
        state.errors += failed as u64;
        let quiet = state.in_flight == 0;
        drop(state);
        if quiet {
            self.quiet.notify_all();
            // The flusher may wait for that before it publishes the final root.
            self.flush_wanted.notify_one();
        }
    }

    /// Refuses new requests, and lets the accepted ones end.
    pub(crate) fn start_close(self: &Arc<Self>) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closing, true) {
            return;
        }
        drop(state);
        self.flush_wanted.notify_one();
        if self.read_only {
            // There is nothing to publish.
            self.spawn(|engine| async move { engine.set_closed() });
        }
        if !self.follows {
            self.spawn(|engine| async move { engine.stop_when_away().await });
        }
    }

    /// Lets the requests of a close fail once the store has been away for the budget. One that
    /// answers may take its time.
    async fn stop_when_away(&self) {
        let mut before = self.client.puts_away_since();
        loop {
            sleep(self.options.close_budget).await;
            let since = self.client.puts_away_since();
            if self.lock().closed || (since.is_some() && since == before) {
                return self.client.stop();
            }
            before = since;
        }
    }

    /// Notes that the final root was published, or could not be.
    pub(crate) fn set_closed(&self) {
        self.lock().closed = true;
        self.quiet.notify_all();
        self.reads_wanted.notify_one();
    }

    /// Waits until the device is closed and no request is in flight.
    pub(crate) fn wait_closed(&self) {
        let mut state = self.lock();
        while !(state.closed && state.in_flight == 0) {
            self.quiet.wait(&mut state);
        }
    }

    /// Starts a task that ends with the engine.
    pub(crate) fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.runtime.spawn(task(Arc::clone(self))));
    }

    /// The objects that may hold `sector`, those of the fallback last.
    pub(crate) fn candidates(&self, sector: u64) -> Vec<Object> {
        let state = self.lock();
        let mut found = state.map.candidates(sector);
        found.extend(state.fallback.candidates(sector));
        found
    }

    /// A reference that does not keep the engine alive.
    pub(crate) fn downgrade(self: &Arc<Self>) -> Weak<Self> {
        Arc::downgrade(self)
    }

    pub(crate) fn count(&self, counter: forebay_base::counters::Counter, n: u64) {
        self.client.count(counter, n);
    }

    /// The counters, for statistics.
    pub(crate) fn counters(&self) -> &ObjectCounters {
        &self.client.counters
    }
}

impl State {
    /// Notes an object whose put has ended.
    pub(crate) fn add_object(&mut self, object: Object) {
        let end = object.end_byte();
        self.next_unused = self.next_unused.max(end);
        self.map.insert(object);
        self.unpublished.push(object);
    }

    /// The window that a sector is in.
    pub(crate) fn window_of(sector: u64) -> u64 {
        sector / WINDOW_SECTORS
    }
}

/// Executes a request of the mutable area.
fn mutable(mut state: MutexGuard<'_, State>, block: u32, mut request: Request) {
    match request.op() {
        Op::Read => {
            let into = request.bytes_mut().expect("a read owns its memory");
            state.mutable.read(block, into);
        }
        Op::Write => {
            let payload = request.payload().expect("a write has memory");
            state.mutable.write(block, payload.bytes());
        }
        Op::Discard => state.mutable.discard(block, (request.len() / SECTOR_BYTES) as u32),
        Op::Flush => unreachable!("a flush has no range"),
    }
    drop(state);
    request.finish(Ok(()));
}

/// Notes that a range is dead. It may be so noted twice: the counts are hints.
fn discard(mut state: MutexGuard<'_, State>, request: Request) {
    let (start, len) = (request.offset() / SECTOR_BYTES, request.len() / SECTOR_BYTES);
    let end = start + len;
    // An object that starts before the range may reach into it.
    let mut touched = state.map.candidates(start);
    touched.extend(state.map.iter_from(start + 1).take_while(|object| object.first < end));
    for object in touched {
        let overlap = object.end().min(end).saturating_sub(object.first.max(start));
        // Of an object with gaps, the range may have less than that.
        let live = u64::from(object.live).saturating_sub(overlap) as u16;
        state.map.set_live(object.first, live);
        if live * 2 <= object.payload_sectors {
            state.to_clean.insert(object.first);
        }
    }
    drop(state);
    request.finish(Ok(()));
}
