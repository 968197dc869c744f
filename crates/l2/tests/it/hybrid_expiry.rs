//! Expiry of values in memory and on the device, over restarts, by a clock that the tests advance.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use forebay_base::clock::{ManualClock, UnixTime, WallClock};
use forebay_l2::{
    Cause, Delivery, ErrorKind, Expiring, HybridBuilder, HybridCache, L2Value, MemoryDevice,
    MemoryOptions,
};

use crate::support::block_on;

type Value = Expiring<Vec<u8>>;
type Hybrid = HybridCache<u64, Value>;

const SECOND: Duration = Duration::from_secs(1);

/// The time of day in milliseconds, which somebody may set.
struct TimeOfDay(AtomicU64);

impl WallClock for TimeOfDay {
    fn unix_time(&self) -> UnixTime {
        let ms = self.0.load(Ordering::SeqCst);
        UnixTime { seconds: (ms / 1000) as i64, nanos: (ms % 1000) as u32 * 1_000_000 }
    }
}

/// A device, the time since the machine's start, and the time of day.
struct Machine {
    device: Arc<MemoryDevice>,
    clock: Arc<ManualClock>,
    time_of_day: Arc<TimeOfDay>,
}

impl Machine {
    fn new() -> Self {
        let device = MemoryDevice::new("memory", 16 << 20, &MemoryOptions::default()).unwrap();
        let time_of_day = Arc::new(TimeOfDay(AtomicU64::new(1_000_000_000)));
        Self { device: Arc::new(device), clock: Arc::new(ManualClock::new()), time_of_day }
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time.as_nanos() as u64);
        self.time_of_day.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    fn set_time_of_day(&self, change: impl Fn(u64) -> u64) {
        let before = self.time_of_day.0.load(Ordering::SeqCst);
        self.time_of_day.0.store(change(before), Ordering::SeqCst);
    }

    /// By the system's monotonic clock.
    fn unclocked_builder(&self) -> HybridBuilder<u64, Value> {
        let builder = Hybrid::builder(self.device.clone()).wall_clock(self.time_of_day.clone());
        builder.capacity(1 << 20).l2_tunable("admit_all", "true")
    }

    fn builder(&self) -> HybridBuilder<u64, Value> {
        self.unclocked_builder().clock(self.clock.clone())
    }

    /// Opens the cache whose values live for ten seconds.
    fn open(&self) -> Hybrid {
        let cache = self.builder().time_to_live(10 * SECOND).build().unwrap();
        assert!(cache.l2().wait_rebuilt());
        cache
    }
}

fn value(byte: u8) -> Value {
    vec![byte; 100].into()
}

fn byte(cache: &Hybrid, key: u64) -> Option<u8> {
    cache.get(&key).map(|value| value[0])
}

#[test]
fn no_lookup_finds_a_value_after_its_time() {
    let machine = Machine::new();
    let cache = machine.open();
    for key in 0..8 {
        cache.insert(key, value(key as u8)).unwrap();
    }
    machine.pass(10 * SECOND - Duration::from_millis(1));
    assert_eq!((byte(&cache, 0), cache.contains(&1)), (Some(0), true));
    machine.pass(Duration::from_millis(1));
    assert!(cache.memory().peek(&0).is_none() && !cache.memory().contains(&0));
    assert!(cache.memory().get(&0).is_none() && !cache.contains(&0));
    assert_eq!(cache.memory().len(), 8, "not even looked at");
    assert_eq!(byte(&cache, 0), None);
    assert!(block_on(cache.get_async(&1)).is_none());
    assert!(cache.get_many(&[2, 3]).iter().all(Option::is_none));
    assert!(!cache.remove(&4).unwrap() && !cache.remove_if(&5, |_| true).unwrap());
    let modified = cache.entry(6).and_modify(|_| unreachable!("it has expired")).unwrap();
    assert_eq!(modified.or_insert(value(60)).unwrap()[0], 60);
    assert_eq!(cache.memory().len(), 2, "6, and 7 that nobody looked up");
}

#[test]
fn an_expired_value_is_loaded_once() {
    let machine = Machine::new();
    let cache = machine.open();
    cache.insert(1, value(1)).unwrap();
    // On the device as well, so that a load asks it first.
    cache.flush_to_device().unwrap();
    machine.pass(10 * SECOND);
    let loads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, loads) = (&cache, &loads);
            scope.spawn(move || {
                let load = || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, String>(value(2))
                };
                let loaded = match thread % 2 {
                    0 => cache.get_or_load(1, load),
                    _ => block_on(cache.get_or_load_async(1, || async { load() })),
                };
                assert_eq!(loaded.unwrap()[0], 2);
            });
        }
    });
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    machine.pass(9 * SECOND);
    assert_eq!(byte(&cache, 1), Some(2), "a load begins a new life");
}

