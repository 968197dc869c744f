//! The secondary cache's interface, with a test double: a map in memory, written by hand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use forebay_cache::{
    Attributes, Begin, Cache, Candidate, Cause, Class, Hint, LoadError, LoadGuard, Reclaim,
    Refusal, SecondaryCache, Writing,
};

use crate::support::{audit, block_on, wait_until};

/// A load and its result.
type Read = (LoadGuard<u64, u64>, u64);

#[derive(Default)]
struct Double {
    stored: Mutex<HashMap<u64, u64>>,
    writing: Mutex<Vec<Writing<u64, u64>>>,
    /// Offered keys with class and `reused`, in order.
    offered: Mutex<Vec<(u64, Class, bool)>>,
    forgotten: Mutex<Vec<u64>>,
    /// Keys that were reported as evicted.
    evicted: Mutex<Vec<u64>>,
    /// Begin writes of offered blocks instead of declining.
    takes: AtomicBool,
    panics: AtomicBool,
    /// Panic at the next `would_write`.
    panics_when_asked: AtomicBool,
    /// Maximum number of writes at once; 0 for no limit.
    queue: AtomicU64,
    /// The answer of `would_write`.
    writes: AtomicBool,
    loads: AtomicU64,
    /// The secondary cache is not active.
    absent: AtomicBool,
    /// Loads that are taken over and then withdrawn, before others are answered.
    withdraws: AtomicU64,
    /// The thread that answers loads, if they are not answered at once.
    elsewhere: Mutex<Option<mpsc::Sender<Read>>>,
    /// Called at the beginning of the next `forget`.
    before_forget: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Called at the end of the next `forget`.
    after_forget: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Double {
    /// Completes all writes as a device would.
    fn complete(&self) -> usize {
        let writes = std::mem::take(&mut *self.writing.lock().unwrap());
        let count = writes.len();
        for writing in writes {
            let (key, value) = (*writing.key(), *writing);
            // Stored and indexed in one step.
            let mut stored = self.stored.lock().unwrap();
            if writing.stored() {
                stored.insert(key, value);
            }
        }
        count
    }
}

impl SecondaryCache<u64, u64> for Double {
    fn offer(&self, candidates: Vec<Candidate<u64, u64>>) {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a bug in the secondary cache");
        let mut offered = self.offered.lock().unwrap();
        for candidate in candidates {
            assert_eq!(*candidate.key() % 1000, *candidate.value() % 1000);
            offered.push((*candidate.key(), candidate.class, candidate.reused));
            let busy = self.queue.load(Ordering::SeqCst);
            let full = busy > 0 && self.writing.lock().unwrap().len() as u64 >= busy;
            if self.takes.load(Ordering::SeqCst) && !full {
                self.writing.lock().unwrap().extend(candidate.write());
            }
        }
    }

    fn evicted(&self, keys: &[u64]) {
        self.evicted.lock().unwrap().extend(keys);
    }

    fn would_write(&self, _key: &u64, _class: Class) -> bool {
        assert!(
            !self.panics_when_asked.swap(false, Ordering::SeqCst),
            "a bug in the secondary cache"
        );
        self.writes.load(Ordering::SeqCst)
    }

    fn load(&self, guard: LoadGuard<u64, u64>) -> Result<(), LoadGuard<u64, u64>> {
        let Some(value) = self.stored.lock().unwrap().get(guard.key()).copied() else {
            return Err(guard);
        };
        self.loads.fetch_add(1, Ordering::SeqCst);
        let less = |n: u64| n.checked_sub(1);
        if self.withdraws.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            guard.withdraw();
            return Ok(());
        }
        match &*self.elsewhere.lock().unwrap() {
            Some(elsewhere) => elsewhere.send((guard, value)).unwrap(),
            None => drop(guard.publish(value)),
        }
        Ok(())
    }

    fn forget(&self, key: &u64) {
        let run = self.before_forget.lock().unwrap().take();
        run.into_iter().for_each(|run| run());
        self.stored.lock().unwrap().remove(key);
        self.forgotten.lock().unwrap().push(*key);
        let run = self.after_forget.lock().unwrap().take();
        run.into_iter().for_each(|run| run());
    }

