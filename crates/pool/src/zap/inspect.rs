//! Reads a directory from its bytes on a device, for the inspector. Uses no object, no lock and no
//! cache.

use super::entry::Value;
use super::leaf::{Leaf, LeafDefect};
use super::stats::{LeafStats, ZapStats};
use super::{DirectoryForm, read_form};
use crate::{Error, ErrorKind, Result};

/// The inline content of a directory.
pub(crate) struct InlineInfo {
    /// Seed of the name hash.
    pub(crate) seed: u64,
    /// Statistics without the leaves. For a fat directory, `depth`, `entries` and `by_depth` are
    /// taken from the header.
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
                let stats = ZapStats { entries, depth, by_depth, ..stats };
                Ok(Self { seed, stats, entries: Vec::new(), is_fat: true })
            }
        }
    }
}

/// Validates a leaf completely and adds it to the statistics. `seed` is the directory's.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the first defect; the leaf is not counted then.
pub(crate) fn count_leaf(stats: &mut ZapStats, bytes: &[u8], seed: u64) -> Result<()> {
    let counted = Leaf::read(bytes).and_then(|leaf| LeafStats::of(&leaf, Some(seed)));
    stats.add(&counted.map_err(|defect| corrupt("a leaf", defect))?);
    Ok(())
}

/// The entries of a leaf.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the first defect.
pub(crate) fn leaf_entries(bytes: &[u8]) -> Result<Vec<(Box<[u8]>, Value)>> {
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
