//! The subjects: Forebay, peers, baselines and yardsticks, one file each, behind two traits.
//!
//! A subject's operation is called through a generic worker; only a whole measurement is a virtual
//! call. A subject can have several candidates (shard counts, handles, policies). The benches try
//! all of them and measure the best.

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

/// Names of the peers.
pub(crate) const PEERS: &[&str] = &["quick_cache", "moka", "foyer", "mutex-lru-1", "mutex-lru-64"];

/// A cache in which every block is resident.
pub(crate) trait Reader: Send + Sync + 'static {
    /// Calls `touch` with the block's bytes while it holds them. Returns `None` for a miss.
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R>;
}

/// A hit-only measurement.
pub(crate) struct ReadPlan {
    /// Threads that read.
    pub(crate) threads: usize,
    /// Length of the measurement.
    pub(crate) limit: Limit,
    /// Keys that are requested.
    pub(crate) keys: KeySpace,
    /// Copies the block (true), or reads eight of its bytes (false).
    pub(crate) copy: bool,
    /// Seed of the threads' generators.
    pub(crate) seed: u64,
}

/// A candidate of a hit-only subject.
pub(crate) struct ReadSubject {
    /// The subject's name.
    pub(crate) name: &'static str,
    /// The candidate's configuration.
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

    /// Runs a measurement.
    pub(crate) fn run(&self, plan: &ReadPlan) -> Sample {
        (self.run)(plan)
    }
}

/// Uses blocks that were read.
pub(crate) struct BlockUse {
    copy: bool,
    sink: Box<[u8]>,
    sum: u64,
}

impl BlockUse {
    fn new(copy: bool) -> Self {
        Self { copy, sink: vec![0u8; BLOCK_BYTES].into_boxed_slice(), sum: 0 }
    }

    /// Offset of the bytes to read in the next block.
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

/// Runs a load of hits. `worker` makes a worker from a stream of keys and a block use.
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

/// The blocks of the hit-only subjects.
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

/// All candidates of all hit-only subjects.
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

/// The memcpy yardstick over `blocks` blocks.
pub(crate) fn memcpy(blocks: usize) -> Result<Vec<ReadSubject>, forebay_base::vm::Error> {
    let (plain, huge) = (BlockRegion::new(blocks, false)?, BlockRegion::new(blocks, true)?);
    Ok(yardsticks::memcpy(&plain, &huge))
}

/// A cache that decides which blocks it keeps.
pub(crate) trait Inserter: Send + Sync + 'static {
    /// Looks a block up, and inserts it on a miss. Returns true for a hit.
    fn get_or_insert(&self, key: u64) -> bool;
    /// Number of resident blocks.
    fn resident(&self) -> u64;
}

/// Values of `evict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Value {
    /// One word: measures policy and bookkeeping.
    Word,
    /// A block of 8 KiB, allocated and written on a miss.
    Block,
}

impl Value {
    /// Its name in options and results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Word => "word",
            Self::Block => "block",
        }
    }
}

/// A value of the peers, which they return as a copy or a counted handle.
pub(crate) trait Loaded: Clone + Send + Sync + 'static {
    /// Whether the value is one word.
    #[cfg_attr(not(feature = "peers"), allow(dead_code, reason = "only a peer asks"))]
    const IS_WORD: bool;
    /// Loads the value of a key.
    fn load(key: u64) -> Self;
    /// Reads a part of the value.
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

/// Uses a value.
#[inline]
pub(crate) fn touch<V: Loaded>(value: &V) {
    std::hint::black_box(value.look());
}

/// Uses a block, like `touch`.
#[inline]
pub(crate) fn touch_block(block: &[u8]) {
    std::hint::black_box(u64::from(block[0]) + u64::from(block[BLOCK_BYTES / 2]));
}

/// A measurement of a cache that is smaller than its working set.
pub(crate) struct EvictPlan {
    /// Threads that request keys.
    pub(crate) threads: usize,
    /// Length of the measurement after the warm-up.
    pub(crate) limit: Limit,
    /// Warm-up operations of all threads.
    pub(crate) warmup_operations: u64,
    /// Keys that are requested.
    pub(crate) keys: KeySpace,
    /// Capacity in blocks.
    pub(crate) capacity: u64,
    /// Seed of the threads' generators.
    pub(crate) seed: u64,
}

/// The result of such a measurement.
#[derive(Clone, Copy)]
pub(crate) struct EvictSample {
    /// Throughput and hits.
    pub(crate) sample: Sample,
    /// Mean number of resident blocks.
    pub(crate) mean_resident: f64,
    /// Largest observed number of resident blocks.
    pub(crate) max_resident: u64,
}

/// A candidate of a subject of `evict`.
pub(crate) struct EvictSubject {
    /// The subject's name.
    pub(crate) name: &'static str,
    /// The candidate's configuration.
    pub(crate) config: String,
    /// Largest number of threads that it supports.
    pub(crate) max_threads: usize,
    run: Box<dyn Fn(&EvictPlan) -> EvictSample>,
}

impl EvictSubject {
    /// A subject that `build` makes for each measurement, from a capacity in blocks.
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

    /// Measures a new cache.
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
    // The measurement continues where the warm-up stopped.
    let make = |walked| {
        let stream = move |thread| plan.keys.stream_after(thread, plan.threads, plan.seed, walked);
        move |thread| EvictWorker { inserter, keys: stream(thread) }
    };
    let each = plan.warmup_operations / plan.threads as u64;
    measure::run(plan.threads, Limit::Operations(each), make(0), || {});
    let (mut turn, mut samples, mut sum, mut max_resident) = (0u64, 0u64, 0u64, 0u64);
    let sample = measure::run(plan.threads, plan.limit, make(each), || {
        turn += 1;
        // Some subjects walk all their shards for this.
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

/// Observer calls per sample of the resident blocks.
const OBSERVE_EVERY: u64 = 5;

/// All candidates of all subjects of `evict`.
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
