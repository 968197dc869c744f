//! Packed pools of each format version: read, or refused by name. See `tests/images/README.md`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_io::{Device, Request};
use forebay_pool::format::label::VERSION;
use forebay_pool::{DatasetSettings, ErrorKind, NewVdev, Pool};

use crate::common::{MIB, arena, cache, check, create_options, import_options, memory};

const SIZE: u64 = 16 * MIB;
const DEVICES: usize = 3;
const RECORDS: u64 = 40;
const RECORD: u64 = 4096;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

#[test]
fn each_packed_pool_is_read_or_refused_by_name() {
    let mut own = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if path.extension().is_none_or(|extension| extension != "zst") {
            continue;
        }
        let packed = std::fs::read(&path).expect("the image");
        let bytes = zstd::bulk::decompress(&packed, DEVICES * SIZE as usize).expect("it unpacks");
        let devices = unpack(&bytes);
        let opened = devices.iter().map(|device| Arc::clone(device).into()).collect();
        let imported = Pool::import(opened, &import_options(&cache(32 * MIB)));
        if name == format!("v{VERSION}") {
            own += 1;
            read(&imported.expect("a pool of this version"));
            continue;
        }
        let error = imported.map(drop).expect_err("another version");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let version = format!("version {}", &name[1..]);
        assert!(error.to_string().contains(&version), "{error}");
    }
    assert_eq!(own, 1, "pack an image of version {VERSION}: see tests/images/README.md");
}

fn read(pool: &Pool) {
    assert_eq!(pool.name(), "tank");
    let number = pool.dataset("data").expect("it").root_object();
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut out = vec![0; RECORD as usize];
    for record in 0..RECORDS {
        object.read(record * RECORD, &mut out).expect("it reads");
        assert!(out.iter().all(|byte| *byte == record as u8), "record {record}");
    }
    drop(object);
    check(pool);
}

/// Writes the bytes of all devices to new ones.
fn unpack(bytes: &[u8]) -> Vec<Arc<dyn Device>> {
    let arena = arena();
    let device = |bytes: &[u8]| {
        let device = memory(SIZE);
        for (nth, part) in bytes.chunks(1 << 20).enumerate() {
            let mut buffer = arena.alloc(part.len()).expect("memory");
            buffer.copy_from_slice(part);
            device.run(Request::write((nth as u64) << 20, buffer)).result.expect("written");
        }
        device
    };
    bytes.chunks(SIZE as usize).map(device).collect()
}

#[test]
#[ignore = "writes tests/images"]
fn pack() {
    let devices: Vec<_> = (0..DEVICES).map(|_| memory(SIZE)).collect();
    let [first, second, third] = [0, 1, 2].map(|at| Arc::clone(&devices[at]));
    let vdevs =
        vec![NewVdev::Device(first.into()), NewVdev::Mirror(vec![second.into(), third.into()])];
    let pool = Pool::create_tree(vdevs, &create_options(&cache(32 * MIB))).expect("a pool");
    let settings = DatasetSettings { record_bytes: RECORD as u32, ..DatasetSettings::default() };
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    data.set_root(&tx, number, 0).expect("space");
    let object = data.object(number).expect("it");
    for record in 0..RECORDS {
        object.write(&tx, record * RECORD, &[record as u8; RECORD as usize]).expect("space");
    }
    drop((tx, object, data));
    pool.export().expect("exported");
    let (arena, mut bytes) = (arena(), Vec::new());
    for device in &devices {
        for at in (0..SIZE).step_by(1 << 20) {
            let buffer = arena.alloc(1 << 20).expect("memory");
            bytes.extend_from_slice(
                &device.run(Request::read(at, buffer)).into_buffer().expect("it reads"),
            );
        }
    }
    let packed = zstd::bulk::compress(&bytes, 19).expect("it packs");
    std::fs::write(folder().join(format!("v{VERSION}.zst")), packed).expect("written");
}
