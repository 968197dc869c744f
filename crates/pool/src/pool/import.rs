//! Imports a pool.
//!
//! An import opens a transaction group: the newest one, or an older one if the options ask for it.
//! It may try several. Nothing is written before a group is open, and a group counts as open only
//! once everything that the pool needs of it was read.
//!
//! A read-only import needs less: the root block, and the pool's own objects. It goes on without
//! space maps and intent log, and without devices that are missing.

mod fallback;

use std::cell::Cell;
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::rng;
use forebay_base::sync::{Arc, Condvar, Mutex};
use zerocopy::FromBytes;

use crate::block_cache::BlockCache;
use crate::devices::Devices;
use crate::devices::config::Config;
use crate::devices::heartbeat::{Heartbeat, Pause};
use crate::devices::import::{self, Imported};
use crate::devices::label::{self, Uberblock};
use crate::devices::log_vdev::{LogJudged, LogNeeds};
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind, EventLog, PoolEvents};
use crate::format::label::LOG_VDEV;
use crate::format::{BlockKind, BlockPtrPhys, ROOT_BYTES, ROOT_MAGIC, RootPhys};
use crate::lease::TAKEOVER;
use crate::log::IntentLog;
use crate::objset::Objset;
use crate::open::{HostId, Opened};
use crate::space::Space;
use crate::store::Store;

use super::Pool;
use super::create::{FoundPool, PoolParts, own_objects};
use super::followed::FollowedPool;

/// Options for [`Pool::import`].
#[derive(Clone)]
pub struct ImportOptions {
    /// The cache that the pool shares with others.
    pub cache: Arc<BlockCache>,
    /// The host that imports the pool.
    pub host: HostId,
    /// Whether to import a pool that another host had last and did not export. A pool that another
    /// host uses is refused in any case, by its heartbeat.
    pub force: bool,
    /// Whether to import without writing anything. The intent log is not replayed, so changes that
    /// only the log holds are not visible. Damaged space maps, a damaged intent log and missing
    /// devices do not fail such an import; see [`Pool::import_notes`].
    pub read_only: bool,
    /// Whether to discard the intent log instead of replaying it. Changes that only the log holds
    /// are lost.
    pub discard_log: bool,
    /// Whether to fall back to one of the two transaction groups before if the newest is damaged in
    /// anything that the pool needs: its root block, space maps, own objects, or what the intent
    /// log changes. All later changes are lost; see [`Pool::import_notes`].
    pub rewind: bool,
    /// The transaction group to import instead of the newest. All later changes are lost. Space
    /// that was freed three groups after it may be overwritten.
    pub txg: Option<u64>,
    /// Values of pool tunables by name, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// The clock. Default: the system clock.
    pub clock: Option<Arc<dyn Clock>>,
    /// Seed for random numbers. Default: the system's entropy.
    pub seed: Option<u64>,
    /// Waits between two looks at the heartbeat of a pool that was not exported. Default: sleeps.
    pub pause: Option<Arc<dyn Fn(Duration) + Send + Sync>>,
    /// Whether to search for L2 devices at the paths stored in the pool. If not, only L2 devices
    /// passed to [`Pool::import_with`] are used.
    pub find_l2_devices: bool,
    /// The pool is imported again and again, as another host writes it: with what these imports
    /// share. Only for a read-only import. The space maps, which say what is free, are not read.
    pub followed: Option<FollowedPool>,
    /// The log of the pool's events. Default: one of its own.
    pub events: Option<Arc<EventLog>>,
}

impl ImportOptions {
    /// Returns options for an import on this host.
    pub fn new(cache: Arc<BlockCache>) -> Self {
        Self {
            cache,
            host: HostId::of_this_host(),
            force: false,
            read_only: false,
            discard_log: false,
            rewind: false,
            txg: None,
            tunables: Vec::new(),
            clock: None,
            seed: None,
            pause: None,
            find_l2_devices: true,
            followed: None,
            events: None,
        }
    }
}

impl Pool {
    /// Imports the pool on these devices, given in any order. Replays the intent log, so fsynced
    /// changes survive a crash even if no transaction group had committed them.
    ///
    /// # Errors
    /// [`ErrorKind::NotAPool`] if the devices hold no pool or are not all devices of one pool;
    /// [`ErrorKind::InUse`]; [`ErrorKind::Unsupported`]; [`ErrorKind::Corrupt`];
    /// [`ErrorKind::NotFound`] if there is no such transaction group; [`ErrorKind::Device`];
    /// [`ErrorKind::NoMemory`].
    pub fn import(devices: Vec<Opened>, options: &ImportOptions) -> Result<Self> {
        Self::import_with(devices, Vec::new(), options)
    }

