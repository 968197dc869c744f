//! When values of a hybrid cache expire, in memory and on the device.
//!
//! A value carries its times, in a [`Lifetime`]. They begin when the value is weighed, which is
//! before it enters memory, and are written with it. The device outlives the process, so they are
//! times of day. Within a process the clock neither goes back nor stops: while the time of day is
//! behind, a monotonic clock goes on from where it was.
//!
//! Invariants
//!
//! * A lookup returns no value whose time is over by the clock. It removes such a value from
//!   memory. What the device has of it expires at the same time or earlier, and stays until it is
//!   overwritten.
//! * The reclaimer's walk begins no later than [`WALK_AGAIN_MS`] after a value has expired. So it
//!   finds a value that was still on its way into memory during the walk before.
//!
//! Locking: none. A hit notes its use with one relaxed write for each tick of the clock. The first
//! hits in a tick read the time of day, until one of them has it.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use forebay_base::clock::{Clock, CoarseClock, CoarseWallClock, WallClock};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_cache::{Cache, Expiry, Key, OwnedRef, Ref};

use super::HybridBuilder;
use super::values::L2Value;
use crate::error::{Error, ErrorKind, Result};

/// No deadline.
const NEVER: u64 = u64::MAX;
/// Time between two walks of the reclaimer, if values can expire.
const WALK_AGAIN_MS: u64 = 60_000;
/// Bytes of the encoded times.
const TIMES_BYTES: usize = 16;

/// The times of a value that can expire. A value type that has one tells the cache by
/// [`L2Value::lifetime`].
pub struct Lifetime {
    /// The value's own time to live, in milliseconds, until it begins. [`NEVER`] if it has none.
    own_ms: u64,
    /// When it expires, in milliseconds since 1970. Zero before it begins.
    deadline_ms: AtomicU64,
    /// When it was used last.
    used_ms: AtomicU64,
}

impl Lifetime {
    /// A lifetime that ends as the cache's [`time_to_live`](HybridBuilder::time_to_live) and
    /// [`time_to_idle`](HybridBuilder::time_to_idle) say, and no later than `own` after the value
    /// was cached.
    pub fn new(own: Option<Duration>) -> Self {
        let own_ms = own.map_or(NEVER, milliseconds);
        Self { own_ms, deadline_ms: AtomicU64::new(0), used_ms: AtomicU64::new(0) }
    }

    /// The number of bytes that [`encode`](Self::encode) writes.
    pub const ENCODED_BYTES: usize = TIMES_BYTES;

    /// Writes the times into `out`, which has [`ENCODED_BYTES`](Self::ENCODED_BYTES) bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let (deadline, used) = out.split_at_mut(TIMES_BYTES / 2);
        deadline.copy_from_slice(&self.deadline_ms.load(Ordering::Relaxed).to_le_bytes());
        used.copy_from_slice(&self.used_ms.load(Ordering::Relaxed).to_le_bytes());
    }

    /// Reads the times that [`encode`](Self::encode) wrote, and returns the bytes after them.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (deadline, rest) = bytes.split_first_chunk()?;
        let (used, rest) = rest.split_first_chunk()?;
        let [deadline_ms, used_ms] =
            [deadline, used].map(|bytes| AtomicU64::new(u64::from_le_bytes(*bytes)));
        Some((Self { own_ms: NEVER, deadline_ms, used_ms }, rest))
    }
}

impl fmt::Debug for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifetime")
            .field("deadline_ms", &self.deadline_ms)
            .field("used_ms", &self.used_ms)
            .finish_non_exhaustive()
    }
}

/// A value that can expire. It reads like the value inside.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cache");
/// use std::time::Duration;
/// use forebay_l2::{Expiring, HybridCache};
///
/// let cache = HybridCache::<u64, Expiring<String>>::builder_at(&path, 64 << 20)
///     .capacity(4 << 20)
///     .time_to_live(Duration::from_secs(600))
///     .build()?;
/// cache.insert(1, "ten minutes".to_owned().into())?;
/// cache.insert(2, Expiring::after(Duration::from_secs(5), "five seconds".to_owned()))?;
/// assert_eq!(cache.get(&1).map(|value| value.len()), Some(11));
/// # cache.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Expiring<V> {
    value: V,
    lifetime: Lifetime,
}

impl<V> Expiring<V> {
    /// A value that expires as the cache says.
    pub fn new(value: V) -> Self {
        Self { value, lifetime: Lifetime::new(None) }
    }

    /// A value that expires that long after it was cached, and no later than the cache says.
    pub fn after(time_to_live: Duration, value: V) -> Self {
        Self { value, lifetime: Lifetime::new(Some(time_to_live)) }
    }

