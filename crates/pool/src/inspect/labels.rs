//! Shows the labels and uberblock rings of each device.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::{Device, Request};
use zerocopy::FromBytes;

use super::Inspector;
use super::pointer::BlockPtrInfo;
use crate::block_cache::BlockCache;
use crate::devices::config::{Label, LabelBytes, VdevKind, text_of};
use crate::devices::features::{self, Feature};
use crate::devices::label::CONFIG_BYTES;
use crate::devices::usable_bytes;
use crate::error::Result;
use crate::format::label::{
    LABEL_BYTES, LABEL_MAGIC, LOG_VDEV, RING_OFFSET, RING_SLOTS, SLOT_BYTES, STATE_ACTIVE,
    STATE_EXPORTED, UBERBLOCK_MAGIC, UberblockPhys, VERSION,
};
use crate::time::utc;

/// The content of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LabelCopyInfo {
    /// Format version.
    pub version: u32,
    /// The GUID of the pool.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub pool_guid: u64,
    /// The pool's name.
    pub pool_name: String,
    /// The GUID of the device.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub device_guid: u64,
    /// The number of the device's top-level vdev in the pool.
    pub vdev_number: u16,
    /// Number of top-level vdevs in the pool.
    pub vdev_count: u16,
    /// Incremented with each change of the configuration.
    pub generation: u64,
    /// The newest durable txg when the label was written.
    pub txg: u64,
    /// "active", "exported", or an unknown number.
    pub state: String,
    /// The id of the host that has the pool imported, or had it last.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub host_id: u64,
    /// The name of that host.
    pub host_name: String,
    /// The pool's sector size in bytes.
    pub sector_bytes: u32,
    /// The features that are enabled, with the number of their uses.
    pub features: Vec<LabelFeatureInfo>,
    /// The devices of the pool, if they can be decoded.
    pub devices: Vec<LabelDeviceInfo>,
    /// Why an import would reject the label, or `None`.
    pub objection: Option<String>,
}

/// A feature of the pool, as a label describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LabelFeatureInfo {
    /// Its name.
    pub name: String,
    /// How many things use it: 0 if it is enabled, and not active.
    pub uses: u64,
}

/// A device of the pool, as a label describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LabelDeviceInfo {
    /// The number of its top-level vdev.
    pub vdev: u16,
    /// Whether that is a mirror.
    pub mirror: bool,
    /// The first txg of which it misses blocks; 0 if it misses none.
    pub missed_from: u64,
    /// The GUID of the device.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub guid: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// A label position of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LabelPositionInfo {
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Its state.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub state: LabelState,
}

/// State of a label position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "state", rename_all = "lowercase"))]
pub enum LabelState {
    /// Magic and checksum are correct.
    Sound {
        /// The content of the label.
        label: Box<LabelCopyInfo>,
    },
    /// There is no valid label.
    Damaged {
        /// The reason.
        why: String,
    },
    /// The device failed.
    Unreadable {
        /// The error.
        why: String,
    },
}

/// The labels of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceLabelsInfo {
    /// The path of the device.
    pub device: String,
    /// Its current size in bytes.
    pub size_bytes: u64,
    /// The label positions: front, end, and the end that the front label states, if that differs.
    pub labels: Vec<LabelPositionInfo>,
    /// Describes the L2 on the device, if it is an L2 device. Such a device has no labels.
    pub l2_device: Option<String>,
}

/// A ring slot with an invalid uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct UnsoundSlotInfo {
    /// The path of the device.
    pub device: String,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// The reason.
    pub problem: String,
}

/// An uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct UberblockInfo {
    /// Its txg.
    pub txg: u64,
    /// The txg that it follows; 0 for the first.
    pub previous_txg: u64,
    /// Time of the write in nanoseconds since 1970, by the clock of its host.
    pub time_ns: u64,
    /// The GUID of the pool.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::guid"))]
    pub pool_guid: u64,
    /// Number of top-level vdevs in the pool.
    pub vdev_count: u32,
    /// Its root block.
    pub root: BlockPtrInfo,
    /// Number of rings that hold it.
    pub rings: u32,
    /// Why its root block is unreadable, or `None`. Root blocks are overwritten after a few txgs,
    /// so old uberblocks have none.
    pub root_problem: Option<String>,
}

