//! One io_uring, and what is in flight in it. The only file of the crate with unsafe code about
//! io_uring.
//!
//! Purpose: push transfers, reap their ends, enter the system, sleep until something has ended.
//! No policy: when to do which is [`super::uring`]'s business.
//!
//! Invariants:
//! * A [`InFlight`] belongs to one [`Ring`] and lies under its lane's lock. What changes the shared
//!   queues of the ring takes the flight mutably, which proves that the lock is held; so there is
//!   at most one submission queue handle and one completion queue handle at a time.
//! * A transfer stays in its slot, and its memory with it, from before its entry is pushed until its
//!   completion has been reaped. A flight that is dropped while something is in it leaks that.
//! * The submission queue has an entry more than there are slots; each slot has at most one entry, and there
//!   is at most one more, which only wakes. The completion queue has twice that. Neither overflows.
//!
//! Deliberately absent: registered buffers, because memory comes from arenas that give pages back to
//! the system, and a registered page stays; deferred task work (`DEFER_TASKRUN`), because it allows
//! one submitting thread only; cooperative task work (`COOP_TASKRUN`), because what a thread has submitted
//! would complete only when that thread enters the system again, and others may be waiting for it while
//! it computes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use forebay_base::sync::atomic::{Ordering, fence};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, Timespec, eventfd, poll};
use rustix::fs::FallocateFlags;

use super::core::EndedOperation;
use super::transfer::{DeviceFile, MAX_BYTES, Step, Transfer};
use crate::queue::Operation;
use crate::request::Op;

/// The completion of the entry that only wakes who waits.
const WAKE: u64 = u64::MAX;
/// How long to leave a system alone that is short of something.
const BACK_OFF_NS: i64 = 1_000_000;
/// The place of the device's file in the ring's table of files.
const FILE: types::Fixed = types::Fixed(0);

/// An io_uring with the device's file and an event registered.
pub(super) struct Ring {
    uring: IoUring,
    event: OwnedFd,
}

/// What is in flight in a ring.
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Entries pushed so far.
    pushed: u32,
    /// The entry that only wakes is on its way: one is enough, and more would need room in the queues.
    waking: bool,
}

#[derive(Default)]
struct Slot {
    transfer: Option<Transfer>,
    // Of a merged transfer; the system may read them until the entry has completed.
    iovecs: Vec<IoVec>,
    /// How many entries had been pushed before its entry.
    sequence: u32,
}

/// A piece of memory as the system takes it (`struct iovec`).
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a length; the memory belongs to the transfer beside it, which is `Send`.
unsafe impl Send for IoVec {}

/// What reaping counted.
#[derive(Default)]
pub(super) struct Reaped {
    /// Transfers that were not complete and were pushed again for the rest.
    pub(super) continued: u64,
    /// Transfers that were pushed again because the system asked for it.
    pub(super) retried: u64,
    /// Discards that the medium does not know.
    pub(super) unsupported: u64,
}

/// Whether the system lets this process use io_uring for all that a device needs.
///
/// # Errors
/// What the system said.
pub(super) fn probe() -> io::Result<()> {
    let mut uring = build(2)?;
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if !needed.into_iter().all(|code| probe.is_supported(code)) {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSYS.raw_os_error()));
    }
    let nop = opcode::Nop::new().build().user_data(WAKE);
    // SAFETY: the entry refers to no memory.
    unsafe { uring.submission().push(&nop) }.expect("an empty queue of two has room");
    uring.submit_and_wait(1)?;
    match uring.completion().next() {
        Some(entry) if entry.result() >= 0 => Ok(()),
        Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
        None => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A ring that takes all entries even if one is in error, if this kernel has such.
fn build(entries: u32) -> io::Result<IoUring> {
    let newest = IoUring::builder().setup_submit_all().build(entries);
    match newest {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            IoUring::builder().build(entries)
        }
        built => built,
    }
}

impl Ring {
    /// A ring for `file` in which up to `depth` transfers are in flight.
    pub(super) fn new(depth: u32, file: BorrowedFd<'_>) -> io::Result<(Self, InFlight)> {
        let uring = build((depth + 1).next_power_of_two())?;
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let submitter = uring.submitter();
        submitter.register_files(&[file.as_raw_fd()])?;
        submitter.register_eventfd(event.as_raw_fd())?;
        let slots = (0..depth).map(|_| Slot::default()).collect();
        let in_flight =
            InFlight { slots, free: (0..depth).rev().collect(), pushed: 0, waking: false };
        Ok((Self { uring, event }, in_flight))
    }

