//! Sides of mirrors that are taken out of use and come back, and resilvers.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Crash, Fault, Rule};
use forebay_io::{Device, FileDevice, Op, OpenOptions};
use forebay_pool::format::label::LABEL_BYTES;
use forebay_pool::{
    AttachOptions, CreateOptions, ErrorKind, ImportOptions, LeafState, NewVdev, Opened, Pool,
};

use crate::common::{MIB, cache, check, copy, copy_of, create_options, import_options, memory};
use crate::l2_devices::HangingDevice;
use crate::mirrors::{
    RECORD, SIZE, Sides, counter, fill, import, overwrite, scrub, states, verify, write_and_sync,
};

const EIO: i32 = 5;

/// The path, or rather the name, of a side.
fn name(pool: &Pool, side: usize) -> String {
    format!("{:x}", pool.devices()[side].guid)
}

/// Each side alone has everything.
fn verify_alone(sides: &Sides, number: u64, records: u64, salt: u8) {
    for device in sides.devices() {
        let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
        let pool = Pool::import(vec![device.into()], &options).expect("a whole side");
        verify(&pool, number, records, salt);
        pool.export().expect("exported");
    }
}

#[test]
fn a_side_that_was_offline_gets_only_what_it_missed() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 1600);
    // A txg of its own: a side counts the newest one among those that it misses.
    overwrite(&pool, number, 1, 0);
    let side = name(&pool, 1);
    pool.offline_device(&side).expect("the other one is whole");
    pool.offline_device(&side).expect("it is already");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline]);
    overwrite(&pool, number, 16, 0xff);
    pool.export().expect("exported");

    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline], "an import keeps it");
    verify(&pool, number, 16, 0xff);
    pool.online_device(&side).expect("it works");
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert!(status.written > 0 && status.lost == 0 && !status.is_active, "{status:?}");
    assert_eq!(counter(&pool, "verify_failures"), 0, "what it misses is no error");
    let all = scrub(&pool);
    assert_eq!((all.healed, all.lost_count), (0, 0), "the resilver has left nothing");
    assert!(status.blocks < all.blocks / 2, "{status:?} of {} blocks", all.blocks);
    check(&pool);
    overwrite(&pool, number, 1600, 0xff);
    pool.export().expect("exported");
    verify_alone(&sides, number, 1600, 0xff);
}

#[test]
fn the_last_whole_side_stays_in_use() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    pool.offline_device(&name(&pool, 0)).expect("the other one is whole");
    let error = pool.offline_device(&name(&pool, 1)).expect_err("it is the last one");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("no other device of mirror 0 has all blocks"), "{error}");
    let error = pool.offline_device("nothing").expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    overwrite(&pool, number, 10, 1);
    verify(&pool, number, 10, 1);
    pool.export().expect("exported");
    let devices = sides.devices();
    // Without the whole side there is no pool.
    let error = import(&[&devices[0]]).map(drop).expect_err("it misses blocks");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");

    let plain = Pool::create(vec![memory(SIZE).into()], &create_options(&cache(32 * MIB)));
    let plain = plain.expect("a pool");
    let error = plain.offline_device(&name(&plain, 0)).expect_err("no mirror");
    assert!(error.to_string().contains("no side of a mirror"), "{error}");
    plain.export().expect("exported");
}

#[test]
fn a_faulted_side_comes_back_without_an_import() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    sides.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Flush));
    overwrite(&pool, number, 100, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    let side = name(&pool, 1);
    let error = pool.online_device(&side).expect_err("it still fails");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    sides.faults[1].clear();
    pool.online_device(&side).expect("it works");
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    pool.export().expect("exported");
    verify_alone(&sides, number, 100, 1);
}

/// A flush notices a truncated file, and the label at the beginning of the file does not.
#[test]
fn a_truncated_side_does_not_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name: &str| -> Arc<dyn Device> {
        let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
        Arc::new(FileDevice::open(folder.path().join(name), &options).expect("a file"))
    };
    let files = vec![open("a").into(), open("b").into()];
    let options = create_options(&cache(32 * MIB));
    let pool = Pool::create_tree(vec![NewVdev::Mirror(files)], &options).expect("a pool");
    let number = fill(&pool, 100);
    let side = name(&pool, 1);
    pool.offline_device(&side).expect("the other one is whole");
    let file = std::fs::File::options().write(true).open(folder.path().join("b"));
    file.and_then(|file| file.set_len(SIZE / 2)).expect("truncated");
    let error = pool.online_device(&side).expect_err("its end is gone");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline], "it was never used");
    assert_eq!(pool.resilver_status().blocks, 0);
    verify(&pool, number, 100, 0);
    pool.export().expect("exported");
}

