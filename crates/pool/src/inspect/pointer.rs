//! Prints block pointers and bytes.

use std::fmt;

use crate::format::{BlockKind, BlockPtrPhys, Compression, Dva};
use crate::store::codec;

/// A block pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
// `serialize` makes a hole null, and calls what this derives for other pointers.
#[cfg_attr(feature = "serde", serde(remote = "Self"))]
pub struct BlockPtrInfo {
    /// The address of each copy; empty for a hole.
    pub copies: Vec<Dva>,
    /// The block kind, or an unknown number.
    pub kind: String,
    /// Height in the block tree; 0 for data.
    pub level: u8,
    /// Logical bytes.
    pub logical_bytes: u32,
    /// Bytes on a device, before rounding up to sectors.
    pub physical_bytes: u32,
    /// The compression, or an unknown number.
    pub compression: String,
    /// Whether it is a gang.
    pub gang: bool,
    /// The birth txg.
    pub birth_txg: u64,
    /// Number of objects or blocks below it.
    pub fill: u64,
    /// The checksum in hexadecimal digits.
    pub checksum: String,
    /// Whether it is a hole whose blocks count as allocated, `logical_bytes` each.
    pub preallocated: bool,
    /// Why the pointer is invalid, or `None`.
    pub objection: Option<&'static str>,
}

impl BlockPtrInfo {
    pub(super) fn of(ptr: &BlockPtrPhys) -> Self {
        let unknown = |raw: u8| format!("unknown ({raw})");
        let compression = Compression::from_raw(ptr.compression);
        Self {
            copies: ptr.dvas().collect(),
            kind: ptr.block_kind().map_or_else(|| unknown(ptr.kind), |kind| name_of(kind).into()),
            level: ptr.level,
            logical_bytes: ptr.logical_bytes.get(),
            physical_bytes: ptr.physical_bytes.get(),
            compression: compression.map_or_else(
                || unknown(ptr.compression),
                |compression| compression_name(compression).into(),
            ),
            gang: ptr.is_gang(),
            birth_txg: ptr.birth_txg.get(),
            fill: ptr.fill.get(),
            checksum: ptr.checksum.iter().map(|byte| format!("{byte:02x}")).collect(),
            preallocated: ptr.is_preallocated(),
            objection: if ptr.is_hole() { None } else { codec::pointer_defect(ptr) },
        }
    }

    /// Whether it is a hole.
    pub fn is_hole(&self) -> bool {
        self.copies.is_empty()
    }
}

fn name_of(kind: BlockKind) -> &'static str {
    match kind {
        BlockKind::Data => "data",
        BlockKind::Indirect => "indirect",
        BlockKind::Dnode => "dnodes",
        BlockKind::ZapLeaf => "directory block",
        BlockKind::Space => "space map",
        BlockKind::Root => "root",
        BlockKind::Gang => "gang",
    }
}

pub(super) fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::Off => "off",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    }
}

impl fmt::Display for BlockPtrInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.preallocated {
            return write!(f, "preallocated hole of {} bytes a block", self.logical_bytes);
        }
        if self.is_hole() {
            return f.write_str("hole");
        }
        write!(f, "{} level {}", self.kind, self.level)?;
        for (at, Dva { device, offset }) in self.copies.iter().enumerate() {
            write!(f, "{}{device}:{offset:#x}", if at == 0 { " at " } else { " and " })?;
        }
        let gang = if self.gang { " in pieces" } else { "" };
        write!(
            f,
            "{gang}, {} bytes ({} packed, {}), birth {}, fill {}, sum {}",
            self.logical_bytes,
            self.physical_bytes,
            self.compression,
            self.birth_txg,
            self.fill,
            self.checksum
        )?;
        match self.objection {
            Some(objection) => write!(f, " (invalid: {objection})"),
            None => Ok(()),
        }
    }
}

/// Prints bytes as a hex dump of 16 bytes per line. A star stands for repeated lines.
#[derive(Clone, Copy, Debug)]
pub struct Hexdump<'a> {
    /// Offset of the first byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl fmt::Display for Hexdump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINE: usize = 16;
        let (mut before, mut starred) = (None, false);
        let lines = self.bytes.len().div_ceil(LINE);
        for (number, line) in self.bytes.chunks(LINE).enumerate() {
            if before.replace(line) == Some(line) && number + 1 < lines {
                if !std::mem::replace(&mut starred, true) {
                    writeln!(f, "*")?;
                }
                continue;
            }
            starred = false;
            write!(f, "{:08x} ", self.offset + (number * LINE) as u64)?;
            for at in 0..LINE {
                match line.get(at) {
                    Some(byte) => write!(f, " {byte:02x}")?,
                    None => write!(f, "   ")?,
                }
            }
            let text = line.iter().map(|byte| match byte {
                0x20..=0x7e => char::from(*byte),
                _ => '.',
            });
            writeln!(f, "  |{}|", text.collect::<String>())?;
        }
        Ok(())
    }
}