    /// Puts `operation` in flight; the system learns of it when somebody enters.
    ///
    /// # Panics
    /// If the flight has no room.
    pub(super) fn push(&self, in_flight: &mut InFlight, operation: Operation) {
        let index = in_flight.free.pop().expect("who pushes has asked for room");
        let slot = &mut in_flight.slots[index as usize];
        debug_assert!(slot.transfer.is_none(), "a free slot is empty");
        slot.transfer = Some(Transfer::new(operation));
        self.push_transfer(in_flight, index);
    }

    /// Has who waits in [`enter`](Self::enter) return.
    pub(super) fn wake(&self, in_flight: &mut InFlight) {
        if in_flight.waking {
            return;
        }
        let nop = opcode::Nop::new().build().user_data(WAKE);
        self.push_entry(in_flight, &nop).expect("the queue has an entry more than there are slots");
        in_flight.waking = true;
    }

    /// Pushes the entry for what is left of the transfer in a slot.
    fn push_transfer(&self, in_flight: &mut InFlight, index: u32) {
        let slot = &mut in_flight.slots[index as usize];
        slot.sequence = in_flight.pushed;
        let entry = slot.entry().user_data(u64::from(index));
        self.push_entry(in_flight, &entry).expect("the queue has an entry for every slot");
    }

    fn push_entry(
        &self,
        in_flight: &mut InFlight,
        entry: &squeue::Entry,
    ) -> Result<(), squeue::PushError> {
        // SAFETY: the flight is borrowed mutably, so the lane's lock is held and this is the only
        // submission queue handle. What the entry refers to stays in its slot until it is reaped,
        // or withdrawn.
        unsafe { self.uring.submission_shared().push(entry)? };
        in_flight.pushed = in_flight.pushed.wrapping_add(1);
        Ok(())
    }

    /// Takes back the transfers that the system has not been told of. Nobody may
    /// [`enter`](Self::enter) at the same time, or ever again.
    pub(super) fn take_unsubmitted(&self, in_flight: &mut InFlight) -> Vec<Transfer> {
        let count = self.unsubmitted(in_flight) as u32;
        let mut withdrawn = Vec::new();
        for (index, slot) in in_flight.slots.iter_mut().enumerate() {
            // The system takes entries in order.
            let unsubmitted = in_flight.pushed.wrapping_sub(slot.sequence) <= count;
            if unsubmitted && let Some(transfer) = slot.transfer.take() {
                slot.iovecs.clear();
                in_flight.free.push(index as u32);
                withdrawn.push(transfer);
            }
        }
        withdrawn
    }

    /// Entries that the system has not been told of.
    pub(super) fn unsubmitted(&self, _lock: &mut InFlight) -> usize {
        // SAFETY: as in `queue`.
        unsafe { self.uring.submission_shared() }.len()
    }

    /// Tells the system of all entries, and waits for `wanted` completions to be there.
    ///
    /// # Errors
    /// What the system said; entries that it did not take stay in the queue.
    pub(super) fn enter(&self, wanted: usize) -> io::Result<usize> {
        self.uring.submitter().submit_and_wait(wanted)
    }

    /// Takes what has completed, up to `most`, into `ended`. What is incomplete is pushed again.
    pub(super) fn reap(
        &self,
        in_flight: &mut InFlight,
        device_file: &DeviceFile,
        ended: &mut Vec<EndedOperation>,
        most: usize,
    ) -> Reaped {
        let mut reaped = Reaped::default();
        while ended.len() < most {
            let Some((index, result)) = self.next(in_flight) else { break };
            let Ok(index) = u32::try_from(index) else {
                debug_assert_eq!(index, WAKE);
                in_flight.waking = false;
                continue;
            };
            let slot = &mut in_flight.slots[index as usize];
            let transfer = slot.transfer.as_mut().expect("a completion of what is in flight");
            let returned = u64::try_from(result).map_err(|_| -result);
            let result = match transfer.step(device_file, returned) {
                Step::Continue => {
                    reaped.continued += 1;
                    self.push_transfer(in_flight, index);
                    continue;
                }
                Step::Retry => {
                    reaped.retried += 1;
                    self.push_transfer(in_flight, index);
                    continue;
                }
                Step::Unsupported => {
                    reaped.unsupported += 1;
                    Ok(())
                }
                Step::End(result) => result,
            };
            slot.iovecs.clear();
            let transfer = slot.transfer.take().expect("seen above");
            in_flight.free.push(index);
            ended.push(transfer.end(result));
        }
        reaped
    }

