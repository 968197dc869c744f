//! The inspector on pools that are sound, in use, truncated and damaged.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::rng::SmallRng;
use forebay_io::{Device, OpenOptions};
use forebay_pool::format::Dva;
use forebay_pool::format::label::{LABEL_BYTES, VERSION};
use forebay_pool::inspect::{BlockOwner, Inspector, LabelState, ObjsetName};
use forebay_pool::{DatasetSettings, ErrorKind, Pool, ZapStats, open_path};
use tempfile::TempDir;

use crate::common::{MIB, cache, create, create_options, dataset, import, memory};

const DATA: ObjsetName<'_> = ObjsetName::Dataset("data");
const RECORD: usize = 8192;
const NAMES: u64 = 5000;
const FLIPS: u64 = 60;
/// Txgs of a pool in use to observe, and the limit of inspections.
const TXGS: usize = 8;
const INSPECTIONS_MAX: usize = 100_000;

/// Expected content.
struct Expected {
    object: u64,
    directory: u64,
    stats: ZapStats,
}

/// An object of 300 records, and a directory with leaves.
fn fill(pool: &Pool) -> Expected {
    let data = dataset(pool);
    let tx = pool.begin().expect("space");
    let object = data.create_object(&tx, b"its attributes").expect("an object");
    let content: Vec<u8> = (0..300 * RECORD).map(|at| (at / RECORD % 255) as u8 + 1).collect();
    data.object(object).expect("it").write(&tx, 0, &content).expect("space");
    let directory = data.create_directory(&tx, &[]).expect("a directory");
    let names = data.directory(directory).expect("it");
    for number in 0..NAMES {
        let name = format!("{number}");
        names.insert(&tx, name.as_bytes(), &number.to_le_bytes()).expect("space");
    }
    drop(tx);
    pool.sync().expect("a txg");
    let stats = names.stats().expect("its leaves");
    Expected { object, directory, stats }
}

/// A pool of one or more files.
fn files(count: usize) -> (TempDir, Vec<PathBuf>, Expected) {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = (0..count).map(|n| folder.path().join(format!("{n}.img"))).collect();
    let file = OpenOptions { create_bytes: Some(24 * MIB), ..OpenOptions::default() };
    let devices = paths.iter().map(|path| open_path(path, &file).expect("a file")).collect();
    let pool = Pool::create(devices, &create_options(&cache(32 * MIB))).expect("a pool");
    let expected = fill(&pool);
    pool.export().expect("exported");
    (folder, paths, expected)
}

/// Prints everything that the inspector shows.
fn inspect_all(inspector: &Inspector, expected: &Expected) -> Vec<String> {
    let text =
        |shown: forebay_pool::Result<String>| shown.unwrap_or_else(|error| error.to_string());
    let labels = inspector.labels().iter().map(ToString::to_string).collect::<String>();
    vec![
        labels,
        text(inspector.uberblocks().map(|info| info.to_string())),
        text(inspector.txg(None).map(|info| info.to_string())),
        text(inspector.object(DATA, expected.object, None).map(|info| info.to_string())),
        text(inspector.object(ObjsetName::Own, 0, None).map(|info| info.to_string())),
        text(inspector.directory(DATA, expected.directory, None).map(|info| info.to_string())),
        text(inspector.block(DATA, BlockOwner::Dnodes, (0, 0), None).map(|info| info.to_string())),
        text(
            inspector
                .block(DATA, BlockOwner::Object(expected.object), (7, 0), None)
                .map(|info| info.to_string()),
        ),
        text(inspector.bytes(0, 0, 4096).map(|info| info.to_string())),
    ]
}