/// The uberblock rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct UberblocksInfo {
    /// Number of readable rings: two per device.
    pub rings: u32,
    /// Newest first.
    pub found: Vec<UberblockInfo>,
    /// Slots that are written but invalid.
    pub damaged: Vec<UnsoundSlotInfo>,
}

impl Inspector {
    /// Returns the labels of each device, valid or not.
    pub fn labels(&self) -> Vec<DeviceLabelsInfo> {
        self.devices.iter().map(|device| read_labels(device, &self.cache)).collect()
    }

    /// Returns all uberblocks, of any pool.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn uberblocks(&self) -> Result<UberblocksInfo> {
        let mut info = UberblocksInfo::default();
        let mut found: BTreeMap<(u64, Vec<u8>), UberblockInfo> = BTreeMap::new();
        for device in &self.devices {
            for label in label_places(&**device, &self.cache) {
                let bytes = RING_SLOTS as usize * SLOT_BYTES;
                match read_at(&**device, label + RING_OFFSET, bytes, &self.cache) {
                    Ok(ring) => info.ring(device, label + RING_OFFSET, &ring, &mut found),
                    Err(problem) => info.damaged.push(UnsoundSlotInfo {
                        device: device.info().name.to_string(),
                        offset: label + RING_OFFSET,
                        problem,
                    }),
                }
            }
        }
        info.found = found.into_values().rev().collect();
        let readable = self.readable_roots()?;
        for one in &mut info.found {
            let known = readable.iter().find(|(txg, root, _)| (*txg, root) == (one.txg, &one.root));
            one.root_problem = match known {
                Some((.., problem)) => problem.clone(),
                None => Some("it belongs to another pool than the labels".to_owned()),
            };
        }
        Ok(info)
    }
}

impl UberblocksInfo {
    fn ring(
        &mut self,
        device: &Arc<dyn Device>,
        offset: u64,
        ring: &[u8],
        found: &mut BTreeMap<(u64, Vec<u8>), UberblockInfo>,
    ) {
        self.rings += 1;
        for (slot, bytes) in ring.chunks_exact(SLOT_BYTES).enumerate() {
            match slot_problem(slot as u64, bytes) {
                None => {
                    let Ok(phys) = UberblockPhys::ref_from_bytes(bytes) else { continue };
                    let known = found
                        .entry((phys.txg.get(), bytes.to_vec()))
                        .or_insert_with(|| UberblockInfo::of(phys));
                    known.rings += 1;
                }
                Some(problem) if bytes.iter().any(|byte| *byte != 0) => {
                    self.damaged.push(UnsoundSlotInfo {
                        device: device.info().name.to_string(),
                        offset: offset + (slot * SLOT_BYTES) as u64,
                        problem: problem.to_owned(),
                    });
                }
                // Not written yet.
                Some(_) => {}
            }
        }
    }
}

impl UberblockInfo {
    fn of(phys: &UberblockPhys) -> Self {
        Self {
            txg: phys.txg.get(),
            previous_txg: phys.previous_txg.get(),
            time_ns: phys.time_ns.get(),
            pool_guid: phys.pool_guid.get(),
            vdev_count: phys.vdev_count.get(),
            root: BlockPtrInfo::of(&phys.root),
            rings: 0,
            root_problem: None,
        }
    }
}

fn slot_problem(slot: u64, bytes: &[u8]) -> Option<&'static str> {
    match UberblockPhys::ref_from_bytes(bytes) {
        Err(_) => Some("it is truncated"),
        Ok(phys) if phys.magic.get() != UBERBLOCK_MAGIC => Some("it is not an uberblock"),
        Ok(phys) if !phys.is_sound() => Some("its checksum is wrong: torn write or corruption"),
        Ok(phys) if phys.version.get() != VERSION => Some("another version wrote it"),
        Ok(phys) if phys.txg.get() % RING_SLOTS != slot => Some("it belongs to another slot"),
        Ok(_) => None,
    }
}

