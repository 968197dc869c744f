//! Second levels of the store, as doubles in memory.

use std::collections::HashMap;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Attributes, Candidate, Class, Filler, OwnerCaching, SecondLevel};
use forebay_io::fault::{Fault, Rule};

use super::{Rig, block_cache, props, rig_over};
use crate::block_cache::BlockCache;
use crate::block_key::BlockKey;
use crate::format::{BlockPtrPhys, CacheMode, Compression};
use crate::l2::{CacheLevel, Wanted};
use crate::store::counters::StoreCounters;
use crate::waiting::without_waiting;

struct Double {
    cache: Arc<BlockCache>,
    stored: Mutex<HashMap<BlockKey, Vec<u8>>>,
    asked: AtomicU64,
    /// Loads that it takes over and then gives up.
    withdraws: Mutex<u64>,
}

impl Double {
    fn new(cache: &Arc<BlockCache>) -> Arc<Self> {
        Arc::new(Self {
            cache: Arc::clone(cache),
            stored: Mutex::named("second-double", HashMap::new()),
            asked: AtomicU64::new(0),
            withdraws: Mutex::named("second-double-withdraws", 0),
        })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn gives_up(&self) -> bool {
        let mut left = self.withdraws.lock();
        let any = *left > 0;
        *left -= u64::from(any);
        any
    }

    fn put(&self, key: BlockKey, content: &[u8]) {
        self.stored.lock().insert(key, content.to_vec());
    }
}

impl SecondLevel<BlockKey, Buffer> for Double {
    fn offer(&self, candidates: Vec<Candidate<BlockKey, Buffer>>) {
        for writing in candidates.into_iter().filter_map(Candidate::write) {
            let (key, content) = (*writing.key(), writing.to_vec());
            let mut stored = self.stored.lock();
            if writing.stored() {
                stored.insert(key, content);
            }
        }
    }

    fn load(&self, filler: Filler<BlockKey, Buffer>) -> Result<(), Filler<BlockKey, Buffer>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let Some(content) = self.stored.lock().get(filler.key()).cloned() else {
            return Err(filler);
        };
        if self.gives_up() {
            filler.withdraw();
            return Ok(());
        }
        let mut block = self.cache.alloc(content.len()).unwrap();
        block.copy_from_slice(&content);
        drop(filler.publish(block));
        Ok(())
    }

    fn forget(&self, key: &BlockKey) {
        self.stored.lock().remove(key);
    }
}

impl CacheLevel for Double {
    fn memory_bytes(&self) -> u64 {
        1 << 20
    }

    fn write_all(&self, blocks: Vec<Candidate<BlockKey, Buffer>>) -> bool {
        self.offer(blocks);
        true
    }
}

fn rig_with_double() -> (Rig, Arc<Double>) {
    let cache = block_cache(64 << 20);
    let rig = rig_over(Arc::clone(&cache), 2, 512);
    let double = Double::new(&cache);
    rig.store.levels().attach(Arc::clone(&double) as Arc<dyn CacheLevel>);
    (rig, double)
}

fn end(rig: Rig, double: &Arc<Double>) {
    assert!(rig.store.levels().detach(&(Arc::clone(double) as Arc<dyn CacheLevel>)));
    assert!(!rig.store.levels().detach(&(Arc::clone(double) as Arc<dyn CacheLevel>)));
    rig.audit();
}

/// A block that RAM does not have, and the level does.
fn cold(rig: &mut Rig, double: &Double) -> (BlockPtrPhys, Vec<u8>) {
    let (bp, content) = rig.write(16 << 10, &props(2, Compression::Lz4));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    double.put(rig.store.key(&bp), &content);
    (bp, content)
}

fn device_reads(rig: &Rig) -> u64 {
    rig.counted(StoreCounters::READS)
}

#[test]
fn what_a_level_has_is_read_from_there() {
    let (mut rig, double) = rig_with_double();
    let (bp, content) = cold(&mut rig, &double);
    assert_eq!(double.asked(), 0, "a level cannot have what is only being written");
    for device in &rig.faults {
        device.add(Rule::new(Fault::Error(5)));
    }
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!(device_reads(&rig), 0);
    // Without waiting too.
    rig.store.cache().cache().flush();
    let found = without_waiting(|| rig.store.read(&bp, Attributes::DATA)).unwrap();
    assert_eq!(found[..], content);
    drop(found);
    rig.faults.iter().for_each(|device| device.clear());
    end(rig, &double);
}

