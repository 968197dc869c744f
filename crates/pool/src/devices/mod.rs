//! The devices of a pool: block I/O by address, labels, and membership.
//!
//! * [`Devices`]: the devices by number; reads, writes, flushes, address checks.
//! * [`config`]: the configuration that a label stores.
//! * [`label`]: reads and writes labels and uberblocks.
//! * [`heartbeat`]: keeps two hosts from using a pool at once.
//! * [`import`]: turns opened devices into the devices of a pool, and checks that the pool is
//!   complete and that this host may import it.
//! * [`open`](crate::open): opens files and block devices by path and locks them.
//!
//! # Invariants
//!
//! - Requests stay within a device's usable span, which lies between its labels. Only [`label`]
//!   and [`heartbeat`] access the rest.
//! - A device's number never changes, and devices are never removed. So a slot never changes once
//!   it is filled, and reading it takes no lock.
//!
//! # Locking
//!
//! `pool-devices` serialises adding devices. `pool-device-lock` protects a device's file lock until
//! the pool is closed. No request is made under either.
//!
//! # What it does not do
//!
//! It does not choose devices (the space maps do), has no redundancy, and does not retry failed
//! requests, except writes of an uberblock ([`label`]).

pub(crate) mod config;
pub(crate) mod heartbeat;
pub(crate) mod import;
pub(crate) mod label;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;
use std::ptr;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::metrics::{Metrics, MetricsDevice};
use forebay_io::{
    Completion, Device, Fence, Health, MemoryDevice, MemoryOptions, Pending, Priority, RaiseHandle,
    Request, Roots, StableBytes,
};

use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;
use crate::format::label::{LABEL_BYTES, MAX_DEVICES, MIN_DEVICE_BYTES};
use crate::lease::Lease;
use crate::open::{Locks, Opened};

/// The range of a device that can hold blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpan {
    pub(crate) device: u16,
    /// The first byte.
    pub(crate) start: u64,
    /// The end, exclusive.
    pub(crate) end: u64,
}

/// A device of a pool.
pub(crate) struct Member {
    number: u16,
    guid: u64,
    /// The device, measured by `metrics`.
    device: Arc<dyn Device>,
    metrics: Arc<MetricsDevice>,
    roots: Roots,
    /// Bytes that the pool uses, labels included; a multiple of the label size.
    size_bytes: AtomicU64,
    /// Failed requests that were forgotten, see [`forget_errors`](Self::forget_errors).
    forgotten_errors: AtomicU64,
    /// Held until the pool is closed.
    lock: Mutex<Option<Locks>>,
    /// Whether the device is not there: no block of it can be read.
    missing: bool,
}

impl Member {
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device is too small, or its sectors too large for labels.
    fn new(number: u16, guid: u64, size_bytes: u64, opened: Opened) -> Result<Self> {
        let info = opened.device.info();
        if size_bytes < MIN_DEVICE_BYTES || size_bytes > info.size_bytes {
            return Err(too_small(&info.name, info.size_bytes, size_bytes.max(MIN_DEVICE_BYTES)));
        }
        Ok(Self::to_read((number, guid), size_bytes, opened))
    }

    /// Creates a member that is only read. The device may be shorter than `size_bytes`; the missing
    /// part cannot be read.
    pub(crate) fn to_read(
        (number, guid): (u16, u64),
        size_bytes: u64,
        Opened { device, lock, .. }: Opened,
    ) -> Self {
        let metrics = Arc::new(MetricsDevice::new(device));
        let device: Arc<dyn Device> = Arc::clone(&metrics) as _;
        let roots = Roots::new(Arc::clone(&device), 0);
        let size_bytes = AtomicU64::new(size_bytes);
        let lock = Mutex::named("pool-device-lock", lock);
        let forgotten_errors = AtomicU64::new(0);
        let missing = false;
        Self { number, guid, device, metrics, roots, size_bytes, forgotten_errors, lock, missing }
    }

