//! A directory: counts and histograms of its leaves, read one by one, with those left out that are damaged.

use std::fmt;
use std::ops::ControlFlow;

use forebay_cache::Attributes;

use super::{Damage, Inspected, Inspector, ObjsetName};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ObjectKind;
use crate::object::DataFields;
use crate::zap::ZapStats;
use crate::zap::inspect::{InlineInfo, count_leaf};

/// A directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryInfo {
    /// Number of its object.
    pub number: u64,
    /// Bytes on devices, all copies and indirect blocks, as its dnode has it.
    pub allocated_bytes: u64,
    /// What its leaves hold, those that are damaged left out.
    pub stats: ZapStats,
    /// Entries and leaves that its header counts; for a small directory, those that are there.
    pub header: (u64, u64),
    /// Leaves that cannot be read or make no sense, and what contradicts the header.
    pub damage: Damage,
}

impl Inspector {
    /// A directory, as of a txg, or of the newest. Every entry of every leaf is read and checked.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`] if the object is no directory; as [`txg`](Self::txg).
    pub fn directory(
        &self,
        set: ObjsetName<'_>,
        number: u64,
        txg: Option<u64>,
    ) -> Result<Inspected<DirectoryInfo>> {
        self.see(txg, |view| {
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
                header: (inline.stats.entries, inline.stats.by_depth.iter().sum()),
                stats: inline.stats,
                damage: Damage::default(),
            };
            if inline.is_fat {
                let (depth, said) = (info.stats.depth, info.stats.by_depth);
                let mut stats = ZapStats { depth, ..ZapStats::default() };
                let (mut damage, mut leaves) = (Damage::default(), Damage::default());
                view.walk(&data.tree, &mut damage, &mut |ptr, block| {
                    if ptr.level == 0 {
                        let leaf = view.store.read(ptr, Attributes::METADATA.once());
                        let seed = inline.seed;
                        if let Err(error) =
                            leaf.and_then(|leaf| count_leaf(&mut stats, &leaf, seed))
                        {
                            leaves.note(error.doing(format_args!("leaf {block}")));
                        }
                    }
                    ControlFlow::Continue(())
                });
                damage.count += leaves.count;
                damage.listed.append(&mut leaves.listed);
                if stats.by_depth != said || stats.entries != info.header.0 {
                    damage.note("its header counts other entries or leaves than are there");
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
            let (entries, leaves) = self.header;
            writeln!(f, "its header counts {entries} entries in {leaves} leaves")?;
        }
        write!(f, "{}", self.damage)
    }
}
