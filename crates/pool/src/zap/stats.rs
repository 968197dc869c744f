//! What a directory looks like inside: counts and histograms, their printer, and the check of everything.

use std::fmt;

use super::entry::{Value, hash_at, hash_of, prefix_mask};
use super::leaf::{Leaf, LeafDefect, Record};
use super::store::LeafStore;
use super::{DirectoryForm, OpStep, Zap};
use crate::format::{
    ZAP_DEPTH_MAX, ZAP_LEAF_BYTES, ZAP_LEAF_STEP, ZAP_NAME_MAX, ZAP_VALUE_MAX, ZapSlotPhys,
};
use crate::{Error, ErrorKind, Result};

/// Rows of the histogram of fill.
const TENTHS: usize = 10;
/// Rows of the histogram of entries: no entry, then powers of two; a leaf has at most `ZAP_LEAF_BYTES` / 12.
const SIZES: usize = 12;
/// Entries are counted in steps of this many bytes.
const ENTRY_STEP: usize = 24;
/// Rows of the histogram of entries' bytes: the longest name and value, two lengths and a slot.
const ENTRY_STEPS: usize = (ZAP_NAME_MAX + ZAP_VALUE_MAX + 2 + 8).div_ceil(ENTRY_STEP);
/// Rows of the histogram of distances: none, then powers of two.
const DISTANCES: usize = SIZES;

/// What a directory looks like inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZapStats {
    /// Names.
    pub entries: u64,
    /// Bytes of inline content, if the entries are there.
    pub micro_bytes: u64,
    /// Leaves.
    pub leaves: u64,
    /// Depth of the deepest leaf.
    pub depth: u8,
    /// Bytes of the table of leaves' depths, which is in memory only.
    pub table_bytes: u64,
    /// Bytes that entries and headers of leaves take.
    pub used_bytes: u64,
    /// Bytes of leaves as they are stored, one copy, before compression and rounding up to a device's sectors.
    pub stored_bytes: u64,
    /// Bytes that leaves would take at their full size.
    pub full_bytes: u64,
    /// Entries that share their hash with one before.
    pub collisions: u64,
    /// Leaves by how full they are as they are stored, in tenths.
    pub by_stored_fill: [u64; TENTHS],
    /// Leaves by how full they are of what they can hold, in tenths.
    pub by_fill: [u64; TENTHS],
    /// Leaves by depth.
    pub by_depth: [u64; ZAP_DEPTH_MAX as usize + 1],
    /// Leaves by entries: 0, 1, 2–3, 4–7 and so on.
    pub by_entries: [u64; SIZES],
    /// Entries of leaves by the bytes that they take with their slot: up to 24, up to 48 and so on.
    pub entries_by_bytes: [u64; ENTRY_STEPS],
    /// Entries of leaves by how many slots lie between the one where a lookup begins and theirs: 0, 1, 2–3, 4–7 and so on.
    /// Leaves have no hash chains; this is how far a lookup looks instead.
    pub entries_by_distance: [u64; DISTANCES],
}

impl ZapStats {
    /// Used bytes by stored bytes of leaves; 1 without any.
    pub fn fill(&self) -> f64 {
        if self.stored_bytes == 0 { 1.0 } else { self.used_bytes as f64 / self.stored_bytes as f64 }
    }

    /// Stored bytes for each entry.
    pub fn bytes_an_entry(&self) -> f64 {
        (self.stored_bytes + self.micro_bytes) as f64 / self.entries.max(1) as f64
    }

    /// Leaves by how many pointers of a table of 2^depth would lead to them, the fewest first. There is no such
    /// table on devices: a leaf lies where the first of them would.
    pub fn by_pointers(&self) -> Vec<(u64, u64)> {
        let deepest = self.by_depth.iter().rposition(|leaves| *leaves > 0).unwrap_or(0);
        let rows = self.by_depth[..=deepest].iter().enumerate().rev();
        rows.filter(|(_, leaves)| **leaves > 0)
            .map(|(depth, leaves)| (1 << (deepest - depth), *leaves))
            .collect()
    }

