//! The device: the front of an engine, with the threads that execute its tasks.

use std::fmt;
use std::time::Duration;

use forebay_base::sync::{Arc, Mutex};
use forebay_io::{
    AppendOnly, Away, Device, DeviceInfo, DeviceStats, Engine as EngineName, Health, Request,
    Stored, Waiter, in_callback,
};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::cleaner::LiveRanges;
use crate::engine::{Engine, Fenced};
use crate::error::{Error, in_time};
use crate::format::{DEVICE_BYTES, MUTABLE_BYTES, SECTOR_BYTES};
use crate::options::Options;
use crate::publish::Publisher;
use crate::store::ObjectStore;
use crate::{cleaner, open, publish, reader};

/// Threads that execute the requests of a store.
const THREADS: usize = 2;

/// A prefix of an object store, as a device.
pub struct ObjectDevice {
    engine: Arc<Engine>,
    info: DeviceInfo,
    runtime: Arc<Threads>,
    sessions: Option<Sessions>,
}

/// The sessions of the owners of a store. Each takeover draws one. Unlike the name of an owner, it
/// is that of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// That of this owner.
    pub own: u128,
    /// That of the owner before; `None` if this one has created the store.
    pub before: Option<u128>,
}

/// The threads of a device, or of a follower and all its views. The last one ends them.
///
/// Locking: `object-runtime`, a leaf lock, held for a look.
pub(crate) struct Threads(Mutex<Option<Runtime>>);

impl Threads {
    fn new(runtime: Runtime) -> Arc<Self> {
        Arc::new(Self(Mutex::named("object-runtime", Some(runtime))))
    }

