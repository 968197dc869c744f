//! Labels and imports over memory devices: whole, damaged, hostile, torn.

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_io::record::{RecordDevice, RecordOptions};
use forebay_io::{Device, MemoryDevice, MemoryOptions, OpenOptions, Priority, Request};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::Place;
use super::config::{Label, LabelBytes};
use super::create::{CreateOptions, NewVdev, add, create};
use super::features::{self, Feature};
use super::import::{ImportOptions, Imported, import};
use super::label::{self, CONFIG_BYTES, Uberblock};
use crate::block_cache::{BlockCache, BlockCacheOptions};
use crate::error::{Error, ErrorKind};
use crate::format::label::{
    FeatureClass, LABEL_BYTES, LabelPhys, MIN_DEVICE_BYTES, NodePhys, RING_OFFSET, RING_SLOTS,
    SLOT_BYTES, UberblockPhys, VERSION, tree_checksum,
};
use crate::format::{BlockPtrPhys, Dva, DvaPhys};
use crate::open::{HostId, Opened, open_path};

const SIZE: u64 = 16 << 20;

fn memory() -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes: 8 << 20, ..BlockCacheOptions::default() };
    BlockCache::new(options).unwrap()
}

fn device_of(name: &str, size_bytes: u64, sector_bytes: u32) -> Arc<MemoryDevice> {
    let options = MemoryOptions { sector_bytes, submission_queues: 1, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new(name, size_bytes, &options).unwrap())
}

fn devices(count: usize) -> Vec<Arc<MemoryDevice>> {
    (0..count).map(|n| device_of(&format!("disk{n}"), SIZE, 512)).collect()
}

fn striped(devices: &[Arc<MemoryDevice>]) -> Vec<NewVdev> {
    opened(devices).into_iter().map(NewVdev::Device).collect()
}

fn opened(devices: &[Arc<MemoryDevice>]) -> Vec<Opened> {
    devices.iter().map(|one| (Arc::clone(one) as Arc<dyn Device>).into()).collect()
}

fn host(id: u64) -> HostId {
    HostId { id, name: format!("host{id}") }
}

fn options(seed: u64) -> CreateOptions {
    CreateOptions {
        name: "tank".to_owned(),
        host: host(1),
        seed,
        force: false,
        heartbeat_ms: 0,
        sector_bytes: None,
    }
}

fn import_options() -> ImportOptions<'static> {
    let pause = &|_| panic!("it watches");
    ImportOptions {
        host: host(1),
        force: false,
        read_only: false,
        heartbeat_ms: 0,
        session: 1,
        pause,
    }
}

fn uberblock(txg: u64, device_count: usize) -> Uberblock {
    let copies = [DvaPhys::new(Dva { device: 0, offset: txg * 512 }), DvaPhys::NONE];
    let root = BlockPtrPhys { copies, birth_txg: U64::new(txg), ..BlockPtrPhys::HOLE };
    Uberblock {
        txg,
        time_ns: txg * 7,
        root,
        vdev_count: device_count as u16,
        previous_txg: txg - 1,
    }
}

fn commit(pool: &Imported, txg: u64, memory: &BlockCache) {
    let uberblock = uberblock(txg, pool.devices.count());
    label::write_uberblock(&pool.devices, pool.config.pool_guid, &uberblock, memory, &|| Ok(()))
        .unwrap();
}

/// A pool of so many devices, with one uberblock.
fn pool(memory_devices: &[Arc<MemoryDevice>], memory: &BlockCache) -> Imported {
    let pool = create(striped(memory_devices), &options(1), memory).unwrap();
    commit(&pool, 1, memory);
    pool
}

fn import_as(
    memory_devices: &[Arc<MemoryDevice>],
    id: u64,
    memory: &BlockCache,
) -> Result<Imported, Error> {
    import(
        opened(memory_devices),
        &ImportOptions { host: host(id), force: false, read_only: false, ..import_options() },
        memory,
    )
}

