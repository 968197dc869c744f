//! Takeovers of a pool on an object store whose log device does not know of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_io::Device;
use forebay_pool::{ImportOptions, Opened, Pool};

use crate::common::{MIB, cache, import_options};
use crate::log_device::{content, create_in_front_of, fsync};
use crate::object_store::Store;

/// Imports a pool. Returns also for how many seconds that has waited.
fn import_with(
    devices: Vec<Opened>,
    change: impl FnOnce(&mut ImportOptions),
) -> (forebay_pool::Result<Pool>, u64) {
    let waited_s = Arc::new(AtomicU64::new(0));
    let paused = Arc::clone(&waited_s);
    let mut options = import_options(&cache(32 * MIB));
    options.pause = Some(Arc::new(move |time| {
        paused.fetch_add(time.as_secs(), Ordering::Relaxed);
    }));
    change(&mut options);
    let imported = Pool::import(devices, &options);
    (imported, waited_s.load(Ordering::Relaxed))
}

/// The store accepts the new owner without force: its name is that of the former one, as on a
/// cloned machine.
#[test]
fn a_takeover_waits_for_an_owner_of_the_same_name_unless_that_has_ended_for_sure() {
    let store = Store::new();
    let (pool, number, log, _) = create_in_front_of(&store);
    fsync(&pool, number, 1);
    pool.abandon();
    let after = store.crash();
    let shared = |log: &Arc<dyn Device>| Opened::shared(Arc::clone(log));
    let (read, waited_s) =
        import_with(vec![after.opened(), shared(&log)], |options| options.read_only = true);
    read.expect("it writes nothing").export().expect("exported");
    assert_eq!(waited_s, 0);

    let (pool, waited_s) = import_with(vec![after.opened(), shared(&log)], |_| {});
    assert!(waited_s > 15, "another host may have the log device: {waited_s} s");
    let pool = pool.expect("the pool");
    assert_eq!(content(&pool, number), 1);
    fsync(&pool, number, 2);
    pool.abandon();

    let (after, again) = (after.crash(), after.crash());
    let opened = vec![after.opened().after_ended_owner(), shared(&log)];
    let (pool, waited_s) = import_with(opened, |_| {});
    assert_eq!(waited_s, 0, "the owner before has ended");
    let pool = pool.expect("the pool");
    assert_eq!(content(&pool, number), 2);
    pool.export().expect("exported");
    let (pool, waited_s) = import_with(vec![after.opened(), shared(&log)], |_| {});
    assert_eq!(waited_s, 0, "it was exported");
    pool.expect("the pool").export().expect("exported");

    // Elsewhere, without the log device: its owner may still rely on it.
    let (refused, waited_s) = import_with(vec![again.opened()], |_| {});
    refused.map(drop).expect_err("the log is missing");
    assert_eq!(waited_s, 0);
    let (pool, waited_s) = import_with(vec![again.opened()], |options| options.discard_log = true);
    assert!(waited_s > 15, "{waited_s} s");
    pool.expect("without the log").export().expect("exported");
}
