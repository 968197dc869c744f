//! The events that the pool logs.

use std::sync::Arc;

use forebay_base::testing::{events, record_events};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Priority};
use forebay_pool::{CreateOptions, Pool};

use crate::common::{MIB, cache, create_options, memory};

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
