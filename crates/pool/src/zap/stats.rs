//! Statistics of a directory: counts and histograms, their printer, and the audit.

use std::fmt;

use super::access::{LeafAccess, filter_of};
use super::entry::{Value, hash_at, home_of, leaf_id, prefix_mask};
use super::fat::Fat;
use super::filter::{self, Answer};
use super::leaf::{Leaf, LeafDefect, Record};
use super::store::{LeafLookup, LeafStore};
use super::{DirectoryForm, OpStep, Zap, corrupt};
use crate::format::{
    ZAP_DEPTH_MAX, ZAP_LEAF_BYTES, ZAP_LEAF_STEP, ZAP_NAME_MAX, ZAP_VALUE_MAX, ZapBlock,
    ZapSlotPhys,
};
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

/// Rows of the fill histograms.
const TENTHS: usize = 10;
/// Rows of the histogram of entries per leaf: zero, then powers of two.
const SIZES: usize = 12;
/// Width of a row in the histogram of entry sizes, in bytes.
const ENTRY_STEP: usize = 24;
/// Rows of the histogram of entry sizes, up to the longest name and value with two lengths and a
/// slot.
const ENTRY_STEPS: usize = (ZAP_NAME_MAX + ZAP_VALUE_MAX + 2 + 8).div_ceil(ENTRY_STEP);
/// Rows of the histogram of distances: zero, then powers of two.
const DISTANCES: usize = SIZES;

/// Statistics of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ZapStats {
    /// Number of entries.
    pub entries: u64,
    /// Bytes of inline content, for a micro directory.
    pub micro_bytes: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Depth of the deepest leaf.
    pub depth: u8,
    /// Bytes of the in-memory table of leaf depths; 0 from the inspector, and not serialised.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub table_bytes: u64,
    /// Entries in buffer pages; they count in `entries` too.
    pub buffered: u64,
    /// Number of buffer pages.
    pub pages: u64,
    /// Bytes of stored buffer pages, as `stored_bytes`.
    pub page_bytes: u64,
    /// Number of leaves whose filter is valid; 0 from the inspector, and not serialised.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub filters: u64,
    /// Number of filter blocks; only from the inspector.
    pub filter_blocks: u64,
    /// Bytes of stored filter blocks; only from the inspector.
    pub filter_bytes: u64,
    /// Bytes used by entries and leaf headers.
    pub used_bytes: u64,
    /// Bytes of stored leaves, one copy, before compression and rounding up to device sectors.
    pub stored_bytes: u64,
    /// Bytes of all leaves at full size.
    pub full_bytes: u64,
    /// Entries with the same hash as the entry before.
    pub collisions: u64,
    /// Leaves by used share of the stored size, in tenths.
    #[cfg_attr(feature = "serde", serde(rename = "leaves_by_stored_fill_tenths"))]
    pub by_stored_fill: [u64; TENTHS],
    /// Leaves by used share of the full size, in tenths.
    #[cfg_attr(feature = "serde", serde(rename = "leaves_by_fill_tenths"))]
    pub by_fill: [u64; TENTHS],
    /// Leaves by depth.
    #[cfg_attr(feature = "serde", serde(rename = "leaves_by_depth"))]
    pub by_depth: [u64; ZAP_DEPTH_MAX as usize + 1],
    /// Leaves by number of entries: 0, 1, 2–3, 4–7 and so on.
    #[cfg_attr(feature = "serde", serde(rename = "leaves_by_entries_log2"))]
    pub by_entries: [u64; SIZES],
    /// Entries of leaves by size with their slot: up to 24 bytes, up to 48 bytes and so on.
    #[cfg_attr(feature = "serde", serde(rename = "entries_by_24_bytes"))]
    pub entries_by_bytes: [u64; ENTRY_STEPS],
    /// Entries of leaves by number of slots between the start of a lookup and the entry: 0, 1, 2–3,
    /// 4–7 and so on. Leaves have no hash chains; this is the length of a search.
    #[cfg_attr(feature = "serde", serde(rename = "entries_by_distance_log2"))]
    pub entries_by_distance: [u64; DISTANCES],
}

