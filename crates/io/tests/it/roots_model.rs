//! Sets of roots against a reference model: plain counts of requests in flight by generation.
//!
//! Steps run one at a time, on threads with different roots, while a drain may wait on another
//! thread. After each step the set and the model must agree. A drain must have returned if and only
//! if the model's old generation is empty.

use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use forebay_base::rng::SmallRng;
use forebay_io::{Drained, ErrorKind, Request, Roots};
use proptest::prelude::*;

use crate::double::{Double, fail};
use crate::roots::{drain_on_another_thread, kept, set};

/// Depth of requests that submit others.
const DEPTH: u32 = 3;

/// The expected state of the set.
#[derive(Default)]
struct Model {
    generation: usize,
    /// In flight, failed and panicked, by generation.
    in_flight: Vec<u64>,
    failed: Vec<u64>,
    panicked: Vec<u64>,
    closed: bool,
    refused: u64,
    /// By request: number of cancels before its submission.
    submitted: Vec<u64>,
    cancels: u64,
    /// By request: how often it completed.
    told: Vec<u32>,
}

impl Model {
    fn begin_generation(&mut self) {
        self.in_flight.push(0);
        self.failed.push(0);
        self.panicked.push(0);
    }
}

struct World {
    seed: u64,
    device: Arc<Double>,
    roots: Arc<Roots>,
    model: Mutex<Model>,
}

impl World {
    /// Submits a request, as a child if it has a `parent` of that generation, and updates the
    /// model.
    fn submit(self: &Arc<Self>, parent: Option<usize>, depth: u32) {
        let mut model = self.model.lock().unwrap();
        let id = model.told.len();
        let cancels = model.cancels;
        model.told.push(0);
        model.submitted.push(cancels);
        let refused = model.closed && parent.is_none();
        let generation = parent.unwrap_or(model.generation);
        if refused {
            model.refused += 1;
        } else {
            model.in_flight[generation] += 1;
        }
        drop(model);
        let mut rng = SmallRng::from_seed(self.seed ^ id as u64);
        // The double completes a flush at once.
        let request = if rng.below(3) == 0 { Request::flush() } else { kept(id as u64) };
        let world = self.clone();
        self.roots.submit(request.on_done(move |completion| {
            world.model.lock().unwrap().told[id] += 1;
            let error = completion.result.map_err(|error| error.kind()).err();
            if error == Some(ErrorKind::Closed) {
                return;
            }
            let children = if depth < DEPTH { rng.below(3) } else { 0 };
            (0..children).for_each(|_| world.submit(Some(generation), depth + 1));
            let panics = rng.below(8) == 0;
            let mut model = world.model.lock().unwrap();
            model.in_flight[generation] -= 1;
            model.failed[generation] += u64::from(error.is_some());
            model.panicked[generation] += u64::from(panics);
            drop(model);
            assert!(!panics, "on purpose");
        }));
    }

    /// Completes a pending request, with success or an error.
    fn finish(&self, choice: u64) {
        let waiting = self.device.len() as u64;
        if waiting == 0 {
            return;
        }
        let request = self.device.take((choice / 4 % waiting) as usize).expect("it waits");
        let cancelled = {
            let model = self.model.lock().unwrap();
            model.submitted[request.offset() as usize] < model.cancels
        };
        assert_eq!(request.is_cancelled(), cancelled);
        match choice % 4 {
            0 | 1 => request.finish(Ok(())),
            2 => fail(request, ErrorKind::Device),
            _ => drop(request),
        }
    }

    fn agrees(&self) {
        let model = self.model.lock().unwrap();
        let stats = self.roots.stats();
        assert_eq!(stats.total_in_flight(), model.in_flight.iter().sum::<u64>());
        assert_eq!(stats.failed, model.failed.iter().sum::<u64>());
        assert_eq!(stats.panics, model.panicked.iter().sum::<u64>());
        assert_eq!((stats.refused, stats.closed), (model.refused, model.closed));
        assert_eq!(stats.drains, model.generation as u64);
    }
}

