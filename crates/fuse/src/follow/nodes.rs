//! The nodes that the kernel knows.
//!
//! # Invariants
//!
//! - A node of a directory stands for the inode in any group. Everything else is a *version*: a
//!   node stands for the inode as long as its dnode stays as it is. So the kernel may cache the
//!   content and the attributes of such a node for ever, and two versions never share its pages.
//! - The first version has the inode's number as the number of its node. A version that comes while
//!   the kernel knows that node gets another number, from [`FIRST_ALIAS`] on.
//! - A node is there as long as the kernel has looked it up more often than it forgot it.

use std::collections::HashMap;

use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_fs::{Attr, Error, FileKind, FileSystem, Ino};

use super::groups::{Group, Groups};

/// Numbers from here on are of no inode.
const FIRST_ALIAS: u64 = 1 << 62;
/// The node of the root directory.
const ROOT: u64 = 1;

/// A node of the kernel.
pub(super) struct Node {
    pub(super) ino: Ino,
    /// Tells inodes with the same number apart.
    generation: u64,
    /// `None` for a directory.
    pub(super) version: Option<u64>,
    /// A group that has this version.
    group: Mutex<Weak<Group>>,
}

impl Node {
    /// Notes that `group` has this version. A newer group stays: it is used for longer.
    pub(super) fn moved_to(&self, group: &Arc<Group>) {
        let mut known = self.group.lock();
        if Groups::still_used(&known).is_none_or(|known| known.is_before(group)) {
            *known = Arc::downgrade(group);
        }
    }
}

/// Identifies a node by what it stands for.
type Key = (Ino, u64, Option<u64>);

pub(super) struct Nodes(Mutex<Table>);

struct Table {
    by_number: HashMap<u64, (Arc<Node>, u64)>,
    by_key: HashMap<Key, u64>,
    next_alias: u64,
}

impl Nodes {
    pub(super) fn new() -> Self {
        let table =
            Table { by_number: HashMap::new(), by_key: HashMap::new(), next_alias: FIRST_ALIAS };
        Self(Mutex::named("follow-nodes", table))
    }

    /// Counts a lookup of an inode in `group`, and returns the number of its node.
    pub(super) fn looked_up(&self, group: &Arc<Group>, attr: &Attr, version: Option<u64>) -> u64 {
        if attr.ino == Ino::ROOT {
            return ROOT;
        }
        let key = (attr.ino, attr.generation, version);
        let table = &mut *self.0.lock();
        if let Some(number) = table.by_key.get(&key) {
            let (node, lookups) = table.by_number.get_mut(number).expect("both have it");
            *lookups += 1;
            node.moved_to(group);
            return *number;
        }
        let number = match table.by_number.contains_key(&attr.ino.0) {
            false => attr.ino.0,
            true => {
                table.next_alias += 1;
                table.next_alias - 1
            }
        };
        let weak = Mutex::named("follow-node", Arc::downgrade(group));
        let node = Node { ino: attr.ino, generation: attr.generation, version, group: weak };
        table.by_key.insert(key, number);
        table.by_number.insert(number, (Arc::new(node), 1));
        number
    }

    /// Takes lookups back.
    pub(super) fn forget(&self, number: u64, count: u64) {
        let table = &mut *self.0.lock();
        let Some((node, lookups)) = table.by_number.get_mut(&number) else { return };
        *lookups = lookups.saturating_sub(count);
        if *lookups == 0 {
            let key = (node.ino, node.generation, node.version);
            table.by_key.remove(&key);
            table.by_number.remove(&number);
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Node>> {
        self.0.lock().by_number.get(&number).map(|(node, _)| Arc::clone(node))
    }
}

/// The number that a node's inode has for people, if it is another one.
pub(super) fn is_alias(number: u64) -> bool {
    number >= FIRST_ALIAS
}

/// Finds a group that has what a node stands for, and the inode there. `blocking` says whether it
/// may wait.
pub(super) fn resolve(
    groups: &Groups,
    nodes: &Nodes,
    number: u64,
    blocking: bool,
) -> Result<(Arc<Group>, Option<Arc<Node>>, Ino), Error> {
    let current = groups.current();
    if number == ROOT {
        return Ok((current, None, Ino::ROOT));
    }
    let node = nodes.get(number).ok_or_else(stale)?;
    let ino = node.ino;
    if let Some(version) = node.version {
        let known = Groups::still_used(&node.group.lock());
        if let Some(group) = known {
            return Ok((group, Some(node), ino));
        }
        if fs_of(&current, blocking).version(ino)? != version {
            return Err(stale());
        }
        node.moved_to(&current);
        return Ok((current, Some(node), ino));
    }
    let attr = fs_of(&current, blocking).getattr(ino)?;
    match (attr.kind, attr.generation) {
        (FileKind::Directory, generation) if generation == node.generation => {
            Ok((current, None, ino))
        }
        _ => Err(stale()),
    }
}

/// The file system of a group.
pub(super) fn fs_of(group: &Group, blocking: bool) -> &FileSystem {
    if blocking { &group.fs } else { &group.non_blocking }
}

fn stale() -> Error {
    Error::stale("the writer of the pool has changed or deleted it; open it again")
}

#[cfg(test)]
mod tests {
    use forebay_fs::{FsOptions, Owner};
    use forebay_io::OpenOptions;
    use forebay_pool::{
        BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool, open_path,
    };

    use super::*;

    #[test]
    fn a_node_stays_with_the_newest_group() {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
        let device = open_path(&folder.path().join("pool.img"), &options).unwrap();
        let cache = BlockCache::new(BlockCacheOptions { bytes: 8 << 20, ..Default::default() });
        let options = CreateOptions::new("test", cache.unwrap());
        let pool = Arc::new(Pool::create(vec![device], &options).unwrap());
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &DatasetSettings::default(), owner).unwrap();
        let fs = FileSystem::open_in(pool, "main", &FsOptions::default()).unwrap();
        // After a store was set back, a newer group may have a lower number.
        let group = |txg| Group::new(fs.clone(), txg, || false);
        let groups = Groups::new(group(9));
        let before = groups.current();
        groups.advance(group(8));
        let newest = groups.current();

        let known = Mutex::named("follow-node", Arc::downgrade(&before));
        let node = Node { ino: Ino(7), generation: 1, version: Some(1), group: known };
        let is_of = |group| std::ptr::eq(node.group.lock().as_ptr(), Arc::as_ptr(group));
        node.moved_to(&newest);
        assert!(is_of(&newest));
        // A lookup that began before the newest group was taken up ends now.
        node.moved_to(&before);
        assert!(is_of(&newest));
        groups.close();
    }

    #[test]
    fn numbers_of_aliases_are_of_no_inode() {
        assert!(is_alias(FIRST_ALIAS));
        assert!(!is_alias(FIRST_ALIAS - 1));
    }
}
