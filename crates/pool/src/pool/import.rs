//! Imports a pool.

use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use zerocopy::FromBytes;

use crate::block_cache::BlockCache;
use crate::dataset::DatasetSettings;
use crate::devices::import::{self, Imported};
use crate::devices::label::{self, Uberblock};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, ROOT_BYTES, ROOT_MAGIC, RootPhys};
use crate::log::IntentLog;
use crate::objset::Objset;
use crate::open::{HostId, Opened};
use crate::space::Space;
use crate::store::Store;

use super::Pool;
use super::create::{FoundPool, PoolParts};

/// Root blocks that an import with [`ImportOptions::rewind`] tries, newest first.
const ROOTS_TRIED: usize = 3;

/// Options for [`Pool::import`].
#[derive(Clone)]
pub struct ImportOptions {
    /// The cache that the pool shares with others.
    pub cache: Arc<BlockCache>,
    /// The host that imports the pool.
    pub host: HostId,
    /// Whether to import a pool that another host may have imported.
    pub force: bool,
    /// Whether to import without writing anything. The intent log is not replayed, so changes that
    /// only the log holds are not visible.
    pub read_only: bool,
    /// Whether to discard the intent log instead of replaying it. Changes that only the log holds
    /// are lost.
    pub discard_log: bool,
    /// Whether to fall back to an older root block if the newest is damaged. All later changes are
    /// lost.
    pub rewind: bool,
    /// Values of pool tunables by name, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// The clock. Default: the system clock.
    pub clock: Option<Arc<dyn Clock>>,
    /// Seed for random numbers. Default: the system's entropy.
    pub seed: Option<u64>,
    /// Whether to search for L2 devices at the paths stored in the pool. If not, only L2 devices
    /// passed to [`Pool::import_with`] are used.
    pub find_l2_devices: bool,
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
            tunables: Vec::new(),
            clock: None,
            seed: None,
            find_l2_devices: true,
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
    /// [`ErrorKind::Device`]; [`ErrorKind::NoMemory`].
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
        )?;
        parts.read_only = options.read_only;
        let wanted = import::ImportOptions {
            host: options.host.clone(),
            force: options.force || options.read_only,
        };
        let Imported { mut config, devices, uberblocks } =
            import::import(devices, &wanted, &parts.cache)?;
        let devices = Arc::new(devices);
        let store = parts.store(&devices)?;
        let name = config.pool_name.clone();
        let doing = |error: Error| error.doing(format_args!("pool {name}"));
        let (ptr, root) = newest_root(&store, &uberblocks, options.rewind).map_err(doing)?;
        if !options.read_only {
            config.active = true;
            config.host = options.host.clone();
            config.txg = root.txg.get();
            label::update_config(&devices, &mut config, &parts.cache)?;
        }
        let space =
            Space::load(&root.space, &devices.spans(), Box::new(store.clone())).map_err(doing)?;
        let metadata = DatasetSettings::default().write_settings();
        let mos =
            Objset::new((store.clone(), &parts.read_ahead()), &root.mos, metadata, parts.seed)
                .map_err(doing)?;
        let txg = root.txg.get();
        let log_devices = parts.log_devices(&devices);
        let log = IntentLog::open(&root.log, txg, log_devices, Arc::clone(parts.tunables.log()))
            .map_err(doing)?;
        let directory = root.datasets.get();
        // Txg numbers are never reused, even after falling back to an older root.
        let synced = uberblocks.first().map_or(txg, |newest| newest.txg.max(txg));
        let l2_list = root.l2_devices.get();
        let scrub = root.scrub;
        let errors = root.errors.get();
        let found = FoundPool {
            config,
            space,
            log,
            mos,
            directory,
            errors,
            l2_list,
            root: ptr,
            scrub,
            synced,
        };
        store.l2().note_durable(txg);
        let pool = found.into_pool(parts, devices, store).map_err(doing)?;
        pool.inner.load_errors();
        pool.attach_l2_devices(l2_devices, options.find_l2_devices, txg);
        if !options.read_only {
            pool.start()?;
            pool.replay(&root.log, options.discard_log).map_err(doing)?;
            pool.warm_up();
        }
        tracing::info!(pool = pool.name(), txg, read_only = options.read_only, "imported pool");
        Ok(pool)
    }
}

/// Returns the newest root block. Falls back to an older one only if the newest is damaged and
/// `rewind` is set. A device error does not fall back: the device may recover, and then nothing is
/// lost.
fn newest_root(
    store: &Store,
    uberblocks: &[Uberblock],
    rewind: bool,
) -> Result<(BlockPtrPhys, RootPhys)> {
    let mut first_error = None;
    let tried = if rewind { ROOTS_TRIED } else { 1 };
    for uberblock in uberblocks.iter().take(tried) {
        match read_root(store, uberblock) {
            Ok(root) => return Ok((uberblock.root, root)),
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    let none = || Error::new(ErrorKind::NotAPool, "it has no uberblock");
    Err(first_error.unwrap_or_else(none))
}

/// Reads the root block that an uberblock points to.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the block is not the root block of that txg, and the errors of any
/// read.
pub(crate) fn read_root(store: &Store, uberblock: &Uberblock) -> Result<RootPhys> {
    let ptr = &uberblock.root;
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
