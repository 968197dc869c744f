//! Stores that are away, slow, cut bodies, or lie.

use forebay_base::testing;
use forebay_io::ErrorKind;

use super::*;
use crate::decorator::StoreDecorator;
use crate::error::StoreFault;
use crate::format::{DEVICE_BYTES, MUTABLE_BYTES, TAIL_BYTES, WINDOW_BYTES};
use crate::store::{Body, Condition, StoreFuture, Version};

#[test]
fn writes_wait_while_the_store_is_away_and_go_on_afterwards() {
    simulate(async {
        let mut impatient = options("one", 1);
        impatient.read_budget = Duration::from_secs(20);
        let Host { store, session, .. } = Host::new(impatient).await;
        session.write(MUTABLE_BYTES, 8, 1).await.unwrap();
        store.set_away(true);
        let waiting = {
            let session = session.clone();
            tokio::spawn(async move {
                session.write(MUTABLE_BYTES + (16 << 20), 3, 2).await?;
                session.write(8192, 1, 2).await?;
                session.flush().await
            })
        };
        // Reads fail after their budget; then the state says why.
        let error = session.read(MUTABLE_BYTES, 8).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.to_string().contains("connection refused"), "{error}");
        let away = session.engine.client.away().unwrap();
        assert!(away.error.contains("connection refused"));
        tokio::time::sleep(Duration::from_secs(7200)).await;
        assert!(!waiting.is_finished());
        store.set_away(false);
        waiting.await.unwrap().unwrap();
        assert_eq!(session.engine.client.away(), None);
        session.expect(MUTABLE_BYTES, 8, 1).await;
        session.expect(MUTABLE_BYTES + (16 << 20), 3, 2).await;
    });
}

#[test]
fn a_store_that_refuses_only_puts_is_away() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(MUTABLE_BYTES, 8, 1).await.unwrap();
        store.set_full(true);
        let waiting = {
            let session = session.clone();
            tokio::spawn(async move {
                // The swap of `super` looks at it after each refusal.
                session.write(8192, 1, 2).await?;
                session.flush().await
            })
        };
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(7)).await;
            session.expect(MUTABLE_BYTES, 8, 1).await;
            let away = session.engine.client.away().expect("reads say nothing about puts");
            assert!(away.error.contains("quota"), "{away:?}");
        }
        assert!(!waiting.is_finished());
        store.set_full(false);
        waiting.await.unwrap().unwrap();
        assert_eq!(session.engine.client.away(), None);
    });
}

#[test]
fn a_link_too_slow_for_all_puts_at_once_gets_fewer_of_them() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        // Each put may take 66 seconds, all together need 256.
        store.set_bandwidth(512 << 10);
        let writes: Vec<_> = (0..16)
            .map(|window| {
                let session = session.clone();
                tokio::spawn(async move {
                    let buffer = session.buffer(WINDOW_BYTES);
                    session.run(Request::write(window * WINDOW_BYTES + MUTABLE_BYTES, buffer)).await
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1800)).await;
        for write in writes {
            assert!(write.is_finished(), "puts are cut off again and again");
            write.await.unwrap().result.unwrap();
        }
        session.flush().await.unwrap();
        // Sixteen, again sixteen, and eight at a time are too many; then it feels its way.
        assert!(session.counter("retries") <= 64, "{} retries", session.counter("retries"));
    });
}

#[test]
fn a_close_while_the_store_is_away_ends_with_errors() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        store.set_away(true);
        let waiting = {
            let session = session.clone();
            tokio::spawn(async move { session.write(MUTABLE_BYTES, 3, 2).await })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        session.close().await;
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(session.flush().await.unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn not_found_is_no_answer_to_an_unconditional_put() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        store.set_network(Network { strange: 500, ..Network::GOOD });
        for tag in 1..20 {
            session.write(MUTABLE_BYTES + tag * WINDOW_BYTES, 3, tag).await.unwrap();
            session.write(8192, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        store.set_network(Network::GOOD);
        let next = Session::open(&store, options("two", 2)).await.unwrap();
        next.expect(8192, 1, 19).await;
        for tag in 1..20 {
            next.expect(MUTABLE_BYTES + tag * WINDOW_BYTES, 3, tag).await;
        }
    });
}

#[test]
fn no_flush_succeeds_after_one_that_failed() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(1 << 20, 1, 1).await.unwrap();
        store.set_away(true);
        let flush = || {
            let session = session.clone();
            tokio::spawn(async move { session.flush().await })
        };
        let first = flush();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The first one has taken what there is to publish.
        let second = flush();
        tokio::time::sleep(Duration::from_secs(1)).await;
        session.close().await;
        for flush in [first, second] {
            assert_eq!(flush.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
    });
}

