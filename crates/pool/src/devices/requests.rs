//! Reads, writes and flushes of blocks.

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::Ordering;
use forebay_io::{
    Engine as EngineName, ErrorKind as IoErrorKind, Fence, Pending, Priority, RaiseHandle, Request,
    StableBytes,
};

use super::config::VdevKind;
use super::vdev::{ReadTime, Vdev, VdevPending};
use super::{Devices, Leaf, Place, failed, label};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;

/// Result of an asynchronous read.
pub(crate) type Read = Result<Buffer, forebay_io::Error>;

impl Devices {
    /// Reads from a place into `buffer` and waits.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid address, [`ErrorKind::Device`] if the device fails.
    pub(crate) fn read(&self, place: Place, buffer: Buffer, priority: Priority) -> Result<Buffer> {
        let vdev = self.place(place.dva, buffer.len() as u64)?;
        let request = Request::read(place.dva.offset, buffer).with_priority(priority);
        let time = vdev.time_read(place.leaf);
        let read = vdev.leaf(place.leaf).run(request).into_buffer();
        time.end(read.is_ok());
        read.map_err(|error| vdev.failed(place.leaf, self.noted(error)))
    }

    /// Whether the device of a place does not answer at all, after a read there has failed with
    /// `error`. If that may be a bad sector, reads the labels as well.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if there is none for a label.
    pub(crate) fn is_silent(
        &self,
        place: Place,
        error: &Error,
        memory: &BlockCache,
    ) -> Result<bool> {
        let vdev = self.get(place.dva.device).filter(|_| error.kind() == ErrorKind::Device);
        let Some(leaf) = vdev.map(|vdev| vdev.leaf(place.leaf)) else { return Ok(false) };
        let kind = error.device_error().map(forebay_io::Error::kind);
        // It is closed once it was removed, or to be opened again.
        match kind {
            Some(IoErrorKind::Gone | IoErrorKind::Closed) => Ok(true),
            _ => self.is_leaf_silent(leaf, memory),
        }
    }

    /// Whether there is a vdev of which no device answers that has all blocks. Reads labels. Want
    /// of memory for one is no answer.
    pub(crate) fn has_silent_vdev(&self, memory: &BlockCache) -> bool {
        self.iter().any(|vdev| {
            let is_whole = |(at, _): &(u8, &Leaf)| vdev.status().missed(*at).is_none();
            let mut whole = vdev.used().filter(is_whole).peekable();
            whole.peek().is_some()
                && whole.all(|(_, leaf)| self.is_leaf_silent(leaf, memory).unwrap_or(true))
        })
    }

