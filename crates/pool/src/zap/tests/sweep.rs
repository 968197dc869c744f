//! Which leaves get their names next.

use super::super::ZapCounters;
use super::super::memory::MemoryStore;
use super::buffer::{VALUE, buffered, evict_leaves, evicted, name};
use crate::format::ZapBlock;

/// Leaves and filter blocks that were read to move names.
fn read(store: &MemoryStore) -> [usize; 2] {
    let read = &store.state.lock().prefetched;
    let count = |f: fn(&ZapBlock) -> bool| read.iter().filter(|id| f(id)).count();
    [count(|id| matches!(id, ZapBlock::Leaf(_))), count(|id| matches!(id, ZapBlock::Filter(_)))]
}

/// In steady state, most of the space of pages is in use, and a leaf that is read gets as many
/// names as its share of a page has space for. Filter blocks are read for many leaves at a time.
#[test]
fn a_leaf_gets_many_names_at_a_time() {
    let (zap, store) = evicted(120_000);
    let create = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            zap.insert(&(), &name(number), &VALUE).expect("it is new");
            if store.state.lock().merge_requests > 0 {
                zap.merge_requested();
                store.commit();
                evict_leaves(&store);
            }
        }
    };
    create(120_000..135_000);
    store.state.lock().prefetched.clear();
    let counted = |counter| store.counted(counter);
    let counters = [ZapCounters::DIRECTORY_NAMES_MERGED, ZapCounters::DIRECTORY_LEAVES_MERGED];
    let (before, fetches) = (counters.map(counted), store.state.lock().fetches);
    create(135_000..160_000);
    let after = counters.map(counted);
    let [names, leaves] = [after[0] - before[0], after[1] - before[1]];
    let [leaves_read, filters_read] = read(&store);
    let waited = store.state.lock().fetches - fetches;
    println!(
        "{names} names to {leaves} leaves, {leaves_read} leaves and {filters_read} filter blocks \
         read, {waited} waited for"
    );
    assert!(names > 9 * leaves, "{names} names were moved to {leaves} leaves");
    assert!(4 * filters_read < leaves_read, "{filters_read} filter blocks, {leaves_read} leaves");
    assert!(waited < 500, "{waited} of 25,000 creates waited for a leaf");
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 160_000);
}

/// A batch for a page that is full does not read leaves that get a handful of names each.
#[test]
fn a_nearly_empty_buffer_is_left_alone() {
    let (zap, store) = evicted(120_000);
    for number in 120_000..120_200 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    store.commit();
    evict_leaves(&store);
    store.state.lock().prefetched.clear();
    let before = buffered(&zap);
    assert!(before > 0 && store.state.lock().merge_requests == 0, "{before} names");
    let batch = zap.merge_batch(false).expect("it is possible");
    assert!(!batch.has_moved);
    assert_eq!((buffered(&zap), read(&store)), (before, [0, 0]));
}
