//! Devices that join the log vdev, leave it, and take each other's places, beside fsyncs.

use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{AttachOptions, Error, ErrorKind, EventKind, LeafState, Pool, read_label};

use crate::common::{MIB, cache, check, copy_of, memory};
use crate::log_device::{
    Parts, content, counter, crash_holds, events, failing, fsync, import, states, write,
};

const EIO: i32 = 5;

fn attach(pool: &Pool, beside: usize, new: &Arc<dyn Device>) -> Result<(), Error> {
    pool.attach_device(&guid(pool, beside), Arc::clone(new).into(), AttachOptions::default())
}

fn replace(pool: &Pool, old: usize, new: &Arc<dyn Device>) -> Result<(), Error> {
    pool.replace_device(&guid(pool, old), Arc::clone(new).into(), AttachOptions::default())
}

/// The name of a device of the log by which the pool finds it.
fn guid(pool: &Pool, at: usize) -> String {
    let devices = pool.devices();
    let log: Vec<_> = devices.iter().filter(|one| one.log).collect();
    format!("{:x}", log[at].guid)
}

fn holds_label(device: &Arc<dyn Device>) -> bool {
    let label = read_label(&Arc::clone(device).into(), &cache(MIB));
    label.expect("it reads").is_some()
}

#[test]
fn a_log_device_gets_a_side_and_loses_the_first_beside_fsyncs() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    let new = memory(16 * MIB);
    std::thread::scope(|scope| {
        let attached = scope.spawn(|| attach(&pool, 0, &new));
        (2..50).for_each(|value| fsync(&pool, number, value));
        attached.join().expect("no panic").expect("it suits");
    });
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    assert_eq!(events(&pool, EventKind::DeviceAttached), 1);
    assert!(pool.vdevs()[1].mirror && pool.vdevs()[1].log);
    Parts::log_takes_fsyncs(&pool, number);
    // Either side alone has all.
    crash_holds(&[&parts.data(), &new], number, 9);
    crash_holds(&[&parts.data(), &parts.log(0)], number, 9);

    let old = parts.log(0);
    std::thread::scope(|scope| {
        let detached = scope.spawn(|| pool.detach_device(&guid(&pool, 0)));
        (10..50).for_each(|value| fsync(&pool, number, value));
        detached.join().expect("no panic").expect("the other one is whole");
    });
    assert!(!holds_label(&old), "its labels are erased");
    assert_eq!(states(&pool), [LeafState::Online]);
    assert!(!pool.vdevs()[1].mirror, "one device is no mirror");
    Parts::log_takes_fsync_of(&pool, number, 51);
    crash_holds(&[&parts.data(), &new], number, 51);
    let error = pool.detach_device(&guid(&pool, 0)).expect_err("it is the last one");
    assert!(error.to_string().contains("forebay log remove"), "{error}");
    pool.abandon();
    let pool = import(&[parts.data(), Arc::clone(&new)]).expect("the pool");
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    assert_eq!(content(&pool, number), 51);
    pool.remove_log().expect("removed");
    assert!(!holds_label(&new));
    pool.export().expect("exported");
    import(&[parts.data()]).expect("it needs no log device").export().expect("exported");
}

#[test]
fn a_healthy_a_faulted_and_a_missing_log_device_are_replaced() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    // A larger one, of which the log uses no more than before.
    let second = failing(memory(32 * MIB));
    let new: Arc<dyn Device> = Arc::clone(&second) as _;
    replace(&pool, 0, &new).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Online]);
    assert!(!holds_label(&parts.log(0)), "the old one has left");
    Parts::log_takes_fsyncs(&pool, number);
    crash_holds(&[&parts.data(), &new], number, 9);

    second.add(Rule::new(Fault::Error(EIO)).on(Op::Write));
    fsync(&pool, number, 10);
    assert_eq!(states(&pool), [LeafState::Faulted]);
    let error =
        replace(&pool, 0, &memory(16 * MIB)).expect_err("it is smaller than what is in use");
    assert!(error.to_string().contains("give a device of at least"), "{error}");
    let newer = memory(32 * MIB);
    replace(&pool, 0, &newer).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Online]);
    Parts::log_takes_fsyncs(&pool, number);
    crash_holds(&[&parts.data(), &newer], number, 9);
    pool.export().expect("exported");

    let pool = import(&[parts.data()]).expect("nothing was on it alone");
    assert_eq!(states(&pool), [LeafState::Missing]);
    let last = memory(32 * MIB);
    replace(&pool, 0, &last).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Online]);
    Parts::log_takes_fsyncs(&pool, number);
    pool.abandon();
    // The one that was missing is no member any more.
    let pool = import(&[parts.data(), Arc::clone(&last), newer]).expect("the pool");
    assert_eq!(content(&pool, number), 9);
    assert_eq!(states(&pool), [LeafState::Online]);
    assert!(pool.import_notes().iter().any(|note| note.contains("the pool does not list it")));
    check(&pool);
    pool.export().expect("exported");
}

