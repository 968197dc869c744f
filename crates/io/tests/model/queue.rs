//! Permits shared by several queues: limits hold, no permit and no wake-up is lost, and no queue
//! waits for ever.
//!
//! A queue here is what an engine makes of it: credits and a count of requests, under a lock.
//! Threads submit to it, end operations in flight, and run each queue that they are told to run.

use std::sync::atomic::{AtomicI64, Ordering};

use forebay_base::sync::{Arc, Mutex};
use forebay_io::Priority;
use forebay_io::model::{Limits, Permits, QueueCredits, QueuesToRun};

use forebay_base::model::{below, check, join, spawn};

struct Queue {
    credits: QueueCredits,
    waiting: [u32; 5],
    /// Operations in flight, by class.
    in_flight: Vec<Priority>,
    /// Operations that this queue can execute at once, whatever the permits.
    workers: usize,
}

struct Device {
    permits: Permits,
    queues: Vec<Mutex<Queue>>,
    /// Operations in flight by class, as an observer sees them. Not part of the checked code.
    seen: [AtomicI64; 5],
}

impl Device {
    fn new(min: [u32; 5], max: [u32; 5], total: u32, queues: usize) -> Arc<Self> {
        Self::with_workers(min, max, total, queues, usize::MAX)
    }

    /// With queues that cannot always run until there is no permit.
    fn with_workers(
        min: [u32; 5],
        max: [u32; 5],
        total: u32,
        queues: usize,
        workers: usize,
    ) -> Arc<Self> {
        let limits = Limits { min, max, total, batch: 2 };
        let queue = |index| {
            let credits = QueueCredits::new(index);
            Queue { credits, waiting: [0; 5], in_flight: Vec::new(), workers }
        };
        Arc::new(Self {
            permits: Permits::new(limits, queues),
            queues: (0..queues).map(|at| Mutex::named("test-queue", queue(at))).collect(),
            seen: Default::default(),
        })
    }

    /// Runs `queue` after `change`, and then the queues that must be run.
    fn step(&self, queue: usize, change: impl FnOnce(&Self, &mut Queue)) {
        let mut due: Vec<QueuesToRun> = vec![self.step_of(queue, change)];
        while let Some(to_run) = due.pop() {
            due.extend(to_run.map(|queue| self.step_of(queue, |_, _| {})));
        }
    }

    fn step_of(&self, queue: usize, change: impl FnOnce(&Self, &mut Queue)) -> QueuesToRun {
        let mut queue = self.queues[queue].lock();
        change(self, &mut queue);
        loop {
            if queue.in_flight.len() >= queue.workers {
                self.permits.release_unused(&mut queue.credits);
                break;
            }
            let waiting = (0..5).filter(|class| queue.waiting[*class] > 0);
            let waiting = waiting.map(|class| 1 << class).sum();
            let Some(class) = self.permits.admit(&mut queue.credits, waiting) else { break };
            queue.waiting[class.index()] -= 1;
            queue.in_flight.push(class);
            let now = self.seen[class.index()].fetch_add(1, Ordering::Relaxed) + 1;
            assert!(now <= i64::from(self.permits.limits().max[class.index()]), "{class}");
            let all: i64 = self.seen.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
            assert!(all <= i64::from(self.permits.limits().total), "{all} in flight");
        }
        queue.credits.take_queues_to_run()
    }

    fn submit(&self, queue: usize, class: Priority) {
        self.step(queue, |_, queue| queue.waiting[class.index()] += 1);
    }

    /// Ends one operation of `queue`, if it has one in flight. Returns whether it had.
    fn end_one(&self, queue: usize) -> bool {
        let mut had = false;
        self.step(queue, |device, queue| {
            let count = queue.in_flight.len() as u64;
            if count == 0 {
                return;
            }
            had = true;
            let class = queue.in_flight.swap_remove(below(count) as usize);
            device.seen[class.index()].fetch_sub(1, Ordering::Relaxed);
            device.permits.end(&mut queue.credits, class);
        });
        had
    }

    /// Cancels all waiting requests of `queue`.
    fn cancel(&self, queue: usize) {
        self.step(queue, |_, queue| queue.waiting = [0; 5]);
    }

