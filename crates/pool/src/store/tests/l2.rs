//! L2 caches of the store, as mocks in memory.

use std::collections::HashMap;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Attributes, Candidate, Class, LoadGuard, OwnerCaching, SecondaryCache};
use forebay_io::fault::{Fault, Rule};

use super::{Fixture, block_cache, fixture_over, props};
use crate::block_cache::BlockCache;
use crate::block_key::BlockKey;
use crate::format::{BlockPtrPhys, CacheMode, Compression};
use crate::l2::{ClassAdmission, L2Cache};
use crate::store::counters::StoreCounters;
use crate::wait::Wait;

struct MockL2 {
    cache: Arc<BlockCache>,
    stored: Mutex<HashMap<BlockKey, Vec<u8>>>,
    loads: AtomicU64,
    /// Loads that it takes over and then gives up.
    withdraws: Mutex<u64>,
}

impl MockL2 {
    fn new(cache: &Arc<BlockCache>) -> Arc<Self> {
        Arc::new(Self {
            cache: Arc::clone(cache),
            stored: Mutex::named("l2-mock", HashMap::new()),
            loads: AtomicU64::new(0),
            withdraws: Mutex::named("l2-mock-withdraws", 0),
        })
    }

    fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
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

impl SecondaryCache<BlockKey, Buffer> for MockL2 {
    fn offer(&self, candidates: Vec<Candidate<BlockKey, Buffer>>) {
        for writing in candidates.into_iter().filter_map(Candidate::write) {
            let (key, content) = (*writing.key(), writing.to_vec());
            let mut stored = self.stored.lock();
            if writing.stored() {
                stored.insert(key, content);
            }
        }
    }

    fn load(
        &self,
        load_guard: LoadGuard<BlockKey, Buffer>,
    ) -> Result<(), LoadGuard<BlockKey, Buffer>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let Some(content) = self.stored.lock().get(load_guard.key()).cloned() else {
            return Err(load_guard);
        };
        if self.gives_up() {
            load_guard.withdraw();
            return Ok(());
        }
        let mut block = self.cache.alloc(content.len()).unwrap();
        block.copy_from_slice(&content);
        drop(load_guard.publish(block));
        Ok(())
    }

    fn forget(&self, key: &BlockKey) {
        self.stored.lock().remove(key);
    }
}

impl L2Cache for MockL2 {
    fn memory_bytes(&self) -> u64 {
        1 << 20
    }

    fn write_all(&self, blocks: Vec<Candidate<BlockKey, Buffer>>) -> bool {
        self.offer(blocks);
        true
    }
}

fn fixture_with_mock() -> (Fixture, Arc<MockL2>) {
    let cache = block_cache(64 << 20);
    let fixture = fixture_over(Arc::clone(&cache), 2, 512);
    let mock = MockL2::new(&cache);
    fixture.store.l2().attach(Arc::clone(&mock) as Arc<dyn L2Cache>);
    (fixture, mock)
}

fn end(fixture: Fixture, mock: &Arc<MockL2>) {
    assert!(fixture.store.l2().takes(fixture.store.owner(), Class::Metadata));
    assert!(fixture.store.l2().detach(&(Arc::clone(mock) as Arc<dyn L2Cache>)));
    assert!(!fixture.store.l2().detach(&(Arc::clone(mock) as Arc<dyn L2Cache>)));
    assert!(!fixture.store.l2().takes(fixture.store.owner(), Class::Metadata));
    fixture.audit();
}

