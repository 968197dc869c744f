//! Labels: they identify a device and its pool, and point to the pool's newest root.
//!
//! A label of [`LABEL_BYTES`] lies at each end of a device: a configuration block at its start, the
//! tree of vdevs after it, and a ring of uberblocks at [`RING_OFFSET`]. The rest is zeros.
//!
//! Magic, version and checksum of a configuration block lie where they are in every version, so
//! that each version can name the others.

use std::ops::RangeInclusive;

use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// Size and alignment of a label.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Size of the configuration block and of an uberblock slot.
pub const SLOT_BYTES: usize = 4096;
/// Offset of the heartbeat in the front label of device 0. It has physical sectors of its own.
pub const HEARTBEAT_OFFSET: u64 = 64 << 10;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Number of ring slots. The uberblock of a txg lies in slot `txg % RING_SLOTS`.
pub const RING_SLOTS: u64 = 32;
/// Sector sizes of a pool, in bytes: powers of two within this range.
pub const SECTOR_BYTES: RangeInclusive<u32> = 512..=4096;
/// Minimum size of a device.
pub const MIN_DEVICE_BYTES: u64 = 16 << 20;
/// Maximum length of a pool or host name.
pub const NAME_BYTES: usize = 64;
/// Maximum number of devices of a pool: leaves of its tree.
pub const MAX_LEAVES: usize = 255;
/// Maximum number of top-level vdevs of a pool.
pub const MAX_VDEVS: usize = MAX_LEAVES;
/// Maximum number of features of a label.
pub const MAX_FEATURES: usize = 64;
/// Maximum length of a feature's name.
pub const FEATURE_BYTES: usize = 32;
/// Maximum number of nodes of the tree: the root, the devices, and the mirrors of two or more.
pub const MAX_NODES: usize = 384;
/// Offset of the tree in a label.
pub const TREE_OFFSET: u64 = SLOT_BYTES as u64;
/// Maximum size of the tree.
pub const TREE_BYTES: usize = MAX_NODES * size_of::<NodePhys>();
/// The only version that this code writes and reads.
pub const VERSION: u32 = 6;
/// First bytes of a configuration block: "forebay" and the byte 1.
pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"forebay\x01");
/// First bytes of a heartbeat: "forebeat".
pub const HEARTBEAT_MAGIC: u64 = u64::from_le_bytes(*b"forebeat");
/// First bytes of an uberblock: "foreuber".
pub const UBERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"foreuber");
/// Parent of the root node.
pub const NO_PARENT: u16 = u16::MAX;
/// [`LabelPhys::state`] of an exported pool.
pub const STATE_EXPORTED: u8 = 0;
/// [`LabelPhys::state`] of an imported pool.
pub const STATE_ACTIVE: u8 = 1;

const _: () = assert!(RING_OFFSET + RING_SLOTS * SLOT_BYTES as u64 <= LABEL_BYTES);

/// Kind of a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// Blocks are striped over its children, the top-level vdevs.
    Root = 1,
    /// A device.
    Device = 2,
    /// Each of its children, which are devices, has all blocks.
    Mirror = 3,
    /// A prefix of an object store: a device that takes each address once.
    ObjectStore = 4,
}

impl NodeKind {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Root, Self::Device, Self::Mirror, Self::ObjectStore];
        all.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// [`NodePhys::class`] of vdevs that hold the blocks of the pool.
pub const CLASS_DATA: u8 = 0;
/// [`NodePhys::class`] of the vdev that holds the intent log.
pub const CLASS_LOG: u8 = 1;
/// The number of a log vdev has this bit.
pub const LOG_VDEV: u16 = 1 << 15;

/// State of a device of the tree, as far as labels record it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum StoredState {
    /// It is used if it is there.
    #[default]
    Online = 0,
    /// It failed, and is not used.
    Faulted = 1,
    /// It was taken out of use.
    Offline = 2,
    /// It was not there when the pool was imported.
    Missing = 3,
}

impl StoredState {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Online, Self::Faulted, Self::Offline, Self::Missing];
        all.into_iter().find(|state| *state as u8 == raw)
    }
}