fn refused(memory_devices: &[Arc<MemoryDevice>], memory: &BlockCache) -> (ErrorKind, String) {
    let error = import_as(memory_devices, 1, memory).map(drop).unwrap_err();
    (error.kind(), error.to_string())
}

fn read_bytes(device: &MemoryDevice, at: u64, len: usize, memory: &BlockCache) -> Vec<u8> {
    let device: &dyn Device = device;
    let request = Request::read(at, memory.alloc(len).unwrap());
    device.run(request).into_buffer().unwrap().to_vec()
}

fn write_bytes(device: &MemoryDevice, at: u64, bytes: &[u8], memory: &BlockCache) {
    let device: &dyn Device = device;
    let mut buffer = memory.alloc(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    device.run(Request::write(at, buffer)).result.unwrap();
}

#[test]
fn a_pool_is_found_again_in_any_order() {
    let (memory, mut memory_devices) = (memory(), devices(3));
    let mut made = pool(&memory_devices, &memory);
    for txg in 2..100 {
        commit(&made, txg, &memory);
    }
    made.config.active = false;
    label::update_config(&made.devices, &mut made.config, &memory, &|_| Ok(())).unwrap();
    memory_devices.rotate_left(1);
    let found = import_as(&memory_devices, 2, &memory).unwrap();
    assert_eq!(found.config, made.config);
    let names: Vec<_> = found.devices.iter().map(|member| member.name().to_owned()).collect();
    assert_eq!(names, ["disk0", "disk1", "disk2"]);
    assert_eq!(found.devices.spans(), made.devices.spans());
    // As many as the ring has, the newest first.
    let txgs: Vec<_> = found.uberblocks.iter().map(|uberblock| uberblock.txg).collect();
    assert_eq!(txgs, (100 - RING_SLOTS..100).rev().collect::<Vec<_>>());
    assert_eq!(found.uberblocks[0], uberblock(99, 3));
}

#[test]
fn what_cannot_be_imported_says_why() {
    let (memory, memory_devices) = (memory(), devices(3));
    let empty = devices(1);
    assert_eq!(refused(&empty, &memory), (ErrorKind::NotAPool, "disk0: holds no pool".to_owned()));
    let made = pool(&memory_devices, &memory);
    let (kind, text) = refused(&memory_devices[..2], &memory);
    assert_eq!(kind, ErrorKind::NotAPool);
    let guid = format!("{:#x}", made.config.vdevs[2].guid);
    assert!(text.contains("device 2") && text.contains(&guid) && text.contains("disk1"), "{text}");
    let twice = [memory_devices.clone(), memory_devices[1..2].to_vec()].concat();
    let (kind, text) = refused(&twice, &memory);
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("given twice"), "{text}");
    let other = [device_of("stranger", SIZE, 512)];
    create(striped(&other), &CreateOptions { name: "other".to_owned(), ..options(2) }, &memory)
        .unwrap();
    let (kind, text) = refused(&[memory_devices.clone(), other.to_vec()].concat(), &memory);
    assert_eq!(kind, ErrorKind::NotAPool);
    assert!(text.contains("stranger") && text.contains("\"other\""), "{text}");
    // Created, and no txg committed.
    let (kind, text) = refused(&other, &memory);
    assert_eq!(kind, ErrorKind::NotAPool);
    assert!(text.contains("no uberblock"), "{text}");
    assert_eq!(refused(&[], &memory).0, ErrorKind::Invalid);
}

#[test]
fn another_hosts_pool_is_in_use_unless_forced_or_exported() {
    let (memory, memory_devices) = (memory(), devices(1));
    let mut made = pool(&memory_devices, &memory);
    import_as(&memory_devices, 1, &memory).unwrap();
    let error = import_as(&memory_devices, 2, &memory).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("host1"), "{error}");
    import(
        opened(&memory_devices),
        &ImportOptions { host: host(2), force: true, read_only: false, ..import_options() },
        &memory,
    )
    .unwrap();
    made.config.active = false;
    label::update_config(&made.devices, &mut made.config, &memory, &|_| Ok(())).unwrap();
    import_as(&memory_devices, 2, &memory).unwrap();
}