    fn is_active(&self) -> bool {
        !self.absent.load(Ordering::Relaxed)
    }
}

fn with_double(capacity: u64, ahead: u64) -> (Cache<u64, u64>, Arc<Double>) {
    let double = Arc::new(Double::default());
    let cache = Cache::builder()
        .capacity(capacity)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .tunable("sublists", "1")
        .tunable("offer_ahead", &ahead.to_string())
        .secondary_cache(double.clone())
        .build()
        .unwrap();
    (cache, double)
}

fn fail() -> Result<u64, String> {
    Err("nobody should ask the slow disk".to_owned())
}

#[test]
fn what_is_near_the_cold_end_is_offered_once_oldest_first() {
    let (cache, double) = with_double(100, 10);
    for key in 0..100 {
        cache.insert(key, key).unwrap();
    }
    assert!(double.offered.lock().unwrap().is_empty(), "nothing is about to go");
    cache.get(&3);
    cache.insert(100, 100).unwrap();
    let offered = double.offered.lock().unwrap().clone();
    let keys: Vec<_> = offered.iter().map(|o| o.0).collect();
    assert_eq!(keys, (0..10).collect::<Vec<_>>());
    assert!(
        offered.iter().all(|(key, class, reused)| *class == Class::Data && *reused == (*key == 3))
    );
    for key in 101..150 {
        cache.insert(key, key).unwrap();
    }
    let mut keys: Vec<_> = double.offered.lock().unwrap().iter().map(|o| o.0).collect();
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    let stats = cache.stats();
    let moved = (stats.counter("promoted") + stats.counter("overflowed")) as usize;
    assert!(all <= keys.len() + moved, "only what went over to mfu may be offered twice: {stats}");
    // In a cache that has just become full, some of the oldest blocks move to mfu.
    assert!((50..=70 + moved).contains(&keys.len()), "{} offered of 50 evicted", keys.len());
    assert_eq!(cache.stats().counter("secondary_offered"), all as u64);
    audit(&cache);
}

#[test]
fn blocks_evicted_from_mru_were_offered_before() {
    for takes in [false, true] {
        let double = Arc::new(Double::default());
        let cache = Cache::builder()
            .capacity(10_000)
            // One block is as heavy as many others, so many are evicted for it.
            .weigher(|key, _| if *key == 777_777 { 300 } else { 1 })
            .reclaim(Reclaim::Inline)
            .seed(1)
            .tunable("sublists", "1")
            .tunable("offer_ahead", "10")
            .secondary_cache(double.clone())
            .build()
            .unwrap();
        (0..30_000).for_each(|key: u64| cache.insert(key, key).unwrap());
        double.queue.store(50, Ordering::SeqCst);
        double.takes.store(takes, Ordering::SeqCst);
        double.evicted.lock().unwrap().clear();
        let before = cache.stats().counter("evicted_mfu");
        cache.insert(777_777, 777_777).unwrap();
        let gone = std::mem::take(&mut *double.evicted.lock().unwrap());
        let of_mfu = cache.stats().counter("evicted_mfu") - before;
        assert!(gone.len() >= 250 && of_mfu < 50, "{of_mfu} of {}", gone.len());
        let offered: Vec<u64> = double.offered.lock().unwrap().iter().map(|o| o.0).collect();
        let unoffered = gone.iter().filter(|key| !offered.contains(key)).count() as u64;
        // A block of mfu is offered only if it has as few uses as those that lose.
        assert!(unoffered <= of_mfu, "{unoffered} of {} that went, {of_mfu} from mfu", gone.len());
        double.complete();
        audit(&cache);
    }
}