    /// As [`import`](Self::import), with L2 devices that are already open. Devices that do not
    /// belong to the pool are ignored.
    ///
    /// # Errors
    /// As [`import`](Self::import). A failure of an L2 device is not an error; see
    /// [`l2_devices`](Self::l2_devices).
    pub fn import_with(
        devices: Vec<Opened>,
        l2_devices: Vec<Opened>,
        options: &ImportOptions,
    ) -> Result<Self> {
        let mut parts = PoolParts::new(
            &options.cache,
            options.clock.as_ref(),
            options.seed,
            &options.tunables,
            devices.iter().any(|one| one.device.info().append_only.is_some()),
        )?;
        parts.read_only = options.read_only;
        let followed = options.followed.as_ref().filter(|_| options.read_only);
        parts.followed = followed.map(FollowedPool::of_import);
        if let Some(followed) = &parts.followed {
            parts.counters = followed.counters().clone();
        }
        let wanted = import::ImportOptions {
            host: options.host.clone(),
            force: options.force,
            read_only: options.read_only,
            heartbeat_ms: parts.tunables.heartbeat().heartbeat_ms(),
            // Not of the seed, which may be the same for two imports.
            session: rng::seed_from_system(),
            pause: options.pause.as_deref().unwrap_or(&sleep),
        };
        // The owner's name in the store proves nothing: that of a cloned machine is the same.
        let has_ended = devices.iter().any(|one| one.owner_has_ended);
        let is_shared = devices.iter().any(|one| one.shared);
        let Imported { config, devices, uberblocks, notes, claim, log_stamps } =
            import::import(devices, &wanted, &parts.cache)?;
        let may_reach_log = is_shared || options.force || options.discard_log;
        if config.active && !options.read_only && may_reach_log && !has_ended {
            await_former_owner(&devices, wanted.pause);
        }
        let name = config.pool_name.clone();
        let counters = Arc::clone(&parts.counters.events);
        let (log, guid) = (options.events.as_ref(), config.pool_guid);
        let events = PoolEvents::with_counters(log, &name, guid, counters);
        let devices = Arc::new(devices.with_lease(&parts.lease).with_events(events));
        let log = LogFound { stamps: log_stamps, was_exported: !config.active };
        let generation = Cell::new(config.generation);
        let import =
            Import { parts, config, devices, uberblocks, notes, claim, log, generation, options };
        let (pool, txg) =
            import.open().map_err(|error| error.doing(format_args!("pool {name}")))?;
        pool.attach_l2_devices(l2_devices, options.find_l2_devices, txg);
        if !options.read_only {
            pool.warm_up();
        }
        let how = options.read_only.then(|| "read-only".to_owned());
        if options.followed.is_none() {
            let event = Event { txg: Some(txg), detail: how, ..Event::default() };
            pool.inner.events().note(EventKind::Imported, event);
        }
        for note in pool.import_notes() {
            tracing::warn!(pool = pool.name(), note, "imported a damaged pool");
        }
        Ok(pool)
    }

    /// What is missing or was given up at the import, a sentence each; empty if nothing.
    pub fn import_notes(&self) -> &[String] {
        &self.inner.import_notes
    }

    /// Drops the pool of an import that failed, without a commit. The devices stay open.
    fn give_up(self) {
        self.stop();
        self.inner.close_objects();
    }
}

/// An import of identified devices.
struct Import<'a> {
    parts: PoolParts,
    config: Config,
    devices: Arc<Devices>,
    /// Newest first, at least one.
    uberblocks: Vec<Uberblock>,
    notes: Vec<String>,
    claim: Option<Heartbeat>,
    log: LogFound,
    /// The newest generation of labels that the import has read or may have written.
    generation: Cell<u64>,
    options: &'a ImportOptions,
}

/// What an import has found of the log vdev.
struct LogFound {
    /// The newest stamps of its devices, by guid.
    stamps: Vec<(u64, u64)>,
    /// Whether the pool was exported, so that no record is needed.
    was_exported: bool,
}

/// What the log vdev lacks.
struct LogJudgement {
    /// Why records that the root needs may be missing, with the log vdev that it names.
    missing: Option<String>,
    /// Why the vdev cannot be used fully, if the root needs nothing of it.
    unused: Option<String>,
}

/// Why a transaction group cannot be imported.
struct Unusable {
    error: Error,
    /// Whether the pool has changed on the devices, so that no older group may be tried.
    changed: bool,
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Self { error, changed: false }
    }
}