#[test]
fn devices_that_cannot_be_are_refused() {
    let memory = memory();
    let small = [device_of("small", MIN_DEVICE_BYTES - LABEL_BYTES, 512)];
    let error = create(striped(&small), &options(1), &memory).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("16777216"), "{error}");
    let memory_devices = devices(1);
    let twice = [memory_devices.clone(), memory_devices.clone()].concat();
    let error = create(striped(&twice), &options(1), &memory).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(create(Vec::new(), &options(1), &memory).is_err());
    for name in ["", "a/b", "a\nb", &"x".repeat(65)] {
        let options = CreateOptions { name: name.to_owned(), ..options(1) };
        let error = create(striped(&memory_devices), &options, &memory).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    pool(&memory_devices, &memory);
    let error = create(striped(&memory_devices), &options(2), &memory).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert!(error.to_string().contains("\"tank\""), "{error}");
    let forced = CreateOptions { force: true, ..options(2) };
    create(striped(&memory_devices), &forced, &memory).unwrap();
    // The older pool's uberblocks are gone.
    assert!(refused(&memory_devices, &memory).1.contains("no uberblock"));
}

#[test]
fn either_label_is_enough() {
    let (memory, memory_devices) = (memory(), devices(2));
    let made = pool(&memory_devices, &memory);
    for at in [0, SIZE - LABEL_BYTES] {
        let before = read_bytes(&memory_devices[1], at, LABEL_BYTES as usize, &memory);
        write_bytes(&memory_devices[1], at, &vec![0xa5; LABEL_BYTES as usize], &memory);
        assert_eq!(import_as(&memory_devices, 1, &memory).unwrap().config, made.config);
        write_bytes(&memory_devices[1], at, &before, &memory);
    }
    for at in [0, SIZE - LABEL_BYTES] {
        write_bytes(&memory_devices[1], at, &vec![0xa5; LABEL_BYTES as usize], &memory);
    }
    assert_eq!(refused(&memory_devices, &memory).0, ErrorKind::NotAPool);
}

/// A disk with logical sectors of 512 bytes and physical ones of 4,096.
fn emulating(name: &str) -> Arc<MemoryDevice> {
    let options =
        MemoryOptions { physical_bytes: 4096, submission_queues: 1, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new(name, SIZE, &options).unwrap())
}

#[test]
fn no_two_sectors_of_a_new_pool_share_a_physical_one_unless_asked_for() {
    let memory = memory();
    let of = |devices: &[Arc<MemoryDevice>], sector_bytes| {
        let options = CreateOptions { sector_bytes, force: true, ..options(7) };
        create(striped(devices), &options, &memory).map(|made| made.config.sector_bytes)
    };
    let mixed = [device_of("fine", SIZE, 512), emulating("disk")];
    assert_eq!(of(&mixed, None).unwrap(), 4096);
    assert_eq!(of(&mixed[..1], None).unwrap(), 512);
    for bytes in [512, 1024, 4096] {
        assert_eq!(of(&mixed, Some(bytes)).unwrap(), bytes);
    }
    for bytes in [0, 256, 768, 8192] {
        let error = of(&mixed, Some(bytes)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.contains(&format!("{bytes} bytes; give a power of two")), "{text}");
    }
    let text = of(&[device_of("coarse", SIZE, 4096)], Some(512)).unwrap_err().to_string();
    assert!(text.contains("coarse: has sectors of 4096 bytes"), "{text}");
    // A physical sector that is larger than those of the format.
    let options = MemoryOptions { physical_bytes: 16384, ..MemoryOptions::default() };
    let large = Arc::new(MemoryDevice::new("large", SIZE, &options).unwrap());
    assert_eq!(of(&[large], None).unwrap(), 4096);
}

