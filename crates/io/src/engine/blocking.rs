//! Transfers by blocking calls: for the workers of the pool, and for transfers left over when a
//! ring is abandoned.
//!
//! Locking: none. The caller must hold no lock.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;
use rustix::io::{pread, preadv, pwrite, pwritev};

use super::core::EndedOperation;
use super::transfer::{DeviceFile, MAX_BYTES, NextStep, Transfer};
use crate::counters::IoCounters;
use crate::device::DeviceInfo;
use crate::request::{Op, Request};

/// A file for blocking calls.
pub(crate) struct BlockingFile {
    pub(super) device_file: DeviceFile,
}

impl BlockingFile {
    pub(super) fn new(file: OwnedFd, info: &DeviceInfo) -> Self {
        Self { device_file: DeviceFile::new(file, info) }
    }

    /// Closes the file. No transfer is executed any more.
    pub(super) fn close(&self) {
        crate::file::close_early(self.device_file.file());
    }

    /// Executes the rest of `transfer`, in as many calls as needed.
    pub(super) fn execute(&self, mut transfer: Transfer, counters: &IoCounters) -> EndedOperation {
        loop {
            let returned = self.call(&mut transfer).map_err(|errno| errno.raw_os_error());
            match transfer.step(&self.device_file, returned) {
                NextStep::Continue => counters.add(IoCounters::CONTINUED, 0, 1),
                NextStep::Retry => counters.add(IoCounters::RETRIED, 0, 1),
                NextStep::Unsupported => {
                    counters.add(IoCounters::DISCARDS_IGNORED, 0, 1);
                    return transfer.end(Ok(()));
                }
                NextStep::End(result) => return transfer.end(result),
            }
        }
    }

    /// Makes one call for the rest. Returns the number of bytes moved.
    fn call(&self, transfer: &mut Transfer) -> rustix::io::Result<u64> {
        let file = self.device_file.file();
        let (at, left, done) = (transfer.position(), transfer.left(), transfer.done() as usize);
        let op = transfer.operation.op;
        let requests = transfer.operation.requests.as_mut_slice();
        let moved = match (op, requests) {
            (Op::Flush, _) => {
                rustix::fs::fdatasync(file)?;
                0
            }
            (Op::Discard, _) => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, punch, at, left)?;
                0
            }
            (Op::Read, [one]) => pread(file, part(&mut bytes_mut(one)[done..]), at)?,
            (Op::Write, [one]) => pwrite(file, shared_part(&bytes(one)[done..]), at)?,
            (Op::Read, many) => {
                let mut pieces: Vec<_> =
                    many.iter_mut().map(|one| IoSliceMut::new(bytes_mut(one))).collect();
                let mut rest = &mut pieces[..];
                IoSliceMut::advance_slices(&mut rest, done);
                preadv(file, rest, at)?
            }
            (Op::Write, many) => {
                let mut pieces: Vec<_> = many.iter().map(|one| IoSlice::new(bytes(one))).collect();
                let mut rest = &mut pieces[..];
                IoSlice::advance_slices(&mut rest, done);
                pwritev(file, rest, at)?
            }
        };
        Ok(moved as u64)
    }
}

fn bytes_mut(request: &mut Request) -> &mut [u8] {
    request.bytes_mut().expect("a read owns its memory")
}

fn bytes(request: &Request) -> &[u8] {
    request.payload().expect("a write has memory").bytes()
}

fn part(bytes: &mut [u8]) -> &mut [u8] {
    let most = bytes.len().min(MAX_BYTES as usize);
    &mut bytes[..most]
}

fn shared_part(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_BYTES as usize)]
}
