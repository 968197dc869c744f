//! Datasets: settings, and access to their objects and directories.

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::OwnerCaching;
use zerocopy::{FromBytes, FromZeros};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    CacheMode, Compression, DatasetPhys, FailMode, ObjectKind, SyncMode, TAIL_BYTES,
};
use crate::log::IntentLog;
use crate::object::Leaves;
use crate::objset::{Objset, WriteSettings, check_attributes};
use crate::readahead::ReadAhead;
use crate::store::Store;
use crate::store::barrier::FailedBlocks;
use crate::sync_context::SyncContext;
use crate::tx::Tx;
use crate::txg::slot_of;
use crate::wait::Wait;
use crate::zap::Zap;

/// Minimum record size of objects, in bytes.
pub const RECORD_BYTES_MIN: u32 = 4 << 10;
/// Maximum record size of objects, in bytes.
pub const RECORD_BYTES_MAX: u32 = 1 << 20;

/// Settings of a dataset.
#[derive(Clone, Copy, Debug)]
pub struct DatasetSettings {
    /// Record size of new objects in bytes: a power of two from [`RECORD_BYTES_MIN`] to
    /// [`RECORD_BYTES_MAX`].
    pub record_bytes: u32,
    /// Compression of newly written data. Blocks that do not become an eighth smaller by LZ4 are
    /// stored as they are; most are recognized by a sample.
    pub data_compression: Compression,
    /// Copies of newly written data: 1 or 2.
    pub data_copies: u8,
    /// Compression of newly written metadata.
    pub metadata_compression: Compression,
    /// Copies of newly written metadata: 1 or 2.
    pub metadata_copies: u8,
    /// Blocks that the RAM cache may hold.
    pub cache: CacheMode,
    /// Blocks that L2 devices may hold, from now on.
    pub l2: CacheMode,
    /// What makes an fsync durable.
    pub sync: SyncMode,
    /// What changes do while the pool is suspended, and reads that find no device. For the users of
    /// the dataset: both fail in either mode. [`Pool::wait_resumed`] and
    /// [`Pool::wait_for_devices`] wait.
    ///
    /// [`Pool::wait_resumed`]: crate::Pool::wait_resumed
    /// [`Pool::wait_for_devices`]: crate::Pool::wait_for_devices
    pub fail_mode: FailMode,
}

impl Default for DatasetSettings {
    /// Records of 128 KiB in one copy, metadata in two, both with LZ4, everything cached in RAM and
    /// on L2 devices, fsync through the intent log. Changes wait while the pool is suspended.
    fn default() -> Self {
        Self {
            record_bytes: 128 << 10,
            data_compression: Compression::Lz4,
            data_copies: 1,
            metadata_compression: Compression::Lz4,
            metadata_copies: 2,
            cache: CacheMode::All,
            l2: CacheMode::All,
            sync: SyncMode::Log,
            fail_mode: FailMode::Wait,
        }
    }
}

impl DatasetSettings {
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let record = self.record_bytes;
        if !record.is_power_of_two() || !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&record) {
            return invalid(format!(
                "record size {record} is not a power of two from {RECORD_BYTES_MIN} to {RECORD_BYTES_MAX}"
            ));
        }
        for copies in [self.data_copies, self.metadata_copies] {
            if !(1..=2).contains(&copies) {
                return invalid(format!("{copies} copies are not supported: use 1 or 2"));
            }
        }
        Ok(())
    }

    fn of(phys: &DatasetPhys) -> Result<Self> {
        let parse = || {
            Some(Self {
                record_bytes: 1u32.checked_shl(u32::from(phys.record_shift))?,
                data_compression: Compression::from_raw(phys.data_compression)?,
                data_copies: phys.data_copies,
                metadata_compression: Compression::from_raw(phys.metadata_compression)?,
                metadata_copies: phys.metadata_copies,
                cache: CacheMode::from_raw(phys.cache)?,
                l2: CacheMode::from_raw(phys.l2)?,
                sync: SyncMode::from_raw(phys.sync)?,
                fail_mode: FailMode::from_raw(phys.fail_mode)?,
            })
        };
        let settings = parse().filter(|settings| settings.check().is_ok());
        settings.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "the settings of the dataset are invalid")
        })
    }

    fn put(&self, phys: &mut DatasetPhys) {
        phys.record_shift = self.record_bytes.trailing_zeros() as u8;
        phys.data_compression = self.data_compression as u8;
        phys.data_copies = self.data_copies;
        phys.metadata_compression = self.metadata_compression as u8;
        phys.metadata_copies = self.metadata_copies;
        phys.cache = self.cache as u8;
        phys.l2 = self.l2 as u8;
        phys.sync = self.sync as u8;
        phys.fail_mode = self.fail_mode as u8;
    }

    /// The setting `cache` in the terms of the RAM cache.
    pub(crate) fn caching(&self) -> OwnerCaching {
        match self.cache {
            CacheMode::All => OwnerCaching::All,
            CacheMode::Metadata => OwnerCaching::Metadata,
            CacheMode::None => OwnerCaching::None,
        }
    }

    pub(crate) fn write_settings(&self) -> WriteSettings {
        WriteSettings {
            data_compression: self.data_compression,
            data_copies: self.data_copies,
            metadata_compression: self.metadata_compression,
            metadata_copies: self.metadata_copies,
        }
    }
}