#[test]
fn a_victim_that_would_have_to_be_written_does_not_lose_by_a_single_use() {
    let won = |writes: bool| {
        let (cache, double) = with_double(200, 10);
        double.writes.store(writes, Ordering::SeqCst);
        double.panics_when_asked.store(writes, Ordering::SeqCst);
        let mut rng = forebay_base::rng::SmallRng::from_seed(5);
        for _ in 0..50_000 {
            // Skewed, so that the uses of frequent blocks often differ by one or two.
            let key = (0..2).fold(rng.below(2000), |below, _| rng.below(1 + below));
            if cache.get(&key).is_none() {
                cache.insert(key, key).unwrap();
            }
        }
        audit(&cache);
        let stats = cache.stats();
        // A panicking secondary cache does not stop evictions.
        assert_eq!(stats.counter("panics_caught"), u64::from(writes));
        (stats.counter("admissions_won"), stats.counter("admissions_lost"))
    };
    let (easily, _) = won(false);
    let (narrowly, lost) = won(true);
    assert!(narrowly < easily * 2 / 3, "{narrowly} and {easily} admissions were won");
    assert!(narrowly > 0 && lost > 0, "more than a single use still decides: {narrowly}, {lost}");
}

#[test]
fn evicted_and_flushed_blocks_are_reported_and_removed_ones_are_not() {
    let (cache, double) = with_double(100, 10);
    for key in 0..1000 {
        let hint = if key % 7 == 0 { Hint::Once } else { Hint::Normal };
        cache.insert_with(key, key, Attributes { hint, ..Attributes::DATA }).unwrap();
        (key % 3 == 0).then(|| cache.get(&(key / 2)).is_some());
    }
    let told = |double: &Double| {
        let mut told = std::mem::take(&mut *double.evicted.lock().unwrap());
        told.sort_unstable();
        told
    };
    let gone: Vec<u64> = (0..1000).filter(|key| cache.get(key).is_none()).collect();
    assert!(gone.len() >= 900, "{}", gone.len());
    assert_eq!(told(&double), gone, "each once, whether it was offered or not");
    let there: Vec<u64> = (0..1000).filter(|key| cache.get(key).is_some()).collect();
    cache.remove(&there[0]);
    cache.insert(there[1], there[1]).unwrap();
    assert_eq!(told(&double), [], "its content is gone for good");
    cache.clear();
    assert_eq!(told(&double), there[1..]);
    audit(&cache);
}

/// A sweep takes the slot from a change that has begun, and a load of the old content begins before
/// the secondary cache has forgotten it.
#[test]
fn a_load_that_begins_after_a_sweep_does_not_outlive_the_change_that_the_sweep_met() {
    for change in ["insert", "remove", "begin_insert", "begin_remove"] {
        for retain in [false, true] {
            let (cache, double) = with_double(10, 0);
            let cache = Arc::new(cache);
            let key = 5;
            double.stored.lock().unwrap().insert(key, key);
            let (reads, answers) = mpsc::channel();
            *double.elsewhere.lock().unwrap() = Some(reads);
            let held = cache.clone();
            let meanwhile = move || {
                if retain {
                    held.retain(|_, _, _| false);
                } else {
                    held.clear();
                }
                let begun = held.begin(key, 1, Attributes::DATA).unwrap();
                assert!(matches!(begun, Begin::InFlight(_)), "the secondary cache loads it");
            };
            *double.before_forget.lock().unwrap() = Some(Box::new(meanwhile));
            match change {
                "insert" => cache.insert(key, 1000).unwrap(),
                "remove" => assert!(cache.remove(&key).is_none()),
                "begin_insert" => {
                    let begun = cache.begin_insert(key, &1000, Attributes::DATA, || Some(()));
                    let (change, ()) = block_on(begun).unwrap();
                    double.forget(&key);
                    change.publish(1000);
                }
                _ => {
                    let change = cache.begin_remove(&key, Cause::Removed).unwrap();
                    double.forget(&key);
                    change.remove();
                }
            }
            let (guard, old) = answers.try_recv().unwrap();
            drop(guard.publish(old));
            assert_ne!(cache.get(&key).as_deref(), Some(&old), "after {change}");
            audit(&cache);
        }
    }
}