/// A block that RAM does not have, and the L2 does.
fn cold(fixture: &mut Fixture, mock: &MockL2) -> (BlockPtrPhys, Vec<u8>) {
    let (bp, content) = fixture.write(16 << 10, &props(2, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    mock.put(fixture.store.key(&bp), &content);
    (bp, content)
}

fn device_reads(fixture: &Fixture) -> u64 {
    fixture.counted(StoreCounters::READS)
}

#[test]
fn what_an_l2_has_is_read_from_there() {
    let (mut fixture, mock) = fixture_with_mock();
    let (bp, content) = cold(&mut fixture, &mock);
    assert_eq!(mock.loads(), 0, "an L2 cannot have what is only being written");
    for device in &fixture.faults {
        device.add(Rule::new(Fault::Error(5)));
    }
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!(device_reads(&fixture), 0);
    // Without waiting too.
    fixture.store.cache().cache().clear();
    let found = fixture.store.read_with(&bp, Attributes::DATA, Wait::Refused).unwrap();
    assert_eq!(found[..], content);
    drop(found);
    fixture.faults.iter().for_each(|device| device.clear());
    end(fixture, &mock);
}

#[test]
fn a_load_that_an_l2_gives_up_is_read_from_the_device() {
    let (mut fixture, mock) = fixture_with_mock();
    let (bp, content) = cold(&mut fixture, &mock);
    for times in [1, 3, u64::MAX] {
        *mock.withdraws.lock() = times;
        let (loads, reads) = (mock.loads(), device_reads(&fixture));
        assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        let loads = mock.loads() - loads;
        // Once more than it gave up, and then it answered; or it was passed over.
        assert_eq!(loads, times.saturating_add(1).min(4));
        assert_eq!(device_reads(&fixture) - reads, u64::from(times > 3));
        fixture.store.cache().cache().clear();
    }
    // Who does not wait is told that the block has not come, and asks again.
    *mock.withdraws.lock() = 2;
    let results = Arc::new(Mutex::named("l2-mock", Vec::new()));
    for _ in 0..3 {
        let results = Arc::clone(&results);
        fixture.store.fetch(&bp, Attributes::DATA, Box::new(move |came| results.lock().push(came)));
    }
    assert_eq!(*results.lock(), [false, false, true]);
    fixture.store.cache().cache().clear();
    *mock.withdraws.lock() = 1;
    let results = Arc::new(Mutex::named("l2-mock", Vec::new()));
    let tell = Arc::clone(&results);
    fixture.store.prefetch(&bp, Attributes::DATA, Box::new(move |came| tell.lock().push(came)));
    assert_eq!(*results.lock(), [false]);
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    *mock.withdraws.lock() = 0;
    end(fixture, &mock);
}

#[test]
fn what_ram_lets_go_of_is_offered_and_found_again() {
    let cache = block_cache(8 << 20);
    let mut fixture = fixture_over(Arc::clone(&cache), 1, 512);
    let mock = MockL2::new(&cache);
    fixture.store.l2().attach(Arc::clone(&mock) as Arc<dyn L2Cache>);
    assert_eq!(cache.l2_memory_bytes(), 1 << 20);
    let blocks: Vec<_> =
        (0..150).map(|_| fixture.write(128 << 10, &props(1, Compression::Off))).collect();
    fixture.store.wait_and_flush().unwrap();
    let stored = mock.stored.lock().len();
    assert!(stored > 50, "{stored} of {} blocks were offered", blocks.len());
    let reads = device_reads(&fixture);
    for (bp, content) in &blocks {
        assert_eq!(fixture.store.read(bp, Attributes::DATA).unwrap()[..], content[..]);
    }
    let (loads, reads) = (mock.loads(), device_reads(&fixture) - reads);
    assert!(reads < loads, "{reads} of {loads} misses went to the device");
    end(fixture, &mock);
    assert_eq!(cache.l2_memory_bytes(), 0);
}

#[test]
fn pools_that_share_a_cache_have_l2s_of_their_own() {
    let cache = block_cache(64 << 20);
    let mut fixtures = [0, 1].map(|_| fixture_over(Arc::clone(&cache), 1, 512));
    let doubles = [0, 1].map(|_| MockL2::new(&cache));
    for (fixture, mock) in fixtures.iter().zip(&doubles) {
        fixture.store.l2().attach(Arc::clone(mock) as Arc<dyn L2Cache>);
    }
    let (bp, content) = cold(&mut fixtures[0], &doubles[0]);
    // The same address and birth in the other pool, under its own owner.
    fixtures[1].store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!((doubles[0].loads(), doubles[1].loads()), (0, 1));
    assert_eq!(fixtures[0].store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!((doubles[0].loads(), doubles[1].loads()), (1, 1));
    // An L2 of a pool is asked when the first has nothing.
    let more = MockL2::new(&cache);
    fixtures[0].store.l2().attach(Arc::clone(&more) as Arc<dyn L2Cache>);
    fixtures[0].forget(&bp);
    assert!(doubles[0].stored.lock().is_empty(), "all are told what is to be forgotten");
    more.put(fixtures[0].store.key(&bp), &content);
    assert_eq!(fixtures[0].store.read(&bp, Attributes::DATA).unwrap()[..], content);
    fixtures[0].store.l2().detach(&(Arc::clone(&more) as Arc<dyn L2Cache>));
    for (fixture, mock) in fixtures.into_iter().zip(&doubles) {
        end(fixture, mock);
    }
    assert!(!cache.l2().is_active());
}

#[test]
fn owners_say_what_goes_to_l2s() {
    let (mut fixture, mock) = fixture_with_mock();
    let l2 = Arc::clone(fixture.store.l2());
    let owner = fixture.store.cache().cache().open_owner(OwnerCaching::All).unwrap().into_id();
    let other = fixture.store.with_owner(owner, CacheMode::Metadata);
    assert!(l2.takes(owner, Class::Metadata) && !l2.takes(owner, Class::Data));
    assert_eq!(l2.admission(fixture.store.owner(), Class::Data), ClassAdmission::Admitted);
    assert_eq!(l2.admission(owner, Class::Metadata), ClassAdmission::Admitted);
    assert_eq!(l2.admission(owner, Class::Data), ClassAdmission::ClassExcluded);
    other.set_l2_mode(CacheMode::None);
    assert_eq!(l2.admission(owner, Class::Metadata), ClassAdmission::OwnerExcluded);
    assert!(l2.has(owner));
    drop(other);
    assert!(!l2.has(owner));
    assert_eq!(l2.admission(owner, Class::Metadata), ClassAdmission::OwnerExcluded);
    let (bp, _) = cold(&mut fixture, &mock);
    // On the device the key has no owner, and what is not durable yet is not written.
    assert_eq!(fixture.store.key(&bp).birth(), 5);
    l2.note_durable(4);
    l2.note_durable(3);
    assert_eq!(l2.durable(), 4);
    end(fixture, &mock);
}