impl Import<'_> {
    /// Opens the pool as of a txg, reads what it needs, and replays the intent log. `given_up` says
    /// what later groups held.
    fn open_txg(&self, from: &Uberblock, given_up: Option<String>) -> Result<Pool, Unusable> {
        let (pool, root) = self.read_txg(from, given_up.clone())?;
        let began = pool.inner.txgs.synced_txg();
        match self.begin(&pool, &root, given_up.is_some()) {
            Ok(()) => Ok(pool),
            Err(error) => {
                let changed = pool.inner.txgs.synced_txg() > began;
                pool.give_up();
                Err(Unusable { error, changed })
            }
        }
    }

    /// Opens the pool as of a txg without writing. If the caller may choose among groups, reads all
    /// that a commit needs.
    fn read_txg(&self, from: &Uberblock, given_up: Option<String>) -> Result<(Pool, RootPhys)> {
        let store = self.parts.store(&self.devices)?;
        let root = read_root(&store, from)?;
        let mut notes = self.notes.clone();
        notes.extend(given_up);
        let space = self.space(&root, &store, &mut notes)?;
        let space_maps_lost = space.is_none();
        let space = match space {
            Some(space) => space,
            None => Space::without_maps(
                &root.space,
                &self.devices.spans(),
                self.devices.sector_bytes(),
                Box::new(store.clone()),
            )?,
        };
        let metadata = own_objects().write_settings();
        let read_ahead = self.parts.read_ahead();
        let mos = Objset::new((store.clone(), &read_ahead), &root.mos, metadata, self.parts.seed)?;
        let judged = self.judge_log(&root, &mut notes);
        self.check_log(&root, &judged, &mut notes)?;
        let log = self.log(&root, &mut notes)?;
        store.l2().note_durable(from.txg);
        let found = FoundPool {
            config: Config { generation: self.generation.get(), ..self.config.clone() },
            space,
            log,
            mos,
            directory: root.datasets.get(),
            errors: root.errors.get(),
            l2_list: root.l2_devices.get(),
            root: from.root,
            scrub: root.scrub,
            // Txg numbers are never reused, even after falling back to an older root.
            synced: self.newest().txg,
            space_maps_lost,
            notes,
            claim: self.claim.as_ref().map(Heartbeat::without_owner),
        };
        let pool = found.into_pool(self.parts.clone(), Arc::clone(&self.devices), store)?;
        pool.inner.load_errors();
        match self.chooses().then(|| pool.inner.names_by_number()) {
            Some(Err(error)) => {
                pool.give_up();
                Err(error.doing("the directory of datasets"))
            }
            _ => Ok((pool, root)),
        }
    }

    /// Loads the space maps. `None` if they are damaged and not needed.
    fn space(
        &self,
        root: &RootPhys,
        store: &Store,
        notes: &mut Vec<String>,
    ) -> Result<Option<Space>> {
        if self.parts.followed.is_some() {
            return Ok(None);
        }
        let loaded = Space::load(&root.space, &self.devices.spans(), Box::new(store.clone()));
        let loaded = loaded.and_then(|mut space| {
            // Otherwise they are loaded when they are used.
            if self.chooses() && !self.options.read_only {
                space.load_metaslabs()?;
            }
            Ok(space)
        });
        match loaded {
            Err(error) if self.options.read_only && is_damage(&error) => {
                notes.push(format!("without space maps, so a check cannot compare them: {error}"));
                Ok(None)
            }
            loaded => loaded.map(Some),
        }
    }

    /// Judges what the log vdev has of what this root needs.
    fn judge_log(&self, root: &RootPhys, notes: &mut Vec<String>) -> LogJudgement {
        let start = root.log.extents[0].start.get().filter(|_| root.log.extent_count.get() > 0);
        let number = start.map(|start| start.device).filter(|number| number & LOG_VDEV != 0);
        let needs = number.map(|number| LogNeeds {
            number,
            // Roots of older versions have none.
            stamp: match root.log.stamp.get() {
                0 => root.log.txg.get(),
                stamp => stamp,
            },
            txg: root.log.txg.get(),
        });
        let leaves = self.config.log.as_ref().map_or(&[][..], |log| &log.leaves);
        let judged = LogJudged { needs, leaves, stamps: &self.log.stamps };
        let lacks = self.devices.judge_log(&judged, notes);
        match (number, self.devices.log()) {
            (None, _) => LogJudgement { missing: None, unused: lacks },
            (Some(number), Some(log)) if log.number() == number => {
                LogJudgement { missing: lacks, unused: None }
            }
            (Some(_), _) => {
                let missing = Some("a log device that was removed from the pool".to_owned());
                LogJudgement { missing, unused: None }
            }
        }
    }

    /// Checks that the log vdev has what the log wrote, or that it may be given up.
    ///
    /// # Errors
    /// [`ErrorKind::NotAPool`] if fsynced changes may be lost, and the options do not allow it.
    fn check_log(
        &self,
        root: &RootPhys,
        judged: &LogJudgement,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let txg = root.txg.get();
        let Some(lacks) = &judged.missing else {
            if let Some(lacks) = &judged.unused {
                notes.push(format!("{lacks}: nothing is lost, the intent log was not there"));
            }
            return Ok(());
        };
        let may_lose = format!("changes that were fsynced after txg {txg} may be on it alone");
        if self.options.read_only {
            notes.push(format!("{lacks}: {may_lose}"));
        } else if self.log.was_exported && txg == self.newest().txg {
            notes.push(format!(
                "{lacks}: nothing is lost, because the pool was exported; the log goes on without it"
            ));
        } else if self.options.discard_log {
            notes.push(format!(
                "{lacks}: the intent log was given up, and with it what was fsynced after txg {txg}, if anything"
            ));
        } else {
            let text = format!(
                "the intent log needs {lacks}: {may_lose}; give that device too, or import without the intent log (discard_log) and lose them"
            );
            return Err(Error::new(ErrorKind::NotAPool, text));
        }
        Ok(())
    }

    fn log(&self, root: &RootPhys, notes: &mut Vec<String>) -> Result<IntentLog> {
        let txg = root.txg.get();
        let devices = self.parts.log_devices(&self.devices);
        let tunables = || Arc::clone(self.parts.tunables.log());
        let storage = Arc::clone(&devices) as _;
        match IntentLog::open_away(&root.log, &root.log_home, txg, storage, tunables()) {
            Err(error) if self.options.read_only && is_damage(&error) => {
                notes.push(format!("without the intent log: {error}"));
                IntentLog::create(&[], self.config.pool_guid, txg + 1, devices, tunables())
            }
            opened => {
                let log = opened?;
                log.give_up_groups(self.newest().txg - txg);
                log.move_to(self.devices.log_extent())?;
                Ok(log)
            }
        }
    }

    /// Begins to write: marks the pool as imported, and replays the log. With `fell_back` also
    /// commits, so that the newer groups are never imported again.
    fn begin(&self, pool: &Pool, root: &RootPhys, fell_back: bool) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.mark(pool, root)?;
        pool.inner.complete_claim(self.claim.as_ref().map(|claim| claim.owner))?;
        pool.start()?;
        let discards =
            self.options.discard_log || self.judge_log(root, &mut Vec::new()).missing.is_some();
        pool.replay(&root.log, discards)?;
        match fell_back {
            true => pool.sync(),
            false => Ok(()),
        }
    }

    /// Marks the pool as imported by this host, in its labels.
    fn mark(&self, pool: &Pool, root: &RootPhys) -> Result<()> {
        let mut config = pool.inner.config.lock();
        config.active = true;
        config.host = self.options.host.clone();
        config.txg = root.txg.get();
        let is_confirmed = Cell::new(false);
        let may_write = |generation| match is_confirmed.replace(true) {
            true => pool.inner.keep_claim(generation),
            false => pool.inner.confirm_claim(generation),
        };
        let marked =
            label::update_config(&self.devices, &mut config, &self.parts.cache, &may_write);
        // Some labels may have this generation, even after a failure.
        self.generation.set(config.generation);
        marked
    }
}