    /// Creates a member without its device, for a pool that is only read.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn missing((number, guid): (u16, u64), size_bytes: u64) -> Result<Self> {
        let options =
            MemoryOptions { submission_queues: 1, sector_bytes: 512, ..MemoryOptions::default() };
        let name = format!("device {number}, which is missing");
        let device = MemoryDevice::new(&name, 512, &options).map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("{name}: {error}")).because(error)
        })?;
        let device: Arc<dyn Device> = Arc::new(device);
        let member = Self::to_read((number, guid), size_bytes, device.into());
        Ok(Self { missing: true, ..member })
    }

    /// Whether the device is not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing
    }

    /// The device's number in the pool.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The GUID of the device.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// What was requested of the device, and how long it took.
    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.snapshot()
    }

    /// The path of the device.
    pub(crate) fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Bytes that the pool uses, labels included.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// What is wrong with the device, or `None`.
    pub(crate) fn trouble(&self) -> Option<String> {
        let name = self.name();
        match self.device.health() {
            Health::Healthy => None,
            Health::Gone => Some(format!("device {name} is gone")),
            Health::Degraded { errors } => {
                let new = errors.saturating_sub(self.forgotten_errors.load(Ordering::Relaxed));
                (new > 0).then(|| format!("device {name}: {new} requests failed since the import"))
            }
        }
    }

    /// Does not count the requests that have failed so far as [`trouble`](Self::trouble) any more.
    pub(crate) fn forget_errors(&self) {
        if let Health::Degraded { errors } = self.device.health() {
            self.forgotten_errors.store(errors, Ordering::Relaxed);
        }
    }

    /// Executes a request and waits for it. Fails once the pool is closed.
    fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.pending();
        self.roots.submit(request);
        pending.wait(&*self.device)
    }

    /// The range that can hold blocks.
    pub(crate) fn span(&self) -> DeviceSpan {
        let (start, end) = (LABEL_BYTES, self.size_bytes() - LABEL_BYTES);
        DeviceSpan { device: self.number, start, end }
    }
}

/// Bytes of a device that a pool can use; a multiple of the label size.
pub(crate) fn usable_bytes(device: &dyn Device) -> u64 {
    device.info().size_bytes / LABEL_BYTES * LABEL_BYTES
}

fn too_small(name: &str, has_bytes: u64, needs_bytes: u64) -> Error {
    let text = format!("{name}: has {has_bytes} bytes; a pool device needs at least {needs_bytes}");
    Error::new(ErrorKind::Invalid, text)
}

/// Converts the error of a request: a device error, or the pool is closed.
pub(crate) fn failed(error: forebay_io::Error) -> Error {
    match error.kind() {
        forebay_io::ErrorKind::Closed => {
            Error::new(ErrorKind::Closed, "the pool is exported").because(error)
        }
        _ => {
            tracing::warn!(%error, "device error");
            Error::from(error)
        }
    }
}

/// Result of an asynchronous read.
pub(crate) type Read = Result<Buffer, forebay_io::Error>;

/// The devices of a pool, by number.
pub(crate) struct Devices {
    slots: [AtomicPtr<Member>; MAX_DEVICES],
    /// Number of filled slots.
    count: AtomicUsize,
    adding: Mutex<()>,
    sector_bytes: u64,
    /// Keeps writes from being issued once another host may have the pool.
    fence: Option<Fence>,
    flush_failures: AtomicU64,
}

