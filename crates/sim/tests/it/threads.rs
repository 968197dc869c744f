//! Threads that change the same objects: the intent log must have their changes in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_io::record::{Image, RecordDevice, RecordOptions};
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool, Result};
use forebay_sim::compare;
use forebay_sim::fixture::{self, MIB};
use forebay_sim::model::Model;

const DEVICE_BYTES: u64 = 48 * MIB;
const THREADS: u64 = 3;

/// A thread's operation on the pool and its dataset, with a random generator.
type Work<'a> = &'a (dyn Fn(&Pool, &Dataset, &mut SmallRng) -> Result<()> + Sync);

/// Ignores errors that are due to other threads.
fn tolerate(result: Result<()>) {
    if let Err(error) = result {
        let expected = [ErrorKind::Exists, ErrorKind::NotFound, ErrorKind::Closed];
        assert!(expected.contains(&error.kind()), "{error:?}");
    }
}

/// A pool on a recorded device. Its image is what certainly survives a crash.
struct Recorded {
    device: Arc<RecordDevice>,
    pool: Pool,
}

impl Recorded {
    fn new() -> Self {
        let memory = fixture::memory("a", DEVICE_BYTES, 512);
        let options = RecordOptions { max_bytes: 1 << 30, base: None };
        let device = Arc::new(RecordDevice::new(memory, options));
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let settings = DatasetSettings { record_bytes: 4096, ..DatasetSettings::default() };
        let pool =
            fixture::create(&[shared], &fixture::cache(24 * MIB), &settings).expect("a pool");
        Self { device, pool }
    }

    fn image(&self) -> Image {
        let recording = self.device.recording();
        recording.at(recording.len()).at_least()
    }
}

/// Imports an image, checks it, and reads objects up to `numbers`.
fn read_image(image: &Image, numbers: u64) -> Model {
    let device = fixture::memory("a", DEVICE_BYTES, 512);
    let config = ArenaConfig { limit_bytes: 16 * MIB, huge_pages: HugePages::Never };
    image.write_to(&*device, &Arena::new(config).expect("an arena")).expect("an image");
    let options = fixture::import_options(&fixture::cache(24 * MIB));
    let pool = fixture::import(&[device], &options).expect("the import");
    fixture::check(&pool).unwrap_or_else(|problems| panic!("{problems}"));
    read(&pool, numbers)
}

fn read(pool: &Pool, numbers: u64) -> Model {
    let datasets = fixture::datasets(pool).expect("datasets");
    compare::read_all(&datasets, (0..numbers).map(|number| (0, number))).expect("all is read")
}

/// Runs threads, fsyncs everything, and compares a crash image with the live pool.
fn race(numbers: u64, prepare: impl Fn(&Pool, &Dataset), work: Work<'_>) {
    let times = if fixture::full() { 10 } else { 1 };
    let seed = forebay_base::testing::seed(1);
    for round in 0..10 * times {
        let recorded = Recorded::new();
        let data = recorded.pool.dataset("one").expect("a dataset");
        prepare(&recorded.pool, &data);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, data) = (&recorded.pool, &data);
                scope.spawn(move || {
                    let mut rng = SmallRng::from_seed(seed.wrapping_add(round * 100 + thread));
                    for _ in 0..600 {
                        tolerate(work(pool, data, &mut rng));
                    }
                });
            }
        });
        // An image from the middle of the work, up to the last fsync.
        read_image(&recorded.image(), numbers);
        let live = read(&recorded.pool, numbers);
        for key in live.entries.keys() {
            data.fsync(key.1).expect("an fsync");
        }
        let found = read_image(&recorded.image(), numbers);
        if let Some(difference) = compare::difference(&found, &live) {
            panic!("round {round}, FOREBAY_SEED={seed}: after the crash:\n{difference}");
        }
    }
}

#[test]
fn names_that_threads_fight_for_are_replayed_as_it_happened() {
    let prepare = |pool: &Pool, data: &Dataset| {
        let tx = pool.begin().expect("a transaction");
        assert_eq!(data.create_directory(&tx, &[]).expect("a directory") % 1024, 1);
    };
    race(3, prepare, &|pool, data, rng| {
        let directory = data.directory(1)?;
        let name = [b'a' + rng.below(3) as u8];
        if rng.below(20) == 0 {
            return directory.fsync();
        }
        let tx = pool.begin()?;
        match rng.below(3) {
            0 => directory.insert(&tx, &name, &rng.next_u64().to_le_bytes()),
            1 => directory.update(&tx, &name, &rng.next_u64().to_le_bytes()).map(|_| ()),
            _ => directory.remove(&tx, &name).map(|_| ()),
        }
    });
}

