//! The devices of a pool: addresses become requests, and labels say what belongs together.
//!
//! * [`Devices`]: the set, by number; reads, writes, flushes, bounds;
//! * [`config`]: what a label says, as a value;
//! * [`label`]: reading and writing labels and uberblocks;
//! * [`import`]: from opened devices to a set: which pool, is it whole, may this host have it;
//! * [`open`]: files and block devices by their paths, with a lock against other processes.
//!
//! # Invariants
//!
//! - No request leaves a device's usable span, which lies between its labels; only [`label`] goes
//!   elsewhere.
//! - The number of a device never changes, and no device leaves the set while it exists. So a slot,
//!   once filled, stays as it is, and looking one up takes no lock.
//!
//! # Locking
//!
//! `pool-devices`: adding a device, one at a time. `pool-device-lock`: giving up a file's lock. No
//! request is made under either.
//!
//! # What it does not do
//!
//! No choice of devices (space does that), no redundancy, no retries: a request that fails has
//! failed.

pub(crate) mod config;
pub(crate) mod import;
pub(crate) mod label;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;
use std::ptr;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{Completion, Device, Pending, Priority, RaiseHandle, Request, Roots, StableBytes};

use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;
use crate::format::label::{LABEL_BYTES, MAX_DEVICES, MIN_DEVICE_BYTES};
use crate::open::{Locks, Opened};

/// Where blocks can lie on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpan {
    pub(crate) device: u16,
    /// The first byte.
    pub(crate) start: u64,
    /// One past the last.
    pub(crate) end: u64,
}

/// A device of a pool.
pub(crate) struct Member {
    number: u16,
    guid: u64,
    device: Arc<dyn Device>,
    roots: Roots,
    /// Bytes that the pool uses, labels included: whole labels' sizes.
    size_bytes: AtomicU64,
    /// Held until the set is closed.
    lock: Mutex<Option<Locks>>,
}

impl Member {
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device is too small, or its sectors too large for labels.
    fn new(number: u16, guid: u64, size_bytes: u64, opened: Opened) -> Result<Self> {
        let Opened { device, lock } = opened;
        let info = device.info();
        if size_bytes < MIN_DEVICE_BYTES || size_bytes > info.size_bytes {
            return Err(too_small(&info.name, info.size_bytes, size_bytes.max(MIN_DEVICE_BYTES)));
        }
        let roots = Roots::new(Arc::clone(&device), 0);
        let size_bytes = AtomicU64::new(size_bytes);
        let lock = Mutex::named("pool-device-lock", lock);
        Ok(Self { number, guid, device, roots, size_bytes, lock })
    }

    /// A device to be looked at, however many bytes are left of the `size_bytes` that it had: what is not there cannot be read.
    pub(crate) fn for_inspection(
        (number, guid): (u16, u64),
        size_bytes: u64,
        device: Arc<dyn Device>,
    ) -> Self {
        let roots = Roots::new(Arc::clone(&device), 0);
        let size_bytes = AtomicU64::new(size_bytes);
        let lock = Mutex::named("pool-device-lock", None);
        Self { number, guid, device, roots, size_bytes, lock }
    }

    /// The device's number in the pool.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The device's name for ever.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// The device itself.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The device's path.
    pub(crate) fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Bytes that the pool uses, labels included.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Runs a request, and waits for its end. Refused once the set is closed.
    fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.pending();
        self.roots.submit(request);
        pending.wait(&*self.device)
    }

    /// Where blocks can lie.
    pub(crate) fn span(&self) -> DeviceSpan {
        let (start, end) = (LABEL_BYTES, self.size_bytes() - LABEL_BYTES);
        DeviceSpan { device: self.number, start, end }
    }
}

/// Bytes of a device that a pool would use: whole labels' sizes.
pub(crate) fn usable_bytes(device: &dyn Device) -> u64 {
    device.info().size_bytes / LABEL_BYTES * LABEL_BYTES
}