#[test]
fn writes_that_somebody_waits_for_are_put_at_once() {
    simulate(async {
        let patient = Options { seal_after: Duration::from_secs(3600), ..options("one", 1) };
        let Host { session, .. } = Host::new(patient).await;
        let writes: Vec<_> = (0..4)
            .map(|at| {
                let session = session.clone();
                let offset = MUTABLE_BYTES + at * SECTOR;
                tokio::spawn(async move { session.write(offset, 1, at).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(writes.iter().all(|write| !write.is_finished()), "they wait for more");
        session.engine.unplug();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for write in writes {
            assert!(write.is_finished());
            write.await.unwrap().unwrap();
        }
        assert_eq!(session.engine.lock().map.len(), 1);
        // What comes later is an object of its own.
        let later = session.clone();
        let write =
            tokio::spawn(async move { later.write(MUTABLE_BYTES + 4 * SECTOR, 1, 4).await });
        tokio::task::yield_now().await;
        session.engine.unplug();
        write.await.unwrap().unwrap();
        for at in 0..5 {
            session.expect(MUTABLE_BYTES + at * SECTOR, 1, at).await;
        }
    });
}

#[test]
fn a_close_waits_for_a_slow_store_that_answers() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        for at in 0..64 {
            session.write(at * 64 * SECTOR, 64, at).await.unwrap();
        }
        // The last root takes longer than the budget of a close.
        store.set_bandwidth(256 << 10);
        session.close().await;
        let careful = Options { force: false, ..options("two", 2) };
        let next = Session::open(&store, careful).await.unwrap();
        next.expect(63 * 64 * SECTOR, 64, 63).await;
    });
}

#[test]
fn cut_bodies_and_slow_downs_are_retried_and_counted() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(MUTABLE_BYTES, 64, 1).await.unwrap();
        store.set_network(Network { cut: 300, slow_down: 100, ..Network::GOOD });
        for sector in 0..64 {
            session.expect(MUTABLE_BYTES + sector * SECTOR, 1, 1).await;
        }
        assert!(session.counter("damaged_bodies") > 0);
        assert!(session.counter("slow_downs") > 0);
    });
}

#[test]
fn sixty_four_reads_are_sixty_four_requests_in_flight() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        store.take_most_in_flight();
        let before = session.counter("requests");
        let reads: Vec<_> = (0..64)
            .map(|at| {
                let session = session.clone();
                tokio::spawn(
                    async move { session.expect(MUTABLE_BYTES + at * 3 * SECTOR, 2, 1).await },
                )
            })
            .collect();
        for read in reads {
            read.await.unwrap();
        }
        assert_eq!(store.take_most_in_flight(), 64);
        assert_eq!(session.counter("requests") - before, 64);
        // Neighbours share a request.
        let reads: Vec<_> = (0..64)
            .map(|at| {
                let session = session.clone();
                tokio::spawn(async move { session.expect(MUTABLE_BYTES + at * SECTOR, 1, 1).await })
            })
            .collect();
        for read in reads {
            read.await.unwrap();
        }
        assert_eq!(session.counter("requests") - before, 65);
        assert_eq!(session.counter("coalesced_reads"), 63);
    });
}

#[test]
fn labels_at_both_ends_cost_one_object() {
    simulate(async {
        let Host { memory, session, .. } = Host::new(options("one", 1)).await;
        let tail = DEVICE_BYTES - TAIL_BYTES;
        session.write(0, 64, 0).await.unwrap();
        let label = session.buffer(64 * SECTOR);
        let mut same = session.buffer(64 * SECTOR);
        session.run(Request::read(0, label)).await.into_buffer().unwrap();
        same.copy_from_slice(&session.read(0, 64).await.unwrap());
        session.run(Request::write(tail, same)).await.result.unwrap();
        let before = session.counter("requests");
        let bytes: u64 = memory.objects().iter().map(|(_, bytes)| bytes).sum();
        session.flush().await.unwrap();
        // The root, and the swap of `super`.
        assert_eq!(session.counter("requests") - before, 2);
        let grown = memory.objects().iter().map(|(_, bytes)| bytes).sum::<u64>() - bytes;
        assert!(grown < 70 * SECTOR, "{grown} bytes");
        // Nothing has changed: no request.
        session.flush().await.unwrap();
        assert_eq!(session.counter("requests") - before, 2);
        // Only the ring has changed: one request.
        session.write(1 << 20, 1, 5).await.unwrap();
        session.flush().await.unwrap();
        assert_eq!(session.counter("requests") - before, 3);
    });
}

