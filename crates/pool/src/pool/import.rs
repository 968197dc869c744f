//! Taking a pool into use again.

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

/// Root blocks that an import with [`ImportOptions::rewind`] tries, the newest first, before it gives up.
const ROOTS_TRIED: usize = 3;

/// How to import a pool.
#[derive(Clone)]
pub struct ImportOptions {
    /// The cache that it shares.
    pub cache: Arc<BlockCache>,
    /// Who imports it.
    pub host: HostId,
    /// Whether to take a pool that another host may have in use.
    pub force: bool,
    /// Whether to write nothing: the intent log is not replayed then, and what was only there is not seen.
    pub read_only: bool,
    /// Whether to import without replaying the intent log, because it cannot be: what only it has is lost.
    pub discard_log: bool,
    /// Whether to go back to an older root block if the newest is damaged: all that was changed since is lost.
    pub rewind: bool,
    /// The pool's tunables by name, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// The clock; the system's by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// Where numbers that name things come from; the system by default.
    pub seed: Option<u64>,
    /// Whether L2 devices are looked for at the paths that the pool knows. Without it none is used but those that are given.
    pub find_l2_devices: bool,
}

impl ImportOptions {
    /// Options to import on this host.
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
    /// Imports the pool that lies on these devices, in any order. After a crash, what was fsynced and not yet in a
    /// transaction group is replayed from the intent log.
    ///
    /// # Errors
    /// [`ErrorKind::NotAPool`] if they are none, or not all devices of one; [`ErrorKind::InUse`]; [`ErrorKind::Unsupported`];
    /// [`ErrorKind::Corrupt`]; [`ErrorKind::Device`]; [`ErrorKind::NoMemory`].
    pub fn import(devices: Vec<Opened>, options: &ImportOptions) -> Result<Self> {
        Self::import_with(devices, Vec::new(), options)
    }

    /// The same, with L2 devices that are open already; those of the pool among them are used.
    ///
    /// # Errors
    /// As [`import`](Self::import). Nothing that is wrong with an L2 device is one, see
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
        // Numbers are never used twice, even if an older root had to do.
        let synced = uberblocks.first().map_or(txg, |newest| newest.txg.max(txg));
        let l2_list = root.l2_devices.get();
        let found = FoundPool { config, space, log, mos, directory, l2_list, root: ptr, synced };
        store.l2().note_durable(txg);
        let pool = found.into_pool(parts, devices, store).map_err(doing)?;
        pool.attach_l2_devices(l2_devices, options.find_l2_devices, txg);
        if !options.read_only {
            pool.start()?;
            pool.replay(&root.log, options.discard_log).map_err(doing)?;
            pool.warm_up();
        }
        Ok(pool)
    }
}

/// The newest root block; an older one only if that is damaged, and it was asked for. A device that does not answer now
/// may do so later, and then nothing is lost.
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

/// The root block that an uberblock points to.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is none, and as any read.
pub(crate) fn read_root(store: &Store, uberblock: &Uberblock) -> Result<RootPhys> {
    let ptr = &uberblock.root;
    let corrupt = |what: &str| {
        let text = format!("the root block of txg {} {what}", uberblock.txg);
        Error::new(ErrorKind::Corrupt, text)
    };
    if ptr.block_kind() != Some(BlockKind::Root) || ptr.logical_bytes.get() != ROOT_BYTES as u32 {
        return Err(corrupt("is no such thing"));
    }
    let content = store.read_uncached(ptr)?;
    let root = RootPhys::read_from_bytes(&content).map_err(|_| corrupt("has another size"))?;
    if root.magic.get() != ROOT_MAGIC || root.txg.get() != uberblock.txg {
        return Err(corrupt("is another block"));
    }
    Ok(root)
}
