//! Creates a pool.

use forebay_base::clock::{BootClock, Clock, SystemClock};
use forebay_base::rng;
use forebay_base::sync::Arc;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64};
use forebay_cache::OwnerCaching;
use hashbrown::HashMap;

use crate::block_cache::BlockCache;
use crate::dataset::DatasetSettings;
use crate::devices::Devices;
use crate::devices::config::Config;
use crate::devices::create::{self, NewVdev};
use crate::devices::heartbeat::Heartbeat;
use crate::devices::import::Imported;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind, EventLog, PoolEvents};
use crate::format::{
    BlockPtrPhys, Compression, DvaPhys, LOG_EXTENTS_MAX, LOG_SECTOR_BYTES, ObjectKind, ObjsetPhys,
    ROOT_BYTES, ScrubPhys, ZAP_LEAF_BYTES,
};
use crate::l2::L2Devices;
use crate::lease::Lease;
use crate::log::{Extent, IntentLog};
use crate::object::Leaves;
use crate::objset::Objset;
use crate::open::{HostId, Opened};
use crate::readahead::ReadAhead;
use crate::reservation::Reservations;
use crate::space::{Space, SpaceStats};
use crate::store::Store;
use crate::tunables::PoolTunables;
use crate::tx::Tx;
use crate::txg::Txgs;
use crate::wait::Wait;
use crate::zap::Zap;

use super::followed::{FollowedPool, ReadCounters};
use super::heartbeat::Heartbeats;
use super::l2::L2DeviceList;
use super::l2_fill::{self, L2Fills};
use super::log_io::{self, LogDevices};
use super::merge::{self, Merges};
use super::resilver::Resilvers;
use super::scrub::Scrubs;
use super::space_io::SpaceReader;
use super::trim::{self, Trims};
use super::txg_history::TxgHistory;
use super::{Pool, PoolInner, errors, sync_txg};

/// Lower bound of dirty bytes that may wait for a commit, however small the cache is.
const DIRTY_MIN_BYTES: u64 = 4 << 20;
/// Minimum size of an intent log.
const LOG_MIN_BYTES: u64 = 1 << 20;
/// Maximum size of an intent log.
const LOG_MAX_BYTES: u64 = 256 << 20;

/// Options for [`Pool::create`].
#[derive(Clone)]
pub struct CreateOptions {
    /// The name of the pool.
    pub name: String,
    /// The cache that the pool shares with others.
    pub cache: Arc<BlockCache>,
    /// The host that creates the pool.
    pub host: HostId,
    /// Whether to overwrite devices that hold a pool.
    pub force: bool,
    /// The sector size of the pool in bytes, a power of two from 512 to 4,096 that is not below the
    /// logical sector of a device. Default: the largest physical sector of the devices, and at
    /// least 4,096 for files and block devices. If it is smaller than a physical sector, a power
    /// cut can damage blocks beside the one that is written.
    pub sector_bytes: Option<u32>,
    /// Values of pool tunables by name, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// The clock. Default: the system clock.
    pub clock: Option<Arc<dyn Clock>>,
    /// Seed for GUIDs and other random numbers. Default: the system's entropy.
    pub seed: Option<u64>,
    /// The log of the pool's events. Default: one of its own.
    pub events: Option<Arc<EventLog>>,
}

impl CreateOptions {
    /// Returns options for a pool of this name on this host.
    pub fn new(name: &str, cache: Arc<BlockCache>) -> Self {
        Self {
            name: name.to_owned(),
            cache,
            host: HostId::of_this_host(),
            force: false,
            sector_bytes: None,
            tunables: Vec::new(),
            clock: None,
            seed: None,
            events: None,
        }
    }
}

/// Defaults of tunables of a pool on an object store. A request takes tens of milliseconds, and as
/// long if it is ten times as large. So streams are read far ahead, and soon.
const STORE_DEFAULTS: [(&str, &str); 2] =
    [("prefetch_max_bytes", "64MiB"), ("prefetch_ramp_bytes", "8MiB")];

/// Parts of a pool that do not come from its devices.
#[derive(Clone)]
pub(super) struct PoolParts {
    pub(super) cache: Arc<BlockCache>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
    pub(super) tunables: Arc<PoolTunables>,
    pub(super) read_only: bool,
    pub(super) followed: Option<FollowedPool>,
    pub(super) counters: ReadCounters,
    pub(super) lease: Arc<Lease>,
    /// Of a pool on an object store.
    pub(super) ownership: Arc<Lease>,
}

