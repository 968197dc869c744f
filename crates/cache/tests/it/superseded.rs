//! Loads that a secondary cache declines although it has the block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_cache::{
    Attributes, Begin, Cache, Candidate, LoadError, LoadGuard, Reclaim, SecondaryCache,
};

use crate::support::audit;

/// Declines or withdraws all loads, and says that it has blocks of even keys.
#[derive(Default)]
struct Holder {
    withdraws: AtomicBool,
    superseded: Mutex<Vec<u64>>,
}

impl SecondaryCache<u64, u64> for Holder {
    fn offer(&self, _: Vec<Candidate<u64, u64>>) {}
    fn load(&self, mut guard: LoadGuard<u64, u64>) -> Result<(), LoadGuard<u64, u64>> {
        if self.withdraws.load(Ordering::SeqCst) {
            guard.withdraw();
            return Ok(());
        }
        if guard.key().is_multiple_of(2) {
            guard.supersede();
        }
        Err(guard)
    }
    fn superseded(&self, key: &u64) {
        self.superseded.lock().unwrap().push(*key);
    }
    fn forget(&self, _: &u64) {}
}

#[test]
fn a_load_that_supersedes_a_block_tells_the_secondary_cache_when_it_has_a_value() {
    let holder = Arc::new(Holder::default());
    let cache = Cache::<u64, u64>::builder()
        .capacity(100)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .secondary_cache(holder.clone())
        .build()
        .unwrap();
    let told = || std::mem::take(&mut *holder.superseded.lock().unwrap());
    for key in 0..4 {
        assert!(cache.get_or_load(key, || Err::<u64, _>("no value")).is_err());
        let Begin::Vacant(guard) = cache.begin(key, 1, Attributes::DATA).unwrap() else { panic!() };
        guard.withdraw();
        cache.insert(10 + key, 1).unwrap();
    }
    assert!(told().is_empty(), "without a value, or by an insert, which forgets");
    for key in 0..4 {
        let load = || {
            assert!(holder.superseded.lock().unwrap().iter().all(|told| *told < key));
            Ok::<_, LoadError>(key)
        };
        assert_eq!(*cache.get_or_load(key, load).unwrap(), key);
    }
    assert_eq!(told(), [0, 2]);
    // A value that is not cached, too.
    let once = cache.get_or_load_weighed(20, 1000, Attributes::DATA, || Ok::<_, LoadError>(0));
    assert_eq!(*once.unwrap(), 0);
    assert_eq!(told(), [20]);
    // It was not asked.
    let Begin::Vacant(guard) = cache.begin_new(21, 1, Attributes::DATA).unwrap() else { panic!() };
    assert!(told().is_empty(), "there is no value yet");
    guard.publish(21);
    assert_eq!(told(), [21]);
    // What it has withdrawn all the time, it may have as well.
    holder.withdraws.store(true, Ordering::SeqCst);
    cache.get_or_load(31, || Ok::<_, LoadError>(31)).unwrap();
    assert_eq!(told(), [31]);
    cache.close();
    audit(&cache);
}

#[test]
fn a_load_whose_key_was_changed_meanwhile_supersedes_nothing() {
    let holder = Arc::new(Holder::default());
    let cache = Cache::<u64, u64>::builder()
        .capacity(100)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .secondary_cache(holder.clone())
        .build()
        .unwrap();
    let told = || std::mem::take(&mut *holder.superseded.lock().unwrap());
    let begin = |key| match cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{key} is not in memory: {other:?}"),
    };
    let guard = begin(2);
    cache.insert(2, 5).unwrap();
    guard.publish(4);
    assert_eq!(cache.get(&2).as_deref(), Some(&5));
    let guard = begin(4);
    assert!(cache.remove(&4).is_none());
    guard.publish(4);
    assert!(cache.get(&4).is_none());
    let guard = begin(6);
    cache.remove_all_from_memory(|key| *key == 6);
    guard.publish(6);
    assert!(told().is_empty(), "the secondary cache has forgotten what was older");
    // It has not when memory alone is cleared, and the caller gets the newer value.
    let guard = begin(8);
    cache.clear();
    assert_eq!(*guard.publish(8), 8);
    assert_eq!(told(), [8]);
    cache.close();
    audit(&cache);
}
