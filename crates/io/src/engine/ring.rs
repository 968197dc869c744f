//! One io_uring and its transfers in flight. The crate's only file with unsafe code about io_uring.
//!
//! It pushes transfers, reaps their completions, enters the kernel, and sleeps until something has
//! completed. [`super::uring`] decides when.
//!
//! Invariants:
//! * An [`InFlight`] belongs to one [`Ring`] and is protected by its queue's lock. Every function
//!   that changes the shared rings borrows it mutably, which proves that the lock is held. So there
//!   is at most one handle of the submission ring and one of the completion ring at a time.
//! * A transfer and its memory stay in their slot from before the entry is pushed until its
//!   completion was reaped. An `InFlight` that is dropped with transfers in it leaks them.
//! * The submission ring has one entry more than there are slots. Each slot has at most one entry,
//!   and there is at most one more, which only wakes. The completion ring has twice that. Neither
//!   overflows.
//!
//! Not used, on purpose:
//! * registered buffers: memory comes from arenas that return pages to the system, and a registered
//!   page stays;
//! * deferred task work (`DEFER_TASKRUN`): it allows only one submitting thread;
//! * cooperative task work (`COOP_TASKRUN`): a thread's transfers would complete only when it
//!   enters the kernel again, and others may wait for them while it computes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use forebay_base::sync::atomic::{Ordering, fence};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, Timespec, eventfd, poll};
use rustix::fs::FallocateFlags;

use super::core::EndedOperation;
use super::transfer::{DeviceFile, MAX_BYTES, NextStep, Transfer};
use crate::queue::Operation;
use crate::request::Op;

/// The user data of the entry that only wakes the waiting thread.
const WAKE: u64 = u64::MAX;
/// Pause when the kernel is short of a resource.
const BACK_OFF_NS: i64 = 1_000_000;
/// The index of the device's file in the ring's file table.
const FILE: types::Fixed = types::Fixed(0);

/// An io_uring with a registered file and event.
pub(super) struct Ring {
    uring: IoUring,
    event: OwnedFd,
}

/// The transfers in flight in a ring.
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Entries pushed so far.
    pushed: u32,
    /// The waking entry is in flight. One is enough, and more would need space in the rings.
    waking: bool,
}

#[derive(Default)]
struct Slot {
    transfer: Option<Transfer>,
    // The memory of a merged transfer. The kernel may read the array until the entry has completed.
    iovecs: Vec<IoVec>,
    /// Number of entries that were pushed before this slot's entry.
    sequence: u32,
}

/// A piece of memory, laid out as the kernel's `struct iovec`.
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a length; the memory belongs to the transfer beside it, which is `Send`.
unsafe impl Send for IoVec {}

/// Counts of one call of `reap`.
#[derive(Default)]
pub(super) struct Reaped {
    /// Incomplete transfers that were pushed again for the rest.
    pub(super) continued: u64,
    /// Transfers that were pushed again because the kernel asked for it.
    pub(super) retried: u64,
    /// Discards that the medium does not support.
    pub(super) unsupported: u64,
}