#[test]
fn both_lists_and_classes_are_offered_and_counted_once_but_not_once_blocks() {
    let (cache, double) = with_double(40, 100);
    for key in 0..10 {
        cache.insert_with(key, key, Attributes::METADATA).unwrap();
        cache.insert_with(1000 + key, key, Attributes::DATA).unwrap();
    }
    for key in 0..5 {
        for key in [key, 1000 + key] {
            // An overwrite of a used block enters mfu.
            cache.get(&key).unwrap();
            let class = if key < 1000 { Attributes::METADATA } else { Attributes::DATA };
            cache.insert_with(key, key % 1000, class).unwrap();
        }
    }
    for key in 2000..2040 {
        cache.insert_with(key, key, Attributes::DATA.once()).unwrap();
    }
    let offered = double.offered.lock().unwrap().clone();
    // All of mru, and of each mfu the block that would lose first.
    assert_eq!(offered.len(), 12, "{offered:?}");
    assert_eq!(offered.iter().filter(|o| o.1 == Class::Metadata).count(), 6);
    let of_mfu: Vec<u64> = offered.iter().filter(|o| o.2).map(|o| o.0).collect();
    assert_eq!(of_mfu, [0, 1000]);
    assert_eq!(cache.stats().counter("secondary_offered"), 12);
    audit(&cache);
}

#[test]
fn what_mfu_has_to_give_up_was_offered_before() {
    let (cache, double) = with_double(200, 4);
    for key in 0..400 {
        cache.insert(key, key).unwrap();
        // So it enters mfu, and mru is below its target.
        cache.get(&key).unwrap();
        cache.insert(key, key).unwrap();
    }
    let stats = cache.stats();
    assert!(stats.counter("evicted_mfu") >= 190, "{stats}");
    let offered = double.offered.lock().unwrap().clone();
    for key in (0..400).filter(|key| !cache.contains(key)) {
        assert!(offered.iter().any(|o| o.0 == key), "{key} has gone without a word");
    }
    audit(&cache);
}

#[test]
fn what_is_being_written_is_not_evicted_and_what_is_stored_is_offered_again_before_it_goes() {
    // Too small for an overflow.
    let (cache, double) = with_double(60, 200);
    double.takes.store(true, Ordering::SeqCst);
    for key in 0..61 {
        let inserted = cache.insert(key, key);
        // All sixty are being written, so there is no capacity for the last one.
        assert_eq!(inserted.is_ok(), key < 60);
    }
    let stats = cache.stats();
    assert!(stats.counter("evict_skipped_writing") >= 60, "{stats}");
    assert_eq!(stats.resident_blocks(), 60);
    assert_eq!(double.complete(), 60);
    // The secondary cache may have lost them meanwhile. Each is offered once more before it is
    // evicted.
    double.takes.store(false, Ordering::SeqCst);
    (0..60).for_each(|key| drop(cache.get(&key).unwrap()));
    let before = double.offered.lock().unwrap().len();
    for key in 200..400 {
        cache.insert(key, key).unwrap();
    }
    let again = double.offered.lock().unwrap()[before..].to_vec();
    for key in (0..60).filter(|key| !cache.contains(key)) {
        assert!(again.iter().any(|offered| offered.0 == key), "{key} has gone without a word");
    }
    double.takes.store(true, Ordering::SeqCst);
    audit(&cache);
    // The secondary cache answers for those that were evicted.
    for key in 0..60 {
        let block = cache.get_or_load_weighed(key, 1, Attributes::DATA, fail).unwrap();
        assert_eq!(*block, key);
        drop(block);
        double.complete();
    }
    assert!(double.loads.load(Ordering::SeqCst) > 0);
    assert_eq!(cache.stats().counter("secondary_hits"), double.loads.load(Ordering::SeqCst));
    double.complete();
    audit(&cache);
}

#[test]
fn loads_are_answered_from_another_thread() {
    let (cache, double) = with_double(100, 200);
    let (elsewhere, requests) = mpsc::channel::<Read>();
    *double.elsewhere.lock().unwrap() = Some(elsewhere);
    double.stored.lock().unwrap().extend((0..200).map(|key| (key, key)));
    let device = thread::spawn(move || {
        for (guard, value) in requests {
            match value % 10 {
                // A damaged block on the device: the load fails.
                9 => guard.fail(LoadError::failed("rot")),
                _ => drop(guard.publish(value)),
            }
        }
    });
    for key in 0..200 {
        let block = cache.get_or_load_weighed(key, 1, Attributes::DATA, fail);
        assert_eq!(block.ok().map(|b| *b), (key % 10 != 9).then_some(key));
    }
    // Joined by others, waited for, and unknown to the secondary cache.
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for key in 0..200 {
                    let load = || async { fail() };
                    let block =
                        block_on(cache.get_or_load_weighed_async(key, 1, Attributes::DATA, load));
                    assert_eq!(block.ok().map(|b| *b), (key % 10 != 9).then_some(key));
                }
            });
        }
    });
    let own = cache.get_or_load_weighed(5000, 1, Attributes::DATA, || Ok::<_, String>(8)).unwrap();
    assert_eq!(*own, 8);
    drop(own);
    *double.elsewhere.lock().unwrap() = None;
    device.join().unwrap();
    audit(&cache);
}

