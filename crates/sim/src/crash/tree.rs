//! Devices that join the pool and leave it beside the work.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_io::Device;
use forebay_pool::{AttachOptions, LeafState, NewVdev, Pool};

use super::Cuts;
use crate::workload::Workload;

/// What becomes of the devices of a pool during the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeChange {
    /// Nothing.
    #[default]
    None,
    /// A new device replaces the first one, and is replaced by that one again.
    Replace,
    /// The pool gets a log device, loses it, and gets it again.
    Log,
    /// The pool gets a mirror of log devices. A side is replaced, one is detached, one attached.
    /// Then the log is removed.
    LogMirror,
}

type Act = fn(&Pool, &[Arc<dyn Device>]);

impl TreeChange {
    /// Number of devices that are not of the pool at first.
    pub(super) fn spares(self) -> usize {
        match self {
            Self::None => 0,
            Self::Replace | Self::Log => 1,
            Self::LogMirror => 3,
        }
    }

    /// Whether these are devices of the log.
    pub(super) fn is_of_log(self) -> bool {
        matches!(self, Self::Log | Self::LogMirror)
    }

    /// The steps, on the first device of the pool and the spare ones.
    fn acts(self) -> &'static [Act] {
        match self {
            Self::None => &[],
            Self::Replace => &[
                |pool, all| replace(pool, &all[0], &all[1]),
                |pool, all| {
                    replace(pool, &all[1], &all[0]);
                },
            ],
            Self::Log => &[
                |pool, all| add_log(pool, &all[1..]),
                |pool, _| remove_log(pool),
                |pool, all| {
                    add_log(pool, &all[1..]);
                },
            ],
            Self::LogMirror => &[
                |pool, all| add_log(pool, &all[1..3]),
                |pool, all| replace(pool, &all[1], &all[3]),
                |pool, all| pool.detach_device(&all[2].info().name).expect("another is whole"),
                |pool, all| {
                    let new = Arc::clone(&all[1]).into();
                    let beside = &all[3].info().name;
                    pool.attach_device(beside, new, AttachOptions::default()).expect("it suits");
                },
                |pool, _| remove_log(pool),
            ],
        }
    }
}

fn replace(pool: &Pool, old: &Arc<dyn Device>, new: &Arc<dyn Device>) {
    let opened = Arc::clone(new).into();
    pool.replace_device(&old.info().name, opened, AttachOptions::default()).expect("it suits");
    pool.wait_resilver();
    let devices = pool.devices();
    let of = |one: &Arc<dyn Device>| {
        let is_it = |found: &&forebay_pool::PoolDevice| *found.path == *one.info().name;
        devices.iter().find(is_it).map(|found| found.state)
    };
    assert_eq!((of(old), of(new)), (None, Some(LeafState::Online)), "it was replaced");
}

fn add_log(pool: &Pool, devices: &[Arc<dyn Device>]) {
    let opened = devices.iter().map(|one| Arc::clone(one).into()).collect();
    pool.add_vdev(NewVdev::Log(opened), false, None).expect("a log device");
}

fn remove_log(pool: &Pool) {
    pool.remove_log().expect("the log moves home");
}

/// The changes of a run: each on a thread of its own, for a while of the work.
pub(super) struct TreeChanges<'a> {
    change: TreeChange,
    /// The first device of the pool, and the spare ones.
    devices: Vec<Arc<dyn Device>>,
    cuts: &'a Cuts,
    running: Option<JoinHandle<()>>,
}

impl<'a> TreeChanges<'a> {
    pub(super) fn new(
        change: TreeChange,
        (first, spares): (&Arc<dyn Device>, &[Arc<dyn Device>]),
        cuts: &'a Cuts,
    ) -> Self {
        let devices = std::iter::once(first).chain(spares).cloned().collect();
        Self { change, devices, cuts, running: None }
    }

    /// Begins the change of this step of the work, or waits for its end.
    pub(super) fn step(&mut self, work: &Workload, step: usize, steps: usize) {
        let acts = self.change.acts();
        // Each has half of its share of the work.
        let at = |half: usize| steps * (half + 1) / (2 * acts.len() + 1);
        let half = (0..2 * acts.len()).find(|half| at(*half) == step);
        match half {
            Some(half) if half.is_multiple_of(2) => {
                let (act, devices) = (acts[half / 2], self.devices.clone());
                let pool = work.pool_handle();
                self.cuts.set_in_change(true);
                self.running = Some(std::thread::spawn(move || act(&pool, &devices)));
            }
            Some(_) => self.join(),
            None => {}
        }
    }

    /// Waits for the end of the change that runs.
    pub(super) fn join(&mut self) {
        if let Some(running) = self.running.take() {
            running.join().expect("a change of the devices");
            self.cuts.set_in_change(false);
        }
    }
}
