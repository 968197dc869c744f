//! The state that all threads of an L2 share, its status and its failure.
//!
//! Locking: `l2-failure`, a leaf lock, to read or set the reason. `l2-voiding`, held while the
//! label is written. Other locks are described in their modules.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::Key;

use crate::codec::{AdmissionRefusal, Codec, MAX_KEY_BYTES, MAX_NOTE_BYTES};
use crate::counters::L2Counters;
use crate::device_io::DeviceIo;
use crate::forget::{PendingForgets, VoidQueue, void_queue};
use crate::format::{BATCH_HEADER_BYTES, block_bytes};
use crate::groups::Groups;
use crate::index::Index;
use crate::label::{self, LabelInfo};
use crate::load::Loads;
use crate::options::L2Options;
use crate::rebuild::Rebuild;
use crate::record::{KeyHash, MAX_BLOCK_UNITS, UNIT_BYTES};
use crate::ring::Ring;
use crate::tunables::L2Tunables;
use crate::warm_up::WarmUpState;
use crate::write_queue::{AdmissionPolicy, FrequencySketch, WriteQueue, WriteRate};

/// The state of an L2.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The L2 reads and writes.
    Healthy,
    /// The device failed, or the rebuild found no memory. The L2 does no I/O until it is opened
    /// again.
    Failed {
        /// The reason.
        why: String,
        /// Whether the label is void, so that no old block can return.
        voided: bool,
    },
    /// The L2 was closed.
    Closed,
    /// The L2 was removed.
    Removed,
}

/// The status of an L2, in one atomic word.
pub(crate) struct Status(AtomicU8);

const OPEN: u8 = 0;
const FAILED: u8 = 1;
const CLOSED: u8 = 2;
const REMOVED: u8 = 3;

impl Status {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// The reason to refuse blocks, if the L2 is not open.
    pub(crate) fn refusal(&self) -> Option<AdmissionRefusal> {
        match self.0.load(Ordering::Acquire) {
            OPEN => None,
            FAILED => Some(AdmissionRefusal::Failed),
            _ => Some(AdmissionRefusal::Removed),
        }
    }

    fn leave_open(&self, to: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(OPEN, to, order.0, order.1).is_ok()
    }
}

/// The state that all threads of an L2 share.
pub(crate) struct L2Shared<K: Key, V: Send + Sync + 'static> {
    /// The user's codec. Called through [`L2Shared::with_codec`] only.
    codec: Arc<dyn Codec<K, V>>,
    note_bytes: usize,
    pub(crate) label: LabelInfo,
    pub(crate) immutable_keys: bool,
    on_failure: Option<Arc<dyn Fn(&str) + Send + Sync>>,
    pub(crate) max_stamp: u64,
    pub(crate) index: Index,
    pub(crate) ring: Ring,
    pub(crate) io: DeviceIo,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Arc<L2Tunables>,
    pub(crate) counters: L2Counters,
    pub(crate) status: Status,
    pub(crate) write_queue: WriteQueue<K, V>,
    /// How often blocks were offered lately that the L2 did not hold.
    pub(crate) frequency_sketch: FrequencySketch,
    pub(crate) admission: AdmissionPolicy,
    /// Whether all segments have been used.
    pub(crate) has_wrapped: AtomicBool,
    pub(crate) pending_forgets: PendingForgets,
    pub(crate) groups: Groups,
    pub(crate) void_queue: VoidQueue,
    pub(crate) loads: Loads<K, V>,
    pub(crate) rebuild: Rebuild,
    pub(crate) warm_up_state: WarmUpState,
    /// Seeds the guid when the L2 is emptied.
    pub(crate) seed: u64,
    /// The user's mark in the label.
    pub(crate) user_mark: AtomicU64,
    /// Whether the label is void, durably.
    pub(crate) voided: AtomicBool,
    /// Time of the last attempt to void the label, in nanoseconds. 0 if there was none.
    pub(crate) void_tried_ns: AtomicU64,
    failure: Mutex<Option<String>>,
    /// Held by the thread that writes or voids the label. Other threads wait for the outcome.
    pub(crate) voiding: Mutex<()>,
}