#[test]
fn overwrites_and_removals_are_told() {
    let (cache, double) = with_double(100, 10);
    double.stored.lock().unwrap().extend([(1, 1), (2, 2), (3, 3)]);
    cache.insert(1, 1001).unwrap();
    assert!(cache.remove(&2).is_none());
    assert!(cache.remove(&1).is_some());
    assert_eq!(*double.forgotten.lock().unwrap(), [1, 2, 1]);
    let failed = cache.get_or_load_weighed(1, 1, Attributes::DATA, fail);
    assert!(failed.is_err(), "an old value came back");
    assert_eq!(*cache.get_or_load_weighed(3, 1, Attributes::DATA, fail).unwrap(), 3);
    audit(&cache);
}

#[test]
fn a_write_that_an_overwrite_or_removal_met_is_outdated() {
    let (cache, double) = with_double(10, 20);
    double.takes.store(true, Ordering::SeqCst);
    for key in 0..10 {
        cache.insert(key, key).unwrap();
    }
    assert!(cache.insert(10, 10).is_err(), "all are being written");
    // Refused too, but the older value is removed all the same.
    assert!(cache.insert(1, 1001).is_err());
    assert!(cache.remove(&2).is_some());
    assert_eq!(double.complete(), 10);
    let stored = double.stored.lock().unwrap().clone();
    assert!(!stored.contains_key(&1) && !stored.contains_key(&2), "{stored:?}");
    assert_eq!(stored.len(), 8);
    audit(&cache);
}

/// The secondary cache keeps its blocks over a close. If it kept the older value, it would return
/// it to the next cache in front of it.
#[test]
fn an_insert_that_is_refused_as_closed_removes_the_older_value() {
    let (cache, double) = with_double(10, 10);
    cache.insert(1, 1).unwrap();
    double.stored.lock().unwrap().extend([(1, 1), (2, 2)]);
    cache.close();
    for key in [1, 2] {
        assert_eq!(cache.insert(key, 1000 + key).unwrap_err().reason, Refusal::Closed);
    }
    assert!(double.stored.lock().unwrap().is_empty(), "an old value may come back");
    audit(&cache);
}

/// The write of the old value completes at the worst moment: the secondary cache has just forgotten
/// the key, or is about to.
#[test]
fn a_write_that_ends_during_an_overwrite_or_removal_never_comes_back() {
    for removal in [false, true] {
        for load_meanwhile in [false, true] {
            let (cache, double) = with_double(10, 20);
            let cache = Arc::new(cache);
            for key in 0..10 {
                cache.insert(key, key).unwrap();
            }
            double.takes.store(true, Ordering::SeqCst);
            drop(cache.insert(100, 100));
            double.takes.store(false, Ordering::SeqCst);
            let key = 5;
            assert!(double.writing.lock().unwrap().iter().any(|w| *w.key() == key));
            // Makes capacity for the new one.
            cache.resize(20);
            let (inner, held) = (double.clone(), cache.clone());
            *double.after_forget.lock().unwrap() = Some(Box::new(move || {
                inner.complete();
                if load_meanwhile {
                    // Requests at this moment must not bring the old value back either.
                    if let Begin::Hit(block) = held.begin(key, 1, Attributes::DATA).unwrap() {
                        assert_ne!(*block, key);
                    }
                }
            }));
            if removal {
                assert!(cache.remove(&key).is_some());
            } else {
                cache.insert(key, 1000 + key).unwrap();
            }
            assert!(double.writing.lock().unwrap().is_empty(), "the write has ended");
            assert_ne!(cache.get(&key).map(|block| *block), Some(key));
            cache.clear();
            let found =
                cache.get_or_load_weighed(key, 1, Attributes::DATA, fail).map(|block| *block);
            assert_ne!(found.ok(), Some(key), "an old value came back");
            audit(&cache);
        }
    }
}