/// The leaves that a pointer table would have equally many pointers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LeavesByPointers {
    /// Number of pointers to each of these leaves.
    pub pointers: u64,
    /// Number of these leaves.
    pub leaves: u64,
}

impl ZapStats {
    /// Used bytes divided by stored bytes of leaves; 1 if there are none.
    pub fn fill(&self) -> f64 {
        if self.stored_bytes == 0 { 1.0 } else { self.used_bytes as f64 / self.stored_bytes as f64 }
    }

    /// Stored bytes per entry, with buffer pages, and with filters if their size is known.
    pub fn bytes_per_entry(&self) -> f64 {
        let beside = self.page_bytes + self.filter_bytes;
        (self.stored_bytes + self.micro_bytes + beside) as f64 / self.entries.max(1) as f64
    }

    /// Leaves by the number of pointers that a pointer table of 2^depth entries would have to them,
    /// fewest first. Devices store no such table: a leaf lies at the block of its first pointer.
    pub fn by_pointers(&self) -> Vec<LeavesByPointers> {
        let deepest = self.by_depth.iter().rposition(|leaves| *leaves > 0).unwrap_or(0);
        let rows = self.by_depth[..=deepest].iter().enumerate().rev();
        rows.filter(|(_, leaves)| **leaves > 0)
            .map(|(depth, &leaves)| LeavesByPointers { pointers: 1 << (deepest - depth), leaves })
            .collect()
    }

    /// Adds a buffer page.
    pub(super) fn add_page(&mut self, page: &LeafStats) {
        self.entries += page.entries;
        self.buffered += page.entries;
        self.pages += 1;
        self.page_bytes += page.stored_bytes;
    }

    /// Adds a leaf.
    pub(super) fn add(&mut self, leaf: &LeafStats) {
        let tenth = |of: u64| ((leaf.used_bytes * TENTHS as u64 / of) as usize).min(TENTHS - 1);
        self.entries += leaf.entries;
        self.leaves += 1;
        self.used_bytes += leaf.used_bytes;
        self.stored_bytes += leaf.stored_bytes;
        self.full_bytes += ZAP_LEAF_BYTES as u64;
        self.collisions += leaf.collisions;
        self.by_stored_fill[tenth(leaf.stored_bytes)] += 1;
        self.by_fill[tenth(ZAP_LEAF_BYTES as u64)] += 1;
        self.by_depth[usize::from(leaf.depth)] += 1;
        let size = leaf.entries.checked_ilog2().map_or(0, |log2| log2 as usize + 1);
        self.by_entries[size.min(SIZES - 1)] += 1;
        for (sum, more) in self.entries_by_bytes.iter_mut().zip(leaf.by_bytes) {
            *sum += more;
        }
        for (sum, more) in self.entries_by_distance.iter_mut().zip(leaf.by_distance) {
            *sum += more;
        }
    }
}

