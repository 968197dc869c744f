//! Changes that only commits of their own object write: content and touched attributes. What was written is not
//! kept, only where; it is fetched when a commit wants it. Attributes are kept, as the newest touch left them: those that an
//! object has when the commit comes to it may be of a transaction that the commit does not take.
//!
//! An object is *bound* when a change of names must not become durable without its content: the next
//! commit, of whichever object, takes its changes too.
//!
//! Invariant: an object's list of one txg is in the order of its serial numbers. Two writes in a row
//! that touch are one; it keeps the first one's number, which is right because no other change of the object is
//! between them.

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use hashbrown::HashTable;

use crate::txg::slot_of;

/// Shards, by object.
const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 64 };
/// Most changes kept of one object and txg: past it its commits go to the txg.
const CHANGES_MAX: usize = 4096;

/// A change of an object's content or attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Write { offset: u64, len: u64 },
    Truncate { size: u64 },
    Punch { offset: u64, len: u64 },
}

/// What is taken of an object.
#[derive(Default)]
pub(super) struct ObjectChanges {
    pub(super) touched: Vec<Touched>,
    pub(super) attributes: Vec<Attributes>,
    /// The newest txg of which changes were not kept, so that these are not all; 0 if there is none.
    pub(super) lost_txg: u64,
}

/// Attributes as a touch left them.
pub(super) struct Attributes {
    pub(super) txg: u64,
    pub(super) serial: u64,
    pub(super) bytes: Vec<u8>,
}

/// The same with its txg and its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) txg: u64,
    pub(super) serial: u64,
    pub(super) touch: Touch,
}

/// What is known of an object in one txg.
#[derive(Default)]
struct TxgSlot {
    changes: Vec<Touched>,
    /// Bytes of content to be fetched.
    bytes: u64,
    /// The newest touch of attributes.
    attributes: Option<Attributes>,
}

struct ObjectLog {
    dataset: u64,
    object: u64,
    slots: [TxgSlot; 2],
    /// The newest txg of which changes were not kept; 0 if there is none.
    lost_txg: u64,
    /// The newest txg in which it was bound, and no commit has taken it since; 0 if there is none.
    bound_txg: u64,
}

/// Objects, and which of them are bound (dataset and number).
#[derive(Default)]
struct ObjectShard {
    logs: HashTable<ObjectLog>,
    bound: Vec<(u64, u64)>,
}

/// What a commit finds of its object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommitLookup {
    /// This many bytes of content.
    Bytes(u64),
    /// Changes of this txg were not kept.
    Lost(u64),
}

/// All objects with such changes.
pub(super) struct Objects {
    shards: Box<[CachePadded<Mutex<ObjectShard>>]>,
    /// By shard: how often one of its objects was cut, punched or destroyed. Changed under the shard's lock.
    cuts: Box<[AtomicU64]>,
    /// Entries in the shards' lists of bound objects. Changed under the shard's lock.
    bound: AtomicU64,
    /// The newest txg in which all objects were bound, and no commit has taken them since; 0 if there is none.
    all_bound_txg: AtomicU64,
}

/// Spreads numbers of datasets and objects.
#[inline]
fn hash(dataset: u64, object: u64) -> u64 {
    let mixed = (object ^ dataset.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Objects {
    pub(super) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("log-objects", ObjectShard::default()));
        let cuts = (0..SHARDS).map(|_| AtomicU64::new(0)).collect();
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            cuts,
            bound: AtomicU64::new(0),
            all_bound_txg: AtomicU64::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<ObjectShard> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// A number that changes when the object is cut, punched or destroyed; and perhaps when another one is.
    pub(super) fn cuts(&self, dataset: u64, object: u64) -> u64 {
        self.cuts_of(hash(dataset, object)).load(Ordering::SeqCst)
    }

    fn cuts_of(&self, hash: u64) -> &AtomicU64 {
        &self.cuts[(hash >> 32) as usize % SHARDS]
    }

    /// Notes a change. `serial` is asked for its number under the lock.
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
            self.cuts_of(hash).fetch_add(1, Ordering::SeqCst);
        }
        object_in(&mut shard.logs, hash, (dataset, object)).note(txg, touch, max_bytes, serial);
    }

    /// Notes attributes, in place of those before. The caller has the object lock. `serial` is asked for their number under
    /// the lock.
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

    /// Forgets an object's touched attributes: it was given others, of which all commits know.
    pub(super) fn forget_attributes(&self, dataset: u64, object: u64) {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        if let Some(log) = self.shard(hash).lock().logs.find_mut(hash, same) {
            log.slots.iter_mut().for_each(|slot| slot.attributes = None);
        }
    }

    /// Forgets an object: it was destroyed.
    pub(super) fn forget(&self, dataset: u64, object: u64) {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        let mut shard = self.shard(hash).lock();
        self.cuts_of(hash).fetch_add(1, Ordering::SeqCst);
        if let Ok(found) = shard.logs.find_entry(hash, same) {
            found.remove();
        }
    }

    /// What there is of an object.
    pub(super) fn lookup_changes(&self, dataset: u64, object: u64) -> CommitLookup {
        let hash = hash(dataset, object);
        let same = |log: &ObjectLog| (log.dataset, log.object) == (dataset, object);
        match self.shard(hash).lock().logs.find(hash, same) {
            None => CommitLookup::Bytes(0),
            Some(log) if log.lost_txg != 0 => CommitLookup::Lost(log.lost_txg),
            Some(log) => CommitLookup::Bytes(log.slots[0].bytes + log.slots[1].bytes),
        }
    }

    /// Takes an object's changes, those of both txgs one after another; what was lost stays lost.
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

    /// Binds an object, if a commit would have something to take. The caller has noted the changes before,
    /// and notes the change of names afterwards.
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

    /// Adds the bound objects to `objects`; they are not bound any more. What was bound up to txg `synced` is durable.
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

    /// Drops the changes of a txg, and objects without any.
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

/// What is known of an object, made empty if it was nothing.
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
    /// Whether there are none, and none were lost.
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.attributes.is_empty() && self.lost_txg == 0
    }

    /// Bytes of content to be fetched.
    pub(super) fn bytes(&self) -> u64 {
        let of = |touched: &Touched| match touched.touch {
            Touch::Write { len, .. } => len,
            _ => 0,
        };
        self.touched.iter().map(of).fold(0, u64::saturating_add)
    }
}

impl ObjectLog {
    /// Whether there are no changes, and none were lost.
    fn is_empty(&self) -> bool {
        self.slots.iter().all(TxgSlot::is_empty) && self.lost_txg == 0
    }

    /// Forgets what is durable with that txg.
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

    /// Makes the last write longer, if `touch` is one that touches it.
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