#[test]
fn an_inactive_secondary_cache_is_not_called() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let double = Arc::new(Double::default());
        double.absent.store(true, Ordering::Relaxed);
        double.takes.store(true, Ordering::SeqCst);
        let cache = Cache::<u64, u64>::builder()
            .capacity(100)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .tunable("offer_ahead", "50")
            .secondary_cache(double.clone())
            .build()
            .unwrap();
        double.stored.lock().unwrap().insert(5000, 5000);
        for key in 0..500 {
            cache.insert(key, key).unwrap();
        }
        cache.remove(&499);
        assert!(
            cache.get_or_load_weighed(5000, 1, Attributes::DATA, fail).is_err(),
            "asked all the same"
        );
        let stats = cache.stats();
        assert!(stats.counter("left") >= 300, "{stats}");
        assert_eq!(stats.counter("secondary_offered"), 0);
        assert_eq!(double.loads.load(Ordering::SeqCst), 0);
        assert!(double.offered.lock().unwrap().is_empty());
        assert!(double.forgotten.lock().unwrap().is_empty());
        // Active from here on.
        double.absent.store(false, Ordering::Relaxed);
        double.takes.store(false, Ordering::SeqCst);
        assert_eq!(*cache.get_or_load_weighed(5000, 1, Attributes::DATA, fail).unwrap(), 5000);
        for key in 0..500 {
            cache.insert(key, key).unwrap();
        }
        wait_until("something is offered", || !double.offered.lock().unwrap().is_empty());
        assert!(double.forgotten.lock().unwrap().len() >= 500);
        cache.close();
        audit(&cache);
    }
}

#[test]
fn who_waits_for_a_load_that_is_withdrawn_begins_anew() {
    let (cache, double) = with_double(100, 10);
    double.stored.lock().unwrap().extend((0..10).map(|key| (key, key)));
    // Withdrawn twice, then answered.
    double.withdraws.store(2, Ordering::SeqCst);
    assert_eq!(*cache.get_or_load_weighed(0, 1, Attributes::DATA, fail).unwrap(), 0);
    assert_eq!(double.loads.load(Ordering::SeqCst), 3);
    double.withdraws.store(2, Ordering::SeqCst);
    let load = || async { fail() };
    assert_eq!(
        *block_on(cache.get_or_load_weighed_async(1, 1, Attributes::DATA, load)).unwrap(),
        1
    );
    // If it goes on withdrawing, it is bypassed and the block is loaded.
    double.withdraws.store(u64::MAX, Ordering::SeqCst);
    let own = cache.get_or_load_weighed(2, 1, Attributes::DATA, || Ok::<_, String>(2002)).unwrap();
    assert_eq!(*own, 2002);
    drop(own);
    let load = || async { Ok::<_, String>(2003) };
    let own = block_on(cache.get_or_load_weighed_async(3, 1, Attributes::DATA, load)).unwrap();
    assert_eq!(*own, 2003);
    drop(own);
    // With `begin`, the wait ends with the error that asks for another begin.
    let Begin::InFlight(in_flight) = cache.begin(4, 1, Attributes::DATA).unwrap() else {
        panic!("the secondary cache took no load over")
    };
    assert!(matches!(in_flight.wait(), Err(LoadError::Abandoned)));
    let asked = double.loads.load(Ordering::SeqCst);
    let Begin::Vacant(guard) = cache.begin_without_secondary(4, 1, Attributes::DATA).unwrap()
    else {
        panic!("it is being loaded")
    };
    drop(guard.publish(4));
    assert_eq!(double.loads.load(Ordering::SeqCst), asked, "the secondary cache was asked");
    let stats = cache.stats();
    assert_eq!(stats.counter("loads_failed"), 0, "{stats}");
    audit(&cache);
}

