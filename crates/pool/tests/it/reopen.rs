//! Sides of mirrors that come back as another file than before: `online` opens their path again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_io::OpenOptions;
use forebay_pool::{BlockCache, ErrorKind, LeafState, NewVdev, Opened, Pool, has_label, open_path};

use crate::common::{MIB, cache, check, create_options, import_options};
use crate::mirrors::{SIZE, counter, fill, overwrite, scrub, states, verify};

const RECORDS: u64 = 200;

/// A mirror of two files.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    fn open(&self, name: &str) -> Opened {
        open_path(&self.path(name), &OpenOptions::default()).expect("a file")
    }

    fn create(&self) -> Pool {
        self.create_with(&[])
    }

    fn create_with(&self, tunables: &[(&str, &str)]) -> Pool {
        self.create_named("tank", ["a", "b"], tunables)
    }

    fn create_named(&self, pool: &str, sides: [&str; 2], tunables: &[(&str, &str)]) -> Pool {
        let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
        let open = |name| open_path(&self.path(name), &options).expect("a new file");
        let mirror = NewVdev::Mirror(sides.into_iter().map(open).collect());
        let mut options = create_options(&cache(32 * MIB));
        options.name = pool.to_owned();
        let tunables = tunables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        options.tunables.extend(tunables);
        Pool::create_tree(vec![mirror], &options).expect("a pool")
    }

    fn import(&self, names: &[&str]) -> Pool {
        let opened = names.iter().map(|name| self.open(name)).collect();
        Pool::import(opened, &import_options(&cache(32 * MIB))).expect("the pool")
    }

    /// Puts a copy of a file in its place: another file with the same content.
    fn copy_anew(&self, name: &str) {
        let copy = self.path("copy");
        fs::copy(self.path(name), &copy).expect("a copy");
        fs::remove_file(self.path(name)).expect("removed");
        fs::rename(&copy, self.path(name)).expect("renamed");
    }
}

fn truncate(path: &Path, bytes: u64) {
    let file = fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(bytes)).expect("another length");
}

fn comes_back(pool: &Pool, side: &str) {
    pool.online_device(side).unwrap_or_else(|error| panic!("{side}: {error}"));
    let status = pool.wait_resilver();
    assert_eq!(status.lost, 0, "{status:?}");
    assert!(states(pool).iter().all(|state| *state == LeafState::Online), "{status:?}");
}

#[test]
fn a_copy_that_takes_the_place_of_an_offline_side_gets_the_data() {
    let files = Files::new();
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    let side = files.text("b");
    pool.offline_device(&side).expect("the other one is whole");
    overwrite(&pool, number, 20, 1);
    files.copy_anew("b");
    comes_back(&pool, &side);
    assert_eq!(counter(&pool, "healed"), 0, "what a side misses is no bad copy");
    pool.detach_device(&files.text("a")).expect("the other one is whole");
    overwrite(&pool, number, RECORDS, 2);
    check(&pool);
    pool.export().expect("exported");
    fs::remove_file(files.path("a")).expect("removed");
    let pool = files.import(&["b"]);
    verify(&pool, number, RECORDS, 2);
    check(&pool);
    pool.export().expect("exported");
}