    /// Ends the threads without waiting for them.
    fn end(&self) {
        let runtime = self.0.lock().take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of a store, for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreState {
    /// The epoch of this owner.
    pub epoch: u64,
    /// Data objects.
    pub objects: u64,
    /// Bytes of their payloads.
    pub stored_bytes: u64,
    /// Bytes of them that are believed to be live.
    pub live_bytes: u64,
    /// Bytes of payload that were written and no durable state names yet.
    pub unpublished_bytes: u64,
    /// Since when the store has not answered.
    pub away: Option<Away>,
    /// Who has taken the store over.
    pub fenced: Option<Fenced>,
}

impl ObjectDevice {
    /// Creates a store in an empty prefix. `name` is its name for people.
    ///
    /// # Errors
    /// If the prefix is not empty, the store does not honour conditions, or requests fail.
    pub fn create(
        store: Arc<dyn ObjectStore>,
        name: &str,
        options: Options,
    ) -> Result<Arc<Self>, Error> {
        let budget = options.open_budget;
        let (runtime, publisher) = begin(name, budget, open::create(store, name, options))?;
        Ok(Self::start(runtime, publisher))
    }

    /// Opens a store, and makes this host its owner.
    ///
    /// # Errors
    /// If there is no store, another host has it open or takes it over at the same time, the store
    /// does not honour conditions, an object is damaged, or requests fail.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        name: &str,
        options: Options,
    ) -> Result<Arc<Self>, Error> {
        let budget = options.open_budget;
        let (runtime, publisher) = begin(name, budget, open::open(store, name, options))?;
        Ok(Self::start(runtime, publisher))
    }

    /// Opens a store as it is now, and writes nothing.
    ///
    /// # Errors
    /// If there is no store, an object is damaged, or requests fail.
    pub fn open_read_only(
        store: Arc<dyn ObjectStore>,
        name: &str,
        options: Options,
    ) -> Result<Arc<Self>, Error> {
        let budget = options.open_budget;
        let (runtime, engine) = begin(name, budget, open::open_read_only(store, name, options))?;
        Ok(Self::new(Threads::new(runtime), engine))
    }

    /// Whether a read has failed because the owner of the store has freed its blocks since this
    /// read-only device was opened.
    pub fn is_outdated(&self) -> bool {
        self.engine.lock().lost
    }

    /// Starts the cleaner, which asks `oracle` what is live. Without one, nothing that was written
    /// is ever deleted. Call it once; the oracle lives as long as the device.
    pub fn set_live_ranges(&self, oracle: Arc<dyn LiveRanges>) {
        self.engine.spawn(|engine| cleaner::run(engine, oracle));
    }

    fn start(runtime: Runtime, publisher: Publisher) -> Arc<Self> {
        let engine = Arc::clone(&publisher.engine);
        let sessions =
            Sessions { own: publisher.known.content.session, before: publisher.session_before };
        drop(runtime.spawn(publish::run(publisher)));
        Self::with_sessions(Threads::new(runtime), engine, Some(sessions))
    }

    pub(crate) fn new(runtime: Arc<Threads>, engine: Arc<Engine>) -> Arc<Self> {
        Self::with_sessions(runtime, engine, None)
    }

    fn with_sessions(
        runtime: Arc<Threads>,
        engine: Arc<Engine>,
        sessions: Option<Sessions>,
    ) -> Arc<Self> {
        drop(engine.runtime.spawn(reader::run(Arc::clone(&engine))));
        let info = info(&engine);
        Arc::new(Self { engine, info, runtime, sessions })
    }

    /// The sessions of this owner and of the one before; `None` if this device only reads.
    pub fn sessions(&self) -> Option<Sessions> {
        self.sessions
    }

    fn stored(&self) -> Stored {
        let state = self.engine.lock();
        let (bytes, live_bytes) = state.map.bytes();
        Stored { objects: state.map.len() as u64, bytes, live_bytes }
    }

    /// Returns the state of the store.
    pub fn state(&self) -> StoreState {
        let away = self.engine.client.away();
        let stored = self.stored();
        let state = self.engine.lock();
        StoreState {
            epoch: self.engine.epoch,
            objects: stored.objects,
            stored_bytes: stored.bytes,
            live_bytes: stored.live_bytes,
            unpublished_bytes: state.unpublished.iter().map(|o| o.payload_bytes()).sum(),
            away,
            fenced: state.fenced.clone(),
        }
    }
}

/// Destroys a store: takes it over, and deletes all objects that Forebay has written. Returns their
/// number. Also deletes what is left of a store that has no owner record any more.
///
/// # Errors
/// If there is no object of Forebay, another host has it open, or requests fail. Then it can be
/// repeated.
pub fn destroy(store: Arc<dyn ObjectStore>, name: &str, options: Options) -> Result<u64, Error> {
    let runtime = runtime(name)?;
    runtime.block_on(crate::destroy::destroy(store, name, options))
}

/// Starts the threads of a follower, and runs `open` on them.
pub(crate) fn begin_follower<T>(
    name: &str,
    budget: Duration,
    open: impl Future<Output = Result<T, Error>>,
) -> Result<(Arc<Threads>, Handle, T), Error> {
    let (runtime, opened) = begin(name, budget, open)?;
    let handle = runtime.handle().clone();
    Ok((Threads::new(runtime), handle, opened))
}

/// Runs `open` on the runtime of a new device, within `budget`.
fn begin<T>(
    name: &str,
    budget: Duration,
    open: impl Future<Output = Result<T, Error>>,
) -> Result<(Runtime, T), Error> {
    let runtime = runtime(name)?;
    let opened = runtime.block_on(in_time(name, budget, open))?;
    Ok((runtime, opened))
}

fn runtime(name: &str) -> Result<Runtime, Error> {
    Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("forebay-object")
        .enable_all()
        .build()
        .map_err(|source| Error::Threads { store: name.to_owned(), source })
}

fn info(engine: &Engine) -> DeviceInfo {
    DeviceInfo {
        name: (*engine.name).into(),
        size_bytes: DEVICE_BYTES,
        sector_bytes: SECTOR_BYTES as u32,
        physical_bytes: SECTOR_BYTES as u32,
        read_only: engine.read_only,
        direct: true,
        buffered: None,
        block_device: false,
        engine: EngineName::ObjectStore,
        append_only: Some(AppendOnly {
            mutable_bytes: MUTABLE_BYTES,
            next_unused: engine.first_unused,
        }),
    }
}

impl Device for ObjectDevice {
    fn submit(&self, request: Request) {
        self.engine.submit(request);
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        let state = self.engine.lock();
        match (&state.fenced, state.errors) {
            (Some(_), _) => Health::Gone,
            (None, 0) => Health::Healthy,
            (None, errors) => Health::Degraded { errors },
        }
    }

    fn stats(&self) -> DeviceStats {
        let counters = self.engine.counters().snapshot();
        let counters = counters.into_iter().map(|c| (c.name, c.label.unwrap_or(""), c.value));
        DeviceStats::new(EngineName::ObjectStore, counters.collect())
            .with_away(self.engine.client.away())
            .with_stored(self.stored())
    }

    fn help(&self, _waiter: &Waiter) {
        // The threads of the runtime need no help.
    }

    fn unplug(&self) {
        self.engine.unplug();
    }

    fn close(&self) {
        self.engine.start_close();
        if in_callback() {
            return;
        }
        self.engine.wait_closed();
        if !self.engine.follows {
            self.runtime.end();
        }
    }
}

impl Drop for ObjectDevice {
    fn drop(&mut self) {
        if self.engine.follows {
            // Its reader ends.
            return self.engine.start_close();
        }
        // Without a close it ends as after a crash.
        self.engine.client.stop();
        self.runtime.end();
    }
}

impl fmt::Debug for ObjectDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectDevice").field("name", &self.engine.name).finish_non_exhaustive()
    }
}
