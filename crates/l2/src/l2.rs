//! The L2 on a device: create, open, use, close and remove.
//!
//! Threads: the writer, the watchdog that gives up overdue loads, the rebuild's threads until it
//! ends, and the warm-up's threads. Loads run on the calling thread and on the device's completion
//! threads.
//!
//! Locking: `l2-threads` is held while threads are joined, so that a second close returns no sooner
//! than the first. The L2's own threads may drop the last reference to it in a user's drop. They
//! never take the lock: another thread joins them.

use std::time::Duration;

use forebay_base::counters::CounterValue;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_base::tunables::TunableError;
use forebay_cache::{Candidate, Class, Holding, Key, LoadGuard, SecondaryCache, WarmUp};
use forebay_io::Device;

use crate::codec::{Codec, MAX_KEY_BYTES, MAX_NOTE_BYTES};
use crate::counters::L2Counters;
use crate::device_io::DeviceIo;
use crate::error::{Error, ErrorKind, Result};
use crate::forget::ForgetCallback;
use crate::label::{self, LabelInfo};
use crate::options::L2Options;
use crate::promise::{Promise, Promised};
use crate::rebuild::{self, RebuildStats};
use crate::record::RecordState;
use crate::shared::{Health, L2Shared};
use crate::stats::L2Stats;
use crate::tunables::L2Tunables;
use crate::warm_up::{WarmUpOutcome, WarmUpStatus};
use crate::writer::Writer;

/// A persistent secondary cache (L2) on a device. Pass it to a cache's
/// [`Builder`](forebay_cache::Builder).
///
/// Close the L2 before the cache: blocks in the write queue are pinned in the cache.
pub struct L2<K: Key, V: Send + Sync + 'static> {
    shared: Arc<L2Shared<K, V>>,
    threads: Arc<Threads>,
}

type Threads = Mutex<Vec<JoinHandle<()>>>;

