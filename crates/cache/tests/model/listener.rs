//! The listener that misses nothing: it is told of each block once, capacity stays bounded, and
//! nobody waits for ever, even if the listener inserts or loads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_cache::{Builder, Cause, Delivery, Evicted, Reclaim};

use crate::harness::{Block, World};
use forebay_base::model::{below, check, join, spawn};

/// A cache for three blocks, with a listener. Inserters may not wait for anything else.
fn listened(
    listener: impl Fn(Evicted<u64, Block>) + Send + Sync + 'static,
) -> impl FnOnce(Builder<u64, Block>) -> Builder<u64, Block> {
    let mode = if below(2) == 0 { Reclaim::Thread } else { Reclaim::Inline };
    move |builder| {
        let builder = builder.reclaim(mode).tunable("overflow_wait_ms", "0");
        builder.on_evicted(Delivery::Lossless, listener)
    }
}

/// How often the listener was told of each key. Not a part of the check.
type Told = Arc<Mutex<BTreeMap<u64, u64>>>;

/// Blocks leave because others need their capacity, by removals, by a clear and by the close.
#[test]
fn it_is_told_of_each_block_once() {
    check(3600, || {
        let told = Told::default();
        let heard = told.clone();
        let world = Arc::new(World::build(
            3,
            listened(move |event| {
                event.value.check(event.key);
                *heard.lock().unwrap().entry(event.key).or_default() += 1;
            }),
        ));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                let inserted = (first..first + 3).filter(|key| world.insert(*key));
                let inserted: Vec<u64> = inserted.collect();
                // What waits for the listener is included.
                assert!(world.cache().stats().reserved <= 3);
                inserted
            })
        };
        let inserters = [inserter(0), inserter(10)];
        if below(2) == 0 {
            world.cache().clear();
        }
        world.cache().remove(&10);
        let mut inserted = join(inserters).concat();
        world.cache().drain_listener();
        let expected = |is_told: &dyn Fn(u64) -> bool| {
            inserted.iter().filter(|key| is_told(**key)).map(|key| (*key, 1)).collect()
        };
        let left: BTreeMap<u64, u64> = expected(&|key| !world.cache().contains(&key));
        assert_eq!(*told.lock().unwrap(), left);
        World::end(world);
        inserted.sort_unstable();
        assert_eq!(told.lock().unwrap().keys().copied().collect::<Vec<_>>(), inserted);
        assert!(told.lock().unwrap().values().all(|times| *times == 1));
    });
}

/// It puts blocks back, while others wait for the capacity that only its end releases.
#[test]
fn it_may_insert() {
    check(2400, || {
        let shared: Arc<OnceLock<Weak<World>>> = Arc::default();
        let seen = shared.clone();
        let world = Arc::new(World::build(
            3,
            listened(move |event| {
                let Some(world) = seen.get().and_then(Weak::upgrade) else { return };
                if event.cause == Cause::Capacity && event.key < 100 {
                    assert!(world.insert(event.key + 100), "it has capacity in hand");
                }
            }),
        ));
        assert!(shared.set(Arc::downgrade(&world)).is_ok());
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || (first..first + 3).for_each(|key| _ = world.insert(key)))
        };
        join([inserter(0), inserter(10)]);
        world.cache().drain_listener();
        World::end(world);
    });
}

/// It waits for a load whose loader inserts, and so needs capacity that waits for the listener.
#[test]
fn it_may_load_what_another_thread_loads() {
    check(2400, || {
        let shared: Arc<OnceLock<Weak<World>>> = Arc::default();
        let seen = shared.clone();
        let world = Arc::new(World::build(
            3,
            listened(move |_| {
                let Some(world) = seen.get().and_then(Weak::upgrade) else { return };
                let load = || Ok::<_, String>(world.block(50, 0));
                world.cache().get_or_load(50, load).expect("loaded by either").check(50);
            }),
        ));
        (0..3).for_each(|key| assert!(world.insert(key)));
        assert!(shared.set(Arc::downgrade(&world)).is_ok());
        let loader = {
            let world = world.clone();
            spawn(move || {
                let load = || {
                    (10..13).for_each(|key| _ = world.insert(key));
                    Ok::<_, String>(world.block(50, 0))
                };
                world.cache().get_or_load(50, load).expect("it does not fail").check(50);
            })
        };
        let inserter = {
            let world = world.clone();
            spawn(move || (20..22).for_each(|key| _ = world.insert(key)))
        };
        join([loader, inserter]);
        world.cache().drain_listener();
        World::end(world);
    });
}
