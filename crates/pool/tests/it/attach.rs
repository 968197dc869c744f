//! Devices that join vdevs, leave them, and take each other's places, beside writes and crashes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, MemoryDevice, MemoryOptions, Op, Request};
use forebay_pool::{AttachOptions, ErrorKind, ImportOptions, LeafState, Pool, read_label};

use crate::common::{MIB, arena, cache, check, create_options, import_options, memory};
use crate::mirrors::{
    RECORD, SIZE, Sides, fill, import, overwrite, scrub, states, verify, write_and_sync,
};

const EIO: i32 = 5;

fn attach(pool: &Pool, device: &str, new: &Arc<dyn Device>) -> Result<(), forebay_pool::Error> {
    pool.attach_device(device, Arc::clone(new).into(), AttachOptions::default())
}

fn replace(pool: &Pool, device: &str, new: &Arc<dyn Device>) -> Result<(), forebay_pool::Error> {
    pool.replace_device(device, Arc::clone(new).into(), AttachOptions::default())
}

/// The name of a device by which the pool finds it.
fn name(pool: &Pool, at: usize) -> String {
    format!("{:x}", pool.devices()[at].guid)
}

/// A pool on one device.
fn plain(device: &Arc<dyn Device>) -> Pool {
    Pool::create(vec![Arc::clone(device).into()], &create_options(&cache(32 * MIB)))
        .expect("a pool")
}

/// The device alone has everything.
fn verify_alone(device: &Arc<dyn Device>, number: u64, records: u64, salt: u8) {
    let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
    let pool = Pool::import(vec![Arc::clone(device).into()], &options).expect("a whole side");
    verify(&pool, number, records, salt);
    pool.export().expect("exported");
}

fn holds_label(device: &Arc<dyn Device>) -> bool {
    let label = read_label(&Arc::clone(device).into(), &cache(MIB));
    label.expect("it reads").is_some()
}

#[test]
fn a_device_that_was_replaced_while_it_was_away_is_named_when_it_is_back() {
    let [a, b, c] = [memory(SIZE), memory(SIZE), memory(SIZE)];
    let pool = plain(&a);
    let number = fill(&pool, 20);
    attach(&pool, &name(&pool, 0), &b).expect("it suits");
    pool.wait_resilver();
    pool.export().expect("exported");
    let pool = import(&[&a]).expect("a whole side");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Missing]);
    replace(&pool, &name(&pool, 1), &c).expect("it suits");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");

    let pool = import(&[&a, &b, &c]).expect("b is no side any more");
    let note = format!("{} is not used: the pool does not list it", b.info().name);
    let notes = pool.import_notes();
    assert!(notes.iter().any(|one| one.starts_with(&note)), "{notes:?}");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    verify(&pool, number, 20, 0);
    pool.export().expect("exported");
    let pool = import(&[&a, &c]).expect("both");
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    pool.export().expect("exported");
}

/// A scrub finds nothing to heal, and nothing lost.
fn scrub_clean(pool: &Pool) {
    let report = scrub(pool);
    assert_eq!((report.healed, report.lost_count), (0, 0), "{report:?}");
    check(pool);
}

