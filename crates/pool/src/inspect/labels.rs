//! Labels and rings of uberblocks, as they lie on each device.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::{Device, Request};
use zerocopy::FromBytes;

use super::Inspector;
use super::pointer::BlockPtrInfo;
use crate::block_cache::BlockCache;
use crate::devices::config::{Label, text_of};
use crate::devices::usable_bytes;
use crate::error::Result;
use crate::format::label::{
    LABEL_BYTES, LABEL_MAGIC, LabelPhys, MAX_FEATURES, RING_OFFSET, RING_SLOTS, SLOT_BYTES,
    STATE_ACTIVE, STATE_EXPORTED, UBERBLOCK_MAGIC, UberblockPhys, VERSION,
};

/// What a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelCopyInfo {
    /// Version of who wrote it.
    pub version: u32,
    /// Names the pool for ever.
    pub pool_guid: u64,
    /// The pool's name.
    pub pool_name: String,
    /// Names the device for ever.
    pub device_guid: u64,
    /// Its number in the pool.
    pub device_number: u16,
    /// Devices of the pool.
    pub device_count: u16,
    /// Grows with each change of the configuration.
    pub generation: u64,
    /// A txg that was durable when it was written.
    pub txg: u64,
    /// "active", "exported", or a number that nobody knows.
    pub state: String,
    /// Names the host that has the pool imported, or had it last.
    pub host_id: u64,
    /// That host's name.
    pub host_name: String,
    /// Size of the pool's sectors.
    pub sector_bytes: u32,
    /// Features that a reader must know.
    pub features: Vec<String>,
    /// Guid and size in bytes of each device of the pool, if they can be told.
    pub devices: Vec<(u64, u64)>,
    /// Why it would be refused, if it would.
    pub objection: Option<String>,
}

/// A place where a label should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelState {
    /// Magic and checksum are right.
    Sound(Box<LabelCopyInfo>),
    /// There is something, or nothing, that is none: why.
    Damaged(String),
    /// The device has failed.
    Unreadable(String),
}

/// The labels of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLabelsInfo {
    /// Its path.
    pub name: String,
    /// Bytes that it has now.
    pub size_bytes: u64,
    /// Where labels should be, and what is there: at the front, at the end, and where the front label says that the device ended, if that is elsewhere.
    pub labels: Vec<(u64, LabelState)>,
    /// If it is no device of a pool, but one's L2 device: which, of which pool, and how large. Then it has no such labels, and that is right.
    pub l2_device: Option<String>,
}

/// A place of a ring where an uberblock is not sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsoundSlotInfo {
    /// The device's path.
    pub device: String,
    /// Offset on it in bytes.
    pub offset: u64,
    /// What is wrong.
    pub problem: String,
}

/// An uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UberblockInfo {
    /// Its transaction group.
    pub txg: u64,
    /// When it was written, by the clock of whoever did, in nanoseconds: since that process opened the pool.
    pub time_ns: u64,
    /// Names the pool for ever.
    pub pool_guid: u64,
    /// Devices that the pool had.
    pub device_count: u32,
    /// Its root block.
    pub root: BlockPtrInfo,
    /// Rings that have it.
    pub rings: u32,
    /// Why its root block cannot be read, if it cannot. Root blocks are overwritten after a few txgs, so that of old ones
    /// none is left.
    pub root_problem: Option<String>,
}

/// The rings of uberblocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UberblocksInfo {
    /// Rings that could be read: two a device.
    pub rings: u32,
    /// The newest first.
    pub found: Vec<UberblockInfo>,
    /// What is not sound, though something was written there.
    pub damaged: Vec<UnsoundSlotInfo>,
}

impl Inspector {
    /// The labels of each device, sound or not.
    pub fn labels(&self) -> Vec<DeviceLabelsInfo> {
        self.devices.iter().map(|device| look_at(device, &self.cache)).collect()
    }

    /// All uberblocks, of whatever pool.
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
                None => Some("it is not of the pool that the labels name".to_owned()),
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
                // Nothing was written yet.
                Some(_) => {}
            }
        }
    }
}

impl UberblockInfo {
    fn of(phys: &UberblockPhys) -> Self {
        Self {
            txg: phys.txg.get(),
            time_ns: phys.time_ns.get(),
            pool_guid: phys.pool_guid.get(),
            device_count: phys.device_count.get(),
            root: BlockPtrInfo::of(&phys.root),
            rings: 0,
            root_problem: None,
        }
    }
}

fn slot_problem(slot: u64, bytes: &[u8]) -> Option<&'static str> {
    match UberblockPhys::ref_from_bytes(bytes) {
        Err(_) => Some("it is cut off"),
        Ok(phys) if phys.magic.get() != UBERBLOCK_MAGIC => Some("it is no uberblock"),
        Ok(phys) if !phys.is_sound() => Some("its checksum is wrong: torn, or rotten"),
        Ok(phys) if phys.version.get() != VERSION => Some("another version wrote it"),
        Ok(phys) if phys.txg.get() % RING_SLOTS != slot => Some("it belongs to another slot"),
        Ok(_) => None,
    }
}