#[test]
fn the_sides_of_a_mirror_of_logs_change() {
    let parts = Parts::new(2);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    let [third, fourth] = [memory(16 * MIB), memory(16 * MIB)];
    replace(&pool, 0, &third).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    attach(&pool, 1, &fourth).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Online; 3]);
    Parts::log_takes_fsyncs(&pool, number);
    for one in [&parts.log(1), &third, &fourth] {
        crash_holds(&[&parts.data(), one], number, 9);
    }
    // The ones that were there at first leave.
    let [first, second] = [guid(&pool, 0), guid(&pool, 1)];
    pool.detach_device(&first).expect("others are whole");
    pool.detach_device(&second).expect("the other one is whole");
    Parts::log_takes_fsyncs(&pool, number);
    pool.abandon();
    let pool = import(&[parts.data(), fourth]).expect("the pool");
    assert_eq!(content(&pool, number), 9);
    assert_eq!(states(&pool), [LeafState::Online]);
    check(&pool);
    pool.export().expect("exported");
}

#[test]
fn a_replacement_of_a_log_device_that_a_crash_interrupts_goes_on() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    let new = memory(16 * MIB);
    // The labels are written, and no group.
    let rule = Rule::new(Fault::Error(EIO)).on(Op::Write).within(MIB..63 * MIB);
    let rule = parts.data.add(rule);
    write(&pool, number, 2);
    replace(&pool, 0, &new).expect_err("no group is durable");
    pool.abandon();
    parts.data.remove(rule);
    assert!(holds_label(&new));
    // Without the old one nothing is certain.
    let error = import(&[copy_of(&parts.data()), copy_of(&new)]).map(drop).expect_err("1 is there");
    assert!(error.to_string().contains("discard_log"), "{error}");
    let pool = import(&[parts.data(), parts.log(0), Arc::clone(&new)]).expect("all");
    assert_eq!(content(&pool, number), 1);
    assert_eq!(states(&pool).len(), 2);
    let again = replace(&pool, 0, &memory(16 * MIB)).expect_err("it is already");
    assert!(again.to_string().contains("is replacing it already"), "{again}");
    assert!(pool.start_resilver().expect("it starts"));
    pool.wait_resilver();
    assert_eq!(states(&pool), [LeafState::Online]);
    assert!(!holds_label(&parts.log(0)), "the old one has left");
    Parts::log_takes_fsyncs(&pool, number);
    pool.abandon();
    let pool = import(&[parts.data(), new]).expect("the pool");
    assert_eq!(content(&pool, number), 9);
    pool.export().expect("exported");
}

#[test]
fn a_new_log_device_that_fails_takes_nothing_with_it() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    // It takes labels, but no stamps or records after them.
    let bad = Arc::new(FaultDevice::new(memory(16 * MIB), 7));
    bad.add(Rule::new(Fault::Error(EIO)).on(Op::Flush).after(4));
    let error = attach(&pool, 0, &(Arc::clone(&bad) as _)).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("detach it"), "{error}");
    bad.clear();
    fsync(&pool, number, 2);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    crash_holds(&[&parts.data(), &parts.log(0)], number, 2);
    pool.detach_device(&guid(&pool, 1)).expect("the other one is whole");
    assert_eq!(states(&pool), [LeafState::Online]);
    Parts::log_takes_fsyncs(&pool, number);
    let name = guid(&pool, 0);
    for refused in [pool.offline_device(&name), pool.online_device(&name)] {
        let error = refused.expect_err("it is of the log");
        assert!(error.to_string().contains("is a device of the log"), "{error}");
    }
    pool.export().expect("exported");
}

#[test]
fn a_side_that_failed_before_the_log_went_on_with_another_one_is_not_believed() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    let rule = parts.logs[0].add(Rule::new(Fault::Error(EIO)).on(Op::Write));
    fsync(&pool, number, 2);
    assert_eq!(states(&pool), [LeafState::Faulted]);
    let new = memory(16 * MIB);
    attach(&pool, 0, &new).expect("it suits");
    assert_eq!(states(&pool), [LeafState::Faulted, LeafState::Online]);
    parts.logs[0].remove(rule);
    let batches = counter(&pool, "batches");
    fsync(&pool, number, 3);
    assert_eq!(counter(&pool, "batches"), batches + 1, "the log is on the new one");
    let failed = &pool.devices()[1];
    assert!(failed.missed_from.is_some() && failed.missed_to.is_none(), "{failed:?}");
    let error = import(&[copy_of(&parts.data()), copy_of(&parts.log(0))]).map(drop);
    let error = error.expect_err("3 is not there");
    assert!(error.to_string().contains("lacks what came after txg"), "{error}");
    crash_holds(&[&parts.data(), &new], number, 3);
    // It leaves, or comes back.
    pool.clear_errors().expect("cleared");
    pool.sync().expect("durable");
    pool.sync().expect("durable");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    Parts::log_takes_fsyncs(&pool, number);
    crash_holds(&[&parts.data(), &parts.log(0)], number, 9);
    pool.export().expect("exported");
}