fn too_small(name: &str, has_bytes: u64, needs_bytes: u64) -> Error {
    let text = format!("{name}: has {has_bytes} bytes, at least {needs_bytes} are needed");
    Error::new(ErrorKind::Invalid, text)
}

/// A request has failed: of the device, or because the set is closed.
pub(crate) fn failed(error: forebay_io::Error) -> Error {
    match error.kind() {
        forebay_io::ErrorKind::Closed => {
            Error::new(ErrorKind::Closed, "the pool is exported").because(error)
        }
        _ => Error::from(error),
    }
}

/// What a request's callback is told: the buffer that was read.
pub(crate) type Read = Result<Buffer, forebay_io::Error>;

/// The devices of a pool, by number.
pub(crate) struct Devices {
    slots: [AtomicPtr<Member>; MAX_DEVICES],
    /// Slots that are filled, from the front.
    count: AtomicUsize,
    adding: Mutex<()>,
    sector_bytes: u64,
}

impl Devices {
    /// `members` in the order of their numbers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are none, too many, or they are not numbered from 0, or the
    /// sector of one is larger than the pool's.
    pub(crate) fn new(members: Vec<Member>, sector_bytes: u64) -> Result<Self> {
        if members.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a pool needs at least one device"));
        }
        let devices = Self {
            slots: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            count: AtomicUsize::new(0),
            adding: Mutex::named("pool-devices", ()),
            sector_bytes,
        };
        members.into_iter().try_for_each(|member| devices.add(member))?;
        Ok(devices)
    }

    /// Adds a device, whose labels are written already. It has the next number.
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
            return invalid(format!("{name}: sectors of {sector} bytes, the pool's have {has}"));
        }
        let member = Box::into_raw(Box::new(member));
        self.slots[at].store(member, Ordering::Release);
        self.count.store(at + 1, Ordering::Release);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Size of the pool's sectors: what addresses and lengths are multiples of.
    #[inline]
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.sector_bytes
    }

    /// The device of that number.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Member> {
        let member = self.slots.get(usize::from(number))?.load(Ordering::Acquire);
        // SAFETY: null, or a box that `add` leaked for this slot; it is freed when the set is
        // dropped, which this borrow precedes.
        unsafe { member.as_ref() }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        (0..self.count()).filter_map(|number| self.get(number as u16))
    }

    /// Where blocks can lie.
    pub(crate) fn spans(&self) -> Vec<DeviceSpan> {
        self.iter().map(Member::span).collect()
    }

    /// The device of `dva`, if `len` bytes there are within its span and whole sectors.
    fn place(&self, dva: Dva, len: u64) -> Result<&Member> {
        let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
        let Some(member) = self.get(dva.device) else {
            let count = self.count();
            return corrupt(format!("{len} bytes at {dva}: the pool has {count} devices only"));
        };
        let span = member.span();
        let end = dva.offset.checked_add(len);
        if len == 0 || dva.offset < span.start || end.is_none_or(|end| end > span.end) {
            let (name, DeviceSpan { start, end, .. }) = (member.name(), span);
            return corrupt(format!(
                "{len} bytes at {dva}: outside of {start:#x} to {end:#x}, where {name} holds blocks"
            ));
        }
        let sector = self.sector_bytes;
        if !dva.offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return corrupt(format!("{len} bytes at {dva}: not whole sectors of {sector} bytes"));
        }
        Ok(member)
    }

    /// Whether a block of `len` bytes can lie at `dva`.
    pub(crate) fn holds(&self, dva: Dva, len: u64) -> bool {
        self.place(dva, len).is_ok()
    }

    /// Fills `buffer` from `dva`, and waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no block can lie there, [`ErrorKind::Device`] if the device fails.
    pub(crate) fn read(&self, dva: Dva, buffer: Buffer, priority: Priority) -> Result<Buffer> {
        let member = self.place(dva, buffer.len() as u64)?;
        let request = Request::read(dva.offset, buffer).with_priority(priority);
        member.run(request).into_buffer().map_err(failed)
    }

    /// Begins to fill `buffer` from `dva`. `done` runs once, on whatever thread, and must not
    /// block. `handle` gets what can raise the priority of the read before it begins.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no block can lie there; then `done` is dropped without being run.
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

    /// Begins to write `payload` to `dva`. `done` runs once, on whatever thread, after the payload
    /// is dropped, and must not block.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no block can lie there; then `done` is dropped without being run.
    pub(crate) fn write_async(
        &self,
        dva: Dva,
        payload: Box<dyn StableBytes>,
        priority: Priority,
        done: impl FnOnce(Result<(), forebay_io::Error>) + Send + 'static,
    ) -> Result<()> {
        let member = self.place(dva, payload.bytes().len() as u64)?;
        let request = Request::write_shared(dva.offset, payload).with_priority(priority);
        member.roots.submit(request.on_done(move |completion| {
            drop(completion.payload);
            done(completion.result);
        }));
        Ok(())
    }

    /// Writes `buffer` to `dva`, and waits for that. It is durable after a flush.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write(&self, dva: Dva, buffer: Buffer, priority: Priority) -> Result<()> {
        let member = self.place(dva, buffer.len() as u64)?;
        let request = Request::write(dva.offset, buffer).with_priority(priority);
        member.run(request).result.map_err(failed)
    }

    /// Writes all of these at once, in any order, and waits for them. They are durable after a
    /// flush.
    ///
    /// # Errors
    /// As [`read`](Self::read): the first failure; others may have been written.
    pub(crate) fn write_all(&self, writes: Vec<(Dva, Buffer)>, priority: Priority) -> Result<()> {
        let checked = writes.into_iter().map(|(dva, buffer)| {
            let member = self.place(dva, buffer.len() as u64)?;
            Ok((member, Request::write(dva.offset, buffer).with_priority(priority)))
        });
        // Nothing is written if one cannot be.
        let checked: Vec<_> = checked.collect::<Result<_>>()?;
        let submit = |(member, request): (&'_ Member, Request)| {
            let (request, pending) = request.pending();
            member.roots.submit(request);
            (Arc::clone(&member.device), pending)
        };
        let pending: Vec<_> = checked.into_iter().map(submit).collect();
        let ends = pending.into_iter().map(|(device, pending)| pending.wait(&*device).result);
        // All are waited for, whichever failed.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().collect::<Result<(), _>>().map_err(failed)
    }

    /// Fills all of these at once, and waits for them. Each has its own end.
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

    /// Makes durable what has been written, on all devices at once.
    ///
    /// # Errors
    /// [`ErrorKind::Device`]: the first failure.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let members: Vec<&Member> = self.iter().collect();
        label::flush(&members)
    }

    /// Waits until all that was submitted before has ended, its callbacks included.
    pub(crate) fn drain(&self) {
        for member in self.iter() {
            let drained = member.roots.drain();
            debug_assert!(drained.is_ok(), "a callback drains");
        }
    }

    /// Lets a device that has grown be used to its end. Its labels must be written anew by
    /// [`label::update_config`] before a block lies there. Returns the new size; the same if it has
    /// not grown.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such device.
    pub(crate) fn expand(&self, number: u16) -> Result<u64> {
        let none = || Error::new(ErrorKind::Invalid, format!("the pool has no device {number}"));
        let member = self.get(number).ok_or_else(none)?;
        let size_bytes = usable_bytes(&*member.device);
        member.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        Ok(member.size_bytes())
    }

    /// Refuses what comes from now on, returns once all that was accepted has ended, and gives up
    /// the locks on files, even if somebody keeps the set. The devices themselves stay open.
    /// Idempotent.
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
                // SAFETY: a box that `add` leaked for this slot, taken out of it here.
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