/// Where labels of a device should be.
pub(super) fn label_places(device: &dyn Device, memory: &BlockCache) -> Vec<u64> {
    let size_bytes = usable_bytes(device);
    if size_bytes < 2 * LABEL_BYTES {
        return if size_bytes == 0 { Vec::new() } else { vec![0] };
    }
    let mut places = vec![0, size_bytes - LABEL_BYTES];
    if let LabelState::Sound(label) = label_at(device, 0, memory)
        && let Some((_, ended)) = label.devices.get(usize::from(label.device_number))
        && *ended < size_bytes
        && let Some(back) = ended.checked_sub(LABEL_BYTES).filter(|back| *back > 0)
    {
        places.push(back);
    }
    places
}

fn look_at(device: &Arc<dyn Device>, memory: &BlockCache) -> DeviceLabelsInfo {
    let info = device.info();
    let places = label_places(&**device, memory);
    let label = |place| (place, label_at(&**device, place, memory));
    let mut labels: Vec<_> = places.into_iter().map(label).collect();
    let sound = labels.iter().any(|(_, state)| matches!(state, LabelState::Sound(_)));
    let l2_device = if sound { None } else { crate::l2::device::describe(device) };
    if l2_device.is_some() {
        labels.clear();
    }
    DeviceLabelsInfo { name: info.name.to_string(), size_bytes: info.size_bytes, labels, l2_device }
}

fn label_at(device: &dyn Device, offset: u64, memory: &BlockCache) -> LabelState {
    let bytes = match read_at(device, offset, SLOT_BYTES, memory) {
        Ok(bytes) => bytes,
        Err(problem) => return LabelState::Unreadable(problem),
    };
    let damaged = |what: &str| LabelState::Damaged(what.to_owned());
    match LabelPhys::ref_from_bytes(&bytes) {
        Err(_) => damaged("it is cut off"),
        Ok(_) if bytes.iter().all(|byte| *byte == 0) => damaged("there is nothing but zeros"),
        Ok(phys) if phys.magic.get() != LABEL_MAGIC => damaged("it is no label"),
        Ok(phys) if !phys.is_sound() => damaged("its checksum is wrong: torn, or rotten"),
        Ok(phys) => LabelState::Sound(Box::new(LabelCopyInfo::of(phys, &device.info().name))),
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
    fn of(phys: &LabelPhys, name: &str) -> Self {
        let decoded = Label::decode(phys, name);
        let (devices, objection) = match decoded {
            Ok(Some(label)) => {
                let devices = label.config.devices.iter();
                (devices.map(|device| (device.guid, device.size_bytes)).collect(), None)
            }
            Ok(None) => (Vec::new(), Some("its checksum is wrong".to_owned())),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let features = phys.features.iter().take(usize::from(phys.feature_count.get()));
        Self {
            version: phys.version.get(),
            pool_guid: phys.pool_guid.get(),
            pool_name: text_of(&phys.pool_name),
            device_guid: phys.device_guid.get(),
            device_number: phys.device_number.get(),
            device_count: phys.device_count.get(),
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
            features: features.take(MAX_FEATURES).map(|name| text_of(name)).collect(),
            devices,
            objection,
        }
    }
}

impl fmt::Display for LabelCopyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool_name, pool_guid, device_number, device_count, device_guid, .. } = self;
        writeln!(f, "pool:       {pool_name:?} ({pool_guid:016x}), version {}", self.version)?;
        writeln!(f, "device:     {device_number} of {device_count} ({device_guid:016x})")?;
        writeln!(f, "state:      {}", self.state)?;
        writeln!(f, "host:       {:?} ({:#x})", self.host_name, self.host_id)?;
        writeln!(f, "generation: {}, txg {}", self.generation, self.txg)?;
        writeln!(f, "sectors:    {} bytes", self.sector_bytes)?;
        if !self.features.is_empty() {
            writeln!(f, "features:   {}", self.features.join(", "))?;
        }
        for (number, (guid, bytes)) in self.devices.iter().enumerate() {
            writeln!(f, "device {number}:   {bytes} bytes ({guid:016x})")?;
        }
        match &self.objection {
            Some(objection) => writeln!(f, "refused:    {objection}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for DeviceLabelsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} bytes", self.name, self.size_bytes)?;
        if let Some(what) = &self.l2_device {
            return writeln!(f, "  is {what}");
        }
        if self.labels.is_empty() {
            writeln!(f, "  is too small for a label")?;
        }
        for (offset, state) in &self.labels {
            match state {
                LabelState::Sound(label) => {
                    writeln!(f, "  label at {offset:#x}: sound")?;
                    for line in label.to_string().lines() {
                        writeln!(f, "    {line}")?;
                    }
                }
                LabelState::Damaged(what) => {
                    writeln!(f, "  label at {offset:#x}: NOT SOUND: {what}")?;
                }
                LabelState::Unreadable(why) => {
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
            let seconds = one.time_ns as f64 / 1e9;
            let root = match &one.root_problem {
                None => "its root block is there".to_owned(),
                Some(problem) => format!("its root block cannot be read: {problem}"),
            };
            writeln!(
                f,
                "txg {}: in {} of {} rings, written at {seconds:.3} s of its writer's clock, {} devices",
                one.txg, one.rings, self.rings, one.device_count
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
