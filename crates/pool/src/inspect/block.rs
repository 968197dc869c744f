//! Shows a block, addressed by object or by device address.

use std::fmt;

use forebay_cache::Attributes;
use zerocopy::FromBytes;

use super::labels::read_at;
use super::pointer::{BlockPtrInfo, Hexdump};
use super::{BlockOwner, Inspected, Inspector, ObjsetName};
use crate::error::{Error, ErrorKind, Result};
use crate::format::gang::GANG_MAGIC;
use crate::format::label::{LABEL_MAGIC, LabelPhys, SLOT_BYTES, UBERBLOCK_MAGIC, UberblockPhys};
use crate::format::{LOG_BLOCK_MAGIC, ROOT_MAGIC, SPACE_BLOCK_MAGIC, ZAP_LEAF_MAGIC};
use crate::object::DataFields;
use crate::object::tree::{self, Tree};
use crate::store::codec::MAX_LOGICAL_BYTES;
use crate::wait::Wait;

/// A copy of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CopyInfo {
    /// Number of the top-level vdev.
    pub device: u16,
    /// Which device of a mirror.
    pub side: u8,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Why the copy is bad, or `None`.
    pub problem: Option<String>,
}

/// A block of an object or of an object set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BlockInfo {
    /// Block number.
    pub block: u64,
    /// The pointer to the block.
    pub pointer: BlockPtrInfo,
    /// Its copies; empty for a hole.
    pub copies: Vec<CopyInfo>,
    /// Its decompressed content, if a copy is good.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::hex_if_any"))]
    pub content: Option<Vec<u8>>,
}

/// Bytes of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceBytes {
    /// The path of the device.
    pub device: String,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// The probable type of the bytes, judged by their magic.
    pub seems: Option<String>,
    /// The bytes.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::hex"))]
    pub bytes: Vec<u8>,
}

impl Inspector {
    /// Returns a block of an object, or of an object set itself, as of a txg or the newest one.
    /// `level` selects the block at that level that leads to `block`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such object, block or level; as [`txg`](Self::txg).
    pub fn block(
        &self,
        set: ObjsetName<'_>,
        of: BlockOwner,
        (block, level): (u64, u8),
        txg: Option<u64>,
    ) -> Result<Inspected<BlockInfo>> {
        self.inspect_as_of(txg, |view| {
            let found = view.set(set)?;
            let tree = match of {
                BlockOwner::Dnodes => found.tree,
                BlockOwner::Object(number) => {
                    let doing = |error: Error| error.doing(format_args!("{set}, object {number}"));
                    DataFields::tree_of(&found.dnode(number)?).map_err(doing)?
                }
            };
            check_place(&tree, block, level)?;
            let ptr = tree::descend(&view.store, &tree, block, level, Wait::Allowed)?;
            let copies = view.store.copies(&ptr).into_iter().map(|(place, read)| CopyInfo {
                device: place.dva.device,
                side: place.leaf,
                offset: place.dva.offset,
                problem: read.err().map(|error| error.to_string()),
            });
            let copies: Vec<CopyInfo> = copies.collect();
            let content = match ptr.is_hole() {
                true => None,
                false => view.store.read(&ptr, Attributes::METADATA.once()).ok(),
            };
            let damaged = copies.iter().any(|copy| copy.problem.is_some());
            let content = content.map(|content| content.to_vec());
            let pointer = BlockPtrInfo::of(&ptr);
            Ok((BlockInfo { block, pointer, copies, content }, damaged))
        })
    }

