//! The events that the pool logs.

use std::sync::Arc;

use forebay_base::testing::{events, record_events};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Priority};
use forebay_pool::{AttachOptions, CreateOptions, EventKind, EventLog, Pool};

use crate::common::{MIB, cache, create_options, memory};
use crate::mirrors::{Sides, fill, overwrite, scribble, scrub};

#[test]
fn a_suspension_is_logged_once_with_pool_txg_and_error() {
    record_events();
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let faulty = Arc::new(FaultDevice::new(memory, 1));
    let device: Arc<dyn Device> = Arc::clone(&faulty) as Arc<dyn Device>;
    // A name of its own: other tests of this binary suspend pools at the same time.
    let options = CreateOptions { name: "suspends-once".to_owned(), ..create_options(&cache) };
    let pool = Pool::create(vec![device.into()], &options).expect("a pool");
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    let dataset = pool.create_dataset("data", &forebay_pool::DatasetSettings::default());
    assert!(dataset.is_err(), "it is durable when it returns");
    assert!(pool.sync().is_err());
    assert!(pool.sync().is_err(), "it stays suspended");
    assert!(pool.export().is_err());
    let of = |message: &str| events(&["pool=\"suspends-once\"", &format!("message={message}")]);
    let suspended = of("suspended pool");
    assert_eq!(suspended.len(), 1, "{suspended:?}");
    let suspended = &suspended[0];
    assert!(suspended.starts_with("ERROR ") && suspended.contains("txg="), "{suspended}");
    assert!(suspended.contains("error="), "{suspended}");
    assert_eq!(of("closed pool without a clean export").len(), 1);
}

#[test]
fn changes_of_a_pool_s_devices_are_logged() {
    record_events();
    let cache = cache(32 * MIB);
    let options = CreateOptions { name: "changes-devices".to_owned(), ..create_options(&cache) };
    let pool = Pool::create(vec![memory(64 * MIB).into()], &options).expect("a pool");
    pool.add_device(memory(64 * MIB).into(), false, None).expect("a second device");
    pool.expand(0).expect("it has not grown");
    let fast = memory(64 * MIB);
    let name = fast.info().name.to_string();
    pool.add_l2_device(fast.into(), false).expect("an L2 device");
    pool.remove_l2_device(&name).expect("it is listed");
    let logged = events(&["pool=\"changes-devices\""]);
    let messages = ["created pool", "added device", "added L2 device", "removed L2 device"];
    for message in messages {
        let found = logged.iter().filter(|event| event.contains(&format!("message={message}")));
        assert_eq!(found.count(), 1, "{message}: {logged:?}");
    }
    assert!(!logged.iter().any(|event| event.contains("expanded device")), "{logged:?}");
    let kinds: Vec<_> = noted(&pool).into_iter().map(|one| one.0).collect();
    let expected =
        [EventKind::Created, EventKind::DeviceAdded, EventKind::L2Added, EventKind::L2Removed];
    assert_eq!(kinds, expected);
}

#[test]
fn an_l2_device_that_fails_is_noted_once() {
    let pool = Pool::create(vec![memory(64 * MIB).into()], &create_options(&cache(32 * MIB)));
    let pool = pool.expect("a pool");
    let l2 = Arc::new(FaultDevice::new(memory(64 * MIB), 1));
    let name = Some(l2.info().name.to_string());
    pool.add_l2_device((Arc::clone(&l2) as Arc<dyn Device>).into(), false).expect("an L2 device");
    l2.add(Rule::new(Fault::Error(5)));
    // More than fits into memory, until the L2 has been written to.
    let is_lost = |one: &(EventKind, Option<String>, u64)| one.0 == EventKind::L2Lost;
    let data = pool.create_dataset("data", &forebay_pool::DatasetSettings::default());
    let data = data.expect("a dataset");
    let tx = pool.begin().expect("space");
    let object = data.create_object(&tx, &[]).and_then(|number| data.object(number)).expect("it");
    drop(tx);
    for nth in 0..200u64 {
        if noted(&pool).iter().any(is_lost) {
            break;
        }
        let tx = pool.begin().expect("space");
        object.write(&tx, nth % 32 * MIB, &[nth as u8 | 1; MIB as usize]).expect("space");
        drop(tx);
        pool.sync().expect("a txg");
    }
    let lost: Vec<_> = noted(&pool).into_iter().filter(is_lost).collect();
    assert_eq!(lost, [(EventKind::L2Lost, name, 1)]);
    drop(object);
    pool.export().expect("exported");
}