impl fmt::Display for ZapStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.leaves == 0 {
            return writeln!(f, "micro: {} entries in {} bytes", self.entries, self.micro_bytes);
        }
        writeln!(f, "fat: {} entries in {} leaves", self.entries, self.leaves)?;
        writeln!(
            f,
            "    stored bytes:     {} ({} at full size)",
            self.stored_bytes, self.full_bytes
        )?;
        writeln!(f, "    used bytes:       {} ({:.2} of stored)", self.used_bytes, self.fill())?;
        writeln!(f, "    bytes per entry:  {:.1}", self.bytes_per_entry())?;
        writeln!(f, "    depth:            {}", self.depth)?;
        writeln!(f, "    table in memory:  {} bytes", self.table_bytes)?;
        writeln!(f, "    equal hashes:     {}", self.collisions)?;
        if self.pages > 0 {
            let (buffered, pages, bytes) = (self.buffered, self.pages, self.page_bytes);
            writeln!(
                f,
                "    buffered:         {buffered} entries in {pages} pages, {bytes} bytes"
            )?;
        }
        if self.filters > 0 {
            writeln!(f, "    filters:          of {} leaves", self.filters)?;
        }
        if self.filter_blocks > 0 {
            let (blocks, bytes) = (self.filter_blocks, self.filter_bytes);
            writeln!(f, "    filters:          {bytes} bytes in {blocks} blocks")?;
        }
        let tenths = |i: usize| format!("{}-{} %", i * 10, i * 10 + 10);
        rows(f, "leaves by used share of the stored size", &self.by_stored_fill, tenths)?;
        rows(f, "leaves by used share of the full size", &self.by_fill, tenths)?;
        rows(f, "leaves by depth", &self.by_depth, |depth| depth.to_string())?;
        let pointers = self.by_pointers();
        let counts: Vec<u64> = pointers.iter().map(|row| row.leaves).collect();
        let title = format!("leaves by pointers in a table of {}", 1u64 << self.depth.min(63));
        rows(f, &title, &counts, |row| pointers[row].pointers.to_string())?;
        rows(f, "leaves by entries", &self.by_entries, powers)?;
        rows(f, "entries by bytes, slot included", &self.entries_by_bytes, |step| {
            format!("{}-{}", step * ENTRY_STEP + 1, (step + 1) * ENTRY_STEP)
        })?;
        let title = "entries by slots between the start of a lookup and the entry";
        rows(f, title, &self.entries_by_distance, powers)
    }
}

fn powers(row: usize) -> String {
    match row {
        0 | 1 => row.to_string(),
        _ => format!("{}-{}", 1 << (row - 1), (1 << row) - 1),
    }
}

/// Prints a histogram without its empty rows.
fn rows(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counts: &[u64],
    label: impl Fn(usize) -> String,
) -> fmt::Result {
    const BAR: u64 = 40;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    writeln!(f, "    {title}:")?;
    for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bar = "*".repeat((count * BAR).div_ceil(most) as usize);
        writeln!(f, "    {:>12}: {count:>8} {bar}", label(index))?;
    }
    Ok(())
}

/// Statistics of one leaf.
pub(crate) struct LeafStats {
    depth: u8,
    entries: u64,
    used_bytes: u64,
    stored_bytes: u64,
    collisions: u64,
    by_bytes: [u64; ENTRY_STEPS],
    by_distance: [u64; DISTANCES],
}

impl LeafStats {
    /// Computes the statistics. Validates everything if the seed of the name hash is given.
    pub(super) fn of(leaf: &Leaf<'_>, seed: Option<u64>) -> Result<Self, LeafDefect> {
        let mut collisions = 0;
        let mut before = None;
        let mut by_bytes = [0; ENTRY_STEPS];
        let mut by_distance = [0; DISTANCES];
        for (at, entry) in leaf.entries_from(0).enumerate() {
            let (position, record) = entry?;
            let hash = hash_at(position);
            collisions += u64::from(before.replace(hash) == Some(hash));
            by_bytes[step_of(&record)] += 1;
            let distance = leaf.interpolate(hash).abs_diff(at);
            let row = distance.checked_ilog2().map_or(0, |log2| log2 as usize + 1);
            by_distance[row.min(DISTANCES - 1)] += 1;
            if let Some(seed) = seed {
                check_record(seed, hash, record.name, record.value)?;
            }
        }
        if seed.is_some() {
            leaf.validate()?;
        }
        let used_bytes = leaf.packed_bytes();
        Ok(Self {
            depth: leaf.depth(),
            entries: leaf.len() as u64,
            used_bytes: used_bytes as u64,
            stored_bytes: used_bytes.next_multiple_of(ZAP_LEAF_STEP) as u64,
            collisions,
            by_bytes,
            by_distance,
        })
    }
}

/// Row of an entry in the histogram of sizes. Impossible sizes count in the last row.
fn step_of(record: &Record<'_>) -> usize {
    let bytes = record.bytes() + size_of::<ZapSlotPhys>();
    (bytes.div_ceil(ENTRY_STEP) - 1).min(ENTRY_STEPS - 1)
}

