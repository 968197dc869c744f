//! Devices that are not what their paths say: exchanged, copied with dd, truncated.

use std::path::Path;
use std::sync::Arc;

use forebay_io::{Device, FileDevice, OpenOptions};
use forebay_pool::{
    AttachOptions, Error, ErrorKind, EventKind, ImportOptions, LeafState, NewVdev, Pool, read_label,
};

use crate::common::{MIB, cache, check, copy_of, create_options, import_options, memory};
use crate::mirrors::{SIZE, Sides, fill, import, overwrite, scrub, states, verify};

fn open(path: &Path) -> Arc<dyn Device> {
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    Arc::new(FileDevice::open(path, &options).expect("a file"))
}

/// Files in a folder, as devices.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn open(&self, name: &str) -> Arc<dyn Device> {
        open(&self.0.path().join(name))
    }

    fn exchange(&self, a: &str, b: &str) {
        let path = |name: &str| self.0.path().join(name);
        for (from, to) in [(a, "moved"), (b, a), ("moved", b)] {
            std::fs::rename(path(from), path(to)).expect("renamed");
        }
    }

    fn set_len(&self, name: &str, bytes: u64) {
        let file = std::fs::File::options().write(true).open(self.0.path().join(name));
        file.and_then(|file| file.set_len(bytes)).expect("another size");
    }

    fn import(&self, names: &[&str]) -> Result<Pool, Error> {
        let devices: Vec<_> = names.iter().map(|name| self.open(name)).collect();
        import(&devices.iter().collect::<Vec<_>>())
    }

    fn guid(&self, name: &str) -> u64 {
        let label = read_label(&self.open(name).into(), &cache(MIB)).expect("it reads");
        label.expect("a label").device_guid
    }
}

fn create(vdevs: Vec<NewVdev>) -> Pool {
    Pool::create_tree(vdevs, &create_options(&cache(32 * MIB))).expect("a pool")
}

/// The device alone has everything.
fn verify_alone(device: &Arc<dyn Device>, number: u64, records: u64, salt: u8) {
    let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
    let pool = Pool::import(vec![Arc::clone(device).into()], &options).expect("a whole side");
    verify(&pool, number, records, salt);
    pool.export().expect("exported");
}

#[test]
fn exchanged_paths_of_devices_change_nothing() {
    let files = Files::new();
    let mirror = |a, b| NewVdev::Mirror(vec![files.open(a).into(), files.open(b).into()]);
    let log = NewVdev::Log(vec![files.open("log").into()]);
    let pool = create(vec![mirror("a", "b"), mirror("c", "d"), log]);
    let number = fill(&pool, 200);
    pool.export().expect("exported");
    let names = ["a", "b", "c", "d", "log"];
    // Two sides of one mirror, sides of two, and one with the log.
    for (salt, (one, other)) in [("a", "b"), ("a", "c"), ("d", "log")].into_iter().enumerate() {
        let guids = (files.guid(one), files.guid(other));
        files.exchange(one, other);
        let pool = files.import(&names).expect("the labels say what each is");
        assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
        assert_eq!(states(&pool), [LeafState::Online; 5]);
        let guid_at = |name: &str| {
            let devices = pool.devices();
            let found = devices.iter().find(|found| Path::new(&found.path).ends_with(name));
            found.expect("a device").guid
        };
        assert_eq!((guid_at(other), guid_at(one)), guids, "they are known by their paths of now");
        verify(&pool, number, 200, salt as u8);
        overwrite(&pool, number, 200, salt as u8 + 1);
        let report = scrub(&pool);
        assert_eq!((report.healed, report.lost_count), (0, 0), "{report:?}");
        check(&pool);
        // A crash the next time.
        pool.abandon();
    }
}

#[test]
fn a_stale_side_under_the_path_of_the_other_one_is_the_stale_one() {
    let files = Files::new();
    let pool = create(vec![NewVdev::Mirror(vec![files.open("a").into(), files.open("b").into()])]);
    let number = fill(&pool, 100);
    let path = |name: &str| files.0.path().join(name).to_string_lossy().into_owned();
    pool.offline_device(&path("b")).expect("the other one is whole");
    overwrite(&pool, number, 100, 1);
    pool.abandon();
    files.exchange("a", "b");
    let pool = files.import(&["a", "b"]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline]);
    verify(&pool, number, 100, 1);
    let last = pool.offline_device(&path("b")).expect_err("the whole one is at this path now");
    assert_eq!(last.kind(), ErrorKind::Invalid, "{last}");
    pool.online_device(&path("a")).expect("the stale one is at this path now");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    verify_alone(&files.open("a"), number, 100, 1);
    verify_alone(&files.open("b"), number, 100, 1);
}

#[test]
fn a_side_and_its_copy_by_dd_are_named_and_neither_is_chosen() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 50);
    pool.export().expect("exported");
    let [a, b] = &sides.media;
    let twin = copy_of(a);
    // With the other side, and without.
    for given in [vec![a, &twin, b], vec![b, &twin, a], vec![a, &twin]] {
        let error = import(&given).map(drop).expect_err("which one?");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = error.to_string();
        let names = [&*a.info().name, &*twin.info().name];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert!(text.contains("give only one"), "{text}");
    }
    // Either one does, and the one that was not given falls behind.
    let pool = import(&[&twin, b]).expect("one of them");
    overwrite(&pool, number, 50, 1);
    pool.export().expect("exported");
    let pool = import(&[a, b]).expect("the older copy, which is found to be one");
    assert!(pool.import_notes().iter().any(|note| note.contains("rolled back")));
    verify(&pool, number, 50, 1);
    assert_eq!(scrub(&pool).lost_count, 0);
    pool.export().expect("exported");
    verify_alone(a, number, 50, 1);
}

