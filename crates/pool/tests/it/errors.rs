//! The error log and the health of pools.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::testing::{events, record_events};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::format::label::LABEL_BYTES;
use forebay_pool::format::{Compression, DamageKind};
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{
    CreateOptions, DamagedTree, Dataset, DatasetSettings, ErrorKind, HealthState, ImportOptions,
    LoggedDamage, Pool, ScrubReport,
};

use crate::common::{MIB, cache, check, create, create_options, import, import_options, memory};

const RECORD: u64 = 4096;
const DATA: ObjsetName<'_> = ObjsetName::Dataset("data");

fn settings(data_copies: u8) -> DatasetSettings {
    DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        data_copies,
        metadata_copies: 1,
        ..DatasetSettings::default()
    }
}

/// Writes an object of so many records into a new dataset, and exports the pool.
fn fill(pool: Pool, records: u64, copies: u8) -> u64 {
    let data = pool.create_dataset("data", &settings(copies)).expect("a dataset");
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    let bytes: Vec<u8> = (0..records * RECORD).map(|at| 1 + (at / RECORD % 100) as u8).collect();
    object.write(&tx, 0, &bytes).expect("space");
    drop((tx, object, data));
    pool.export().expect("exported");
    number
}

/// A device with a pool whose only object has so many records.
fn filled(records: u64, copies: u8) -> (Arc<dyn Device>, u64) {
    let device = memory(64 * MIB);
    let number = fill(create(&device, &cache(32 * MIB)), records, copies);
    (device, number)
}

/// Overwrites a copy of a block with garbage.
pub(crate) fn damage(
    device: &Arc<dyn Device>,
    set: ObjsetName<'_>,
    object: u64,
    (block, level): (u64, u8),
    copy: usize,
) {
    let inspector = Inspector::new(vec![Arc::clone(device)]).expect("memory");
    let found = inspector.block(set, BlockOwner::Object(object), (block, level), None);
    let offset = found.expect("it").found.pointer.copies[copy].offset;
    let config = ArenaConfig { limit_bytes: 8 << 20, huge_pages: HugePages::Auto };
    let mut buffer = Arena::new(config).expect("memory").alloc(512).expect("memory");
    buffer.fill(0xa5);
    device.run(Request::write(offset, buffer)).result.expect("memory");
}

fn read(data: &Dataset, number: u64, record: u64) -> Result<usize, ErrorKind> {
    let object = data.object(number).map_err(|error| error.kind())?;
    let read = object.read(record * RECORD, &mut [0; RECORD as usize]);
    read.map_err(|error| {
        let text = error.to_string();
        assert!(!text.contains("Some(") && !text.contains("none]"), "debug output: {text}");
        error.kind()
    })
}

fn overwrite(pool: &Pool, data: &Dataset, number: u64, record: u64) {
    let tx = pool.begin().expect("space");
    let object = data.object(number).expect("it");
    object.write(&tx, record * RECORD, &[9; RECORD as usize]).expect("space");
}

fn scrub(pool: &Pool) -> ScrubReport {
    pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs")
}

fn logged(pool: &Pool) -> Vec<String> {
    let report = pool.damage();
    assert_eq!(report.unlisted, 0);
    texts(&report.damage)
}

fn texts(damage: &[LoggedDamage]) -> Vec<String> {
    damage.iter().map(LoggedDamage::to_string).collect()
}

#[test]
fn a_lost_block_stays_in_the_log_until_it_is_overwritten_and_scrubbed() {
    let (device, number) = filled(10, 1);
    damage(&device, DATA, number, (3, 0), 0);
    let cache = cache(32 * MIB);
    let pool = import(&device, &cache);
    assert_eq!(pool.health().state, HealthState::Online);
    let data = pool.dataset("data").expect("it");
    assert_eq!(read(&data, number, 3), Err(ErrorKind::Corrupt));
    assert_eq!(read(&data, number, 3), Err(ErrorKind::Corrupt));
    read(&data, number, 4).expect("it is good");
    let lost = format!("dataset data, object {number}, block 3: no good copy");
    assert_eq!(logged(&pool), [&*lost]);
    let first = pool.damage().damage.remove(0);
    assert_eq!((first.kind, first.tree), (DamageKind::NoGoodCopy, DamagedTree::Object(number)));
    assert_eq!((first.blocks, first.count), (Some(1), 2));
    assert_eq!(pool.health().state, HealthState::Damaged);
    drop(data);
    pool.export().expect("exported");

    // It is known before anything is read.
    let pool = import(&device, &cache);
    assert_eq!(logged(&pool), [&*lost]);
    assert_eq!(pool.damage().damage[0].first_txg, first.first_txg);
    assert_eq!(pool.health().state, HealthState::Damaged);
    let report = scrub(&pool);
    assert_eq!(texts(&report.lost), [&*lost]);
    assert_eq!((report.lost_count, logged(&pool)), (1, vec![lost.clone()]));

    let data = pool.dataset("data").expect("it");
    overwrite(&pool, &data, number, 3);
    pool.sync().expect("a txg");
    assert_eq!(logged(&pool), [lost], "nobody has looked");
    assert_eq!(scrub(&pool).lost_count, 0);
    assert_eq!((logged(&pool), pool.health().state), (vec![], HealthState::Online));
    drop(data);
    pool.abandon();
    let pool = import(&device, &cache);
    assert_eq!((logged(&pool), pool.health().state), (vec![], HealthState::Online));
    check(&pool);
}

