//! Moments at which a crash can be placed, over several devices.
//!
//! Each device has a recording of its own. A crash is a number of events on each, and these must fit: what a device was asked
//! because of what another one had done is not there without that. [`CutDevice`] takes such a *cut* whenever a device is
//! asked for something, before the device is.

use std::sync::{Arc, Mutex};

use forebay_io::record::RecordDevice;
use forebay_io::{Device, DeviceInfo, DeviceStats, Health, Op, Request, Waiter};

use crate::history::Now;
use crate::workload::Progress;

/// Positions are read so often, until they hold still.
const ATTEMPTS: usize = 100;

/// A moment.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Events so far on each device.
    pub positions: Vec<usize>,
    /// Whether a flush was about to begin.
    pub before_flush: bool,
    /// What was known by then: what was durable, at least, and what had begun, at most.
    pub now: Now,
}

/// All cuts of a run.
#[derive(Default)]
pub struct Cuts {
    devices: Mutex<Vec<Arc<RecordDevice>>>,
    progress: Mutex<Option<Arc<Progress>>>,
    cuts: Mutex<Vec<Cut>>,
}

impl Cuts {
    /// Cuts of these devices.
    pub fn new(devices: &[Arc<RecordDevice>]) -> Arc<Self> {
        let cuts = Self::default();
        *lock(&cuts.devices) = devices.to_vec();
        Arc::new(cuts)
    }

    /// From now on cuts are taken, and say how far the work is.
    pub fn watch(&self, progress: &Arc<Progress>) {
        *lock(&self.progress) = Some(Arc::clone(progress));
    }

    /// No more cuts are taken; these were.
    pub fn take(&self) -> Vec<Cut> {
        *lock(&self.progress) = None;
        std::mem::take(&mut *lock(&self.cuts))
    }

    /// Takes a cut.
    pub fn note(&self, before_flush: bool) {
        let Some(progress) = lock(&self.progress).clone() else { return };
        let before = progress.now();
        let Some(positions) = self.positions() else { return };
        let after = progress.now();
        let now = Now { fsyncs_done: before.fsyncs_done, synced_txg: before.synced_txg, ..after };
        let cut = Cut { positions, before_flush, now };
        lock(&self.cuts).push(cut);
    }

    /// Positions that all devices had at one moment.
    fn positions(&self) -> Option<Vec<usize>> {
        let devices = lock(&self.devices);
        let read = || devices.iter().map(|device| device.position()).collect::<Vec<_>>();
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
    /// Takes cuts whenever `inner` is asked for something.
    pub fn new(inner: Arc<RecordDevice>, cuts: Arc<Cuts>) -> Self {
        Self { inner, cuts }
    }
}

impl Device for CutDevice {
    fn submit(&self, request: Request) {
        if request.op() != Op::Read {
            self.cuts.note(request.op() == Op::Flush);
        }
        self.inner.submit(request);
    }

    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.inner.help(waiter);
    }

    fn close(&self) {
        self.inner.close();
    }
}