#[test]
fn a_load_that_a_level_gives_up_is_read_from_the_device() {
    let (mut rig, double) = rig_with_double();
    let (bp, content) = cold(&mut rig, &double);
    for times in [1, 3, u64::MAX] {
        *double.withdraws.lock() = times;
        let (asked, reads) = (double.asked(), device_reads(&rig));
        assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        let asked = double.asked() - asked;
        // Once more than it gave up, and then it answered; or it was passed over.
        assert_eq!(asked, times.saturating_add(1).min(4));
        assert_eq!(device_reads(&rig) - reads, u64::from(times > 3));
        rig.store.cache().cache().flush();
    }
    // Who does not wait is told that the block has not come, and asks again.
    *double.withdraws.lock() = 2;
    let told = Arc::new(Mutex::named("second-double", Vec::new()));
    for _ in 0..3 {
        let told = Arc::clone(&told);
        rig.store.fetch(&bp, Attributes::DATA, Box::new(move |came| told.lock().push(came)));
    }
    assert_eq!(*told.lock(), [false, false, true]);
    rig.store.cache().cache().flush();
    *double.withdraws.lock() = 1;
    let told = Arc::new(Mutex::named("second-double", Vec::new()));
    let tell = Arc::clone(&told);
    rig.store.prefetch(&bp, Attributes::DATA, Box::new(move |came| tell.lock().push(came)));
    assert_eq!(*told.lock(), [false]);
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    *double.withdraws.lock() = 0;
    end(rig, &double);
}

#[test]
fn what_ram_lets_go_of_is_offered_and_found_again() {
    let cache = block_cache(8 << 20);
    let mut rig = rig_over(Arc::clone(&cache), 1, 512);
    let double = Double::new(&cache);
    rig.store.levels().attach(Arc::clone(&double) as Arc<dyn CacheLevel>);
    assert_eq!(cache.second_memory_bytes(), 1 << 20);
    let blocks: Vec<_> =
        (0..150).map(|_| rig.write(128 << 10, &props(1, Compression::Off))).collect();
    rig.store.finish_writes().unwrap();
    let stored = double.stored.lock().len();
    assert!(stored > 50, "{stored} of {} blocks were offered", blocks.len());
    let reads = device_reads(&rig);
    for (bp, content) in &blocks {
        assert_eq!(rig.store.read(bp, Attributes::DATA).unwrap()[..], content[..]);
    }
    let (asked, reads) = (double.asked(), device_reads(&rig) - reads);
    assert!(reads < asked, "{reads} of {asked} misses went to the device");
    end(rig, &double);
    assert_eq!(cache.second_memory_bytes(), 0);
}

#[test]
fn pools_that_share_a_cache_have_levels_of_their_own() {
    let cache = block_cache(64 << 20);
    let mut rigs = [0, 1].map(|_| rig_over(Arc::clone(&cache), 1, 512));
    let doubles = [0, 1].map(|_| Double::new(&cache));
    for (rig, double) in rigs.iter().zip(&doubles) {
        rig.store.levels().attach(Arc::clone(double) as Arc<dyn CacheLevel>);
    }
    let (bp, content) = cold(&mut rigs[0], &doubles[0]);
    // The same address and birth in the other pool, under its own owner.
    rigs[1].store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!((doubles[0].asked(), doubles[1].asked()), (0, 1));
    assert_eq!(rigs[0].store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!((doubles[0].asked(), doubles[1].asked()), (1, 1));
    // A second level of a pool is asked when the first has nothing.
    let more = Double::new(&cache);
    rigs[0].store.levels().attach(Arc::clone(&more) as Arc<dyn CacheLevel>);
    rigs[0].forget(&bp);
    assert!(doubles[0].stored.lock().is_empty(), "all are told what is to be forgotten");
    more.put(rigs[0].store.key(&bp), &content);
    assert_eq!(rigs[0].store.read(&bp, Attributes::DATA).unwrap()[..], content);
    rigs[0].store.levels().detach(&(Arc::clone(&more) as Arc<dyn CacheLevel>));
    for (rig, double) in rigs.into_iter().zip(&doubles) {
        end(rig, double);
    }
    assert!(!cache.second().is_active());
}

#[test]
fn owners_say_what_goes_to_levels() {
    let (mut rig, double) = rig_with_double();
    let levels = Arc::clone(rig.store.levels());
    let owner = rig.store.cache().cache().open_owner(OwnerCaching::All).unwrap().into_id();
    let other = rig.store.with_owner(owner, CacheMode::Metadata);
    assert_eq!(levels.wants(rig.store.owner(), Class::Data), Wanted::Yes);
    assert_eq!(levels.wants(owner, Class::Metadata), Wanted::Yes);
    assert_eq!(levels.wants(owner, Class::Data), Wanted::NotThisClass);
    other.set_second(CacheMode::None);
    assert_eq!(levels.wants(owner, Class::Metadata), Wanted::Nothing);
    assert!(levels.has(owner));
    drop(other);
    assert!(!levels.has(owner));
    assert_eq!(levels.wants(owner, Class::Metadata), Wanted::Nothing);
    let (bp, _) = cold(&mut rig, &double);
    // On the device the key has no owner, and what is not durable yet is not written.
    assert_eq!(rig.store.key(&bp).birth(), 5);
    levels.note_durable(4);
    levels.note_durable(3);
    assert_eq!(levels.durable(), 4);
    end(rig, &double);
}
