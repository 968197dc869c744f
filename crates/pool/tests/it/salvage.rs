//! Imports of damaged pools: older transaction groups, and imports that only read.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::format::{Compression, Dva};
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{DamagedTree, DatasetSettings, ErrorKind, ImportOptions, Opened, Pool};

use crate::common::{
    MIB, cache, check, create, create_options, dataset, import, import_options, memory,
};

const SIZE: u64 = 64 * MIB;
const RECORD: u64 = 8192;
const SECTOR: usize = 512;

fn arena() -> Arc<Arena> {
    let config = ArenaConfig { limit_bytes: 8 << 20, huge_pages: HugePages::Auto };
    Arena::new(config).expect("memory")
}

/// Overwrites a sector with garbage.
fn overwrite(devices: &[Arc<dyn Device>], dva: Dva) {
    let mut buffer = arena().alloc(SECTOR).expect("memory");
    buffer.fill(0xa5);
    let device = &devices[usize::from(dva.device)];
    device.run(Request::write(dva.offset, buffer)).result.expect("a write");
}

/// Overwrites all copies of a block's first sector.
fn destroy(device: &Arc<dyn Device>, copies: &[Dva]) {
    assert!(!copies.is_empty());
    copies.iter().for_each(|dva| overwrite(std::slice::from_ref(device), *dva));
}

fn inspector(device: &Arc<dyn Device>) -> Inspector {
    Inspector::new(vec![Arc::clone(device)]).expect("an inspector")
}

/// A pool whose object holds the number of its newest change, one group each, left as after a
/// crash. Returns the object and the newest txg.
fn changed(device: &Arc<dyn Device>, changes: u8) -> (u64, u64) {
    let pool = create(device, &cache(32 * MIB));
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    for change in 1..=changes {
        let tx = pool.begin().unwrap();
        data.object(number).unwrap().write(&tx, 0, &[change]).unwrap();
        drop(tx);
        pool.sync().unwrap();
    }
    let txg = pool.stats().synced_txg;
    drop(data);
    pool.abandon();
    (number, txg)
}

/// The object's content.
fn content(pool: &Pool, number: u64) -> u8 {
    let mut out = [0];
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object(number).unwrap().read(0, &mut out).unwrap(), 1);
    out[0]
}

/// What of a transaction group is destroyed.
#[derive(Clone, Copy, Debug)]
enum Part {
    Root,
    SpaceLog,
    OwnObjects,
}

impl Part {
    fn destroy(self, device: &Arc<dyn Device>) {
        let group = inspector(device).txg(None).unwrap().found;
        let copies = match self {
            Self::SpaceLog => group.space.log.copies,
            Self::Root => group.root.copies,
            Self::OwnObjects => group.own.root.copies,
        };
        destroy(device, &copies);
    }
}

fn with(device: &Arc<dyn Device>, options: ImportOptions) -> forebay_pool::Result<Pool> {
    Pool::import(vec![Arc::clone(device).into()], &options)
}