/// An open dataset, shared by all its handles.
pub(crate) struct DatasetInner {
    pub(crate) name: String,
    /// Its number among the pool's own objects.
    pub(crate) number: u64,
    pub(crate) guid: u64,
    pub(crate) objset: Arc<Objset>,
    stored: Mutex<StoredDataset>,
    /// Whether changes are noted for the intent log. Changes while its txg is held open, see
    /// [`set_settings`](Self::set_settings).
    logs: AtomicBool,
}

/// Protected by the lock `dataset`.
struct StoredDataset {
    /// The attributes of the dataset's object.
    phys: DatasetPhys,
    /// Whether settings in `phys` are not written yet.
    changed: bool,
    /// Roots that txgs have set and that are not in `phys` yet, by the low bit of the txg.
    roots: [Option<Root>; 2],
}

/// Root object and flavour, as set in a txg.
#[derive(Clone, Copy)]
struct Root {
    txg: u64,
    object: u64,
    flavour: u32,
}

impl DatasetInner {
    /// Opens a dataset from the attributes of its object.
    pub(crate) fn open(
        (store, ahead): (Store, &Arc<ReadAhead>),
        (name, number): (&str, u64),
        attributes: &[u8],
        seed: u64,
    ) -> Result<Arc<Self>> {
        let in_dataset = |error: Error| error.doing(format_args!("dataset {name}"));
        let phys = DatasetPhys::read_from_bytes(attributes).map_err(|_| {
            in_dataset(Error::new(
                ErrorKind::Corrupt,
                "the attributes of its object have the wrong length",
            ))
        })?;
        let settings = DatasetSettings::of(&phys).map_err(in_dataset)?;
        let objset = Objset::new((store, ahead), &phys.objset, settings.write_settings(), seed)
            .map_err(in_dataset)?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            number,
            guid: phys.guid.get(),
            objset,
            stored: Mutex::named(
                "dataset",
                StoredDataset { phys, changed: false, roots: [None; 2] },
            ),
            logs: AtomicBool::new(settings.sync == SyncMode::Log),
        }))
    }

    /// The settings in the attributes of a dataset's object.
    pub(crate) fn settings_of(attributes: &[u8]) -> Result<DatasetSettings> {
        let phys = DatasetPhys::read_from_bytes(attributes);
        let phys = phys.map_err(|_| {
            Error::new(
                ErrorKind::Corrupt,
                "the attributes of the dataset's object have the wrong length",
            )
        })?;
        DatasetSettings::of(&phys)
    }

    /// The attributes of a new dataset's object.
    pub(crate) fn new_phys(settings: &DatasetSettings, guid: u64, txg: u64) -> Result<DatasetPhys> {
        settings.check()?;
        let mut phys = DatasetPhys::new_zeroed();
        settings.put(&mut phys);
        phys.guid = guid.into();
        phys.created_txg = txg.into();
        Ok(phys)
    }

    /// Writes the changes of a txg. Returns the new attributes of the dataset's object, if they
    /// changed.
    pub(crate) fn sync(&self, ctx: &mut SyncContext<'_>) -> Result<Option<DatasetPhys>> {
        let objset = self.objset.sync(ctx);
        let objset = objset.map_err(|error| error.doing(format_args!("dataset {}", self.name)))?;
        let mut stored = self.stored.lock();
        let root = stored.roots[slot_of(ctx.txg)].take_if(|root| root.txg == ctx.txg);
        if let Some(root) = root {
            stored.phys.root_object = root.object.into();
            stored.phys.flavour = root.flavour.into();
        }
        let changed = std::mem::take(&mut stored.changed) || objset.is_some() || root.is_some();
        if let Some(objset) = objset {
            stored.phys.objset = objset;
        }
        Ok(changed.then_some(stored.phys))
    }

    /// Writes blocks of the txg of `ctx` elsewhere, see [`Objset::relocate`]. Returns the new
    /// attributes of the dataset's object, if they changed.
    pub(crate) fn relocate(
        &self,
        ctx: &mut SyncContext<'_>,
        failed: &FailedBlocks,
    ) -> Result<Option<DatasetPhys>> {
        let objset = self.objset.relocate(ctx, failed);
        let objset = objset.map_err(|error| error.doing(format_args!("dataset {}", self.name)))?;
        let Some(objset) = objset else { return Ok(None) };
        let mut stored = self.stored.lock();
        stored.phys.objset = objset;
        Ok(Some(stored.phys))
    }

    pub(crate) fn settings(&self) -> Result<DatasetSettings> {
        DatasetSettings::of(&self.stored.lock().phys)
    }

    pub(crate) fn fail_mode(&self) -> FailMode {
        // `open` has checked the settings.
        FailMode::from_raw(self.stored.lock().phys.fail_mode).unwrap_or_default()
    }

    /// Changes the settings, which were checked before. The next sync writes them. They apply to
    /// the blocks of all txgs after that of `tx`.
    pub(crate) fn set_settings(&self, tx: &Tx, log: &IntentLog, settings: &DatasetSettings) {
        {
            let mut stored = self.stored.lock();
            settings.put(&mut stored.phys);
            stored.changed = true;
        }
        self.objset.set_settings(tx.txg(), settings.write_settings());
        let store = &self.objset.io.store;
        store.cache().cache().set_owner_caching(store.owner(), settings.caching());
        store.set_l2_mode(settings.l2);
        let logs = settings.sync == SyncMode::Log;
        if logs != self.logs() {
            // Leave the gap first, so that no commit finds only a part of the txg's changes noted.
            // Transactions of the next txg see the new value.
            log.leave_gap(tx.txg());
            self.logs.store(logs, Ordering::Release);
        }
    }

    /// Sets the root object and the flavour of the dataset in the txg of `tx`. The object may have
    /// been created in the same txg.
    pub(crate) fn set_root(&self, tx: &Tx, object: u64, flavour: u32) {
        let root = Root { txg: tx.txg(), object, flavour };
        self.stored.lock().roots[slot_of(tx.txg())] = Some(root);
    }

    /// The newest root object and flavour.
    pub(crate) fn root(&self) -> (u64, u32) {
        let stored = self.stored.lock();
        match stored.roots.iter().flatten().max_by_key(|root| root.txg) {
            Some(root) => (root.object, root.flavour),
            None => (stored.phys.root_object.get(), stored.phys.flavour.get()),
        }
    }

    /// Whether changes are noted for the intent log.
    pub(crate) fn logs(&self) -> bool {
        self.logs.load(Ordering::Acquire)
    }

    /// Changes the attributes of an object. A micro directory becomes fat if the attributes need
    /// its space.
    pub(crate) fn set_attributes(&self, tx: &Tx, number: u64, attributes: &[u8]) -> Result<()> {
        check_attributes(attributes)?;
        let dnode = self.objset.dnode(number, tx.wait())?;
        let grow = attributes.len() > dnode.attributes().len();
        if grow && dnode.object_kind() == Some(ObjectKind::Zap) {
            self.directory(number, tx.wait())?.limit_inline(tx, TAIL_BYTES - attributes.len())?;
        }
        self.objset.set_attributes(tx, number, attributes)
    }

    /// Opens a directory. All handles share one in-memory state.
    pub(crate) fn directory(&self, number: u64, wait: Wait) -> Result<Arc<Zap<Leaves>>> {
        let node = self.objset.open(number, wait)?;
        if node.kind != ObjectKind::Zap {
            let text = format!("object {number} is not a directory");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        // Held during the read, so that no other thread creates, changes and drops another state of
        // the directory meanwhile.
        let mut open = wait.lock(&node.directory, "a directory that is being opened")?;
        if let Some(zap) = open.upgrade() {
            return Ok(zap);
        }
        let zap = Arc::new(Zap::open(Leaves(Arc::clone(&node)), wait)?);
        *open = Arc::downgrade(&zap);
        drop(open);
        Ok(zap)
    }
}