    /// The value. `Expiring::new` begins a new life; an [`Expiring`] that is taken out of a cache
    /// and inserted again keeps its times.
    pub fn into_inner(self) -> V {
        self.value
    }
}

impl<V> From<V> for Expiring<V> {
    fn from(value: V) -> Self {
        Self::new(value)
    }
}

impl<V> Deref for Expiring<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V: L2Value> L2Value for Expiring<V> {
    fn encoded_len(&self) -> usize {
        TIMES_BYTES + self.value.encoded_len()
    }

    fn encode(&self, out: &mut [u8]) {
        let (times, value) = out.split_at_mut(TIMES_BYTES);
        self.lifetime.encode(times);
        self.value.encode(value);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (lifetime, rest) = Lifetime::decode(bytes)?;
        Some(Self { value: V::decode(rest)?, lifetime })
    }

    fn memory_bytes(&self) -> u64 {
        size_of::<Lifetime>() as u64 + self.value.memory_bytes()
    }

    const EXPIRES: bool = true;

    fn lifetime(&self) -> Option<&Lifetime> {
        Some(&self.lifetime)
    }
}

impl<K: Key, V: Send + Sync + 'static> HybridBuilder<K, V> {
    /// How long values live that have a [`Lifetime`], from when they were cached. A value on the
    /// device keeps its time over restarts.
    ///
    /// [`Expiring`] gives any value a lifetime. [`build`](Self::build) refuses a time for values
    /// that have none.
    pub fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.lifetimes.time_to_live_ms = milliseconds(lifetime);
        self
    }

    /// How long values live that have a [`Lifetime`] and are not used. The device knows of uses
    /// before the value was written only, so a value that memory has evicted may expire earlier.
    pub fn time_to_idle(mut self, lifetime: Duration) -> Self {
        self.lifetimes.time_to_idle_ms = milliseconds(lifetime);
        self
    }

    /// The time of day for expiry. The default is the system's, as of its last tick. If it is set
    /// forward, values expire early. If it is set back, a monotonic [`clock`](Self::clock) goes on
    /// in its place; but between two runs, values then live longer by as much.
    pub fn wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.lifetimes.clock = clock;
        self
    }
}

/// What the builder says of expiry.
#[derive(Clone)]
pub(super) struct Lifetimes {
    clock: Arc<dyn WallClock>,
    time_to_live_ms: u64,
    time_to_idle_ms: u64,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let clock = Arc::new(CoarseWallClock);
        Self { clock, time_to_live_ms: NEVER, time_to_idle_ms: NEVER }
    }
}

impl Lifetimes {
    /// The rule for values of a type that has lifetimes, or none.
    pub(super) fn expiries<V>(
        &self,
        lifetime: Option<LifetimeOf<V>>,
        monotonic: Option<&Arc<dyn Clock>>,
    ) -> Result<Option<Arc<Expiries<V>>>> {
        if lifetime.is_none() && self.time_to_live_ms.min(self.time_to_idle_ms) < NEVER {
            let text = "cannot build the hybrid cache: it has a time to live or to idle, and its values have no lifetime; use `Expiring<V>` as the type of values";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let rule = || {
            let rule = ExpiryRule {
                lifetimes: self.clone(),
                monotonic: monotonic.map_or_else(|| Arc::new(CoarseClock::new()) as _, Arc::clone),
                read_at_ms: AtomicU64::new(NEVER),
                offset_ms: AtomicU64::new(1),
                next_walk_ms: AtomicU64::new(NEVER),
            };
            // Before any value begins.
            rule.follow_time_of_day();
            rule
        };
        Ok(lifetime.map(|lifetime| Arc::new(Expiries { rule: rule(), lifetime })))
    }
}

/// The lifetime of a value.
pub(super) type LifetimeOf<V> = fn(&V) -> Option<&Lifetime>;

/// The rule by which the values of one cache expire.
struct ExpiryRule {
    lifetimes: Lifetimes,
    monotonic: Arc<dyn Clock>,
    /// When the time of day was read last, by the monotonic clock.
    read_at_ms: AtomicU64,
    /// The time of day less the monotonic clock: the most that was read.
    offset_ms: AtomicU64,
    /// When the reclaimer's next walk begins.
    next_walk_ms: AtomicU64,
}

impl ExpiryRule {
    /// The time in milliseconds since 1970, never zero. It goes on as the monotonic clock does, and
    /// follows the time of day if that is ahead, as after the machine was suspended.
    fn now_ms(&self) -> u64 {
        let monotonic_ms = self.monotonic_ms();
        if self.read_at_ms.load(Ordering::Acquire) != monotonic_ms {
            self.follow_time_of_day();
            // With what it guards: who sees that the time was read uses no offset from before.
            self.read_at_ms.store(monotonic_ms, Ordering::Release);
        }
        monotonic_ms.saturating_add(self.offset_ms.load(Ordering::Relaxed))
    }