#[test]
fn a_cleared_log_stays_empty_after_a_crash() {
    let (device, number) = filled(10, 1);
    damage(&device, DATA, number, (3, 0), 0);
    let cache = cache(32 * MIB);
    let pool = import(&device, &cache);
    let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!((report.damaged.len(), report.damaged_count), (1, 1), "{report}");
    assert_eq!(logged(&pool).len(), 1, "a check tells it, too");
    pool.sync().expect("a txg");
    pool.clear_errors().expect("durable");
    assert_eq!((logged(&pool), pool.health().state), (vec![], HealthState::Online));
    pool.abandon();
    let pool = import(&device, &cache);
    assert_eq!(logged(&pool), [""; 0]);
}

#[test]
fn a_read_only_import_shows_the_log_and_writes_nothing() {
    let (device, number) = filled(10, 1);
    [3, 7].iter().for_each(|record| damage(&device, DATA, number, (*record, 0), 0));
    let cache = cache(32 * MIB);
    let pool = import(&device, &cache);
    let data = pool.dataset("data").expect("it");
    assert_eq!(read(&data, number, 3), Err(ErrorKind::Corrupt));
    drop(data);
    pool.export().expect("exported");
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&device), 1));
    let watched: Arc<dyn Device> = faulty.clone();
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    let options = ImportOptions { read_only: true, ..import_options(&cache) };
    let pool = Pool::import(vec![watched.into()], &options).expect("the pool");
    assert_eq!((logged(&pool).len(), pool.health().state), (1, HealthState::Damaged));
    let data = pool.dataset("data").expect("it");
    assert_eq!(read(&data, number, 7), Err(ErrorKind::Corrupt));
    assert_eq!(logged(&pool).len(), 2);
    assert_eq!(pool.clear_errors().expect_err("it is read-only").kind(), ErrorKind::ReadOnly);
    drop(data);
    pool.export().expect("exported");
    assert_eq!(faulty.injected().len(), 0, "nothing was written");
    let pool = import(&device, &cache);
    assert_eq!(logged(&pool).len(), 1);
}

