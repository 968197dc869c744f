//! What is compared: ours, the peers, the baselines and the yardsticks, each in a file of
//! its own, behind two traits.
//!
//! A subject's operation is called through a generic worker, never through a virtual call:
//! only a whole measurement is behind a box. A subject can have several candidates (shard
//! counts, handles, policies); the benches try them all and keep the best.

mod baselines;
pub(crate) mod forebay;
#[cfg(feature = "peers")]
mod foyer;
#[cfg(feature = "peers")]
mod lru;
#[cfg(feature = "peers")]
mod moka;
#[cfg(feature = "peers")]
mod quick_cache;
mod yardsticks;

pub(crate) use baselines::{filled as filled_arc, sublists};

use std::hint::black_box;
use std::sync::Arc;

use crate::blocks::{BLOCK_BYTES, BlockRegion, RegionBlock};
use crate::keys::{KeySpace, KeyStream};
use crate::measure::{self, Limit, Sample, Worker};

/// Names of the subjects that others wrote.
pub(crate) const PEERS: &[&str] = &["quick_cache", "moka", "foyer", "mutex-lru-1", "mutex-lru-64"];

/// A cache in which every block is resident.
pub(crate) trait Reader: Send + Sync + 'static {
    /// Calls `touch` with the block's bytes while it holds them. None for a miss.
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R>;
}

/// A hit-only measurement.
pub(crate) struct ReadPlan {
    /// Threads that read.
    pub(crate) threads: usize,
    /// For how long.
    pub(crate) limit: Limit,
    /// Which keys.
    pub(crate) keys: KeySpace,
    /// True: copies the block out. False: reads eight of its bytes.
    pub(crate) copy: bool,
    /// Of the threads' generators.
    pub(crate) seed: u64,
}

/// One candidate of a subject of the hit-only benches.
pub(crate) struct ReadSubject {
    /// The subject.
    pub(crate) name: &'static str,
    /// How it is set.
    pub(crate) config: String,
    run: Box<dyn Fn(&ReadPlan) -> Sample>,
}

impl ReadSubject {
    /// A subject over a filled cache.
    pub(crate) fn new(name: &'static str, config: impl Into<String>, reader: impl Reader) -> Self {
        let run = move |plan: &ReadPlan| run_reader(&reader, plan);
        Self { name, config: config.into(), run: Box::new(run) }
    }

    /// A subject that measures itself.
    pub(crate) fn measured(
        name: &'static str,
        config: impl Into<String>,
        run: impl Fn(&ReadPlan) -> Sample + 'static,
    ) -> Self {
        Self { name, config: config.into(), run: Box::new(run) }
    }

    /// Measures it.
    pub(crate) fn run(&self, plan: &ReadPlan) -> Sample {
        (self.run)(plan)
    }
}

/// What is done with a block that was read.
pub(crate) struct BlockUse {
    copy: bool,
    sink: Box<[u8]>,
    sum: u64,
}

impl BlockUse {
    fn new(copy: bool) -> Self {
        Self { copy, sink: vec![0u8; BLOCK_BYTES].into_boxed_slice(), sum: 0 }
    }

    /// Where in the next block to look.
    #[inline]
    fn offset(&self, keys: &mut KeyStream) -> usize {
        if self.copy { 0 } else { keys.rng().below(BLOCK_BYTES as u64 / 8) as usize * 8 }
    }

    #[inline]
    fn block(&mut self, block: &[u8], offset: usize) {
        if self.copy {
            self.sink.copy_from_slice(block);
            black_box(&self.sink);
        } else {
            let bytes = &block[offset..offset + 8];
            let word = bytes.iter().fold(0u64, |w, b| w << 8 | u64::from(*b));
            self.sum = self.sum.wrapping_add(word);
        }
    }
}

impl Drop for BlockUse {
    fn drop(&mut self) {
        black_box(self.sum);
    }
}

struct ReadWorker<'a, S> {
    reader: &'a S,
    keys: KeyStream,
    block_use: BlockUse,
}

impl<S: Reader> Worker for ReadWorker<'_, S> {
    #[inline]
    fn step(&mut self) -> bool {
        let key = self.keys.next();
        let offset = self.block_use.offset(&mut self.keys);
        self.reader.read(key, |block| self.block_use.block(block, offset)).is_some()
    }
}

/// Runs a load of hits; `worker` makes one of a stream of keys and of what is done with their
/// blocks.
fn run_readers<W: Worker>(
    plan: &ReadPlan,
    worker: impl Fn(KeyStream, BlockUse) -> W + Sync,
) -> Sample {
    let stream = |thread| plan.keys.stream(thread, plan.threads, plan.seed);
    let make = |thread| worker(stream(thread), BlockUse::new(plan.copy));
    measure::run(plan.threads, plan.limit, make, || {})
}

