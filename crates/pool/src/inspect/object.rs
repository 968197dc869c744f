//! Shows an object: its dnode, and the levels of its block tree.

use std::fmt;
use std::ops::ControlFlow;

use super::pointer::{BlockPtrInfo, Hexdump};
use super::{Damage, Inspected, Inspector, ObjsetName};
use crate::error::Result;
use crate::format::{BlockPtrPhys, DnodePhys, ObjectKind};
use crate::object::DataFields;

/// Maximum number of data block pointers shown.
const SHOWN: usize = 16;

/// The blocks of a tree level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TreeLevelInfo {
    /// 0 for data blocks.
    pub level: u8,
    /// Number of blocks, without holes.
    pub blocks: u64,
    /// Their logical bytes.
    pub logical_bytes: u64,
    /// Bytes of one copy of each on devices, before rounding up to sectors.
    pub physical_bytes: u64,
    /// Bytes of all copies, in whole sectors. A gang takes a little more.
    pub allocated_bytes: u64,
    /// Number of compressed blocks.
    pub compressed: u64,
    /// Number of gangs.
    pub gangs: u64,
    /// The oldest birth txg.
    pub oldest_birth: u64,
    /// The newest birth txg.
    pub newest_birth: u64,
}

/// A data block that is not a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FirstBlockInfo {
    /// Block number.
    pub block: u64,
    /// The pointer to the block.
    pub pointer: BlockPtrInfo,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DnodeInfo {
    /// Its number.
    pub number: u64,
    /// "bytes", "directory", "dataset", or an unknown number.
    pub kind: String,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// Record size in bytes; 0 if it is invalid.
    pub record_bytes: u64,
    /// Number of blocks before its end.
    pub blocks: u64,
    /// Bytes on devices, all copies and indirect blocks, as stored in its dnode.
    pub allocated_bytes: u64,
    /// The txg that created it.
    pub created_txg: u64,
    /// Its attributes.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::hex"))]
    pub attributes: Vec<u8>,
    /// Its inline content.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::hex"))]
    pub inline: Vec<u8>,
    /// Height of its block tree.
    pub tree_levels: u8,
    /// The root of its block tree.
    pub root: BlockPtrInfo,
    /// The levels of its block tree, topmost first.
    pub levels: Vec<TreeLevelInfo>,
    /// The first data blocks that are not holes.
    pub first: Vec<FirstBlockInfo>,
    /// Unreadable parts of the tree. Data blocks are not read.
    pub damage: Damage,
}

impl Inspector {
    /// Returns an object as of a txg or the newest one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); as [`txg`](Self::txg).
    pub fn object(
        &self,
        set: ObjsetName<'_>,
        number: u64,
        txg: Option<u64>,
    ) -> Result<Inspected<DnodeInfo>> {
        self.inspect_as_of(txg, |view| {
            let dnode = view.set(set)?.dnode(number)?;
            let mut info = DnodeInfo::of(number, &dnode);
            match DataFields::of(&dnode) {
                Err(error) => info.damage.note(error),
                Ok(data) => {
                    let (mut damage, sector) = (Damage::default(), view.store.sector_bytes());
                    view.walk(&data.tree, &mut damage, &mut |ptr, block| {
                        info.count(ptr, block, sector);
                        ControlFlow::Continue(())
                    });
                    info.damage = damage;
                }
            }
            info.levels.retain(|level| level.blocks > 0);
            info.levels.reverse();
            let damaged = !info.damage.is_empty();
            Ok((info, damaged))
        })
    }
}

impl DnodeInfo {
    fn of(number: u64, dnode: &DnodePhys) -> Self {
        Self {
            number,
            kind: match dnode.object_kind() {
                Some(ObjectKind::Free) => "free".to_owned(),
                Some(ObjectKind::Data) => "bytes".to_owned(),
                Some(ObjectKind::Zap) => "directory".to_owned(),
                Some(ObjectKind::Dataset) => "dataset".to_owned(),
                None => format!("unknown ({})", dnode.kind),
            },
            size_bytes: dnode.size_bytes.get(),
            record_bytes: 1u64.checked_shl(u32::from(dnode.record_shift)).unwrap_or(0),
            blocks: dnode.blocks.get(),
            allocated_bytes: dnode.allocated_bytes.get(),
            created_txg: dnode.created_txg.get(),
            attributes: dnode.attributes().to_vec(),
            inline: dnode.inline().to_vec(),
            tree_levels: dnode.levels,
            root: BlockPtrInfo::of(&dnode.root),
            levels: Vec::new(),
            first: Vec::new(),
            damage: Damage::default(),
        }
    }

    fn count(&mut self, ptr: &BlockPtrPhys, block: u64, sector: u64) {
        let level = usize::from(ptr.level);
        while self.levels.len() <= level {
            let level = self.levels.len() as u8;
            self.levels.push(TreeLevelInfo {
                level,
                oldest_birth: u64::MAX,
                ..TreeLevelInfo::default()
            });
        }
        let sums = &mut self.levels[level];
        sums.blocks += 1;
        sums.logical_bytes += u64::from(ptr.logical_bytes.get());
        sums.physical_bytes += u64::from(ptr.physical_bytes.get());
        sums.allocated_bytes += ptr.allocated_bytes(sector) * ptr.copy_count() as u64;
        sums.compressed += u64::from(ptr.compression != 0);
        sums.gangs += u64::from(ptr.is_gang());
        let birth = ptr.birth_txg.get();
        sums.oldest_birth = sums.oldest_birth.min(birth);
        sums.newest_birth = sums.newest_birth.max(birth);
        if level == 0 && self.first.len() < SHOWN {
            self.first.push(FirstBlockInfo { block, pointer: BlockPtrInfo::of(ptr) });
        }
    }
}

impl fmt::Display for TreeLevelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "level {}: {} blocks, {} bytes ({} packed), {} on devices in all copies, {} compressed, {} in pieces, born in {} to {}",
            self.level,
            self.blocks,
            self.logical_bytes,
            self.physical_bytes,
            self.allocated_bytes,
            self.compressed,
            self.gangs,
            self.oldest_birth,
            self.newest_birth
        )
    }
}

impl fmt::Display for DnodeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "object {}: {}, created in txg {}", self.number, self.kind, self.created_txg)?;
        writeln!(f, "    size:     {} bytes in records of {}", self.size_bytes, self.record_bytes)?;
        writeln!(
            f,
            "    blocks:   {} before the end, {} bytes on devices",
            self.blocks, self.allocated_bytes
        )?;
        writeln!(f, "    root:     {} levels, {}", self.tree_levels, self.root)?;
        writeln!(f, "    inline:   {} bytes", self.inline.len())?;
        writeln!(f, "    attributes: {} bytes", self.attributes.len())?;
        for line in (Hexdump { offset: 0, bytes: &self.attributes }).to_string().lines() {
            writeln!(f, "        {line}")?;
        }
        for level in &self.levels {
            writeln!(f, "    {level}")?;
        }
        for FirstBlockInfo { block, pointer } in &self.first {
            writeln!(f, "    block {block}: {pointer}")?;
        }
        write!(f, "{}", self.damage)
    }
}
