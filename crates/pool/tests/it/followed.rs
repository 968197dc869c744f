//! What the imports of a followed pool share.

use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::format::{CacheMode, Compression};
use forebay_pool::{BlockCache, CreateOptions, DatasetSettings, FollowedPool, ImportOptions, Pool};

use crate::common::{MIB, cache, copy_of, create, create_options, import, import_options, memory};

/// A pool that is written, and one that follows it in another cache.
pub(crate) struct Followed {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) writer: Pool,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) shared: FollowedPool,
}

pub(crate) const BYTES: usize = 512 << 10;

impl Followed {
    pub(crate) fn new() -> Self {
        let device = memory(64 * MIB);
        let writer = create(&device, &cache(16 * MIB));
        Self::of(device, writer).with_data()
    }

    fn with_data(self) -> Self {
        self.put("data", 1);
        self
    }

    /// As [`new`](Self::new), of another pool: its seed gives it another guid.
    pub(crate) fn another(seed: u64) -> Self {
        let device = memory(64 * MIB);
        let options = CreateOptions { seed: Some(seed), ..create_options(&cache(16 * MIB)) };
        let writer = Pool::create(vec![Arc::clone(&device).into()], &options).expect("a pool");
        Self::of(device, writer).with_data()
    }

    pub(crate) fn of(device: Arc<dyn Device>, writer: Pool) -> Self {
        Self { device, writer, cache: cache(16 * MIB), shared: FollowedPool::new() }
    }

    /// Writes the object of a dataset, and makes that durable.
    pub(crate) fn put(&self, name: &str, content: u8) {
        let data = self.writer.dataset(name).unwrap_or_else(|_| dataset_of(&self.writer, name));
        let tx = self.writer.begin().expect("a transaction");
        let number = match data.root_object() {
            0 => {
                let number = data.create_object(&tx, &[]).expect("an object");
                data.set_root(&tx, number, 1).expect("a root");
                number
            }
            number => number,
        };
        let object = data.object(number).expect("the object");
        object.write(&tx, 0, &vec![content; BYTES]).expect("a write");
        drop(tx);
        self.writer.sync().expect("a commit");
    }

    /// Imports what is durable now.
    pub(crate) fn group(&self) -> Pool {
        let options = ImportOptions {
            read_only: true,
            pause: Some(Arc::new(|_| ())),
            followed: Some(self.shared.clone()),
            ..import_options(&self.cache)
        };
        Pool::import(vec![copy_of(&self.device).into()], &options).expect("the pool")
    }
}

fn dataset_of(pool: &Pool, name: &str) -> forebay_pool::Dataset {
    // What is read is as large as what was written.
    let settings =
        DatasetSettings { data_compression: Compression::Off, ..DatasetSettings::default() };
    pool.create_dataset(name, &settings).expect("a dataset")
}

/// The first byte of a dataset's object. All of it is read.
pub(crate) fn get(pool: &Pool, name: &str) -> u8 {
    let data = pool.dataset(name).expect("the dataset");
    let object = data.object(data.root_object()).expect("the object");
    let mut found = vec![0; BYTES];
    assert_eq!(object.read(0, &mut found).expect("a read"), BYTES);
    assert!(found.iter().all(|byte| *byte == found[0]), "a mixture");
    found[0]
}

/// The sum of a counter over its labels.
pub(crate) fn counter(pool: &Pool, name: &str) -> u64 {
    let all = pool.stats().counters;
    all.iter().filter(|(is, ..)| *is == name).map(|(.., value)| value).sum()
}

#[test]
fn counters_go_on_from_group_to_group() {
    let followed = Followed::new();
    let first = followed.group();
    assert_eq!(get(&first, "data"), 1);
    let names = ["reads", "read_bytes", "started", "issued"];
    let before = names.map(|name| counter(&first, name));
    assert!(before[0] > 0 && before[1] >= BYTES as u64, "{before:?}");
    followed.put("data", 2);
    let second = followed.group();
    let now = names.map(|name| counter(&second, name));
    assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{before:?}, then {now:?}");
    // The one that is still in use counts there, too.
    let _ = followed.cache.cache().clear();
    assert_eq!(get(&first, "data"), 1);
    assert!(counter(&second, "read_bytes") >= now[1] + BYTES as u64);
}