#[test]
fn a_restart_neither_prolongs_a_life_nor_ends_it() {
    let machine = Machine::new();
    let cache = machine.open();
    for key in 0..4 {
        cache.insert(key, value(key as u8)).unwrap();
        machine.pass(2 * SECOND);
    }
    cache.close().unwrap();
    drop(cache);
    // 0 and 1 have expired meanwhile.
    machine.pass(4 * SECOND);
    for _ in 0..2 {
        let cache = machine.open();
        let found = [0, 1, 2, 3].map(|key| byte(&cache, key));
        assert_eq!(found, [None, None, Some(2), Some(3)]);
        cache.close().unwrap();
    }
    let cache = machine.open();
    // 2 is in memory when its time is over.
    assert_eq!(byte(&cache, 2), Some(2));
    machine.pass(2 * SECOND);
    assert_eq!([2, 3].map(|key| byte(&cache, key)), [None, Some(3)]);
    assert_eq!(byte(&cache, 2), None, "the device has it, and must not return it");
    machine.pass(2 * SECOND);
    assert_eq!(byte(&cache, 3), None);
}

#[test]
fn the_device_reads_an_expired_value_once() {
    let machine = Machine::new();
    let cache = machine.builder().time_to_live(10 * SECOND).l2_tunable("warm_up", "false");
    let cache = cache.build().unwrap();
    cache.insert(1, value(1)).unwrap();
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    machine.pass(10 * SECOND);
    for _ in 0..3 {
        assert_eq!(byte(&cache, 1), None);
    }
    let count = |name| cache.stats().l2.count(name);
    // The first lookup begins again after the load.
    assert_eq!((count("load_expired"), count("misses_bad")), (1, 3));
    // The key is free for a new value, also after a restart.
    cache.insert(1, value(2)).unwrap();
    cache.close().unwrap();
    drop(cache);
    assert_eq!(byte(&machine.open(), 1), Some(2));
}

#[test]
fn uses_prolong_an_idle_life() {
    let machine = Machine::new();
    let open = || {
        let cache = machine.builder().time_to_idle(10 * SECOND).build().unwrap();
        assert!(cache.l2().wait_rebuilt());
        cache
    };
    let cache = open();
    cache.insert(1, value(1)).unwrap();
    cache.insert(2, value(2)).unwrap();
    machine.pass(9 * SECOND);
    assert_eq!(byte(&cache, 1), Some(1));
    assert!(cache.memory().peek(&2).is_some(), "no use");
    machine.pass(9 * SECOND);
    assert_eq!([1, 2].map(|key| byte(&cache, key)), [Some(1), None]);
    cache.close().unwrap();
    drop(cache);
    machine.pass(9 * SECOND);
    let cache = open();
    // Found on the device, and used, however it is found.
    assert_eq!(byte(&cache, 1), Some(1));
    machine.pass(9 * SECOND);
    let missing = || Err::<Value, _>("it is cached");
    assert_eq!(cache.get_or_load(1, missing).unwrap()[0], 1);
    machine.pass(9 * SECOND);
    assert_eq!(block_on(cache.get_or_load_async(1, || async { missing() })).unwrap()[0], 1);
    machine.pass(9 * SECOND);
    assert_eq!(cache.get_many(&[1])[0].as_ref().map(|value| value[0]), Some(1));
    machine.pass(9 * SECOND);
    assert_eq!(byte(&cache, 1), Some(1));
    cache.close().unwrap();
    drop(cache);
    machine.pass(10 * SECOND);
    assert_eq!(byte(&open(), 1), None);
}

#[test]
fn a_value_may_live_shorter_than_others() {
    let machine = Machine::new();
    let cache = machine.open();
    cache.insert(1, Expiring::after(3 * SECOND, vec![1])).unwrap();
    cache.insert(2, Expiring::after(30 * SECOND, vec![2])).unwrap();
    machine.pass(3 * SECOND);
    assert_eq!([1, 2].map(|key| byte(&cache, key)), [None, Some(2)]);
    machine.pass(7 * SECOND);
    assert_eq!(byte(&cache, 2), None);
    let endless = machine.builder().recreate().build().unwrap();
    endless.insert(1, Expiring::after(3 * SECOND, vec![1])).unwrap();
    endless.insert(2, Expiring::new(vec![2])).unwrap();
    machine.pass(400 * 86_400 * SECOND);
    assert_eq!([1, 2].map(|key| byte(&endless, key)), [None, Some(2)]);
}

#[test]
fn lives_go_on_while_the_time_of_day_is_behind() {
    const HOUR_MS: u64 = 3_600_000;
    let machine = Machine::new();
    let cache = machine.open();
    cache.insert(1, value(1)).unwrap();
    machine.pass(4 * SECOND);
    machine.set_time_of_day(|ms| ms - HOUR_MS);
    cache.insert(2, value(2)).unwrap();
    machine.pass(6 * SECOND - Duration::from_millis(1));
    assert_eq!([1, 2].map(|key| byte(&cache, key)), [Some(1), Some(2)]);
    machine.pass(Duration::from_millis(1));
    assert_eq!([1, 2].map(|key| byte(&cache, key)), [None, Some(2)]);
    machine.pass(4 * SECOND);
    assert_eq!(byte(&cache, 2), None);
    // Set right again, which is no step forward for the cache.
    cache.insert(3, value(3)).unwrap();
    machine.set_time_of_day(|ms| ms + HOUR_MS);
    machine.pass(9 * SECOND);
    assert_eq!(byte(&cache, 3), Some(3));
    // Suspended, or set forward.
    machine.set_time_of_day(|ms| ms + HOUR_MS);
    machine.pass(Duration::from_millis(1));
    assert_eq!(byte(&cache, 3), None);
    cache.close().unwrap();
}