impl PoolParts {
    pub(super) fn new(
        cache: &Arc<BlockCache>,
        clock: Option<&Arc<dyn Clock>>,
        seed: Option<u64>,
        tunables: &[(String, String)],
        on_store: bool,
    ) -> Result<Self> {
        let table = PoolTunables::default();
        if on_store {
            for (name, value) in STORE_DEFAULTS {
                table.set(name, value)?;
            }
        }
        // Default: three quarters of the cache. The limit counts bytes to write, which exceed the
        // dirty bytes in memory.
        let dirty = (cache.bound_bytes() / 4 * 3).max(DIRTY_MIN_BYTES);
        table.set("dirty_max_bytes", &dirty.to_string())?;
        for (name, value) in tunables {
            table.set(name, value)?;
        }
        let own_clock = clock.cloned().unwrap_or_else(|| Arc::new(BootClock::new()));
        let clock = clock.cloned().unwrap_or_else(|| Arc::new(SystemClock::new()));
        Ok(Self {
            cache: Arc::clone(cache),
            lease: Arc::new(Lease::new(Arc::clone(&clock))),
            ownership: Arc::new(Lease::new(own_clock)),
            clock,
            seed: seed.unwrap_or_else(rng::seed_from_system),
            tunables: Arc::new(table),
            read_only: false,
            followed: None,
            counters: ReadCounters::default(),
        })
    }

    pub(super) fn read_ahead(&self) -> Arc<ReadAhead> {
        let (prefetch, directories) = (self.tunables.prefetch(), self.tunables.directories());
        let counters =
            (Arc::clone(&self.counters.prefetch), Arc::clone(&self.counters.directories));
        let (prefetch, directories) = (Arc::clone(prefetch), Arc::clone(directories));
        ReadAhead::new(prefetch, directories, Arc::clone(&self.clock), counters)
    }

    /// Returns the devices as storage of the intent log.
    pub(super) fn log_devices(&self, devices: &Arc<Devices>) -> Arc<LogDevices> {
        let ownership = devices.is_on_store().then(|| Arc::clone(&self.ownership));
        // The first commit confirms it.
        ownership.iter().for_each(|ownership| ownership.set_end_ns(0));
        let (devices, cache) = (Arc::clone(devices), Arc::clone(&self.cache));
        Arc::new(LogDevices { devices, cache, lease: Arc::clone(&self.lease), ownership })
    }

    /// Opens a store with a new cache owner.
    pub(super) fn store(&self, devices: &Arc<Devices>) -> Result<Store> {
        let in_flight = self.tunables.store().in_flight_bytes();
        let open = || {
            let owner = open_owner(&self.cache, OwnerCaching::All)?;
            let (devices, cache) = (Arc::clone(devices), Arc::clone(&self.cache));
            Ok(Store::new(devices, cache, owner, self.read_only, in_flight))
        };
        let share = |owner| Store::of_owner(Arc::clone(devices), owner, self.read_only, in_flight);
        let store = match &self.followed {
            Some(followed) => followed.own_store(share, open),
            None => open(),
        }?;
        let store = store.with_counters(Arc::clone(&self.counters.store));
        Ok(store.with_lease(Arc::clone(&self.lease)))
    }
}

/// Settings of the pool's own objects: two copies of their data too, which is not compressed.
pub(super) fn own_objects() -> DatasetSettings {
    DatasetSettings {
        data_compression: Compression::Off,
        data_copies: 2,
        ..DatasetSettings::default()
    }
}

/// Opens a new owner of keys in the cache. The store that receives it closes it.
pub(crate) fn open_owner(
    cache: &BlockCache,
    caching: OwnerCaching,
) -> Result<forebay_cache::OwnerId> {
    let owner = cache.cache().open_owner(caching).map_err(|error| {
        Error::new(
            ErrorKind::NoMemory,
            "no more pools or datasets fit one cache; export a pool, or use another cache",
        )
        .because(error)
    })?;
    Ok(owner.into_id())
}

impl Pool {
    /// Creates a striped pool on these devices and imports it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid name, tunable, sector size or device,
    /// [`ErrorKind::Exists`] if a device holds a pool, [`ErrorKind::Device`],
    /// [`ErrorKind::NoMemory`].
    pub fn create(devices: Vec<Opened>, options: &CreateOptions) -> Result<Self> {
        Self::create_tree(devices.into_iter().map(NewVdev::Device).collect(), options)
    }