/// Checks whether the kernel allows this process all of io_uring that a device needs.
///
/// # Errors
/// The kernel's error.
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
    unsafe { uring.submission().push(&nop) }.expect("an empty ring of two has space");
    uring.submit_and_wait(1)?;
    match uring.completion().next() {
        Some(entry) if entry.result() >= 0 => Ok(()),
        Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
        None => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Builds a ring. On kernels that can, one failing entry does not keep the later ones from being
/// submitted.
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
    /// Creates a ring for `file` with up to `depth` transfers in flight.
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

    /// Puts `operation` in flight. The kernel gets it when a thread enters.
    ///
    /// # Panics
    /// If all slots are in use.
    pub(super) fn push(&self, in_flight: &mut InFlight, operation: Operation) {
        let index = in_flight.free.pop().expect("permits bound the transfers in flight");
        let slot = &mut in_flight.slots[index as usize];
        debug_assert!(slot.transfer.is_none(), "a free slot is empty");
        slot.transfer = Some(Transfer::new(operation));
        self.push_transfer(in_flight, index);
    }

    /// Makes the thread that waits in [`enter`](Self::enter) return.
    pub(super) fn wake(&self, in_flight: &mut InFlight) {
        if in_flight.waking {
            return;
        }
        let nop = opcode::Nop::new().build().user_data(WAKE);
        self.push_entry(in_flight, &nop).expect("the ring has one entry more than slots");
        in_flight.waking = true;
    }

    /// Pushes an entry for the rest of a slot's transfer.
    fn push_transfer(&self, in_flight: &mut InFlight, index: u32) {
        let slot = &mut in_flight.slots[index as usize];
        slot.sequence = in_flight.pushed;
        let entry = slot.entry().user_data(u64::from(index));
        self.push_entry(in_flight, &entry).expect("the ring has an entry for every slot");
    }

    fn push_entry(
        &self,
        in_flight: &mut InFlight,
        entry: &squeue::Entry,
    ) -> Result<(), squeue::PushError> {
        // SAFETY: `in_flight` is borrowed mutably, so the queue's lock is held and this is the only
        // submission ring handle. The memory of the entry stays in its slot until it is reaped, or
        // taken back unsubmitted.
        unsafe { self.uring.submission_shared().push(entry)? };
        in_flight.pushed = in_flight.pushed.wrapping_add(1);
        Ok(())
    }

    /// Takes back the transfers that the kernel has not taken. No thread may [`enter`](Self::enter)
    /// at the same time, or ever again.
    pub(super) fn take_unsubmitted(&self, in_flight: &mut InFlight) -> Vec<Transfer> {
        let count = self.unsubmitted(in_flight) as u32;
        let mut withdrawn = Vec::new();
        for (index, slot) in in_flight.slots.iter_mut().enumerate() {
            // The kernel takes entries in order.
            let unsubmitted = in_flight.pushed.wrapping_sub(slot.sequence) <= count;
            if unsubmitted && let Some(transfer) = slot.transfer.take() {
                slot.iovecs.clear();
                in_flight.free.push(index as u32);
                withdrawn.push(transfer);
            }
        }
        withdrawn
    }

    /// Returns the number of entries that the kernel has not taken.
    pub(super) fn unsubmitted(&self, _lock: &mut InFlight) -> usize {
        // SAFETY: `_lock` is borrowed mutably, so the queue's lock is held and this is the only
        // handle of the submission ring.
        unsafe { self.uring.submission_shared() }.len()
    }

    /// Submits all entries, and waits until `wanted` completions are there.
    ///
    /// # Errors
    /// The kernel's error. Entries that it did not take stay in the ring.
    pub(super) fn enter(&self, wanted: usize) -> io::Result<usize> {
        self.uring.submitter().submit_and_wait(wanted)
    }

    /// Moves completed operations to `ended` until it holds `most`. Incomplete transfers are pushed
    /// again.
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
            let transfer = slot.transfer.as_mut().expect("completions are of transfers in flight");
            let returned = u64::try_from(result).map_err(|_| -result);
            let result = match transfer.step(device_file, returned) {
                NextStep::Continue => {
                    reaped.continued += 1;
                    self.push_transfer(in_flight, index);
                    continue;
                }
                NextStep::Retry => {
                    reaped.retried += 1;
                    self.push_transfer(in_flight, index);
                    continue;
                }
                NextStep::Unsupported => {
                    reaped.unsupported += 1;
                    Ok(())
                }
                NextStep::End(result) => result,
            };
            slot.iovecs.clear();
            let transfer = slot.transfer.take().expect("checked above");
            in_flight.free.push(index);
            ended.push(transfer.end(result));
        }
        reaped
    }

    fn next(&self, _lock: &mut InFlight) -> Option<(u64, i32)> {
        // SAFETY: `_lock` is borrowed mutably, so the queue's lock is held and this is the only
        // handle of the completion ring.
        let entry: cqueue::Entry = unsafe { self.uring.completion_shared() }.next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Disables the event, while a driver looks after the completions.
    pub(super) fn disable_event(&self, _lock: &mut InFlight) {
        // SAFETY: `_lock` is borrowed mutably, so the queue's lock is held and this is the only
        // handle of the completion ring.
        unsafe { self.uring.completion_shared() }.disable_eventfd();
    }

    /// Enables the event, and returns whether nothing had completed by then. Later completions
    /// raise the event.
    pub(super) fn enable_event(&self, _lock: &mut InFlight) -> bool {
        // SAFETY: `_lock` is borrowed mutably, so the queue's lock is held and this is the only
        // handle of the completion ring.
        let mut cq = unsafe { self.uring.completion_shared() };
        cq.enable_eventfd();
        // The kernel publishes a completion, then reads the flag; this side does the reverse. With
        // a full fence on both sides, at least one sees the other.
        fence(Ordering::SeqCst);
        cq.sync();
        cq.is_empty()
    }

    /// Sleeps until the event is raised.
    pub(super) fn wait_event(&self) {
        let mut count = [0; 8];
        while let Err(error) = rustix::io::read(&self.event, &mut count) {
            assert!(error == rustix::io::Errno::INTR, "cannot read the event of a ring: {error}");
        }
    }

    /// Pauses because the kernel is short of a resource.
    pub(super) fn back_off(&self) {
        let pause = Timespec { tv_sec: 0, tv_nsec: BACK_OFF_NS };
        // An interrupted pause is shorter, which does no harm.
        let _ = poll(&mut [], Some(&pause));
    }

    /// Raises the event.
    pub(super) fn raise_event(&self) {
        // It fails only after 2^64 - 1 unread events.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl InFlight {
    /// Returns the number of transfers in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Ring {
    /// Drops the ring's reference to the file. Nothing is in flight, and nothing is pushed later.
    ///
    /// The kernel destroys a closed ring later, in the background. A thread that opens a block
    /// device exclusively right after the close must not find it busy.
    pub(super) fn unregister_file(&self) {
        // It fails if the file is not registered any more.
        let _ = self.uring.submitter().unregister_files();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.unregister_file();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The kernel may still use this memory.
        for slot in &mut self.slots {
            if slot.transfer.is_some() {
                std::mem::forget(std::mem::take(slot));
            }
        }
    }
}

impl Slot {
    /// Builds the entry for the rest. It refers to memory of the transfer and to `iovecs`.
    fn entry(&mut self) -> squeue::Entry {
        let Self { transfer, iovecs, .. } = self;
        let transfer = transfer.as_mut().expect("only transfers in flight are pushed");
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

/// Collects the memory of an operation from byte `done` on.
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
            // The kernel only reads from it: the entry is a write.
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
            // The next piece would not be adjacent on the device.
            return;
        }
        skip = 0;
    }
}