fn check_record(seed: u64, hash: u32, name: &[u8], value: &[u8]) -> Result<(), LeafDefect> {
    if hash_at(home_of(seed, name)) != hash {
        return Err(LeafDefect("the hash of a name does not match"));
    }
    match Value::new(value) {
        Some(_) => Ok(()),
        None => Err(LeafDefect("a value has an invalid length")),
    }
}

impl<S: LeafStore> Zap<S> {
    /// Visits every leaf and buffer page. Entries that change meanwhile may be counted twice or not
    /// at all.
    pub(crate) fn stats(&self) -> Result<ZapStats> {
        self.walk(None)
    }

    /// Visits and validates every entry of every leaf and buffer page, and asks the filters for
    /// each. Nothing may change meanwhile.
    ///
    /// # Errors
    /// `Corrupt` with the first defect.
    pub(crate) fn audit(&self) -> Result<ZapStats> {
        let stats = self.walk(Some(self.seed))?;
        let state = self.lock(Wait::Allowed)?;
        if let DirectoryForm::Fat(fat) = &state.form {
            let header = &fat.header;
            let counted = header.leaves_at.map(|leaves| u64::from(leaves.get()));
            if counted != stats.by_depth
                || header.entries.get() != stats.entries
                || header.buffered.get() != stats.buffered
                || u64::from(header.pages.get()) != stats.pages
            {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "{}: the counts in its header do not match its leaves and buffer pages: \
                         {header:?}",
                        self.store.describe(),
                    ),
                ));
            }
        }
        Ok(stats)
    }

    fn walk(&self, check: Option<u64>) -> Result<ZapStats> {
        let mut stats = ZapStats::default();
        let mut hash = Some(0);
        // Every round passes one leaf.
        while let Some(at) = hash {
            let found =
                self.run(Some(at), Wait::Allowed, |state, access| match &mut state.form {
                    DirectoryForm::Micro(micro) => {
                        let empty = ZapStats::default();
                        let (entries, micro_bytes) =
                            (micro.len() as u64, micro.content().len() as u64);
                        stats = ZapStats { entries, micro_bytes, ..empty };
                        Ok(OpStep::Done(None))
                    }
                    DirectoryForm::Fat(fat) => {
                        stats.depth = fat.header.depth;
                        stats.table_bytes = (fat.table.bytes() + fat.pages.bytes()) as u64;
                        fat.stats_of(access, at, check)
                    }
                })?;
            let Some((leaf, has_filter)) = found else {
                break;
            };
            stats.add(&leaf);
            stats.filters += u64::from(has_filter);
            hash = (at | !prefix_mask(leaf.depth)).checked_add(1);
        }
        let mut hash = Some(0);
        // Every round passes one buffer page.
        while let Some(at) = hash {
            let found =
                self.run(Some(at), Wait::Allowed, |state, access| match &mut state.form {
                    DirectoryForm::Fat(fat) if fat.header.pages.get() > 0 => {
                        fat.with_page_of(access, at, |page| {
                            let names = check.map_or(Ok(Vec::new()), |seed| names_of(page, seed));
                            Ok(Some((LeafStats::of(page, check)?, names?)))
                        })
                    }
                    _ => Ok(OpStep::Done(None)),
                })?;
            let Some((page, names)) = found else {
                break;
            };
            self.check_leaves(&names)?;
            stats.add_page(&page);
            hash = (at | !prefix_mask(page.depth)).checked_add(1);
        }
        Ok(stats)
    }

    /// Checks that no leaf has a name or position of these entries of a page, which are in order.
    fn check_leaves(&self, names: &[(u64, Box<[u8]>)]) -> Result<()> {
        let mut rest = names;
        // Every round passes one leaf.
        while let Some(&(first, _)) = rest.first() {
            let hash = hash_at(first);
            let passed =
                self.run(Some(hash), Wait::Allowed, |state, access| match &mut state.form {
                    DirectoryForm::Micro(_) => Ok(OpStep::Done(rest.len())),
                    DirectoryForm::Fat(fat) => fat.with_leaf_of(access, hash, |leaf| {
                        let of_leaf = rest.partition_point(|(at, _)| leaf.covers(hash_at(*at)));
                        for (position, name) in &rest[..of_leaf] {
                            if leaf.has_position(*position)
                                || leaf.find(hash_at(*position), name)?.is_some()
                            {
                                return Err(LeafDefect(
                                    "it has a name or position that is in the change buffer too",
                                ));
                            }
                        }
                        Ok(of_leaf)
                    }),
                })?;
            rest = &rest[passed..];
        }
        Ok(())
    }
}

