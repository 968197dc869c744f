//! A transaction group: its root block, and datasets.

use std::fmt;

use super::pointer::{BlockPtrInfo, packing};
use super::view::TxgView;
use super::{Damage, Inspected, Inspector};
use crate::error::Result;
use crate::format::{CacheMode, Compression, DatasetPhys, LOG_EXTENTS_MAX, ObjsetPhys, SyncMode};

/// A set of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjsetInfo {
    /// Objects in use.
    pub objects: u64,
    /// Bytes on devices, all copies.
    pub allocated_bytes: u64,
    /// Blocks of dnodes before the end.
    pub dnode_blocks: u64,
    /// Height of their tree.
    pub levels: u8,
    /// Its root.
    pub root: BlockPtrInfo,
}

/// What a root block says of space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Bytes in use.
    pub allocated_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u64,
    /// Metaslabs.
    pub metaslabs: u32,
    /// Blocks of the log of changes.
    pub log_blocks: u32,
    /// Entries in them.
    pub log_entries: u64,
    /// The newest block of that log.
    pub log: BlockPtrInfo,
    /// The topmost blocks of the index of metaslabs.
    pub index: Vec<BlockPtrInfo>,
}

/// What a root block says of the intent log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogInfo {
    /// Names it for ever.
    pub guid: u64,
    /// Its present life.
    pub generation: u64,
    /// Records of this txg and older ones are not replayed.
    pub txg: u64,
    /// Where replay begins, in bytes ever written.
    pub head_offset: u64,
    /// Sequence number of the block there.
    pub head_sequence: u64,
    /// Device, offset and bytes of each part of the ring.
    pub extents: Vec<(u16, u64, u64)>,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Its name.
    pub name: String,
    /// Number of its object among the pool's own.
    pub number: u64,
    /// Names it for ever.
    pub guid: u64,
    /// The txg that created it.
    pub created_txg: u64,
    /// The object that its user starts from; 0 if there is none.
    pub root_object: u64,
    /// Kind of user; 0 is none.
    pub flavour: u32,
    /// Size of records of new objects in bytes; 0 if it makes no sense.
    pub record_bytes: u32,
    /// Compression and copies of data.
    pub data: (String, u8),
    /// Compression and copies of metadata.
    pub metadata: (String, u8),
    /// What RAM caches of it.
    pub cache: String,
    /// What L2 devices hold of it.
    pub l2: String,
    /// When an fsync returns.
    pub sync: String,
    /// Its objects.
    pub set: ObjsetInfo,
}

/// A transaction group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxgInfo {
    /// Its number.
    pub txg: u64,
    /// When its uberblock was written, by the clock of whoever did, in nanoseconds.
    pub time_ns: u64,
    /// Its root block.
    pub root: BlockPtrInfo,
    /// The pool's own objects.
    pub own: ObjsetInfo,
    /// Number of the directory of datasets among them.
    pub directory: u64,
    /// Space.
    pub space: SpaceInfo,
    /// The intent log.
    pub log: LogInfo,
    /// Datasets by name.
    pub datasets: Vec<DatasetInfo>,
    /// What of them cannot be read.
    pub damage: Damage,
}

impl Inspector {
    /// The newest txg, or the one of that number.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no uberblock of it;
    /// [`ErrorKind::NotAPool`](crate::ErrorKind::NotAPool), [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt),
    /// [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn txg(&self, txg: Option<u64>) -> Result<Inspected<TxgInfo>> {
        self.see(txg, |view| {
            let info = TxgInfo::of(view);
            let damaged = !info.damage.is_empty();
            Ok((info, damaged))
        })
    }
}

impl TxgInfo {
    fn of(view: &TxgView) -> Self {
        let mut damage = Damage::default();
        let names = view.dataset_names(&mut damage).unwrap_or_else(|error| {
            damage.note(error);
            Vec::new()
        });
        let mut datasets = Vec::with_capacity(names.len());
        for (name, number) in names {
            match view.dataset_at(&name, number) {
                Ok(phys) => datasets.push(DatasetInfo::of(name, number, &phys)),
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
            let start = extent.start.get()?;
            Some((start.device, start.offset, extent.bytes.get()))
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
        let compression = |raw: u8| {
            Compression::from_raw(raw)
                .map_or_else(|| unknown(raw), |known| packing(known).to_owned())
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
        Self {
            name,
            number,
            guid: phys.guid.get(),
            created_txg: phys.created_txg.get(),
            root_object: phys.root_object.get(),
            flavour: phys.flavour.get(),
            record_bytes: 1u32.checked_shl(u32::from(phys.record_shift)).unwrap_or(0),
            data: (compression(phys.data_compression), phys.data_copies),
            metadata: (compression(phys.metadata_compression), phys.metadata_copies),
            cache: mode(phys.cache),
            l2: mode(phys.l2),
            sync,
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
            "    records of {} bytes; data {} in {} copies, metadata {} in {}; cache {}, L2 {}, sync {}",
            self.record_bytes,
            self.data.0,
            self.data.1,
            self.metadata.0,
            self.metadata.1,
            self.cache,
            self.l2,
            self.sync
        )?;
        write!(f, "{}", self.set)
    }
}

impl fmt::Display for TxgInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "txg {}, written at {:.3} s of its writer's clock",
            self.txg,
            self.time_ns as f64 / 1e9
        )?;
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
            "    replay behind txg {}, from byte {} and block {} on",
            log.txg, log.head_offset, log.head_sequence
        )?;
        for (device, offset, bytes) in &log.extents {
            writeln!(f, "    {bytes} bytes at {device}:{offset:#x}")?;
        }
        writeln!(f, "the pool's own objects, datasets in object {}:", self.directory)?;
        write!(f, "{}", self.own)?;
        for dataset in &self.datasets {
            write!(f, "{dataset}")?;
        }
        write!(f, "{}", self.damage)
    }
}
