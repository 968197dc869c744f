//! The events that the pool logs.

use std::sync::Arc;

use forebay_base::testing::{events, record_events};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
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