#[test]
fn a_plain_device_becomes_a_mirror_and_a_plain_device_again() {
    let [a, b] = [memory(SIZE), memory(SIZE)];
    let pool = plain(&a);
    let number = fill(&pool, 400);
    let before = pool.vdevs()[0].guid;
    attach(&pool, &name(&pool, 0), &b).expect("it suits");
    overwrite(&pool, number, 10, 0);
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert!(status.written >= 400 && status.lost == 0, "{status:?}");
    let vdev = &pool.vdevs()[0];
    assert!(vdev.mirror && vdev.guid != before, "{vdev:?}");
    scrub_clean(&pool);
    pool.export().expect("exported");
    verify_alone(&a, number, 400, 0);
    verify_alone(&b, number, 400, 0);

    let pool = import(&[&b, &a]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.detach_device(&name(&pool, 0)).expect("the other one is whole");
    assert!(!holds_label(&a), "its labels are erased");
    let vdev = &pool.vdevs()[0];
    assert!(!vdev.mirror && vdev.devices.len() == 1, "{vdev:?}");
    let error = pool.detach_device(&name(&pool, 0)).expect_err("it is the last one");
    assert!(error.to_string().contains("no side of a mirror"), "{error}");
    overwrite(&pool, number, 400, 1);
    verify(&pool, number, 400, 1);
    attach(&pool, &name(&pool, 0), &a).expect("it comes back as a new one");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.detach_device(&name(&pool, 1)).expect("the other one is whole");
    overwrite(&pool, number, 400, 2);
    pool.export().expect("exported");
    let pool = import(&[&b]).expect("a plain device");
    assert!(!pool.vdevs()[0].mirror);
    verify(&pool, number, 400, 2);
    scrub_clean(&pool);
    pool.export().expect("exported");
}

/// Where a device has these bytes.
fn place_of(device: &Arc<dyn Device>, bytes: &[u8]) -> u64 {
    let holds = |at: &u64| {
        let buffer = arena().alloc(bytes.len()).expect("memory");
        let read = device.run(Request::read(*at, buffer)).into_buffer().expect("it reads");
        read[..] == *bytes
    };
    (MIB..SIZE - MIB).step_by(512).find(holds).expect("it was written")
}

#[test]
fn one_unreadable_block_keeps_no_other_from_a_new_side() {
    let [old, new] = [memory(SIZE), memory(SIZE)];
    let faults = Arc::new(FaultDevice::new(Arc::clone(&old), 7));
    let pool = plain(&(Arc::clone(&faults) as _));
    let number = fill(&pool, 200);
    let mut rng = SmallRng::from_seed(3);
    // They do not compress. One of the first is unreadable.
    let mut write_all = |records: u64| {
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let mut first = Vec::new();
        for record in 0..records {
            let words = (0..RECORD / 8).flat_map(|_| rng.next_u64().to_le_bytes());
            let words: Vec<_> = words.collect();
            let tx = pool.begin().expect("space");
            object.write(&tx, record * RECORD, &words).expect("space");
            drop(tx);
            pool.sync().expect("a txg");
            first = if record == 0 { words } else { first };
        }
        first
    };
    let at = place_of(&old, &write_all(20));
    let bad = faults.add(Rule::new(Fault::Error(EIO)).on(Op::Read).within(at..at + RECORD));
    attach(&pool, &name(&pool, 0), &new).expect("it suits");
    let status = pool.wait_resilver();
    assert_eq!(status.lost, 1, "{status:?}");
    assert!(status.written >= 199, "{status:?}");
    assert_ne!(states(&pool), [LeafState::Online; 2], "it misses a block");
    faults.remove(bad);
    overwrite(&pool, number, 200, 1);
    pool.online_device(&name(&pool, 1)).expect("it is in use");
    let status = pool.wait_resilver();
    assert_eq!(status.lost, 0, "{status:?}");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    verify_alone(&new, number, 200, 1);
}

#[test]
fn a_mirror_gets_a_third_side_and_loses_its_first() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 200);
    let third = memory(SIZE + 8 * MIB);
    attach(&pool, &name(&pool, 1), &third).expect("it suits");
    let error = pool.detach_device("nothing").expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    pool.wait_resilver();
    pool.detach_device(&name(&pool, 0)).expect("two others are whole");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    overwrite(&pool, number, 200, 1);
    let gone = import(&[&sides.devices()[0]]).map(drop).expect_err("its labels are erased");
    assert_eq!(gone.kind(), ErrorKind::NotAPool, "{gone}");
    scrub_clean(&pool);
    pool.export().expect("exported");
    verify_alone(&sides.devices()[1], number, 200, 1);
    verify_alone(&third, number, 200, 1);
}

