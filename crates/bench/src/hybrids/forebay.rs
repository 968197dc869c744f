//! Forebay's hybrid cache on a file.

use std::sync::Arc;

use forebay_cache::{Attributes, Class};
use forebay_io::{Direct, FileDevice, OpenOptions};
use forebay_l2::HybridCache;

use super::{
    FoundCounts, FoundIn, HybridPlan, TaskRequests, TieredCache, check, is_block_device, runtime,
    sum_of_tasks, value,
};
use crate::options::Failure;

pub(super) struct Forebay {
    cache: Arc<HybridCache<u64, Box<[u8]>>>,
    value_bytes: usize,
}

async fn request(
    cache: &HybridCache<u64, Box<[u8]>>,
    mut task: TaskRequests,
    value_bytes: usize,
) -> FoundCounts {
    let mut counts = [0; 3];
    for _ in 0..task.count {
        let key = task.keys.next();
        if let Some(found) = cache.memory().get(&key) {
            check(key, &found);
            counts[FoundIn::Memory as usize] += 1;
            continue;
        }
        let mut place = FoundIn::Device;
        let load = || {
            place = FoundIn::Nowhere;
            async { Ok::<_, std::io::Error>(value(key, value_bytes).into_boxed_slice()) }
        };
        let found = cache.get_or_load_with_async(key, Attributes::DATA, load).await;
        check(key, &found.unwrap_or_else(|error| panic!("loading {key}: {error}")));
        counts[place as usize] += 1;
    }
    counts
}

/// Upper bound of a value's size on the device, in bytes.
pub(super) fn entry_bytes(value_bytes: usize) -> u64 {
    const HEADER: usize = 64;
    const UNIT: usize = 64;
    const RECORD: usize = 24;
    ((value_bytes + HEADER).next_multiple_of(UNIT) + RECORD) as u64
}

impl Forebay {
    pub(super) fn open(plan: &HybridPlan) -> Result<Self, Failure> {
        let options = OpenOptions {
            create_bytes: Some(plan.device_bytes),
            min_bytes: plan.device_bytes,
            direct: if plan.direct { Direct::Always } else { Direct::Never },
            ..OpenOptions::default()
        };
        let device = Arc::new(FileDevice::open(&plan.path, &options)?);
        let mut builder = HybridCache::builder(device);
        if plan.fill && is_block_device(&plan.path) {
            builder = builder.recreate().force();
        }
        let cache = builder
            .name("forebay-bench")
            .capacity(plan.memory_bytes)
            .seed(plan.seed)
            // No warm-up: the rebuild and the lookups are measured.
            .l2_tunable("warm_up", "false")
            .without_writing_on_close()
            .build()?;
        Ok(Self { cache: Arc::new(cache), value_bytes: plan.value_bytes })
    }
}

impl TieredCache for Forebay {
    fn get_or_load(&self, key: u64, class: Class) -> FoundIn {
        if let Some(found) = self.cache.memory().get(&key) {
            check(key, &found);
            return FoundIn::Memory;
        }
        let mut loaded = false;
        let load = || {
            loaded = true;
            Ok::<_, std::io::Error>(value(key, self.value_bytes).into_boxed_slice())
        };
        let attributes = Attributes { class, ..Attributes::DATA };
        let found = self.cache.get_or_load_with(key, attributes, load);
        let found = found.unwrap_or_else(|error| panic!("loading {key}: {error}"));
        check(key, &found);
        if loaded { FoundIn::Nowhere } else { FoundIn::Device }
    }

    fn run_tasks(&self, tasks: Vec<TaskRequests>) -> Result<FoundCounts, Failure> {
        let bytes = self.value_bytes;
        sum_of_tasks(&runtime()?, tasks, |task| {
            let cache = Arc::clone(&self.cache);
            async move { request(&cache, task, bytes).await }
        })
    }

    fn get(&self, key: u64) -> bool {
        let found = self.cache.get(&key);
        found.inspect(|value| check(key, value)).is_some()
    }

    fn insert(&self, key: u64) {
        let inserted = self.cache.insert(key, value(key, self.value_bytes).into_boxed_slice());
        inserted.unwrap_or_else(|error| panic!("inserting {key}: {error}"));
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.cache.flush_to_device()?)
    }

    fn wait_rebuilt(&self) {
        assert!(self.cache.l2().wait_rebuilt(), "{:?}", self.cache.l2());
    }

    fn written_bytes(&self) -> u64 {
        self.cache.stats().l2.count("written_bytes")
    }

    fn index_bytes(&self) -> Option<u64> {
        Some(self.cache.l2().memory_bytes())
    }
}

impl Drop for Forebay {
    fn drop(&mut self) {
        if let Err(error) = self.cache.close() {
            eprintln!("cannot close the cache: {error}");
        }
    }
}
