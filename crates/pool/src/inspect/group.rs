//! A transaction group: its root block, and datasets.

use std::fmt;

use super::pointer::{PointerLook, packing};
use super::view::View;
use super::{Damage, Inspector, Seen};
use crate::error::Result;
use crate::format::{CacheMode, Compression, DatasetPhys, LOG_EXTENTS_MAX, ObjsetPhys, SyncMode};

/// A set of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetLook {
    /// Objects in use.
    pub objects: u64,
    /// Bytes on devices, all copies.
    pub allocated_bytes: u64,
    /// Blocks of dnodes before the end.
    pub dnode_blocks: u64,
    /// Height of their tree.
    pub levels: u8,
    /// Its root.
    pub root: PointerLook,
}

/// What a root block says of space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceLook {
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
    pub log: PointerLook,
    /// The topmost blocks of the index of metaslabs.
    pub index: Vec<PointerLook>,
}

/// What a root block says of the intent log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLook {
    /// Names it for ever.
    pub guid: u64,
    /// Its present life.
    pub generation: u64,
    /// Records of this group and older ones are not replayed.
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
pub struct DatasetLook {
    /// Its name.
    pub name: String,
    /// Number of its object among the pool's own.
    pub number: u64,
    /// Names it for ever.
    pub guid: u64,
    /// The group that created it.
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
    /// What cache devices hold of it.
    pub second: String,
    /// When an fsync returns.
    pub sync: String,
    /// Its objects.
    pub set: SetLook,
}

/// A transaction group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLook {
    /// Its number.
    pub txg: u64,
    /// When its uberblock was written, by the clock of whoever did, in nanoseconds.
    pub time_ns: u64,
    /// Its root block.
    pub root: PointerLook,
    /// The pool's own objects.
    pub own: SetLook,
    /// Number of the directory of datasets among them.
    pub directory: u64,
    /// Space.
    pub space: SpaceLook,
    /// The intent log.
    pub log: LogLook,
    /// Datasets by name.
    pub datasets: Vec<DatasetLook>,
    /// What of them cannot be read.
    pub damage: Damage,
}

impl Inspector {
    /// The newest group, or the one of that number.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no uberblock of it;
    /// [`ErrorKind::NotAPool`](crate::ErrorKind::NotAPool), [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt),
    /// [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn group(&self, txg: Option<u64>) -> Result<Seen<GroupLook>> {
        self.see(txg, |view| {
            let group = GroupLook::of(view);
            let damaged = !group.damage.is_empty();
            Ok((group, damaged))
        })
    }
}

impl GroupLook {
    fn of(view: &View) -> Self {
        let mut damage = Damage::default();
        let names = view.dataset_names(&mut damage).unwrap_or_else(|error| {
            damage.note(error);
            Vec::new()
        });
        let mut datasets = Vec::with_capacity(names.len());
        for (name, number) in names {
            match view.dataset_at(&name, number) {
                Ok(phys) => datasets.push(DatasetLook::of(name, number, &phys)),
                Err(error) => damage.note(error),
            }
        }
        let root = &view.root;
        Self {
            txg: view.uberblock.txg,
            time_ns: view.uberblock.time_ns,
            root: PointerLook::of(&view.uberblock.root),
            own: SetLook::of(&root.mos),
            directory: root.datasets.get(),
            space: SpaceLook::of(view),
            log: LogLook::of(view),
            datasets,
            damage,
        }
    }
}

impl SetLook {
    fn of(phys: &ObjsetPhys) -> Self {
        Self {
            objects: phys.objects.get(),
            allocated_bytes: phys.allocated_bytes.get(),
            dnode_blocks: phys.blocks.get(),
            levels: phys.levels,
            root: PointerLook::of(&phys.root),
        }
    }
}

impl SpaceLook {
    fn of(view: &View) -> Self {
        let space = &view.root.space;
        let index = space.index.iter().take(usize::from(space.index_pointers));
        Self {
            allocated_bytes: space.allocated_bytes.get(),
            sector_bytes: 1u64.checked_shl(u32::from(space.sector_shift)).unwrap_or(0),
            metaslabs: space.metaslabs.get(),
            log_blocks: space.log_blocks.get(),
            log_entries: space.log_entries.get(),
            log: PointerLook::of(&space.log),
            index: index.map(PointerLook::of).collect(),
        }
    }
}

impl LogLook {
    fn of(view: &View) -> Self {
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

impl DatasetLook {
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
            Some(SyncMode::Group) => "group".to_owned(),
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
            second: mode(phys.second),
            sync,
            set: SetLook::of(&phys.objset),
        }
    }
}

impl fmt::Display for SetLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, allocated_bytes, dnode_blocks, levels, root } = self;
        writeln!(f, "    {objects} objects, {allocated_bytes} bytes on devices")?;
        writeln!(f, "    {dnode_blocks} blocks of dnodes in {levels} levels")?;
        writeln!(f, "    root: {root}")
    }
}

impl fmt::Display for DatasetLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dataset {:?}: object {} ({:016x})", self.name, self.number, self.guid)?;
        let (root, flavour) = (self.root_object, self.flavour);
        writeln!(
            f,
            "    created in group {}, root object {root}, flavour {flavour}",
            self.created_txg
        )?;
        writeln!(
            f,
            "    records of {} bytes; data {} in {} copies, metadata {} in {}; cache {}, second level {}, sync {}",
            self.record_bytes,
            self.data.0,
            self.data.1,
            self.metadata.0,
            self.metadata.1,
            self.cache,
            self.second,
            self.sync
        )?;
        write!(f, "{}", self.set)
    }
}

impl fmt::Display for GroupLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "group {}, written at {:.3} s of its writer's clock",
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
            "    replay behind group {}, from byte {} and block {} on",
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
