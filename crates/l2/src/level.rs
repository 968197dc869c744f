//! A second level on a device: making, opening, using, closing and removing one.
//!
//! Threads: a writer, one that gives up loads that are overdue, some for the rebuild until that is done, and one for the warm-up after it. Loads run on whoever asks, and on the device's threads.
//!
//! Locking: `l2-threads`, held while the threads are joined: a second close returns no sooner than the first. One of the level's own
//! threads, on which a user's drop may let go of the level, never takes it: another thread does the waiting then.

use std::time::Duration;

use forebay_base::counters::CounterValue;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_base::tunables::TunableError;
use forebay_cache::{Candidate, Class, Filler, Key, SecondLevel, SpareRoom};
use forebay_io::Device;

use crate::codec::{Codec, MAX_KEY_BYTES, MAX_NOTE_BYTES};
use crate::counters::LevelCounters;
use crate::error::{Error, ErrorKind, Result};
use crate::inner::{Health, Inner};
use crate::label::{self, LabelInfo};
use crate::medium::Medium;
use crate::options::LevelOptions;
use crate::record::State;
use crate::recover::{self, RebuildStats};
use crate::stats::LevelStats;
use crate::tunables::LevelTunables;
use crate::warm::{WarmUp, WarmUpEnd};
use crate::writer::Writer;

/// A second level on a device. Hand it to a cache's [`Builder`](forebay_cache::Builder).
///
/// Close it before the cache: blocks that wait to be written are pinned in the cache.
pub struct Level<K: Key, V: Send + Sync + 'static> {
    inner: Arc<Inner<K, V>>,
    threads: Arc<Threads>,
}

type Threads = Mutex<Vec<JoinHandle<()>>>;