#[test]
fn each_address_is_written_once() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        let at = MUTABLE_BYTES + WINDOW_BYTES - 2 * SECTOR;
        // Over the end of a window: two objects.
        session.write(at, 4, 1).await.unwrap();
        assert_eq!(session.engine.lock().map.len(), 2);
        session.write(at, 4, 1).await.unwrap();
        assert_eq!(session.counter("rewrites_ignored"), 1);
        let error = session.write(at - SECTOR, 2, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        // Late writes of a window that has an object already: both are found.
        session.write(at - 8 * SECTOR, 1, 2).await.unwrap();
        session.write(at - 6 * SECTOR, 3, 3).await.unwrap();
        session.write(at - 7 * SECTOR, 1, 4).await.unwrap();
        session.expect(at - 8 * SECTOR, 1, 2).await;
        session.expect(at - 7 * SECTOR, 1, 4).await;
        session.expect(at - 6 * SECTOR, 3, 3).await;
        session.expect(at, 4, 1).await;
        let error = session.read(at - 3 * SECTOR, 4).await.unwrap_err();
        assert!(error.to_string().contains("nothing was written there"), "{error}");
        // Another session cannot tell what was written. The gap of an object was not.
        session.write(8192, 1, 1).await.unwrap();
        session.flush().await.unwrap();
        let next = Session::open(&store, options("two", 2)).await.unwrap();
        for sectors in [at..at + SECTOR, at - 3 * SECTOR..at] {
            let count = (sectors.end - sectors.start) / SECTOR;
            let error = next.write(sectors.start, count, 9).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        }
    });
}

/// A store that does not honour a condition.
struct Liar(Arc<MemoryStore>, StoreFault);

impl StoreDecorator for Liar {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }

    fn own_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (bytes::Bytes, Version)> {
        if self.1 == StoreFault::Stale {
            return Box::pin(async { Ok(("one".into(), Version("1".into()))) });
        }
        self.0.get(key)
    }

    fn own_put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        let exists = self.0.objects().iter().any(|(known, _)| known == key);
        let current = self.0.get_now(key).ok().map(|(_, version)| version);
        let is_current =
            matches!(&condition, Condition::Matches(version) if Some(version) == current.as_ref());
        let no = || StoreError::new(StoreErrorKind::Condition, "false");
        match (self.1, &condition) {
            (StoreFault::IgnoresAbsent, Condition::Absent) if exists => {
                self.0.put(key, body, Condition::Always)
            }
            (StoreFault::RefusesAbsent, Condition::Absent) => Box::pin(async move { Err(no()) }),
            (StoreFault::IgnoresMatch, Condition::Matches(_)) if exists => {
                self.0.put(key, body, Condition::Always)
            }
            (StoreFault::MatchCreates, Condition::Matches(_)) if !exists => {
                self.0.put(key, body, Condition::Always)
            }
            (StoreFault::RefusesMatch, Condition::Matches(_)) if is_current => {
                Box::pin(async move { Err(no()) })
            }
            _ => self.0.put(key, body, condition),
        }
    }
}

use crate::store::{StoreError, StoreErrorKind};

#[test]
fn a_store_that_lies_is_refused_by_the_name_of_its_fault() {
    use StoreFault::*;
    for fault in [IgnoresAbsent, RefusesAbsent, IgnoresMatch, RefusesMatch, MatchCreates, Stale] {
        let honest = MemoryStore::new();
        let liar: Arc<dyn ObjectStore> = Arc::new(Liar(Arc::clone(&honest), fault));
        simulate(async {
            let created = open::create(Arc::clone(&liar), "liar", options("one", 1)).await;
            assert!(matches!(created, Err(Error::Unfit { fault: found, .. }) if found == fault));
            assert_eq!(honest.objects(), [], "the probe is left behind");
            // A store that has lost its honesty since.
            Session::create(&honest, options("one", 2)).await.close().await;
            if fault != Stale {
                let opened = open::open(Arc::clone(&liar), "liar", options("two", 3)).await;
                assert!(matches!(opened, Err(Error::Unfit { fault: found, .. }) if found == fault));
            }
        });
    }
}

#[test]
fn a_store_that_asks_for_fewer_requests_all_the_time_can_be_opened() {
    let busy = Network { slow_down: 400, ..Network::GOOD };
    let first = testing::seed(0);
    for seed in (0..40).map(|n| first.wrapping_add(n)) {
        simulate(async {
            let store = SimulatedStore::new(MemoryStore::new(), busy.clone(), seed);
            Session::create(&store, options("one", seed)).await.close().await;
            let opened = open::open(store.clone(), "test", options("two", seed)).await;
            assert!(opened.is_ok(), "seed {seed}: {:?}", opened.err());
        });
    }
}