    /// As [`create`](Self::create), of devices and mirrors, over which the pool is striped.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`ErrorKind::Invalid`] also for a mirror of one device.
    pub fn create_tree(vdevs: Vec<NewVdev>, options: &CreateOptions) -> Result<Self> {
        let parts = PoolParts::new(
            &options.cache,
            options.clock.as_ref(),
            options.seed,
            &options.tunables,
            vdevs.iter().any(|vdev| matches!(vdev, NewVdev::ObjectStore(_))),
        )?;
        let wanted = create::CreateOptions {
            name: options.name.clone(),
            host: options.host.clone(),
            seed: parts.seed,
            force: options.force,
            sector_bytes: options.sector_bytes,
            heartbeat_ms: parts.tunables.heartbeat().heartbeat_ms(),
        };
        let Imported { config, devices, claim, .. } = create::create(vdevs, &wanted, &parts.cache)?;
        let events = PoolEvents::new(options.events.as_ref(), &config.pool_name, config.pool_guid);
        let devices = Arc::new(devices.with_lease(&parts.lease).with_events(events));
        let store = parts.store(&devices)?;
        let mut space =
            Space::create(&devices.spans(), devices.sector_bytes(), Box::new(store.clone()))?;
        let first = 1;
        space.begin(first)?;
        let extents = log_extents(&mut space, &devices)?;
        // An object store has little space that can be rewritten, before all other addresses.
        space.place_root(root_bytes(&devices))?;
        let log = IntentLog::create(
            &extents,
            config.pool_guid,
            first,
            parts.log_devices(&devices),
            Arc::clone(parts.tunables.log()),
        )?;
        log.move_to(devices.log_extent())?;
        let metadata = own_objects().write_settings();
        let mos = Objset::new(
            (store.clone(), &parts.read_ahead()),
            &ObjsetPhys::default(),
            metadata,
            parts.seed,
        )?;
        let tx = Tx::syncing(first);
        let shift = ZAP_LEAF_BYTES.trailing_zeros() as u8;
        let directory = mos.create(&tx, ObjectKind::Zap, shift, &[])?;
        let errors = errors::create(&mos, &tx)?;
        let root = BlockPtrPhys::HOLE;
        let l2_list = 0;
        let scrub = ScrubPhys::default();
        let (synced, space_maps_lost, notes) = (0, false, Vec::new());
        let found = FoundPool {
            config,
            space,
            log,
            mos,
            directory,
            errors,
            l2_list,
            root,
            scrub,
            synced,
            space_maps_lost,
            notes,
            claim,
        };
        let pool = found.into_pool(parts, devices, store)?;
        pool.commit_first()?;
        pool.inner.events().note(EventKind::Created, Event::default());
        Ok(pool)
    }

    /// Commits the first txg, and starts the threads.
    fn commit_first(&self) -> Result<()> {
        let inner = &self.inner;
        let txg = inner.txgs.quiesce()?;
        let written = inner.write_txg(txg, inner.space.lock(), &sync_txg::FirstTxg(inner));
        // The pool has no thread that could end it.
        written.inspect_err(|error| inner.txgs.suspend(error))?;
        inner.txgs.synced(txg);
        self.start()
    }

    /// Starts the threads of a writable pool.
    pub(super) fn start(&self) -> Result<()> {
        *self.thread.lock() = Some(sync_txg::start(&self.inner)?);
        trim::start(&self.inner)?;
        merge::start(&self.inner)?;
        l2_fill::start(&self.inner)?;
        log_io::start(&self.inner)?;
        self.start_heartbeat()
    }
}

/// Pool state that was created, or read from the devices.
pub(super) struct FoundPool {
    pub(super) config: Config,
    pub(super) space: Space,
    pub(super) log: IntentLog,
    pub(super) mos: Arc<Objset>,
    /// Object number of the directory of datasets.
    pub(super) directory: u64,
    /// Object number of the error log.
    pub(super) errors: u64,
    /// Object number of the list of L2 devices, or 0.
    pub(super) l2_list: u64,
    pub(super) root: BlockPtrPhys,
    /// The newest scrub.
    pub(super) scrub: ScrubPhys,
    /// The newest durable txg.
    pub(super) synced: u64,
    /// Whether the space maps could not be read.
    pub(super) space_maps_lost: bool,
    /// See [`Pool::import_notes`].
    pub(super) notes: Vec<String>,
    /// The first heartbeat, if there is any.
    pub(super) claim: Option<Heartbeat>,
}