#[test]
fn a_device_with_larger_physical_sectors_joins_only_if_that_is_accepted() {
    let memory = memory();
    let fine = pool(&devices(1), &memory);
    let mut config = fine.config.clone();
    let mut join = |sector_bytes| {
        let disk = NewVdev::Device((emulating("disk") as Arc<dyn Device>).into());
        let options = CreateOptions { sector_bytes, ..options(9) };
        add(&fine.devices, disk, &options, &mut config, &memory, &|_| Ok(()))
    };
    let text = join(None).unwrap_err().to_string();
    assert!(text.contains("disk: has physical sectors of 4096 bytes"), "{text}");
    assert!(text.contains("--sector 512"), "{text}");
    let text = join(Some(4096)).unwrap_err().to_string();
    assert!(text.contains("the pool was created with 512"), "{text}");
    assert_eq!(join(Some(512)).unwrap(), 1);
}

#[test]
fn sectors_are_the_largest_ones() {
    let memory = memory();
    let memory_devices = [device_of("fine", SIZE, 512), device_of("coarse", SIZE, 4096)];
    let made = pool(&memory_devices, &memory);
    assert_eq!((made.config.sector_bytes, made.devices.sector_bytes()), (4096, 4096));
    let fine = pool(&devices(1), &memory);
    let coarse = NewVdev::Device((Arc::clone(&memory_devices[1]) as Arc<dyn Device>).into());
    let options = CreateOptions { force: true, ..options(9) };
    let mut config = fine.config.clone();
    let error =
        add(&fine.devices, coarse, &options, &mut config, &memory, &|_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(config, fine.config);
}

/// Copies what is on `from` to a device of another size.
fn resized(from: &MemoryDevice, size_bytes: u64, memory: &BlockCache) -> Arc<MemoryDevice> {
    let to = device_of("resized", size_bytes, 512);
    for at in (0..size_bytes.min(from.info().size_bytes)).step_by(1 << 20) {
        write_bytes(&to, at, &read_bytes(from, at, 1 << 20, memory), memory);
    }
    to
}

#[test]
fn a_device_that_grew_is_found_and_expanded() {
    let (memory, memory_devices) = (memory(), devices(1));
    let made = pool(&memory_devices, &memory);
    let grown = [resized(&memory_devices[0], SIZE + (5 << 20) + 4096, &memory)];
    let mut found = import_as(&grown, 1, &memory).unwrap();
    assert_eq!(found.devices.spans(), made.devices.spans());
    // The front is lost, the back is where the device ended, and nobody knows where that was: not
    // found.
    let size = label::expand(&found.devices, 0, &mut found.config, &memory, &|_| Ok(())).unwrap();
    assert_eq!(size, SIZE + (5 << 20));
    assert_eq!(found.devices.spans()[0].end, size - LABEL_BYTES);
    commit(&found, 2, &memory);
    for at in [0, size - LABEL_BYTES] {
        let before = read_bytes(&grown[0], at, LABEL_BYTES as usize, &memory);
        write_bytes(&grown[0], at, &vec![0; LABEL_BYTES as usize], &memory);
        let again = import_as(&grown, 1, &memory).unwrap();
        assert_eq!((again.config.clone(), again.uberblocks[0].txg), (found.config.clone(), 2));
        write_bytes(&grown[0], at, &before, &memory);
    }
    assert_eq!(
        label::expand(&found.devices, 0, &mut found.config, &memory, &|_| Ok(())).unwrap(),
        size
    );
    assert!(label::expand(&found.devices, 1, &mut found.config, &memory, &|_| Ok(())).is_err());
}

#[test]
fn a_device_that_was_cut_short_says_so() {
    let memory = memory();
    let memory_devices = [device_of("long", 2 * SIZE, 512)];
    pool(&memory_devices, &memory);
    let (kind, text) = refused(&[resized(&memory_devices[0], SIZE, &memory)], &memory);
    assert_eq!(kind, ErrorKind::NotAPool);
    assert!(text.contains("was truncated") && text.contains(&(2 * SIZE).to_string()), "{text}");
}

#[test]
fn an_added_device_is_a_member_once_a_txg_says_so() {
    let (memory, memory_devices) = (memory(), devices(3));
    let mut made = pool(&memory_devices[..2], &memory);
    let before: Vec<_> =
        memory_devices[..2].iter().map(|one| resized(one, SIZE, &memory)).collect();
    let new = || NewVdev::Device((Arc::clone(&memory_devices[2]) as Arc<dyn Device>).into());
    assert_eq!(
        add(&made.devices, new(), &options(5), &mut made.config, &memory, &|_| Ok(())).unwrap(),
        2
    );
    assert_eq!(made.devices.count(), 3);
    // No txg yet: with it or without it, the pool is what it was.
    assert_eq!(import_as(&memory_devices, 1, &memory).unwrap().devices.count(), 2);
    assert_eq!(import_as(&memory_devices[..2], 1, &memory).unwrap().devices.count(), 2);
    // Not even the others' labels.
    let with_new = [before.clone(), memory_devices[2..].to_vec()].concat();
    let found = import_as(&with_new, 1, &memory).unwrap();
    assert_eq!(found.devices.count(), 2);
    commit(&made, 2, &memory);
    assert_eq!(import_as(&memory_devices, 1, &memory).unwrap().devices.count(), 3);
    assert!(refused(&memory_devices[..2], &memory).1.contains("device 2"));
    let error =
        add(&made.devices, new(), &options(6), &mut made.config, &memory, &|_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
}

#[test]
fn other_versions_and_unknown_features_are_named() {
    let (memory, memory_devices) = (memory(), devices(1));
    let made = pool(&memory_devices, &memory);
    let put = |bytes: &[u8]| {
        for at in [0, SIZE - LABEL_BYTES] {
            write_bytes(&memory_devices[0], at, bytes, &memory);
        }
    };
    let with_head = |change: &dyn Fn(&mut LabelPhys)| {
        let (mut head, nodes) = made.config.encode_parts(0, 0);
        change(&mut head);
        sealed(&head, &nodes)
    };
    for version in [VERSION - 1, VERSION + 1] {
        // A label of another version has its tree elsewhere.
        put(&with_head(&|head| {
            head.version = U32::new(version);
            head.tree_checksum = [0; 16];
        }));
        let (kind, text) = refused(&memory_devices, &memory);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(
            text.contains(&format!("version {version}")) && text.contains("\"tank\""),
            "{text}"
        );
    }
    let (head, mut nodes) = made.config.encode_parts(0, 0);
    nodes[1].kind = 5;
    put(&sealed(&head, &nodes));
    assert_eq!(refused(&memory_devices, &memory).0, ErrorKind::Unsupported);
    // The label of an object store, on a device that takes rewrites.
    nodes[1].kind = 4;
    put(&sealed(&head, &nodes));
    let (kind, text) = refused(&memory_devices, &memory);
    assert_eq!(kind, ErrorKind::NotAPool);
    assert!(text.contains("another kind of device"), "{text}");
    put(&made.config.encode(0, 0));
    let mut newer = UberblockPhys::empty();
    newer.version = U32::new(7);
    newer.pool_guid = U64::new(made.config.pool_guid);
    newer.txg = U64::new(2);
    newer.seal();
    write_bytes(&memory_devices[0], RING_OFFSET + 2 * SLOT_BYTES as u64, newer.as_bytes(), &memory);
    let (kind, text) = refused(&memory_devices, &memory);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("version 7"), "{text}");
}

/// The bytes of a label with these parts, whose checksums are right.
fn sealed(head: &LabelPhys, nodes: &[NodePhys]) -> Vec<u8> {
    let mut head = *head;
    // A count that is too large is not for the checksum to find.
    let counted = usize::from(head.node_count.get()).min(nodes.len());
    if head.version.get() == VERSION {
        head.tree_checksum = tree_checksum(&nodes[..counted]);
    }
    head.seal();
    let mut bytes = head.as_bytes().to_vec();
    bytes.extend_from_slice(nodes.as_bytes());
    bytes.resize(CONFIG_BYTES, 0);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Option<Label>, Error> {
    let mut bytes = bytes.to_vec();
    bytes.resize(CONFIG_BYTES, 0);
    Label::decode(&LabelBytes::of(&bytes).unwrap(), "disk")
}

#[test]
fn an_unknown_feature_in_use_is_named_with_what_still_works() {
    let (memory, memory_devices) = (memory(), devices(1));
    let made = pool(&memory_devices, &memory);
    let put = |class, uses| {
        let mut config = made.config.clone();
        config.features.push(Feature::of_another_build("org.example:new", class, uses));
        config.generation += 1;
        for at in [0, SIZE - LABEL_BYTES] {
            write_bytes(&memory_devices[0], at, &config.encode(0, 0), &memory);
        }
    };
    let read_only = || {
        let options = ImportOptions { read_only: true, ..import_options() };
        import(opened(&memory_devices), &options, &memory)
    };
    // Enabled, and not active: nothing uses it.
    put(FeatureClass::Incompatible, 0);
    let found = import_as(&memory_devices, 1, &memory).unwrap();
    let known = features::of_new_pool().len();
    assert_eq!(found.config.features[known].name, "org.example:new", "it is written back");
    put(FeatureClass::Compatible, 3);
    import_as(&memory_devices, 1, &memory).unwrap();
    put(FeatureClass::ReadOnlyCompatible, 1);
    let (kind, text) = refused(&memory_devices, &memory);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("org.example:new") && text.contains("import it read-only"), "{text}");
    read_only().unwrap();
    put(FeatureClass::Incompatible, 1);
    let (kind, text) = refused(&memory_devices, &memory);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("org.example:new") && text.contains("neither read nor"), "{text}");
    assert_eq!(read_only().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Labels that are sound and say anything at all: an error or a value, and no panic.
#[test]
fn hostile_labels_do_not_harm() {
    let (memory, memory_devices) = (memory(), devices(5));
    let mut rest = opened(&memory_devices).into_iter();
    let mut wanted = vec![NewVdev::Device(rest.next().unwrap())];
    wanted.push(NewVdev::Mirror(rest.by_ref().take(2).collect()));
    wanted.push(NewVdev::Mirror(rest.collect()));
    let made = create(wanted, &options(1), &memory).unwrap();
    let seed = 17;
    println!("seed {seed}");
    let mut rng = SmallRng::from_seed(seed);
    let good = made.config.encode_parts(1, 0);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..20_000 {
        let (mut head, mut nodes) = good.clone();
        for _ in 0..=rng.below(4) {
            // Where there is something, mostly.
            let value = rng.next_u64() as u8;
            match rng.below(3) {
                0 => head.as_mut_bytes()[rng.below(80) as usize] = value,
                1 => head.as_mut_bytes()[rng.below(4080) as usize] = value,
                _ => {
                    let bytes = nodes.as_mut_slice().as_mut_bytes();
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = value % 8;
                }
            }
        }
        if rng.below(4) == 0 {
            head.node_count = U16::new(rng.below(10) as u16);
            head.vdev_count = U16::new(rng.below(10) as u16);
            head.feature_count = U16::new(rng.below(100) as u16);
        }
        head.magic = good.0.magic;
        match decode(&sealed(&head, &nodes)) {
            Ok(Some(found)) => {
                accepted += 1;
                // What is accepted can be written again.
                let again = found.config.encode(found.number, found.leaf);
                assert_eq!(decode(&again).unwrap().unwrap(), found);
            }
            // A count of more nodes than there are.
            Ok(None) => refused += 1,
            Err(error) => {
                refused += 1;
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
            }
        }
    }
    assert!(refused > 1000 && accepted > 1000, "{refused} refused, {accepted} accepted");
}

#[test]
fn damaged_labels_are_no_labels() {
    let (memory, memory_devices) = (memory(), devices(1));
    let made = pool(&memory_devices, &memory);
    let mut rng = SmallRng::from_seed(23);
    for _ in 0..5000 {
        let mut label = made.config.encode(0, 0);
        // The head, or a node.
        label[rng.below(4096 + 2 * 64) as usize] ^= 1 << rng.below(8);
        assert_eq!(decode(&label).unwrap(), None);
    }
    assert!(LabelPhys::ref_from_bytes(&[0; SLOT_BYTES]).is_ok_and(|label| !label.is_sound()));
}

#[test]
fn hostile_uberblocks_do_not_harm() {
    let (memory, memory_devices) = (memory(), devices(1));
    let made = pool(&memory_devices, &memory);
    let seed = 29;
    println!("seed {seed}");
    let mut rng = SmallRng::from_seed(seed);
    for round in 0..3000 {
        let mut phys = UberblockPhys::empty();
        phys.pool_guid = U64::new(made.config.pool_guid);
        phys.txg = U64::new(2 + rng.below(40));
        phys.vdev_count = U32::new(1);
        let slot = phys.txg.get() % RING_SLOTS;
        for _ in 0..rng.below(4) {
            phys.as_mut_bytes()[rng.below(110) as usize] = rng.next_u64() as u8;
        }
        if round % 3 != 0 {
            phys.seal();
        }
        write_bytes(
            &memory_devices[0],
            RING_OFFSET + slot * SLOT_BYTES as u64,
            phys.as_bytes(),
            &memory,
        );
        match import_as(&memory_devices, 1, &memory) {
            Ok(found) => assert_eq!(found.devices.count(), 1),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
                write_bytes(
                    &memory_devices[0],
                    RING_OFFSET + slot * SLOT_BYTES as u64,
                    &[0; SLOT_BYTES],
                    &memory,
                );
            }
        }
    }
}

/// A crash at any point of a change of the configuration, or of writing an uberblock, leaves the
/// older or the newer one.
#[test]
fn a_crash_leaves_the_older_or_the_newer() {
    let memory = memory();
    let memory_devices = devices(1);
    let record = RecordDevice::new(
        Arc::clone(&memory_devices[0]) as Arc<dyn Device>,
        RecordOptions::default(),
    );
    let record = Arc::new(record);
    let recorded = NewVdev::Device((Arc::clone(&record) as Arc<dyn Device>).into());
    let mut made = create(vec![recorded], &options(1), &memory).unwrap();
    commit(&made, 1, &memory);
    let start = record.position();
    let old = made.config.clone();
    made.config.active = false;
    label::update_config(&made.devices, &mut made.config, &memory, &|_| Ok(())).unwrap();
    let middle = record.position();
    commit(&made, 2, &memory);
    let end = record.position();
    let recording = record.recording();
    let mut rng = SmallRng::from_seed(31);
    for at in start..=end {
        for _ in 0..4 {
            let point = recording.at(at);
            let image = point.sampled(&mut rng);
            let copy = device_of("image", SIZE, 512);
            for piece in (0..SIZE).step_by(1 << 20) {
                let mut bytes = vec![0; 1 << 20];
                image.read(piece, &mut bytes);
                write_bytes(&copy, piece, &bytes, &memory);
            }
            let found = import_as(&[copy], 1, &memory).unwrap();
            assert!(found.config == old || found.config == made.config);
            assert!(at < middle || found.config == made.config, "it was durable");
            assert!((1..=2).contains(&found.uberblocks[0].txg));
            assert!(at < end || found.uberblocks[0].txg == 2, "it was durable");
        }
    }
}

#[test]
fn requests_stay_between_the_labels() {
    let (memory, memory_devices) = (memory(), devices(2));
    let made = pool(&memory_devices, &memory);
    let read = |device, offset, len| {
        let buffer = memory.alloc(len).unwrap();
        made.devices.read(
            Place { dva: Dva { device, offset }, leaf: 0 },
            buffer,
            Priority::SyncRead,
        )
    };
    read(0, LABEL_BYTES, 4096).unwrap();
    read(1, SIZE - LABEL_BYTES - 512, 512).unwrap();
    for (device, offset, len) in [
        (0, 0, 512),
        (0, LABEL_BYTES - 512, 1024),
        (0, SIZE - LABEL_BYTES, 512),
        (1, SIZE - LABEL_BYTES - 512, 1024),
        (1, u64::MAX - 511, 512),
        (2, LABEL_BYTES, 512),
        (0, LABEL_BYTES + 1, 512),
        (0, LABEL_BYTES, 100),
    ] {
        let error = read(device, offset, len).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    let two = |first, second| {
        let at = |offset| (Dva { device: 1, offset }, memory.alloc_zeroed(512).unwrap());
        vec![at(first), at(second)]
    };
    made.devices.write_all(two(LABEL_BYTES, 1 << 20), Priority::SyncWrite).unwrap();
    assert!(made.devices.write_all(two(LABEL_BYTES, 0), Priority::SyncWrite).is_err());
    let places = two(LABEL_BYTES, 0).into_iter();
    let places = places.map(|(dva, buffer)| (Place { dva, leaf: 0 }, buffer)).collect();
    let ends = made.devices.read_all(places, Priority::SyncRead);
    assert!(ends[0].is_ok() && ends[1].is_err());
    made.devices.flush_all().unwrap();
    made.devices.close();
    made.devices.close();
    let buffer = memory.alloc(512).unwrap();
    let at = Dva { device: 0, offset: LABEL_BYTES };
    let error = made
        .devices
        .read(Place { dva: at, leaf: 0 }, buffer, Priority::SyncRead)
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    // The device itself is its owner's.
    read_bytes(&memory_devices[0], 0, 512, &memory);
}

#[test]
fn a_file_is_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let options = OpenOptions::default();
    assert_eq!(open_path(&path, &options).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    let new = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let first = open_path(&path, &new).unwrap();
    let error = open_path(&path, &options).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("disk"), "{error}");
    drop(first);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let readers = [open_path(&path, &read_only).unwrap(), open_path(&path, &read_only).unwrap()];
    assert_eq!(open_path(&path, &options).map(drop).unwrap_err().kind(), ErrorKind::InUse);
    drop(readers);
    let memory = memory();
    let again = open_path(&path, &options).unwrap();
    let made = create(vec![NewVdev::Device(again)], &self::options(1), &memory).unwrap();
    commit(&made, 1, &memory);
    made.devices.close();
    let found = vec![open_path(&path, &options).unwrap()];
    import(
        found,
        &ImportOptions { host: host(1), force: false, read_only: false, ..import_options() },
        &memory,
    )
    .unwrap();
    let short = folder.path().join("short");
    std::fs::write(&short, [0; 4096]).unwrap();
    assert_eq!(open_path(&short, &options).map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(
        open_path(folder.path(), &options).map(drop).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn this_host_has_an_id() {
    let host = HostId::of_this_host();
    assert_eq!(host, HostId::of_this_host());
}

#[test]
fn an_uberblock_of_a_txg_that_cannot_be_is_refused() {
    let memory = memory();
    for txg in [1 << 47, 1 << 48, u64::MAX] {
        let memory_devices = devices(1);
        let pool = pool(&memory_devices, &memory);
        let far = Uberblock { txg, ..uberblock(2, 1) };
        label::write_uberblock(&pool.devices, pool.config.pool_guid, &far, &memory, &|| Ok(()))
            .unwrap();
        drop(pool);
        let failed = import_as(&memory_devices, 1, &memory).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Corrupt, "{txg}: {failed}");
    }
}
