//! Two hosts want the same store.

use forebay_base::testing;
use forebay_io::ErrorKind;

use super::*;
use crate::format::MUTABLE_BYTES;

const RING: u64 = 1 << 20;
const LABEL: u64 = 8192;

fn network(round: u64) -> Network {
    if round.is_multiple_of(2) { Network::GOOD } else { Network::BAD }
}

#[test]
fn of_two_hosts_that_take_over_at_once_exactly_one_wins() {
    for round in 0..100 {
        let store = SimulatedStore::new(MemoryStore::new(), network(round), round);
        simulate(async {
            let old = Session::create(&store, options("old", round)).await;
            old.write(RING, 1, 7).await.unwrap();
            old.flush().await.unwrap();
            let open = |owner: &'static str, seed| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { Session::open(&store, options(owner, seed)).await })
            };
            let (one, two) = (open("one", 1000 + round), open("two", 2000 + round));
            let mut sessions = [one.await.unwrap(), two.await.unwrap()];
            // The second one may have come after the first one was done: then it has taken over.
            for session in &mut sessions {
                if let Ok(opened) = session
                    && let Err(error) = write_and_flush(opened).await
                {
                    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
                    *session = Err(Error::NotFound { store: String::new() });
                }
            }
            let winners: Vec<_> =
                sessions.iter().filter_map(|session| session.as_ref().ok()).collect();
            assert_eq!(winners.len(), 1, "round {round}");
            winners[0].expect(RING, 1, 7).await;
            // The old one is fenced, and says by whom.
            let error = write_and_flush(&old).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone);
            let winner = winners[0].engine.options.owner.as_str();
            assert!(error.to_string().contains(winner), "{error}");
            write_and_flush(winners[0]).await.unwrap();
        });
    }
}

async fn write_and_flush(session: &Session) -> Result<(), forebay_io::Error> {
    let tag = u64::from(session.engine.epoch as u32);
    session.write(LABEL, 1, tag).await?;
    session.flush().await
}

#[test]
fn a_flush_that_races_a_takeover_is_kept_or_fails() {
    for round in 0..100 {
        let store = SimulatedStore::new(MemoryStore::new(), network(round), round);
        simulate(async {
            let old = Session::create(&store, options("old", round)).await;
            let writer = old.clone();
            let task = tokio::spawn(async move {
                let mut acked = 0;
                for tag in 1.. {
                    // The data goes to the store unfenced; only the flush tells.
                    let address = MUTABLE_BYTES + tag * SECTOR;
                    let data = writer.write(address, 1, tag).await;
                    // Some flushes write roots, others log objects.
                    let place = if tag % 3 == 0 { LABEL } else { RING };
                    let wrote = writer.write(place, 1, tag).await;
                    let marked = writer.write(RING + SECTOR, 1, tag).await;
                    if data.and(wrote).and(marked).is_err() || writer.flush().await.is_err() {
                        return acked;
                    }
                    acked = tag;
                }
                unreachable!("it is fenced at some time")
            });
            tokio::time::sleep(Duration::from_millis(200 + 7 * round)).await;
            let new = Session::open(&store, options("new", 5000 + round)).await.unwrap();
            let acked = task.await.unwrap();
            let found = new.read(RING + SECTOR, 1).await.unwrap();
            let found = u64::from_le_bytes(found[8..16].try_into().unwrap());
            assert!(found >= acked, "round {round}: {found} is older than {acked}");
            for tag in 1..=acked {
                new.expect(MUTABLE_BYTES + tag * SECTOR, 1, tag).await;
            }
            // Not more than one flush was under way.
            assert!(found <= acked + 1);
            let error = old.flush_after_write().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone);
        });
    }
}