    fn monotonic_ms(&self) -> u64 {
        self.monotonic.now_ns() / 1_000_000
    }

    #[cold]
    fn follow_time_of_day(&self) {
        let now = self.lifetimes.clock.unix_time();
        let ms = u64::try_from(now.seconds)
            .unwrap_or(0)
            .saturating_mul(1000)
            .saturating_add(u64::from(now.nanos / 1_000_000));
        // After the time of day: if the thread is held up in between, the offset is too small, and
        // the next tick makes up for it.
        let offset_ms = ms.saturating_sub(self.monotonic_ms());
        self.offset_ms.fetch_max(offset_ms, Ordering::Relaxed);
    }

    /// Begins a lifetime, unless it has begun, and notes when it ends.
    fn begin(&self, lifetime: &Lifetime) {
        let now_ms = self.now_ms();
        if lifetime.deadline_ms.load(Ordering::Relaxed) == 0 {
            let lives_ms = self.lifetimes.time_to_live_ms.min(lifetime.own_ms);
            lifetime.deadline_ms.store(now_ms.saturating_add(lives_ms), Ordering::Relaxed);
            lifetime.used_ms.store(now_ms, Ordering::Relaxed);
        }
        self.note(lifetime);
    }

    fn expires_at(&self, lifetime: &Lifetime) -> u64 {
        let used_ms = lifetime.used_ms.load(Ordering::Relaxed);
        let idle = used_ms.saturating_add(self.lifetimes.time_to_idle_ms);
        lifetime.deadline_ms.load(Ordering::Relaxed).min(idle)
    }

    fn has_expired(&self, lifetime: &Lifetime) -> bool {
        self.expires_at(lifetime) <= self.now_ms()
    }

    /// Notes a use. False, without noting it, if the time is over.
    fn use_now(&self, lifetime: &Lifetime) -> bool {
        let now_ms = self.now_ms();
        if self.expires_at(lifetime) <= now_ms {
            return false;
        }
        if lifetime.used_ms.load(Ordering::Relaxed) < now_ms {
            // Only forward: another thread may have noted a later use just now.
            lifetime.used_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
        true
    }

    fn note(&self, lifetime: &Lifetime) {
        let at = self.expires_at(lifetime);
        if at < self.next_walk_ms.load(Ordering::Relaxed) {
            // If another thread notes an earlier time at this moment, the walk is a little late.
            self.next_walk_ms.store(at, Ordering::Relaxed);
        }
    }
}

/// The rule for values of a type, some of which have a lifetime.
pub(super) struct Expiries<V> {
    rule: ExpiryRule,
    lifetime: LifetimeOf<V>,
}

impl<V> Expiries<V> {
    /// Begins the life of a value that is about to be cached.
    pub(super) fn begin(&self, value: &V) {
        if let Some(lifetime) = (self.lifetime)(value) {
            self.rule.begin(lifetime);
        }
    }

    /// Whether the time of a value is over. Notes no use.
    pub(super) fn has_expired(&self, value: &V) -> bool {
        (self.lifetime)(value).is_some_and(|lifetime| self.rule.has_expired(lifetime))
    }

    /// Notes the use of a value that was loaded or found by a load.
    pub(super) fn note_use(&self, value: &V) {
        if let Some(lifetime) = (self.lifetime)(value) {
            self.rule.use_now(lifetime);
        }
    }

    /// The value, as used now. If its time is over, removes it from memory.
    pub(super) fn use_found<K: Key>(
        &self,
        cache: &Cache<K, V>,
        value: Ref<'_, K, V>,
    ) -> Option<OwnedRef<K, V>>
    where
        V: Send + Sync + 'static,
    {
        let lives = (self.lifetime)(&value).is_none_or(|lifetime| self.rule.use_now(lifetime));
        if !lives {
            cache.expire(&value);
        }
        lives.then(|| value.into_owned())
    }
}

impl<V: Send + Sync> Expiry<V> for Expiries<V> {
    fn begin_walk(&self) -> bool {
        let (now_ms, next) = (self.rule.now_ms(), &self.rule.next_walk_ms);
        let is_due = next.load(Ordering::Relaxed) <= now_ms;
        if is_due {
            next.store(now_ms.saturating_add(WALK_AGAIN_MS), Ordering::Relaxed);
        }
        is_due
    }

    fn check_and_note(&self, value: &V) -> bool {
        let Some(lifetime) = (self.lifetime)(value) else { return false };
        let is_over = self.rule.has_expired(lifetime);
        if !is_over {
            self.rule.note(lifetime);
        }
        is_over
    }
}

fn milliseconds(lifetime: Duration) -> u64 {
    u64::try_from(lifetime.as_millis()).unwrap_or(NEVER)
}