#[test]
fn sides_that_join_and_leave_are_noted() {
    let sides = Sides::new();
    let pool = sides.create();
    fill(&pool, 20);
    let [a, b] = [0, 1].map(|side: usize| sides.media[side].info().name.to_string());
    let [c, d] = [memory(32 * MIB), memory(32 * MIB)];
    let new = [&c, &d].map(|device| Some(device.info().name.to_string()));
    pool.attach_device(&a, c.into(), AttachOptions::default()).expect("it suits");
    pool.wait_resilver();
    pool.detach_device(&a).expect("others are whole");
    pool.replace_device(&b, d.into(), AttachOptions::default()).expect("it suits");
    pool.wait_resilver();
    let joins = [EventKind::DeviceAttached, EventKind::DeviceDetached];
    let found: Vec<_> = noted(&pool)
        .into_iter()
        .filter(|one| joins.contains(&one.0))
        .map(|one| (one.0, one.1))
        .collect();
    let [new_c, new_d] = new;
    let expected = [
        (EventKind::DeviceAttached, new_c),
        (EventKind::DeviceDetached, Some(a)),
        (EventKind::DeviceAttached, new_d),
        (EventKind::DeviceDetached, Some(b)),
    ];
    assert_eq!(found, expected);
    pool.export().expect("exported");
}

#[test]
fn sides_that_are_called_by_guid_are_noted_by_path() {
    let sides = Sides::new();
    let pool = sides.create();
    fill(&pool, 20);
    let [a, b] = [0, 1].map(|side: usize| sides.media[side].info().name.to_string());
    let [guid_a, guid_b] = [0, 1].map(|at: usize| format!("{:x}", pool.devices()[at].guid));
    pool.offline_device(&guid_b).expect("the other one is whole");
    pool.online_device(&guid_b).expect("it is there");
    pool.wait_resilver();
    let new = memory(32 * MIB);
    pool.attach_device(&guid_a, new.into(), AttachOptions::default()).expect("it suits");
    let found = pool.events().after(0).into_iter();
    let found: Vec<_> = found
        .filter_map(|one| match one.kind {
            EventKind::DeviceOffline | EventKind::DeviceOnline => {
                one.device.as_deref().map(str::to_owned)
            }
            EventKind::DeviceAttached => Some(one.detail),
            _ => None,
        })
        .collect();
    assert_eq!(found, [b.clone(), b, format!("beside {a}")]);
    pool.wait_resilver();
    pool.export().expect("exported");
}

#[test]
fn a_failed_write_of_the_intent_log_is_logged() {
    record_events();
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let faulty = Arc::new(FaultDevice::new(memory, 1));
    let device: Arc<dyn Device> = Arc::clone(&faulty) as Arc<dyn Device>;
    let pool = Pool::create(vec![device.into()], &create_options(&cache)).expect("a pool");
    let settings = forebay_pool::DatasetSettings::default();
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let tx = pool.begin().expect("a transaction");
    let number = data.create_object(&tx, &[]).expect("an object");
    drop(tx);
    pool.sync().expect("a commit");
    data.object(number).expect("the object").write(&pool.begin().expect("a tx"), 0, b"a").unwrap();
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write).at(Priority::SyncWrite).times(1));
    data.fsync(number).expect("the group makes it durable");
    let guid = format!("pool_guid={}", pool.guid());
    let closed = events(&[&guid, "message=closed intent log until the next commit"]);
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert!(closed[0].starts_with("WARN ") && closed[0].contains("error="), "{closed:?}");
}