#[test]
fn a_copy_of_a_side_joins_only_by_force_and_as_a_new_one() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 50);
    let twin = copy_of(&sides.media[0]);
    let side = format!("{:x}", pool.devices()[0].guid);
    let attach = |force| {
        let options = AttachOptions { force, ..AttachOptions::default() };
        pool.attach_device(&side, Arc::clone(&twin).into(), options)
    };
    let error = attach(false).expect_err("it holds the pool");
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    attach(true).expect("by force");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 3]);
    let guids: Vec<_> = pool.devices().iter().map(|one| one.guid).collect();
    assert!(guids[2] != guids[0], "a device of its own");
    pool.export().expect("exported");
    let [a, b] = &sides.media;
    let pool = import(&[a, b, &twin]).expect("three sides");
    verify(&pool, number, 50, 0);
    pool.export().expect("exported");
}

#[test]
fn a_log_device_and_its_copy_by_dd_are_named() {
    let (data, log) = (memory(SIZE), memory(16 * MIB));
    let vdevs = vec![
        NewVdev::Device(Arc::clone(&data).into()),
        NewVdev::Log(vec![Arc::clone(&log).into()]),
    ];
    create(vdevs).abandon();
    let twin = copy_of(&log);
    let error = import(&[&data, &log, &twin]).map(drop).expect_err("which one?");
    let text = error.to_string();
    assert!(text.contains("the log device is given twice"), "{text}");
    assert!(text.contains("give only one"), "{text}");
    import(&[&data, &log]).expect("one of them").export().expect("exported");
}

#[test]
fn a_side_that_is_truncated_in_use_is_faulted_by_its_next_flush() {
    let files = Files::new();
    let pool = create(vec![NewVdev::Mirror(vec![files.open("a").into(), files.open("b").into()])]);
    let number = fill(&pool, 200);
    files.set_len("b", SIZE / 2);
    // Nothing was asked of it yet.
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    overwrite(&pool, number, 200, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    verify(&pool, number, 200, 1);
    let side = format!("{:x}", pool.devices()[1].guid);
    let error = pool.online_device(&side).expect_err("its end is gone");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    overwrite(&pool, number, 200, 2);
    pool.export().expect("exported");
    let pool = files.import(&["a", "b"]).expect("without it");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Missing]);
    assert!(pool.import_notes().iter().any(|note| note.contains("it was truncated")));
    pool.export().expect("exported");
    // It is as long as before, with zeros where its end was.
    files.set_len("b", SIZE);
    let pool = files.import(&["a", "b"]).expect("both");
    assert!(pool.import_notes().iter().any(|note| note.contains("has lost its end")));
    comes_back_whole(pool, &files, number, 2);
}

/// A resilver of all blocks makes the side b whole.
fn comes_back_whole(pool: Pool, files: &Files, number: u64, salt: u8) {
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    assert_eq!(pool.devices()[1].missed_from, Some(1), "all blocks");
    pool.start_resilver().expect("it starts");
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert!(status.blocks >= 200, "{status:?}");
    let report = scrub(&pool);
    assert_eq!((report.healed, report.lost_count), (0, 0), "{report:?}");
    check(&pool);
    verify(&pool, number, 200, salt);
    pool.export().expect("exported");
    verify_alone(&files.open("b"), number, 200, salt);
}

/// Nothing but the zeros at its end says so: its label is that of the other side.
#[test]
fn a_side_that_was_truncated_and_has_grown_again_gets_all_blocks() {
    let files = Files::new();
    let pool = create(vec![NewVdev::Mirror(vec![files.open("a").into(), files.open("b").into()])]);
    let number = fill(&pool, 200);
    pool.export().expect("exported");
    let cut = |name| {
        files.set_len(name, SIZE / 2);
        files.set_len(name, SIZE);
    };
    cut("b");
    let pool = files.import(&["a", "b"]).expect("both");
    assert!(pool.import_notes()[0].contains("has lost its end"), "{:?}", pool.import_notes());
    comes_back_whole(pool, &files, number, 0);
    // Beside the pool, while it is out of use.
    let pool = files.import(&["a", "b"]).expect("both");
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    let guid = format!("{:x}", pool.devices()[1].guid);
    pool.offline_device(&guid).expect("the other one is whole");
    cut("b");
    pool.online_device(&guid).expect("it is the side");
    let events = pool.events().after(0);
    assert!(events.iter().any(|event| event.kind == EventKind::DeviceLostEnd), "{events:?}");
    let status = pool.wait_resilver();
    assert!(status.blocks >= 200, "{status:?}");
    let report = scrub(&pool);
    assert_eq!((report.healed, report.lost_count), (0, 0), "{report:?}");
    pool.export().expect("exported");
    // No other side is better: a scrub says what is lost.
    ["a", "b"].into_iter().for_each(cut);
    let pool = files.import(&["a", "b"]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    let notes = pool.import_notes();
    assert!(
        notes.len() == 2 && notes.iter().all(|note| note.contains("forebay scrub")),
        "{notes:?}"
    );
    pool.abandon();
}

/// A power cut may tear a label, and takes no uberblocks with it.
#[test]
fn a_torn_back_label_does_not_make_a_side_miss_all_blocks() {
    let files = Files::new();
    let pool = create(vec![NewVdev::Mirror(vec![files.open("a").into(), files.open("b").into()])]);
    fill(&pool, 20);
    pool.abandon();
    let path = files.0.path().join("b");
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    let back = SIZE - (256 << 10);
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8192], back).expect("written");
    let pool = files.import(&["a", "b"]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    pool.export().expect("exported");
}
