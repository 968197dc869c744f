//! I/O roots: what asynchronous requests belong to, so that one can wait for all of them, take
//! them back, refuse more, and learn what failed.
//!
//! A set has some number of roots, each on cache lines of its own; a thread submits under the
//! one that its slot picks. A submission is one update of the root's word and one of its
//! reference count; so is a completion. No lock, no allocation.
//!
//! # Rules
//!
//! - A request is *in flight* from its submission until its callback has returned and is dropped.
//! - [`Roots::drain`] returns once all that was in flight when it began has ended, and all that
//!   the callbacks of these submitted on their threads, and so on. It does not wait for what others
//!   submit meanwhile, so it ends under any load, unless callbacks go on submitting for ever.
//! - After [`Roots::close`] has returned nothing is accepted, but for what a callback of a
//!   request in flight submits before it returns: that belongs to its parent, its root and its
//!   generation, and is as old as it. What is refused ends with [`ErrorKind::Closed`].
//! - A panic in a callback ends there, is counted, and the request has ended.
//!
//! # How a drain tells old from new
//!
//! By generations, two at a time, as sleepable read-copy-update does; but a root's word holds both counts and
//! which of them is current (see [`root_word`]), so that there is no window between reading the
//! generation and being counted in it. A drain makes the other generation current, root by
//! root, and waits until each count of the old one is zero. Drains come one after the other.
//!
//! # Locking
//!
//! `io-roots-drain` is held throughout a drain; under it `io-roots-signal` and
//! `io-root-failures` are taken (see [`root`]). Submissions and completions that succeed take
//! no lock, except the last one that a drain waits for.
//!
//! # What it does not do
//!
//! It bounds nothing (queues do), orders nothing between requests, and does not drive the device
//! while it drains: devices make progress by themselves. Dropping a set waits for nothing.

mod failures;
mod root;
mod root_word;

use std::fmt;

use forebay_base::memory::cpus;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, thread_slot};

use crate::completion::in_callback;
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::request::Request;
use root::{CurrentCallback, DrainSignal, Root, RootRef};
use root_word::Parity;

pub use failures::{Drained, Failures, RootsStats};
pub(crate) use root::Hold;

/// Most roots of a set.
const MAX_ROOTS: usize = 1024;

/// A set of roots over a device.
pub struct Roots {
    device: Arc<dyn Device>,
    roots: Box<[RootRef]>,
    signal: Arc<DrainSignal>,
    // One drain at a time, and the generation that is current.
    drain: Mutex<u64>,
    drains: AtomicU64,
}

/// Why a drain cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The calling thread is in the callback of a request, which the drain might wait for.
    #[error("a callback of a request must not drain: do so on another thread")]
    InCallback,
}