fn run_reader<S: Reader>(reader: &S, plan: &ReadPlan) -> Sample {
    run_readers(plan, |keys, block_use| ReadWorker { reader, keys, block_use })
}

/// What the hit-only subjects are filled with.
pub(crate) struct ReadBlocks {
    /// In huge pages.
    pub(crate) huge: Arc<BlockRegion>,
    /// In plain pages, for the yardstick only.
    pub(crate) plain: Arc<BlockRegion>,
    /// Handles into `huge`.
    pub(crate) spans: Vec<RegionBlock>,
    /// Heap blocks.
    pub(crate) heap: Vec<Arc<[u8]>>,
}

impl ReadBlocks {
    /// `blocks` blocks of each kind.
    pub(crate) fn new(blocks: usize) -> Result<Self, forebay_base::vm::Error> {
        let huge = BlockRegion::new(blocks, true)?;
        let plain = BlockRegion::new(blocks, false)?;
        let (spans, heap) = (huge.handles(), huge.heap_handles());
        Ok(Self { huge, plain, spans, heap })
    }

    /// The number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.huge.len()
    }
}

/// Every candidate of every subject of the hit-only benches.
pub(crate) fn readers(blocks: &ReadBlocks, cpus: usize) -> Vec<ReadSubject> {
    let mut all = yardsticks::readers(blocks);
    all.extend(forebay::readers(blocks));
    all.extend(baselines::readers(blocks, cpus));
    #[cfg(feature = "peers")]
    {
        all.extend(quick_cache::readers(blocks));
        all.extend(moka::readers(blocks));
        all.extend(foyer::readers(blocks));
        all.extend(lru::readers(blocks));
    }
    all
}

/// The yardstick alone, over `blocks` blocks.
pub(crate) fn memcpy(blocks: usize) -> Result<Vec<ReadSubject>, forebay_base::vm::Error> {
    let (plain, huge) = (BlockRegion::new(blocks, false)?, BlockRegion::new(blocks, true)?);
    Ok(yardsticks::memcpy(&plain, &huge))
}

/// A cache that is asked for blocks and keeps what it likes.
pub(crate) trait Inserter: Send + Sync + 'static {
    /// Looks a block up and inserts it if it is missing. Returns true for a hit.
    fn get_or_insert(&self, key: u64) -> bool;
    /// Blocks resident now.
    fn resident(&self) -> u64;
}

/// What `evict` caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Value {
    /// One word: policy and bookkeeping are all there is to do.
    Word,
    /// A block of 8 KiB, allocated and written when it is missing, as a load does.
    Block,
}

impl Value {
    /// As options and figures spell it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Word => "word",
            Self::Block => "block",
        }
    }
}

/// A value that the peers hold: it comes out of the cache as a copy or a counted handle.
pub(crate) trait Loaded: Clone + Send + Sync + 'static {
    /// Whether it is no more than a word.
    #[cfg_attr(not(feature = "peers"), allow(dead_code, reason = "only a peer asks"))]
    const IS_WORD: bool;
    /// What a load brings.
    fn load(key: u64) -> Self;
    /// Something of it.
    fn look(&self) -> u64;
}

impl Loaded for u64 {
    const IS_WORD: bool = true;
    #[inline]
    fn load(key: u64) -> Self {
        key
    }
    #[inline]
    fn look(&self) -> u64 {
        *self
    }
}

impl Loaded for Arc<[u8]> {
    const IS_WORD: bool = false;
    #[inline]
    fn load(key: u64) -> Self {
        let mut block = Self::new_uninit_slice(BLOCK_BYTES);
        let bytes = Arc::get_mut(&mut block).expect("nobody else has it yet");
        bytes.fill(std::mem::MaybeUninit::new(key as u8));
        // SAFETY: every byte has just been written.
        unsafe { block.assume_init() }
    }
    #[inline]
    fn look(&self) -> u64 {
        u64::from(self[0]) + u64::from(self[BLOCK_BYTES / 2])
    }
}

/// Uses a value that was found.
#[inline]
pub(crate) fn touch<V: Loaded>(value: &V) {
    std::hint::black_box(value.look());
}

/// Uses a block that was found, as `touch` does.
#[inline]
pub(crate) fn touch_block(block: &[u8]) {
    std::hint::black_box(u64::from(block[0]) + u64::from(block[BLOCK_BYTES / 2]));
}