/// A node of the tree of vdevs.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NodePhys {
    /// The GUID of the node.
    pub guid: U64,
    /// Bytes of the device that the pool uses, labels included; 0 for other nodes.
    pub size_bytes: U64,
    /// Index of its parent among the nodes, which precedes it; [`NO_PARENT`] for the first.
    pub parent: U16,
    /// Number of the top-level vdev that it is or belongs to, as in addresses.
    pub number: U16,
    /// A [`NodeKind`]; 0 for unused nodes.
    pub kind: u8,
    /// [`CLASS_DATA`] or [`CLASS_LOG`].
    pub class: u8,
    /// Of a device, a [`StoredState`].
    pub state: u8,
    /// Of a device, log2 of its sector size.
    pub sector_shift: u8,
    /// Of a device, the first txg of which it misses blocks; 0 if it misses none.
    pub missed_from: U64,
    /// Of a device, the last such txg; `u64::MAX` if it still misses those that are written.
    pub missed_to: U64,
    /// Reads of the device that failed.
    pub read_errors: U64,
    /// Writes and flushes of the device that failed.
    pub write_errors: U64,
    /// Blocks of the device with a wrong checksum.
    pub checksum_errors: U64,
}

const _: () = assert!(size_of::<NodePhys>() == 64);
const _: () = assert!(TREE_BYTES.is_multiple_of(SLOT_BYTES));
const _: () = assert!(TREE_OFFSET + TREE_BYTES as u64 <= HEARTBEAT_OFFSET);
const _: () = assert!(MAX_NODES > MAX_LEAVES + MAX_LEAVES / 2);

/// What a build that does not know a feature may do with a pool that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FeatureClass {
    /// Anything.
    Compatible = 1,
    /// Only read.
    ReadOnlyCompatible = 2,
    /// Nothing.
    Incompatible = 3,
}

impl FeatureClass {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Compatible, Self::ReadOnlyCompatible, Self::Incompatible];
        all.into_iter().find(|class| *class as u8 == raw)
    }
}

/// A feature that is enabled; it is active if something uses it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FeaturePhys {
    /// Its name, zero-padded.
    pub name: [u8; FEATURE_BYTES],
    /// A [`FeatureClass`].
    pub class: u8,
    /// Zeros.
    pub reserved: [u8; 7],
    /// How many things use it.
    pub uses: U64,
}

const _: () = assert!(size_of::<FeaturePhys>() == 48);

/// The configuration block: the pool's configuration and the device's identity.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LabelPhys {
    /// [`LABEL_MAGIC`].
    pub magic: U64,
    /// Format version, [`VERSION`].
    pub version: U32,
    /// The pool's sector size in bytes.
    pub sector_bytes: U32,
    /// The GUID of the pool.
    pub pool_guid: U64,
    /// The GUID of this device.
    pub device_guid: U64,
    /// Incremented with each change of the configuration.
    pub generation: U64,
    /// The newest durable txg when it was written.
    pub txg: U64,
    /// The id of the host that has the pool imported, or had it last.
    pub host_id: U64,
    /// Number of the top-level vdev that this device is or belongs to.
    pub vdev_number: U16,
    /// Number of top-level vdevs of the pool.
    pub vdev_count: U16,
    /// Number of nodes of the tree.
    pub node_count: U16,
    /// Number of used features.
    pub feature_count: U16,
    /// [`STATE_EXPORTED`] or [`STATE_ACTIVE`].
    pub state: u8,
    /// Zeros.
    pub reserved: [u8; 47],
    /// XXH3, 128 bits, of the nodes of the tree.
    pub tree_checksum: [u8; 16],
    /// Name of the pool, zero-padded.
    pub pool_name: [u8; NAME_BYTES],
    /// Name of the host, zero-padded.
    pub host_name: [u8; NAME_BYTES],
    /// The features that are enabled.
    pub features: [FeaturePhys; MAX_FEATURES],
    /// Zeros.
    pub unused: [u8; 752],
    /// XXH3, 128 bits, of all bytes before it.
    pub checksum: [u8; 16],
}

const _: () = assert!(size_of::<LabelPhys>() == SLOT_BYTES);

