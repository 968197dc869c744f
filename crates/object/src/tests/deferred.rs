//! What was freed is deleted after its retention, however short the imports are, and what waits
//! takes little memory.

use super::following::{published_data, release};
use super::*;
use crate::format::freed::Freed;
use crate::format::{envelope, freed, names};
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

fn good_store() -> (Arc<SimulatedStore>, Arc<MemoryStore>) {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    let memory = Arc::clone(store.memory());
    (store, memory)
}

/// Creates a store, and releases an object in a root.
async fn create_with_freed(store: &Arc<SimulatedStore>) -> (Session, Object) {
    let session = Session::create(store, retaining("one", 1)).await;
    let freed = published_data(&session).await;
    release(&session, freed).await;
    (session, freed)
}

/// Imports for a short time each, with a retention before each of them.
async fn import_after_retentions(store: &Arc<SimulatedStore>, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        store.memory().advance(RETENTION * 2);
        import_shortly(store, seed).await.close().await;
    }
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
    let (store, memory) = good_store();
    simulate(async {
        let (session, freed) = create_with_freed(&store).await;
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
    let (store, memory) = good_store();
    simulate(async {
        let (session, freed) = create_with_freed(&store).await;
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
fn what_a_dead_owner_puts_after_the_search_is_found_by_the_next_one() {
    let (store, memory) = good_store();
    simulate(async {
        let session = Session::create(&store, retaining("one", 1)).await;
        let data = published_data(&session).await;
        // It is paused, and is not closed.
        session.engine.client.stop();
        let session = import_shortly(&store, 2).await;
        assert!(session.engine.lock().searched);
        let late = names::data(&Object { first: 1 << 30, ..data });
        memory.set(&late, vec![1]);
        session.close().await;
        // One import finds it, and the retention begins. The next one deletes it.
        for seed in 3..5 {
            assert!(has(&memory, &late));
            memory.advance(RETENTION * 2);
            import_shortly(&store, seed).await.close().await;
        }
        assert!(!has(&memory, &late));
        assert!(has(&memory, &names::data(&data)));
        // All owners since have closed the store: there is no search any more.
        memory.set(&late, vec![1]);
        import_after_retentions(&store, 5..7).await;
        assert!(has(&memory, &late));
    });
}

#[test]
fn the_search_waits_for_a_store_that_is_away() {
    let (store, memory) = good_store();
    simulate(async {
        let (session, freed) = create_with_freed(&store).await;
        session.engine.client.stop();
        let session = Session::open(&store, retaining("two", 2)).await.unwrap();
        store.set_away(true);
        tokio::time::sleep(SHORT * 4).await;
        assert!(!session.engine.lock().searched);
        store.set_away(false);
        tokio::time::sleep(RETENTION * 2).await;
        assert!(!has(&memory, &names::data(&freed)));
    });
}

#[test]
fn a_list_of_an_unknown_age_waits_as_a_new_one() {
    let (store, memory) = good_store();
    simulate(async {
        let (session, freed) = create_with_freed(&store).await;
        session.close().await;
        store.set_timeless(true);
        memory.advance(RETENTION * 2);
        let session = Session::open(&store, retaining("two", 2)).await.unwrap();
        tokio::time::sleep(RETENTION - SHORT).await;
        assert!(has(&memory, &names::data(&freed)));
        tokio::time::sleep(SHORT * 3).await;
        assert!(!has(&memory, &names::data(&freed)));
        assert_eq!(session.counter("deleted_objects"), 1);
    });
}

#[test]
fn a_list_that_was_cut_on_its_way_is_read_again() {
    let mut cut = 0;
    for seed in 0..20 {
        let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, seed);
        let memory = Arc::clone(store.memory());
        simulate(async {
            let (session, freed) = create_with_freed(&store).await;
            session.close().await;
            let session = Session::open(&store, retaining("two", 2)).await.unwrap();
            store.set_network(Network { cut: 300, ..Network::GOOD });
            tokio::time::sleep(RETENTION + SHORT).await;
            assert_eq!(session.counter("deleted_objects"), 1, "seed {seed}");
            assert!(!has(&memory, &names::data(&freed)));
            cut += session.counter("damaged_bodies");
        });
    }
    assert!(cut > 0, "no list was cut");
}

#[test]
fn a_damaged_list_makes_the_next_import_search() {
    let (store, memory) = good_store();
    simulate(async {
        let (session, freed) = create_with_freed(&store).await;
        session.close().await;
        let damaged = lists(&memory).remove(0);
        memory.set(&damaged, b"FBobject and nothing else".to_vec());
        for seed in 2..5 {
            assert!(has(&memory, &names::data(&freed)));
            memory.advance(RETENTION * 2);
            import_shortly(&store, seed).await.close().await;
        }
        assert!(!has(&memory, &names::data(&freed)));
        assert!(!has(&memory, &damaged));
        // It was deleted, so that not every import searches.
        let unnamed = names::data(&Object { first: 1 << 30, ..freed });
        memory.set(&unnamed, vec![1]);
        import_after_retentions(&store, 5..7).await;
        assert!(has(&memory, &unnamed));
    });
}

#[test]
fn the_queue_in_memory_has_a_bound() {
    let (store, memory) = good_store();
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

#[test]
fn what_cannot_be_deleted_holds_nothing_else_up() {
    let (store, memory) = good_store();
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        let kept = published_data(&session).await;
        store.keep(&names::data(&kept));
        release(&session, kept).await;
        // A later root has released it.
        let other = Object { first: 1 << 30, ..kept };
        memory.set(&names::data(&other), vec![1]);
        release(&session, other).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(session.counter("deletes_failed") > 0);
        assert!(has(&memory, &names::data(&kept)));
        assert!(!has(&memory, &names::data(&other)));
        // It is tried for ever, but seldom.
        let (hour, before) = (Duration::from_secs(3600), session.counter("deletes_failed"));
        tokio::time::sleep(24 * hour).await;
        let attempts = session.counter("deletes_failed") - before;
        assert!((24..240).contains(&attempts), "{attempts} attempts");
    });
}

#[test]
fn what_is_left_of_a_list_is_in_the_queue_before_the_list_is_deleted() {
    let (store, memory) = good_store();
    simulate(async {
        let session = Session::create(&store, retaining("one", 1)).await;
        let left = published_data(&session).await;
        release(&session, left).await;
        session.close().await;
        store.keep(&names::data(&left));
        memory.advance(RETENTION * 2);
        let session = Session::open(&store, retaining("two", 2)).await.unwrap();
        while session.counter("deletes_failed") == 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        // The delete of the list is under way. A close writes what is in memory.
        session.engine.store_freed(true).await.unwrap();
        let lists = lists(&memory);
        let last = lists.iter().find(|key| {
            names::parse_freed(key).is_some_and(|(id, _)| id.epoch == session.engine.epoch)
        });
        let (bytes, _) = memory.get_now(last.unwrap()).unwrap();
        let (_, _, body) = envelope::open(&bytes).unwrap();
        assert_eq!(freed::decode(body).unwrap(), [Freed::from(&left)]);
    });
}
