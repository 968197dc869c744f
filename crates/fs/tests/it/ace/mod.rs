//! Bounded exhaustive crash tests, in the manner of ACE (Mohan et al., Finding Crash-Consistency
//! Bugs with Bounded Black-Box Crash Testing, OSDI 2018).
//!
//! A workload is a sequence of operations over two files and two directories, each followed by
//! nothing, an `fsync`, an `fdatasync` or a transaction group. It runs on a recorded device. Every
//! crash from its last persistence point on is imported, checked, and compared with what
//! `docs/durability.md` promises ([`oracle`]).
//!
//! - All workloads of one operation run in each test, also with files whose content is not durable;
//!   of two operations a sample, or all within [`LIMIT`] in a long run; of up to [`LONGEST`]
//!   operations random ones.
//! - Of two workloads that differ only by the exchange of the files and directories, one runs.
//! - `FOREBAY_WORKLOAD="create A/new; fsync A"` runs one. A failure prints the shortest workload
//!   that fails too.

mod device;
mod found;
mod generate;
mod images;
mod oracle;
mod run;
mod search;
mod step;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::{ManualClock, ManualWallClock};
use forebay_base::rng::SmallRng;
use forebay_base::testing;
use forebay_fs::{FileKind, FileSystem, FsOptions, XattrMode};
use forebay_io::Device;
use forebay_io::record::Image;
use forebay_pool::{BlockCache, HostId, ImportOptions, Pool};

use crate::common::{Fixture, MIB, ROOT, file, mkdir, unmount, write};
use crate::model::Model;
use device::ImageDevice;
use generate::Pairs;
use images::Bounds;
use search::{Search, Thoroughness};
use step::{Step, Verb, Workload};

/// Size of the device, in bytes.
const DEVICE_BYTES: u64 = 32 * MIB;
/// Longest duration of the workloads of two operations in a long run.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// Largest number of operations of a random workload.
const LONGEST: u64 = 12;

/// Number of workloads of two operations, except in a long run.
const PAIRS: usize = 400;
/// Number of random workloads; a long run has more.
const WALKS: usize = 100;

/// The state before each workload, and what an import needs.
struct Medium {
    initial: Image,
    model: Model,
    cache: Arc<BlockCache>,
}

