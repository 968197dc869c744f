//! Shows a txg: its root block and its datasets.

use std::fmt;

use super::pointer::{BlockPtrInfo, compression_name};
use super::view::TxgView;
use super::{Damage, Inspected, Inspector};
use crate::error::Result;
use crate::format::{
    CacheMode, Compression, DatasetPhys, Dva, FailMode, LOG_EXTENTS_MAX, ObjsetPhys, SyncMode,
};
use crate::pool::ScrubStatus;
use crate::time::utc;

/// An object set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ObjsetInfo {
    /// Objects in use.
    pub objects: u64,
    /// Bytes on devices, all copies.
    pub allocated_bytes: u64,
    /// Number of dnode blocks before the end.
    pub dnode_blocks: u64,
    /// Height of their tree.
    pub levels: u8,
    /// The root of their tree.
    pub root: BlockPtrInfo,
}

/// The space maps, as the root block describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SpaceInfo {
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Sector size in bytes.
    pub sector_bytes: u64,
    /// Number of metaslabs.
    pub metaslabs: u32,
    /// Number of blocks of the space log.
    pub log_blocks: u32,
    /// Number of entries in the space log.
    pub log_entries: u64,
    /// The newest block of the space log.
    pub log: BlockPtrInfo,
    /// The topmost blocks of the metaslab index.
    pub index: Vec<BlockPtrInfo>,
}

/// The intent log, as the root block describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LogInfo {
    /// The GUID of the log.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub guid: u64,
    /// Its current generation.
    pub generation: u64,
    /// Records of this txg and older ones are not replayed.
    pub txg: u64,
    /// Offset at which replay begins, in bytes ever written.
    pub head_offset: u64,
    /// Sequence number of the block there.
    pub head_sequence: u64,
    /// The extents of the ring.
    pub extents: Vec<LogExtentInfo>,
}

/// An extent of the intent log's ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LogExtentInfo {
    /// Number of the device.
    pub device: u16,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// How blocks of a dataset are written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WritePropsInfo {
    /// The compression, or an unknown number.
    pub compression: String,
    /// Number of copies.
    pub copies: u8,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DatasetInfo {
    /// Its name.
    pub name: String,
    /// Object number among the pool's own objects.
    pub number: u64,
    /// The GUID of the dataset.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub guid: u64,
    /// The txg that created it.
    pub created_txg: u64,
    /// Number of its root object; 0 if there is none.
    pub root_object: u64,
    /// Kind of its user; 0 for none.
    pub flavour: u32,
    /// Record size of new objects in bytes; 0 if it is invalid.
    pub record_bytes: u32,
    /// How data is written.
    pub data: WritePropsInfo,
    /// How metadata is written.
    pub metadata: WritePropsInfo,
    /// Blocks that RAM caches.
    pub cache: String,
    /// Blocks that L2 devices hold.
    pub l2: String,
    /// When an fsync returns.
    pub sync: String,
    /// What changes do while the pool is suspended.
    pub fail_mode: String,
    /// Its objects.
    pub set: ObjsetInfo,
}

/// A txg.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TxgInfo {
    /// Its number.
    pub txg: u64,
    /// Time of its uberblock in nanoseconds since 1970, by the clock of its host.
    pub time_ns: u64,
    /// Its root block.
    pub root: BlockPtrInfo,
    /// The pool's own objects.
    pub own: ObjsetInfo,
    /// Object number of the directory of datasets.
    pub directory: u64,
    /// The space maps.
    pub space: SpaceInfo,
    /// The intent log.
    pub log: LogInfo,
    /// The newest scrub.
    pub scrub: ScrubStatus,
    /// Datasets, sorted by name.
    pub datasets: Vec<DatasetInfo>,
    /// Unreadable datasets.
    pub damage: Damage,
}