#[test]
fn bytes_that_threads_fight_for_are_replayed_as_it_happened() {
    let prepare = |pool: &Pool, data: &Dataset| {
        let tx = pool.begin().expect("a transaction");
        data.create_object(&tx, &[]).expect("an object");
    };
    race(3, prepare, &|pool, data, rng| {
        let object = data.object(1)?;
        match rng.below(20) {
            0 => return object.fsync(),
            1 => return pool.sync(),
            _ => {}
        }
        let tx = pool.begin()?;
        let offset = rng.below(20_000);
        match rng.below(5) {
            0 => object.truncate(&tx, offset),
            1 => object.punch(&tx, offset, 5000),
            2 => data.set_attributes(&tx, 1, &[rng.below(256) as u8; 50]),
            _ => object.write(&tx, offset, &[rng.below(256) as u8; 3000]),
        }
    });
}

#[test]
fn objects_that_threads_create_and_destroy_are_replayed_as_it_happened() {
    // All threads use the object that was created last.
    let newest = AtomicU64::new(1);
    race(800, |_, _| newest.store(1, Ordering::Relaxed), &|pool, data, rng| {
        let number = newest.load(Ordering::Relaxed);
        match rng.below(20) {
            0 => return data.fsync(number),
            1 => return pool.sync(),
            _ => {}
        }
        let tx = pool.begin()?;
        match rng.below(5) {
            0 => {
                let number = match rng.below(2) {
                    0 => data.create_object(&tx, &[1; 9])?,
                    _ => data.create_directory(&tx, &[2; 9])?,
                };
                newest.store(number, Ordering::Relaxed);
                Ok(())
            }
            1 => data.destroy(&tx, number),
            2 => data.set_attributes(&tx, number, &[rng.below(9) as u8; 20]),
            3 => match data.directory(number) {
                Ok(directory) => directory.update(&tx, b"name", &[rng.below(9) as u8]).map(|_| ()),
                Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
                Err(error) => Err(error),
            },
            _ => match data.object(number) {
                Ok(object) => object.write(&tx, rng.below(9000), &[3; 2000]),
                Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
                Err(error) => Err(error),
            },
        }
    });
}

#[test]
fn a_number_that_is_used_again_is_another_object() {
    let recorded = Recorded::new();
    let data = recorded.pool.dataset("one").expect("a dataset");
    for synced in [false, true] {
        let tx = recorded.pool.begin().expect("a transaction");
        let number = data.create_directory(&tx, &[]).expect("a directory");
        let old = data.directory(number).expect("it");
        old.insert(&tx, b"old", b"1").expect("an insert");
        let bytes = data.create_object(&tx, &[]).expect("an object");
        let old_bytes = data.object(bytes).expect("it");
        old_bytes.write(&tx, 0, b"old").expect("a write");
        drop(tx);
        if synced {
            recorded.pool.sync().expect("a commit");
        }
        let tx = recorded.pool.begin().expect("a transaction");
        data.destroy(&tx, number).expect("a destroy");
        data.destroy(&tx, bytes).expect("a destroy");
        drop(tx);
        if synced {
            recorded.pool.sync().expect("a commit");
        }
        let tx = recorded.pool.begin().expect("a transaction");
        for _ in 0..200 {
            let again = data.create_directory(&tx, &[]).expect("a directory");
            let new = data.directory(again).expect("it");
            assert!(new.is_empty(), "{again}, synced: {synced}");
            new.insert(&tx, b"new", b"2").expect("an insert");
            let again = data.create_object(&tx, &[]).expect("an object");
            assert_eq!(data.object(again).expect("it").size(), 0, "{again}, synced: {synced}");
        }
        old.insert(&tx, b"more", b"3").expect_err("it was destroyed");
        assert_eq!(old_bytes.write(&tx, 0, b"x").expect_err("too").kind(), ErrorKind::Closed);
    }
    fixture::check(&recorded.pool).unwrap_or_else(|problems| panic!("{problems}"));
}