    /// Counts a leaf.
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
        writeln!(f, "    bytes an entry:   {:.1}", self.bytes_an_entry())?;
        writeln!(f, "    depth:            {}", self.depth)?;
        writeln!(f, "    table in memory:  {} bytes", self.table_bytes)?;
        writeln!(f, "    equal hashes:     {}", self.collisions)?;
        let tenths = |i: usize| format!("{}-{} %", i * 10, i * 10 + 10);
        rows(f, "leaves by how full they are stored", &self.by_stored_fill, tenths)?;
        rows(f, "leaves by how full they are", &self.by_fill, tenths)?;
        rows(f, "leaves by depth", &self.by_depth, |depth| depth.to_string())?;
        let pointers = self.by_pointers();
        let counts: Vec<u64> = pointers.iter().map(|(_, leaves)| *leaves).collect();
        let title = format!("leaves by pointers of a table of {}", 1u64 << self.depth.min(63));
        rows(f, &title, &counts, |row| pointers[row].0.to_string())?;
        rows(f, "leaves by entries", &self.by_entries, powers)?;
        rows(f, "entries by bytes, slot included", &self.entries_by_bytes, |step| {
            format!("{}-{}", step * ENTRY_STEP + 1, (step + 1) * ENTRY_STEP)
        })?;
        let title = "entries by slots between where a lookup begins and them";
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

/// One leaf.
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
    /// With the seed of names' hashes everything is checked.
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
            let distance = leaf.guess(hash).abs_diff(at);
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

/// Row of an entry in the histogram of bytes. A length that cannot be belongs to the last.
fn step_of(record: &Record<'_>) -> usize {
    let bytes = record.bytes() + size_of::<ZapSlotPhys>();
    (bytes.div_ceil(ENTRY_STEP) - 1).min(ENTRY_STEPS - 1)
}

fn check_record(seed: u64, hash: u32, name: &[u8], value: &[u8]) -> Result<(), LeafDefect> {
    if hash_of(seed, name) != hash {
        return Err(LeafDefect("a name has the hash of another"));
    }
    match Value::new(value) {
        Some(_) => Ok(()),
        None => Err(LeafDefect("a value has an impossible length")),
    }
}

impl<S: LeafStore> Zap<S> {
    /// Looks at every leaf. What changes meanwhile may be counted twice or not at all.
    pub(crate) fn stats(&self) -> Result<ZapStats> {
        self.walk(None)
    }

    /// Looks at every entry of every leaf, and checks whatever can be; nothing may change meanwhile.
    ///
    /// # Errors
    /// `Corrupt`, naming the first thing that is wrong.
    pub(crate) fn audit(&self) -> Result<ZapStats> {
        let stats = self.walk(Some(self.seed))?;
        let state = self.lock()?;
        if let DirectoryForm::Fat(fat) = &state.form {
            let counted = fat.header.leaves_at.map(|leaves| u64::from(leaves.get()));
            if counted != stats.by_depth || fat.header.entries.get() != stats.entries {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("{}: its header counts {:?}", self.store.describe(), fat.header),
                ));
            }
        }
        Ok(stats)
    }

    fn walk(&self, check: Option<u64>) -> Result<ZapStats> {
        let mut stats = ZapStats::default();
        let mut hash = Some(0);
        // Every round goes past a leaf.
        while let Some(at) = hash {
            let found = self.run(Some(at), |state, access| match &mut state.form {
                DirectoryForm::Micro(micro) => {
                    let empty = ZapStats::default();
                    let (entries, micro_bytes) = (micro.len() as u64, micro.content().len() as u64);
                    stats = ZapStats { entries, micro_bytes, ..empty };
                    Ok(OpStep::Done(None))
                }
                DirectoryForm::Fat(fat) => {
                    stats.depth = fat.header.depth;
                    stats.table_bytes = fat.table.bytes() as u64;
                    fat.with_leaf_of(access, at, |leaf| LeafStats::of(leaf, check).map(Some))
                }
            })?;
            let Some(leaf) = found else {
                break;
            };
            stats.add(&leaf);
            hash = (at | !prefix_mask(leaf.depth)).checked_add(1);
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::{LeafStats, ZapStats};

    #[test]
    fn prints_a_dump() {
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
            dump.contains("leaves by pointers of a table of 2:\n               1:        2 *"),
            "{dump}"
        );
    }
}