#[test]
fn a_healthy_a_faulted_and_a_missing_side_are_replaced() {
    let sides = Sides::new();
    let mut pool = sides.create();
    let number = fill(&pool, 200);
    let new = [memory(SIZE), memory(SIZE), memory(SIZE)];
    replace(&pool, &name(&pool, 1), &new[0]).expect("it suits");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "the old one has left by itself");
    assert!(!holds_label(&sides.media[1]));

    sides.faults[0].add(Rule::new(Fault::Error(EIO)).on(Op::Flush));
    overwrite(&pool, number, 200, 1);
    assert_eq!(states(&pool), [LeafState::Faulted, LeafState::Online]);
    replace(&pool, &name(&pool, 0), &new[1]).expect("it suits");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    verify_alone(&new[0], number, 200, 1);

    pool = import(&[&new[1]]).expect("a whole side");
    assert_eq!(states(&pool), [LeafState::Missing, LeafState::Online]);
    overwrite(&pool, number, 200, 2);
    replace(&pool, &name(&pool, 0), &new[2]).expect("it suits");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    scrub_clean(&pool);
    pool.export().expect("exported");
    verify_alone(&new[1], number, 200, 2);
    verify_alone(&new[2], number, 200, 2);
    let stale = import(&[&new[0], &new[1]]).expect("the stale one is no member");
    verify(&stale, number, 200, 2);
    stale.export().expect("exported");
}

#[test]
fn a_replaced_plain_device_gives_way_to_a_larger_one() {
    let [small, large] = [memory(SIZE), memory(2 * SIZE)];
    let pool = plain(&small);
    let number = fill(&pool, 200);
    let before = pool.vdevs()[0].devices[0].size_bytes;
    replace(&pool, &name(&pool, 0), &large).expect("it suits");
    pool.wait_resilver();
    let vdev = &pool.vdevs()[0];
    assert!(!vdev.mirror && vdev.devices.len() == 1, "{vdev:?}");
    assert_eq!(vdev.devices[0].size_bytes, 2 * before);
    overwrite(&pool, number, SIZE / RECORD, 1);
    pool.export().expect("exported");
    let pool = import(&[&large]).expect("it");
    verify(&pool, number, SIZE / RECORD, 1);
    scrub_clean(&pool);
    pool.export().expect("exported");
}

#[test]
fn a_replacement_that_an_export_or_a_kill_interrupts_goes_on() {
    for is_killed in [false, true] {
        let sides = Sides::new();
        let pool = sides.create();
        let number = fill(&pool, 600);
        let medium = memory(SIZE);
        let slow = Arc::new(FaultDevice::new(Arc::clone(&medium), 7));
        let delay = Fault::Delay(Duration::from_millis(500));
        slow.add(Rule::new(delay).on(Op::Write).within(MIB..SIZE - MIB));
        let new: Arc<dyn Device> = Arc::clone(&slow) as _;
        replace(&pool, &name(&pool, 0), &new).expect("it suits");
        overwrite(&pool, number, 10, 0);
        match is_killed {
            true => pool.abandon(),
            false => pool.export().expect("exported"),
        }
        let old = sides.devices();
        let pool = import(&[&old[0], &old[1], &medium]).expect("all");
        let expected = [LeafState::Online, LeafState::Online, LeafState::Degraded];
        assert_eq!(states(&pool), expected);
        let again = replace(&pool, &name(&pool, 0), &memory(SIZE)).expect_err("it is already");
        assert!(again.to_string().contains("is replacing it already"), "{again}");
        assert!(pool.start_resilver().expect("it starts"));
        let status = pool.wait_resilver();
        assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
        assert!(!holds_label(&sides.media[0]));
        scrub_clean(&pool);
        pool.export().expect("exported");
        verify_alone(&medium, number, 600, 0);
    }
}

#[test]
fn a_replacement_is_given_up_by_a_detach_of_the_new_device() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 50);
    let new = Arc::new(FaultDevice::new(memory(SIZE), 7));
    // It takes labels, but no blocks.
    new.add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(MIB..SIZE - MIB));
    replace(&pool, &name(&pool, 0), &(Arc::clone(&new) as _)).expect("it suits");
    pool.wait_resilver();
    assert_eq!(pool.devices().len(), 3, "the old one stays");
    assert_eq!(states(&pool)[..2], [LeafState::Online; 2]);
    pool.detach_device(&name(&pool, 2)).expect("two others are whole");
    pool.start_resilver().expect("nothing to do");
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "nothing is replaced any more");
    overwrite(&pool, number, 50, 1);
    scrub_clean(&pool);
    pool.export().expect("exported");
}