#[test]
fn a_copy_from_before_the_side_was_offline_gets_all_that_it_lacks() {
    let files = Files::new();
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    let side = files.text("b");
    fs::copy(files.path("b"), files.path("old")).expect("a copy");
    overwrite(&pool, number, RECORDS, 1);
    // So that the former is not the group that a side counts among those that it misses.
    overwrite(&pool, number, 1, 1);
    pool.offline_device(&side).expect("the other one is whole");
    overwrite(&pool, number, 1, 1);
    fs::rename(files.path("old"), files.path("b")).expect("renamed");
    comes_back(&pool, &side);
    let scrubbed = scrub(&pool);
    assert_eq!((scrubbed.healed, scrubbed.lost_count), (0, 0), "the resilver has left nothing");
    pool.detach_device(&files.text("a")).expect("the other one is whole");
    pool.export().expect("exported");
    let pool = files.import(&["b"]);
    verify(&pool, number, RECORDS, 1);
    check(&pool);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_was_emptied_comes_back_with_its_content() {
    let files = Files::new();
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    let side = files.text("b");
    fs::copy(files.path("b"), files.path("intact")).expect("a copy");
    truncate(&files.path("b"), 0);
    overwrite(&pool, number, RECORDS, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    for bytes in [0, SIZE / 2] {
        truncate(&files.path("b"), bytes);
        let error = pool.online_device(&side).expect_err("it has lost its content");
        let text = error.to_string();
        for part in [&*side, "it was truncated; bring back what it held", "forebay replace tank"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // It would be of no use to enlarge it.
        assert!(!text.contains("truncate --size"), "{text}");
        assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted], "{error}");
    }
    // Into the same file, which has the pool's lock no more.
    fs::copy(files.path("intact"), files.path("b")).expect("a copy");
    comes_back(&pool, &side);
    assert_eq!(scrub(&pool).healed, 0, "the resilver has left nothing");
    overwrite(&pool, number, RECORDS, 2);
    pool.export().expect("exported");
    let pool = files.import(&["b"]);
    verify(&pool, number, RECORDS, 2);
    pool.export().expect("exported");
}

#[test]
fn only_the_side_itself_comes_back() {
    let files = Files::new();
    let other = files.create_named("other", ["x", "y"], &[]);
    other.export().expect("exported");
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    let side = files.text("b");
    pool.offline_device(&side).expect("the other one is whole");
    fs::rename(files.path("b"), files.path("kept")).expect("renamed");
    let refused = |kind, wanted: &str| {
        let error = pool.online_device(&side).expect_err("not the side");
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(!text.contains("create_bytes"), "{text}");
        assert!(text.contains(&side) && text.contains(wanted), "{text}");
        assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline]);
    };
    refused(ErrorKind::NotFound, "no such file or device; bring it back, or give the path");
    fs::copy(files.path("x"), files.path("b")).expect("a copy");
    refused(ErrorKind::NotAPool, "of pool \"other\"");
    fs::copy(files.path("a"), files.path("b")).expect("a copy");
    refused(ErrorKind::NotAPool, "of pool \"tank\"");
    fs::write(files.path("b"), vec![0; SIZE as usize]).expect("zeros");
    refused(ErrorKind::NotAPool, "holds no pool, not the device");
    fs::remove_file(files.path("b")).expect("removed");
    fs::rename(files.path("kept"), files.path("b")).expect("renamed");
    comes_back(&pool, &side);
    verify(&pool, number, RECORDS, 0);
    pool.export().expect("exported");
}

#[test]
fn a_side_comes_back_at_another_path_also_if_it_was_missing() {
    let files = Files::new();
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    pool.offline_device(&files.text("b")).expect("the other one is whole");
    fs::rename(files.path("b"), files.path("moved")).expect("renamed");
    overwrite(&pool, number, 20, 1);
    comes_back(&pool, &files.text("moved"));
    assert!(pool.devices().iter().any(|device| device.path == files.text("moved")));
    pool.export().expect("exported");

    let pool = files.import(&["a"]);
    overwrite(&pool, number, RECORDS, 2);
    let missing = pool.devices().into_iter().find(|device| device.missing).expect("one is missing");
    let error = pool.online_device(&format!("{:x}", missing.guid)).expect_err("where is it?");
    assert!(error.to_string().contains("forebay online"), "{error}");
    let error = pool.online_device(&files.text("nothing")).expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&files.text("a")) && text.contains(&format!("{:x}", missing.guid)),
        "{text}"
    );
    comes_back(&pool, &files.text("moved"));
    pool.export().expect("exported");
    let pool = files.import(&["moved"]);
    verify(&pool, number, RECORDS, 2);
    pool.export().expect("exported");
}

#[test]
fn a_file_that_was_replaced_in_use_is_noticed() {
    let files = Files::new();
    let pool = files.create();
    let number = fill(&pool, RECORDS);
    let side = files.text("b");
    files.copy_anew("b");
    let error = pool.online_device(&side).expect_err("the open file is another one");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("forebay offline"), "{error}");
    fs::copy(files.path("a"), files.path("copy")).expect("a copy");
    let error = pool.online_device(&files.text("copy")).expect_err("the side is in use");
    assert!(error.to_string().contains("has the label of"), "{error}");
    pool.offline_device(&side).expect("the other one is whole");
    comes_back(&pool, &side);
    overwrite(&pool, number, RECORDS, 1);
    pool.export().expect("exported");
    let pool = files.import(&["b"]);
    verify(&pool, number, RECORDS, 1);
    pool.export().expect("exported");
}

/// A pool that is suspended because its only device is gone; after two fsyncs, if they are asked
/// for, that the newest copy has not. The copy "first" has the first of them, "last" has both.
fn suspended(files: &Files, fsyncs: bool) -> (Pool, u64) {
    suspended_in(files, fsyncs, &cache(32 * MIB))
}

