//! What a commit says of itself while it waits.

use forebay_base::sync::Arc;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};

use crate::format::label::{LABEL_BYTES, RING_OFFSET};
use crate::{BlockCache, BlockCacheOptions, CreateOptions, NewVdev, Pool};

const SIZE: u64 = 32 << 20;
const EIO: i32 = 5;

/// One side fails the uberblock, the other one the label that says so: a copy of the other one from
/// before has none of the blocks, which are in memory no more.
#[test]
fn a_commit_that_waits_for_labels_relies_on_the_devices() {
    let device = |name: &str| {
        let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
        let medium = MemoryDevice::new(name, SIZE, &options).expect("a device");
        Arc::new(FaultDevice::new(Arc::new(medium) as Arc<dyn Device>, 7))
    };
    let sides = [device("a"), device("b")];
    let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    let cache = BlockCache::new(options).expect("a cache");
    let mut options = CreateOptions::new("tank", cache);
    let tunables = [("txg_timeout_ms", "100000"), ("heartbeat_ms", "0")];
    options.tunables = tunables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let opened = sides.iter().map(|side| (Arc::clone(side) as Arc<dyn Device>).into());
    let pool = Pool::create_tree(vec![NewVdev::Mirror(opened.collect())], &options).expect("it");
    let data = pool.create_dataset("data", &Default::default()).expect("space");
    pool.sync().expect("a txg");
    let synced = pool.inner.txgs.synced_txg();
    let failing = || Rule::new(Fault::Error(EIO)).on(Op::Write);
    let back = SIZE - LABEL_BYTES;
    for label in [0, back] {
        sides[0].add(failing().within(label..label + RING_OFFSET));
        sides[1].add(failing().within(label + RING_OFFSET..label + LABEL_BYTES));
    }
    let tx = pool.begin().expect("space");
    data.create_object(&tx, &[]).expect("space");
    drop(tx);
    pool.sync().expect_err("no label can be written");
    assert!(pool.suspension().is_some_and(|now| now.resumable), "{:?}", pool.suspension());
    assert_eq!(pool.inner.txgs.synced_txg(), synced, "it does not count yet");
    assert!(pool.inner.store.relies_on_devices(), "a copy from before lacks its blocks");
    sides.iter().for_each(|side| side.clear());
    pool.clear().expect("labels can be written again");
    assert!(pool.inner.txgs.synced_txg() > synced);
    assert!(!pool.inner.store.relies_on_devices(), "nothing is written");
    drop(data);
    pool.export().expect("exported");
}