/// Waits until a former owner makes nothing durable on the log vdev any more. Its store has refused
/// it since this host opened that.
fn await_former_owner(devices: &Devices, pause: Pause<'_>) {
    if devices.is_on_store() && devices.log().is_some() {
        tracing::info!(seconds = TAKEOVER.as_secs(), "waiting until a former owner gives up");
        pause(TAKEOVER);
    }
}

pub(super) fn sleep(time: Duration) {
    let clock = SystemClock::new();
    let (never, lock) = (Condvar::new(), Mutex::named("import-pause", ()));
    let mut held = lock.lock();
    while let Some(left) = time.checked_sub(Duration::from_nanos(clock.now_ns()))
        && !left.is_zero()
    {
        never.wait_timeout(&mut held, left);
    }
}

/// Whether an error concerns a block, and not the whole import.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device)
}

/// Reads the root block that an uberblock points to.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the block is not the root block of that txg, and the errors of any
/// read.
pub(crate) fn read_root(store: &Store, uberblock: &Uberblock) -> Result<RootPhys> {
    let ptr: &BlockPtrPhys = &uberblock.root;
    let corrupt = |what: &str| {
        let text = format!("the root block of txg {} {what}", uberblock.txg);
        Error::new(ErrorKind::Corrupt, text)
    };
    if ptr.block_kind() != Some(BlockKind::Root) || ptr.logical_bytes.get() != ROOT_BYTES as u32 {
        return Err(corrupt("is a block of another kind or size"));
    }
    let content = store.read_uncached(ptr)?;
    let root = RootPhys::read_from_bytes(&content).map_err(|_| corrupt("has the wrong size"))?;
    if root.magic.get() != ROOT_MAGIC || root.txg.get() != uberblock.txg {
        return Err(corrupt("is another block"));
    }
    Ok(root)
}