impl<K: Key, V: Send + Sync + 'static> L2<K, V> {
    /// Creates an L2 on the device and opens it. The contents of an earlier L2 of the same owner
    /// are lost.
    ///
    /// # Errors
    /// [`ErrorKind::TooSmall`]; [`ErrorKind::ReadOnly`]; [`ErrorKind::Foreign`] if the device holds
    /// other data and [`L2Options::force`] is not set; and errors of the device.
    pub fn create(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        options: &L2Options,
    ) -> Result<Arc<Self>> {
        let io = Self::device_io(device, &*codec, options)?;
        let label = label::create(&io, codec.key_bytes(), options)?;
        Self::start(io, codec, (label, true), options)
    }

    /// Opens the L2 on the device. The rebuild reads the log in the background, and the L2 serves
    /// known blocks at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotAnL2`], unless [`L2Options::create`] is set; [`ErrorKind::Foreign`];
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::ReadOnly`]; and errors of the device.
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
                "keys of the L2 on {name} have {has} bytes, but the codec's have {wants}; open it with the codec that created it, or recreate it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if io.device.info().read_only {
            let text = format!(
                "cannot open the L2 on {name}: the device was opened read-only; open it for writing"
            );
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
            let text =
                format!("the codec's keys have {bytes} bytes; 1 to {MAX_KEY_BYTES} are allowed");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if codec.note_bytes() > MAX_NOTE_BYTES {
            let bytes = codec.note_bytes();
            let text = format!(
                "the codec's notes have {bytes} bytes; at most {MAX_NOTE_BYTES} are allowed"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let arena = Arc::clone(&options.arena);
        let (clock, tunables) = (Arc::clone(&options.clock), Arc::clone(&options.tunables));
        tunables.freeze();
        Ok(DeviceIo { device, arena, clock, tunables, writes_in_flight: Arc::default() })
    }

    /// Starts the threads. `fresh` means that the device holds no blocks.
    fn start(
        io: DeviceIo,
        codec: Arc<dyn Codec<K, V>>,
        (label, fresh): (LabelInfo, bool),
        options: &L2Options,
    ) -> Result<Arc<Self>> {
        let shared = Arc::new(L2Shared::new(codec, label, io, options));
        let writer = Writer::new(Arc::clone(&shared))
            .map_err(|error| label::io_failure(&shared.io, "start the writer", error))?;
        let no_thread = |error: std::io::Error| {
            let text = "cannot create a thread for the L2; raise the process's thread limit";
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
        // On failure the L2 is dropped, which ends the writer.
        let thread = spawn_named("l2-rebuild-0", move || rebuild::run(&shared));
        let thread = thread.map_err(|error| {
            l2.shared.rebuild.stop();
            no_thread(error)
        })?;
        l2.threads.lock().push(thread);
        Ok(l2)
    }

    /// The contents of the label.
    pub fn label(&self) -> LabelInfo {
        let user_mark = self.shared.user_mark.load(Ordering::Acquire);
        LabelInfo { guid: self.shared.ring.guid(), user_mark, ..self.shared.label }
    }

    /// Stores a number of the user's in the label, durably. A later open can tell by it which user
    /// opened the L2 last. Call it after the rebuild, from one thread only.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 has failed or was closed. [`ErrorKind::Device`] if the write
    /// failed: the label then holds the old number or the new one.
    pub fn set_user_mark(&self, user_mark: u64) -> Result<()> {
        // A void label must stay void.
        let _voiding = self.shared.voiding.lock();
        if !self.shared.status.is_open() || self.shared.voided.load(Ordering::Acquire) {
            return Err(self.shared.not_open());
        }
        label::write(&self.shared.io, &LabelInfo { user_mark, ..self.label() })?;
        self.shared.user_mark.store(user_mark, Ordering::Release);
        Ok(())
    }

    /// The state of the L2.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The progress of the rebuild.
    pub fn rebuild(&self) -> RebuildStats {
        self.shared.rebuild.stats(self.shared.clock.now_ns())
    }

    /// Waits until the rebuild has ended. Returns false if it did not complete.
    pub fn wait_rebuilt(&self) -> bool {
        self.shared.rebuild.wait()
    }

    /// Like [`wait_rebuilt`](Self::wait_rebuilt), but does not block the thread. Works under any
    /// executor.
    pub async fn wait_rebuilt_async(&self) -> bool {
        self.shared.rebuild.wait_async().await
    }

    /// Starts the warm-up: inserts blocks into the memory of the cache that uses this L2, before
    /// they are requested. It runs in the background behind the rebuild, inserts the newest blocks
    /// first, and uses free capacity only. It runs once; later calls do nothing.
    ///
    /// Close the L2 before the cache is dropped: the warm-up's threads hold references to both.
    pub fn warm_up(&self, target: WarmUp<K, V>) {
        let shared = &self.shared;
        if !shared.warm_up_state.begin() {
            return;
        }
        let decodes_keys = shared.with_codec(|codec| codec.decodes_keys()).unwrap_or(false);
        let outcome = match (shared.tunables.warm_up(), decodes_keys) {
            (false, _) => WarmUpOutcome::Disabled,
            (true, false) => WarmUpOutcome::NoKeys,
            // The warm-up would wait for threads that are ending.
            (true, true) if shared.is_own_thread() => WarmUpOutcome::Failed,
            (true, true) => {
                let mut threads = self.threads.lock();
                // Checked under the lock: `close` joins all threads that are in the list.
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

    /// The progress of the warm-up.
    pub fn warm_up_status(&self) -> WarmUpStatus {
        self.shared.warm_up_state.state()
    }

    /// Waits until the warm-up has ended, if it has begun. For tests and measurements.
    pub fn wait_warm_up(&self) -> WarmUpStatus {
        self.shared.warm_up_state.wait()
    }

    /// Number of records in the index: blocks, tombstones and pending records.
    pub fn len(&self) -> u64 {
        self.shared.index.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory in use, without buffers of the arena.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes()
    }

    /// A snapshot of statistics.
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

    /// The tunables.
    pub fn tunables(&self) -> &Arc<L2Tunables> {
        &self.shared.tunables
    }

    /// Sets a tunable by name.
    ///
    /// # Errors
    /// If the name or the value is invalid, or the tunable cannot be set at run time. The error
    /// says what is allowed.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.shared.tunables.set(name, value)
    }

    /// Forgets a key: no block that the L2 holds for it is ever returned again, not even after a
    /// crash. Unlike [`SecondaryCache::forget`], it reports failure.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 was closed, or if the device has failed and the label could
    /// not be voided. [`ErrorKind::Codec`] if the codec panicked on the key. In both cases an old
    /// value may return after the L2 is opened again.
    pub fn forget_checked(&self, key: &K) -> Result<()> {
        self.shared.forget(key)
    }

    /// Waits until the end of the log is known, or will not be. Then
    /// [`forget_then`](Self::forget_then) may be called.
    pub(crate) fn started(&self) -> Promised<()> {
        self.shared.write_queue.started()
    }

    /// As [`forget_checked`](Self::forget_checked), without blocking the thread: `done` gets the
    /// outcome, on any thread.
    pub(crate) fn forget_then(&self, key: &K, done: ForgetCallback) {
        self.shared.forget_then(key, done);
    }

    /// Like [`forget_checked`](Self::forget_checked), but does not block the thread. Works under
    /// any executor. Dropping the future does not end a forget that has begun.
    ///
    /// # Errors
    /// As [`forget_checked`](Self::forget_checked).
    pub async fn forget_async(&self, key: &K) -> Result<()> {
        self.started().await;
        let promise = Promise::new();
        let answer = Arc::clone(&promise);
        self.forget_then(key, Box::new(move |outcome| answer.fulfill(outcome)));
        promise.take().await
    }

    /// Queues all these blocks for writing, without regard to the write rate or proven reuse. Waits
    /// while the queue is full. [`flush`](L2::flush) makes them durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 fails or is closed.
    pub fn write_all(&self, candidates: Vec<Candidate<K, V>>) -> Result<()> {
        self.shared.write_all(candidates)
    }

    /// Forgets all blocks of a [group](crate::Codec::group) with one tombstone. `remove_cached`
    /// gets a condition, and must remove all matching keys from the cache in front:
    /// [`Cache::remove_all_from_memory`](forebay_cache::Cache::remove_all_from_memory).
    ///
    /// # Errors
    /// As [`forget_checked`](Self::forget_checked). The blocks do not return in this process.
    pub fn forget_group(
        &self,
        group: u64,
        remove_cached: impl FnOnce(&dyn Fn(&K) -> bool),
    ) -> Result<()> {
        let is_of = |key: &K| self.shared.group_of(key) == Some(group);
        self.shared.forget_group(group, || remove_cached(&is_of))
    }

    /// Like [`forget_group`](Self::forget_group), but does not block the thread for the device.
    /// Works under any executor. Dropping the future does not end a forget that has begun.
    ///
    /// # Errors
    /// As [`forget_group`](Self::forget_group).
    pub async fn forget_group_async(
        &self,
        group: u64,
        remove_cached: impl FnOnce(&dyn Fn(&K) -> bool),
    ) -> Result<()> {
        self.started().await;
        let promise = Promise::new();
        let answer = Arc::clone(&promise);
        let done: ForgetCallback = Box::new(move |outcome| answer.fulfill(outcome));
        self.forget_group_then(group, remove_cached, done);
        promise.take().await
    }

    /// As [`forget_then`](Self::forget_then), for a group.
    pub(crate) fn forget_group_then(
        &self,
        group: u64,
        remove_cached: impl FnOnce(&dyn Fn(&K) -> bool),
        done: ForgetCallback,
    ) {
        let is_of = |key: &K| self.shared.group_of(key) == Some(group);
        self.shared.forget_group_then(group, || remove_cached(&is_of), done);
    }

    /// Whether the device lacks a block that may be written.
    pub(crate) fn lacks(&self, candidate: &Candidate<K, V>) -> bool {
        self.shared.lacks(candidate)
    }

    /// Whether the index has a live block for the key.
    pub(crate) fn has(&self, key: &K) -> bool {
        let record = self.shared.key_hash(key).and_then(|hash| self.shared.find_of(key, hash));
        record.is_some_and(|record| record.state == RecordState::Live)
    }

    /// The class of the key's block, if a load would read it from the device. A miss is counted.
    pub(crate) fn class_to_load(&self, key: &K) -> Option<Class> {
        self.shared.class_to_load(key)
    }

    /// Writes all queued blocks and makes them durable.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 fails or is closed. [`ErrorKind::Device`] or
    /// [`ErrorKind::NoMemory`] if blocks were dropped, because a write or a flush of the device
    /// failed, or had no memory. The others are durable then. The cache offers a dropped block
    /// again when it evicts it. Only the first flush after the loss returns the error.
    pub fn flush(&self) -> Result<()> {
        self.flush_queue()?;
        self.shared.write_queue.take_loss().map_or(Ok(()), Err)
    }

    fn flush_queue(&self) -> Result<()> {
        if self.shared.write_queue.flush() { Ok(()) } else { Err(self.shared.not_open()) }
    }

    /// Times that blocks were dropped after an error.
    pub(crate) fn losses(&self) -> u64 {
        self.shared.write_queue.losses()
    }

    /// Like [`flush`](Self::flush), with an error if blocks were dropped since
    /// [`losses`](Self::losses) returned `before`.
    pub(crate) fn flush_since(&self, before: u64) -> Result<()> {
        self.flush_queue()?;
        self.shared.write_queue.loss_since(before).map_or(Ok(()), Err)
    }

    /// Waits a moment for other threads to release memory.
    pub(crate) fn wait_for_memory(&self) {
        self.shared.io.wait_for_memory();
    }

    /// Closes the L2: writes the queued blocks, makes them durable, and ends the threads. The
    /// device keeps its blocks and stays open.
    ///
    /// After a close, `forget` returns an error, so stop changing the cache first. If the device
    /// hangs, the close gives up after `stall_timeout_ms`. A second call does nothing. On one of
    /// the L2's own threads, which may run a value's drop, the close does not wait: another thread
    /// joins the threads.
    pub fn close(&self) {
        self.shared.close_status();
        if !self.shared.is_own_thread() {
            return shut_down(&self.shared, &self.threads);
        }
        let (shared, threads) = (Arc::clone(&self.shared), Arc::clone(&self.threads));
        if spawn_named("l2-close", move || shut_down(&shared, &threads)).is_err() {
            // The threads end by themselves, but no thread joins them.
            self.shared.rebuild.stop();
            self.shared.write_queue.stop();
            self.shared.loads.stop_watchdog();
        }
    }

    /// Whether the rebuild is running.
    pub(crate) fn is_rebuilding(&self) -> bool {
        self.shared.rebuild.is_running()
    }

    /// The error of a close that left values unwritten.
    pub(crate) fn unwritten_error(&self, why: &str) -> Error {
        let name = &self.shared.io.device.info().name;
        let text = format!(
            "values that were only in memory were not written to the L2 on {name}, because {why}; flush them before the close"
        );
        Error::new(ErrorKind::Closed, text)
    }

    /// Whether the calling thread belongs to the L2. Such a thread must not wait for the others.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.shared.is_own_thread()
    }

    /// Removes the L2: ends all I/O, frees the index, and voids the label. The device stays open,
    /// and nothing is written to it afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the label cannot be voided, so that only [`L2Options::force`] can
    /// reuse the device, or if a hanging write may still reach the device. [`ErrorKind::Invalid`]
    /// on one of the L2's own threads, which would wait for itself.
    pub fn remove(&self) -> Result<()> {
        if self.shared.is_own_thread() {
            let text = "cannot remove the L2 on one of its own threads, which may run a value's drop; use another thread";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.shared.mark_removed();
        // Queued blocks are dropped.
        self.shared.end_write_queue();
        end_threads(&self.shared, &self.threads);
        // A stalled write could otherwise restore the label after it is void, or overwrite the
        // device's next contents.
        self.shared.io.wait_for_writes();
        {
            let _voiding = self.shared.voiding.lock();
            label::void(&self.shared.io, &self.shared.label)?;
            self.shared.voided.store(true, Ordering::Release);
        }
        // Only now: until the label is void, a forget must find what the device has.
        self.shared.index.clear();
        if self.shared.io.writes_in_flight.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let text = format!(
            "a write to {} is still pending and may reach it; do not use the device before this process ends",
            self.shared.io.device.info().name
        );
        Err(Error::new(ErrorKind::Device, text))
    }
}

impl<K: Key, V: Send + Sync + 'static> SecondaryCache<K, V> for L2<K, V> {
    fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        self.shared.offer(candidates);
    }

    fn evicted(&self, keys: &[K]) {
        self.shared.evicted(keys);
    }

    fn would_write(&self, key: &K, class: Class) -> bool {
        self.shared.would_write(key, class)
    }

    fn holding(&self, key: &K, class: Class) -> Option<Holding> {
        Some(self.shared.holding(key, class))
    }

    fn capacity_bytes(&self) -> Option<u64> {
        let geometry = &self.shared.ring.geometry;
        Some(u64::from(geometry.segments) * geometry.batch_space_bytes())
    }

    fn load(&self, guard: LoadGuard<K, V>) -> Result<(), LoadGuard<K, V>> {
        self.shared.load(guard)
    }

    fn superseded(&self, key: &K) {
        self.shared.superseded(key);
    }

    /// Forgets a key. If the removal is not durable, also because the L2 was closed, the counter
    /// `forget_failures` and [`health`](L2::health) show it. [`forget_checked`](L2::forget_checked)
    /// returns the error.
    fn forget(&self, key: &K) {
        let _ = self.shared.forget(key);
    }
}

/// Ends the threads of a closed L2.
fn shut_down<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, threads: &Threads) {
    end_threads(shared, threads);
    // The last chance to keep blocks that could not be forgotten from returning.
    let failed = matches!(shared.health(), Health::Failed { voided: false, .. });
    if failed && shared.void_tried_ns.load(Ordering::Acquire) != 0 {
        let _voiding = shared.voiding.lock();
        if !shared.voided.load(Ordering::Acquire) {
            shared.void_now();
        }
    }
}

fn end_threads<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, threads: &Threads) {
    let mut threads = threads.lock();
    shared.rebuild.stop();
    shared.write_queue.stop();
    // The first thread is the watchdog. It keeps running while the others end, which takes time if
    // the device hangs.
    let first = threads.len().min(1);
    let others = threads.split_off(first);
    for thread in others {
        // The panic hook has already reported a panic.
        let _ = thread.join();
    }
    shared.loads.stop_watchdog();
    threads.drain(..).for_each(|watchdog| drop(watchdog.join()));
    shared.end_write_queue();
    // Loads in flight complete or are given up.
    let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
    let allowed = u64::from(shared.tunables.load_timeout_ms()) * 1_000_000;
    let begun = shared.clock.now_ns();
    while shared.loads.awaited_reads() > 0 {
        let late = shared.clock.now_ns().saturating_sub(begun) > allowed;
        shared.withdraw_overdue(late);
        if late {
            // The remaining loads are being published, perhaps by this thread.
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
