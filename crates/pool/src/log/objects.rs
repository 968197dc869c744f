//! Changes that only commits of their own object write: content and touched attributes.
//!
//! Of content only the range is kept; a commit reads the bytes. Attributes are kept as the last
//! touch set them: the object's current attributes may belong to a transaction that the commit does
//! not include.
//!
//! An object is *bound* if a change of names must not become durable without its content. The next
//! commit, of any object, then takes its changes too.
//!
//! Invariant: an object's list of one txg is ordered by serial number. Adjacent writes are merged
//! and keep the first serial number. This is correct because no other change of the object lies
//! between them.

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use hashbrown::HashTable;

use crate::txg::slot_of;

/// Number of shards, by object.
const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 64 };
/// Maximum number of changes kept per object and txg. Beyond it, commits fall back to the txg.
const CHANGES_MAX: usize = 4096;

/// A change of an object's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Write { offset: u64, len: u64 },
    Truncate { size: u64 },
    Punch { offset: u64, len: u64 },
    Preallocate { offset: u64, len: u64 },
}

/// The changes taken of one object.
#[derive(Default)]
pub(super) struct ObjectChanges {
    pub(super) touched: Vec<Touched>,
    pub(super) attributes: Vec<Attributes>,
    /// The newest txg of which changes were dropped, so that these are incomplete; 0 if none.
    pub(super) lost_txg: u64,
}

/// Attributes as set by a touch.
pub(super) struct Attributes {
    pub(super) txg: u64,
    pub(super) serial: u64,
    pub(super) bytes: Vec<u8>,
}

/// A touch with its txg and serial number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) txg: u64,
    pub(super) serial: u64,
    pub(super) touch: Touch,
}

/// Changes of an object in one txg.
#[derive(Default)]
struct TxgSlot {
    changes: Vec<Touched>,
    /// Bytes of content to read.
    bytes: u64,
    /// The last touch of attributes.
    attributes: Option<Attributes>,
}

struct ObjectLog {
    dataset: u64,
    object: u64,
    slots: [TxgSlot; 2],
    /// The newest txg of which changes were dropped; 0 if none.
    lost_txg: u64,
    /// The newest txg in which the object was bound and not yet taken by a commit; 0 if none.
    bound_txg: u64,
}

/// Objects, and the bound ones among them (dataset and number).
#[derive(Default)]
struct ObjectShard {
    logs: HashTable<ObjectLog>,
    bound: Vec<(u64, u64)>,
}

/// Changes that a commit finds for its object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommitLookup {
    /// Bytes of content.
    Bytes(u64),
    /// The changes are incomplete: some of this txg were dropped.
    Lost(u64),
}

/// All objects with content changes or touched attributes.
pub(super) struct Objects {
    shards: Box<[CachePadded<Mutex<ObjectShard>>]>,
    /// Per shard: number of truncates, punches and destroys of its objects. Changed under the
    /// shard's lock.
    invalidations: Box<[AtomicU64]>,
    /// Number of entries in all lists of bound objects. Changed under the shard's lock.
    bound: AtomicU64,
    /// The newest txg in which all objects were bound and not yet taken by a commit; 0 if none.
    all_bound_txg: AtomicU64,
}