#[test]
fn a_resumed_scrub_lists_what_it_found_before_the_import() {
    let (device, number) = filled(600, 1);
    [5, 590].iter().for_each(|record| damage(&device, DATA, number, (*record, 0), 0));
    let cache = cache(32 * MIB);
    let pool = import(&device, &cache);
    let found =
        |report: &ScrubReport| report.lost.iter().map(|lost| lost.block).collect::<Vec<_>>();
    let report = pool.scrub(&mut |progress| match progress.problems {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let report = report.expect("it runs");
    assert!(!report.complete);
    assert_eq!((report.lost_count, found(&report)), (1, vec![5]));
    pool.export().expect("exported");
    let pool = import(&device, &cache);
    let report = scrub(&pool);
    assert!(report.complete);
    assert_eq!((report.lost_count, found(&report)), (2, vec![5, 590]));
    assert_eq!(logged(&pool).len(), 2);
}

#[test]
fn a_bad_copy_degrades_the_pool_until_a_scrub_heals_it() {
    let (device, number) = filled(10, 2);
    damage(&device, DATA, number, (3, 0), 1);
    let pool = import(&device, &cache(32 * MIB));
    let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!(report.damaged_count, 1, "{report}");
    assert_eq!(pool.damage().damage[0].kind, DamageKind::BadCopy);
    let health = pool.health();
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    assert_eq!(scrub(&pool).healed, 1);
    assert_eq!((logged(&pool), pool.health().state), (vec![], HealthState::Online));
    check(&pool);
}

#[test]
fn lost_pointers_and_dnodes_name_all_that_they_lead_to() {
    let (device, number) = filled(700, 1);
    damage(&device, DATA, number, (512, 1), 0);
    let pool = import(&device, &cache(32 * MIB));
    let data = pool.dataset("data").expect("it");
    read(&data, number, 511).expect("its pointer is elsewhere");
    assert_eq!(read(&data, number, 600), Err(ErrorKind::Corrupt));
    assert_eq!(read(&data, number, 650), Err(ErrorKind::Corrupt));
    let lost = format!("dataset data, object {number}, blocks 512 to 1023: no good copy");
    assert_eq!(logged(&pool), [&*lost]);
    assert_eq!(scrub(&pool).lost_count, 1);
    assert_eq!(logged(&pool), [lost], "the scrub means the same range");
}

#[test]
fn errors_of_a_device_are_told_until_they_are_cleared() {
    record_events();
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    // A name of its own: other tests of this binary log at the same time.
    let options = CreateOptions { name: "breaks".to_owned(), ..create_options(&cache) };
    let pool = Pool::create(vec![Arc::clone(&memory).into()], &options).expect("a pool");
    let number = fill(pool, 10, 1);
    let faulty = Arc::new(FaultDevice::new(memory, 1));
    let device: Arc<dyn Device> = faulty.clone();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").expect("it");
    let object = data.object(number).expect("it");
    let broken = || Rule::new(Fault::Error(5)).on(Op::Read);
    faulty.add(broken());
    let error = object.read(0, &mut [0; RECORD as usize]).expect_err("it cannot be read");
    faulty.clear();
    assert!(
        error.is_gone() && pool.damage().damage.is_empty(),
        "the device may come back: {error}"
    );
    // It answers: its label can be read.
    faulty.add(broken().within(LABEL_BYTES..64 * MIB));
    object.read(0, &mut [0; RECORD as usize]).expect_err("it cannot be read");
    faulty.clear();
    assert_eq!(pool.damage().damage[0].kind, DamageKind::Unreadable);
    let health = pool.health();
    assert_eq!(health.state, HealthState::Damaged);
    let requests = health.reasons.iter().find(|reason| reason.contains("requests failed"));
    assert!(requests.is_some(), "{health:?}");
    let of_it = |message: &str| events(&["pool=\"breaks\"", &format!("message={message}")]);
    let found = of_it("damaged block");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("ERROR ") && found[0].contains("object="), "{found:?}");
    assert!(!events(&["message=device error"]).is_empty());
    pool.clear_errors().expect("durable");
    let health = pool.health();
    assert_eq!((health.state, health.reasons.len()), (HealthState::Online, 0), "{health:?}");
    object.read(0, &mut [0; RECORD as usize]).expect("the device works again");
}

#[test]
fn checksum_errors_are_logged_when_they_are_healed() {
    record_events();
    let (device, number) = filled(10, 2);
    damage(&device, DATA, number, (3, 0), 0);
    let pool = import(&device, &cache(32 * MIB));
    let data = pool.dataset("data").expect("it");
    read(&data, number, 3).expect("the other copy is good");
    for message in ["checksum mismatch", "healed block"] {
        let found = events(&[&format!("message={message}")]);
        assert!(found.iter().any(|event| event.starts_with("WARN ")), "{message}: {found:?}");
    }
    assert_eq!((logged(&pool), pool.health().state), (vec![], HealthState::Online));
}

#[test]
fn a_suspended_pool_says_so() {
    let memory = memory(64 * MIB);
    let faulty = Arc::new(FaultDevice::new(memory, 1));
    let device: Arc<dyn Device> = faulty.clone();
    let pool = create(&device, &cache(32 * MIB));
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    assert!(pool.create_dataset("data", &settings(1)).is_err(), "it is durable when it returns");
    let health = pool.health();
    assert_eq!(health.state, HealthState::Suspended);
    assert!(health.reasons[0].starts_with("transaction group "), "{health:?}");
    assert!(pool.export().is_err());
}

#[test]
fn a_damaged_error_log_is_replaced() {
    let (device, number) = filled(10, 1);
    let inspector = Inspector::new(vec![Arc::clone(&device)]).expect("memory");
    let is_log = |number: &u64| {
        let found = inspector.object(ObjsetName::Own, *number, None);
        found.is_ok_and(|object| object.found.kind == "bytes")
    };
    let log = (1..100).find(is_log).expect("the error log");
    damage(&device, DATA, number, (3, 0), 0);
    (0..2).for_each(|copy| damage(&device, ObjsetName::Own, log, (0, 0), copy));
    let cache = cache(32 * MIB);
    let pool = import(&device, &cache);
    let own = format!("the pool's own object {log}, block 0: no good copy");
    assert_eq!(logged(&pool), [&*own]);
    let data = pool.dataset("data").expect("it");
    assert_eq!(read(&data, number, 3), Err(ErrorKind::Corrupt));
    drop(data);
    pool.export().expect("exported");
    let pool = import(&device, &cache);
    let lost = format!("dataset data, object {number}, block 3: no good copy");
    assert_eq!(logged(&pool), [own, lost.clone()]);
    assert_eq!(scrub(&pool).lost_count, 1);
    assert_eq!(logged(&pool), [lost], "the new log is good");
}
