//! Reads a directory from its bytes on a device, for the inspector. Uses no object, no lock and no
//! cache.

use super::entry::Value;
use super::filter;
use super::leaf::{Leaf, LeafDefect};
use super::stats::{LeafStats, ZapStats};
use super::{DirectoryForm, read_form};
use crate::format::ZapBlock;
use crate::{Error, ErrorKind, Result};

/// The inline content of a directory.
pub(crate) struct InlineInfo {
    /// Seed of the name hash.
    pub(crate) seed: u64,
    /// Statistics without the leaves. For a fat directory, `depth`, `entries`, `by_depth`,
    /// `buffered` and `pages` are taken from the header.
    pub(crate) stats: ZapStats,
    /// The entries of a micro directory.
    pub(crate) entries: Vec<(Box<[u8]>, Value)>,
    /// Whether the entries are in leaves.
    pub(crate) is_fat: bool,
}

impl InlineInfo {
    /// Reads the inline content of a dnode. No content is an empty directory.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the content is not a directory's.
    pub(crate) fn read(content: &[u8]) -> Result<Self> {
        let stats = ZapStats::default();
        if content.is_empty() {
            return Ok(Self { seed: 0, stats, entries: Vec::new(), is_fat: false });
        }
        let (seed, form) =
            read_form(content.to_vec()).map_err(|defect| corrupt("its header", defect))?;
        match form {
            DirectoryForm::Micro(micro) => {
                let entries = micro.sorted().into_iter().map(|entry| {
                    let value =
                        entry.record.value().map_err(|defect| corrupt("an entry", defect))?;
                    Ok((entry.record.name.into(), value))
                });
                let entries = entries.collect::<Result<Vec<_>>>()?;
                let (len, micro_bytes) = (micro.len() as u64, micro.content().len() as u64);
                let stats = ZapStats { entries: len, micro_bytes, ..stats };
                Ok(Self { seed, stats, entries, is_fat: false })
            }
            DirectoryForm::Fat(fat) => {
                let header = &fat.header;
                let by_depth = header.leaves_at.map(|leaves| u64::from(leaves.get()));
                let (entries, depth) = (header.entries.get(), header.depth);
                let (buffered, pages) = (header.buffered.get(), u64::from(header.pages.get()));
                let stats = ZapStats { entries, depth, by_depth, buffered, pages, ..stats };
                Ok(Self { seed, stats, entries: Vec::new(), is_fat: true })
            }
        }
    }
}

/// Validates a block of a directory completely and adds it to the statistics. `seed` is the
/// directory's.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the first defect; the block is not counted then.
pub(crate) fn count_block(
    stats: &mut ZapStats,
    block: ZapBlock,
    bytes: &[u8],
    seed: u64,
) -> Result<()> {
    if let ZapBlock::Filter(_) = block {
        if !filter::is_block(bytes) {
            return Err(corrupt("a filter block", LeafDefect("it is not one")));
        }
        stats.filter_blocks += 1;
        stats.filter_bytes += bytes.len() as u64;
        return Ok(());
    }
    let counted = Leaf::read(bytes).and_then(|leaf| LeafStats::of(&leaf, Some(seed)));
    let counted = counted.map_err(|defect| corrupt("a leaf", defect))?;
    match block {
        ZapBlock::Page(_) => stats.add_page(&counted),
        _ => stats.add(&counted),
    }
    Ok(())
}

/// The entries of a block of a directory: a filter block has none.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the first defect.
pub(crate) fn block_entries(block: ZapBlock, bytes: &[u8]) -> Result<Vec<(Box<[u8]>, Value)>> {
    if let ZapBlock::Filter(_) = block {
        return Ok(Vec::new());
    }
    let leaf = Leaf::read(bytes).map_err(|defect| corrupt("a leaf", defect))?;
    let entries = leaf.entries_from(0).map(|entry| {
        let (_, record) = entry?;
        Ok((record.name.into(), record.value()?))
    });
    entries.collect::<Result<_, LeafDefect>>().map_err(|defect| corrupt("a leaf", defect))
}

#[cold]
fn corrupt(what: &str, LeafDefect(defect): LeafDefect) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}: {defect}"))
}