#[test]
fn a_host_is_not_fenced_by_bad_answers() {
    for round in 0..20 {
        let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, round);
        simulate(async {
            let session = Session::create(&store, options("one", round)).await;
            for tag in 1..20 {
                // An answer is lost. A read finds damaged bodies, or once nothing at all.
                let damaged = Network { lost: 400, cut: 600, ..Network::GOOD };
                let lost = Network { lost: 400, ..Network::GOOD };
                let by_label = tag % 4 > 1;
                store.set_network(if tag % 2 == 0 { damaged } else { lost });
                store.hide(tag % 2);
                let writer = session.clone();
                let flush = tokio::spawn(async move {
                    writer.write(if by_label { LABEL } else { RING }, 1, tag).await?;
                    writer.flush().await
                });
                tokio::time::sleep(Duration::from_secs(60)).await;
                store.hide(0);
                store.set_network(Network::GOOD);
                flush.await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a_host_whose_pool_was_destroyed_cannot_harm_the_next_one() {
    let memory = MemoryStore::new();
    let host = |seed| SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    simulate(async {
        let (one, two) = (host(1), host(2));
        let old = Session::create(&one, options("old", 1)).await;
        old.write(RING, 1, 1).await.unwrap();
        old.flush().await.unwrap();
        // It is cut off with a put under way.
        one.set_paused(true);
        let writer = old.clone();
        let write = tokio::spawn(async move { writer.write(MUTABLE_BYTES, 8, 1).await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        let shared: Arc<dyn ObjectStore> = two.clone();
        crate::destroy::destroy(shared, "test", options("admin", 2)).await.unwrap();
        let new = Session::create(&two, options("new", 3)).await;
        for place in [MUTABLE_BYTES, RING] {
            new.write(place, 8, 2).await.unwrap();
        }
        new.flush().await.unwrap();
        one.set_paused(false);
        // The store still takes its objects. They are no part of the new pool.
        write.await.unwrap().unwrap();
        old.write(RING, 1, 3).await.unwrap();
        drop(old.flush().await);
        let next = Session::open(&two, options("next", 4)).await.unwrap();
        for session in [new, next] {
            session.expect(MUTABLE_BYTES, 8, 2).await;
            session.expect(RING, 8, 2).await;
        }
    });
}

/// Destroys the store of a host that is paused as soon as something was deleted. Ends with it.
async fn destroy_paused(host: &Arc<SimulatedStore>) -> tokio::task::JoinHandle<Result<u64, Error>> {
    let before = host.memory().objects().len();
    let shared: Arc<dyn ObjectStore> = host.clone();
    // A few requests at a time, which end however long the pause is.
    let long = Duration::from_secs(3600);
    let options = Options { puts: 1, gets: 1, request_timeout: long, ..options("slow", 2) };
    let options = Options { read_budget: long, open_budget: long, ..options };
    let destroyed = tokio::spawn(crate::destroy::destroy(shared, "test", options));
    while host.memory().objects().len() >= before {
        assert!(!destroyed.is_finished(), "nothing was deleted");
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    host.set_paused(true);
    destroyed
}

/// Uses a new pool while a host goes on that was destroying the one before.
async fn use_while_it_goes_on(
    new: &Session,
    paused: &SimulatedStore,
    destroyed: tokio::task::JoinHandle<Result<u64, Error>>,
) -> Error {
    for tag in 1..20 {
        new.write(MUTABLE_BYTES + tag * SECTOR, 1, tag).await.unwrap();
        new.write(LABEL, 1, tag).await.unwrap();
        new.flush().await.unwrap();
        paused.set_paused(false);
    }
    destroyed.await.unwrap().unwrap_err()
}

async fn expect_used(new: &Session) {
    for tag in 1..20 {
        new.expect(MUTABLE_BYTES + tag * SECTOR, 1, tag).await;
    }
}

#[test]
fn a_host_that_was_paused_while_it_destroyed_leaves_the_next_pool_alone() {
    let first = testing::seed(0);
    for seed in (0..20).map(|n| first.wrapping_add(n)) {
        let memory = MemoryStore::new();
        let from = |at| seed.wrapping_add(at);
        let host = |at| SimulatedStore::new(Arc::clone(&memory), network(seed), from(at));
        simulate(async {
            let (one, two) = (host(0), host(1000));
            let old = Session::create(&two, options("old", seed)).await;
            for tag in 0..10 {
                old.write(MUTABLE_BYTES + tag * SECTOR, 1, tag).await.unwrap();
                old.flush_after_write().await.unwrap();
            }
            old.close().await;
            let destroyed = destroy_paused(&one).await;
            // Somebody else does so, too, and creates a pool there.
            let shared: Arc<dyn ObjectStore> = two.clone();
            crate::destroy::destroy(shared, "test", options("admin", 3)).await.unwrap();
            let new = Session::create(&two, options("new", from(1000))).await;
            let error = use_while_it_goes_on(&new, &one, destroyed).await;
            assert!(matches!(error, Error::TakenOver { .. }), "{error}");
            let next = Session::open(&two, options("next", from(2000))).await.unwrap();
            expect_used(&new).await;
            expect_used(&next).await;
        });
    }
}

#[test]
fn a_pool_that_is_created_while_leftovers_are_deleted_is_left_alone() {
    let first = testing::seed(0);
    for seed in (0..20).map(|n| first.wrapping_add(n)) {
        let memory = MemoryStore::new();
        let from = |at| seed.wrapping_add(at);
        let host = |at| SimulatedStore::new(Arc::clone(&memory), network(seed), from(at));
        simulate(async {
            let (one, two) = (host(0), host(1000));
            // What is left of a pool, and of a follower.
            let leftovers = [crate::format::names::log(7, 0), crate::format::names::pin(7)];
            leftovers.iter().for_each(|key| memory.set(key, vec![1]));
            let destroyed = destroy_paused(&one).await;
            memory.remove(&leftovers[0]);
            let new = Session::create(&two, options("new", from(1000))).await;
            let error = use_while_it_goes_on(&new, &one, destroyed).await;
            assert!(matches!(error, Error::TakenOver { .. }), "{error}");
            let next = Session::open(&two, options("next", from(2000))).await.unwrap();
            expect_used(&new).await;
            expect_used(&next).await;
        });
    }
}

impl Session {
    async fn flush_after_write(&self) -> Result<(), forebay_io::Error> {
        self.write(RING, 1, u64::MAX).await?;
        self.flush().await
    }
}

#[test]
fn reads_go_on_after_a_takeover_and_writes_fail_at_once() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let old = Session::create(&store, options("old", 1)).await;
        old.write(MUTABLE_BYTES, 4, 3).await.unwrap();
        old.flush().await.unwrap();
        let _new = Session::open(&store, options("new", 2)).await.unwrap();
        old.flush_after_write().await.unwrap_err();
        let requests = store.requests();
        for _ in 0..10 {
            assert_eq!(old.flush().await.unwrap_err().kind(), ErrorKind::Gone);
            let write = old.write(MUTABLE_BYTES + (1 << 20), 1, 1).await;
            assert_eq!(write.unwrap_err().kind(), ErrorKind::Gone);
        }
        assert_eq!(store.requests(), requests, "a fenced host sends requests");
        old.expect(MUTABLE_BYTES, 4, 3).await;
    });
}