/// A measurement of a cache that is too small for its load.
pub(crate) struct EvictPlan {
    /// Threads that ask.
    pub(crate) threads: usize,
    /// For how long, after warming up.
    pub(crate) limit: Limit,
    /// Operations of all threads before that.
    pub(crate) warmup_operations: u64,
    /// Which keys.
    pub(crate) keys: KeySpace,
    /// Blocks that the cache holds.
    pub(crate) capacity: u64,
    /// Of the threads' generators.
    pub(crate) seed: u64,
}

/// What such a measurement found.
#[derive(Clone, Copy)]
pub(crate) struct EvictSample {
    /// Throughput and hits.
    pub(crate) sample: Sample,
    /// Mean number of resident blocks.
    pub(crate) mean_resident: f64,
    /// Largest number of resident blocks seen.
    pub(crate) max_resident: u64,
}

/// One candidate of a subject of `evict`.
pub(crate) struct EvictSubject {
    /// The subject.
    pub(crate) name: &'static str,
    /// How it is set.
    pub(crate) config: String,
    /// It cannot run on more threads than this.
    pub(crate) max_threads: usize,
    run: Box<dyn Fn(&EvictPlan) -> EvictSample>,
}

impl EvictSubject {
    /// A subject that `build` makes anew, for a number of blocks, for each measurement.
    pub(crate) fn new<S: Inserter>(
        name: &'static str,
        config: impl Into<String>,
        build: impl Fn(u64) -> S + 'static,
    ) -> Self {
        let run = move |plan: &EvictPlan| run_inserter(&build(plan.capacity), plan);
        Self { name, config: config.into(), max_threads: usize::MAX, run: Box::new(run) }
    }

    /// A subject that `build` makes for each measurement, and that runs on one thread only.
    pub(crate) fn single_threaded<S: Inserter>(
        name: &'static str,
        build: impl Fn(&EvictPlan) -> S + 'static,
    ) -> Self {
        let run = move |plan: &EvictPlan| run_inserter(&build(plan), plan);
        Self { name, config: String::new(), max_threads: 1, run: Box::new(run) }
    }

    /// Measures a fresh cache.
    pub(crate) fn run(&self, plan: &EvictPlan) -> EvictSample {
        (self.run)(plan)
    }
}

struct EvictWorker<'a, S> {
    inserter: &'a S,
    keys: KeyStream,
}

impl<S: Inserter> Worker for EvictWorker<'_, S> {
    #[inline]
    fn step(&mut self) -> bool {
        let key = self.keys.next();
        self.inserter.get_or_insert(key)
    }
}

fn run_inserter<S: Inserter>(inserter: &S, plan: &EvictPlan) -> EvictSample {
    // The measurement goes on in the load where warming up has ended.
    let make = |walked| {
        let stream = move |thread| plan.keys.stream_after(thread, plan.threads, plan.seed, walked);
        move |thread| EvictWorker { inserter, keys: stream(thread) }
    };
    let each = plan.warmup_operations / plan.threads as u64;
    measure::run(plan.threads, Limit::Operations(each), make(0), || {});
    let (mut turn, mut samples, mut sum, mut max_resident) = (0u64, 0u64, 0u64, 0u64);
    let sample = measure::run(plan.threads, plan.limit, make(each), || {
        turn += 1;
        // Some subjects walk all their shards to tell.
        if turn.is_multiple_of(OBSERVE_EVERY) {
            let resident = inserter.resident();
            samples += 1;
            sum += resident;
            max_resident = max_resident.max(resident);
        }
    });
    let last = inserter.resident();
    let mean_resident = if samples == 0 { last as f64 } else { sum as f64 / samples as f64 };
    EvictSample { sample, mean_resident, max_resident: max_resident.max(last) }
}

/// The observer's calls between two looks at the number of resident blocks.
const OBSERVE_EVERY: u64 = 5;

/// Every candidate of every subject of `evict`.
pub(crate) fn inserters(cpus: usize, value: Value) -> Vec<EvictSubject> {
    match value {
        Value::Word => inserters_of::<u64>(cpus, value),
        Value::Block => inserters_of::<Arc<[u8]>>(cpus, value),
    }
}

fn inserters_of<V: Loaded>(cpus: usize, value: Value) -> Vec<EvictSubject> {
    let mut all = forebay::inserters(value);
    all.extend(baselines::inserters::<V>(cpus));
    #[cfg(feature = "peers")]
    {
        all.extend(quick_cache::inserters::<V>());
        all.extend(moka::inserters::<V>());
        all.extend(foyer::inserters::<V>());
        all.extend(lru::inserters::<V>());
    }
    all
}