/// Returns the label positions of a device.
pub(super) fn label_places(device: &dyn Device, memory: &BlockCache) -> Vec<u64> {
    let size_bytes = usable_bytes(device);
    if size_bytes < 2 * LABEL_BYTES {
        return if size_bytes == 0 { Vec::new() } else { vec![0] };
    }
    let mut places = vec![0, size_bytes - LABEL_BYTES];
    if let LabelState::Sound { label } = label_at(device, 0, memory)
        && let Some(own) = label.devices.iter().find(|device| device.guid == label.device_guid)
        && own.size_bytes < size_bytes
        && let Some(back) = own.size_bytes.checked_sub(LABEL_BYTES).filter(|back| *back > 0)
    {
        places.push(back);
    }
    places
}

fn read_labels(device: &Arc<dyn Device>, memory: &BlockCache) -> DeviceLabelsInfo {
    let info = device.info();
    let places = label_places(&**device, memory);
    let position =
        |offset| LabelPositionInfo { offset, state: label_at(&**device, offset, memory) };
    let mut labels: Vec<_> = places.into_iter().map(position).collect();
    let sound = labels.iter().any(|label| matches!(label.state, LabelState::Sound { .. }));
    let l2_device = if sound { None } else { crate::l2::device::describe(device) };
    if l2_device.is_some() {
        labels.clear();
    }
    DeviceLabelsInfo {
        device: info.name.to_string(),
        size_bytes: info.size_bytes,
        labels,
        l2_device,
    }
}

fn label_at(device: &dyn Device, offset: u64, memory: &BlockCache) -> LabelState {
    let bytes = match read_at(device, offset, CONFIG_BYTES, memory) {
        Ok(bytes) => bytes,
        Err(why) => return LabelState::Unreadable { why },
    };
    let damaged = |what: &str| LabelState::Damaged { why: what.to_owned() };
    let Some(label) = LabelBytes::of(&bytes) else { return damaged("it is truncated") };
    match label.head {
        _ if bytes.iter().all(|byte| *byte == 0) => damaged("it is all zeros"),
        phys if phys.magic.get() != LABEL_MAGIC => damaged("it is not a label"),
        phys if !phys.is_sound() || (phys.version.get() == VERSION && label.nodes().is_none()) => {
            damaged("its checksum is wrong: torn write or corruption")
        }
        _ => {
            let label = Box::new(LabelCopyInfo::of(&label, &device.info().name));
            LabelState::Sound { label }
        }
    }
}

pub(super) fn read_at(
    device: &dyn Device,
    offset: u64,
    len: usize,
    memory: &BlockCache,
) -> Result<Buffer, String> {
    let buffer = memory.alloc(len).map_err(|error| error.to_string())?;
    device.run(Request::read(offset, buffer)).into_buffer().map_err(|error| error.to_string())
}