#[test]
fn a_write_says_whether_there_is_use_in_it() {
    let (cache, double) = with_double(10, 20);
    double.takes.store(true, Ordering::SeqCst);
    for key in 0..11 {
        drop(cache.insert(key, key));
    }
    cache.resize(20);
    cache.insert(1, 1001).unwrap();
    cache.remove(&2);
    let outdated = |writing: &Writing<u64, u64>| matches!(*writing.key(), 1 | 2);
    for writing in double.writing.lock().unwrap().iter() {
        assert_eq!(writing.is_outdated(), outdated(writing), "key {}", writing.key());
    }
    for writing in std::mem::take(&mut *double.writing.lock().unwrap()) {
        let outdated = outdated(&writing);
        assert_eq!(writing.stored(), !outdated);
    }
    audit(&cache);
}

#[test]
fn all_blocks_that_are_not_being_written_are_offered_in_batches() {
    let (cache, double) = with_double(100, 0);
    for key in 0..50 {
        cache.insert(key, key).unwrap();
    }
    cache.insert_with(50, 50, Attributes::METADATA).unwrap();
    cache.get(&3);
    let mut seen = Vec::new();
    let mut lots = Vec::new();
    cache.offer_all(20, |candidates| {
        lots.push(candidates.len());
        for candidate in candidates {
            seen.push((*candidate.key(), candidate.class, candidate.reused));
            if *candidate.key() % 2 == 0 {
                double.writing.lock().unwrap().extend(candidate.write());
            }
        }
    });
    assert_eq!(lots, [20, 20, 11]);
    seen.sort_unstable_by_key(|(key, ..)| *key);
    let class = |key| if key == 50 { Class::Metadata } else { Class::Data };
    assert_eq!(seen, (0..=50).map(|key| (key, class(key), key == 3)).collect::<Vec<_>>());
    let count = |cache: &Cache<u64, u64>| {
        let mut count = 0;
        cache.offer_all(1000, |candidates| count += candidates.len());
        count
    };
    assert_eq!(count(&cache), 25, "what is being written is not handed out");
    assert_eq!(double.complete(), 26);
    assert_eq!(
        count(&cache),
        51,
        "stored blocks are offered too: only the secondary cache knows how long it keeps them"
    );
    audit(&cache);
}

#[test]
fn a_panic_in_offer_is_caught_and_counted() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let double = Arc::new(Double::default());
        let cache = Cache::<u64, u64>::builder()
            .capacity(100)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .secondary_cache(double.clone())
            .build()
            .unwrap();
        double.panics.store(true, Ordering::SeqCst);
        for key in 0..1000 {
            cache.insert(key, key).unwrap();
        }
        assert_eq!(cache.stats().counter("panics_caught"), 1);
        cache.close();
        audit(&cache);
    }
}

#[test]
fn a_panic_in_load_is_the_callers_and_leaves_nothing() {
    struct Broken;
    impl SecondaryCache<u64, u64> for Broken {
        fn offer(&self, _: Vec<Candidate<u64, u64>>) {}
        fn load(&self, _: LoadGuard<u64, u64>) -> Result<(), LoadGuard<u64, u64>> {
            panic!("a bug in the secondary cache")
        }
        fn forget(&self, _: &u64) {}
    }
    let cache = Cache::<u64, u64>::builder()
        .capacity(100)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .secondary_cache(Arc::new(Broken))
        .build()
        .unwrap();
    let begin = || cache.begin(1, 1, Attributes::DATA).is_ok();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin)).is_err());
    audit(&cache);
    cache.close();
}

#[test]
fn writes_and_candidates_outlive_the_cache() {
    let (cache, double) = with_double(10, 20);
    double.takes.store(true, Ordering::SeqCst);
    for key in 0..11 {
        drop(cache.insert(key, key));
    }
    drop(cache);
    assert_eq!(double.complete(), 10);
    assert!(double.stored.lock().unwrap().is_empty(), "their blocks had left the cache");
}