impl Medium {
    /// Directories `A` and `B`, each with a file and an empty directory.
    fn new() -> Self {
        let config = ArenaConfig { limit_bytes: 16 * MIB, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("memory for images");
        let fixture = Fixture::on(crate::common::emulating_disk(DEVICE_BYTES));
        let fs = fixture.mount();
        let mut model = Model::new();
        for (at, (dir, name)) in [(b"A", b"foo"), (b"B", b"bar")].into_iter().enumerate() {
            let ino = mkdir(&fs, ROOT, dir);
            let node = model.make(0, dir, FileKind::Directory, 0o755, b"").expect("a directory");
            mkdir(&fs, ino, b"dir");
            model.make(node, b"dir", FileKind::Directory, 0o755, b"").expect("a directory");
            let content = step::data(100 + at, 10_000);
            let (ino, handle) = file(&fs, ino, name);
            write(&fs, ino, 0, &content);
            fs.release(handle);
            let node = model.make(node, name, FileKind::File, 0o644, &content).expect("a file");
            fs.setxattr(ino, b"user.x", b"old", XattrMode::Create).expect("an attribute");
            model.set_xattr(node, b"user.x", b"old", XattrMode::Create).expect("an attribute");
        }
        unmount(fs);
        let initial = Image::of(&*fixture.device, &arena).expect("an image");
        Self { initial, model, cache: Arc::clone(&fixture.cache) }
    }

    /// A device with this content.
    fn device(image: &Image) -> Arc<dyn Device> {
        Arc::new(ImageDevice::new(image))
    }

    fn mount(&self, device: Arc<dyn Device>) -> FileSystem {
        self.mount_with(device, false, &[])
    }

    fn mount_with(
        &self,
        device: Arc<dyn Device>,
        read_only: bool,
        tunables: &[(&str, &str)],
    ) -> FileSystem {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let options = ImportOptions {
            host: HostId { id: 1, name: "test".to_owned() },
            seed: Some(7),
            // Stopped: no group commits because time passed.
            clock: Some(Arc::new(ManualClock::new())),
            read_only,
            tunables: tunables.iter().map(owned).collect(),
            ..ImportOptions::new(Arc::clone(&self.cache))
        };
        let pool = Pool::import(vec![device.into()], &options).expect("the pool");
        let clock = ManualWallClock::new(1_000_000_007);
        // Later than the system's clock, which the initial state has.
        clock.advance(4_000_000_000_000_000_000);
        let options = FsOptions { clock: Arc::new(clock), ..FsOptions::default() };
        FileSystem::open_in(Arc::new(pool), "files", &options).expect("the file system")
    }

    /// Ends a file system, without an export.
    fn unmount(fs: FileSystem) {
        // Ends its threads.
        fs.close().expect("closes");
        let pool = Arc::clone(fs.pool());
        drop(fs);
        Arc::into_inner(pool).expect("the last reference").abandon();
    }
}

/// Every crash at every write.
const ALL: Thoroughness = Thoroughness {
    bounds: Bounds { cuts: 64, samples: 4 },
    crashes_max: usize::MAX,
    from_start: false,
    check_every: 4,
    both: true,
};
/// The crashes around persistence points, and a sample of others.
const SOME: Thoroughness = Thoroughness {
    bounds: Bounds { cuts: 3, samples: 1 },
    crashes_max: 8,
    from_start: false,
    check_every: 4,
    both: false,
};
/// A sample of the crashes from the start on.
const ANYWHERE: Thoroughness =
    Thoroughness { crashes_max: 16, from_start: true, check_every: 2, ..SOME };

/// Runs the workload that `FOREBAY_WORKLOAD` has, if any.
fn run_requested() -> bool {
    let Ok(text) = std::env::var("FOREBAY_WORKLOAD") else { return false };
    let workload: Workload = text.parse().expect("FOREBAY_WORKLOAD has steps");
    let thoroughness = Thoroughness { from_start: true, ..ALL };
    let search = Search::new(testing::seed(1), thoroughness);
    search.run(1, |_, _| workload.clone());
    search.report("requested workload");
    true
}

/// All workloads of one operation, after these steps.
fn workloads_of_one(model: &Model, before: &[Step]) -> Vec<Workload> {
    let steps = before.iter().enumerate();
    let state = steps.fold(model.clone(), |state, (at, step)| step::state_after(step, at, &state));
    let mut workloads = Vec::new();
    for step in generate::operations(&state, before.len(), false) {
        let after = step::state_after(&step, before.len(), &state);
        for point in generate::persistence(&step, &after) {
            let steps = before.iter().cloned().chain([step.clone()]).chain(point);
            workloads.push(Workload(steps.collect()));
        }
    }
    // A group that only begins is at the end like any other.
    workloads.retain(|workload| workload.0.last().is_none_or(|at| at.verb != Verb::CommitBegin));
    workloads
}

#[test]
fn one_operation_keeps_its_promises() {
    if run_requested() {
        return;
    }
    let search = Search::new(testing::seed(1), ALL);
    let workloads = workloads_of_one(&search.medium.model, &[]);
    search.run(workloads.len(), |at, _| workloads[at].clone());
    search.report("all workloads of one operation");
}

#[test]
fn one_operation_after_writes_keeps_its_promises() {
    let search = Search::new(testing::seed(1), SOME);
    let model = &search.medium.model;
    let write = |path| Step::new(Verb::Write, &[path]);
    let before = [write("A/foo"), write("B/bar"), Step::new(Verb::CommitBegin, &[])];
    let mut workloads = workloads_of_one(model, &before[..2]);
    workloads.extend(workloads_of_one(model, &before));
    search.run(workloads.len(), |at, _| workloads[at].clone());
    search.report("all workloads of one operation after a write to each file");
}

#[test]
fn two_operations_keep_their_promises() {
    let mut search = Search::new(testing::seed(2), SOME);
    search.limit = LIMIT;
    let mut pairs = Pairs::new(&search.medium.model);
    pairs.shuffle(&mut SmallRng::from_seed(search.seed));
    let (count, total) = match testing::full() {
        true => (pairs.len(), pairs.len()),
        false => (PAIRS, pairs.len()),
    };
    search.run(count, |at, _| pairs.get(at));
    search.report(&format!("of {total} workloads of two operations"));
}

#[test]
fn up_to_twelve_operations_keep_their_promises() {
    let search = Search::new(testing::seed(3), ANYWHERE);
    let count = if testing::full() { 50 * WALKS } else { WALKS };
    let model = &search.medium.model;
    search.run(count, |_, rng| {
        let operations = 3 + rng.below(LONGEST - 2) as usize;
        generate::walk(model, operations, rng)
    });
    search.report("random workloads");
}