/// Hashes a dataset and an object number.
#[inline]
fn hash(dataset: u64, object: u64) -> u64 {
    let mixed = (object ^ dataset.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Objects {
    pub(super) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("log-objects", ObjectShard::default()));
        let invalidations = (0..SHARDS).map(|_| AtomicU64::new(0)).collect();
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            invalidations,
            bound: AtomicU64::new(0),
            all_bound_txg: AtomicU64::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<ObjectShard> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// A number that changes when the object is truncated, punched or destroyed. It may also change
    /// for other objects.
    pub(super) fn invalidations(&self, dataset: u64, object: u64) -> u64 {
        self.invalidations_of(hash(dataset, object)).load(Ordering::SeqCst)
    }

    fn invalidations_of(&self, hash: u64) -> &AtomicU64 {
        &self.invalidations[(hash >> 32) as usize % SHARDS]
    }

    /// Records a change. Calls `serial` under the lock.
    pub(super) fn note(
        &self,
        (txg, dataset, object): (u64, u64, u64),
        touch: Touch,
        max_bytes: u64,
        serial: impl FnOnce() -> u64,
    ) {
        let hash = hash(dataset, object);
        let mut shard = self.shard(hash).lock();
        if matches!(touch, Touch::Truncate { .. } | Touch::Punch { .. }) {
            self.invalidations_of(hash).fetch_add(1, Ordering::SeqCst);
        }
        object_in(&mut shard.logs, hash, (dataset, object)).note(txg, touch, max_bytes, serial);
    }

    /// Records attributes, replacing older ones. The caller has the object lock. Calls `serial`
    /// under the shard's lock.
    pub(super) fn note_attributes(
        &self,
        (txg, dataset, object): (u64, u64, u64),
        attributes: &[u8],
        serial: impl FnOnce() -> u64,
    ) {
        let hash = hash(dataset, object);
        let mut shard = self.shard(hash).lock();
        let log = object_in(&mut shard.logs, hash, (dataset, object));
        if log.lost_txg == txg {
            return;
        }
        let slot = &mut log.slots[slot_of(txg)];
        let mut bytes = slot.attributes.take().map(|before| before.bytes).unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(attributes);
        slot.attributes = Some(Attributes { txg, serial: serial(), bytes });
    }

    /// Drops an object's touched attributes: newer ones were recorded for all commits.
    pub(super) fn forget_attributes(&self, dataset: u64, object: u64) {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        if let Some(log) = self.shard(hash).lock().logs.find_mut(hash, same) {
            log.slots.iter_mut().for_each(|slot| slot.attributes = None);
        }
    }

    /// Drops a destroyed object.
    pub(super) fn forget(&self, dataset: u64, object: u64) {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        let mut shard = self.shard(hash).lock();
        self.invalidations_of(hash).fetch_add(1, Ordering::SeqCst);
        if let Ok(found) = shard.logs.find_entry(hash, same) {
            found.remove();
        }
    }

    /// Returns the size of an object's changes.
    pub(super) fn lookup_changes(&self, dataset: u64, object: u64) -> CommitLookup {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        match self.shard(hash).lock().logs.find(hash, same) {
            None => CommitLookup::Bytes(0),
            Some(log) if log.lost_txg != 0 => CommitLookup::Lost(log.lost_txg),
            Some(log) => CommitLookup::Bytes(log.slots[0].bytes + log.slots[1].bytes),
        }
    }

    /// Takes an object's changes, ordered within each txg. `lost_txg` stays set.
    pub(super) fn take(&self, dataset: u64, object: u64) -> ObjectChanges {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        match self.shard(hash).lock().logs.find_mut(hash, same) {
            None => ObjectChanges::default(),
            Some(log) => {
                let mut taken =
                    ObjectChanges { lost_txg: log.lost_txg, ..ObjectChanges::default() };
                for slot in &mut log.slots {
                    let slot = std::mem::take(slot);
                    taken.touched.extend(slot.changes);
                    taken.attributes.extend(slot.attributes);
                }
                taken
            }
        }
    }

    /// Binds an object if it has changes. The caller must record these before the call, and the
    /// change of names after it.
    pub(super) fn bind(&self, (txg, dataset, object): (u64, u64, u64)) {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        let mut shard = self.shard(hash).lock();
        let ObjectShard { logs, bound } = &mut *shard;
        let Some(log) = logs.find_mut(hash, same).filter(|log| !log.is_empty()) else { return };
        if log.bound_txg == 0 {
            bound.push((dataset, object));
            self.bound.fetch_add(1, Ordering::SeqCst);
        }
        log.bound_txg = log.bound_txg.max(txg);
    }

    /// Binds all objects.
    pub(super) fn bind_all(&self, txg: u64) {
        self.all_bound_txg.fetch_max(txg, Ordering::SeqCst);
    }

    /// Moves the bound objects to `objects`. Objects bound up to txg `synced` are durable.
    pub(super) fn take_bound(&self, synced: u64, objects: &mut Vec<(u64, u64)>) {
        let all = self.all_bound_txg.load(Ordering::SeqCst) != 0
            && self.all_bound_txg.swap(0, Ordering::SeqCst) > synced;
        if !all && self.bound.load(Ordering::SeqCst) == 0 {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let ObjectShard { logs, bound } = &mut *shard;
            self.bound.fetch_sub(bound.len() as u64, Ordering::SeqCst);
            if all {
                bound.clear();
                logs.iter_mut().for_each(|log| log.bound_txg = 0);
                objects.extend(logs.iter().map(|log| (log.dataset, log.object)));
                continue;
            }
            for (dataset, object) in bound.drain(..) {
                let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
                if let Some(log) = logs.find_mut(hash(dataset, object), same) {
                    log.bound_txg = 0;
                    objects.push((dataset, object));
                }
            }
        }
    }

    /// Drops the changes of a txg, and objects without changes.
    pub(super) fn drop_txg(&self, txg: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let ObjectShard { logs, bound } = &mut *shard;
            self.bound.fetch_sub(bound.len() as u64, Ordering::SeqCst);
            bound.clear();
            logs.retain(|log| {
                log.drop_txg(txg);
                if log.bound_txg != 0 && !log.is_empty() {
                    bound.push((log.dataset, log.object));
                }
                !log.is_empty()
            });
            self.bound.fetch_add(bound.len() as u64, Ordering::SeqCst);
        }
    }
}

