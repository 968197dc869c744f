//! Tests of the protocol over the simulated store. Time is simulated, too.
//!
//! A [`Session`] is one run of one host: it ends by a close or as by a crash.

mod cleaning;
mod crash;
mod deferred;
mod failures;
mod following;
mod races;
mod reads;
mod scale;
mod set_back;

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{Completion, Request};
use tokio::runtime::{Builder, Runtime};

use crate::cleaner::LiveRanges;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::MemoryStore;
use crate::options::Options;
use crate::simulated::{Network, SimulatedStore};
use crate::store::ObjectStore;
use crate::{cleaner, open, publish, reader};

pub(crate) const SECTOR: u64 = 4096;

/// Runs `test` on simulated time.
pub(crate) fn simulate<T>(test: impl Future<Output = T>) -> T {
    runtime().block_on(test)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

pub(crate) fn options(owner: &str, seed: u64) -> Options {
    Options {
        owner: owner.to_owned(),
        seed: Some(seed),
        force: true,
        request_timeout: Duration::from_secs(2),
        grace: Duration::from_secs(5),
        ..Options::default()
    }
}

/// An opened store.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    arena: Arc<Arena>,
}

impl Session {
    pub(crate) async fn create(store: &Arc<impl ObjectStore>, options: Options) -> Self {
        let store: Arc<dyn ObjectStore> = store.clone();
        Self::start(open::create(store, "test", options).await.unwrap())
    }

    pub(crate) async fn open(
        store: &Arc<impl ObjectStore>,
        options: Options,
    ) -> Result<Self, Error> {
        let store: Arc<dyn ObjectStore> = store.clone();
        open::open(store, "test", options).await.map(Self::start)
    }

    pub(crate) async fn open_read_only(store: &Arc<impl ObjectStore>) -> Result<Self, Error> {
        let store: Arc<dyn ObjectStore> = store.clone();
        let engine = open::open_read_only(store, "test", options("reader", 1)).await?;
        Ok(Self::of(engine))
    }

    fn start(publisher: publish::Publisher) -> Self {
        let engine = Arc::clone(&publisher.engine);
        drop(tokio::spawn(publish::run(publisher)));
        Self::of(engine)
    }

    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        drop(tokio::spawn(reader::run(Arc::clone(&engine))));
        let config = ArenaConfig { limit_bytes: 256 << 20, huge_pages: HugePages::Never };
        Self { engine, arena: Arena::new(config).unwrap() }
    }

    fn buffer(&self, len: u64) -> Buffer {
        self.arena.alloc(len as usize).unwrap()
    }

    pub(crate) async fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.pending();
        self.engine.submit(request);
        pending.await
    }

    /// Writes sectors that are filled with `tag` and their address.
    pub(crate) async fn write(
        &self,
        offset: u64,
        sectors: u64,
        tag: u64,
    ) -> Result<(), forebay_io::Error> {
        let mut buffer = self.buffer(sectors * SECTOR);
        for (sector, chunk) in (offset / SECTOR..).zip(buffer.chunks_mut(SECTOR as usize)) {
            chunk.copy_from_slice(&pattern(sector, tag));
        }
        self.run(Request::write(offset, buffer)).await.result
    }

    pub(crate) async fn read(
        &self,
        offset: u64,
        sectors: u64,
    ) -> Result<Vec<u8>, forebay_io::Error> {
        let buffer = self.buffer(sectors * SECTOR);
        self.run(Request::read(offset, buffer)).await.into_buffer().map(|buffer| buffer.to_vec())
    }

    /// Reads sectors and compares them with what [`write`](Self::write) wrote.
    pub(crate) async fn expect(&self, offset: u64, sectors: u64, tag: u64) {
        let read = self.read(offset, sectors).await.unwrap();
        for (sector, chunk) in (offset / SECTOR..).zip(read.chunks(SECTOR as usize)) {
            assert!(chunk == pattern(sector, tag), "sector {sector} is not that of {tag}");
        }
    }

    /// Starts the cleaner, with an oracle that knows what `live` has.
    pub(crate) fn clean(&self, live: &Arc<LiveSectors>) {
        drop(tokio::spawn(cleaner::run(Arc::clone(&self.engine), live.clone())));
    }

    pub(crate) async fn flush(&self) -> Result<(), forebay_io::Error> {
        self.run(Request::flush()).await.result
    }

    pub(crate) async fn discard(&self, offset: u64, sectors: u64) {
        self.run(Request::discard(offset, sectors * SECTOR)).await.result.unwrap();
    }

    /// Closes it, and waits until it is closed.
    pub(crate) async fn close(&self) {
        self.engine.start_close();
        while !self.engine.lock().closed {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn counter_of(&self, name: &str, label: &str) -> u64 {
        let all = self.engine.counters().snapshot();
        let found = all.iter().find(|one| one.name == name && one.label == Some(label));
        found.expect("a counter").value
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.engine.counters().snapshot();
        all.iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
    }
}

/// A host with a new pool, on a network without faults.
struct Host {
    memory: Arc<MemoryStore>,
    store: Arc<SimulatedStore>,
    session: Session,
}

impl Host {
    async fn new(options: Options) -> Self {
        let memory = MemoryStore::new();
        let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
        let session = Session::create(&store, options).await;
        Self { memory, store, session }
    }
}

/// The sectors that are in use.
pub(crate) struct LiveSectors(pub(crate) Mutex<BTreeSet<u64>>);

impl LiveSectors {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::named("live", BTreeSet::new())))
    }

    pub(crate) fn set(&self, offset: u64, sectors: u64, live: bool) {
        let first = offset / SECTOR;
        for sector in first..first + sectors {
            match live {
                true => self.0.lock().insert(sector),
                false => self.0.lock().remove(&sector),
            };
        }
    }
}

impl LiveRanges for LiveSectors {
    fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        let sectors =
            self.0.lock().range(start / SECTOR..end / SECTOR).copied().collect::<Vec<_>>();
        Ok(sectors.into_iter().map(|sector| (sector * SECTOR, (sector + 1) * SECTOR)).collect())
    }
}

/// A sector of bytes that name their address and a tag.
pub(crate) fn pattern(sector: u64, tag: u64) -> Vec<u8> {
    let word = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ tag;
    let head = [word.to_le_bytes(), tag.to_le_bytes()].concat();
    head.repeat(SECTOR as usize / head.len())
}
