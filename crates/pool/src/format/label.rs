//! Labels: how a device says which pool it belongs to, and where the pool's newest root is.
//!
//! A label lies at both ends of a device, [`LABEL_BYTES`] each: a configuration block at its
//! beginning and a ring of uberblocks at [`RING_OFFSET`]. The rest is zeros.

use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// Size of a label, and what its place is a multiple of.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Size of the configuration block and of an uberblock's slot.
pub const SLOT_BYTES: usize = 4096;
/// Where in a label the ring of uberblocks begins.
pub const RING_OFFSET: u64 = 128 << 10;
/// Slots of the ring: the uberblock of a transaction group lies in the one that its number, modulo
/// this, says.
pub const RING_SLOTS: u64 = 32;
/// The smallest device.
pub const MIN_DEVICE_BYTES: u64 = 16 << 20;
/// Bytes of a name of a pool or host, at most.
pub const NAME_BYTES: usize = 64;
/// Devices of a pool, at most.
pub const MAX_DEVICES: usize = 64;
/// Features that a label can name.
pub const MAX_FEATURES: usize = 16;
/// Bytes of a feature's name, at most.
pub const FEATURE_BYTES: usize = 32;
/// Nodes of the tree of devices: the devices, the stripe over them, and room for groups between
/// them.
pub const MAX_NODES: usize = 80;
/// The version that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// First bytes of a configuration block: "forebay" and a one.
pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"forebay\x01");
/// First bytes of an uberblock: "foreuber".
pub const UBERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"foreuber");
/// Parent of the tree's root.
pub const NO_PARENT: u16 = u16::MAX;
/// [`LabelPhys::state`] of a pool that was exported.
pub const STATE_EXPORTED: u8 = 0;
/// [`LabelPhys::state`] of a pool that a host has imported.
pub const STATE_ACTIVE: u8 = 1;

const _: () = assert!(RING_OFFSET + RING_SLOTS * SLOT_BYTES as u64 <= LABEL_BYTES);

/// What a node of the tree of devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// Blocks lie on one or another of its children.
    Stripe = 1,
    /// A device.
    Disk = 2,
}

impl NodeKind {
    /// From its number on disk.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Stripe, Self::Disk].into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// A node of the tree of devices.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NodePhys {
    /// Names it for ever.
    pub guid: U64,
    /// Bytes of the device that the pool uses, labels included; 0 if it is none.
    pub size_bytes: U64,
    /// Place of its parent among the nodes, which comes before it; [`NO_PARENT`] for the first.
    pub parent: U16,
    /// Number of the device in the pool, as addresses say it.
    pub number: U16,
    /// A [`NodeKind`]; 0 in places that are not used.
    pub kind: u8,
    /// Zeros.
    pub reserved: [u8; 11],
}

const _: () = assert!(size_of::<NodePhys>() == 32);

/// The configuration block: what a device says of the pool and of itself.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LabelPhys {
    /// [`LABEL_MAGIC`].
    pub magic: U64,
    /// [`VERSION`] of who wrote it.
    pub version: U32,
    /// Size of the pool's sectors.
    pub sector_bytes: U32,
    /// Names the pool for ever.
    pub pool_guid: U64,
    /// Names this device for ever.
    pub device_guid: U64,
    /// Grows with each change of the configuration.
    pub generation: U64,
    /// A transaction group that was durable when this was written.
    pub txg: U64,
    /// Names the host that has the pool imported, or had it last.
    pub host_id: U64,
    /// Number of this device in the pool.
    pub device_number: U16,
    /// Devices of the pool.
    pub device_count: U16,
    /// Nodes that are used, from the front.
    pub node_count: U16,
    /// Features that are named, from the front.
    pub feature_count: U16,
    /// [`STATE_EXPORTED`] or [`STATE_ACTIVE`].
    pub state: u8,
    /// Zeros.
    pub reserved: [u8; 63],
    /// Name of the pool, zeros after it.
    pub pool_name: [u8; NAME_BYTES],
    /// Name of the host, zeros after it.
    pub host_name: [u8; NAME_BYTES],
    /// Names of features that a reader must know, zeros after each.
    pub features: [[u8; FEATURE_BYTES]; MAX_FEATURES],
    /// The tree of devices; the first is its root.
    pub nodes: [NodePhys; MAX_NODES],
    /// Zeros.
    pub unused: [u8; 752],
    /// XXH3, 128 bits, of all before it.
    pub checksum: [u8; 16],
}

const _: () = assert!(size_of::<LabelPhys>() == SLOT_BYTES);

/// An uberblock: the root of the pool as of one transaction group.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UberblockPhys {
    /// [`UBERBLOCK_MAGIC`].
    pub magic: U64,
    /// [`VERSION`] of who wrote it.
    pub version: U32,
    /// Devices that the pool had: those with smaller numbers.
    pub device_count: U32,
    /// The pool's.
    pub pool_guid: U64,
    /// The transaction group.
    pub txg: U64,
    /// When it was written, by the clock of whoever did; for people.
    pub time_ns: U64,
    /// The root block.
    pub root: BlockPtrPhys,
    /// Zeros.
    pub reserved: [u8; 3976],
    /// XXH3, 128 bits, of all before it.
    pub checksum: [u8; 16],
}

const _: () = assert!(size_of::<UberblockPhys>() == SLOT_BYTES);

/// The checksum of a slot: of all but its own bytes, which are the last.
fn slot_checksum(slot: &[u8]) -> [u8; 16] {
    xxh3_128(&slot[..slot.len() - 16]).to_le_bytes()
}

impl LabelPhys {
    /// All zeros but for magic and version.
    pub fn empty() -> Self {
        let zeros = [0_u8; SLOT_BYTES];
        let mut label: Self = zerocopy::transmute!(zeros);
        label.magic = U64::new(LABEL_MAGIC);
        label.version = U32::new(VERSION);
        label
    }

    /// Sets the checksum to what it must be.
    pub fn seal(&mut self) {
        self.checksum = slot_checksum(self.as_bytes());
    }

    /// Whether magic and checksum are right.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == LABEL_MAGIC && self.checksum == slot_checksum(self.as_bytes())
    }
}

impl UberblockPhys {
    /// All zeros but for magic and version.
    pub fn empty() -> Self {
        let zeros = [0_u8; SLOT_BYTES];
        let mut uberblock: Self = zerocopy::transmute!(zeros);
        uberblock.magic = U64::new(UBERBLOCK_MAGIC);
        uberblock.version = U32::new(VERSION);
        uberblock
    }

    /// Sets the checksum to what it must be.
    pub fn seal(&mut self) {
        self.checksum = slot_checksum(self.as_bytes());
    }

    /// Whether magic and checksum are right.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == UBERBLOCK_MAGIC && self.checksum == slot_checksum(self.as_bytes())
    }
}
