//! What a new vdev counts from.

use forebay_base::sync::Arc;
use forebay_io::{Device, MemoryDevice, MemoryOptions};

use super::*;
use crate::block_cache::BlockCacheOptions;
use crate::devices::sides::Side;
use crate::format::label::StoredState;

const SIZE: u64 = 16 << 20;

#[test]
fn a_side_of_a_new_vdev_that_fails_at_once_misses_the_txg_that_is_written() {
    let cache = BlockCacheOptions { bytes: 8 << 20, ..BlockCacheOptions::default() };
    let memory = BlockCache::new(cache).unwrap();
    let device = |name: &str| -> Opened {
        let options = MemoryOptions { submission_queues: 1, ..MemoryOptions::default() };
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(name, SIZE, &options).unwrap());
        device.into()
    };
    let options = |seed| CreateOptions {
        name: "tank".to_owned(),
        host: HostId::default(),
        seed,
        force: false,
        heartbeat_ms: 0,
        sector_bytes: None,
    };
    let mut made = create(vec![NewVdev::Device(device("a"))], &options(1), &memory).unwrap();
    // No label was stored since the first txg.
    made.devices.begin_txg(5);
    let mirror = NewVdev::Mirror(vec![device("b"), device("c")]);
    let may_write = |_| Ok(());
    let number =
        add(&made.devices, mirror, &options(2), &mut made.config, &memory, &may_write).unwrap();
    let vdev = made.devices.get(number).unwrap();
    Side { vdev, at: 1 }.set_state(StoredState::Faulted);
    vdev.status().misses_on(1);
    assert_eq!(vdev.status().missed(1).map(|missed| missed.from), Some(5));
}
