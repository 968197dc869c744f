//! Labels, tunables, and the destruction of a pool.

use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::{ErrorKind, Opened, Pool, destroy, read_label};

use crate::common::{MIB, cache, create, create_options, dataset, import, import_options, memory};

fn opened(devices: &[Arc<dyn Device>]) -> Vec<Opened> {
    devices.iter().map(|device| Arc::clone(device).into()).collect()
}

#[test]
fn a_label_names_the_pool_and_the_host() {
    let (device, cache) = (memory(32 * MIB), cache(32 * MIB));
    assert!(read_label(&Arc::clone(&device).into(), &cache).unwrap().is_none());
    let pool = create(&device, &cache);
    let label = || read_label(&Arc::clone(&device).into(), &cache).unwrap().unwrap();
    let live = label();
    assert_eq!((live.pool_name.as_str(), live.device, live.device_count), ("tank", 0, 1));
    assert_eq!(live.pool_guid, pool.guid());
    assert!(live.active);
    assert_eq!(live.host.id, 1);
    let devices = pool.devices();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].size_bytes, live.size_bytes);
    assert_eq!(devices[0].path, *device.info().name);
    pool.close().unwrap();
    pool.close().unwrap();
    assert!(!label().active);
}

#[test]
fn tunables_report_their_current_values() {
    let (device, cache) = (memory(32 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    pool.set_tunable("txg_timeout_ms", "77").unwrap();
    let value = |name: &str| {
        let all = pool.tunables();
        all.into_iter().find(|(row, _)| row.name == name).map(|(_, value)| value)
    };
    assert_eq!(value("txg_timeout_ms").as_deref(), Some("77"));
    // The tunable is fixed at build time: changing it later would have no effect.
    let error = pool.set_tunable("in_flight_bytes", "2MiB").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(value("in_flight_bytes").as_deref(), Some("64MiB"));
}

#[test]
fn the_devices_of_a_destroyed_pool_can_be_reused() {
    let cache = cache(32 * MIB);
    let devices = [memory(32 * MIB), memory(32 * MIB)];
    let pool = Pool::create(opened(&devices), &create_options(&cache)).unwrap();
    dataset(&pool);
    pool.export().unwrap();

    let half = destroy(&opened(&devices[..1]), false, &cache).unwrap_err();
    assert_eq!(half.kind(), ErrorKind::NotAPool, "{half}");
    let twice = [Arc::clone(&devices[0]), Arc::clone(&devices[0])];
    let twice = destroy(&opened(&twice), false, &cache).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::NotAPool, "{twice}");
    Pool::import(opened(&devices), &import_options(&cache)).unwrap().export().unwrap();

    destroy(&opened(&devices), false, &cache).unwrap();
    for device in &devices {
        assert!(read_label(&Arc::clone(device).into(), &cache).unwrap().is_none());
    }
    let gone = Pool::import(opened(&devices), &import_options(&cache)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotAPool, "{gone}");
    let again = destroy(&opened(&devices), false, &cache).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NotAPool, "{again}");
    Pool::create(opened(&devices), &create_options(&cache)).unwrap();
}

#[test]
fn a_pool_in_use_by_another_host_is_destroyed_only_by_force() {
    let (device, cache) = (memory(32 * MIB), cache(32 * MIB));
    // The state after a crash of that host.
    create(&device, &cache).abandon();
    let devices = [Arc::clone(&device)];
    let error = destroy(&opened(&devices), false, &cache).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    import(&device, &cache).abandon();
    destroy(&opened(&devices), true, &cache).unwrap();
    assert!(read_label(&Arc::clone(&device).into(), &cache).unwrap().is_none());
}
