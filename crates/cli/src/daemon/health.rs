//! The health of pools and their damaged files, for messages and exit codes.

use std::collections::HashMap;

use forebay_fs::InodePath;
use forebay_pool::format::{DNODES_PER_BLOCK, ObjectKind};
use forebay_pool::{DamagedTree, Dataset, ErrorKind, HealthState, LoggedDamage, ObjectInfo, Pool};

use crate::control::messages::DamageInfo;

/// Exit code if a pool is degraded or damaged.
pub(crate) const TROUBLE: u8 = 1;
/// Exit code if a pool is unusable, or does not answer.
pub(crate) const UNUSABLE: u8 = 2;

/// The exit code of a pool with this health, as `forebay list` and `forebay status` promise.
pub(crate) fn exit_code(health: HealthState) -> u8 {
    match health {
        HealthState::Online => 0,
        HealthState::Degraded | HealthState::Damaged => TROUBLE,
        HealthState::Suspended => UNUSABLE,
    }
}

/// Describes damage: joins neighbouring blocks, and names files by path. Reads directories.
pub(crate) fn describe(pool: &Pool, damage: &[LoggedDamage]) -> Vec<DamageInfo> {
    let names = pool.datasets().unwrap_or_default();
    let datasets: HashMap<String, DamagedDataset> = names
        .into_iter()
        .filter_map(|name| {
            let of_it: Vec<&LoggedDamage> =
                damage.iter().filter(|one| one.dataset.as_deref() == Some(&*name)).collect();
            let dataset = if of_it.is_empty() { return None } else { pool.dataset(&name).ok()? };
            Some((name, DamagedDataset::new(dataset, &of_it)))
        })
        .collect();
    let describe = |one: &LoggedDamage| {
        let dataset = one.dataset.as_deref().and_then(|name| datasets.get(name));
        match (dataset, one.tree) {
            (Some(dataset), DamagedTree::Object(number)) => dataset.object(one, number),
            (Some(dataset), DamagedTree::Dnodes) => dataset.dnodes(one),
            _ => plain(one),
        }
    };
    joined(damage).iter().map(describe).collect()
}

/// Joins neighbouring blocks of a tree with the same kind of damage.
fn joined(damage: &[LoggedDamage]) -> Vec<LoggedDamage> {
    let mut joined: Vec<LoggedDamage> = Vec::new();
    for one in damage {
        match joined.last_mut() {
            Some(last) if continues(last, one) => {
                last.blocks = last.blocks.zip(one.blocks).map(|(a, b)| a.saturating_add(b));
                last.first_txg = last.first_txg.min(one.first_txg);
                last.last_txg = last.last_txg.max(one.last_txg);
                last.count = last.count.saturating_add(one.count);
            }
            _ => joined.push(one.clone()),
        }
    }
    joined
}

fn continues(last: &LoggedDamage, next: &LoggedDamage) -> bool {
    let same = last.dataset == next.dataset && last.tree == next.tree && last.kind == next.kind;
    let end = last.blocks.and_then(|blocks| last.block.checked_add(blocks));
    same && last.tree != DamagedTree::SpaceMaps && next.blocks.is_some() && end == Some(next.block)
}

/// A dataset with damage.
struct DamagedDataset {
    dataset: Dataset,
    has_files: bool,
    paths: HashMap<u64, InodePath>,
}

impl DamagedDataset {
    fn new(dataset: Dataset, damage: &[&LoggedDamage]) -> Self {
        let mut objects: Vec<u64> = damage
            .iter()
            .filter_map(|one| match one.tree {
                DamagedTree::Object(number) => Some(number),
                _ => None,
            })
            .collect();
        objects.sort_unstable();
        objects.dedup();
        let paths = forebay_fs::paths(&dataset, &objects).into_iter().collect();
        let has_files = dataset.flavour() == forebay_fs::format::FLAVOUR;
        Self { dataset, has_files, paths }
    }

    /// Damage of an object's content.
    fn object(&self, one: &LoggedDamage, number: u64) -> DamageInfo {
        let info = self.dataset.object_info(number);
        let mut shown = plain(one);
        let inode = self.paths.get(&number);
        shown.object = Some(number);
        shown.inode = inode.map(|inode| inode.ino.0);
        shown.path = inode.and_then(|inode| inode.path.clone());
        let subject = match inode {
            None => format!("object {number}"),
            Some(InodePath { ino, path: Some(path), .. }) => format!("{path} (inode {})", ino.0),
            Some(InodePath { ino, path: None, .. }) => format!("inode {}", ino.0),
        };
        if let Ok(info) = &info {
            let (first, end) = bytes_of(one, info);
            (shown.first_byte, shown.end_byte) = (Some(first), end);
        }
        shown.in_use = is_in_use(one, &info, shown.first_byte.unwrap_or(0));
        let bytes = match (shown.first_byte, shown.end_byte) {
            (Some(first), Some(end)) => format!("bytes {first}-{end}"),
            (Some(first), None) => format!("from byte {first} on"),
            (None, _) => format!("block {}", one.block),
        };
        let problem = match shown.in_use {
            true => one.kind.to_string(),
            false => format!("{}, but no longer in use; a scrub forgets it", one.kind),
        };
        let name = self.dataset.name();
        shown.text = format!("dataset {name}: {subject}, {bytes}: {problem}");
        shown
    }

    /// Damage of the attributes of objects.
    fn dnodes(&self, one: &LoggedDamage) -> DamageInfo {
        let per_block = DNODES_PER_BLOCK as u64;
        // The inode numbers that users see are larger.
        let (what, offset) = if self.has_files { ("inodes", 2) } else { ("objects", 0) };
        let first = one.block.saturating_mul(per_block).saturating_add(offset);
        let blocks = one.blocks.unwrap_or(u64::MAX);
        let last = first.saturating_add(blocks.saturating_mul(per_block) - 1);
        let (name, kind) = (self.dataset.name(), one.kind);
        let mut shown = plain(one);
        shown.text =
            format!("dataset {name}: {what} {first} to {last}, attributes and content: {kind}");
        shown
    }
}

/// Bytes of an object that its damaged blocks hold; no end if it is not known.
fn bytes_of(one: &LoggedDamage, info: &ObjectInfo) -> (u64, Option<u64>) {
    let record = u64::from(info.record_bytes);
    let first = one.block.saturating_mul(record);
    let end = one.blocks.map(|blocks| one.block.saturating_add(blocks).saturating_mul(record));
    match info.kind {
        ObjectKind::Data => {
            let size = info.usage.size_bytes;
            (first, Some(end.unwrap_or(size).min(size.max(first))))
        }
        _ => (first, end),
    }
}

/// Whether the object still exists, and is long enough.
fn is_in_use(
    one: &LoggedDamage,
    info: &Result<ObjectInfo, forebay_pool::Error>,
    first_byte: u64,
) -> bool {
    match info {
        Ok(info) if info.kind == ObjectKind::Data && first_byte >= info.usage.size_bytes => false,
        Ok(info) => info.created_txg <= one.last_txg,
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Damage as the pool describes it.
fn plain(one: &LoggedDamage) -> DamageInfo {
    DamageInfo {
        dataset: one.dataset.as_deref().map(str::to_owned),
        object: None,
        inode: None,
        path: None,
        first_byte: None,
        end_byte: None,
        problem: one.kind.to_string(),
        in_use: true,
        first_txg: one.first_txg,
        last_txg: one.last_txg,
        count: u64::from(one.count),
        text: one.to_string(),
    }
}