impl Inspector {
    /// Returns the newest txg, or the one with this number.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it has no uberblock;
    /// [`ErrorKind::NotAPool`](crate::ErrorKind::NotAPool),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt),
    /// [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn txg(&self, txg: Option<u64>) -> Result<Inspected<TxgInfo>> {
        self.inspect_as_of(txg, |view| {
            let info = TxgInfo::of(view);
            let damaged = !info.damage.is_empty();
            Ok((info, damaged))
        })
    }
}

impl TxgInfo {
    fn of(view: &TxgView) -> Self {
        let mut damage = Damage::default();
        view.unreadable.iter().for_each(|problem| damage.note(problem));
        if let Err(error) = view.check_space_maps() {
            damage.note(error);
        }
        let names = view.dataset_names(&mut damage).unwrap_or_else(|error| {
            damage.note(error);
            Vec::new()
        });
        let mut datasets = Vec::with_capacity(names.len());
        for (name, number) in names {
            match view.dataset_at(&name, number) {
                Ok(phys) => {
                    if let Err(error) = view.check_objset(&name, &phys.objset) {
                        damage.note(error);
                    }
                    datasets.push(DatasetInfo::of(name, number, &phys));
                }
                Err(error) => damage.note(error),
            }
        }
        let root = &view.root;
        Self {
            txg: view.uberblock.txg,
            time_ns: view.uberblock.time_ns,
            root: BlockPtrInfo::of(&view.uberblock.root),
            own: ObjsetInfo::of(&root.mos),
            directory: root.datasets.get(),
            space: SpaceInfo::of(view),
            log: LogInfo::of(view),
            scrub: ScrubStatus::of(&root.scrub),
            datasets,
            damage,
        }
    }
}

impl ObjsetInfo {
    fn of(phys: &ObjsetPhys) -> Self {
        Self {
            objects: phys.objects.get(),
            allocated_bytes: phys.allocated_bytes.get(),
            dnode_blocks: phys.blocks.get(),
            levels: phys.levels,
            root: BlockPtrInfo::of(&phys.root),
        }
    }
}

impl SpaceInfo {
    fn of(view: &TxgView) -> Self {
        let space = &view.root.space;
        let index = space.index.iter().take(usize::from(space.index_pointers));
        Self {
            allocated_bytes: space.allocated_bytes.get(),
            sector_bytes: 1u64.checked_shl(u32::from(space.sector_shift)).unwrap_or(0),
            metaslabs: space.metaslabs.get(),
            log_blocks: space.log_blocks.get(),
            log_entries: space.log_entries.get(),
            log: BlockPtrInfo::of(&space.log),
            index: index.map(BlockPtrInfo::of).collect(),
        }
    }
}

impl LogInfo {
    fn of(view: &TxgView) -> Self {
        let log = &view.root.log;
        let count = (log.extent_count.get() as usize).min(LOG_EXTENTS_MAX);
        let extents = log.extents[..count].iter().filter_map(|extent| {
            let Dva { device, offset } = extent.start.get()?;
            Some(LogExtentInfo { device, offset, bytes: extent.bytes.get() })
        });
        Self {
            guid: log.guid.get(),
            generation: log.generation.get(),
            txg: log.txg.get(),
            head_offset: log.head_offset.get(),
            head_sequence: log.head_sequence.get(),
            extents: extents.collect(),
        }
    }
}

