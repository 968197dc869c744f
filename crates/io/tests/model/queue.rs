//! Permits that several lanes share: never more in flight than the limits, none lost, no kick lost, and
//! nobody waits for ever.
//!
//! A lane here is what an engine makes of it: a seat and a count of requests, under a lock. Threads
//! submit to it, end what is in flight, and make a step of each lane that they are told to kick.

use std::sync::atomic::{AtomicI64, Ordering};

use forebay_base::sync::{Arc, Mutex};
use forebay_io::Priority;
use forebay_io::model::{Kick, Limits, Permits, Seat};

use forebay_base::model::{below, check, go, join};

struct Lane {
    seat: Seat,
    waiting: [u32; 5],
    /// Begun and not ended, by class.
    flying: Vec<Priority>,
    /// Operations that can go on at once here, whatever the permits.
    workers: usize,
}

struct Device {
    permits: Permits,
    lanes: Vec<Mutex<Lane>>,
    /// In flight by class, as an observer sees it. No part of what is checked.
    seen: [AtomicI64; 5],
}

impl Device {
    fn new(min: [u32; 5], max: [u32; 5], total: u32, lanes: usize) -> Arc<Self> {
        Self::with_workers(min, max, total, lanes, usize::MAX)
    }

    /// With lanes that cannot always go on with a step until there is no permit.
    fn with_workers(
        min: [u32; 5],
        max: [u32; 5],
        total: u32,
        lanes: usize,
        workers: usize,
    ) -> Arc<Self> {
        let limits = Limits { min, max, total, lot: 2 };
        let lane = |index| {
            let seat = Seat::new(index);
            Lane { seat, waiting: [0; 5], flying: Vec::new(), workers }
        };
        Arc::new(Self {
            permits: Permits::new(limits, lanes),
            lanes: (0..lanes).map(|at| Mutex::named("test-lane", lane(at))).collect(),
            seen: Default::default(),
        })
    }

    /// A step of `lane`, after `change`, and of those it kicks.
    fn step(&self, lane: usize, change: impl FnOnce(&Self, &mut Lane)) {
        let mut due: Vec<Kick> = vec![self.step_of(lane, change)];
        while let Some(kick) = due.pop() {
            due.extend(kick.map(|lane| self.step_of(lane, |_, _| {})));
        }
    }

    fn step_of(&self, lane: usize, change: impl FnOnce(&Self, &mut Lane)) -> Kick {
        let mut lane = self.lanes[lane].lock();
        change(self, &mut lane);
        loop {
            if lane.flying.len() >= lane.workers {
                self.permits.rest(&mut lane.seat);
                break;
            }
            let waiting = (0..5).filter(|class| lane.waiting[*class] > 0);
            let waiting = waiting.map(|class| 1 << class).sum();
            let Some(class) = self.permits.admit(&mut lane.seat, waiting) else { break };
            lane.waiting[class.index()] -= 1;
            lane.flying.push(class);
            let now = self.seen[class.index()].fetch_add(1, Ordering::Relaxed) + 1;
            assert!(now <= i64::from(self.permits.limits().max[class.index()]), "{class}");
            let all: i64 = self.seen.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
            assert!(all <= i64::from(self.permits.limits().total), "{all} in flight");
        }
        lane.seat.take_kicks()
    }

    fn submit(&self, lane: usize, class: Priority) {
        self.step(lane, |_, lane| lane.waiting[class.index()] += 1);
    }

    /// Ends one operation of `lane`, if it has one in flight. Says whether it had.
    fn end_one(&self, lane: usize) -> bool {
        let mut had = false;
        self.step(lane, |device, lane| {
            let count = lane.flying.len() as u64;
            if count == 0 {
                return;
            }
            had = true;
            let class = lane.flying.swap_remove(below(count) as usize);
            device.seen[class.index()].fetch_sub(1, Ordering::Relaxed);
            device.permits.end(&mut lane.seat, class);
        });
        had
    }

    /// All that is cancelled before it was begun.
    fn cancel(&self, lane: usize) {
        self.step(lane, |_, lane| lane.waiting = [0; 5]);
    }

