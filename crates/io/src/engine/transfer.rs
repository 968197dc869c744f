//! One issue on its way: how far it is, and what to do with what the system said.
//!
//! Shared by the backends that make system calls, so that short transfers, interruptions and
//! devices that end too early mean the same to both. Makes no system call itself.
//!
//! Invariant: `done` never exceeds the length of the issue, and every step that is not the last
//! either moves `done` on or is counted in `retries`, which are bounded.

use rustix::io::Errno;

use super::core::Ended;
use crate::error::{Error, ErrorKind, Name};
use crate::queue::Issue;
use crate::request::Op;

/// How often one issue is tried again without having moved on.
const MAX_RETRIES: u32 = 32;

/// Most bytes that one system call is asked for. The system itself stops at 2 GiB less a page.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// An issue and how much of it has happened.
pub(super) struct Transfer {
    pub(super) issue: Issue,
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
pub(super) struct Medium {
    pub(super) name: Name,
    pub(super) sector_bytes: u32,
}

impl Transfer {
    pub(super) fn new(issue: Issue) -> Self {
        Self { issue, done: 0, retries: 0 }
    }

    /// Bytes that have been transferred.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Where the rest begins on the device.
    pub(super) fn position(&self) -> u64 {
        self.issue.offset + self.done
    }

    /// Bytes of the rest.
    pub(super) fn left(&self) -> u64 {
        self.issue.len - self.done
    }

    /// It ended so.
    pub(super) fn end(self, result: Result<(), Error>) -> Ended {
        Ended { moved: self.done, issue: self.issue, result }
    }

    /// Takes in what a call returned: bytes, or an `errno`.
    pub(super) fn step(&mut self, medium: &Medium, returned: Result<u64, i32>) -> Step {
        match returned {
            Ok(bytes) => self.moved(medium, bytes),
            Err(errno) => self.failed(medium, errno),
        }
    }

    fn moved(&mut self, medium: &Medium, bytes: u64) -> Step {
        let op = self.issue.op;
        if matches!(op, Op::Flush | Op::Discard) {
            return Step::End(Ok(()));
        }
        let reached = self.done + bytes.min(self.left());
        if reached == self.issue.len {
            self.done = reached;
            return Step::End(Ok(()));
        }
        // Direct I/O goes on at whole sectors only.
        let whole = reached - reached % u64::from(medium.sector_bytes);
        if whole > self.done {
            self.done = whole;
            return Step::Continue;
        }
        if op == Op::Read {
            return Step::End(Err(self.ended_early(medium)));
        }
        match self.retry() {
            true => Step::Retry,
            false => Step::End(Err(self.error(medium, ErrorKind::Device, "nothing was written"))),
        }
    }

    fn failed(&mut self, medium: &Medium, errno: i32) -> Step {
        let error = Errno::from_raw_os_error(errno);
        // `CANCELED` and `FAULT`: the thread that had submitted it has ended, and the system
        // gave up what it did in its name. Nobody else cancels, and the memory is valid.
        let passing = [Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::FAULT];
        if passing.contains(&error) && self.retry() {
            return Step::Retry;
        }
        let op = self.issue.op;
        if op == Op::Discard && [Errno::OPNOTSUPP, Errno::NOSYS].contains(&error) {
            return Step::Unsupported;
        }
        let range = (self.issue.offset, self.issue.len);
        Step::End(Err(Error::system(op, &medium.name, range, errno)))
    }

    fn retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= MAX_RETRIES
    }

    fn ended_early(&self, medium: &Medium) -> Error {
        let text = format!(
            "the device ends at or before byte {}, earlier than when it was opened; \
             open it again to go on with what is left of it",
            self.position()
        );
        self.error(medium, ErrorKind::Gone, &text)
    }

    fn error(&self, medium: &Medium, kind: ErrorKind, text: &str) -> Error {
        let range = (self.issue.offset, self.issue.len);
        Error::new(kind, self.issue.op, &medium.name, range, text)
    }
}
