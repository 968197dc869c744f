//! Objsets with corrupt dnodes, and changes that are rejected.

use std::ops::Range;

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};

use super::DNODE_BLOCKS_MAX;
use crate::format::{DNODES_PER_BLOCK, ObjectKind, ObjsetPhys, ZapBlock};
use crate::tx::Tx;
use crate::wait::Wait;
use crate::zap::LeafStore;
use crate::{
    BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, ErrorKind, Pool,
    Transaction,
};

fn pool() -> (Pool, Dataset) {
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    let device: Arc<dyn Device> =
        Arc::new(MemoryDevice::new("objset", 64 << 20, &options).expect("a device"));
    let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    let cache = BlockCache::new(options).expect("a cache");
    let pool = Pool::create(vec![device.into()], &CreateOptions::new("tank", cache));
    let pool = pool.expect("a pool");
    let data = pool.create_dataset("data", &DatasetSettings::default()).expect("a dataset");
    (pool, data)
}

fn set_record_shift(pool: &Pool, data: &Dataset, number: u64, shift: u8) {
    let tx = pool.begin().expect("space");
    let objset = &data.inner.objset;
    objset.change_dnode(tx.tx(), number, |dnode, _| dnode.record_shift = shift).expect("a dnode");
    drop(tx);
    pool.sync().expect("a txg");
}

#[test]
fn a_block_longer_than_its_objects_records_is_corrupt() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    object.write(&tx, 0, &vec![1; 128 << 10]).expect("space");
    drop((tx, object));
    pool.sync().expect("a txg");
    set_record_shift(&pool, &data, number, 12);
    let tx = pool.begin().expect("space");
    let object = data.object(number).expect("it");
    let error = object.write(&tx, 5, b"hello").expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_directory_with_a_wrong_record_size_is_corrupt() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    let number = data.create_directory(&tx, &[]).expect("a directory");
    drop(tx);
    pool.sync().expect("a txg");
    set_record_shift(&pool, &data, number, 9);
    let error = data.directory(number).err().expect("it is corrupt");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_new_leaf_does_not_overwrite_an_existing_one() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    let number = data.create_directory(&tx, &[]).expect("a directory");
    let directory = data.directory(number).expect("it");
    for name in 0..2000u64 {
        directory.insert(&tx, &name.to_le_bytes(), b"value").expect("space");
    }
    let zap = data.inner.directory(number, Wait::Allowed).expect("it");
    // A split would do so if the leaf's stored depth were too small.
    let refused = |tx: &Transaction<'_>| {
        let created =
            zap.store().new_leaf(tx.tx(), ZapBlock::Leaf(1), |_| unreachable!("it is there"));
        created.expect_err("it is there").kind()
    };
    assert_eq!(refused(&tx), ErrorKind::Corrupt);
    drop(tx);
    pool.sync().expect("a txg");
    let tx = pool.begin().expect("space");
    assert_eq!(refused(&tx), ErrorKind::Corrupt);
    assert_eq!(directory.audit().expect("a sound directory").entries, 2000);
}

#[test]
fn creating_a_number_in_use_leaves_the_txg_unchanged() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, b"first").expect("an object");
    drop(tx);
    pool.sync().expect("a txg");
    let tx = pool.begin().expect("space");
    let objset = &data.inner.objset;
    let error = objset
        .create_at(tx.tx(), number, (ObjectKind::Data, 12), b"second")
        .expect_err("it is there");
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert!(matches!(objset.dnodes.newest(number), super::NewestDnode::Stored));
}