forebay_base::sync::thread_local! {
    /// The L2 that owns this thread, by the address of its shared state. 0 if none.
    static WORKS_FOR: Cell<usize> = const { Cell::new(0) };
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    pub(crate) fn new(
        codec: Arc<dyn Codec<K, V>>,
        label: LabelInfo,
        io: DeviceIo,
        options: &L2Options,
    ) -> Self {
        let geometry = label.geometry();
        let tunables = Arc::clone(&options.tunables);
        let max = tunables.write_max_bytes_per_s();
        let bounds =
            crate::write_queue::RateBounds { min: tunables.write_min_bytes_per_s().min(max), max };
        let now = options.clock.now_ns();
        Self {
            note_bytes: codec.note_bytes(),
            codec,
            label,
            immutable_keys: options.immutable_keys,
            on_failure: options.on_failure.clone(),
            max_stamp: options.max_stamp,
            index: Index::new(
                geometry.segments,
                geometry.estimated_records(),
                geometry.batch_units(),
            ),
            ring: Ring::new(geometry, label.guid),
            io,
            clock: Arc::clone(&options.clock),
            tunables,
            counters: L2Counters::default(),
            status: Status(AtomicU8::new(OPEN)),
            write_queue: WriteQueue::new(WriteRate::new(bounds, now)),
            frequency_sketch: FrequencySketch::new(),
            admission: AdmissionPolicy::new(),
            has_wrapped: AtomicBool::new(false),
            pending_forgets: PendingForgets::new(),
            groups: Groups::new(),
            void_queue: void_queue(),
            loads: Loads::new(),
            rebuild: Rebuild::new(geometry, !options.immutable_keys, now),
            warm_up_state: WarmUpState::new(),
            seed: options.seed,
            user_mark: AtomicU64::new(label.user_mark),
            voided: AtomicBool::new(false),
            void_tried_ns: AtomicU64::new(0),
            failure: Mutex::named("l2-failure", None),
            voiding: Mutex::named("l2-voiding", ()),
        }
    }

    /// Registers the calling thread as one of the L2's own until it ends.
    pub(crate) fn enter_thread(&self) {
        WORKS_FOR.with(|l2| l2.set(std::ptr::from_ref(self).addr()));
    }

    /// Whether the calling thread belongs to the L2. Such a thread must not wait for the others.
    pub(crate) fn is_own_thread(&self) -> bool {
        WORKS_FOR.with(|l2| l2.get() == std::ptr::from_ref(self).addr())
    }

    /// Calls the user's codec. Returns `None` if it panicked. The panic is counted, and the panic
    /// hook has reported it.
    pub(crate) fn with_codec<T>(&self, question: impl FnOnce(&dyn Codec<K, V>) -> T) -> Option<T> {
        self.catch_panic(|| question(&*self.codec))
    }

    /// Runs user code. Returns `None` if it panicked.
    pub(crate) fn catch_panic<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        let thrown = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(answer) => return Some(answer),
            Err(thrown) => thrown,
        };
        self.counters.add(L2Counters::CODEC_PANICS, 0, 1);
        // The panic payload may panic in its drop. A second payload is leaked.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
            std::mem::forget(again);
        }
        None
    }

    /// Encodes a key. The length is the label's. Returns `None` if the codec panicked.
    pub(crate) fn encode_key(&self, key: &K) -> Option<[u8; MAX_KEY_BYTES]> {
        let mut bytes = [0; MAX_KEY_BYTES];
        let out = &mut bytes[..self.label.key_bytes];
        self.with_codec(|codec| codec.encode_key(key, out))?;
        Some(bytes)
    }

    /// The hash of a key. Returns `None` if the codec panicked.
    pub(crate) fn key_hash(&self, key: &K) -> Option<KeyHash> {
        Some(self.hash_of_encoded(&self.encode_key(key)?[..self.label.key_bytes]))
    }

    /// The hash of an encoded key.
    pub(crate) fn hash_of_encoded(&self, key: &[u8]) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64_with_seed(key, self.label.hash_seed))
    }

    /// Bytes that a block with a value of this length takes.
    pub(crate) fn block_bytes(&self, value_bytes: usize) -> u64 {
        block_bytes(self.label.key_bytes + self.note_bytes, value_bytes)
    }

    /// The note of a key, and its length. Returns `None` if the codec panicked.
    pub(crate) fn encode_note(&self, key: &K) -> Option<([u8; MAX_NOTE_BYTES], usize)> {
        let mut bytes = [0; MAX_NOTE_BYTES];
        let out = &mut bytes[..self.note_bytes];
        self.with_codec(|codec| codec.encode_note(key, out))?;
        Some((bytes, self.note_bytes))
    }

    /// Maximum size of a block with its header, in bytes.
    pub(crate) fn max_block_bytes(&self) -> u64 {
        let largest = self.ring.geometry.max_block_bytes() - BATCH_HEADER_BYTES as u64;
        largest.min(u64::from(MAX_BLOCK_UNITS) * UNIT_BYTES) / UNIT_BYTES * UNIT_BYTES
    }

    /// Fails the L2. With mutable keys the label is voided, so that no old block can return.
    pub(crate) fn fail(&self, why: &str) {
        self.fail_with(why, !self.immutable_keys);
    }

    /// Fails an L2 whose log is intact. The label stays until a key is forgotten.
    pub(crate) fn fail_intact(&self, why: &str) {
        self.fail_with(why, false);
    }

    fn fail_with(&self, why: &str, voids: bool) {
        *self.failure.lock() = Some(why.to_owned());
        if !self.status.leave_open(FAILED) {
            return;
        }
        tracing::error!(device = &*self.io.device.info().name, error = why, "L2 failed");
        // First: the user's function may wait for the rebuild, or panic.
        self.rebuild.stop();
        self.on_failure.iter().for_each(|call| call(why));
        if voids {
            self.try_void();
        }
        self.end_write_queue();
    }

    /// Voids the label, unless an attempt failed a moment ago. Returns whether it is void.
    pub(crate) fn try_void(&self) -> bool {
        /// Pause between two attempts.
        const PAUSE_NS: u64 = 1_000_000_000;
        if self.voided.load(Ordering::Acquire) {
            return true;
        }
        // A thread that arrives meanwhile must see the outcome of this attempt.
        let _voiding = self.voiding.lock();
        let now = self.clock.now_ns().max(1);
        let before = self.void_tried_ns.load(Ordering::Acquire);
        if self.voided.load(Ordering::Acquire)
            || before != 0 && now.saturating_sub(before) < PAUSE_NS
        {
            return self.voided.load(Ordering::Acquire);
        }
        let voided = self.void_now();
        // The pause begins at the end of the attempt: a hanging device takes long, and waiting
        // threads must not retry one by one.
        self.void_tried_ns.store(self.clock.now_ns().max(1), Ordering::Release);
        voided
    }

    /// Voids the label. Returns whether it is void. The caller holds `voiding`.
    pub(crate) fn void_now(&self) -> bool {
        let voided = label::void(&self.io, &self.label).is_ok();
        if voided {
            self.voided.store(true, Ordering::Release);
            tracing::warn!(device = &*self.io.device.info().name, "voided L2 label");
        }
        voided
    }

    /// Stops new loads and writes. Returns whether the L2 was open.
    pub(crate) fn close_status(&self) -> bool {
        self.status.leave_open(CLOSED)
    }

    /// Marks the L2 as removed, whatever its status was.
    pub(crate) fn mark_removed(&self) {
        self.status.0.store(REMOVED, Ordering::Release);
    }

    pub(crate) fn health(&self) -> Health {
        match self.status.0.load(Ordering::Acquire) {
            OPEN => Health::Healthy,
            FAILED => Health::Failed {
                why: self.failure.lock().clone().unwrap_or_default(),
                voided: self.voided.load(Ordering::Acquire),
            },
            CLOSED => Health::Closed,
            _ => Health::Removed,
        }
    }

    /// Bytes of memory in use, without buffers of the arena.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let own = size_of::<Self>() as u64;
        own + self.index.memory_bytes()
            + self.ring.memory_bytes()
            + self.frequency_sketch.memory_bytes()
            + self.admission.memory_bytes()
            + self.rebuild.memory_bytes()
            + self.groups.memory_bytes()
    }
}
