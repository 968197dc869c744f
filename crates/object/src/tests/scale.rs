//! What a large store costs to open, in requests and in simulated time at 20 ms a request.

use tokio::time::{Instant, sleep};

use super::*;
use crate::format::{MUTABLE_BYTES, WINDOW_SECTORS};
use crate::map::Object;

fn now() -> Instant {
    sleep(Duration::ZERO).deadline()
}

fn network() -> Network {
    // There and back.
    let half = Duration::from_millis(10);
    Network { latency: half..half, ..Network::GOOD }
}

fn object(at: u64) -> Object {
    Object {
        first: MUTABLE_BYTES / SECTOR + at * WINDOW_SECTORS,
        span: WINDOW_SECTORS as u32,
        epoch: 1,
        generation: 0,
        payload_sectors: WINDOW_SECTORS as u16,
        extents: 64,
        live: 1000,
    }
}

#[test]
fn a_store_of_a_million_objects_opens_within_seconds() {
    let memory = MemoryStore::new();
    simulate(async {
        // No data is needed: an open reads none.
        let mut options = options("one", 1);
        options.chain_objects = 0;
        let session = Session::create(&memory, options).await;
        let mut state = session.engine.lock();
        for at in 0..1_000_000 {
            state.map.insert(object(at));
        }
        state.next_unused = object(1_000_000).first_byte();
        drop(state);
        session.write(8192, 1, 1).await.unwrap();
        session.flush().await.unwrap();
    });
    let store = SimulatedStore::new(Arc::clone(&memory), network(), 1);
    simulate(async {
        // After the checkpoint come as many objects of the chain as there may be.
        let mut options = options("two", 2);
        options.chain_objects = 2000;
        let session = Session::open(&store, options).await.unwrap();
        for tag in 0..1000 {
            session.write(1 << 20, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
    });
    let requests = store.requests();
    simulate(async {
        let start = now();
        let session = Session::open(&store, options("three", 3)).await.unwrap();
        let took = now() - start;
        assert_eq!(session.engine.lock().map.len(), 1_000_000);
        session.expect(1 << 20, 1, 999).await;
        assert!(took <= Duration::from_secs(5), "{took:?}");
        let requests = store.requests() - requests;
        assert!(requests < 1300, "{requests} requests");
        println!("{requests} requests, {took:?} of simulated time");
    });
}

#[test]
fn nothing_is_listed_and_nothing_is_sent_while_nothing_changes() {
    let store = SimulatedStore::new(MemoryStore::new(), network(), 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        session.clean(&LiveSectors::new());
        let lists = |session: &Session| {
            let all = session.engine.counters().snapshot();
            let lists = all.iter().find(|c| c.name == "requests" && c.label == Some("list"));
            lists.unwrap().value
        };
        let before = lists(&session);
        for tag in 0..200 {
            session.write(MUTABLE_BYTES + tag * 3 * SECTOR, 3, tag).await.unwrap();
            session.write(8192, 1, tag).await.unwrap();
            session.flush().await.unwrap();
            session.expect(MUTABLE_BYTES + tag * 3 * SECTOR, 3, tag).await;
        }
        assert_eq!(lists(&session), before);
        sleep(Duration::from_secs(600)).await;
        let requests = store.requests();
        sleep(Duration::from_secs(24 * 3600)).await;
        session.flush().await.unwrap();
        assert_eq!(store.requests(), requests);
    });
}
