//! Shared by the tests: caches of known size, values that count their drops, a small executor.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_cache::{Builder, Cache, Key, OwnerId, Reclaim};

/// A wait of this length means that something hangs. No time is measured by it.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) use forebay_base::testing::full;

/// The seed of a randomised test.
pub(crate) fn seed(test: &str) -> u64 {
    print!("{test}: ");
    forebay_base::testing::seed(0x5eed)
}

/// A cache that evicts in the inserting thread, in exact order: one sublist.
pub(crate) fn inline<V: Send + Sync + 'static>(
    capacity: u64,
    weigh: impl Fn(&u64, &V) -> u64 + Send + Sync + 'static,
) -> Builder<u64, V> {
    Cache::builder()
        .capacity(capacity)
        .weigher(weigh)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .tunable("sublists", "1")
}

/// As `inline`, with blocks of weight one.
pub(crate) fn inline_blocks(capacity: u64) -> Cache<u64, u64> {
    inline(capacity, |_, _| 1).build().unwrap()
}

/// A cache with a reclaimer thread and blocks of weight one.
pub(crate) fn threaded_blocks(capacity: u64) -> Builder<u64, u64> {
    Cache::builder().capacity(capacity).weigher(|_, _| 1).seed(1).tunable("overflow_wait_ms", "200")
}

/// Waits until `done` returns true.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Joins a thread that must end.
pub(crate) fn join<T>(what: &str, thread: JoinHandle<T>) -> T {
    wait_until(what, || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Audits a cache that no thread uses. Waits until reclaimer and callbacks are idle.
pub(crate) fn audit<K: Key, V: Send + Sync + 'static>(cache: &Cache<K, V>) {
    cache.drain_listener();
    cache.audit();
}

/// A key with an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedKey(pub(crate) OwnerId, pub(crate) u64);

impl Key for OwnedKey {
    fn owner(&self) -> OwnerId {
        self.0
    }
}

/// Counts live values.
#[derive(Clone, Default)]
pub(crate) struct Live {
    count: Arc<AtomicI64>,
    made: Arc<AtomicU64>,
}

impl Live {
    /// A value that is counted until it is dropped.
    pub(crate) fn value(&self, payload: u64) -> Counted {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.made.fetch_add(1, Ordering::SeqCst);
        Counted { payload, whole: !payload, live: self.count.clone() }
    }
    pub(crate) fn count(&self) -> i64 {
        let count = self.count.load(Ordering::SeqCst);
        assert!(count >= 0, "a value was dropped twice");
        count
    }
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }
}

/// A counted value that detects torn writes.
pub(crate) struct Counted {
    payload: u64,
    whole: u64,
    live: Arc<AtomicI64>,
}

impl Counted {
    pub(crate) fn payload(&self) -> u64 {
        assert_eq!(self.whole, !self.payload, "a torn or dropped value");
        self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.payload();
        self.whole = self.payload;
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Counted({})", self.payload())
    }
}

/// Wakes a blocked `block_on`, and counts.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
    pub(crate) rings: AtomicU64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Bell {
    fn wait(&self) {
        let rung = self.rung.lock().unwrap();
        let (mut rung, timeout) = self.changed.wait_timeout_while(rung, LONG, |r| !*r).unwrap();
        assert!(!timeout.timed_out(), "a future was never woken");
        *rung = false;
    }
}

/// The whole executor.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.wait(),
        }
    }
}

/// A key below `n`, the small ones far more often: Zipf's law, by inversion of the cumulative sums.
/// `forebay-sim` does the same, but depends on this crate.
pub(crate) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    pub(crate) fn new(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=n).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self { cumulative: cumulative.collect() }
    }
    pub(crate) fn next(&self, rng: &mut SmallRng) -> u64 {
        let all = self.cumulative.last().copied().unwrap_or(1.0);
        let at = rng.next_f64() * all;
        self.cumulative.partition_point(|c| *c < at).min(self.cumulative.len() - 1) as u64
    }
}