#[test]
fn a_resilver_that_an_export_interrupts_starts_over() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 800);
    let side = name(&pool, 1);
    pool.offline_device(&side).expect("the other one is whole");
    overwrite(&pool, number, 800, 1);
    let slow = Fault::Delay(Duration::from_secs(1));
    sides.faults[1].add(Rule::new(slow).on(Op::Write).within(MIB..SIZE - MIB));
    let advice = |pool: &Pool| pool.health().reasons.join("\n");
    pool.online_device(&side).expect("it works");
    let said = advice(&pool);
    assert!(said.contains("a resilver brings them back"), "{said}");
    assert!(!said.contains("forebay online"), "{said}");
    pool.export().expect("exported");
    sides.faults[1].clear();
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    assert!(advice(&pool).contains("`forebay online` brings them back"), "{}", advice(&pool));
    assert!(pool.start_resilver().expect("it starts"));
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert!(!pool.start_resilver().expect("nothing is missed"));
    pool.export().expect("exported");
    verify_alone(&sides, number, 800, 1);
}

#[test]
fn a_resilver_that_a_suspension_has_ended_goes_on_after_a_clear() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    pool.export().expect("exported");
    let devices = sides.devices();
    let pool = import(&[&devices[0]]).expect("a whole side");
    overwrite(&pool, number, 100, 1);
    pool.export().expect("exported");
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    let blocks = LABEL_BYTES..SIZE - LABEL_BYTES;
    sides.faults[0].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(blocks));
    pool.sync().expect_err("no whole side takes a block");
    assert!(pool.start_resilver().expect("there is something to do"));
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    sides.faults[0].clear();
    pool.clear().expect("the side works");
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    pool.export().expect("exported");
    verify_alone(&sides, number, 100, 1);
}

#[test]
fn an_older_copy_of_a_side_that_misses_blocks_gets_all_that_it_lacks() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 800);
    let old = copy_of(&sides.media[1]);
    let side = name(&pool, 1);
    overwrite(&pool, number, 800, 1);
    overwrite(&pool, number, 1, 1);
    pool.offline_device(&side).expect("the other one is whole");
    overwrite(&pool, number, 1, 1);
    let slow = Fault::Delay(Duration::from_secs(1));
    sides.faults[1].add(Rule::new(slow).on(Op::Write).within(MIB..SIZE - MIB));
    pool.online_device(&side).expect("it works");
    pool.export().expect("exported");
    sides.faults[1].clear();
    copy(&*old, &*sides.media[1]);
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    assert!(pool.start_resilver().expect("it starts"));
    let status = pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2], "{status:?}");
    assert_eq!(scrub(&pool).healed, 0, "the resilver has left nothing");
    pool.export().expect("exported");
    verify_alone(&sides, number, 800, 1);
}