#[test]
fn a_sound_pool_is_shown() {
    let (_folder, paths, expected) = files(2);
    let inspector = Inspector::open(&paths).expect("they open");
    let labels = inspector.labels();
    assert_eq!(labels.len(), 2);
    for (number, device) in labels.iter().enumerate() {
        assert_eq!(device.labels.len(), 2, "{device}");
        for position in &device.labels {
            let LabelState::Sound { label } = &position.state else { panic!("{device}") };
            assert_eq!((&*label.pool_name, usize::from(label.vdev_number)), ("tank", number));
            assert_eq!((&*label.state, label.devices.len()), ("exported", 2));
            assert_eq!(label.objection, None);
        }
    }
    let uberblocks = inspector.uberblocks().expect("memory");
    assert_eq!((uberblocks.rings, uberblocks.damaged.len()), (4, 0), "{uberblocks}");
    let newest = &uberblocks.found[0];
    assert_eq!((newest.rings, newest.vdev_count, &newest.root_problem), (4, 2, &None));

    let info = inspector.txg(None).expect("the newest");
    assert_eq!((info.txg, info.notices.len()), (newest.txg, 0), "{info}");
    let info = info.found;
    assert!(info.damage.is_empty(), "{info}");
    assert_eq!(info.datasets.len(), 1);
    assert_eq!((&*info.datasets[0].name, info.datasets[0].set.objects), ("data", 2));
    assert!(info.space.allocated_bytes > info.datasets[0].set.allocated_bytes);
    let missing = inspector.txg(Some(newest.txg + 1)).expect_err("there is none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);

    let object = inspector.object(DATA, expected.object, None).expect("it").found;
    assert_eq!((&*object.kind, object.size_bytes), ("bytes", (300 * RECORD) as u64));
    assert_eq!(object.attributes, b"its attributes");
    assert_eq!((object.levels.len(), object.levels[1].blocks), (2, 300), "{object}");
    let on_devices: u64 = object.levels.iter().map(|level| level.allocated_bytes).sum();
    assert_eq!(on_devices, object.allocated_bytes, "{object}");

    let directory = inspector.directory(DATA, expected.directory, None).expect("it").found;
    assert!(directory.damage.is_empty(), "{directory}");
    // The table exists in memory only.
    let stats = ZapStats { table_bytes: expected.stats.table_bytes, ..directory.stats.clone() };
    assert_eq!(stats, expected.stats);
    assert_eq!(stats.entries_by_bytes.iter().sum::<u64>(), NAMES);
    assert_eq!(stats.entries_by_distance.iter().sum::<u64>(), NAMES);
    assert_eq!(stats.by_pointers().iter().map(|row| row.leaves).sum::<u64>(), stats.leaves);
    let error = inspector.directory(DATA, expected.object, None).expect_err("it is none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let error = inspector.object(ObjsetName::Dataset("no"), 1, None).expect_err("it is none");
    assert!(error.to_string().contains("there are: data"), "{error}");
}

#[test]
fn blocks_are_shown_by_object_and_by_address() {
    let (_folder, paths, expected) = files(1);
    let inspector = Inspector::open(&paths).expect("they open");
    let of = BlockOwner::Object(expected.object);
    let block = inspector.block(DATA, of, (7, 0), None).expect("it").found;
    assert!(block.content.as_ref().expect("it is good").iter().all(|byte| *byte == 8), "{block}");
    assert_eq!(block.copies.len(), 1);
    assert_eq!(block.copies[0].problem, None);
    let Dva { device, offset } = block.pointer.copies[0];
    let bytes = inspector.bytes(device, offset, RECORD as u64).expect("they").bytes;
    assert_eq!(Some(&bytes), block.content.as_ref());
    let above = inspector.block(DATA, of, (7, 1), None).expect("it").found;
    assert_eq!((&*above.pointer.kind, above.pointer.level), ("indirect", 1));
    for beyond in [(7, 2), (1 << 20, 0)] {
        let error = inspector.block(DATA, of, beyond, None).expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    // An unaligned part of a label.
    let label = inspector.bytes(0, 3, 10).expect("they");
    assert_eq!(label.bytes, [b"ebay\x01", &[VERSION as u8, 0, 0, 0, 0][..]].concat());
    let seems = inspector.bytes(0, 0, 4096).expect("they").seems;
    assert_eq!(seems.as_deref(), Some("a label, whose checksum is right"));
    for (offset, len) in [(0, 0), (24 * MIB - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
        let error = inspector.bytes(0, offset, len).expect_err("there are none");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(inspector.bytes(1, 0, 1).expect_err("none").kind(), ErrorKind::NotFound);
}

#[test]
fn a_pool_in_use_is_shown_as_of_some_txg() {
    let device: Arc<dyn Device> = memory(64 * MIB);
    let pool = create(&device, &cache(32 * MIB));
    let expected = fill(&pool);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let data = pool.dataset("data").expect("it");
            let object = data.object(expected.object).expect("it");
            let directory = data.directory(expected.directory).expect("it");
            let mut round = 0u64;
            while !done.load(Ordering::Relaxed) {
                let tx = pool.begin().expect("space");
                for record in 0..300 {
                    object.write(&tx, record * RECORD as u64, &round.to_le_bytes()).expect("space");
                }
                for number in 0..NAMES / 4 {
                    let name = format!("{number}");
                    let value = round.to_le_bytes();
                    directory.update(&tx, name.as_bytes(), &value).expect("space");
                }
                drop(tx);
                pool.sync().expect("a txg");
                round += 1;
            }
        });
        let inspector = Inspector::new(vec![Arc::clone(&device)]).expect("memory");
        let mut seen_txgs = vec![0];
        for _ in 0..INSPECTIONS_MAX {
            let object = inspector.object(DATA, expected.object, None).expect("it");
            let changes =
                |seen: &[String]| seen.iter().any(|notice| notice.contains("changes while"));
            assert!(object.found.damage.is_empty() || changes(&object.notices), "{object}");
            let directory = inspector.directory(DATA, expected.directory, None).expect("it");
            let sound = directory.found.damage.is_empty() && directory.found.stats.entries == NAMES;
            assert!(sound || changes(&directory.notices), "{directory}");
            assert!(*seen_txgs.last().expect("one") <= directory.txg, "{seen_txgs:?} {directory}");
            seen_txgs.push(directory.txg);
            seen_txgs.dedup();
            if seen_txgs.len() > TXGS {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(seen_txgs.len() > TXGS, "the pool was in use: {seen_txgs:?}");
    });
    drop(pool);
    drop(import(&device, &cache(32 * MIB)));
}

#[test]
fn missing_and_truncated_devices_are_tolerated() {
    let (folder, paths, expected) = files(2);
    // One device of two: its content is shown.
    let inspector = Inspector::open(&paths[..1]).expect("it opens");
    let info = inspector.txg(None).expect("the newest");
    assert!(info.notices.iter().any(|notice| notice.contains("is missing")), "{info}");
    assert_eq!(info.found.datasets.len(), 1, "metadata has two copies: {info}");
    let object = inspector.object(DATA, expected.object, None).expect("its dnode has two copies");
    let lost = (0..300).filter(|block| {
        let info = inspector.block(DATA, BlockOwner::Object(expected.object), (*block, 0), None);
        info.expect("its pointer is there").found.content.is_none()
    });
    let lost = lost.count();
    assert!((1..300).contains(&lost), "some lie on the other device: {lost} {object}");

    // Half of a device.
    let short = folder.path().join("short.img");
    fs::copy(&paths[0], &short).expect("a copy");
    fs::OpenOptions::new().write(true).open(&short).expect("it").set_len(12 * MIB).expect("cut");
    let inspector = Inspector::open(&[&short, &paths[1]]).expect("they open");
    let shown = inspect_all(&inspector, &expected);
    assert!(shown[0].contains("NOT SOUND"), "{}", shown[0]);
    assert!(shown[2].contains("was cut short"), "{}", shown[2]);

    // Little more than the label of a device, and less.
    for (bytes, notice) in [(LABEL_BYTES, "no good copy"), (4096, "neither label nor uberblock")] {
        let file = fs::OpenOptions::new().write(true).open(&short).expect("it");
        file.set_len(bytes).expect("cut");
        let inspector = Inspector::open(&[&short]).expect("it opens");
        let shown = inspect_all(&inspector, &expected);
        assert!(shown[2].contains(notice), "{}", shown[2]);
    }
    let nothing: [&Path; 0] = [];
    assert_eq!(Inspector::open(&nothing).expect_err("none").kind(), ErrorKind::Invalid);
    let absent = [folder.path().join("absent")];
    assert_eq!(Inspector::open(&absent).expect_err("none").kind(), ErrorKind::NotFound);
    let twice = [&paths[0], &paths[0]];
    assert_eq!(Inspector::open(&twice).expect_err("twice").kind(), ErrorKind::Invalid);
}

#[test]
fn without_labels_uberblocks_lead_to_the_pool() {
    let (_folder, paths, expected) = files(2);
    let wipe = |path: &Path| {
        let file = fs::OpenOptions::new().write(true).open(path).expect("it");
        file.write_all_at(&[0; 4096], 0).expect("written");
        file.write_all_at(&[0; 4096], 24 * MIB - LABEL_BYTES).expect("written");
    };
    wipe(&paths[1]);
    let inspector = Inspector::open(&paths).expect("they open");
    let object = inspector.object(DATA, expected.object, None).expect("it");
    assert!(object.notices.iter().any(|notice| notice.contains("taken for device 1")), "{object}");
    wipe(&paths[0]);
    let inspector = Inspector::open(&paths).expect("they open");
    let info = inspector.txg(None).expect("the newest");
    assert!(info.notices.iter().any(|notice| notice.contains("no label is left")), "{info}");
    let directory = inspector.directory(DATA, expected.directory, None).expect("it").found;
    assert!(directory.damage.is_empty(), "{directory}");
    assert_eq!(directory.stats.entries, NAMES);
}

#[test]
fn flipped_bits_are_tolerated_and_reported() {
    let (folder, paths, expected) = files(1);
    let sound = inspect_all(&Inspector::open(&paths).expect("it opens"), &expected);
    let bytes = fs::read(&paths[0]).expect("it");
    let used: Vec<usize> = bytes
        .chunks(512)
        .enumerate()
        .filter(|(_, sector)| sector.iter().any(|byte| *byte != 0))
        .map(|(at, _)| at * 512)
        .collect();
    let mut rng = SmallRng::from_seed(5);
    let damaged = folder.path().join("damaged.img");
    let mut differ = 0;
    for _ in 0..FLIPS {
        let mut bytes = bytes.clone();
        for _ in 0..=rng.below(200) {
            let at = used[rng.below(used.len() as u64) as usize] + rng.below(512) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        fs::write(&damaged, &bytes).expect("written");
        let shown = inspect_all(&Inspector::open(&[&damaged]).expect("it opens"), &expected);
        differ += usize::from(shown[1..] != sound[1..]);
    }
    assert!(differ > FLIPS as usize / 2, "{differ} of {FLIPS} show it");
}

#[test]
fn a_fat_directory_of_datasets_is_read() {
    let device: Arc<dyn Device> = memory(64 * MIB);
    let pool = create(&device, &cache(32 * MIB));
    for number in 0..30 {
        let name = format!("a dataset with a rather long name, number {number}");
        pool.create_dataset(&name, &DatasetSettings::default()).expect("a dataset");
    }
    let inspector = Inspector::new(vec![device]).expect("memory");
    let info = inspector.txg(None).expect("the newest").found;
    assert_eq!((info.datasets.len(), info.damage.count), (30, 0), "{info}");
    let directory = inspector.directory(ObjsetName::Own, info.directory, None).expect("it").found;
    assert!(directory.stats.leaves > 0, "{directory}");
}

#[test]
fn a_device_truncated_below_a_label_does_not_panic() {
    for bytes in [0, 4096, (256 << 10) - 512, 256 << 10] {
        let (_folder, paths, _) = files(2);
        fs::OpenOptions::new().write(true).open(&paths[1]).unwrap().set_len(bytes).unwrap();
        let Ok(inspector) = Inspector::open(&paths) else {
            assert_eq!(bytes, 0, "it can be opened");
            continue;
        };
        let seen = inspector.txg(None).expect("the other device has uberblocks");
        assert!(seen.txg > 0);
    }
}