fn suspended_in(files: &Files, fsyncs: bool, cache: &Arc<BlockCache>) -> (Pool, u64) {
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let opened = open_path(&files.path("a"), &options).expect("a new file");
    let pool = Pool::create(vec![opened], &create_options(cache)).expect("a pool");
    pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let number = fill(&pool, RECORDS);
    let keep = |copy: &str| fs::copy(files.path("a"), files.path(copy)).expect("a copy");
    keep("older");
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let write = |content: u8| {
        let tx = pool.begin().expect("space");
        object.write(&tx, 0, &[content; 8192]).expect("space");
    };
    let fsync = || object.fsync().expect("the device is there");
    write(7);
    fsync();
    overwrite(&pool, number, 20, 1);
    keep("newest");
    if fsyncs {
        for (content, copy) in [(8, "first"), (10, "last")] {
            write(content);
            fsync();
            keep(copy);
        }
    }
    truncate(&files.path("a"), 0);
    write(9);
    drop(object);
    pool.sync().expect_err("the device is gone");
    assert!(pool.suspension().is_some_and(|now| now.resumable), "{:?}", pool.suspension());
    (pool, number)
}

#[test]
fn a_suspended_pool_goes_on_with_its_device_that_is_back() {
    let files = Files::new();
    let (pool, number) = suspended(&files, false);
    let refused = |wanted: &str| {
        let error = pool.clear().expect_err("it is not back");
        assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
        let text = error.to_string();
        assert!(text.contains(&files.text("a")) && text.contains(wanted), "{text}");
        assert!(pool.suspension().is_some_and(|now| now.resumable), "{text}");
    };
    refused("bring back what it held");
    fs::remove_file(files.path("a")).expect("removed");
    refused("no such file");
    fs::copy(files.path("older"), files.path("a")).expect("a copy");
    refused("it is an older copy");
    // As another file than the one that the pool has open.
    fs::remove_file(files.path("a")).expect("removed");
    fs::copy(files.path("newest"), files.path("a")).expect("a copy");
    pool.clear().expect("it is back");
    assert!(pool.suspension().is_none());
    overwrite(&pool, number, RECORDS, 3);
    check(&pool);
    pool.export().expect("exported");
    let pool = files.import(&["a"]);
    verify(&pool, number, RECORDS, 3);
    check(&pool);
    pool.export().expect("exported");
}

/// Its device was closed, because the file that is at its path could not be locked.
#[test]
fn blocks_stay_gone_after_a_clear_that_has_failed() {
    let (files, cache) = (Files::new(), cache(32 * MIB));
    let (pool, number) = suspended_in(&files, false, &cache);
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    fs::remove_file(files.path("a")).expect("removed");
    fs::rename(files.path("newest"), files.path("a")).expect("renamed");
    let user = files.open("a");
    for _ in 0..2 {
        let error = pool.clear().expect_err("somebody else uses the file");
        assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
        assert!(error.to_string().contains("in use"), "{error}");
        cache.cache().clear();
        let error = object.read(0, &mut [0; 8192 * 100]).expect_err("its device is closed");
        assert!(error.is_gone() && error.kind() == ErrorKind::Device, "{error:?}");
    }
    let lost = |(name, _, value): &(&str, &str, u64)| *name == "blocks_lost" && *value > 0;
    assert!(!pool.stats().counters.iter().any(lost), "it may come back");
    assert!(pool.damage().damage.is_empty(), "{:?}", pool.damage());
    drop(user);
    pool.clear().expect("it is back");
    cache.cache().clear();
    object.read(0, &mut [0; 8192 * 100]).expect("it is back");
    drop(object);
    overwrite(&pool, number, RECORDS, 3);
    check(&pool);
    pool.export().expect("exported");
}