/// Finds an object's entry, or inserts an empty one.
fn object_in(
    shard: &mut HashTable<ObjectLog>,
    hash: u64,
    (dataset, object): (u64, u64),
) -> &mut ObjectLog {
    let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
    let rehash = |log: &ObjectLog| self::hash(log.dataset, log.object);
    let entry = shard.entry(hash, same, rehash).or_insert_with(|| {
        let slots = [TxgSlot::default(), TxgSlot::default()];
        ObjectLog { dataset, object, slots, lost_txg: 0, bound_txg: 0 }
    });
    entry.into_mut()
}

impl ObjectChanges {
    /// Whether there are no changes and none were dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.attributes.is_empty() && self.lost_txg == 0
    }

    /// Bytes of content to read.
    pub(super) fn bytes(&self) -> u64 {
        let of = |touched: &Touched| match touched.touch {
            Touch::Write { len, .. } => len,
            _ => 0,
        };
        self.touched.iter().map(of).fold(0, u64::saturating_add)
    }
}

impl ObjectLog {
    /// Whether there are no changes and none were dropped.
    fn is_empty(&self) -> bool {
        self.slots.iter().all(TxgSlot::is_empty) && self.lost_txg == 0
    }

    /// Drops the changes that are durable with `txg`.
    fn drop_txg(&mut self, txg: u64) {
        self.slots[slot_of(txg)] = TxgSlot::default();
        if self.lost_txg <= txg {
            self.lost_txg = 0;
        }
        if self.bound_txg <= txg {
            self.bound_txg = 0;
        }
    }

    fn note(&mut self, txg: u64, touch: Touch, max_bytes: u64, serial: impl FnOnce() -> u64) {
        if self.lost_txg == txg {
            return;
        }
        let slot = &mut self.slots[slot_of(txg)];
        if !slot.extend(touch) {
            if let Touch::Write { len, .. } = touch {
                slot.bytes = slot.bytes.saturating_add(len);
            }
            slot.changes.push(Touched { txg, serial: serial(), touch });
        }
        if slot.changes.len() > CHANGES_MAX || slot.bytes > max_bytes {
            *slot = TxgSlot::default();
            self.lost_txg = self.lost_txg.max(txg);
        }
    }
}

impl TxgSlot {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.attributes.is_none()
    }

    /// Extends the last write by `touch`, if the two ranges overlap or adjoin.
    fn extend(&mut self, touch: Touch) -> bool {
        let Some(Touched { touch: Touch::Write { offset, len }, .. }) = self.changes.last_mut()
        else {
            return false;
        };
        let Touch::Write { offset: more_offset, len: more_len } = touch else { return false };
        let (end, more_end) = (*offset + *len, more_offset + more_len);
        if more_offset < *offset || more_offset > end {
            return false;
        }
        let grown = more_end.max(end) - *offset;
        self.bytes = self.bytes.saturating_add(grown - *len);
        *len = grown;
        true
    }
}