impl FoundPool {
    /// Builds the pool without starting the sync thread.
    pub(super) fn into_pool(
        self,
        parts: PoolParts,
        devices: Arc<Devices>,
        store: Store,
    ) -> Result<Pool> {
        store.errors().begin(&self.config.pool_name, self.synced + 1);
        let directory =
            Zap::open(Leaves(self.mos.open(self.directory, Wait::Allowed)?), Wait::Allowed)?;
        let tunables = Arc::clone(parts.tunables.txg());
        let mut txgs = Txgs::new(self.synced, Arc::clone(&parts.clock), tunables);
        if devices.is_on_store() {
            let devices = Arc::clone(&devices);
            txgs = txgs.with_outages(Box::new(move || devices.outage()));
        }
        let txgs = Arc::new(txgs);
        // These values were read above, so they cannot change any more.
        parts.tunables.store().freeze();
        parts.tunables.l2_devices().freeze();
        parts.tunables.heartbeat().freeze();
        let generation = self.config.generation;
        let inner = Arc::new(PoolInner {
            name: self.config.pool_name.clone(),
            guid: self.config.pool_guid,
            config: Mutex::named("pool-config", self.config),
            spans: Mutex::named("pool-spans", Vec::new()),
            devices,
            store,
            reservations: Reservations::new(&txgs),
            txgs,
            log: self.log,
            space_counters: Arc::clone(self.space.counters()),
            space_stats: Mutex::named("pool-space-stats", SpaceStats::default()),
            space: Mutex::named("space", self.space),
            mos: self.mos,
            directory,
            directory_number: self.directory,
            errors_number: self.errors,
            datasets: Mutex::named("datasets", HashMap::new()),
            l2_devices: L2Devices::new(),
            l2_list: L2DeviceList::new(self.l2_list),
            datasets_changing: Mutex::named("datasets-changing", ()),
            clearing: Mutex::named("pool-clear", ()),
            root: Mutex::named("pool-root", self.root),
            scrub: Scrubs::new(&self.scrub),
            resilver: Resilvers::new(),
            trim: Trims::new(),
            merges: Merges::new(),
            l2_fills: L2Fills::new(),
            log_thread: Mutex::named("pool-log-thread", None),
            space_maps_lost: self.space_maps_lost,
            followed: parts.followed,
            import_notes: self.notes,
            ownership: parts.ownership,
            heartbeats: Heartbeats::new(self.claim, parts.lease, generation),
            tried_again_in: AtomicU64::new(0),
            txg_history: TxgHistory::new(Arc::clone(&parts.clock)),
            closed: AtomicBool::new(false),
            read_only: parts.read_only,
            clock: parts.clock,
            tunables: parts.tunables,
            rng: Mutex::named("pool-rng", forebay_base::rng::SmallRng::from_seed(parts.seed)),
        });
        {
            let mut space = inner.space.lock();
            let (store, pool) = (inner.store.clone(), Arc::downgrade(&inner));
            space.set_reader(Box::new(SpaceReader { store, pool }));
            space.limit_loaded(loaded_ranges_max(inner.store.cache().bound_bytes()));
            inner.update_free(&space);
        }
        Ok(Pool { inner, thread: Mutex::named("pool-thread", None) })
    }
}

/// The most ranges of loaded metaslabs that can be unloaded, at rest: one for each KiB of the
/// cache's bound. A range that is kept in its two trees takes about 30 bytes, so that is about a
/// 32nd. A metaslab in use, the frontier's and a check of all space maps come on top.
fn loaded_ranges_max(bound_bytes: u64) -> usize {
    (bound_bytes / 1024) as usize
}

/// Bytes of a root block, a whole number of sectors.
pub(super) fn root_bytes(devices: &Devices) -> u64 {
    devices.sector_bytes().max(ROOT_BYTES as u64)
}

/// Allocates the intent log: 1/64 of the pool, from 1 MiB to 256 MiB, one extent per device up to
/// the maximum number of extents. At most half of what can be rewritten.
fn log_extents(space: &mut Space, devices: &Devices) -> Result<Vec<Extent>> {
    let spans = devices.spans();
    let total: u64 = spans.iter().map(|span| span.end - span.start).sum();
    let most = space.rewritable_bytes().map_or(LOG_MAX_BYTES, |bytes| bytes / 2);
    let wanted = (total / 64).clamp(LOG_MIN_BYTES, LOG_MAX_BYTES).min(most);
    // Nothing is allocated before, so extents begin at multiples of their unit.
    let unit = devices.sector_bytes().max(LOG_SECTOR_BYTES);
    let pieces = spans.len().min(LOG_EXTENTS_MAX) as u64;
    let mut size = (wanted / pieces).max(256 << 10).next_multiple_of(unit);
    let mut extents: Vec<Extent> = Vec::new();
    let mut left = size * pieces;
    while left > 0 && extents.len() < LOG_EXTENTS_MAX {
        match space.allocate_rewritable(size.min(left), 1) {
            Ok([place, _]) => {
                extents.push(Extent { place, bytes: size.min(left) });
                left -= size.min(left);
            }
            Err(error) if size <= 64 << 10 => return Err(error),
            // Metaslabs may be too small for this size.
            Err(_) => size = (size / 2).next_multiple_of(unit),
        }
    }
    debug_assert!(extents.iter().all(|extent| extent.place != DvaPhys::NONE));
    Ok(extents)
}