/// The events that the pool has noted: kind, device, and how often.
fn noted(pool: &Pool) -> Vec<(EventKind, Option<String>, u64)> {
    let all = pool.events().after(0).into_iter();
    all.map(|one| (one.kind, one.device.as_deref().map(str::to_owned), one.count)).collect()
}

#[test]
fn what_happens_to_a_mirror_is_noted_with_its_device() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 20);
    let name = |side: usize| Some(sides.media[side].info().name.to_string());
    // A write that fails, then the device is gone.
    let rule = sides.faults[1].add(Rule::new(Fault::Error(5)).on(Op::Write).times(1));
    overwrite(&pool, number, 1, 1);
    sides.faults[1].remove(rule);
    pool.start_resilver().expect("it starts");
    pool.wait_resilver();
    let kinds: Vec<_> = noted(&pool);
    let expected = [
        (EventKind::Created, None, 1),
        (EventKind::DeviceDegraded, name(1), 1),
        (EventKind::ResilverBegan, None, 1),
    ];
    assert_eq!(kinds[..3], expected, "{kinds:?}");
    assert!(kinds.contains(&(EventKind::DeviceWhole, name(1), 1)), "{kinds:?}");
    let last = noted(&pool);
    assert_eq!(last.last().map(|one| one.0), Some(EventKind::ResilverEnded), "{last:?}");

    // Rot on one side: each healed copy counts, and they are one entry.
    scribble(&sides.media[0], 1 << 20, 30 << 20);
    let report = scrub(&pool);
    assert!(report.healed > 1, "{report:?}");
    let healed = noted(&pool).into_iter().find(|one| one.0 == EventKind::Healed).expect("it heals");
    assert_eq!((healed.1, healed.2), (name(0), report.healed));
    let log = Arc::clone(pool.events());
    let counted = pool.counters().into_iter().find(|group| group.part == "events").expect("counts");
    let of = |kind: EventKind| {
        let row = counted.counters.iter().find(|one| one.label == Some(kind.name()));
        row.expect("a row").value
    };
    assert_eq!(of(EventKind::Healed), report.healed);
    pool.export().expect("exported");
    assert_eq!(log.after(0).last().map(|one| one.kind), Some(EventKind::Exported));
}

#[test]
fn a_suspension_and_its_end_are_noted_and_pools_share_a_log() {
    let faulty = Arc::new(FaultDevice::new(memory(64 * MIB), 1));
    let device: Arc<dyn Device> = Arc::clone(&faulty) as Arc<dyn Device>;
    let log = EventLog::new();
    let cache = cache(32 * MIB);
    let options = CreateOptions { events: Some(Arc::clone(&log)), ..create_options(&cache) };
    let pool = Pool::create(vec![device.into()], &options).expect("a pool");
    let options = CreateOptions { seed: Some(8), ..options };
    let other = Pool::create(vec![memory(64 * MIB).into()], &options).expect("a pool");
    let rule = faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| pool.sync());
        while pool.suspension().is_none() {
            std::thread::yield_now();
        }
        faulty.remove(rule);
        pool.clear().expect("the device works again");
        let _ = synced.join().expect("it returns");
    });
    let of = |pool: &Pool| -> Vec<_> {
        let all = log.after(0).into_iter().filter(|one| one.pool_guid == pool.guid());
        all.map(|one| one.kind).collect()
    };
    let wanted =
        [EventKind::Created, EventKind::DeviceFailed, EventKind::Suspended, EventKind::Resumed];
    // The sync thread notes the last one after it has woken the waiters.
    while of(&pool).len() < wanted.len() {
        std::thread::yield_now();
    }
    assert_eq!(of(&pool), wanted);
    assert_eq!(of(&other), [EventKind::Created]);
}
