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
use crate::counters::L2Counters;
use crate::device_io::DeviceIo;
use crate::error::{Error, ErrorKind, Result};
use crate::label::{self, LabelInfo};
use crate::options::L2Options;
use crate::rebuild::{self, RebuildStats};
use crate::record::RecordState;
use crate::shared::{Health, L2Shared};
use crate::stats::L2Stats;
use crate::tunables::L2Tunables;
use crate::warm_up::{WarmUpOutcome, WarmUpStatus};
use crate::writer::Writer;

/// A second level on a device. Hand it to a cache's [`Builder`](forebay_cache::Builder).
///
/// Close it before the cache: blocks that wait to be written are pinned in the cache.
pub struct L2<K: Key, V: Send + Sync + 'static> {
    shared: Arc<L2Shared<K, V>>,
    threads: Arc<Threads>,
}

type Threads = Mutex<Vec<JoinHandle<()>>>;

impl<K: Key, V: Send + Sync + 'static> L2<K, V> {
    /// Makes the device a level, and opens it. What a level of the same owner held before is gone.
    ///
    /// # Errors
    /// [`ErrorKind::TooSmall`], [`ErrorKind::ReadOnly`]; [`ErrorKind::Foreign`] if the device holds something else, and it is not
    /// forced; and the device's own.
    pub fn create(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        options: &L2Options,
    ) -> Result<Arc<Self>> {
        let io = Self::device_io(device, &*codec, options)?;
        let label = label::create(&io, codec.key_bytes(), options)?;
        Self::start(io, codec, (label, true), options)
    }

    /// Opens the level that the device holds. What it holds is found out in the background; it serves what it knows at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotAnL2`], unless it is to be made then; [`ErrorKind::Foreign`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::ReadOnly`], and the device's own.
    pub fn open(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        options: &L2Options,
    ) -> Result<Arc<Self>> {
        let io = Self::device_io(device, &*codec, options)?;
        let name = Arc::clone(&io.device);
        let name = &*name.info().name;
        let (label, complete) = match label::read(&io) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotAnL2 && options.create => {
                let label = label::create(&io, codec.key_bytes(), options)?;
                return Self::start(io, codec, (label, true), options);
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
        if io.device.info().read_only {
            let text = format!("{name} was opened for reading only: a second level is written to");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        if !complete {
            label::write(&io, &label)?;
        }
        Self::start(io, codec, (label, false), options)
    }

    fn device_io(
        device: Arc<dyn Device>,
        codec: &dyn Codec<K, V>,
        options: &L2Options,
    ) -> Result<DeviceIo> {
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
        Ok(DeviceIo { device, arena, clock, tunables, writes_in_flight: Arc::default() })
    }

    /// `fresh`: the device is known to hold nothing.
    fn start(
        io: DeviceIo,
        codec: Arc<dyn Codec<K, V>>,
        (label, fresh): (LabelInfo, bool),
        options: &L2Options,
    ) -> Result<Arc<Self>> {
        let shared = Arc::new(L2Shared::new(codec, label, io, options));
        let writer = Writer::new(Arc::clone(&shared))
            .map_err(|error| label::io_failure(&shared.io, "begin the writing", error))?;
        let no_thread = |error: std::io::Error| {
            let text = "no thread for a second level: allow the process more";
            Error::new(ErrorKind::Thread, text).because(error)
        };
        let threads = Arc::new(Mutex::named("l2-threads", Vec::new()));
        let l2 = Arc::new(Self { shared, threads });
        let watchdog = Arc::clone(&l2.shared);
        let run_watchdog = move || {
            watchdog.enter_thread();
            watchdog.run_watchdog();
        };
        let thread = spawn_named("l2-watchdog", run_watchdog).map_err(no_thread)?;
        l2.threads.lock().push(thread);
        let thread = spawn_named("l2-writer", move || writer.run()).map_err(no_thread)?;
        l2.threads.lock().push(thread);
        if fresh {
            rebuild::finish_empty(&l2.shared);
            return Ok(l2);
        }
        let shared = Arc::clone(&l2.shared);
        // If this fails, the level is dropped, which ends the writer.
        let thread = spawn_named("l2-rebuild-0", move || rebuild::run(&shared));
        let thread = thread.map_err(|error| {
            l2.shared.rebuild.stop();
            no_thread(error)
        })?;
        l2.threads.lock().push(thread);
        Ok(l2)
    }

    /// What its label says.
    pub fn label(&self) -> LabelInfo {
        let user_mark = self.shared.user_mark.load(Ordering::Acquire);
        LabelInfo { guid: self.shared.ring.guid(), user_mark, ..self.shared.label }
    }

    /// Puts a number of the user's into the label, durably: whoever opens the level next can tell by it who had it last.
    /// Once it is known what the device holds, and on one thread only.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level has failed or was closed; [`ErrorKind::Device`]: then the label has the old number,
    /// or the new one.
    pub fn set_user_mark(&self, user_mark: u64) -> Result<()> {
        if !self.shared.status.is_open() {
            return Err(self.shared.not_open());
        }
        label::write(&self.shared.io, &LabelInfo { user_mark, ..self.label() })?;
        self.shared.user_mark.store(user_mark, Ordering::Release);
        if self.shared.voided.load(Ordering::Acquire) {
            // It has failed meanwhile: what was void is to stay so.
            self.shared.void_now();
            return Err(self.shared.not_open());
        }
        Ok(())
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// How the rebuild goes.
    pub fn rebuild(&self) -> RebuildStats {
        self.shared.rebuild.stats(self.shared.clock.now_ns())
    }

    /// Waits until it is known what the device holds. False if that will not be known.
    pub fn wait_rebuilt(&self) -> bool {
        self.shared.rebuild.wait()
    }

    /// Puts blocks back into the memory of the cache that this is the second level of, before anybody asks for them: in the background, as far as it is known
    /// what the device holds, the newest first, and as far as there is room that nobody needs. Once a life; later calls do nothing.
    ///
    /// Close the level before the cache is dropped: a thread has both until it has ended.
    pub fn warm_up(&self, target: SpareRoom<K, V>) {
        let shared = &self.shared;
        if !shared.warm_up_state.begin() {
            return;
        }
        let decodes_keys = shared.with_codec(|codec| codec.decodes_keys()).unwrap_or(false);
        let outcome = match (shared.tunables.warm_up(), decodes_keys) {
            (false, _) => WarmUpOutcome::Disabled,
            (true, false) => WarmUpOutcome::NoKeys,
            // One of them would wait for those that end the level.
            (true, true) if shared.is_own_thread() => WarmUpOutcome::Failed,
            (true, true) => {
                let mut threads = self.threads.lock();
                // Asked under the lock: who closes it joins all threads that are there then.
                if shared.status.is_open() {
                    let thread_shared = Arc::clone(shared);
                    match spawn_named("l2-warm-up", move || thread_shared.warm_up(target)) {
                        Ok(thread) => return threads.push(thread),
                        Err(_) => WarmUpOutcome::Failed,
                    }
                } else {
                    WarmUpOutcome::Closed
                }
            }
        };
        shared.end_warm_up(outcome);
    }

    /// How putting blocks back into memory goes.
    pub fn warm_up_status(&self) -> WarmUpStatus {
        self.shared.warm_up_state.state()
    }

    /// Waits until it has ended, if it has begun: for tests and measurements.
    pub fn wait_warm_up(&self) -> WarmUpStatus {
        self.shared.warm_up_state.wait()
    }

    /// Blocks, tombstones and records on their way in the index.
    pub fn len(&self) -> u64 {
        self.shared.index.len()
    }

    /// Whether the index has nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes, but for buffers of its arena.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes()
    }

    /// What it says of itself.
    pub fn stats(&self) -> L2Stats {
        let shared = &self.shared;
        let geometry = shared.ring.geometry;
        let used = (0..geometry.segments).filter(|segment| shared.ring.seq(*segment) != 0);
        let (queued_bytes, write_bytes_per_s) =
            shared.write_queue.with(|state| (state.queued_bytes, state.rate.bytes_per_s));
        let counters: Vec<CounterValue> = shared.counters.snapshot();
        let total = |counter| shared.counters.total(counter);
        let hits = total(L2Counters::HITS);
        let failed = [
            L2Counters::MISSES,
            L2Counters::MISSES_BAD,
            L2Counters::MISSES_REBUILDING,
            L2Counters::MISSES_STALLED,
            L2Counters::MISSES_NO_MEMORY,
            L2Counters::MISSES_CLOSED,
            L2Counters::LOAD_ERRORS,
            L2Counters::LOAD_TIMEOUTS,
            L2Counters::LOAD_CORRUPT,
            L2Counters::LOAD_EVICTED,
            L2Counters::LOAD_FALSE_HITS,
            L2Counters::LOAD_UNDECODABLE,
        ];
        L2Stats {
            health: self.health(),
            rebuild: self.rebuild(),
            warm_up: self.warm_up_status(),
            records: shared.index.len(),
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
    pub fn tunables(&self) -> &Arc<L2Tunables> {
        &self.shared.tunables
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// When the name, the value or the time is wrong; it says what would be right.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.shared.tunables.set(name, value)
    }

    /// What the level has of a key is never returned again, not even after a crash; see
    /// [`SecondLevel::forget`], which cannot say that it failed.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level was closed, or if the device has failed and its label could not be voided
    /// either; [`ErrorKind::Codec`] if the codec panicked on the key. Then an old value may come back if the level is opened
    /// again.
    pub fn forget_checked(&self, key: &K) -> Result<()> {
        self.shared.forget(key)
    }

    /// Takes all of these blocks to be written, whatever the rate allows and whether they have proven reuse; waits while too much
    /// waits to be written. [`flush`](Level::flush) makes them durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level fails, or is closed.
    pub fn write_all(&self, candidates: Vec<Candidate<K, V>>) -> Result<()> {
        self.shared.write_all(candidates)
    }

    /// Whether the level is known to have the block of that key.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.class_of(key).is_some()
    }

    /// The class of the block of that key, if the level has one.
    pub(crate) fn class_of(&self, key: &K) -> Option<Class> {
        let record = self.shared.index.find(self.shared.key_hash(key)?)?;
        (record.state == RecordState::Live).then_some(record.class)
    }

    /// Has everything written that was taken so far, and makes it durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level fails, or is closed.
    pub fn flush(&self) -> Result<()> {
        if self.shared.write_queue.flush() { Ok(()) } else { Err(self.shared.not_open()) }
    }

    /// Takes nothing more, writes what it has taken, makes it durable, and ends its threads. Whoever forgets a key after that
    /// gets an error, and the device keeps what it has: have the cache changed no more before. If the device hangs, it gives up
    /// after the time that a write may take. Idempotent. The device stays open. On one of the level's own threads, where a value's
    /// drop may run, it waits for nothing: another thread does.
    pub fn close(&self) {
        self.shared.close_status();
        if !self.shared.is_own_thread() {
            return shut_down(&self.shared, &self.threads);
        }
        let (shared, threads) = (Arc::clone(&self.shared), Arc::clone(&self.threads));
        if spawn_named("l2-close", move || shut_down(&shared, &threads)).is_err() {
            // They end by themselves, only that nobody waits for it.
            self.shared.rebuild.stop();
            self.shared.write_queue.stop();
            self.shared.loads.stop_watchdog();
        }
    }

    /// Whether it does not know yet what the device holds.
    pub(crate) fn is_rebuilding(&self) -> bool {
        self.shared.rebuild.is_running()
    }

    /// The error of a close that left values unwritten.
    pub(crate) fn unwritten_error(&self, why: &str) -> Error {
        let name = &self.shared.io.device.info().name;
        let text = format!(
            "what was in memory only was not written to the second level on {name}, because {why} when it was closed: have it written before"
        );
        Error::new(ErrorKind::Closed, text)
    }

    /// Whether this is one of the level's threads, on which nobody must wait for it.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.shared.is_own_thread()
    }

    /// Takes and gives nothing more, waits for what is on its way, frees the memory of the index, and voids the label, so that
    /// the device holds nothing any more. The device stays open; nothing is written to it after that.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the label cannot be voided: then nobody but [`L2Options::force`] will make
    /// anything else of the device; and if the device hangs with a write that may still reach it.
    /// [`ErrorKind::Invalid`] on one of the level's own threads, which would wait for itself.
    pub fn remove(&self) -> Result<()> {
        if self.shared.is_own_thread() {
            let text = "a second level cannot be removed by one of its own threads, on which a value's drop may run: use another one";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.shared.mark_removed();
        // What waits to be written is not wanted any more.
        self.shared.end_write_queue();
        end_threads(&self.shared, &self.threads);
        self.shared.index.clear();
        // One that was given up could otherwise write a label after it is void, or over what the device is used for next.
        let ended = self.shared.io.wait_for_writes();
        label::void(&self.shared.io, &self.shared.label)?;
        self.shared.voided.store(true, Ordering::Release);
        if ended || self.shared.io.writes_in_flight.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let text = format!(
            "a write to {} has not ended and may still reach it: use the device for nothing else before this process has ended",
            self.shared.io.device.info().name
        );
        Err(Error::new(ErrorKind::Device, text))
    }
}

impl<K: Key, V: Send + Sync + 'static> SecondLevel<K, V> for L2<K, V> {
    fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        self.shared.offer(candidates);
    }

    fn evicted(&self, keys: &[K]) {
        self.shared.evicted(keys);
    }

    fn would_write(&self, key: &K, class: Class) -> bool {
        self.shared.would_write(key, class)
    }

    fn load(&self, guard: Filler<K, V>) -> Result<(), Filler<K, V>> {
        self.shared.load(guard)
    }

    /// If it cannot be said that the key is forgotten for good, also because the level was closed, the counter `forget_failures` and
    /// [`health`](Level::health) tell; [`forget_checked`](Level::forget_checked) says so itself.
    fn forget(&self, key: &K) {
        let _ = self.shared.forget(key);
    }
}