#[test]
fn devices_that_do_not_suit_are_refused() {
    let sides = Sides::new();
    let pool = sides.create();
    let refused = |new: &Arc<dyn Device>, kind, text: &str| {
        let error = attach(&pool, &name(&pool, 0), new).expect_err(text);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(&memory(SIZE - MIB), ErrorKind::Invalid, "give a device of at least");
    refused(&sides.devices()[0], ErrorKind::Invalid, "is a device of the pool");
    let options = MemoryOptions { sector_bytes: 4096, ..MemoryOptions::default() };
    let coarse = MemoryDevice::new("coarse", SIZE, &options).expect("a device");
    refused(&(Arc::new(coarse) as _), ErrorKind::Invalid, "larger than the pool's");
    let taken = memory(SIZE);
    plain(&taken).export().expect("exported");
    refused(&taken, ErrorKind::Exists, "holds pool");
    assert!(holds_label(&taken), "it is as it was");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    let error = attach(&pool, "nothing", &memory(SIZE)).expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    // One that takes one of its labels keeps none.
    let medium = memory(SIZE);
    let half = Arc::new(FaultDevice::new(Arc::clone(&medium), 7));
    // After the flush of the cleared labels.
    half.add(Rule::new(Fault::Error(EIO)).on(Op::Flush).nth(2));
    attach(&pool, &name(&pool, 0), &(half as _)).expect_err("its labels are not durable");
    assert!(!holds_label(&medium), "its labels are erased");

    // One that takes no label joins nothing.
    let bad = Arc::new(FaultDevice::new(memory(SIZE), 7));
    bad.add(Rule::new(Fault::Error(EIO)).on(Op::Flush));
    attach(&pool, &name(&pool, 0), &(bad as _)).expect_err("it takes no label");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
}

#[test]
fn a_detached_side_that_was_missing_is_never_taken_for_the_newer_one() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let [a, b] = &sides.media;
    let pool = import(&[b]).expect("a whole side");
    overwrite(&pool, number, 10, 1);
    pool.detach_device(&name(&pool, 0)).expect("it is missing");
    overwrite(&pool, number, 10, 2);
    pool.export().expect("exported");
    // The detached one is used alone, until its labels are the newer ones.
    for salt in 3..9 {
        let pool = import(&[a]).expect("it does not know that it was detached");
        overwrite(&pool, number, 10, salt);
        pool.export().expect("exported");
    }
    let error = import(&[a, b]).map(drop).expect_err("which one is right?");
    assert!(error.to_string().contains("each used without the other"), "{error}");
    let pool = import(&[b]).expect("the one to keep");
    verify(&pool, number, 10, 2);
    pool.export().expect("exported");
}

#[test]
fn a_detach_whose_commit_fails_goes_on_once_the_pool_does() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    let side = name(&pool, 0);
    // The labels are written, and no blocks.
    let rules = sides
        .faults
        .each_ref()
        .map(|fault| fault.add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(MIB..SIZE - MIB)));
    let data = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let tx = pool.begin().expect("space");
    data.write(&tx, 0, &[9; RECORD as usize]).expect("space");
    drop((tx, data));
    pool.detach_device(&side).expect_err("nothing is durable");
    assert!(holds_label(&sides.media[0]), "the pool still counts on it");
    for (fault, rule) in sides.faults.iter().zip(rules) {
        fault.remove(rule);
    }
    pool.clear().expect("it goes on");
    pool.detach_device(&side).expect("it goes on, too");
    assert!(!holds_label(&sides.media[0]), "its labels are erased");
    let error = pool.detach_device(&side).expect_err("it has left");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    pool.export().expect("exported");
}

/// Notes the requests for records.
struct Noting {
    inner: Arc<dyn Device>,
    noted: Mutex<Vec<(Op, u64)>>,
}

impl Decorator for Noting {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        // Not the labels.
        if request.len() == RECORD && (MIB..SIZE - MIB).contains(&request.offset()) {
            self.noted.lock().unwrap().push((request.op(), request.offset()));
        }
        Some(request)
    }
}