#[test]
fn numbers_past_the_largest_are_refused() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    for number in [u64::MAX, DNODE_BLOCKS_MAX * DNODES_PER_BLOCK as u64] {
        let error = data
            .inner
            .objset
            .create_at(tx.tx(), number, (ObjectKind::Data, 12), &[])
            .expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_dirty_dnode_does_not_restore_an_old_entry_count() {
    let (pool, data) = pool();
    let fill = |tx: &Transaction<'_>, number: u64, names: Range<u64>| {
        let directory = data.directory(number).expect("it");
        for name in names {
            directory.insert(tx, &name.to_le_bytes(), b"value").expect("space");
        }
    };
    let check = |number: u64, attributes: &[u8]| {
        let directory = data.directory(number).expect("it");
        assert_eq!(directory.len(), 300);
        assert_eq!(directory.audit().expect("a sound directory").entries, 300);
        assert_eq!(data.object_info(number).expect("it").attributes, attributes);
    };
    let tx = pool.begin().expect("space");
    let number = data.create_directory(&tx, &[]).expect("a directory");
    fill(&tx, number, 0..200);
    drop(tx);
    pool.sync().expect("a txg");
    let tx = pool.begin().expect("space");
    data.set_attributes(&tx, number, b"of this txg").expect("space");
    fill(&tx, number, 200..300);
    // The next txg changes the directory while this txg syncs: its dirty dnode is a copy of this
    // txg's.
    let next = Tx::syncing(tx.txg() + 1);
    data.inner.objset.set_attributes(&next, number, b"of the next").expect("space");
    check(number, b"of the next");
    drop(tx);
    // The directory is not open when this txg syncs.
    pool.sync().expect("a txg");
    check(number, b"of the next");
    pool.sync().expect("the next txg");
    check(number, b"of the next");
}

#[test]
fn a_tree_of_dnodes_above_the_maximum_height_is_corrupt() {
    let (_pool, data) = pool();
    let phys = ObjsetPhys { levels: 8, blocks: 5.into(), ..data.inner.objset.phys() };
    let tree = crate::object::tree::Tree::from_parts(
        crate::format::BlockPtrPhys::HOLE,
        phys.levels,
        phys.blocks.get(),
    );
    let error = super::check_dnode_tree(tree.expect("a tree")).expect_err("too high");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn the_last_number_is_allocated_once() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    data.inner.objset.numbers.skip_to(DNODE_BLOCKS_MAX - 1);
    let error = (0..100_000)
        .find_map(|_| data.inner.objset.next_number(Wait::Allowed).err())
        .expect("numbers have an end");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    drop(tx);
}

#[test]
fn a_length_that_no_object_can_have_is_corrupt_and_suspends_nothing() {
    let (pool, data) = pool();
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    object.write(&tx, 0, b"content").expect("space");
    {
        let node = data.inner.objset.open(number, Wait::Allowed).expect("it");
        let mut state = node.lock();
        state.size = u64::MAX;
        state.pending_mut(tx.txg()).size = Some(u64::MAX);
    }
    drop((tx, object));
    pool.sync().expect("a txg");
    pool.sync().expect("nobody has it any more");
    let opened = data.object(number).err().expect("it is corrupt");
    assert_eq!(opened.kind(), ErrorKind::Corrupt, "{opened}");
    let error = data.object_info(number).expect_err("it is corrupt");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    // Its neighbours and its attribute fields can still be changed.
    let tx = pool.begin().expect("space");
    data.inner
        .objset
        .change_dnode(tx.tx(), number, |dnode, _| dnode.created_txg = 7.into())
        .expect("it");
    drop(tx);
    pool.sync().expect("the pool is not suspended");
}

/// A change of a dnode in a new block fails if the sync could not read the blocks above it.
#[test]
fn a_dnode_in_a_new_block_needs_the_blocks_above_it() {
    let memory = MemoryDevice::new("memory", 64 << 20, &MemoryOptions::default());
    let faults = Arc::new(FaultDevice::new(Arc::new(memory.expect("a device")), 1));
    let cache = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    let cache = BlockCache::new(cache).expect("a cache");
    let device = Arc::clone(&faults) as Arc<dyn Device>;
    let options = CreateOptions::new("tank", Arc::clone(&cache));
    let pool = Pool::create(vec![device.into()], &options).expect("a pool");
    let data = pool.create_dataset("data", &DatasetSettings::default()).expect("a dataset");
    let objset = &data.inner.objset;
    let create = |block: u64| {
        let tx = pool.begin().expect("space");
        let number = block * DNODES_PER_BLOCK as u64 + 1;
        objset.create_at(tx.tx(), number, (ObjectKind::Data, 12), b"")
    };
    // Two blocks of dnodes, beneath one indirect block.
    (1..3).for_each(|block| create(block).expect("a dnode"));
    pool.sync().expect("a txg");
    cache.cache().clear();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let error = create(7).expect_err("the indirect block cannot be read");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    pool.sync().expect("nothing was changed");
    // A sync that replaces the block has read it: nobody waits for a second read.
    objset.replaces_tree.store(true, Ordering::SeqCst);
    create(7).expect("a dnode");
    objset.replaces_tree.store(false, Ordering::SeqCst);
    faults.clear();
    pool.sync().expect("a txg");
}
