//! An objset: its dnodes, its open objects, and the allocation of object numbers.
//!
//! A dnode has two kinds of fields with different owners (see [`DnodePhys`]). *Attribute fields*
//! change in an open txg and stay in `dnodes` as dirty dnodes. *Data fields* belong to the open
//! object and result from its sync. `sync_dnodes` joins both in new blocks of dnodes.
//!
//! Open objects refer to their objset as a [`NodeOwner`](crate::object::NodeOwner) only (`owner`).

mod dnodes;
mod numbers;
mod owner;
mod relocate;
mod settings;
mod sync_dnodes;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use crossbeam_utils::CachePadded;
use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use hashbrown::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    ATTRIBUTES_MAX, Compression, DNODES_PER_BLOCK, DnodePhys, ObjectKind, ObjsetPhys,
};
use crate::object::tree::{self, Tree};
use crate::object::{DataFields, Node, ObjectIo, ObjectUsage};
use crate::readahead::ReadAhead;
use crate::store::Store;
use crate::tx::Tx;
use crate::wait::Wait;

pub(crate) use dnodes::dnode_at;
use dnodes::{DirtyDnodes, NewestDnode};
use numbers::FreeNumbers;
use settings::VersionedSettings;

/// Number of shards of the tables indexed by object; a power of two.
const SHARDS: usize = 16;

/// Maximum height of a tree of dnode blocks. It keeps object numbers below 2^64.
const DNODE_LEVELS_MAX: u8 = 7;
/// Dnode block numbers are below this limit.
const DNODE_BLOCKS_MAX: u64 = tree::capacity(DNODE_LEVELS_MAX);
const _: () = assert!(DNODE_BLOCKS_MAX < u64::MAX / DNODES_PER_BLOCK as u64);

/// Compression and copies of the blocks of an objset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteSettings {
    pub(crate) data_compression: Compression,
    pub(crate) data_copies: u8,
    pub(crate) metadata_compression: Compression,
    pub(crate) metadata_copies: u8,
}

/// An objset.
pub(crate) struct Objset {
    pub(crate) io: Arc<ObjectIo>,
    settings: Mutex<VersionedSettings>,
    /// Tree of the dnode blocks in the newest synced txg.
    tree: Mutex<Tree>,
    /// Whether a sync replaces the tree. It has read the blocks that it replaces, and drops them
    /// from the cache before the new tree is the newest.
    replaces_tree: AtomicBool,
    dnodes: DirtyDnodes,
    nodes: [CachePadded<Mutex<HashMap<u64, Weak<Node>>>>; SHARDS],
    /// Objects with data to sync, by the low bit of the txg.
    dirty: [[CachePadded<Mutex<Vec<Arc<Node>>>>; SHARDS]; 2],
    numbers: FreeNumbers,
    objects: AtomicU64,
    allocated: AtomicU64,
    closed: AtomicBool,
    /// Generates the hash seeds of directories.
    rng: Mutex<SmallRng>,
}

impl Objset {
    pub(crate) fn new(
        (store, ahead): (Store, &Arc<ReadAhead>),
        phys: &ObjsetPhys,
        settings: WriteSettings,
        seed: u64,
    ) -> Result<Arc<Self>> {
        let tree = dnode_tree(phys)?;
        Ok(Arc::new(Self {
            io: Arc::new(ObjectIo { store, ahead: Arc::clone(ahead) }),
            settings: Mutex::named("objset-settings", VersionedSettings::new(settings)),
            tree: Mutex::named("objset-tree", tree),
            replaces_tree: AtomicBool::new(false),
            dnodes: DirtyDnodes::new(),
            nodes: std::array::from_fn(|_| CachePadded::new(Mutex::named("nodes", HashMap::new()))),
            dirty: std::array::from_fn(|_| {
                std::array::from_fn(|_| CachePadded::new(Mutex::named("dirty-nodes", Vec::new())))
            }),
            numbers: FreeNumbers::new(tree.blocks),
            objects: AtomicU64::new(phys.objects.get()),
            allocated: AtomicU64::new(phys.allocated_bytes.get()),
            closed: AtomicBool::new(false),
            rng: Mutex::named("objset-rng", SmallRng::from_seed(seed)),
        }))
    }

    /// Sets the write settings of the txgs after `txg`. The caller has a hold of `txg`.
    pub(crate) fn set_settings(&self, txg: u64, settings: WriteSettings) {
        self.settings.lock().set_after(txg, settings);
    }