impl LabelCopyInfo {
    fn of(label: &LabelBytes<'_>, name: &str) -> Self {
        let phys = label.head;
        let decoded = Label::decode(label, name);
        let (devices, objection) = match decoded {
            Ok(Some(label)) => {
                let vdevs = label.config.numbered();
                let devices = vdevs.flat_map(|(number, vdev)| {
                    vdev.leaves.iter().map(move |leaf| LabelDeviceInfo {
                        vdev: number,
                        mirror: vdev.kind == VdevKind::Mirror,
                        missed_from: leaf.missed.map_or(0, |missed| missed.from),
                        guid: leaf.guid,
                        size_bytes: leaf.size_bytes,
                    })
                });
                (devices.collect(), None)
            }
            Ok(None) => (Vec::new(), Some("its checksum is wrong".to_owned())),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let features = match phys.version.get() {
            VERSION => features::decode(phys),
            // Others may have something else there.
            _ => Vec::new(),
        };
        let feature =
            |feature: Feature| LabelFeatureInfo { name: feature.name, uses: feature.uses };
        Self {
            version: phys.version.get(),
            pool_guid: phys.pool_guid.get(),
            pool_name: text_of(&phys.pool_name),
            device_guid: phys.device_guid.get(),
            vdev_number: phys.vdev_number.get(),
            vdev_count: phys.vdev_count.get(),
            generation: phys.generation.get(),
            txg: phys.txg.get(),
            state: match phys.state {
                STATE_ACTIVE => "active".to_owned(),
                STATE_EXPORTED => "exported".to_owned(),
                other => format!("unknown ({other})"),
            },
            host_id: phys.host_id.get(),
            host_name: text_of(&phys.host_name),
            sector_bytes: phys.sector_bytes.get(),
            features: features.into_iter().map(feature).collect(),
            devices,
            objection,
        }
    }
}

impl fmt::Display for LabelCopyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool_name, pool_guid, vdev_number, vdev_count, device_guid, .. } = self;
        writeln!(f, "pool:       {pool_name:?} ({pool_guid:016x}), version {}", self.version)?;
        match *vdev_number & LOG_VDEV {
            0 => writeln!(f, "device:     {vdev_number} of {vdev_count} ({device_guid:016x})")?,
            _ => writeln!(f, "device:     of the intent log ({device_guid:016x})")?,
        }
        writeln!(f, "state:      {}", self.state)?;
        writeln!(f, "host:       {:?} ({:#x})", self.host_name, self.host_id)?;
        writeln!(f, "generation: {}, txg {}", self.generation, self.txg)?;
        writeln!(f, "sectors:    {} bytes", self.sector_bytes)?;
        if !self.features.is_empty() {
            let named = self.features.iter().map(|one| match one.uses {
                0 => one.name.clone(),
                uses => format!("{} (active, {uses})", one.name),
            });
            writeln!(f, "features:   {}", named.collect::<Vec<_>>().join(", "))?;
        }
        for device in &self.devices {
            let LabelDeviceInfo { vdev, mirror, missed_from, guid, size_bytes } = device;
            let kind = match (*vdev & LOG_VDEV, *mirror) {
                (0, true) => "mirror",
                (0, false) => "device",
                (_, true) => "log mirror",
                (_, false) => "log device",
            };
            let missed = match missed_from {
                0 => String::new(),
                from => format!(", misses txgs from {from} on"),
            };
            writeln!(f, "{kind} {vdev}:   {size_bytes} bytes ({guid:016x}){missed}")?;
        }
        match &self.objection {
            Some(objection) => writeln!(f, "refused:    {objection}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for DeviceLabelsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} bytes", self.device, self.size_bytes)?;
        if let Some(what) = &self.l2_device {
            return writeln!(f, "  is {what}");
        }
        if self.labels.is_empty() {
            writeln!(f, "  is too small for a label")?;
        }
        for LabelPositionInfo { offset, state } in &self.labels {
            match state {
                LabelState::Sound { label } => {
                    writeln!(f, "  label at {offset:#x}: sound")?;
                    for line in label.to_string().lines() {
                        writeln!(f, "    {line}")?;
                    }
                }
                LabelState::Damaged { why } => {
                    writeln!(f, "  label at {offset:#x}: NOT SOUND: {why}")?;
                }
                LabelState::Unreadable { why } => {
                    writeln!(f, "  label at {offset:#x}: CANNOT BE READ: {why}")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for UberblocksInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.found {
            let written = utc(one.time_ns / 1_000_000);
            let root = match &one.root_problem {
                None => "its root block is readable".to_owned(),
                Some(problem) => format!("its root block cannot be read: {problem}"),
            };
            writeln!(
                f,
                "txg {} after {}: in {} of {} rings, written {written} UTC, {} devices",
                one.txg, one.previous_txg, one.rings, self.rings, one.vdev_count
            )?;
            writeln!(f, "    {}", one.root)?;
            writeln!(f, "    {root}")?;
        }
        if self.found.is_empty() {
            writeln!(f, "no sound uberblock")?;
        }
        for slot in &self.damaged {
            writeln!(f, "NOT SOUND: {} at {:#x}: {}", slot.device, slot.offset, slot.problem)?;
        }
        Ok(())
    }
}
