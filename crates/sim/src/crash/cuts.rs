//! Consistent cuts: moments of a crash over several recorded devices.
//!
//! A crash is a number of events on each device. These numbers must be consistent: a request that
//! one device got because another had completed one is not there without it. [`CutDevice`] takes
//! such a *cut* before each write and flush reaches its device. Stores take cuts of their own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_io::record::RecordDevice;
use forebay_io::{Decorator, Device, Op, Request};

use crate::history::ProgressSnapshot;
use crate::workload::Progress;

/// Attempts to read positions that do not change meanwhile.
const ATTEMPTS: usize = 100;

/// A consistent moment.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of events so far, by device.
    pub positions: Vec<usize>,
    /// Whether a flush was about to begin.
    pub before_flush: bool,
    /// Whether devices were joining the pool, or leaving it.
    pub in_change: bool,
    /// A lower bound of what was durable, and an upper bound of what had begun.
    pub snapshot: ProgressSnapshot,
}

/// A device or a store whose events are recorded.
pub trait Recorder: Send + Sync {
    /// Number of events until now.
    fn position(&self) -> usize;
}

impl Recorder for RecordDevice {
    fn position(&self) -> usize {
        Self::position(self)
    }
}

/// All cuts of a run.
#[derive(Default)]
pub struct Cuts {
    recorders: Mutex<Vec<Arc<dyn Recorder>>>,
    progress: Mutex<Option<Arc<Progress>>>,
    in_change: AtomicBool,
    cuts: Mutex<Vec<Cut>>,
}

impl Cuts {
    /// No cuts yet of these devices.
    pub fn new(recorders: Vec<Arc<dyn Recorder>>) -> Arc<Self> {
        let cuts = Self::default();
        *lock(&cuts.recorders) = recorders;
        Arc::new(cuts)
    }

    /// Starts taking cuts, with the progress of this workload.
    pub fn watch(&self, progress: &Arc<Progress>) {
        *lock(&self.progress) = Some(Arc::clone(progress));
    }

    /// Notes for the cuts from now on whether devices join the pool, or leave it.
    pub fn set_in_change(&self, in_change: bool) {
        self.in_change.store(in_change, Ordering::SeqCst);
    }

    /// Stops taking cuts and returns them.
    pub fn stop(&self) -> Vec<Cut> {
        *lock(&self.progress) = None;
        std::mem::take(&mut *lock(&self.cuts))
    }

    /// Takes a cut, if [`watch`](Self::watch) was called.
    pub fn take_cut(&self, before_flush: bool) {
        let Some(progress) = lock(&self.progress).clone() else { return };
        let before = progress.snapshot();
        let Some(positions) = self.positions() else { return };
        let after = progress.snapshot();
        let snapshot = ProgressSnapshot {
            fsyncs_done: before.fsyncs_done,
            synced_txg: before.synced_txg,
            ..after
        };
        let in_change = self.in_change.load(Ordering::SeqCst);
        let cut = Cut { positions, before_flush, in_change, snapshot };
        lock(&self.cuts).push(cut);
    }

    /// Positions that all devices had at one moment.
    fn positions(&self) -> Option<Vec<usize>> {
        let recorders = lock(&self.recorders);
        let read = || recorders.iter().map(|recorder| recorder.position()).collect::<Vec<_>>();
        let mut positions = read();
        for _ in 0..ATTEMPTS {
            let again = read();
            if again == positions {
                return Some(positions);
            }
            positions = again;
        }
        None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A recorded device that takes cuts.
pub struct CutDevice {
    inner: Arc<RecordDevice>,
    cuts: Arc<Cuts>,
}

impl CutDevice {
    /// Takes a cut before each request to `inner`, except reads.
    pub fn new(inner: Arc<RecordDevice>, cuts: Arc<Cuts>) -> Self {
        Self { inner, cuts }
    }
}

impl Decorator for CutDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Read {
            self.cuts.take_cut(request.op() == Op::Flush);
        }
        Some(request)
    }
}