/// Damages the newest block of the intent log in a copy of a device.
fn tear_newest_log_block(path: &Path) {
    let mut bytes = fs::read(path).expect("a copy");
    let offset_of = |at: usize| {
        let block = &bytes[at..at + 96];
        let offset = u64::from_le_bytes(block[48..56].try_into().expect("eight bytes"));
        (&block[16..24] == b"FBlogbk1").then_some((offset, at))
    };
    let newest = (0..bytes.len()).step_by(4096).filter_map(offset_of).max();
    let (_, at) = newest.expect("there is a log");
    bytes[at + 100] ^= 1;
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_suspended_pool_refuses_a_copy_that_lacks_what_was_fsynced() {
    let files = Files::new();
    let (pool, number) = suspended(&files, true);
    fs::copy(files.path("last"), files.path("torn")).expect("a copy");
    tear_newest_log_block(&files.path("torn"));
    let take = |copy| {
        fs::remove_file(files.path("a")).expect("removed");
        fs::copy(files.path(copy), files.path("a")).expect("a copy");
        pool.clear()
    };
    for copy in ["newest", "first", "torn"] {
        let error = take(copy).expect_err(copy);
        assert_eq!(error.kind(), ErrorKind::Suspended, "{copy}: {error}");
        assert!(error.to_string().contains("without what was fsynced after"), "{copy}: {error}");
        assert!(pool.suspension().is_some_and(|now| now.resumable), "{copy}");
    }
    take("last").expect("it has both fsyncs");
    let content = |pool: &Pool| {
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let mut out = vec![0; 8192];
        object.read(0, &mut out).expect("it reads");
        out[0]
    };
    assert_eq!(content(&pool), 9);
    // The log goes on, too.
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let tx = pool.begin().expect("space");
    object.write(&tx, 0, &[11; 8192]).expect("space");
    drop(tx);
    object.fsync().expect("the device is there");
    drop(object);
    pool.abandon();
    let pool = files.import(&["a"]);
    assert_eq!(content(&pool), 11);
    check(&pool);
    pool.export().expect("exported");
}

/// Both sides went in the same flush: nothing says that one of them misses something.
#[test]
fn a_suspended_mirror_goes_on_with_the_side_that_is_back() {
    for (back, other) in [("a", "b"), ("b", "a")] {
        let files = Files::new();
        // No heartbeat may meet one of them first.
        let pool = files.create_with(&[("heartbeat_ms", "0")]);
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        let number = fill(&pool, RECORDS);
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        for side in [back, other] {
            let intact = files.path(&format!("intact {side}"));
            fs::copy(files.path(side), intact).expect("a copy");
        }
        [back, other].into_iter().for_each(|side| truncate(&files.path(side), 0));
        let tx = pool.begin().expect("space");
        object.write(&tx, 0, &[9; 8192]).expect("space");
        drop((tx, object));
        pool.sync().expect_err("both are gone");
        assert_eq!(states(&pool), [LeafState::Online; 2]);
        pool.clear().expect_err("neither is back");
        let restore = |side: &str| {
            let intact = files.path(&format!("intact {side}"));
            fs::copy(intact, files.path(side)).expect("a copy");
        };
        restore(back);
        pool.clear().unwrap_or_else(|error| panic!("{back} is back: {error}"));
        let state = |name: &str| {
            let path = files.text(name);
            pool.devices().iter().find(|one| one.path == path).map(|one| one.state)
        };
        assert_eq!(state(back), Some(LeafState::Online));
        assert_eq!(state(other), Some(LeafState::Faulted));
        overwrite(&pool, number, RECORDS, 3);
        restore(other);
        comes_back(&pool, &files.text(other));
        check(&pool);
        pool.export().expect("exported");
        for side in [back, other] {
            let options = import_options(&cache(32 * MIB));
            let options = forebay_pool::ImportOptions { read_only: true, ..options };
            let pool = Pool::import(vec![files.open(side)], &options).expect("a whole side");
            verify(&pool, number, RECORDS, 3);
            pool.export().expect("exported");
        }
    }
}

/// Both sides went and are back before a commit could notice it, as other files.
#[test]
fn a_clear_that_finds_both_sides_gone_goes_on_with_what_is_back() {
    let files = Files::new();
    let pool = files.create_with(&[("heartbeat_ms", "0")]);
    pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let number = fill(&pool, RECORDS);
    for side in ["a", "b"] {
        fs::copy(files.path(side), files.path("intact")).expect("a copy");
        truncate(&files.path(side), 0);
        fs::remove_file(files.path(side)).expect("removed");
        fs::rename(files.path("intact"), files.path(side)).expect("renamed");
    }
    assert!(pool.suspension().is_none(), "nobody knows");
    pool.clear().expect("there is nothing to clear");
    pool.clear_errors().expect("both are back");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    overwrite(&pool, number, RECORDS, 1);
    check(&pool);
    pool.export().expect("exported");
    let pool = files.import(&["b"]);
    verify(&pool, number, RECORDS, 1);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_was_refused_can_be_detached() {
    for is_back in [true, false] {
        let files = Files::new();
        let pool = files.create();
        let number = fill(&pool, RECORDS);
        let side = files.text("b");
        pool.offline_device(&side).expect("the other one is whole");
        fs::rename(files.path("b"), files.path("kept")).expect("renamed");
        pool.online_device(&side).expect_err("it is not there");
        if is_back {
            fs::rename(files.path("kept"), files.path("b")).expect("renamed");
        }
        pool.detach_device(&side).unwrap_or_else(|error| panic!("{is_back}: {error}"));
        if is_back {
            assert!(!has_label(&files.path("b")).expect("it reads"), "it is erased");
        }
        overwrite(&pool, number, RECORDS, 1);
        check(&pool);
        pool.export().expect("exported");
    }
}