    fn is_leaf_silent(&self, leaf: &Leaf, memory: &BlockCache) -> Result<bool> {
        if leaf.is_missing() || leaf.is_closed_to_reopen() {
            return Ok(true);
        }
        let device = leaf.device();
        if device.info().append_only.is_some() {
            // It was asked for long already.
            return Ok(leaf.outage().is_some());
        }
        // One label may be a bad sector, too.
        for offset in [0, label::back_of(leaf.size_bytes())] {
            match label::read_at(&**device, offset, self.sector_bytes() as usize, memory) {
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                Err(error) if error.kind() == ErrorKind::Device => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Starts to read from a place into `buffer`. `done` runs exactly once, on any thread, and must
    /// not block. `handle` receives a handle that can raise the priority of the read until it
    /// starts.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid address; `done` is dropped and does not run.
    pub(crate) fn read_async(
        &self,
        place: Place,
        buffer: Buffer,
        priority: Priority,
        handle: impl FnOnce(RaiseHandle),
        done: impl FnOnce(Read) + Send + 'static,
    ) -> Result<()> {
        let vdev = self.place(place.dva, buffer.len() as u64)?;
        let request = Request::read(place.dva.offset, buffer).with_priority(priority);
        let (request, raise) = request.raisable();
        handle(raise);
        let time = vdev.time_read(place.leaf);
        vdev.leaf(place.leaf).roots().submit(request.on_done(move |completion| {
            let read = completion.into_buffer();
            time.end(read.is_ok());
            done(read);
        }));
        Ok(())
    }

    /// Starts to write `payload` to `dva`, on all devices of its vdev that are in use. `done` runs
    /// exactly once, on any thread, after the payload is dropped. It must not block.
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
        let vdev = self.place(dva, payload.bytes().len() as u64)?;
        vdev.write_async(dva.offset, payload, (priority, self.fence()), done);
        Ok(())
    }

    /// Rewrites a place with `buffer` and waits. The data is durable after a flush.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`ErrorKind::ReadOnly`] on an object store, which takes each
    /// address once.
    pub(crate) fn write(&self, place: Place, buffer: Buffer, priority: Priority) -> Result<()> {
        let vdev = self.place(place.dva, buffer.len() as u64)?;
        if vdev.kind() == VdevKind::ObjectStore {
            let text = format!("{}: an object store takes each address once", vdev.name());
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let request = Request::write(place.dva.offset, buffer).with_priority(priority);
        let request = request.with_fence(self.fence());
        let written = vdev.leaf(place.leaf).run(request).result;
        written.map_err(|error| vdev.failed(place.leaf, self.noted(error)))
    }

    /// Writes all buffers concurrently, in any order, and waits. The data is durable after a flush.
    ///
    /// # Errors
    /// As [`read`](Self::read): the first failure. Other writes may have succeeded.
    pub(crate) fn write_all(&self, writes: Vec<(Dva, Buffer)>, priority: Priority) -> Result<()> {
        self.write_fenced(writes, (priority, self.fence()))
    }

    /// As [`write_all`](Self::write_all), under another lease than that of the devices.
    pub(super) fn write_fenced(
        &self,
        writes: Vec<(Dva, Buffer)>,
        (priority, fence): (Priority, Option<Fence>),
    ) -> Result<()> {
        let checked = writes.into_iter().map(|(dva, buffer)| {
            let vdev = self.place(dva, buffer.len() as u64)?;
            Ok((vdev, dva.offset, buffer))
        });
        // Nothing is written if an address is invalid.
        let checked: Vec<_> = checked.collect::<Result<_>>()?;
        let begun = checked.into_iter().map(|(vdev, offset, buffer)| {
            vdev.begin_write(offset, buffer, (priority, fence.clone()))
        });
        let begun: Vec<_> = begun.collect();
        // Waits for all, even if one failed.
        let ends: Vec<_> = begun.into_iter().map(VdevPending::wait).collect();
        ends.into_iter().collect::<Result<(), _>>().map_err(|error| failed(self.noted(error)))
    }

    /// Reads all buffers concurrently and waits. Returns the result of each read.
    pub(crate) fn read_all(
        &self,
        reads: Vec<(Place, Buffer)>,
        priority: Priority,
    ) -> Vec<Result<Buffer>> {
        let submit = |(place, buffer): (Place, Buffer)| {
            let vdev = self.place(place.dva, buffer.len() as u64)?;
            let request = Request::read(place.dva.offset, buffer).with_priority(priority);
            let (request, pending) = request.pending();
            let time = vdev.time_read(place.leaf);
            vdev.leaf(place.leaf).roots().submit(request);
            Ok((vdev, place.leaf, time, pending))
        };
        let pending: Vec<Result<_>> = reads.into_iter().map(submit).collect();
        let wait = |pending: Result<(&Vdev, u8, ReadTime, Pending)>| {
            let (vdev, leaf, time, pending) = pending?;
            let read = pending.wait(&**vdev.leaf(leaf).device()).into_buffer();
            time.end(read.is_ok());
            read.map_err(|error| vdev.failed(leaf, self.noted(error)))
        };
        pending.into_iter().map(wait).collect()
    }

    /// Lets no write wait for later ones: the caller waits for those that it has submitted.
    pub(crate) fn unplug(&self) {
        let leaves = self.iter().flat_map(|vdev| vdev.leaves());
        leaves.for_each(|(_, leaf)| leaf.device().unplug());
    }

    /// Makes completed writes durable, on all devices concurrently.
    ///
    /// # Errors
    /// [`ErrorKind::Device`]: the first failure.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let last = self.count().saturating_sub(1);
        let begun = self.iter().enumerate().map(|(at, vdev)| vdev.begin_flush(at == last));
        let begun: Vec<_> = begun.collect();
        // Waits for all, even if one failed.
        let ends: Vec<_> = begun.into_iter().map(VdevPending::wait).collect();
        let flushed = ends.into_iter().collect::<Result<(), _>>().map_err(Error::from);
        flushed.inspect_err(|_| self.note_flush_failure())
    }

    /// Whether a flush makes all writes durable that were completed before it, or none: an object
    /// store names them by one conditional put. A flush that fails is final there.
    pub(crate) fn publish_at_once(&self) -> bool {
        self.leaves().all(|leaf| leaf.device().info().engine == EngineName::ObjectStore)
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
        let used = self.members().flat_map(|vdev| vdev.used());
        used.for_each(|(_, leaf)| leaf.device().retry_flushes());
    }
}
