//! Shows a directory: counts and histograms of its leaves, without damaged ones.

use std::fmt;
use std::ops::ControlFlow;

use forebay_cache::Attributes;

use super::{Damage, Inspected, Inspector, ObjsetName};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{ObjectKind, ZapBlock};
use crate::object::DataFields;
use crate::zap::ZapStats;
use crate::zap::inspect::{InlineInfo, count_block};

/// A directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DirectoryInfo {
    /// Number of its object.
    pub number: u64,
    /// Bytes on devices, all copies and indirect blocks, as stored in its dnode.
    pub allocated_bytes: u64,
    /// Statistics of its leaves, without damaged ones.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::serialize::directory_stats"))]
    pub stats: ZapStats,
    /// Entries that its header counts; for a micro directory, their actual number.
    pub header_entries: u64,
    /// Leaves that its header counts; for a micro directory, 0.
    pub header_leaves: u64,
    /// Unreadable or invalid leaves, and contradictions to the header.
    pub damage: Damage,
}

impl Inspector {
    /// Returns a directory as of a txg or the newest one. Reads and checks every entry of every
    /// leaf.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if the object is not a directory; as
    /// [`txg`](Self::txg).
    pub fn directory(
        &self,
        set: ObjsetName<'_>,
        number: u64,
        txg: Option<u64>,
    ) -> Result<Inspected<DirectoryInfo>> {
        self.inspect_as_of(txg, |view| {
            let dnode = view.set(set)?.dnode(number)?;
            if dnode.object_kind() != Some(ObjectKind::Zap) {
                let text = format!("{set}: object {number} is no directory");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let doing = |error: Error| error.doing(format_args!("{set}, directory {number}"));
            let inline = InlineInfo::read(dnode.inline()).map_err(doing)?;
            let data = DataFields::of(&dnode).map_err(doing)?;
            let mut info = DirectoryInfo {
                number,
                allocated_bytes: data.allocated,
                header_entries: inline.stats.entries,
                header_leaves: inline.stats.by_depth.iter().sum(),
                stats: inline.stats,
                damage: Damage::default(),
            };
            if inline.is_fat {
                let (depth, said) = (info.stats.depth, info.stats.by_depth);
                let mut stats = ZapStats { depth, ..ZapStats::default() };
                let (mut damage, mut leaves) = (Damage::default(), Damage::default());
                view.walk(&data.tree, &mut damage, &mut |ptr, block| {
                    if ptr.level == 0 {
                        let read = view.store.read(ptr, Attributes::METADATA.once());
                        let (seed, role) = (inline.seed, ZapBlock::of(block));
                        if let Err(error) =
                            read.and_then(|bytes| count_block(&mut stats, role, &bytes, seed))
                        {
                            leaves.note(error.doing(role));
                        }
                    }
                    ControlFlow::Continue(())
                });
                damage.count += leaves.count;
                damage.listed.append(&mut leaves.listed);
                if stats.by_depth != said
                    || stats.entries != info.header_entries
                    || (stats.buffered, stats.pages) != (info.stats.buffered, info.stats.pages)
                {
                    damage.note(
                        "its header and its leaves disagree about the number of entries or leaves",
                    );
                }
                (info.stats, info.damage) = (stats, damage);
            }
            let damaged = !info.damage.is_empty();
            Ok((info, damaged))
        })
    }
}

impl fmt::Display for DirectoryInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "directory {}: {} bytes on devices", self.number, self.allocated_bytes)?;
        write!(f, "{}", self.stats)?;
        if !self.damage.is_empty() {
            let (entries, leaves) = (self.header_entries, self.header_leaves);
            writeln!(f, "its header counts {entries} entries in {leaves} leaves")?;
        }
        write!(f, "{}", self.damage)
    }
}
