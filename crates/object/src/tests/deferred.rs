//! What was freed is deleted after its retention, however short the imports are, and what waits
//! takes little memory.

use super::following::{published_data, release};
use super::*;
use crate::format::names;
use crate::map::Object;
use crate::memory::MemoryStore;
use crate::simulated::{Network, SimulatedStore};

const RETENTION: Duration = Duration::from_secs(600);
/// Far less than the retention.
const SHORT: Duration = Duration::from_secs(30);

fn retaining(owner: &str, seed: u64) -> Options {
    Options { grace: RETENTION, ..options(owner, seed) }
}

/// A made-up object, whose release is a root like any other.
fn object(first: u64) -> Object {
    Object { first, epoch: 1, ..Object::default() }
}

fn has(memory: &MemoryStore, key: &str) -> bool {
    memory.objects().iter().any(|(other, _)| other == key)
}

fn lists(memory: &MemoryStore) -> Vec<String> {
    memory.list_now(names::FREED, "")
}

/// Opens the store for a short time. Both clocks advance by it.
async fn import_shortly(store: &Arc<SimulatedStore>, seed: u64) -> Session {
    let session = Session::open(store, retaining("next", seed)).await.unwrap();
    tokio::time::sleep(SHORT).await;
    store.memory().advance(SHORT);
    session
}

#[test]
fn what_a_short_import_has_freed_is_deleted_by_later_short_ones() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    let memory = Arc::clone(store.memory());
    simulate(async {
        let session = Session::create(&store, retaining("one", 1)).await;
        let freed = published_data(&session).await;
        release(&session, freed).await;
        session.close().await;
        let key = names::data(&freed);
        assert_eq!(lists(&memory).len(), 1);
        // An object that nothing names: after a close like that nobody searches for one.
        let unnamed = names::data(&Object { first: 1 << 30, ..freed });
        memory.set(&unnamed, vec![1]);
        memory.advance(RETENTION / 2);
        let session = import_shortly(&store, 2).await;
        assert_eq!(session.counter("deleted_objects"), 0, "the retention has not passed");
        session.close().await;
        assert!(has(&memory, &key));
        memory.advance(RETENTION / 2);
        let session = import_shortly(&store, 3).await;
        assert_eq!(session.counter("deleted_objects"), 1);
        assert!(!has(&memory, &key));
        assert!(has(&memory, &unnamed));
        // Each of its predecessors has left one, and the first is done.
        assert_eq!(lists(&memory).len(), 1);
        session.close().await;
    });
}

#[test]
fn what_a_crash_has_left_is_deleted_by_short_imports() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    let memory = Arc::clone(store.memory());
    simulate(async {
        let session = Session::create(&store, retaining("one", 1)).await;
        let freed = published_data(&session).await;
        release(&session, freed).await;
        // It ends without a close.
        session.engine.client.stop();
        let key = names::data(&freed);
        assert_eq!(lists(&memory).len(), 0);
        // The next one finds it, and lists it. Its retention begins anew.
        memory.advance(RETENTION * 2);
        import_shortly(&store, 2).await.close().await;
        assert!(has(&memory, &key));
        memory.advance(RETENTION * 2);
        import_shortly(&store, 3).await.close().await;
        assert!(!has(&memory, &key));
    });
}

#[test]
fn a_damaged_list_makes_the_next_import_search() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    let memory = Arc::clone(store.memory());
    simulate(async {
        let session = Session::create(&store, retaining("one", 1)).await;
        let freed = published_data(&session).await;
        release(&session, freed).await;
        session.close().await;
        memory.set(&lists(&memory)[0], b"FBobject and nothing else".to_vec());
        for seed in 2..5 {
            assert!(has(&memory, &names::data(&freed)));
            memory.advance(RETENTION * 2);
            import_shortly(&store, seed).await.close().await;
        }
        assert!(!has(&memory, &names::data(&freed)));
    });
}

#[test]
fn the_queue_in_memory_has_a_bound() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    let memory = Arc::clone(store.memory());
    simulate(async {
        let session =
            Session::create(&store, Options { freed_max: 10, ..retaining("one", 1) }).await;
        for first in 0..200 {
            release(&session, object(first)).await;
            assert!(session.engine.lock().freed.len() <= 10);
        }
        assert!(session.counter("freed_lists") >= 18);
        assert_eq!(session.counter("deleted_objects"), 0);
        tokio::time::sleep(RETENTION + SHORT).await;
        assert_eq!(session.counter("deleted_objects"), 200);
        assert_eq!(lists(&memory), Vec::<String>::new());
    });
}

#[test]
fn a_delete_that_fails_is_tried_again() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        let freed = published_data(&session).await;
        release(&session, freed).await;
        store.set_keeping(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(session.counter("deletes_failed") > 0);
        assert!(has(store.memory(), &names::data(&freed)));
        store.set_keeping(false);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!has(store.memory(), &names::data(&freed)));
    });
}