#[test]
fn a_damaged_group_is_given_up_on_request_and_the_import_says_what() {
    for part in [Part::Root, Part::SpaceLog, Part::OwnObjects] {
        let device = memory(SIZE);
        let (number, newest) = changed(&device, 5);
        part.destroy(&device);
        let error = with(&device, import_options(&cache(32 * MIB))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{part:?}: {error}");
        let text = error.to_string();
        let older = format!("`rewind` goes back to transaction group {}", newest - 1);
        assert!(text.contains(&older) && text.contains("gives up 1 transaction group"), "{text}");

        let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
        let pool = with(&device, options).unwrap_or_else(|error| panic!("{part:?}: {error}"));
        assert_eq!(content(&pool, number), 4, "{part:?}");
        let [note] = pool.import_notes() else { panic!("{:?}", pool.import_notes()) };
        let begin = format!(
            "imported transaction group {} instead of the newest, {newest}; gave up 1 transaction group: the changes of ",
            newest - 1
        );
        assert!(note.starts_with(&begin), "{note}");
        assert!(note.contains(" s, ") && note.contains("intent log"), "{note}");
        check(&pool);
        pool.abandon();
        // The choice is durable: no option is needed any more.
        let pool = import(&device, &cache(32 * MIB));
        assert_eq!(content(&pool, number), 4, "{part:?}");
        assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
        check(&pool);
    }
}

#[test]
fn a_rewind_of_a_whole_pool_gives_nothing_up() {
    let device = memory(SIZE);
    let (number, _) = changed(&device, 3);
    let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
    let pool = with(&device, options).unwrap();
    assert_eq!(content(&pool, number), 3);
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
}

#[test]
fn a_chosen_group_is_imported_and_its_successors_are_given_up() {
    let device = memory(SIZE);
    let (number, newest) = changed(&device, 5);
    let chosen = |txg| ImportOptions { txg: Some(txg), ..import_options(&cache(32 * MIB)) };
    let error = with(&device, chosen(newest + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains(&format!("those of {newest}, ")), "{error}");
    let pool = with(&device, chosen(newest - 2)).unwrap();
    assert_eq!(content(&pool, number), 3);
    assert!(pool.import_notes()[0].contains("gave up 2 transaction groups"), "{pool:?}");
    assert_eq!(pool.stats().synced_txg, newest + 1, "a number is never used again");
    pool.abandon();

    // A later rewind goes to the chosen group, not to those that were given up, although all of
    // these are newer and one is whole.
    Part::SpaceLog.destroy(&device);
    let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
    let pool = with(&device, options).unwrap();
    assert_eq!(content(&pool, number), 3, "{:?}", pool.import_notes());
    assert!(pool.import_notes()[0].contains("gave up 1 transaction group:"), "{pool:?}");
    check(&pool);
}

#[test]
fn without_a_whole_group_a_rewind_says_so_and_a_read_only_import_reads() {
    let device = memory(SIZE);
    let (number, newest) = changed(&device, 5);
    let inspector = inspector(&device);
    for txg in newest - 3..=newest {
        destroy(&device, &inspector.txg(Some(txg)).unwrap().found.space.log.copies);
    }
    let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
    let error = with(&device, options.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("no transaction group is whole"), "{error}");
    // The newest group is good enough for reading.
    let pool = with(&device, ImportOptions { read_only: true, ..options }).unwrap();
    assert_eq!(content(&pool, number), 5);
    assert_eq!(pool.import_notes().len(), 1, "{:?}", pool.import_notes());
}

/// An older group may have lost blocks, so it is named but not tried.
#[test]
fn a_rewind_past_three_damaged_groups_names_an_older_one() {
    let device = memory(SIZE);
    let (number, newest) = changed(&device, 6);
    let inspector = inspector(&device);
    for txg in newest - 2..=newest {
        destroy(&device, &inspector.txg(Some(txg)).unwrap().found.root.copies);
    }
    let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
    let error = with(&device, options.clone()).unwrap_err();
    let named = format!("the option `txg` {} and give up 3 transaction groups", newest - 3);
    assert!(error.to_string().contains(&named), "{error}");
    let chosen = ImportOptions { rewind: false, txg: Some(newest - 3), ..options };
    let pool = with(&device, chosen).unwrap();
    assert_eq!(content(&pool, number), 3);
    check(&pool);
}

/// The group that is given up was marked as imported, by this import: that is no takeover.
#[test]
fn damage_that_only_the_replay_meets_leads_to_an_older_group() {
    for shared in [false, true] {
        goes_back_after_the_replay(shared);
    }
}

/// `shared`: another host may have the device, so an import claims it.
fn goes_back_after_the_replay(shared: bool) {
    let device = memory(SIZE);
    let pool = create(&device, &cache(32 * MIB));
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("data", &settings).unwrap();
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    data.object(number).unwrap().write(&tx, 0, &[1; 2 * RECORD as usize]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let tx = pool.begin().unwrap();
    data.object(number).unwrap().write(&tx, 0, &[2; 2 * RECORD as usize]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    // A part of a record: the replay has to read the rest.
    let tx = pool.begin().unwrap();
    data.object(number).unwrap().write(&tx, 1, &[3]).unwrap();
    drop(tx);
    data.fsync(number).unwrap();
    drop(data);
    pool.abandon();
    let found = inspector(&device);
    let block = found.block(ObjsetName::Dataset("data"), BlockOwner::Object(number), (0, 0), None);
    destroy(&device, &block.unwrap().found.pointer.copies);

    let import = |rewind| {
        let opened = Arc::clone(&device);
        let opened = if shared { Opened::shared(opened) } else { opened.into() };
        let mut options = ImportOptions { rewind, ..import_options(&cache(32 * MIB)) };
        options.pause = Some(Arc::new(|_| {}));
        Pool::import(vec![opened], &options)
    };
    let error = import(false).unwrap_err();
    assert!(error.to_string().contains("replay its intent log"), "{error}");
    let pool = import(true).unwrap();
    assert_eq!(content(&pool, number), 1, "{:?}", pool.import_notes());
    assert!(pool.import_notes()[0].contains("because of damage"), "{:?}", pool.import_notes());
    check(&pool);
}

/// A device that cannot be written.
fn not_writable(device: &Arc<dyn Device>) -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device), 1));
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Flush));
    (Arc::clone(&faulty), faulty)
}

