//! Shared by all model checks: values that record their drop, and a cache of them.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use foldhash::quality::FixedState;
use forebay_base::clock::Clock;
use forebay_base::model::below;
use forebay_cache::{Attributes, Builder, Cache, Reclaim};

/// Values of one execution that a [`Ledger`] can distinguish.
const MOST_BLOCKS: usize = 256;

const ALIVE: u8 = 1;
const DEAD: u8 = 2;

/// Which blocks live. Uses ordinary atomics: the ledger is not part of the check.
pub(crate) struct Ledger {
    life_states: [AtomicU8; MOST_BLOCKS],
    next: AtomicUsize,
    /// Contradictions that blocks have found.
    faults: AtomicUsize,
}

impl Ledger {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            life_states: std::array::from_fn(|_| AtomicU8::new(0)),
            next: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        })
    }

    /// Ends the execution. Also counted, because the cache catches panics in drops.
    fn fault(&self, what: String) -> ! {
        self.faults.fetch_add(1, Ordering::Relaxed);
        panic!("{what}");
    }

    /// Panics unless every block was dropped once.
    pub(crate) fn assert_gone(&self) {
        assert_eq!(self.faults.load(Ordering::Relaxed), 0, "a panic was caught, see above");
        assert_eq!(self.alive(), 0, "blocks that were not dropped");
    }

    /// Blocks that were not dropped.
    pub(crate) fn alive(&self) -> usize {
        self.life_states.iter().filter(|state| state.load(Ordering::Relaxed) == ALIVE).count()
    }
}

/// A value that knows its key and must be dropped once.
pub(crate) struct Block {
    pub(crate) key: u64,
    pub(crate) version: u64,
    id: usize,
    ledger: Arc<Ledger>,
}

impl Block {
    /// The first version of a block of `key`.
    pub(crate) fn new(ledger: &Arc<Ledger>, key: u64) -> Self {
        let id = ledger.next.fetch_add(1, Ordering::Relaxed);
        ledger.life_states[id].store(ALIVE, Ordering::Relaxed);
        Self { key, version: 0, id, ledger: ledger.clone() }
    }

    /// Panics unless this is a block of `key` that was not dropped.
    pub(crate) fn check(&self, key: u64) {
        let state = self.ledger.life_states[self.id].load(Ordering::Relaxed);
        if state != ALIVE {
            self.ledger.fault(format!("a block of {} was read after its drop", self.key));
        }
        if self.key != key {
            self.ledger.fault(format!("a block of {} was found under {key}", self.key));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let state = self.ledger.life_states[self.id].swap(DEAD, Ordering::Relaxed);
        if state != ALIVE {
            self.ledger.fault(format!("a block of {} was dropped twice", self.key));
        }
    }
}

/// A cache, and what must be freed with it.
pub(crate) struct World {
    cache: Option<Cache<u64, Block>>,
    pub(crate) ledger: Arc<Ledger>,
    /// A clone of it lives in `CacheInner`.
    token: Arc<()>,
}

pub(crate) const SEED: u64 = 7;

impl World {
    /// A cache for `capacity` blocks whose inserters evict.
    pub(crate) fn inline(capacity: u64) -> Self {
        Self::build(capacity, |builder| builder.reclaim(Reclaim::Inline))
    }

    /// A cache for `capacity` blocks, configured by `describe`.
    pub(crate) fn build(
        capacity: u64,
        describe: impl FnOnce(Builder<u64, Block>) -> Builder<u64, Block>,
    ) -> Self {
        let token = Arc::new(());
        let inside = token.clone();
        let builder = Cache::builder()
            .capacity(capacity)
            .weigher(move |_, block: &Block| {
                let _kept = &inside;
                1 + block.version / WEIGHT
            })
            .clock(Arc::new(Hasty::default()))
            .seed(SEED);
        let cache = Some(describe(builder).build().expect("a small cache"));
        Self { cache, ledger: Ledger::new(), token }
    }

    pub(crate) fn cache(&self) -> &Cache<u64, Block> {
        self.cache.as_ref().expect("there until it is dropped")
    }

    /// A value for the cache.
    pub(crate) fn block(&self, key: u64, version: u64) -> Block {
        let mut block = Block::new(&self.ledger, key);
        block.version = version;
        block
    }

    /// Inserts the first version of a block, of weight 1. False if there was no capacity: threads
    /// that evict for themselves may take each other's.
    pub(crate) fn insert(&self, key: u64) -> bool {
        self.offer(key, Attributes::DATA)
    }

    /// Inserts a block with the given class and hint.
    pub(crate) fn offer(&self, key: u64, attributes: Attributes) -> bool {
        match self.cache().insert_with(key, self.block(key, 0), attributes) {
            Ok(()) => true,
            Err(refused) => {
                refused.value.check(key);
                false
            }
        }
    }

    /// Looks a block up and checks it.
    pub(crate) fn get(&self, key: u64) -> bool {
        let found = self.cache().get(&key);
        found.inspect(|block| block.check(key)).is_some()
    }

    /// Checks at the end of all threads: the audit, before and after dropping the cache.
    pub(crate) fn end(world: Arc<Self>) {
        let world = Arc::into_inner(world).expect("all threads have ended");
        world.cache().audit();
        world.end_dropped();
    }

    /// Drops the cache. Nothing of it may be left.
    pub(crate) fn end_dropped(mut self) {
        drop(self.cache.take());
        self.assert_gone();
    }

    /// Takes the cache out, to drop it while references exist.
    pub(crate) fn take_cache(&mut self) -> Cache<u64, Block> {
        self.cache.take().expect("there until it is dropped")
    }

    pub(crate) fn assert_gone(&self) {
        self.ledger.assert_gone();
        assert_eq!(Arc::strong_count(&self.token), 1, "the cache's insides outlived it");
    }
}

/// Versions of a block at multiples of this weigh one more.
pub(crate) const WEIGHT: u64 = 1000;

/// A clock by which any step may take any time.
#[derive(Default)]
pub(crate) struct Hasty(AtomicUsize);

impl Clock for Hasty {
    fn now_ns(&self) -> u64 {
        let step = if below(8) == 0 { 1 << 40 } else { 1 };
        self.0.fetch_add(step, Ordering::Relaxed) as u64
    }
}

/// `count` keys in the same partition of the index.
pub(crate) fn neighbours(count: usize) -> Vec<u64> {
    let hasher = FixedState::with_seed(SEED);
    (0..).filter(|key: &u64| hasher.hash_one(key) >> 63 == 0).take(count).collect()
}