#[test]
fn a_prefix_that_is_not_empty_is_left_alone() {
    let store = MemoryStore::new();
    store.set("holiday.jpg", vec![1]);
    simulate(async {
        let created = open::create(store.clone(), "test", options("one", 1)).await.map(|_| ());
        assert!(matches!(created, Err(Error::NotEmpty { key, .. }) if key == "holiday.jpg"));
        let opened = open::open(store.clone(), "test", options("one", 1)).await.map(|_| ());
        assert!(matches!(opened, Err(Error::NotFound { .. })));
        assert_eq!(store.objects(), [("holiday.jpg".to_owned(), 1)]);
    });
}

#[test]
fn the_destruction_of_a_large_store_may_take_longer_than_an_open() {
    use crate::format::names;
    use crate::map::Object;
    let memory = MemoryStore::new();
    let half = Duration::from_millis(100);
    let slow = Network { latency: half..half, ..Network::GOOD };
    let store = SimulatedStore::new(Arc::clone(&memory), slow, 1);
    simulate(async {
        Session::create(&store, options("one", 1)).await.close().await;
        for at in 0..3000 {
            let object = Object { first: at << 11, epoch: 1, ..Object::default() };
            memory.set(&names::data(&object), vec![1]);
        }
        store.take_most_in_flight();
        let short = Options { open_budget: Duration::from_secs(2), ..options("two", 2) };
        let deletes_at_once = short.puts + short.gets;
        let shared: Arc<dyn ObjectStore> = store.clone();
        let deleted = crate::destroy::destroy(shared, "test", short).await.unwrap();
        assert!(deleted > 3000, "{deleted}");
        assert_eq!(memory.objects(), []);
        assert_eq!(store.take_most_in_flight(), deletes_at_once);
    });
}

#[test]
fn leftovers_without_a_pool_can_be_destroyed_and_probes_are_no_obstacle() {
    use crate::format::names;
    let memory = MemoryStore::new();
    let log = names::log(3, 4);
    memory.set("data/holiday.jpg", vec![1]);
    memory.set(&names::probe(7), vec![1]);
    memory.set(&log, vec![1]);
    let shared: Arc<dyn ObjectStore> = memory.clone();
    let destroy = |options| crate::destroy::destroy(Arc::clone(&shared), "test", options);
    simulate(async {
        destroy(options("one", 1)).await.unwrap();
        assert_eq!(memory.objects(), [("data/holiday.jpg".to_owned(), 1)]);
        let nothing = destroy(options("one", 1)).await;
        assert!(matches!(nothing, Err(Error::NotFound { .. })));
        memory.delete_now("data/holiday.jpg");
        // Also more of them than a page of a list has.
        for nonce in 0..1500 {
            memory.set(&names::probe(nonce), vec![1]);
        }
        memory.set(&log, vec![1]);
        let created = open::create(shared.clone(), "test", options("one", 1)).await.map(|_| ());
        assert!(matches!(created, Err(Error::NotEmpty { key, .. }) if key == log));
        memory.delete_now(&log);
        Session::create(&memory, options("one", 1)).await.close().await;
    });
}

#[test]
fn a_store_that_only_denies_super_is_not_destroyed() {
    let memory = MemoryStore::new();
    simulate(async {
        Session::create(&memory, options("one", 1)).await.close().await;
        let before = memory.objects();
        let blind: Arc<dyn ObjectStore> = Arc::new(Blind(Arc::clone(&memory)));
        let destroyed = crate::destroy::destroy(blind, "test", options("two", 2)).await;
        assert!(matches!(destroyed, Err(Error::NotFound { .. })));
        assert_eq!(memory.objects(), before);
    });
}

/// A store whose proxy answers gets with 404.
struct Blind(Arc<MemoryStore>);

impl StoreDecorator for Blind {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }

    fn own_get<'a>(&'a self, _: &'a str) -> StoreFuture<'a, (bytes::Bytes, Version)> {
        Box::pin(async { Err(StoreError::new(StoreErrorKind::NotFound, "page not found")) })
    }
}

#[test]
fn a_read_only_open_writes_nothing() {
    simulate(async {
        let Host { memory, store, session: owner } = Host::new(options("one", 1)).await;
        owner.write(MUTABLE_BYTES, 8, 1).await.unwrap();
        owner.write(1 << 20, 1, 1).await.unwrap();
        owner.flush().await.unwrap();
        let before = memory.objects();
        let changes = store.changes();
        let reader = Session::open_read_only(&store).await.unwrap();
        // Also what only the log has.
        reader.expect(1 << 20, 1, 1).await;
        reader.expect(MUTABLE_BYTES, 8, 1).await;
        let error = reader.write(1 << 20, 1, 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert_eq!((memory.objects(), store.changes()), (before, changes));
        // The owner was not disturbed.
        owner.write(1 << 20, 1, 2).await.unwrap();
        owner.flush().await.unwrap();
    });
}