    /// Ends what is in flight, as a device does, until there is nothing; then nothing may wait.
    fn end(self: Arc<Self>) {
        let lanes = self.lanes.len();
        while (0..lanes).any(|lane| self.end_one(lane)) {}
        let device = Arc::into_inner(self).expect("all threads have ended");
        let lanes: Vec<Lane> = device.lanes.into_iter().map(Mutex::into_inner).collect();
        for (index, lane) in lanes.iter().enumerate() {
            assert_eq!(lane.waiting, [0; 5], "lane {index} was not kicked");
        }
        device.permits.audit(&lanes.iter().map(|lane| &lane.seat).collect::<Vec<_>>());
    }
}

const READ: Priority = Priority::SyncRead;
const SCRUB: Priority = Priority::Scrub;

/// Two lanes and one permit of the class: each hands it on to the other.
#[test]
fn one_permit_goes_round() {
    check(8000, || {
        let device = Device::new([1; 5], [1; 5], 5, 2);
        let threads = [0, 1].map(|lane| {
            let device = Arc::clone(&device);
            go(move || {
                for _ in 0..2 {
                    device.submit(lane, READ);
                    device.end_one(lane);
                }
            })
        });
        join(threads);
        device.end();
    });
}

/// Ends race submits of other lanes, in two classes that share what neither has reserved.
#[test]
fn shared_permits_reach_whoever_waits() {
    check(8000, || {
        let device = Device::new([1; 5], [3, 1, 1, 1, 2], 6, 2);
        let threads = [(0, READ), (1, SCRUB)].map(|(lane, class)| {
            let device = Arc::clone(&device);
            go(move || {
                for other in [class, READ, class] {
                    device.submit(lane, other);
                    if below(2) == 0 {
                        device.end_one(below(2) as usize);
                    }
                }
            })
        });
        join(threads);
        device.end();
    });
}

/// Spares are taken from a lane that has stopped, while it stops.
#[test]
fn an_idle_lane_keeps_nobody_waiting() {
    check(8000, || {
        let device = Device::new([2, 1, 1, 1, 1], [4, 1, 1, 1, 1], 8, 2);
        let stopping = Arc::clone(&device);
        let stops = go(move || {
            stopping.submit(0, READ);
            stopping.end_one(0);
        });
        let busy = Arc::clone(&device);
        let works = go(move || (0..4).for_each(|_| busy.submit(1, READ)));
        join([stops, works]);
        // Nothing else is in flight, so it must have been given its share at least.
        assert!(device.lanes[1].lock().flying.len() >= 2);
        device.end();
    });
}

/// A lane that is granted a permit may have nothing left to do with it.
#[test]
fn a_cancelled_wait_passes_its_permit_on() {
    check(8000, || {
        let device = Device::new([1; 5], [1; 5], 5, 3);
        device.submit(0, READ);
        let submit = |lane, cancels| {
            let device = Arc::clone(&device);
            go(move || {
                device.submit(lane, READ);
                if cancels {
                    device.cancel(lane);
                }
            })
        };
        let waits = [submit(1, true), submit(2, false)];
        let ending = Arc::clone(&device);
        let ends = go(move || {
            ending.end_one(0);
        });
        join(waits.into_iter().chain([ends]));
        device.end();
    });
}

/// Three lanes, everything at once.
#[test]
fn lanes_meet_in_every_way() {
    check(6000, || {
        let device = Device::new([1; 5], [2, 1, 2, 1, 1], 6, 3);
        let threads = [0, 1, 2].map(|lane| {
            let device = Arc::clone(&device);
            go(move || {
                for _ in 0..3 {
                    match below(5) {
                        0 | 1 => device.submit(lane, READ),
                        2 => device.submit(lane, Priority::AsyncRead),
                        3 => {
                            device.end_one(below(3) as usize);
                        }
                        _ => device.cancel(lane),
                    }
                }
            })
        });
        join(threads);
        device.end();
    });
}

/// A worker a lane: whoever has none left gives back what it was granted, and asks again when it has.
#[test]
fn lanes_without_a_worker_keep_nobody_waiting() {
    check(8000, || {
        let device = Device::with_workers([1; 5], [2, 1, 2, 1, 1], 6, 2, 1);
        let threads = [0, 1].map(|lane| {
            let device = Arc::clone(&device);
            go(move || {
                for _ in 0..4 {
                    match below(6) {
                        0 | 1 => device.submit(lane, READ),
                        2 => device.submit(lane, Priority::AsyncRead),
                        3 => device.submit(lane, SCRUB),
                        4 => {
                            device.end_one(below(2) as usize);
                        }
                        _ => device.cancel(lane),
                    }
                }
            })
        });
        join(threads);
        device.end();
    });
}
