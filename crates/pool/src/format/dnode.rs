//! Dnodes: the metadata of an object, in 512 bytes.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// Size of a dnode.
pub const DNODE_BYTES: usize = 512;
/// Size of a block of dnodes.
pub const DNODE_BLOCK_BYTES: usize = 16 << 10;
/// Number of dnodes in a block.
pub const DNODES_PER_BLOCK: usize = DNODE_BLOCK_BYTES / DNODE_BYTES;
/// Space for attributes (from the front) and inline content (from the end).
pub const TAIL_BYTES: usize = 384;
/// Maximum size of attributes. The rest of the tail is enough for the inline content of any fat
/// directory.
pub const ATTRIBUTES_MAX: usize = 224;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// The dnode is free.
    Free = 0,
    /// Data.
    Data = 1,
    /// A directory of names.
    Zap = 2,
    /// A dataset; its attributes are a `DatasetPhys`. Only among the pool's own objects.
    Dataset = 3,
}

impl ObjectKind {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Free,
            1 => Self::Data,
            2 => Self::Zap,
            3 => Self::Dataset,
            _ => return None,
        })
    }
}

/// A dnode. All zeros is a free one.
///
/// It has two writers, and a txg merges their parts. *Attribute fields* are set when an object is
/// created or its attributes or inline content change. *Data fields* are set by the sync of the
/// object's blocks; they include the entry count in the inline content of a fat directory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DnodePhys {
    /// An [`ObjectKind`]. Attribute field.
    pub kind: u8,
    /// Log2 of the size of a record in bytes. Attribute field.
    pub record_shift: u8,
    /// Height of the tree: 0 without blocks, 1 if `root` is the only block. Data field.
    pub levels: u8,
    /// Zero.
    pub reserved_0: u8,
    /// Bytes of attributes, at the front of `tail`. Attribute field.
    pub attribute_bytes: U16,
    /// Bytes of inline content, at the end of `tail`. Attribute field.
    pub inline_bytes: U16,
    /// Length of the object in bytes. Data field.
    pub size_bytes: U64,
    /// Number of blocks before the end: one more than the last block's number. Data field.
    pub blocks: U64,
    /// Bytes allocated on devices, all copies and indirect blocks. Data field.
    pub allocated_bytes: U64,
    /// The txg that created it. Attribute field.
    pub created_txg: U64,
    /// Zeros.
    pub reserved: [u8; 24],
    /// Root of the block tree. Data field.
    pub root: BlockPtrPhys,
    /// Attributes from the front, inline content to the end.
    pub tail: [u8; TAIL_BYTES],
}

const _: () = assert!(size_of::<DnodePhys>() == DNODE_BYTES);

impl DnodePhys {
    /// A free dnode.
    pub const FREE: Self = Self {
        kind: 0,
        record_shift: 0,
        levels: 0,
        reserved_0: 0,
        attribute_bytes: U16::ZERO,
        inline_bytes: U16::ZERO,
        size_bytes: U64::ZERO,
        blocks: U64::ZERO,
        allocated_bytes: U64::ZERO,
        created_txg: U64::ZERO,
        reserved: [0; 24],
        root: BlockPtrPhys::HOLE,
        tail: [0; TAIL_BYTES],
    };

    /// Its object kind, if known.
    pub fn object_kind(&self) -> Option<ObjectKind> {
        ObjectKind::from_raw(self.kind)
    }

    /// Its attributes; empty if their length is invalid.
    pub fn attributes(&self) -> &[u8] {
        self.tail.get(..usize::from(self.attribute_bytes.get())).unwrap_or_default()
    }

    /// Its inline content; empty if its length is invalid.
    pub fn inline(&self) -> &[u8] {
        let bytes = usize::from(self.inline_bytes.get());
        TAIL_BYTES.checked_sub(bytes).map_or(&[], |start| &self.tail[start..])
    }

    /// As [`inline`](Self::inline), mutable. The length stays.
    pub fn inline_mut(&mut self) -> &mut [u8] {
        let bytes = usize::from(self.inline_bytes.get());
        TAIL_BYTES.checked_sub(bytes).map_or(&mut [], |start| &mut self.tail[start..])
    }

    /// Maximum size of inline content beside the attributes.
    pub fn inline_capacity(&self) -> usize {
        TAIL_BYTES.saturating_sub(usize::from(self.attribute_bytes.get()))
    }

    /// Sets the attributes. Returns whether they fit beside the inline content.
    #[must_use]
    pub fn set_attributes(&mut self, attributes: &[u8]) -> bool {
        let capacity = TAIL_BYTES.saturating_sub(usize::from(self.inline_bytes.get()));
        if attributes.len() > capacity {
            return false;
        }
        let old = usize::from(self.attribute_bytes.get()).min(capacity);
        self.tail[..old].fill(0);
        self.tail[..attributes.len()].copy_from_slice(attributes);
        self.attribute_bytes = U16::new(attributes.len() as u16);
        true
    }

    /// Sets the inline content. Returns whether it fits beside the attributes.
    #[must_use]
    pub fn set_inline(&mut self, inline: &[u8]) -> bool {
        if inline.len() > self.inline_capacity() {
            return false;
        }
        let old = usize::from(self.inline_bytes.get()).min(self.inline_capacity());
        self.tail[TAIL_BYTES - old..].fill(0);
        self.tail[TAIL_BYTES - inline.len()..].copy_from_slice(inline);
        self.inline_bytes = U16::new(inline.len() as u16);
        true
    }
}