/// A drain that waits on another thread.
struct Draining {
    thread: JoinHandle<Drained>,
    generation: usize,
    waits_for: u64,
}

impl Draining {
    fn begin(world: &World) -> Self {
        let thread = drain_on_another_thread(&world.roots);
        let mut model = world.model.lock().unwrap();
        let generation = model.generation;
        model.generation += 1;
        model.begin_generation();
        Self { thread, generation, waits_for: model.in_flight[generation] }
    }

    /// Checks that it still waits, or that it returned the model's result.
    fn check(self, world: &World) -> Option<Self> {
        let model = world.model.lock().unwrap();
        if model.in_flight[self.generation] > 0 {
            assert!(!self.thread.is_finished(), "a drain returned too soon");
            drop(model);
            return Some(self);
        }
        let drained = self.thread.join().unwrap();
        assert_eq!(drained.waited_for, self.waits_for);
        assert_eq!(drained.failures.total(), model.failed[self.generation]);
        assert_eq!(drained.failures.panics(), model.panicked[self.generation]);
        None
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run one job at a time in turn.
struct Workers(Vec<(mpsc::SyncSender<Job>, mpsc::Receiver<()>)>);

impl Workers {
    fn new(count: usize) -> Self {
        let worker = |_| {
            let (give, jobs) = mpsc::sync_channel::<Job>(1);
            let (done, ended) = mpsc::sync_channel(1);
            thread::spawn(move || {
                for job in jobs {
                    job();
                    if done.send(()).is_err() {
                        return;
                    }
                }
            });
            (give, ended)
        };
        Self((0..count).map(worker).collect())
    }

    fn run(&self, nth: usize, job: impl FnOnce() + Send + 'static) {
        let (give, ended) = &self.0[nth % self.0.len()];
        give.send(Box::new(job)).expect("a worker lives as long as its sender");
        ended.recv().expect("a worker failed, see above");
    }
}

/// Replays `steps`: action, worker, and a random choice.
fn replay(seed: u64, roots: usize, steps: Vec<(u8, usize, u64)>) {
    let device = Double::new();
    let roots = set(&device, roots);
    let world = Arc::new(World { seed, device, roots, model: Mutex::new(Model::default()) });
    world.model.lock().unwrap().begin_generation();
    let workers = Workers::new(3);
    let mut draining: Option<Draining> = None;
    for (step, worker, choice) in steps {
        let theirs = world.clone();
        match step {
            0..8 => workers.run(worker, move || theirs.submit(None, 0)),
            8..17 => workers.run(worker, move || theirs.finish(choice)),
            17..19 if draining.is_none() => draining = Some(Draining::begin(&world)),
            19 => {
                world.roots.cancel();
                world.model.lock().unwrap().cancels += 1;
            }
            20 if choice % 4 == 0 => {
                world.roots.close();
                world.model.lock().unwrap().closed = true;
            }
            _ => {}
        }
        draining = draining.and_then(|draining| draining.check(&world));
        world.agrees();
    }
    while world.device.len() > 0 {
        let theirs = world.clone();
        workers.run(0, move || theirs.finish(0));
        draining = draining.and_then(|draining| draining.check(&world));
    }
    assert!(draining.is_none_or(|draining| draining.check(&world).is_none()));
    assert!(Draining::begin(&world).check(&world).is_none());
    world.agrees();
    assert_eq!(world.roots.stats().total_in_flight(), 0);
    assert!(world.model.lock().unwrap().told.iter().all(|told| *told == 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_set_behaves_like_its_model(
        seed in any::<u64>(),
        roots in 1..4usize,
        steps in prop::collection::vec((0..21u8, 0..3usize, any::<u64>()), 1..120),
    ) {
        replay(seed, roots, steps);
    }
}