#[test]
fn a_new_side_is_written_in_the_order_of_the_device_and_not_read() {
    let [old, medium] = [memory(SIZE), memory(SIZE)];
    let pool = plain(&old);
    let number = fill(&pool, 1);
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut rng = SmallRng::from_seed(3);
    let mut left: Vec<u64> = (0..64).collect();
    // A group each, so that their order on the device is not that in the object.
    while !left.is_empty() {
        let record = left.swap_remove(rng.below(left.len() as u64) as usize);
        // It does not compress.
        let words = (0..RECORD / 8).flat_map(|_| rng.next_u64().to_le_bytes());
        let tx = pool.begin().expect("space");
        object.write(&tx, record * RECORD, &words.collect::<Vec<_>>()).expect("space");
        drop(tx);
        pool.sync().expect("a txg");
    }
    drop(object);
    let noting = Arc::new(Noting { inner: medium, noted: Mutex::new(Vec::new()) });
    attach(&pool, &name(&pool, 0), &(Arc::clone(&noting) as _)).expect("it suits");
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert!(status.bytes <= status.total_bytes && status.bytes >= 64 * RECORD, "{status:?}");
    let noted = std::mem::take(&mut *noting.noted.lock().unwrap());
    assert!(noted.iter().all(|(op, _)| *op == Op::Write), "{noted:?}");
    // Blocks are begun in order, six at a time. So a write comes before at most five that were
    // begun earlier. In a random order it comes before sixteen, on average.
    let overtaken = |at: usize| noted[at..].iter().filter(|later| later.1 < noted[at].1).count();
    let most = (0..noted.len()).map(overtaken).max();
    assert!(noted.len() >= 64 && most <= Some(5), "{most:?} {noted:?}");
    pool.export().expect("exported");
}

/// Power cuts at any time of attaching, detaching and replacing beside writes.
#[test]
fn crashes_beside_changes_of_the_sides_lose_nothing_that_was_synced() {
    let seeds = forebay_base::testing::requested_seed().map_or(0..32, |seed| seed..seed + 1);
    for seed in seeds {
        println!("FOREBAY_SEED={seed}");
        let mut rng = SmallRng::from_seed(seed);
        let media: Vec<_> = (0..4).map(|_| memory(SIZE)).collect();
        let fault = |at: u64| Arc::new(FaultDevice::new(Arc::clone(&media[at as usize]), at));
        let faults: Vec<_> = (0..4).map(fault).collect();
        let devices: Vec<Arc<dyn Device>> = faults.iter().map(|one| Arc::clone(one) as _).collect();
        let pool = plain(&devices[0]);
        let number = fill(&pool, 64);
        for fault in &faults {
            fault.add(Rule::new(Fault::Volatile).on(Op::Write));
        }
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let count = 4 + rng.below(40);
        let (synced, written) = write_and_sync(&pool, &object, count, &mut rng, |rng| {
            // A resilver that ends may take one away between two looks.
            let found = pool.devices();
            let at = format!("{:x}", found[rng.below(found.len() as u64) as usize].guid);
            let new = &devices[rng.below(4) as usize];
            // It may be a device already, or the last whole one. A detached one is closed.
            match rng.below(8) {
                0 | 1 => drop(attach(&pool, &at, new)),
                2 => drop(replace(&pool, &at, new)),
                3 => drop(pool.detach_device(&at)),
                4 => drop(pool.wait_resilver()),
                _ => {}
            }
        });
        drop(object);
        for (nth, fault) in faults.iter().enumerate() {
            fault.crash(Crash::Sample(seed.wrapping_mul(4) + nth as u64)).expect("it crashes");
        }
        pool.abandon();
        let labelled: Vec<_> = media.iter().filter(|one| holds_label(one)).collect();
        let pool = import(&labelled).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pool.start_resilver().expect("it starts");
        pool.wait_resilver();
        let found: Vec<_> = pool.devices();
        let is_good = |state| matches!(state, LeafState::Online | LeafState::Missing);
        assert!(found.iter().all(|one| is_good(one.state)), "seed {seed}: {found:?}");
        let report = scrub(&pool);
        assert_eq!((report.lost_count, report.healed), (0, 0), "seed {seed}: {report:?}");
        check(&pool);
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let mut out = vec![0; RECORD as usize];
        object.read(0, &mut out).expect("it reads");
        let found = out[0];
        assert!(out.iter().all(|byte| *byte == found), "seed {seed}: torn");
        assert!((synced..=written).contains(&found), "seed {seed}: {found} of {synced}");
        drop(object);
        pool.export().expect("exported");
    }
}