#[test]
fn a_block_that_one_group_has_read_is_a_hit_for_the_next() {
    let followed = Followed::new();
    followed.put("other", 9);
    let first = followed.group();
    assert_eq!((get(&first, "data"), get(&first, "other")), (1, 9));
    followed.put("data", 2);
    // Also if no import is alive for a moment.
    drop(first);
    let second = followed.group();
    let before = counter(&second, "read_bytes");
    assert_eq!(get(&second, "other"), 9);
    let read = counter(&second, "read_bytes") - before;
    assert!(read < BYTES as u64 / 4, "{read} bytes were read again");
    assert_eq!(get(&second, "data"), 2);
}

#[test]
fn groups_that_are_in_use_together_keep_their_content() {
    let followed = Followed::new();
    let first = followed.group();
    followed.put("data", 2);
    let second = followed.group();
    for _ in 0..2 {
        assert_eq!((get(&first, "data"), get(&second, "data")), (1, 2));
        let _ = followed.cache.cache().clear();
    }
    first.export().expect("nothing to write");
    assert_eq!(get(&second, "data"), 2);
}

#[test]
fn settings_are_those_of_the_newest_group() {
    let followed = Followed::new();
    let first = followed.group();
    assert_eq!(get(&first, "data"), 1);
    let data = followed.writer.dataset("data").expect("the dataset");
    let settings = data.settings().expect("settings");
    data.set_settings(&DatasetSettings { cache: CacheMode::None, ..settings }).expect("a commit");
    followed.put("data", 2);
    let second = followed.group();
    assert_eq!(get(&second, "data"), 2);
    let before = counter(&second, "read_bytes");
    assert_eq!(get(&second, "data"), 2);
    assert!(counter(&second, "read_bytes") - before >= BYTES as u64, "it was cached");
}

/// Without space maps, which are those of the writer: the root block has the sum.
#[test]
fn a_followed_pool_knows_how_much_is_allocated() {
    let followed = Followed::new();
    let allocated = |pool: &Pool| pool.usage().allocated_bytes;
    for content in 1..4 {
        followed.put(&format!("data{content}"), content);
        let group = followed.group();
        assert_eq!(allocated(&group), allocated(&followed.writer));
        assert!(allocated(&group) >= u64::from(content) * BYTES as u64);
        group.export().expect("an export");
    }
}

/// The pool is set back to a copy of before while it is followed, and other content gets the same
/// addresses in transaction groups of the same numbers.
#[test]
fn a_pool_that_was_set_back_shows_nothing_of_what_was_cached_before() {
    let Followed { device, .. } = Followed::new();
    let [one, other] = [copy_of(&device), copy_of(&device)];
    let one = Followed::of(Arc::clone(&one), import(&one, &cache(16 * MIB)));
    one.put("data", 2);
    one.shared.note_state(1, |_| panic!("it is the first one"));
    let first = one.group();
    assert_eq!(get(&first, "data"), 2);

    let writer = import(&other, &cache(16 * MIB));
    let (cache, shared) = (Arc::clone(&one.cache), one.shared.clone());
    let other = Followed { device: other, writer, cache, shared };
    other.put("data", 3);
    other.shared.note_state(2, |before| {
        assert_eq!(before, 1);
        false
    });
    let second = other.group();
    assert_eq!((get(&first, "data"), get(&second, "data")), (2, 3));
    // From there on it is as before.
    other.put("other", 4);
    other.shared.note_state(3, |before| before == 2);
    let third = other.group();
    let read = counter(&third, "read_bytes");
    assert_eq!((get(&third, "data"), get(&third, "other")), (3, 4));
    assert!(counter(&third, "read_bytes") - read < 2 * BYTES as u64, "it was read again");
}