    /// Returns bytes of a device. `device` is its number in the pool, or its index among the given
    /// devices if no pool can be assembled.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such device, [`ErrorKind::Invalid`] if the range is
    /// empty, too long or not on the device, [`ErrorKind::Device`].
    pub fn bytes(&self, device: u16, offset: u64, len: u64) -> Result<DeviceBytes> {
        let member = match self.assemble(None) {
            Ok(assembled) => {
                // Of a mirror, the first side that is there.
                let vdev = assembled.devices.get(device);
                let leaf = vdev.and_then(|vdev| vdev.leaves().find(|(_, one)| !one.is_missing()));
                leaf.map(|(_, leaf)| leaf.device().clone())
            }
            Err(_) => self.devices.get(usize::from(device)).cloned(),
        };
        let Some(member) = member else {
            let text = format!("there is no device {device}");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let info = member.info();
        let end = offset.checked_add(len).filter(|end| *end <= info.size_bytes);
        if len == 0 || len > MAX_LOGICAL_BYTES as u64 || end.is_none() {
            let text = format!(
                "{len} bytes at {offset:#x}: use 1 to {MAX_LOGICAL_BYTES} bytes within the {} bytes of {}",
                info.size_bytes, info.name
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let sector = u64::from(info.sector_bytes);
        let start = offset / sector * sector;
        let whole = (offset + len).next_multiple_of(sector) - start;
        let read = read_at(&*member, start, whole as usize, &self.cache)
            .map_err(|text| Error::new(ErrorKind::Device, text))?;
        let skipped = (offset - start) as usize;
        let bytes = read[skipped..skipped + len as usize].to_vec();
        Ok(DeviceBytes { device: info.name.to_string(), offset, seems: seems(&bytes), bytes })
    }
}

fn check_place(tree: &Tree, block: u64, level: u8) -> Result<()> {
    if level < tree.levels && block < tree::capacity(tree.levels) {
        return Ok(());
    }
    let text = format!(
        "block {block} at level {level}: there are {} levels, and blocks up to {}",
        tree.levels,
        tree::capacity(tree.levels)
    );
    Err(Error::new(ErrorKind::NotFound, text))
}

/// Guesses the type of bytes.
fn seems(bytes: &[u8]) -> Option<String> {
    let at = |from: usize| bytes.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
    let sum = |sound: Option<bool>| match sound {
        Some(true) => "whose checksum is right",
        Some(false) => "WHOSE CHECKSUM IS WRONG",
        None => "too short to check its checksum",
    };
    let slot = bytes.get(..SLOT_BYTES);
    match (at(0), at(16)) {
        (Some(LABEL_MAGIC), _) => {
            let sound = slot.and_then(|slot| LabelPhys::ref_from_bytes(slot).ok());
            return Some(format!("a label, {}", sum(sound.map(LabelPhys::is_sound))));
        }
        (Some(UBERBLOCK_MAGIC), _) => {
            let sound = slot.and_then(|slot| UberblockPhys::ref_from_bytes(slot).ok());
            return Some(format!("an uberblock, {}", sum(sound.map(UberblockPhys::is_sound))));
        }
        (Some(ROOT_MAGIC), _) => return Some("a root block".to_owned()),
        (_, Some(LOG_BLOCK_MAGIC)) => return Some("a block of the intent log".to_owned()),
        _ => {}
    }
    match (at(0).map(|first| first as u32), at(16).map(|second| second as u32)) {
        (Some(ZAP_LEAF_MAGIC), _) => Some("a leaf of a directory".to_owned()),
        (Some(SPACE_BLOCK_MAGIC), _) => Some("a block of the space maps".to_owned()),
        (_, Some(GANG_MAGIC)) => Some("a gang block".to_owned()),
        _ if bytes.iter().all(|byte| *byte == 0) => Some("zeros".to_owned()),
        _ => None,
    }
}

impl fmt::Display for BlockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "block {}: {}", self.block, self.pointer)?;
        for copy in &self.copies {
            let state = copy.problem.as_deref().unwrap_or("checksum right");
            let side = match copy.side {
                0 => String::new(),
                side => format!(", side {side}"),
            };
            writeln!(f, "copy at {}:{:#x}{side}: {state}", copy.device, copy.offset)?;
        }
        match &self.content {
            Some(bytes) => write!(f, "{}", Hexdump { offset: 0, bytes }),
            None if self.pointer.is_hole() => Ok(()),
            None => writeln!(f, "no good copy"),
        }
    }
}

impl fmt::Display for DeviceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, offset, seems, bytes } = self;
        writeln!(f, "{device}, {} bytes at {offset:#x}", bytes.len())?;
        if let Some(seems) = seems {
            writeln!(f, "seems to be {seems}")?;
        }
        write!(f, "{}", Hexdump { offset: *offset, bytes })
    }
}