    /// Ends operations until none is in flight. Then no request may wait.
    fn end(self: Arc<Self>) {
        let queues = self.queues.len();
        while (0..queues).any(|queue| self.end_one(queue)) {}
        let device = Arc::into_inner(self).expect("all threads have ended");
        let queues: Vec<Queue> = device.queues.into_iter().map(Mutex::into_inner).collect();
        for (index, queue) in queues.iter().enumerate() {
            assert_eq!(queue.waiting, [0; 5], "queue {index} was not run");
        }
        device.permits.audit(&queues.iter().map(|queue| &queue.credits).collect::<Vec<_>>());
    }
}

const READ: Priority = Priority::SyncRead;
const SCRUB: Priority = Priority::Scrub;

/// Two queues and one permit of the class: each passes it to the other.
#[test]
fn two_queues_pass_one_permit_back_and_forth() {
    check(8000, || {
        let device = Device::new([1; 5], [1; 5], 5, 2);
        let threads = [0, 1].map(|queue| {
            let device = Arc::clone(&device);
            spawn(move || {
                for _ in 0..2 {
                    device.submit(queue, READ);
                    device.end_one(queue);
                }
            })
        });
        join(threads);
        device.end();
    });
}

/// Operations end while other queues submit, in two classes that share unreserved permits.
#[test]
fn shared_permits_reach_the_waiting_queue() {
    check(8000, || {
        let device = Device::new([1; 5], [3, 1, 1, 1, 2], 6, 2);
        let threads = [(0, READ), (1, SCRUB)].map(|(queue, class)| {
            let device = Arc::clone(&device);
            spawn(move || {
                for other in [class, READ, class] {
                    device.submit(queue, other);
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

/// Spares are taken from a queue while it stops.
#[test]
fn an_idle_queue_blocks_no_other() {
    check(8000, || {
        let device = Device::new([2, 1, 1, 1, 1], [4, 1, 1, 1, 1], 8, 2);
        let stopping = Arc::clone(&device);
        let stops = spawn(move || {
            stopping.submit(0, READ);
            stopping.end_one(0);
        });
        let busy = Arc::clone(&device);
        let works = spawn(move || (0..4).for_each(|_| busy.submit(1, READ)));
        join([stops, works]);
        // Nothing else is in flight, so it must have got its share at least.
        assert!(device.queues[1].lock().in_flight.len() >= 2);
        device.end();
    });
}

/// A queue may have no use any more for a granted permit.
#[test]
fn a_cancelled_waiter_passes_its_permit_on() {
    check(8000, || {
        let device = Device::new([1; 5], [1; 5], 5, 3);
        device.submit(0, READ);
        let submit = |queue, cancels| {
            let device = Arc::clone(&device);
            spawn(move || {
                device.submit(queue, READ);
                if cancels {
                    device.cancel(queue);
                }
            })
        };
        let waits = [submit(1, true), submit(2, false)];
        let ending = Arc::clone(&device);
        let ends = spawn(move || {
            ending.end_one(0);
        });
        join(waits.into_iter().chain([ends]));
        device.end();
    });
}

/// Three queues, everything at once.
#[test]
fn random_operations_on_three_queues() {
    check(6000, || {
        let device = Device::new([1; 5], [2, 1, 2, 1, 1], 6, 3);
        let threads = [0, 1, 2].map(|queue| {
            let device = Arc::clone(&device);
            spawn(move || {
                for _ in 0..3 {
                    match below(5) {
                        0 | 1 => device.submit(queue, READ),
                        2 => device.submit(queue, Priority::AsyncRead),
                        3 => {
                            device.end_one(below(3) as usize);
                        }
                        _ => device.cancel(queue),
                    }
                }
            })
        });
        join(threads);
        device.end();
    });
}

/// One worker per queue: a queue without a free worker returns its granted permits, and registers
/// again later.
#[test]
fn queues_without_a_free_worker_hold_no_permits() {
    check(8000, || {
        let device = Device::with_workers([1; 5], [2, 1, 2, 1, 1], 6, 2, 1);
        let threads = [0, 1].map(|queue| {
            let device = Arc::clone(&device);
            spawn(move || {
                for _ in 0..4 {
                    match below(6) {
                        0 | 1 => device.submit(queue, READ),
                        2 => device.submit(queue, Priority::AsyncRead),
                        3 => device.submit(queue, SCRUB),
                        4 => {
                            device.end_one(below(2) as usize);
                        }
                        _ => device.cancel(queue),
                    }
                }
            })
        });
        join(threads);
        device.end();
    });
}