impl Devices {
    /// Creates the set; `members` are ordered by number.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are no members or too many, if they are not numbered from 0,
    /// or if a member's sectors are larger than the pool's.
    pub(crate) fn new(members: Vec<Member>, sector_bytes: u64) -> Result<Self> {
        if members.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a pool needs at least one device"));
        }
        let devices = Self {
            slots: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            count: AtomicUsize::new(0),
            adding: Mutex::named("pool-devices", ()),
            sector_bytes,
            fence: None,
            flush_failures: AtomicU64::new(0),
        };
        members.into_iter().try_for_each(|member| devices.add(member))?;
        Ok(devices)
    }

    /// Returns the devices with the lease of their pool. A write that has
    /// waited in a queue until it ended is not issued, and fails as cancelled.
    pub(crate) fn with_lease(mut self, lease: &Arc<Lease>) -> Self {
        let lease = Arc::clone(lease);
        self.fence = Some(Fence::new(move || lease.is_valid()));
        self
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence.clone()
    }

    /// Adds a device with the next number. Its labels must be written before.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn add(&self, member: Member) -> Result<()> {
        let invalid = |text| Err(Error::new(ErrorKind::Invalid, text));
        let _adding = self.adding.lock();
        let at = self.count.load(Ordering::Relaxed);
        let sector = u64::from(member.device.info().sector_bytes);
        if at == MAX_DEVICES {
            return invalid(format!("a pool has at most {MAX_DEVICES} devices"));
        }
        if usize::from(member.number) != at {
            let text = format!("{}: is device {}, not {at}", member.name(), member.number);
            return invalid(text);
        }
        if sector > self.sector_bytes {
            let (name, has) = (member.name(), self.sector_bytes);
            return invalid(format!(
                "{name}: has sectors of {sector} bytes, larger than the pool's {has}; open it with sectors of {has}"
            ));
        }
        let member = Box::into_raw(Box::new(member));
        self.slots[at].store(member, Ordering::Release);
        self.count.store(at + 1, Ordering::Release);
        Ok(())
    }

    /// Number of devices.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The pool's sector size in bytes. Addresses and lengths are multiples of it.
    #[inline]
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.sector_bytes
    }

    /// Returns the device with this number.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Member> {
        let member = self.slots.get(usize::from(number))?.load(Ordering::Acquire);
        // SAFETY: null, or a box that `add` leaked for this slot. It is freed when the set is
        // dropped, after this borrow has ended.
        unsafe { member.as_ref() }
    }

    /// Returns all devices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        (0..self.count()).filter_map(|number| self.get(number as u16))
    }

    /// Returns the ranges that can hold blocks.
    pub(crate) fn spans(&self) -> Vec<DeviceSpan> {
        self.iter().map(Member::span).collect()
    }

    /// Returns the device of `dva`. Checks that `len` bytes from there are whole sectors within its
    /// span, and that the device is there.
    fn place(&self, dva: Dva, len: u64) -> Result<&Member> {
        let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
        let Some(member) = self.get(dva.device) else {
            let count = self.count();
            return corrupt(format!("{len} bytes at {dva}: the pool has only {count} devices"));
        };
        let span = member.span();
        let end = dva.offset.checked_add(len);
        if len == 0 || dva.offset < span.start || end.is_none_or(|end| end > span.end) {
            let (name, DeviceSpan { start, end, .. }) = (member.name(), span);
            return corrupt(format!(
                "{len} bytes at {dva}: outside the block range {start:#x} to {end:#x} of {name}"
            ));
        }
        let sector = self.sector_bytes;
        if !dva.offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return corrupt(format!("{len} bytes at {dva}: not whole sectors of {sector} bytes"));
        }
        if member.missing {
            let text = format!("{len} bytes at {dva}: device {} is missing", member.number);
            return Err(Error::new(ErrorKind::Device, text));
        }
        Ok(member)
    }

    /// Whether `len` bytes at `dva` are a valid block address on a device that is there.
    pub(crate) fn holds(&self, dva: Dva, len: u64) -> bool {
        self.place(dva, len).is_ok()
    }

    /// Reads from `dva` into `buffer` and waits.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid address, [`ErrorKind::Device`] if the device fails.
    pub(crate) fn read(&self, dva: Dva, buffer: Buffer, priority: Priority) -> Result<Buffer> {
        let member = self.place(dva, buffer.len() as u64)?;
        let request = Request::read(dva.offset, buffer).with_priority(priority);
        member.run(request).into_buffer().map_err(failed)
    }

    /// Starts to read from `dva` into `buffer`. `done` runs exactly once, on any thread, and must
    /// not block. `handle` receives a handle that can raise the priority of the read until it
    /// starts.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid address; `done` is dropped and does not run.
    pub(crate) fn read_async(
        &self,
        dva: Dva,
        buffer: Buffer,
        priority: Priority,
        handle: impl FnOnce(RaiseHandle),
        done: impl FnOnce(Read) + Send + 'static,
    ) -> Result<()> {
        let member = self.place(dva, buffer.len() as u64)?;
        let request = Request::read(dva.offset, buffer).with_priority(priority);
        let (request, raise) = request.raisable();
        handle(raise);
        member.roots.submit(request.on_done(move |completion| done(completion.into_buffer())));
        Ok(())
    }

    /// Starts to write `payload` to `dva`. `done` runs exactly once, on any thread, after the
    /// payload is dropped. It must not block.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid address; `done` is dropped and does not run.
    pub(crate) fn write_async(
        &self,
        dva: Dva,
        payload: Box<dyn StableBytes>,
        priority: Priority,
        done: impl FnOnce(Result<(), forebay_io::Error>) + Send + 'static,
    ) -> Result<()> {
        let member = self.place(dva, payload.bytes().len() as u64)?;
        let request = Request::write_shared(dva.offset, payload).with_priority(priority);
        let request = request.with_fence(self.fence());
        member.roots.submit(request.on_done(move |completion| {
            drop(completion.payload);
            done(completion.result);
        }));
        Ok(())
    }

    /// Writes `buffer` to `dva` and waits. The data is durable after a flush.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write(&self, dva: Dva, buffer: Buffer, priority: Priority) -> Result<()> {
        let member = self.place(dva, buffer.len() as u64)?;
        let request = Request::write(dva.offset, buffer).with_priority(priority);
        let request = request.with_fence(self.fence());
        member.run(request).result.map_err(failed)
    }

    /// Writes all buffers concurrently, in any order, and waits. The data is durable after a flush.
    ///
    /// # Errors
    /// As [`read`](Self::read): the first failure. Other writes may have succeeded.
    pub(crate) fn write_all(&self, writes: Vec<(Dva, Buffer)>, priority: Priority) -> Result<()> {
        let checked = writes.into_iter().map(|(dva, buffer)| {
            let member = self.place(dva, buffer.len() as u64)?;
            let request = Request::write(dva.offset, buffer).with_priority(priority);
            Ok((member, request.with_fence(self.fence())))
        });
        // Nothing is written if an address is invalid.
        let checked: Vec<_> = checked.collect::<Result<_>>()?;
        let submit = |(member, request): (&'_ Member, Request)| {
            let (request, pending) = request.pending();
            member.roots.submit(request);
            (Arc::clone(&member.device), pending)
        };
        let pending: Vec<_> = checked.into_iter().map(submit).collect();
        let ends = pending.into_iter().map(|(device, pending)| pending.wait(&*device).result);
        // Waits for all, even if one failed.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().collect::<Result<(), _>>().map_err(failed)
    }

    /// Reads all buffers concurrently and waits. Returns the result of each read.
    pub(crate) fn read_all(
        &self,
        reads: Vec<(Dva, Buffer)>,
        priority: Priority,
    ) -> Vec<Result<Buffer>> {
        let submit = |(dva, buffer): (Dva, Buffer)| {
            let member = self.place(dva, buffer.len() as u64)?;
            let request = Request::read(dva.offset, buffer).with_priority(priority);
            let (request, pending) = request.pending();
            member.roots.submit(request);
            Ok((member, pending))
        };
        let pending: Vec<Result<_>> = reads.into_iter().map(submit).collect();
        let wait = |pending: Result<(&Member, Pending)>| {
            let (member, pending) = pending?;
            pending.wait(&*member.device).into_buffer().map_err(failed)
        };
        pending.into_iter().map(wait).collect()
    }

    /// Makes completed writes durable, on all devices concurrently.
    ///
    /// # Errors
    /// [`ErrorKind::Device`]: the first failure.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let members: Vec<&Member> = self.iter().collect();
        label::flush(&members).inspect_err(|_| self.note_flush_failure())
    }

    fn note_flush_failure(&self) {
        self.flush_failures.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of flushes that failed. If it has changed since a write, a later flush proves nothing
    /// about that write.
    pub(crate) fn flush_failures(&self) -> u64 {
        self.flush_failures.load(Ordering::SeqCst)
    }

    /// Lets flushes be tried again after one that failed. See
    /// [`Device::retry_flushes`](forebay_io::Device::retry_flushes) for what the caller vouches.
    pub(crate) fn retry_flushes(&self) {
        // The failure that this forgets may have been somebody's who did not count it.
        self.note_flush_failure();
        self.iter().for_each(|member| member.device().retry_flushes());
    }

    /// Waits until all requests submitted before have ended, including their callbacks.
    pub(crate) fn drain(&self) {
        for member in self.iter() {
            let drained = member.roots.drain();
            debug_assert!(drained.is_ok(), "a callback drains");
        }
    }

    /// Extends the usable span of a device that has grown. Its labels must state the new size,
    /// durably: from now on blocks may be placed there.
    pub(crate) fn expand(&self, number: u16, size_bytes: u64) {
        if let Some(member) = self.get(number) {
            member.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        }
    }

    /// Rejects new requests, waits for accepted ones, and releases the file locks, even if the set
    /// is still referenced. The devices stay open. Idempotent.
    pub(crate) fn close(&self) {
        for member in self.iter() {
            member.roots.close();
        }
        self.drain();
        for member in self.iter() {
            drop(member.lock.lock().take());
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for slot in &self.slots {
            let member = slot.swap(ptr::null_mut(), Ordering::AcqRel);
            if !member.is_null() {
                // SAFETY: a box that `add` leaked for this slot, removed from the slot here.
                drop(unsafe { Box::from_raw(member) });
            }
        }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|member| (member.name(), member.span()))).finish()
    }
}