impl Roots {
    /// `count` roots over `device`, at most 1,024; 0 stands for one a processor. With 1,
    /// all threads share a line.
    pub fn new(device: Arc<dyn Device>, count: usize) -> Self {
        let count = if count == 0 { cpus() } else { count }.min(MAX_ROOTS);
        let signal = DrainSignal::new();
        let roots = (0..count as u32).map(|index| Root::new(index, &signal)).collect();
        let drain = Mutex::named("io-roots-drain", 0);
        Self { device, roots, signal, drain, drains: AtomicU64::new(0) }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Number of roots.
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Submits a request to the device, as [`Device::submit`] does, under a root: that of the
    /// parent if this is called in the callback of a request of this set. A refused request ends
    /// before this returns (in a callback: right after it), with [`ErrorKind::Closed`].
    pub fn submit(&self, request: Request) {
        let (root, parent) = self.pick();
        self.submit_under(root, parent, request);
    }

    /// Submits several at once, which costs fewer updates and system calls. Empties `requests`.
    pub fn submit_all(&self, requests: &mut Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        let (root, parent) = self.pick();
        match Hold::take(root, parent, requests.len()) {
            Some(holds) => {
                requests.iter_mut().zip(holds).for_each(|(request, hold)| request.join(hold));
                self.device.submit_all(requests);
            }
            None => requests.drain(..).for_each(|request| self.refuse(root, request)),
        }
    }

    fn submit_under(&self, root: &RootRef, parent: Option<Parity>, mut request: Request) {
        match Hold::take(root, parent, 1).and_then(|mut holds| holds.next()) {
            Some(hold) => {
                request.join(hold);
                self.device.submit(request);
            }
            None => self.refuse(root, request),
        }
    }

    /// Where the calling thread submits.
    #[inline]
    fn pick(&self) -> (&RootRef, Option<Parity>) {
        match CurrentCallback::among(&self.roots) {
            Some((root, parity)) => (root, Some(parity)),
            None => (&self.roots[thread_slot().index(self.roots.len())], None),
        }
    }

    #[cold]
    fn refuse(&self, root: &Root, request: Request) {
        root.refused.fetch_add(1, Ordering::Relaxed);
        let range = (request.offset(), request.len());
        let name = &self.device.info().name;
        let text = "nothing is accepted any more: the device is being closed; open it again";
        let error = Error::new(ErrorKind::Closed, request.op(), name, range, text);
        request.finish(Err(error));
    }

    /// Waits until all that was submitted before has ended: its callbacks have returned, and all
    /// that they submitted has ended as well. Tells what of it failed.
    ///
    /// # Errors
    /// In the callback of a request, of whichever set.
    pub fn drain(&self) -> Result<Drained, DrainError> {
        if in_callback() {
            return Err(DrainError::InCallback);
        }
        let mut generation = self.drain.lock();
        let parity = Parity::of(*generation);
        let waited_for = self.roots.iter().map(|root| root.word.flip(parity)).sum();
        *generation += 1;
        self.drains.store(*generation, Ordering::Release);
        let mut failures = Failures::default();
        for root in &self.roots {
            self.signal.wait(root, parity);
            failures.add(root.take_failures(parity));
        }
        Ok(Drained { waited_for, failures })
    }

    /// Refuses what is submitted from now on; see the rules above for what a callback may still
    /// submit. Does not wait: a drain after it waits for all that was ever accepted. May
    /// be called anywhere, any number of times.
    pub fn close(&self) {
        self.roots.iter().for_each(|root| root.word.close());
    }

    /// Takes back what was submitted so far and still waits in a queue: it ends with
    /// [`ErrorKind::Cancelled`], at the latest when its turn comes. What was issued goes its way;
    /// what is submitted later, by callbacks of cancelled requests too, is not affected.
    pub fn cancel(&self) {
        self.roots.iter().for_each(|root| root.cancel());
    }

    /// What failed since the set was made: all counts, and the first errors of each root since the
    /// last drain (whose findings have those from before).
    pub fn errors(&self) -> Failures {
        let mut sum = Failures::default();
        self.roots.iter().for_each(|root| sum.add(root.failures()));
        sum
    }

    /// How the set stands. Numbers of different roots are read one after the other.
    pub fn stats(&self) -> RootsStats {
        let failures = self.errors();
        RootsStats {
            in_flight: self.roots.iter().map(|root| root.word.in_flight()).collect(),
            drains: self.drains.load(Ordering::Acquire),
            closed: self.roots.iter().all(|root| root.word.is_closed()),
            refused: self.roots.iter().map(|root| root.refused.load(Ordering::Relaxed)).sum(),
            failed: failures.total(),
            panics: failures.panics(),
        }
    }

    /// As [`submit`](Self::submit), but a request without a parent goes under the `nth` root: in
    /// the model all threads have one slot.
    #[cfg(forebay_model)]
    pub fn submit_nth(&self, nth: usize, request: Request) {
        match CurrentCallback::among(&self.roots) {
            Some((root, parity)) => self.submit_under(root, Some(parity), request),
            None => self.submit_under(&self.roots[nth], None, request),
        }
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots")
            .field("device", &self.device.info().name)
            .field("states", &self.roots.iter().map(|root| &root.word).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
