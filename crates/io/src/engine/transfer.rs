//! The progress of one operation, and the meaning of each result of the kernel.
//!
//! Both backends that make system calls use it, so that short transfers, interruptions and devices
//! that end too early mean the same to both. Its only system call asks for the size: after a flush,
//! and when a transfer is short or fails. So a shrunken medium is noticed then, and not at each
//! write, which would cost a call per write.
//!
//! Invariant: `done` never exceeds the operation's length. Every step except the last either
//! advances `done` or is counted in `retries`, which are bounded.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::core::EndedOperation;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Name};
use crate::queue::Operation;
use crate::request::Op;

/// How often an operation is retried without progress.
const MAX_RETRIES: u32 = 32;

/// Most bytes of one system call. The kernel's own limit is 2 GiB less a page.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// An operation and its progress.
pub(super) struct Transfer {
    pub(super) operation: Operation,
    done: u64,
    retries: u32,
}

/// The step after a system call.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Make another call, for the rest.
    Continue,
    /// Make the same call again.
    Retry,
    /// The transfer has ended.
    End(Result<(), Error>),
    /// The transfer has ended: the medium does not support discards, and need not.
    Unsupported,
}

/// The device's file, and the properties that a transfer needs.
pub(super) struct DeviceFile {
    file: OwnedFd,
    name: Name,
    sector_bytes: u32,
    /// The size when the device was opened.
    size_bytes: u64,
}

impl DeviceFile {
    pub(super) fn new(file: OwnedFd, info: &DeviceInfo) -> Self {
        let DeviceInfo { sector_bytes, size_bytes, .. } = *info;
        Self { file, name: Name::clone(&info.name), sector_bytes, size_bytes }
    }

    /// Returns the file or block device.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns its size in bytes, if it has shrunk since it was opened.
    fn shrunk_size(&self) -> Result<Option<u64>, Errno> {
        let now = crate::file::size_bytes_of(&self.file)?;
        Ok((now < self.size_bytes).then_some(now))
    }
}

impl Transfer {
    pub(super) fn new(operation: Operation) -> Self {
        Self { operation, done: 0, retries: 0 }
    }

    /// Returns the bytes transferred so far.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns the offset of the rest on the device.
    pub(super) fn position(&self) -> u64 {
        self.operation.offset + self.done
    }

    /// Returns the bytes of the rest.
    pub(super) fn left(&self) -> u64 {
        self.operation.len - self.done
    }

    /// Ends the transfer with this result.
    pub(super) fn end(self, result: Result<(), Error>) -> EndedOperation {
        EndedOperation { moved: self.done, operation: self.operation, result }
    }

    /// Takes the result of a call: a number of bytes, or an `errno`.
    pub(super) fn step(
        &mut self,
        device_file: &DeviceFile,
        returned: Result<u64, i32>,
    ) -> NextStep {
        match returned {
            Ok(bytes) => self.moved(device_file, bytes),
            Err(errno) => self.failed(device_file, errno),
        }
    }

    fn moved(&mut self, device_file: &DeviceFile, bytes: u64) -> NextStep {
        let op = self.operation.op;
        match op {
            Op::Flush => return NextStep::End(self.flushed(device_file)),
            Op::Discard => return NextStep::End(Ok(())),
            Op::Read | Op::Write => {}
        }
        let reached = self.done + bytes.min(self.left());
        if reached == self.operation.len {
            self.done = reached;
            return NextStep::End(Ok(()));
        }
        // Direct I/O can continue only at whole sectors.
        let whole = reached - reached % u64::from(device_file.sector_bytes);
        let moved = whole > self.done;
        self.done = self.done.max(whole);
        // Check now: the file may grow again, and then the lost bytes read as zero.
        if let Ok(Some(size_bytes)) = device_file.shrunk_size() {
            return NextStep::End(Err(self.ends_at(device_file, size_bytes)));
        }
        if moved {
            return NextStep::Continue;
        }
        if op == Op::Read {
            return NextStep::End(Err(self.ends_at(device_file, self.position())));
        }
        match self.retry() {
            true => NextStep::Retry,
            false => NextStep::End(Err(self.error(
                device_file,
                ErrorKind::Device,
                "the kernel wrote no bytes in repeated attempts",
            ))),
        }
    }

    fn failed(&mut self, device_file: &DeviceFile, errno: i32) -> NextStep {
        let error = Errno::from_raw_os_error(errno);
        let op = self.operation.op;
        // `CANCELED` and `FAULT`: the submitting thread has ended, and the kernel gave up its work.
        // Nothing else cancels, and the memory is valid.
        let passing = match op {
            // Any other error may report a lost write, and the next flush would not report it
            // again.
            Op::Flush => &[Errno::INTR, Errno::CANCELED][..],
            _ => &[Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::FAULT],
        };
        if passing.contains(&error) && self.retry() {
            return NextStep::Retry;
        }
        if op == Op::Discard && [Errno::OPNOTSUPP, Errno::NOSYS].contains(&error) {
            return NextStep::Unsupported;
        }
        if error == Errno::CANCELED {
            // Not a cancelled request: part of it may have happened.
            let text = "the kernel cancelled it in repeated attempts";
            return NextStep::End(Err(self.error(device_file, ErrorKind::Device, text)));
        }
        // A block device that has shrunk returns `NOSPC`, `INVAL` or `IO`.
        if let Ok(Some(size_bytes)) = device_file.shrunk_size() {
            return NextStep::End(Err(self.ends_at(device_file, size_bytes)));
        }
        NextStep::End(Err(self.system(device_file, errno)))
    }

    /// Returns the result of a flush that the kernel has done. Writes behind a new end are lost.
    fn flushed(&self, device_file: &DeviceFile) -> Result<(), Error> {
        match device_file.shrunk_size() {
            Ok(None) => Ok(()),
            Ok(Some(size_bytes)) => Err(self.ends_at(device_file, size_bytes)),
            Err(errno) => Err(self.system(device_file, errno.raw_os_error())),
        }
    }

    fn retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= MAX_RETRIES
    }

    fn ends_at(&self, device_file: &DeviceFile, size_bytes: u64) -> Error {
        let text = format!(
            "the device ends at or before byte {size_bytes}, earlier than when it was opened; \
             open it again to use the rest"
        );
        self.error(device_file, ErrorKind::Gone, &text)
    }

    fn system(&self, device_file: &DeviceFile, errno: i32) -> Error {
        let range = (self.operation.offset, self.operation.len);
        Error::system(self.operation.op, &device_file.name, range, errno)
    }

    fn error(&self, device_file: &DeviceFile, kind: ErrorKind, text: &str) -> Error {
        let range = (self.operation.offset, self.operation.len);
        Error::new(kind, self.operation.op, &device_file.name, range, text)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