    /// Closes the objset: unpins the blocks of open objects and drops the objects that no txg will
    /// write. From now on nothing is pinned and nothing becomes dirty. Call it when no txg syncs
    /// any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for shard in self.dirty.iter().flatten() {
            // The nodes and the objset hold references to each other.
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
        for shard in &self.nodes {
            let nodes: Vec<_> = shard.lock().values().filter_map(Weak::upgrade).collect();
            for node in nodes {
                node.lock().pins.clear();
            }
        }
    }

    /// Tree of the dnode blocks in the newest synced txg.
    pub(crate) fn tree(&self) -> Tree {
        *self.tree.lock()
    }

    /// Objects in use in the newest synced txg.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes allocated on devices in the newest synced txg.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Creates an object and returns its number.
    pub(crate) fn create(
        &self,
        tx: &Tx,
        kind: ObjectKind,
        record_shift: u8,
        attributes: &[u8],
    ) -> Result<u64> {
        let dnode = new_dnode(tx, kind, record_shift, attributes)?;
        loop {
            let number = self.next_number(tx.wait())?;
            if self.put_if_free(tx, number, &dnode)? {
                return Ok(number);
            }
        }
    }

    /// Creates the object with this number, for the replay of the intent log. The number must be
    /// free.
    pub(crate) fn create_at(
        &self,
        tx: &Tx,
        number: u64,
        (kind, record_shift): (ObjectKind, u8),
        attributes: &[u8],
    ) -> Result<()> {
        let dnode = new_dnode(tx, kind, record_shift, attributes)?;
        if number / DNODES_PER_BLOCK as u64 >= DNODE_BLOCKS_MAX {
            let text = format!("object number {number} is too large");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        self.numbers.skip_to(number / DNODES_PER_BLOCK as u64 + 1);
        if self.put_if_free(tx, number, &dnode)? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Exists, format!("object {number} exists already")))
    }

    fn put_if_free(&self, tx: &Tx, number: u64, dnode: &DnodePhys) -> Result<bool> {
        let put = self.change_dnode_if(
            tx,
            number,
            |old| old.kind == 0,
            |old, reset| {
                *old = *dnode;
                *reset = true;
            },
        )?;
        Ok(put.is_some())
    }

    /// Destroys an object. Later lookups do not find it, and the sync frees its blocks.
    ///
    /// `note` is called under the lock of a shard of dnodes. By then all changes of the object have
    /// been noted, nobody else can get its number, and nothing can fail any more.
    ///
    /// The node stays in the table until the dnode is free, so nobody opens the object a second
    /// time meanwhile: [`open`](Self::open) waits for the object lock.
    pub(crate) fn destroy(
        self: &Arc<Self>,
        tx: &Tx,
        number: u64,
        note: impl FnOnce(),
    ) -> Result<()> {
        let node = self.open(number, tx.wait())?;
        let _lock = node.lock_object(tx.wait())?;
        {
            let mut state = node.lock();
            if state.destroyed.is_some() {
                return Err(self.no_object(number));
            }
            state.destroyed = Some(tx.txg());
        }
        let freed = self.change_dnode(tx, number, |dnode, reset| {
            note();
            *dnode = DnodePhys::FREE;
            *reset = true;
        });
        if freed.is_err() {
            node.lock().destroyed = None;
            return freed;
        }
        self.nodes[shard_of(number)].lock().remove(&number);
        Ok(())
    }

    /// Changes the attributes of an object.
    pub(crate) fn set_attributes(&self, tx: &Tx, number: u64, attributes: &[u8]) -> Result<()> {
        check_attributes(attributes)?;
        let fits = self.change_dnode(tx, number, |dnode, _| {
            (dnode.kind != 0).then(|| dnode.set_attributes(attributes))
        })?;
        match fits {
            Some(true) => Ok(()),
            Some(false) => {
                let text = format!(
                    "object {number}: {} bytes of attributes do not fit beside its inline content",
                    attributes.len()
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            None => Err(self.no_object(number)),
        }
    }

    /// Opens the object with this number.
    pub(crate) fn open(self: &Arc<Self>, number: u64, wait: Wait) -> Result<Arc<Node>> {
        let shard = &self.nodes[shard_of(number)];
        loop {
            let tree = self.tree();
            let known = shard.lock().get(&number).and_then(Weak::upgrade);
            if let Some(node) = known {
                if node.lock().destroyed.is_none() {
                    return Ok(node);
                }
                // Destruction holds the object lock until the node is gone from the table.
                drop(node.lock_object(wait)?);
                continue;
            }
            let newest = self.dnodes.newest(number);
            let is_dirty = matches!(newest, NewestDnode::Dirty(..));
            let (dnode, reset) = self.resolve(number, newest, wait)?;
            if dnode.kind == 0 {
                return Err(self.no_object(number));
            }
            let data = match reset {
                true => DataFields::EMPTY,
                false => DataFields::of(&self.stored_dnode(number, wait)?)
                    .map_err(|error| error.doing(format_args!("object {number}")))?,
            };
            let node = Node::new(self.clone(), number, &dnode, data)?;
            let mut nodes = shard.lock();
            let other = nodes.get(&number).and_then(Weak::upgrade);
            // A node with newer data may have been opened and dropped meanwhile. It is dropped only
            // after the tree with its data is in place, so compare the trees.
            if other.is_some() || self.tree().root != tree.root {
                drop(nodes);
                continue;
            }
            // Another thread may have opened and destroyed the object meanwhile. From now on it
            // would find this node. The stored dnode is unchanged as long as the tree is.
            let same = match self.dnodes.newest(number) {
                NewestDnode::Dirty(now, _) => is_same_object(&now, &dnode),
                NewestDnode::Stored => !is_dirty,
            };
            if same {
                nodes.insert(number, Arc::downgrade(&node));
                return Ok(node);
            }
            drop(nodes);
        }
    }

    /// The newest attribute fields of an object.
    pub(crate) fn dnode(&self, number: u64, wait: Wait) -> Result<DnodePhys> {
        let (dnode, _) = self.newest_dnode(number, wait)?;
        if dnode.kind == 0 { Err(self.no_object(number)) } else { Ok(dnode) }
    }

    /// Length and allocated space of an object. `number` is in use.
    pub(crate) fn usage(&self, number: u64, wait: Wait) -> Result<ObjectUsage> {
        // An object with changes that are not synced is open.
        let node = self.nodes[shard_of(number)].lock().get(&number).and_then(Weak::upgrade);
        if let Some(node) = node {
            return Ok(node.usage());
        }
        match self.dnodes.newest(number) {
            NewestDnode::Dirty(_, true) => Ok(ObjectUsage::default()),
            _ => {
                let data = DataFields::of(&self.stored_dnode(number, wait)?)
                    .map_err(|error| error.doing(format_args!("object {number}")))?;
                let (size_bytes, allocated_bytes) = (data.size, data.allocated);
                Ok(ObjectUsage { size_bytes, allocated_bytes, is_estimate: false })
            }
        }
    }

    fn newest_dnode(&self, number: u64, wait: Wait) -> Result<(DnodePhys, bool)> {
        self.resolve(number, self.dnodes.newest(number), wait)
    }

    fn resolve(&self, number: u64, newest: NewestDnode, wait: Wait) -> Result<(DnodePhys, bool)> {
        match newest {
            NewestDnode::Dirty(dnode, reset) => Ok((*dnode, reset)),
            NewestDnode::Stored => Ok((self.stored_dnode(number, wait)?, false)),
        }
    }

    fn no_object(&self, number: u64) -> Error {
        Error::new(ErrorKind::NotFound, format!("object {number} does not exist"))
    }
}

impl Drop for Objset {
    fn drop(&mut self) {
        // Dirty dnodes of txgs that were never synced.
        self.io.store.cache().sub_dirty(self.dnodes.bytes());
    }
}

/// Whether two states of a dnode belong to the same object, or to two objects without a
/// visible difference.
fn is_same_object(one: &DnodePhys, other: &DnodePhys) -> bool {
    one.kind == other.kind
        && one.created_txg == other.created_txg
        && one.record_shift == other.record_shift
}

/// The tree of an objset's dnode blocks.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the fields do not form such a tree.
pub(crate) fn dnode_tree(phys: &ObjsetPhys) -> Result<Tree> {
    Tree::from_parts(phys.root, phys.levels, phys.blocks.get())
        .and_then(check_dnode_tree)
        .map_err(|error| error.doing("an objset"))
}

/// Rejects a tree of dnode blocks that is too high for object numbers.
fn check_dnode_tree(tree: Tree) -> Result<Tree> {
    if tree.levels <= DNODE_LEVELS_MAX {
        return Ok(tree);
    }
    let text =
        format!("its tree of dnodes has {} levels; the limit is {DNODE_LEVELS_MAX}", tree.levels);
    Err(Error::new(ErrorKind::Corrupt, text))
}

fn shard_of(number: u64) -> usize {
    number as usize % SHARDS
}

pub(crate) fn check_attributes(attributes: &[u8]) -> Result<()> {
    if attributes.len() <= ATTRIBUTES_MAX {
        return Ok(());
    }
    let text = format!(
        "{} bytes of attributes exceed the limit of {ATTRIBUTES_MAX} bytes per object",
        attributes.len()
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

fn new_dnode(tx: &Tx, kind: ObjectKind, record_shift: u8, attributes: &[u8]) -> Result<DnodePhys> {
    check_attributes(attributes)?;
    let mut dnode = DnodePhys::FREE;
    dnode.kind = kind as u8;
    dnode.record_shift = record_shift;
    dnode.created_txg = tx.txg().into();
    let fits = dnode.set_attributes(attributes);
    assert!(fits, "check_attributes has checked the length");
    Ok(dnode)
}