/// Power cuts at any time of a side's way out of use and back.
#[test]
fn crashes_beside_offline_online_and_resilvers_lose_nothing_that_was_synced() {
    let seeds = forebay_base::testing::requested_seed().map_or(0..24, |seed| seed..seed + 1);
    for seed in seeds {
        println!("FOREBAY_SEED={seed}");
        let mut rng = SmallRng::from_seed(seed);
        let sides = Sides::new();
        let pool = sides.create();
        let number = fill(&pool, 64);
        let side = name(&pool, rng.below(2) as usize);
        for fault in &sides.faults {
            fault.add(Rule::new(Fault::Volatile).on(Op::Write));
        }
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let count = 4 + rng.below(40);
        let (synced, written) = write_and_sync(&pool, &object, count, &mut rng, |rng| {
            match rng.below(6) {
                // The other side may not be whole yet.
                0 => drop(pool.offline_device(&side)),
                1 => pool.online_device(&side).expect("it works"),
                _ => {}
            }
        });
        drop(object);
        for (nth, fault) in sides.faults.iter().enumerate() {
            fault.crash(Crash::Sample(seed.wrapping_mul(2) + nth as u64)).expect("it crashes");
        }
        pool.abandon();
        let [a, b] = &sides.media;
        let pool = import(&[a, b]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pool.online_device(&side).expect("it works");
        let status = pool.wait_resilver();
        assert_eq!(states(&pool), [LeafState::Online; 2], "seed {seed}: {status:?}");
        let report = scrub(&pool);
        let found = (report.lost_count, report.healed);
        assert_eq!(found, (0, 0), "seed {seed}: {status:?}, then {report:?}");
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

/// Two sides with a pool in use, its object, and a copy of the second side from before.
fn copied() -> (Sides, Pool, u64, Arc<dyn Device>) {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let other = copy_of(&sides.media[1]);
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    (sides, pool, number, other)
}

#[test]
fn a_side_that_another_host_has_written_stays_offline() {
    let (sides, pool, number, other) = copied();
    let side = name(&pool, 1);
    pool.offline_device(&side).expect("the other one is whole");
    let apart = import(&[&other]).expect("a whole side");
    for salt in 1..20 {
        overwrite(&apart, number, 10, salt);
    }
    apart.export().expect("exported");
    copy(&*other, &*sides.media[1]);

    let error = pool.online_device(&side).expect_err("it has another history");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("written without the other sides"), "{error}");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline]);
    overwrite(&pool, number, 10, 0xff);
    verify(&pool, number, 10, 0xff);
    // Nothing else has what it got there.
    let error = pool.detach_device(&side).expect_err("it is not erased");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("keeps its labels"), "{error}");
    assert_eq!(states(&pool), [LeafState::Online], "it has left all the same");
    verify(&pool, number, 10, 0xff);
    pool.export().expect("exported");
    let apart = import(&[&sides.media[1]]).expect("what it has is there");
    verify(&apart, number, 10, 19);
    apart.export().expect("exported");
}

/// Its label does not say that the others miss something: it does not know them.
#[test]
fn a_side_that_has_left_the_mirror_on_another_host_stays_offline() {
    let (sides, pool, number, other) = copied();
    let (side, first) = (name(&pool, 1), name(&pool, 0));
    pool.offline_device(&side).expect("the other one is whole");
    let apart = import(&[&other]).expect("a whole side");
    apart.detach_device(&first).expect("it is missing");
    overwrite(&apart, number, 10, 1);
    apart.export().expect("exported");
    for salt in 1..20 {
        overwrite(&pool, number, 10, salt);
    }
    copy(&*other, &*sides.media[1]);
    let error = pool.online_device(&side).expect_err("it has another history");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Offline]);
    verify(&pool, number, 10, 19);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_another_host_wrote_stays_offline_though_a_third_one_has_left() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    let (first, side) = (name(&pool, 0), name(&pool, 1));
    let third = memory(SIZE);
    pool.attach_device(&first, Arc::clone(&third).into(), AttachOptions::default())
        .expect("attached");
    pool.wait_resilver();
    pool.export().expect("exported");
    let other = copy_of(&sides.media[1]);
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1], &third]).expect("all");
    let apart = import(&[&other]).expect("a whole side");
    overwrite(&apart, number, 10, 99);
    apart.export().expect("exported");
    // More groups than the other host has committed.
    for salt in 1..20 {
        overwrite(&pool, number, 10, salt);
    }
    pool.offline_device(&side).expect("the others are whole");
    pool.detach_device(&first).expect("the third one is whole");
    copy(&*other, &*sides.media[1]);
    let error = pool.online_device(&side).expect_err("it has another history");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    verify(&pool, number, 10, 19);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_hangs_on_its_way_back_holds_up_no_heartbeat() {
    let hanging = HangingDevice::new(memory(SIZE));
    let sides = vec![Opened::shared(memory(SIZE)), Opened::shared(Arc::clone(&hanging) as _)];
    let tunables = vec![("heartbeat_ms".to_owned(), "60000".to_owned())];
    let options = CreateOptions { tunables, ..create_options(&cache(32 * MIB)) };
    let pool = Pool::create_tree(vec![NewVdev::Mirror(sides)], &options).expect("a pool");
    let side = name(&pool, 1);
    pool.offline_device(&side).expect("the other one is whole");
    hanging.hang();
    let (done, beaten) = mpsc::channel();
    std::thread::scope(|scope| {
        let online = scope.spawn(|| pool.online_device(&side));
        hanging.wait();
        let pool = &pool;
        scope.spawn(move || {
            pool.heartbeat();
            done.send(()).expect("somebody waits");
        });
        let in_time = beaten.recv_timeout(Duration::from_secs(60));
        hanging.end();
        online.join().expect("no panic").expect("it works");
        in_time.expect("the heartbeat does not wait for the side");
    });
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
}