impl DatasetInfo {
    fn of(name: String, number: u64, phys: &DatasetPhys) -> Self {
        let unknown = |raw: u8| format!("unknown ({raw})");
        let write_props = |raw: u8, copies| {
            let compression = Compression::from_raw(raw)
                .map_or_else(|| unknown(raw), |known| compression_name(known).to_owned());
            WritePropsInfo { compression, copies }
        };
        let mode = |raw: u8| match CacheMode::from_raw(raw) {
            Some(CacheMode::All) => "all".to_owned(),
            Some(CacheMode::Metadata) => "metadata".to_owned(),
            Some(CacheMode::None) => "none".to_owned(),
            None => unknown(raw),
        };
        let sync = match SyncMode::from_raw(phys.sync) {
            Some(SyncMode::Log) => "log".to_owned(),
            Some(SyncMode::Txg) => "txg".to_owned(),
            None => unknown(phys.sync),
        };
        let fail_mode = match FailMode::from_raw(phys.fail_mode) {
            Some(FailMode::Wait) => "wait".to_owned(),
            Some(FailMode::Continue) => "continue".to_owned(),
            None => unknown(phys.fail_mode),
        };
        Self {
            name,
            number,
            guid: phys.guid.get(),
            created_txg: phys.created_txg.get(),
            root_object: phys.root_object.get(),
            flavour: phys.flavour.get(),
            record_bytes: 1u32.checked_shl(u32::from(phys.record_shift)).unwrap_or(0),
            data: write_props(phys.data_compression, phys.data_copies),
            metadata: write_props(phys.metadata_compression, phys.metadata_copies),
            cache: mode(phys.cache),
            l2: mode(phys.l2),
            sync,
            fail_mode,
            set: ObjsetInfo::of(&phys.objset),
        }
    }
}

impl fmt::Display for ObjsetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, allocated_bytes, dnode_blocks, levels, root } = self;
        writeln!(f, "    {objects} objects, {allocated_bytes} bytes on devices")?;
        writeln!(f, "    {dnode_blocks} blocks of dnodes in {levels} levels")?;
        writeln!(f, "    root: {root}")
    }
}

impl fmt::Display for DatasetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dataset {:?}: object {} ({:016x})", self.name, self.number, self.guid)?;
        let (root, flavour) = (self.root_object, self.flavour);
        writeln!(
            f,
            "    created in txg {}, root object {root}, flavour {flavour}",
            self.created_txg
        )?;
        writeln!(
            f,
            "    records of {} bytes; data {} in {} copies, metadata {} in {}; cache {}, L2 {}, sync {}, failmode {}",
            self.record_bytes,
            self.data.compression,
            self.data.copies,
            self.metadata.compression,
            self.metadata.copies,
            self.cache,
            self.l2,
            self.sync,
            self.fail_mode
        )?;
        write!(f, "{}", self.set)
    }
}

impl fmt::Display for TxgInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "txg {}, written {} UTC", self.txg, utc(self.time_ns / 1_000_000))?;
        writeln!(f, "    root block: {}", self.root)?;
        writeln!(f, "space:")?;
        let space = &self.space;
        writeln!(
            f,
            "    {} bytes in use, sectors of {} bytes",
            space.allocated_bytes, space.sector_bytes
        )?;
        writeln!(
            f,
            "    {} metaslabs, {} entries in {} blocks of the log of changes",
            space.metaslabs, space.log_entries, space.log_blocks
        )?;
        writeln!(f, "    log: {}", space.log)?;
        for ptr in &space.index {
            writeln!(f, "    index: {ptr}")?;
        }
        let log = &self.log;
        writeln!(f, "intent log ({:016x}), generation {}:", log.guid, log.generation)?;
        writeln!(
            f,
            "    replay of records after txg {}, from offset {}, block {}",
            log.txg, log.head_offset, log.head_sequence
        )?;
        for LogExtentInfo { device, offset, bytes } in &log.extents {
            writeln!(f, "    {bytes} bytes at {device}:{offset:#x}")?;
        }
        let scrub = &self.scrub;
        writeln!(
            f,
            "scrub: {:?}, of blocks up to txg {}: {} blocks of {} bytes read, {} copies healed, {} problems",
            scrub.state, scrub.txg, scrub.blocks, scrub.bytes, scrub.healed, scrub.lost
        )?;
        writeln!(f, "the pool's own objects, datasets in object {}:", self.directory)?;
        write!(f, "{}", self.own)?;
        for dataset in &self.datasets {
            write!(f, "{dataset}")?;
        }
        write!(f, "{}", self.damage)
    }
}