#[test]
fn a_read_only_import_needs_no_space_maps_and_no_writable_device() {
    let device = memory(SIZE);
    let (number, newest) = changed(&device, 5);
    let inspector = inspector(&device);
    let space = inspector.txg(None).unwrap().found.space;
    destroy(&device, &space.log.copies);
    destroy(&device, &space.index[0].copies);
    let (faulty, dynamic) = not_writable(&device);
    let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
    let pool = with(&dynamic, options).unwrap();
    assert_eq!(content(&pool, number), 5);
    let [note] = pool.import_notes() else { panic!("{:?}", pool.import_notes()) };
    assert!(note.starts_with("without space maps"), "{note}");
    let stats = pool.stats();
    assert_eq!((stats.synced_txg, stats.allocated_bytes), (newest, space.allocated_bytes));
    let report = pool.check(&mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.complete && report.has_problems(), "{report}");
    assert_eq!(report.damaged_count, 1, "{report}");
    assert_eq!(report.damaged[0].tree, DamagedTree::SpaceMaps, "{report}");
    pool.export().unwrap();
    assert!(faulty.injected().is_empty(), "{:?}", faulty.injected());
}

/// A pool of two devices with two objects, of one and of two copies.
fn striped() -> (Vec<Arc<dyn Device>>, u64, u64) {
    let devices = vec![memory(SIZE), memory(SIZE)];
    let opened = devices.iter().map(|device| Arc::clone(device).into()).collect();
    let pool = Pool::create(opened, &create_options(&cache(32 * MIB))).unwrap();
    let fill = |name: &str, copies| {
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: RECORD as u32,
            data_copies: copies,
            ..DatasetSettings::default()
        };
        let data = pool.create_dataset(name, &settings).unwrap();
        let tx = pool.begin().unwrap();
        let number = data.create_object(&tx, &[]).unwrap();
        drop(tx);
        for record in 0..600 {
            let tx = pool.begin().unwrap();
            let content = [record as u8; RECORD as usize];
            data.object(number).unwrap().write(&tx, record * RECORD, &content).unwrap();
        }
        number
    };
    let (single, double) = (fill("single", 1), fill("double", 2));
    pool.export().unwrap();
    (devices, single, double)
}