/// Positions and names of a buffer page, each at its home.
fn names_of(page: &Leaf<'_>, seed: u64) -> Result<Vec<(u64, Box<[u8]>)>, LeafDefect> {
    page.validate()?;
    page.entries_from(0)
        .map(|entry| match entry? {
            (position, record) if home_of(seed, record.name) == position => {
                Ok((position, record.name.into()))
            }
            _ => Err(LeafDefect("a name is not at its home")),
        })
        .collect()
}

impl Fat {
    /// Statistics of the leaf of a hash, and whether its filter is valid. With `check`, compares
    /// the leaf with its filter.
    fn stats_of<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        at: u32,
        check: Option<u64>,
    ) -> Result<OpStep<Option<(LeafStats, bool)>, S::Ticket>> {
        let mut homes = Vec::new();
        let found = self.with_leaf_of(access, at, |leaf| {
            homes.clear();
            if let Some(seed) = check {
                for entry in leaf.entries_from(0) {
                    let (position, record) = entry?;
                    homes.push((position, home_of(seed, record.name)));
                }
            }
            LeafStats::of(leaf, check)
        })?;
        let stats = match found {
            OpStep::Done(stats) => stats,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        let id = leaf_id(at, stats.depth);
        let bad = |what| corrupt(access.store, ZapBlock::Leaf(id), LeafDefect(what));
        let Some(txg) = access.store.stored_txg(id).filter(|_| self.is_aided()) else {
            return Ok(OpStep::Done(Some((stats, false))));
        };
        if access.is_lost(filter_of(id)) {
            return Ok(OpStep::Done(Some((stats, false))));
        }
        let answers = access.store.with_leaf(filter_of(id), access.fetched, |block| {
            let absent = homes.iter().any(|(position, home)| {
                [*position, *home]
                    .iter()
                    .any(|at| filter::find(block, id, txg, *at) != Answer::Maybe)
            });
            (absent, filter::is_valid(block, id, txg))
        })?;
        match answers {
            LeafLookup::NotResident(ticket) => Ok(OpStep::NotResident(ticket)),
            LeafLookup::Hole => Ok(OpStep::Done(Some((stats, false)))),
            LeafLookup::Resident((true, _)) => Err(bad("its filter lacks one of its names")),
            LeafLookup::Resident((false, valid)) => Ok(OpStep::Done(Some((stats, valid)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LeafStats, ZapStats};

    #[test]
    fn prints_the_histograms() {
        let mut stats = ZapStats { depth: 1, table_bytes: 2, ..ZapStats::default() };
        for entries in [3u64, 300] {
            let used_bytes = entries * 26 + 24;
            let stored_bytes = used_bytes.next_multiple_of(512);
            stats.add(&LeafStats {
                depth: 1,
                entries,
                used_bytes,
                stored_bytes,
                collisions: 0,
                by_bytes: [0; super::ENTRY_STEPS],
                by_distance: [0; super::DISTANCES],
            });
        }
        let dump = stats.to_string();
        assert!(dump.contains("fat: 303 entries in 2 leaves"), "{dump}");
        assert!(dump.contains("256-511:        1 ****"), "{dump}");
        assert!(dump.contains("10-20 %:        1 ****"), "{dump}");
        assert!(
            dump.contains("leaves by pointers in a table of 2:\n               1:        2 *"),
            "{dump}"
        );
    }
}
