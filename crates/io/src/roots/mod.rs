//! I/O roots: groups of asynchronous requests that can be awaited, cancelled and closed together.
//!
//! A set has several roots, each on its own cache lines. A thread submits under the root that its
//! slot selects. A submission updates the root's word and reference count once each, and so does a
//! completion. There is no lock and no allocation.
//!
//! # Rules
//!
//! - A request is *in flight* from its submission until its callback has returned and was dropped.
//! - [`Roots::drain`] waits for all requests in flight when it begins, for requests that their
//!   callbacks submit on their threads, and so on. It does not wait for other later requests, so it
//!   ends under any load, unless callbacks submit for ever.
//! - After [`Roots::close`] has returned, only callbacks of requests in flight may submit. Such a
//!   child has its parent's root and generation. All other requests complete with
//!   [`ErrorKind::Closed`].
//! - A panic in a callback is caught and counted, and the request has completed.
//!
//! # Locking
//!
//! `io-roots-drain` is held throughout a drain. `io-roots-signal` and `io-root-failures` are taken
//! under it (see [`root`]). Successful submissions and completions take no lock, except the last
//! completion that a drain waits for.
//!
//! Not done: it limits nothing (queues do), orders nothing, and drives no device during a drain.
//! Dropping a set waits for nothing.

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
    // The current generation. Held by the one drain that runs.
    drain: Mutex<u64>,
    drains: AtomicU64,
}

/// Why a drain is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The calling thread is in the callback of a request that the drain might wait for.
    #[error("cannot drain inside a callback of a request; drain on another thread")]
    InCallback,
}

impl Roots {
    /// Creates `count` roots over `device`, at most 1,024. 0 means one per CPU. With 1, all threads
    /// share a cache line.
    pub fn new(device: Arc<dyn Device>, count: usize) -> Self {
        let count = if count == 0 { cpus() } else { count }.min(MAX_ROOTS);
        let signal = DrainSignal::new();
        let roots = (0..count as u32).map(|index| Root::new(index, &signal)).collect();
        let drain = Mutex::named("io-roots-drain", 0);
        Self { device, roots, signal, drain, drains: AtomicU64::new(0) }
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns the number of roots.
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Submits a request to the device under a root, as [`Device::submit`] does. In the callback of
    /// a request of this set, the root is that request's. A refused request completes before this
    /// returns (in a callback: right after it) with [`ErrorKind::Closed`].
    pub fn submit(&self, request: Request) {
        let (root, parent) = self.pick();
        self.submit_under(root, parent, request);
    }

    /// Submits several requests at once, which costs fewer updates and system calls. Empties
    /// `requests`.
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

    /// Returns the root under which the calling thread submits.
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
        let text = "the set of roots is closed; open the device again";
        let error = Error::new(ErrorKind::Closed, request.op(), name, range, text);
        request.finish(Err(error));
    }

    /// Waits until all requests submitted so far have completed, with their callbacks and all
    /// requests that these submitted. Reports their failures.
    ///
    /// # Errors
    /// If called in the callback of a request, of any set.
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

    /// Refuses new requests, except from callbacks of requests in flight. Does not wait; a later
    /// drain waits for all accepted requests. May be called anywhere, any number of times.
    pub fn close(&self) {
        self.roots.iter().for_each(|root| root.word.close());
    }

    /// Cancels the requests submitted so far that are still queued. They complete with
    /// [`ErrorKind::Cancelled`], at the latest when they would be issued. Issued requests and later
    /// submissions are not affected, even those by callbacks of cancelled requests.
    pub fn cancel(&self) {
        self.roots.iter().for_each(|root| root.cancel());
    }

    /// Returns the failures since the set was created: all counts, and the first errors of each
    /// root since the last drain. Earlier errors were reported by drains.
    pub fn errors(&self) -> Failures {
        let mut sum = Failures::default();
        self.roots.iter().for_each(|root| sum.add(root.failures()));
        sum
    }

    /// Returns statistics. Roots are read one after another.
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

    /// Like [`submit`](Self::submit), but a request without a parent goes under root `nth`: in the
    /// model all threads have the same slot.
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