    fn next(&self, _lock: &mut InFlight) -> Option<(u64, i32)> {
        // SAFETY: as in `queue`, for the completion queue.
        let entry: cqueue::Entry = unsafe { self.uring.completion_shared() }.next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Switches the event off, while somebody looks after the completions.
    pub(super) fn disable_event(&self, _lock: &mut InFlight) {
        // SAFETY: as in `queue`, for the completion queue.
        unsafe { self.uring.completion_shared() }.disable_eventfd();
    }

    /// Switches the event on, and tells whether nothing had completed by then: what completes
    /// later raises the event.
    pub(super) fn enable_event(&self, _lock: &mut InFlight) -> bool {
        // SAFETY: as in `queue`, for the completion queue.
        let mut cq = unsafe { self.uring.completion_shared() };
        cq.enable_eventfd();
        // The system publishes a completion, then reads the switch; here it is the other way
        // round. With a full fence on both sides at least one sees the other.
        fence(Ordering::SeqCst);
        cq.sync();
        cq.is_empty()
    }

    /// Sleeps until the event is raised.
    pub(super) fn wait_event(&self) {
        let mut count = [0; 8];
        while let Err(error) = rustix::io::read(&self.event, &mut count) {
            assert!(error == rustix::io::Errno::INTR, "an event cannot be read: {error}");
        }
    }

    /// Sleeps a moment: the system has asked for patience.
    pub(super) fn back_off(&self) {
        let pause = Timespec { tv_sec: 0, tv_nsec: BACK_OFF_NS };
        // An interrupted nap is a short one.
        let _ = poll(&mut [], Some(&pause));
    }

    /// Raises the event.
    pub(super) fn raise_event(&self) {
        // It fails only at 2^64 - 1 events that nobody has read.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl InFlight {
    /// How many transfers are in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The system takes a closed ring apart at its leisure. The file is to be free at once: who
        // opens a block device exclusively, just after it was closed here, must not find it busy.
        let _ = self.uring.submitter().unregister_files();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The system may still use this memory.
        for slot in &mut self.slots {
            if slot.transfer.is_some() {
                std::mem::forget(std::mem::take(slot));
            }
        }
    }
}

impl Slot {
    /// The entry for what is left. It refers to memory of the transfer and to `iovecs`.
    fn entry(&mut self) -> squeue::Entry {
        let Self { transfer, iovecs, .. } = self;
        let transfer = transfer.as_mut().expect("only what is in flight is pushed");
        let (at, left) = (transfer.position(), transfer.left());
        let done = transfer.done();
        match transfer.operation.op {
            Op::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Discard => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                opcode::Fallocate::new(FILE, left).offset(at).mode(punch.bits() as i32).build()
            }
            op => {
                collect(&mut transfer.operation, done, iovecs);
                transfer_entry(op, at, iovecs)
            }
        }
    }
}

fn transfer_entry(op: Op, at: u64, iovecs: &[IoVec]) -> squeue::Entry {
    match (op, iovecs) {
        (Op::Read, [one]) => opcode::Read::new(FILE, one.base, one.len as u32).offset(at).build(),
        (_, [one]) => opcode::Write::new(FILE, one.base, one.len as u32).offset(at).build(),
        (Op::Read, many) => {
            opcode::Readv::new(FILE, many.as_ptr().cast(), many.len() as u32).offset(at).build()
        }
        (_, many) => {
            opcode::Writev::new(FILE, many.as_ptr().cast(), many.len() as u32).offset(at).build()
        }
    }
}

/// The memory of an issue from byte `done` on.
fn collect(operation: &mut Operation, done: u64, iovecs: &mut Vec<IoVec>) {
    iovecs.clear();
    let (op, mut skip) = (operation.op, done as usize);
    for request in operation.requests.as_mut_slice() {
        let payload = request.payload_mut().expect("a transfer has memory");
        let (base, len) = match op {
            Op::Read => {
                let bytes = payload.bytes_mut().expect("a read owns its memory");
                (bytes.as_mut_ptr(), bytes.len())
            }
            // Only read from: the entry is a write.
            _ => (payload.bytes().as_ptr().cast_mut(), payload.bytes().len()),
        };
        if skip >= len {
            skip -= len;
            continue;
        }
        let part = (len - skip).min(MAX_BYTES as usize);
        // SAFETY: `skip` is within the request's memory.
        iovecs.push(IoVec { base: unsafe { base.add(skip) }, len: part });
        if part < len - skip {
            // What follows would not be adjacent.
            return;
        }
        skip = 0;
    }
}
