//! Two hosts want the same store.

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
