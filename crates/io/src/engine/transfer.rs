//! One issue on its way: how far it is, and what to do with what the system said.
//!
//! Shared by the backends that make system calls, so that short transfers, interruptions and
//! devices that end too early mean the same to both. Makes no system call itself, but to ask for the
//! size: when a flush is done, and when a transfer is short or fails. So a medium that
//! became shorter is noticed then, and not by each write: that would cost a call a write.
//!
//! Invariant: `done` never exceeds the length of the issue, and every step that is not the last
//! either moves `done` on or is counted in `retries`, which are bounded.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::core::EndedOperation;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Name};
use crate::queue::Operation;
use crate::request::Op;

/// How often one issue is tried again without having moved on.
const MAX_RETRIES: u32 = 32;

/// Most bytes that one system call is asked for. The system itself stops at 2 GiB less a page.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// An issue and how much of it has happened.
pub(super) struct Transfer {
    pub(super) operation: Operation,
    done: u64,
    retries: u32,
}

/// What comes after a system call.
#[derive(Debug)]
pub(super) enum Step {
    /// Another call, for the rest.
    Continue,
    /// The same call again.
    Retry,
    /// It has ended.
    End(Result<(), Error>),
    /// It has ended: the medium cannot discard, and need not.
    Unsupported,
}

/// What a transfer needs to know of its device.
pub(super) struct DeviceFile {
    file: OwnedFd,
    name: Name,
    sector_bytes: u32,
    /// When it was opened.
    size_bytes: u64,
}

impl DeviceFile {
    pub(super) fn new(file: OwnedFd, info: &DeviceInfo) -> Self {
        let DeviceInfo { sector_bytes, size_bytes, .. } = *info;
        Self { file, name: Name::clone(&info.name), sector_bytes, size_bytes }
    }

    /// The file, or block device.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Its size in bytes, if that is less than when it was opened.
    fn shrunk_size(&self) -> Result<Option<u64>, Errno> {
        let now = crate::file::size_bytes_of(&self.file)?;
        Ok((now < self.size_bytes).then_some(now))
    }
}

impl Transfer {
    pub(super) fn new(operation: Operation) -> Self {
        Self { operation, done: 0, retries: 0 }
    }

    /// Bytes that have been transferred.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Where the rest begins on the device.
    pub(super) fn position(&self) -> u64 {
        self.operation.offset + self.done
    }

    /// Bytes of the rest.
    pub(super) fn left(&self) -> u64 {
        self.operation.len - self.done
    }

    /// It ended so.
    pub(super) fn end(self, result: Result<(), Error>) -> EndedOperation {
        EndedOperation { moved: self.done, operation: self.operation, result }
    }

    /// Takes in what a call returned: bytes, or an `errno`.
    pub(super) fn step(&mut self, device_file: &DeviceFile, returned: Result<u64, i32>) -> Step {
        match returned {
            Ok(bytes) => self.moved(device_file, bytes),
            Err(errno) => self.failed(device_file, errno),
        }
    }

    fn moved(&mut self, device_file: &DeviceFile, bytes: u64) -> Step {
        let op = self.operation.op;
        match op {
            Op::Flush => return Step::End(self.flushed(device_file)),
            Op::Discard => return Step::End(Ok(())),
            Op::Read | Op::Write => {}
        }
        let reached = self.done + bytes.min(self.left());
        if reached == self.operation.len {
            self.done = reached;
            return Step::End(Ok(()));
        }
        // Direct I/O goes on at whole sectors only.
        let whole = reached - reached % u64::from(device_file.sector_bytes);
        let moved = whole > self.done;
        self.done = self.done.max(whole);
        // At once: a file may grow again, and what it had lost then reads as zero.
        if let Ok(Some(size_bytes)) = device_file.shrunk_size() {
            return Step::End(Err(self.ends_at(device_file, size_bytes)));
        }
        if moved {
            return Step::Continue;
        }
        if op == Op::Read {
            return Step::End(Err(self.ends_at(device_file, self.position())));
        }
        match self.retry() {
            true => Step::Retry,
            false => {
                Step::End(Err(self.error(device_file, ErrorKind::Device, "nothing was written")))
            }
        }
    }

    fn failed(&mut self, device_file: &DeviceFile, errno: i32) -> Step {
        let error = Errno::from_raw_os_error(errno);
        let op = self.operation.op;
        // `CANCELED` and `FAULT`: the thread that had submitted it has ended, and the system
        // gave up what it did in its name. Nobody else cancels, and the memory is valid.
        let passing = match op {
            // Any other error may be that of a lost write, which the next flush would not tell again.
            Op::Flush => &[Errno::INTR, Errno::CANCELED][..],
            _ => &[Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::FAULT],
        };
        if passing.contains(&error) && self.retry() {
            return Step::Retry;
        }
        if op == Op::Discard && [Errno::OPNOTSUPP, Errno::NOSYS].contains(&error) {
            return Step::Unsupported;
        }
        if error == Errno::CANCELED {
            // Not as if somebody had taken it back: some of it may have happened.
            let text = "the system gave it up, again and again";
            return Step::End(Err(self.error(device_file, ErrorKind::Device, text)));
        }
        // A block device that has become shorter says `NOSPC`, `INVAL` or `IO`.
        if let Ok(Some(size_bytes)) = device_file.shrunk_size() {
            return Step::End(Err(self.ends_at(device_file, size_bytes)));
        }
        Step::End(Err(self.system(device_file, errno)))
    }

    /// What a flush that the system has done comes to: what was written behind the end is lost.
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
             open it again to go on with what is left of it"
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