#[test]
fn the_hook_holds_under_load() {
    let double = Arc::new(Double::default());
    double.takes.store(true, Ordering::SeqCst);
    let cache = Cache::<u64, u64>::builder()
        .capacity(500)
        .weigher(|_, _| 1)
        .tunable("overflow_wait_ms", "5000")
        .secondary_cache(double.clone())
        .build()
        .unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        let device = s.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                double.complete();
                thread::yield_now();
            }
        });
        let users: Vec<_> = (0..3u64)
            .map(|t| {
                let cache = &cache;
                s.spawn(move || {
                    for i in 0..15_000u64 {
                        let key = (i * 13 + t * 101) % 2000;
                        match i % 10 {
                            0 => drop(cache.insert(key, key % 1000)),
                            1 => {
                                cache.remove(&key);
                            }
                            _ => {
                                let load = || Ok::<_, String>(key % 1000);
                                match cache.begin(key, 1, Attributes::DATA).unwrap() {
                                    Begin::Hit(block) => assert_eq!(*block % 1000, key % 1000),
                                    Begin::InFlight(in_flight) => {
                                        let _ = in_flight.wait();
                                    }
                                    Begin::Vacant(guard) => drop(guard.publish(load().unwrap())),
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        stop.store(true, Ordering::SeqCst);
        device.join().unwrap();
    });
    let stats = cache.stats();
    assert!(stats.counter("secondary_hits") > 0, "{stats}");
    double.takes.store(false, Ordering::SeqCst);
    wait_until("the last writes end", || double.complete() == 0);
    cache.close();
    audit(&cache);
}

/// Takes over the first load, and returns its guard for the second.
#[derive(Default)]
struct Mixer(Mutex<Option<LoadGuard<u64, u64>>>);

impl SecondaryCache<u64, u64> for Mixer {
    fn offer(&self, _: Vec<Candidate<u64, u64>>) {}
    fn load(&self, guard: LoadGuard<u64, u64>) -> Result<(), LoadGuard<u64, u64>> {
        self.0.lock().unwrap().replace(guard).map_or(Ok(()), Err)
    }
    fn forget(&self, _: &u64) {}
}

#[test]
fn a_load_guard_that_is_handed_back_must_be_of_the_same_load() {
    for of_another_cache in [false, true] {
        let mixer = Arc::new(Mixer::default());
        let build = || {
            let builder = Cache::builder().capacity(10).weigher(|_, _: &u64| 1);
            builder.reclaim(Reclaim::Inline).secondary_cache(mixer.clone()).build().unwrap()
        };
        let (cache, other) = (build(), build());
        let first = if of_another_cache { &other } else { &cache };
        let Begin::InFlight(in_flight) = first.begin(1, 1, Attributes::DATA).unwrap() else {
            panic!()
        };
        // The reference would claim to borrow this cache but belong to the other.
        let mixed =
            || drop(cache.get_or_load_weighed(2, 1, Attributes::DATA, || Ok::<_, LoadError>(2)));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(mixed)).is_err());
        assert!(matches!(in_flight.wait(), Err(LoadError::Panicked)));
        drop(mixer.0.lock().unwrap().take());
        audit(&cache);
        audit(&other);
    }
}

#[test]
fn a_conditional_removal_forgets_only_what_it_removes() {
    let (cache, double) = with_double(100, 10);
    cache.insert(1, 1).unwrap();
    double.stored.lock().unwrap().extend([(1, 1), (2, 2)]);
    double.forgotten.lock().unwrap().clear();
    assert!(cache.remove_if(&1, |_| false).is_none());
    // Only the secondary cache has it.
    assert!(cache.remove_if(&2, |_| true).is_none());
    assert!(double.forgotten.lock().unwrap().is_empty());
    // The first answer is for a block that is replaced before it can be removed.
    let mut asked = 0;
    let removed = cache.remove_if(&1, |value| {
        asked += 1;
        if asked == 1 {
            cache.insert(1, *value + 1000).unwrap();
        }
        true
    });
    assert_eq!((removed.as_deref(), asked), (Some(&1001), 2));
    assert_eq!(*double.forgotten.lock().unwrap(), [1, 1], "by the insert, then by the removal");
    assert!(!double.stored.lock().unwrap().contains_key(&1));
    drop(removed);
    // A block that leaves by `retain` is not outdated.
    cache.insert(3, 3).unwrap();
    double.evicted.lock().unwrap().clear();
    assert_eq!(cache.retain(|key, _, _| *key != 3), 1);
    assert_eq!(*double.evicted.lock().unwrap(), [3]);
    audit(&cache);
}