/// An uberblock: the root of the pool as of one txg.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UberblockPhys {
    /// [`UBERBLOCK_MAGIC`].
    pub magic: U64,
    /// Format version, [`VERSION`].
    pub version: U32,
    /// Number of top-level vdevs of the pool: those with smaller numbers.
    pub vdev_count: U32,
    /// The GUID of the pool.
    pub pool_guid: U64,
    /// The txg.
    pub txg: U64,
    /// Time of the write in nanoseconds since 1970, by the clock of the writer; for information.
    pub time_ns: U64,
    /// The root block.
    pub root: BlockPtrPhys,
    /// The txg that this one follows: older than the one before, after an import that went back. 0
    /// for the first.
    pub previous_txg: U64,
    /// Zeros.
    pub reserved: [u8; 3968],
    /// XXH3, 128 bits, of all bytes before it.
    pub checksum: [u8; 16],
}

const _: () = assert!(size_of::<UberblockPhys>() == SLOT_BYTES);

/// The heartbeat of the process that has the pool imported.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeartbeatPhys {
    /// [`HEARTBEAT_MAGIC`].
    pub magic: U64,
    /// Milliseconds between two heartbeats; 0 if they are off, and only the import wrote this.
    pub interval_ms: U32,
    /// Zeros.
    pub reserved_0: U32,
    /// The GUID of the pool.
    pub pool_guid: U64,
    /// Random, new at each import.
    pub session: U64,
    /// Incremented with each heartbeat.
    pub sequence: U64,
    /// The host, for messages; 0 if unknown.
    pub host_id: U64,
    /// Hash of the boot id of the host's kernel; 0 if unknown.
    pub boot: U64,
    /// Hash of the file or block device that the process has locked; 0 if none.
    pub lock: U64,
    /// Name of the host, for messages.
    pub host_name: [u8; NAME_BYTES],
    /// Zeros.
    pub reserved: [u8; 3952],
    /// XXH3, 128 bits, of all bytes before it.
    pub checksum: [u8; 16],
}

const _: () = assert!(size_of::<HeartbeatPhys>() == SLOT_BYTES);
const _: () = assert!(HEARTBEAT_OFFSET + SLOT_BYTES as u64 <= RING_OFFSET);

impl HeartbeatPhys {
    /// All zeros except the magic.
    pub fn empty() -> Self {
        let zeros = [0_u8; SLOT_BYTES];
        let mut heartbeat: Self = zerocopy::transmute!(zeros);
        heartbeat.magic = U64::new(HEARTBEAT_MAGIC);
        heartbeat
    }

    /// Sets the checksum.
    pub fn seal(&mut self) {
        self.checksum = slot_checksum(self.as_bytes());
    }

    /// Whether magic and checksum are correct.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == HEARTBEAT_MAGIC && self.checksum == slot_checksum(self.as_bytes())
    }
}

/// Checksum of the nodes of a tree.
pub fn tree_checksum(nodes: &[NodePhys]) -> [u8; 16] {
    xxh3_128(nodes.as_bytes()).to_le_bytes()
}

/// Checksum of a slot: of all bytes before the checksum field.
fn slot_checksum(slot: &[u8]) -> [u8; 16] {
    xxh3_128(&slot[..slot.len() - 16]).to_le_bytes()
}

impl LabelPhys {
    /// All zeros except magic and version.
    pub fn empty() -> Self {
        let zeros = [0_u8; SLOT_BYTES];
        let mut label: Self = zerocopy::transmute!(zeros);
        label.magic = U64::new(LABEL_MAGIC);
        label.version = U32::new(VERSION);
        label
    }

    /// Sets the checksum.
    pub fn seal(&mut self) {
        self.checksum = slot_checksum(self.as_bytes());
    }

    /// Whether magic and checksum are correct. The tree has a checksum of its own.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == LABEL_MAGIC && self.checksum == slot_checksum(self.as_bytes())
    }
}

impl UberblockPhys {
    /// All zeros except magic and version.
    pub fn empty() -> Self {
        let zeros = [0_u8; SLOT_BYTES];
        let mut uberblock: Self = zerocopy::transmute!(zeros);
        uberblock.magic = U64::new(UBERBLOCK_MAGIC);
        uberblock.version = U32::new(VERSION);
        uberblock
    }

    /// Sets the checksum.
    pub fn seal(&mut self) {
        self.checksum = slot_checksum(self.as_bytes());
    }

    /// Whether magic and checksum are correct.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == UBERBLOCK_MAGIC && self.checksum == slot_checksum(self.as_bytes())
    }
}