/// Ends the threads of a level that is closed.
fn shut_down<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, threads: &Threads) {
    end_threads(shared, threads);
    // The last chance to keep what could not be forgotten from coming back.
    let failed = matches!(shared.health(), Health::Failed { voided: false, .. });
    if failed && !shared.immutable_keys {
        shared.void_now();
    }
}

fn end_threads<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, threads: &Threads) {
    let mut threads = threads.lock();
    shared.rebuild.stop();
    shared.write_queue.stop();
    // The first is the watch: it goes on while the others end, which takes time if the device hangs.
    let first = threads.len().min(1);
    let others = threads.split_off(first);
    for thread in others {
        // A panic of it was told of by the panic hook.
        let _ = thread.join();
    }
    shared.loads.stop_watchdog();
    threads.drain(..).for_each(|watchdog| drop(watchdog.join()));
    shared.end_write_queue();
    // Loads on their way end, or are given up.
    let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
    let allowed = u64::from(shared.tunables.load_timeout_ms()) * 1_000_000;
    let begun = shared.clock.now_ns();
    while shared.loads.awaited_reads() > 0 {
        let late = shared.clock.now_ns().saturating_sub(begun) > allowed;
        shared.withdraw_overdue(late);
        if late {
            // Those that are left are being published, perhaps by this very thread.
            break;
        }
        condition.wait_timeout(&mut nobody.lock(), Duration::from_millis(1));
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for L2<K, V> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for L2<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("L2")
            .field("device", &self.shared.io.device.info().name)
            .field("health", &self.health())
            .field("records", &self.len())
            .finish_non_exhaustive()
    }
}