#[test]
fn with_a_missing_device_a_read_only_import_reads_what_has_copies_and_lists_the_rest() {
    let (devices, single, double) = striped();
    for (number, left) in devices.iter().enumerate() {
        let error = with(left, import_options(&cache(32 * MIB))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
        let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
        let pool = with(left, options).unwrap();
        let missing = 1 - number;
        let expected = format!("device {missing} (guid ");
        assert!(pool.import_notes()[0].starts_with(&expected), "{:?}", pool.import_notes());
        assert!(pool.devices()[missing].missing && !pool.devices()[number].missing);

        let unreadable = |name: &str, object: u64| -> Vec<u64> {
            let data = pool.dataset(name).unwrap();
            let object = data.object(object).unwrap();
            let mut out = vec![0; RECORD as usize];
            let read = |record: &u64| match object.read(record * RECORD, &mut out) {
                Ok(_) => {
                    assert!(out.iter().all(|byte| *byte == *record as u8));
                    false
                }
                Err(error) => {
                    assert!(error.to_string().contains("is missing"), "{error}");
                    true
                }
            };
            (0..600).filter(read).collect()
        };
        assert_eq!(unreadable("double", double), []);
        let lost = unreadable("single", single);
        assert!(!lost.is_empty() && lost.len() < 600, "{} of 600 records", lost.len());

        let report = pool.check(&mut |_| ControlFlow::Continue(())).unwrap();
        assert!(report.complete, "{report}");
        let [listed] = &*report.unreachable else { panic!("{report}") };
        assert_eq!(listed.object, format!("dataset single, object {single}"));
        assert_eq!(listed.blocks.iter().cloned().flatten().collect::<Vec<u64>>(), lost);
        assert_eq!(report.damaged_count, lost.len() as u64, "{report}");
        assert!(report.leaked.is_empty() && report.unmapped.is_empty(), "{report}");
    }
}

#[test]
fn the_inspector_tells_a_damaged_group_from_a_whole_one() {
    for part in [Part::Root, Part::SpaceLog, Part::OwnObjects] {
        let device = memory(SIZE);
        let (_, newest) = changed(&device, 3);
        assert!(inspector(&device).txg(None).unwrap().found.damage.is_empty());
        part.destroy(&device);
        let found = inspector(&device).txg(None).unwrap();
        // Without a root block, an older group is shown.
        let shown = if matches!(part, Part::Root) { newest - 1 } else { newest };
        assert_eq!(found.txg, shown, "{part:?}");
        assert!(!found.found.damage.is_empty(), "{part:?}: {found}");
    }
}

/// Blocks of the space maps are not named by an object, but by where they are.
#[test]
fn damage_of_space_maps_is_forgotten_once_they_are_rewritten() {
    let device = memory(SIZE);
    let (number, _) = changed(&device, 5);
    let pool = with(&device, import_options(&cache(32 * MIB))).unwrap();
    let found = inspector(&device).txg(None).unwrap().found;
    let own = [&found.space.log.copies, &found.space.index[0].copies];
    own.iter().for_each(|copies| destroy(&device, copies));
    let report = pool.check(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.damaged_count, 2, "{report}");
    let logged = || pool.damage().damage;
    assert_eq!(logged().len(), 2, "{:?}", logged());
    assert!(logged().iter().all(|one| one.tree == DamagedTree::SpaceMaps), "{:?}", logged());
    // A check of the pool that is left finds nothing in the end, and so does the log.
    let data = pool.dataset("data").unwrap();
    for round in 0..200u8 {
        let tx = pool.begin().unwrap();
        data.object(number).unwrap().write(&tx, 0, &[round]).unwrap();
        drop(tx);
        pool.sync().unwrap();
    }
    check(&pool);
    assert!(logged().is_empty(), "{:?}", logged());
    drop(data);
    pool.export().unwrap();
    // That is durable, too.
    let pool = with(&device, import_options(&cache(32 * MIB))).unwrap();
    assert!(pool.damage().damage.is_empty());
}