#[test]
fn a_thread_removes_what_nobody_looks_up() {
    // The monotonic clock is the real one, which must not end the life of the last value.
    const LIFE: Duration = Duration::from_secs(1000);
    let machine = Machine::new();
    let causes = Arc::new(Mutex::new(Vec::new()));
    let told = causes.clone();
    // The walk waits for its turn by the same clock.
    let cache = machine
        .unclocked_builder()
        .time_to_live(LIFE)
        .on_evicted(Delivery::Lossless, move |event| told.lock().unwrap().push(event.cause))
        .build()
        .unwrap();
    cache.insert(1, value(1)).unwrap();
    cache.insert(2, value(2)).unwrap();
    machine.pass(LIFE);
    // Until the next tick of the monotonic clock.
    while cache.contains(&2) {
        std::thread::yield_now();
    }
    // Told as expired, not as replaced.
    cache.insert(2, value(3)).unwrap();
    while cache.memory().len() > 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
    cache.memory().drain_listener();
    assert_eq!(*causes.lock().unwrap(), [Cause::Expired; 2]);
    assert_eq!(byte(&cache, 2), Some(3));
}

#[test]
fn a_lifetime_needs_values_that_have_one() {
    let machine = Machine::new();
    let builder = HybridCache::<u64, Vec<u8>>::builder(machine.device.clone()).capacity(1 << 20);
    let error = builder.time_to_live(SECOND).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("use `Expiring<V>`"), "{error}");
}

#[test]
fn encoded_times_are_checked() {
    let mut bytes = vec![0; value(7).encoded_len()];
    value(7).encode(&mut bytes);
    assert_eq!(Value::decode(&bytes).unwrap().into_inner(), vec![7; 100]);
    assert!(Value::decode(&bytes[..15]).is_none());
    assert!(Value::decode(&bytes[..16]).unwrap().is_empty());
}

/// A time of day. A read that is expected waits until it is let go, if it is not by the thread that
/// made the clock. So it is by the thread that looks up, or the reclaimer's.
struct HeldClock {
    time_of_day: Arc<TimeOfDay>,
    maker: ThreadId,
    is_expected: AtomicBool,
    entered: Barrier,
    let_go: Barrier,
}

impl WallClock for HeldClock {
    fn unix_time(&self) -> UnixTime {
        let time = self.time_of_day.unix_time();
        let is_other = std::thread::current().id() != self.maker;
        if is_other && self.is_expected.swap(false, Ordering::SeqCst) {
            self.entered.wait();
            self.let_go.wait();
        }
        time
    }
}

/// Calls `f` while another thread does an expected read of the time of day for a `lookup`.
fn while_the_time_is_read<T: Send>(
    clock: &HeldClock,
    lookup: impl FnOnce() + Send,
    f: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        let held = scope.spawn(lookup);
        clock.entered.wait();
        let seen = f();
        clock.let_go.wait();
        held.join().unwrap();
        seen
    })
}

#[test]
fn a_thread_that_is_slow_to_read_the_time_gives_others_no_wrong_one() {
    let machine = Machine::new();
    let clock = Arc::new(HeldClock {
        time_of_day: machine.time_of_day.clone(),
        maker: std::thread::current().id(),
        is_expected: AtomicBool::new(false),
        entered: Barrier::new(2),
        let_go: Barrier::new(2),
    });
    let cache = machine.builder().time_to_live(10 * SECOND).wall_clock(clock.clone());
    let cache = cache.build().unwrap();
    let lookup = || _ = byte(&cache, 1);
    // The first read of all: a new value does not begin in 1970.
    cache.l2().wait_rebuilt();
    let insert = || cache.insert(1, value(1)).unwrap();
    clock.is_expected.store(true, Ordering::SeqCst);
    while_the_time_is_read(&clock, insert, || cache.insert(2, value(2)).unwrap());
    assert_eq!(byte(&cache, 2), Some(2));
    machine.pass(9 * SECOND);
    assert_eq!(byte(&cache, 2), Some(2));
    // The machine was suspended: a value does not outlive that.
    machine.set_time_of_day(|ms| ms + 10_000);
    clock.is_expected.store(true, Ordering::SeqCst);
    machine.pass(Duration::from_millis(1));
    let seen = while_the_time_is_read(&clock, lookup, || byte(&cache, 2));
    assert_eq!(seen, None);
    cache.close().unwrap();
}