impl<K: Key, V: Send + Sync + 'static> Level<K, V> {
    /// Makes the device a level, and opens it. What a level of the same owner held before is gone.
    ///
    /// # Errors
    /// [`ErrorKind::TooSmall`], [`ErrorKind::ReadOnly`]; [`ErrorKind::Foreign`] if the device holds something else, and it is not
    /// forced; and the device's own.
    pub fn create(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        options: &LevelOptions,
    ) -> Result<Arc<Self>> {
        let medium = Self::medium(device, &*codec, options)?;
        let label = label::create(&medium, codec.key_bytes(), options)?;
        Self::start(medium, codec, (label, true), options)
    }

    /// Opens the level that the device holds. What it holds is found out in the background; it serves what it knows at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotALevel`], unless it is to be made then; [`ErrorKind::Foreign`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::ReadOnly`], and the device's own.
    pub fn open(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        options: &LevelOptions,
    ) -> Result<Arc<Self>> {
        let medium = Self::medium(device, &*codec, options)?;
        let name = Arc::clone(&medium.device);
        let name = &*name.info().name;
        let (label, whole) = match label::read(&medium) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotALevel && options.create => {
                let label = label::create(&medium, codec.key_bytes(), options)?;
                return Self::start(medium, codec, (label, true), options);
            }
            Err(error) => return Err(error),
        };
        label::check_owner(name, &label, options.owner)?;
        if label.key_bytes != codec.key_bytes() {
            let (has, wants) = (label.key_bytes, codec.key_bytes());
            let text = format!(
                "keys of the second level on {name} have {has} bytes, not {wants}: open it with the codec that it was made with, or make it anew"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if medium.device.info().read_only {
            let text = format!("{name} was opened for reading only: a second level is written to");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        if !whole {
            label::write(&medium, &label)?;
        }
        Self::start(medium, codec, (label, false), options)
    }

    fn medium(
        device: Arc<dyn Device>,
        codec: &dyn Codec<K, V>,
        options: &LevelOptions,
    ) -> Result<Medium> {
        if !(1..=MAX_KEY_BYTES).contains(&codec.key_bytes()) {
            let bytes = codec.key_bytes();
            let text = format!("a codec's keys have 1 to {MAX_KEY_BYTES} bytes, not {bytes}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if codec.note_bytes() > MAX_NOTE_BYTES {
            let bytes = codec.note_bytes();
            let text = format!("a codec's notes have at most {MAX_NOTE_BYTES} bytes, not {bytes}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let arena = Arc::clone(&options.arena);
        let (clock, tunables) = (Arc::clone(&options.clock), Arc::clone(&options.tunables));
        tunables.freeze();
        Ok(Medium { device, arena, clock, tunables, writes_out: Arc::default() })
    }

    /// `fresh`: the device is known to hold nothing.
    fn start(
        medium: Medium,
        codec: Arc<dyn Codec<K, V>>,
        (label, fresh): (LabelInfo, bool),
        options: &LevelOptions,
    ) -> Result<Arc<Self>> {
        let inner = Arc::new(Inner::new(codec, label, medium, options));
        let writer = Writer::new(Arc::clone(&inner))
            .map_err(|trouble| label::trouble(&inner.medium, "begin the writing", trouble))?;
        let no_thread = |error: std::io::Error| {
            let text = "no thread for a second level: allow the process more";
            Error::new(ErrorKind::Thread, text).because(error)
        };
        let threads = Arc::new(Mutex::named("l2-threads", Vec::new()));
        let level = Arc::new(Self { inner, threads });
        let watching = Arc::clone(&level.inner);
        let watch = move || {
            watching.enter_thread();
            watching.watch();
        };
        let thread = spawn_named("l2-watch", watch).map_err(no_thread)?;
        level.threads.lock().push(thread);
        let thread = spawn_named("l2-writer", move || writer.run()).map_err(no_thread)?;
        level.threads.lock().push(thread);
        if fresh {
            recover::nothing(&level.inner);
            return Ok(level);
        }
        let inner = Arc::clone(&level.inner);
        // If this fails, the level is dropped, which ends the writer.
        let thread = spawn_named("l2-rebuild-0", move || recover::run(&inner));
        let thread = thread.map_err(|error| {
            level.inner.rebuild.stop();
            no_thread(error)
        })?;
        level.threads.lock().push(thread);
        Ok(level)
    }

    /// What its label says.
    pub fn label(&self) -> LabelInfo {
        let user_mark = self.inner.user_mark.load(Ordering::Acquire);
        LabelInfo { guid: self.inner.ring.guid(), user_mark, ..self.inner.label }
    }

    /// Puts a number of the user's into the label, durably: whoever opens the level next can tell by it who had it last.
    /// Once it is known what the device holds, and on one thread only.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level has failed or was closed; [`ErrorKind::Device`]: then the label has the old number,
    /// or the new one.
    pub fn set_user_mark(&self, user_mark: u64) -> Result<()> {
        if !self.inner.status.is_open() {
            return Err(self.inner.not_open());
        }
        label::write(&self.inner.medium, &LabelInfo { user_mark, ..self.label() })?;
        self.inner.user_mark.store(user_mark, Ordering::Release);
        if self.inner.voided.load(Ordering::Acquire) {
            // It has failed meanwhile: what was void is to stay so.
            self.inner.void_now();
            return Err(self.inner.not_open());
        }
        Ok(())
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// How the rebuild goes.
    pub fn rebuild(&self) -> RebuildStats {
        self.inner.rebuild.stats(self.inner.clock.now_ns())
    }

    /// Waits until it is known what the device holds. False if that will not be known.
    pub fn wait_rebuilt(&self) -> bool {
        self.inner.rebuild.wait()
    }

    /// Puts blocks back into the memory of the cache that this is the second level of, before anybody asks for them: in the background, as far as it is known
    /// what the device holds, the newest first, and as far as there is room that nobody needs. Once a life; later calls do nothing.
    ///
    /// Close the level before the cache is dropped: a thread has both until it has ended.
    pub fn warm_up(&self, room: SpareRoom<K, V>) {
        let inner = &self.inner;
        if !inner.warming.begin() {
            return;
        }
        let decodes_keys = inner.ask(|codec| codec.decodes_keys()).unwrap_or(false);
        let end = match (inner.tunables.warm_up(), decodes_keys) {
            (false, _) => WarmUpEnd::Off,
            (true, false) => WarmUpEnd::NoKeys,
            // One of them would wait for those that end the level.
            (true, true) if inner.is_own_thread() => WarmUpEnd::Failed,
            (true, true) => {
                let mut threads = self.threads.lock();
                // Asked under the lock: who closes it joins all threads that are there then.
                if inner.status.is_open() {
                    let warming = Arc::clone(inner);
                    match spawn_named("l2-warm", move || warming.warm_up(room)) {
                        Ok(thread) => return threads.push(thread),
                        Err(_) => WarmUpEnd::Failed,
                    }
                } else {
                    WarmUpEnd::Closed
                }
            }
        };
        inner.end_warm_up(end);
    }

    /// How putting blocks back into memory goes.
    pub fn warmth(&self) -> WarmUp {
        self.inner.warming.state()
    }

    /// Waits until it has ended, if it has begun: for tests and measurements.
    pub fn wait_warm(&self) -> WarmUp {
        self.inner.warming.wait()
    }

    /// Blocks, tombstones and records on their way in the index.
    pub fn len(&self) -> u64 {
        self.inner.index.len()
    }

    /// Whether the index has nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes, but for buffers of its arena.
    pub fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    /// What it says of itself.
    pub fn stats(&self) -> LevelStats {
        let inner = &self.inner;
        let geometry = inner.ring.geometry;
        let used = (0..geometry.segments).filter(|segment| inner.ring.seq(*segment) != 0);
        let (queued_bytes, write_bytes_per_s) =
            inner.feed.with(|state| (state.queued_bytes, state.rate.bytes_per_s));
        let counters: Vec<CounterValue> = inner.counters.snapshot();
        let total = |counter| inner.counters.total(counter);
        let hits = total(LevelCounters::HITS);
        let failed = [
            LevelCounters::MISSES,
            LevelCounters::MISSES_BAD,
            LevelCounters::MISSES_REBUILDING,
            LevelCounters::MISSES_STALLED,
            LevelCounters::MISSES_NO_MEMORY,
            LevelCounters::MISSES_CLOSED,
            LevelCounters::LOAD_ERRORS,
            LevelCounters::LOAD_TIMEOUTS,
            LevelCounters::LOAD_ROTTEN,
            LevelCounters::LOAD_OVERTAKEN,
            LevelCounters::LOAD_FALSE_HITS,
            LevelCounters::LOAD_UNDECODABLE,
        ];
        LevelStats {
            health: self.health(),
            rebuild: self.rebuild(),
            warm_up: self.warmth(),
            records: inner.index.len(),
            size_bytes: u64::from(geometry.segments) * geometry.segment_bytes,
            used_bytes: used.count() as u64 * geometry.segment_bytes,
            memory_bytes: self.memory_bytes(),
            queued_bytes,
            write_bytes_per_s,
            loads: hits + failed.into_iter().map(total).sum::<u64>(),
            hits,
            counters,
        }
    }

    /// Its tunables.
    pub fn tunables(&self) -> &Arc<LevelTunables> {
        &self.inner.tunables
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// When the name, the value or the time is wrong; it says what would be right.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.inner.tunables.set(name, value)
    }

    /// What the level has of a key is never returned again, not even after a crash; see
    /// [`SecondLevel::forget`], which cannot say that it failed.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level was closed, or if the device has failed and its label could not be voided
    /// either; [`ErrorKind::Codec`] if the codec panicked on the key. Then an old value may come back if the level is opened
    /// again.
    pub fn forget_checked(&self, key: &K) -> Result<()> {
        self.inner.forget(key)
    }

    /// Takes all of these blocks to be written, whatever the rate allows and whether they have proven reuse; waits while too much
    /// waits to be written. [`flush`](Level::flush) makes them durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level fails, or is closed.
    pub fn write_all(&self, candidates: Vec<Candidate<K, V>>) -> Result<()> {
        self.inner.write_all(candidates)
    }

    /// Whether the level is known to have the block of that key.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.class_of(key).is_some()
    }

    /// The class of the block of that key, if the level has one.
    pub(crate) fn class_of(&self, key: &K) -> Option<Class> {
        let record = self.inner.index.find(self.inner.identity(key)?)?;
        (record.state == State::Live).then_some(record.class)
    }

    /// Has everything written that was taken so far, and makes it durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level fails, or is closed.
    pub fn flush(&self) -> Result<()> {
        if self.inner.feed.flush() { Ok(()) } else { Err(self.inner.not_open()) }
    }

    /// Takes nothing more, writes what it has taken, makes it durable, and ends its threads. Whoever forgets a key after that
    /// gets an error, and the device keeps what it has: have the cache changed no more before. If the device hangs, it gives up
    /// after the time that a write may take. Idempotent. The device stays open. On one of the level's own threads, where a value's
    /// drop may run, it waits for nothing: another thread does.
    pub fn close(&self) {
        self.inner.close_status();
        if !self.inner.is_own_thread() {
            return end(&self.inner, &self.threads);
        }
        let (inner, threads) = (Arc::clone(&self.inner), Arc::clone(&self.threads));
        if spawn_named("l2-close", move || end(&inner, &threads)).is_err() {
            // They end by themselves, only that nobody waits for it.
            self.inner.rebuild.stop();
            self.inner.feed.stop();
            self.inner.loads.unwatch();
        }
    }

    /// Whether it does not know yet what the device holds.
    pub(crate) fn is_rebuilding(&self) -> bool {
        self.inner.rebuild.is_running()
    }

    /// The error of a close that left values unwritten.
    pub(crate) fn unwritten(&self, why: &str) -> Error {
        let name = &self.inner.medium.device.info().name;
        let text = format!(
            "what was in memory only was not written to the second level on {name}, because {why} when it was closed: have it written before"
        );
        Error::new(ErrorKind::Closed, text)
    }

    /// Whether this is one of the level's threads, on which nobody must wait for it.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.inner.is_own_thread()
    }

    /// Takes and gives nothing more, waits for what is on its way, frees the memory of the index, and voids the label, so that
    /// the device holds nothing any more. The device stays open; nothing is written to it after that.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the label cannot be voided: then nobody but [`LevelOptions::force`] will make
    /// anything else of the device; and if the device hangs with a write that may still reach it.
    /// [`ErrorKind::Invalid`] on one of the level's own threads, which would wait for itself.
    pub fn remove(&self) -> Result<()> {
        if self.inner.is_own_thread() {
            let text = "a second level cannot be removed by one of its own threads, on which a value's drop may run: use another one";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.inner.mark_removed();
        // What waits to be written is not wanted any more.
        self.inner.end_feed();
        end_threads(&self.inner, &self.threads);
        self.inner.index.clear();
        // One that was given up could otherwise write a label after it is void, or over what the device is used for next.
        let ended = self.inner.medium.wait_for_writes();
        label::void(&self.inner.medium, &self.inner.label)?;
        self.inner.voided.store(true, Ordering::Release);
        if ended || self.inner.medium.writes_out.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let text = format!(
            "a write to {} has not ended and may still reach it: use the device for nothing else before this process has ended",
            self.inner.medium.device.info().name
        );
        Err(Error::new(ErrorKind::Device, text))
    }
}

impl<K: Key, V: Send + Sync + 'static> SecondLevel<K, V> for Level<K, V> {
    fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        self.inner.offer(candidates);
    }

    fn evicted(&self, keys: &[K]) {
        self.inner.evicted(keys);
    }

    fn would_write(&self, key: &K, class: Class) -> bool {
        self.inner.would_write(key, class)
    }

    fn load(&self, filler: Filler<K, V>) -> Result<(), Filler<K, V>> {
        self.inner.load(filler)
    }

    /// If it cannot be said that the key is forgotten for good, also because the level was closed, the counter `forget_failures` and
    /// [`health`](Level::health) tell; [`forget_checked`](Level::forget_checked) says so itself.
    fn forget(&self, key: &K) {
        let _ = self.inner.forget(key);
    }
}

/// Ends the threads of a level that is closed.
fn end<K: Key, V: Send + Sync + 'static>(inner: &Inner<K, V>, threads: &Threads) {
    end_threads(inner, threads);
    // The last chance to keep what could not be forgotten from coming back.
    let failed = matches!(inner.health(), Health::Failed { voided: false, .. });
    if failed && !inner.immutable_keys {
        inner.void_now();
    }
}

fn end_threads<K: Key, V: Send + Sync + 'static>(inner: &Inner<K, V>, threads: &Threads) {
    let mut threads = threads.lock();
    inner.rebuild.stop();
    inner.feed.stop();
    // The first is the watch: it goes on while the others end, which takes time if the device hangs.
    let first = threads.len().min(1);
    let others = threads.split_off(first);
    for thread in others {
        // A panic of it was told of by the panic hook.
        let _ = thread.join();
    }
    inner.loads.unwatch();
    threads.drain(..).for_each(|watch| drop(watch.join()));
    inner.end_feed();
    // Loads on their way end, or are given up.
    let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
    let allowed = u64::from(inner.tunables.load_timeout_ms()) * 1_000_000;
    let begun = inner.clock.now_ns();
    while inner.loads.awaited() > 0 {
        let late = inner.clock.now_ns().saturating_sub(begun) > allowed;
        inner.watch_loads(late);
        if late {
            // Those that are left are being published, perhaps by this very thread.
            break;
        }
        condition.wait_timeout(&mut nobody.lock(), Duration::from_millis(1));
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Level<K, V> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for Level<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Level")
            .field("device", &self.inner.medium.device.info().name)
            .field("health", &self.health())
            .field("records", &self.len())
            .finish_non_exhaustive()
    }
}
