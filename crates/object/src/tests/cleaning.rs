//! The cleaner gives up what is dead, and nothing else, although hosts pause and die.

use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::testing;

use super::*;
use crate::format::{MUTABLE_BYTES, WINDOW_BYTES, names};

pub(super) const LABEL: u64 = 8192;

/// Live blocks, and the round that wrote each.
#[derive(Clone, Default)]
pub(super) struct Blocks {
    pub(super) known: Vec<(u64, u64, u64)>,
    pub(super) next: u64,
}

/// Writes blocks, discards some, and publishes roots.
pub(super) async fn round(
    session: &Session,
    blocks: &mut Blocks,
    live: &LiveSectors,
    tag: u64,
    rng: &mut SmallRng,
) -> Result<(), forebay_io::Error> {
    let count = 30 + rng.below(40);
    let mut tasks = Vec::new();
    for _ in 0..count {
        let sectors = 1 + rng.below(16);
        let offset = blocks.next;
        blocks.next += sectors * SECTOR;
        // A reader of the oracle may be faster than the write.
        live.set(offset, sectors, true);
        let session = session.clone();
        tasks.push((
            (offset, sectors, tag),
            tokio::spawn(async move { session.write(offset, sectors, tag).await }),
        ));
    }
    for (block, task) in tasks {
        task.await.unwrap()?;
        blocks.known.push(block);
    }
    session.write(LABEL, 1, tag).await?;
    session.flush().await?;
    // What is discarded is dead in all roots. Some discards come twice.
    for _ in 0..rng.below(2 * count) {
        if blocks.known.len() > 20 {
            let at = rng.below(blocks.known.len() as u64) as usize;
            let (offset, sectors, _) = blocks.known.swap_remove(at);
            live.set(offset, sectors, false);
            for _ in 0..1 + rng.below(2) {
                session.run(Request::discard(offset, sectors * SECTOR)).await.result?;
            }
        }
    }
    tokio::time::sleep(Duration::from_millis(rng.below(3000))).await;
    Ok(())
}

pub(super) async fn expect_all(session: &Session, blocks: &Blocks) {
    for (offset, sectors, tag) in &blocks.known {
        session.expect(*offset, *sectors, *tag).await;
    }
}

pub(super) fn data_bytes(memory: &MemoryStore) -> u64 {
    let objects = memory.objects();
    objects.iter().filter(|(key, _)| key.starts_with(names::DATA)).map(|(_, bytes)| bytes).sum()
}

#[test]
fn dead_blocks_give_their_bytes_back_and_live_ones_stay() {
    let memory = MemoryStore::new();
    let seed = testing::seed(1);
    let store = SimulatedStore::new(Arc::clone(&memory), Network::BAD, seed);
    simulate(async {
        let mut rng = SmallRng::from_seed(seed);
        let live = LiveSectors::new();
        let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
        let session = Session::create(&store, options("one", seed)).await;
        session.clean(&live);
        for tag in 1..60 {
            round(&session, &mut blocks, &live, tag, &mut rng).await.unwrap();
            if tag % 10 == 0 {
                expect_all(&session, &blocks).await;
            }
        }
        // The last objects are left alone until more labels were published.
        for tag in 60..72 {
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
            session.discard(MUTABLE_BYTES, (blocks.next - MUTABLE_BYTES) / SECTOR).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        expect_all(&session, &blocks).await;
        let live_bytes = live.0.lock().len() as u64 * SECTOR;
        let stored = data_bytes(&memory);
        let written = blocks.next - MUTABLE_BYTES;
        assert!(session.counter("merged_objects") > 0);
        assert!(
            stored < 2 * live_bytes + WINDOW_BYTES,
            "{stored} bytes for {live_bytes} live ones"
        );
        assert!(stored < written / 2, "{stored} bytes of {written} written ones");
        // What the map says is what is there.
        let state_bytes = session.engine.lock().map.bytes().0;
        assert!(state_bytes <= stored);
        session.close().await;
        let session = Session::open(&store, options("two", seed + 1)).await.unwrap();
        expect_all(&session, &blocks).await;
    });
}

#[test]
fn without_live_blocks_no_data_object_is_left() {
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        session.clean(&LiveSectors::new());
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        session.write(MUTABLE_BYTES + 3 * WINDOW_BYTES, 3, 1).await.unwrap();
        session.discard(MUTABLE_BYTES, 4 * 2048).await;
        for tag in 0..12 {
            // The window of the newest object may still get writes, so more must come.
            let next = MUTABLE_BYTES + (5 + tag) * WINDOW_BYTES;
            session.write(next, 1, 1).await.unwrap();
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let first = MUTABLE_BYTES / SECTOR;
        assert!(session.engine.lock().map.get(first).is_none());
        let keys = memory.objects();
        let is_old = |key: &str| {
            names::parse_data(key).is_some_and(|(at, ..)| at < MUTABLE_BYTES + 4 * WINDOW_BYTES)
        };
        assert!(!keys.iter().any(|(key, _)| is_old(key)), "{keys:?}");
    });
}

#[test]
fn an_import_gives_bytes_back_although_it_publishes_few_labels() {
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let live = LiveSectors::new();
        let session = Session::create(&store, options("one", 1)).await;
        for window in 0..3 {
            session.write(MUTABLE_BYTES + window * WINDOW_BYTES, 2048, window).await.unwrap();
        }
        session.write(LABEL, 1, 1).await.unwrap();
        session.flush().await.unwrap();
        session.close().await;
        // The first is dead, the second almost, and the last one is alive.
        live.set(MUTABLE_BYTES + WINDOW_BYTES, 4, true);
        live.set(MUTABLE_BYTES + 2 * WINDOW_BYTES, 2048, true);
        let session = Session::open(&store, options("two", 2)).await.unwrap();
        session.clean(&live);
        let next = session.engine.first_unused;
        session.write(next, 8, 7).await.unwrap();
        live.set(next, 8, true);
        session.discard(MUTABLE_BYTES, 2048).await;
        session.discard(MUTABLE_BYTES + WINDOW_BYTES + 4 * SECTOR, 2048 - 4).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(data_bytes(&memory) < WINDOW_BYTES * 5 / 4, "{:?}", memory.objects());
        session.expect(MUTABLE_BYTES + WINDOW_BYTES, 4, 1).await;
        session.expect(MUTABLE_BYTES + 2 * WINDOW_BYTES, 2048, 2).await;
        session.expect(next, 8, 7).await;
    });
}

/// Does not know what is live until it is told so.
struct Hesitant(AtomicBool, Arc<LiveSectors>);

impl LiveRanges for Hesitant {
    fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        match self.0.load(Ordering::Relaxed) {
            true => self.1.live(start, end),
            false => Err("the space map cannot be read".to_owned()),
        }
    }
}

#[test]
fn objects_that_could_not_be_cleaned_are_tried_again() {
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        for window in 0..13 {
            let offset = MUTABLE_BYTES + window * WINDOW_BYTES;
            session.write(offset, if window == 0 { 2048 } else { 1 }, 1).await.unwrap();
            session.write(LABEL, 1, window).await.unwrap();
            session.flush().await.unwrap();
        }
        let live = LiveSectors::new();
        (1..13).for_each(|window| live.set(MUTABLE_BYTES + window * WINDOW_BYTES, 1, true));
        let oracle = Arc::new(Hesitant(AtomicBool::new(false), live));
        drop(tokio::spawn(cleaner::run(Arc::clone(&session.engine), oracle.clone())));
        session.discard(MUTABLE_BYTES, 2048).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(data_bytes(&memory) > WINDOW_BYTES);
        // It has been tried, and is no more in the way of others.
        assert!(session.engine.lock().to_clean.is_empty());
        oracle.0.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(data_bytes(&memory) < WINDOW_BYTES, "{:?}", memory.objects());
    });
}

#[test]
fn objects_that_are_far_from_each_other_are_not_merged() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        let live = LiveSectors::new();
        // Farther than a span can tell.
        let far = MUTABLE_BYTES + ((1 << 32) + 10) * SECTOR;
        for offset in [MUTABLE_BYTES, far] {
            session.write(offset, 8, 1).await.unwrap();
            live.set(offset, 3, true);
        }
        for tag in 1..12 {
            session.write(far + tag * WINDOW_BYTES, 8, 1).await.unwrap();
            live.set(far + tag * WINDOW_BYTES, 8, true);
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        session.clean(&live);
        for offset in [MUTABLE_BYTES, far] {
            session.discard(offset + 3 * SECTOR, 5).await;
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(session.counter("merged_objects") >= 2);
        let next = Session::open(&store, options("two", 2)).await.unwrap();
        for session in [session, next] {
            session.expect(MUTABLE_BYTES, 3, 1).await;
            session.expect(far, 3, 1).await;
        }
    });
}

#[test]
fn the_cleaner_reads_what_is_live_and_many_parts_at_the_same_time() {
    const BLOCK: u64 = 128;
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, Options { background: 4, ..options("one", 1) }).await;
        let live = LiveSectors::new();
        for tag in 0..16 {
            let window = MUTABLE_BYTES + tag * WINDOW_BYTES;
            // Objects with gaps, whose directories are in memory, and dense ones.
            let blocks: Vec<u64> = (0..16).filter(|at| tag % 2 == 0 || *at != 5).collect();
            let writes = blocks.into_iter().map(|at| {
                let session = session.clone();
                let at = window + at * BLOCK * SECTOR;
                tokio::spawn(async move { session.write(at, BLOCK, tag).await })
            });
            for write in writes.collect::<Vec<_>>() {
                write.await.unwrap().unwrap();
            }
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        assert_eq!(session.engine.lock().map.len(), 16);
        // Of four objects, three blocks each are live, far from each other.
        let blocks = |window: u64| {
            [1, 7, 12].map(|at| MUTABLE_BYTES + window * WINDOW_BYTES + at * BLOCK * SECTOR)
        };
        let all = (0..4).flat_map(blocks).collect::<Vec<_>>();
        all.iter().for_each(|at| live.set(*at, BLOCK, true));
        for window in 0..4 {
            session.discard(MUTABLE_BYTES + window * WINDOW_BYTES, 2048).await;
        }
        let read = session.counter_of("request_bytes", "get");
        store.take_most_in_flight();
        let cleaner = cleaner::Cleaner { engine: Arc::clone(&session.engine), oracle: live };
        assert!(cleaner.step().await);
        assert_eq!(session.counter("merged_objects"), 4);
        let in_flight = store.take_most_in_flight();
        assert_eq!(in_flight, 4, "as many as the background may have");
        let read = session.counter_of("request_bytes", "get") - read;
        let live = 12 * BLOCK * SECTOR;
        assert!((live..live + 4 * SECTOR).contains(&read), "{read} bytes for {live} live ones");
        for (at, tag) in all.into_iter().zip((0..4).flat_map(|tag| [tag; 3])) {
            session.expect(at, BLOCK, tag).await;
        }
    });
}

#[test]
fn the_cleaner_keeps_what_it_cannot_verify() {
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        let live = LiveSectors::new();
        for tag in 0..12 {
            let at = MUTABLE_BYTES + tag * WINDOW_BYTES;
            session.write(at, 2048, tag).await.unwrap();
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        live.set(MUTABLE_BYTES, 64, true);
        session.discard(MUTABLE_BYTES + 64 * SECTOR, 2048 - 64).await;
        let object = session.engine.lock().map.get(MUTABLE_BYTES / SECTOR).copied().unwrap();
        let key = names::data(&object);
        let mut body = memory.get_now(&key).unwrap().0.to_vec();
        body[63 * SECTOR as usize] ^= 1;
        memory.set(&key, body);
        let cleaner = cleaner::Cleaner { engine: Arc::clone(&session.engine), oracle: live };
        assert!(cleaner.step().await);
        assert!(session.counter("damaged_bodies") > 0);
        assert_eq!(session.counter("merged_objects"), 0);
        assert!(memory.get_now(&key).is_ok());
        assert!(session.engine.lock().map.get(object.first).is_some());
    });
}

#[test]
fn no_merge_begins_while_the_device_closes() {
    /// A close begins while objects are looked at.
    struct Closing(Arc<Engine>, Arc<LiveSectors>);
    impl LiveRanges for Closing {
        fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
            self.0.lock().closing = true;
            self.1.live(start, end)
        }
    }
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        let live = LiveSectors::new();
        for tag in 0..12 {
            let offset = MUTABLE_BYTES + tag * WINDOW_BYTES;
            session.write(offset, 8, 1).await.unwrap();
            live.set(offset, 8, true);
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        session.discard(MUTABLE_BYTES + 3 * SECTOR, 5).await;
        live.set(MUTABLE_BYTES + 3 * SECTOR, 5, false);
        let before = memory.objects();
        let engine = Arc::clone(&session.engine);
        let oracle = Arc::new(Closing(Arc::clone(&engine), live));
        let cleaner = cleaner::Cleaner { engine, oracle };
        assert!(cleaner.step().await);
        assert!(session.engine.lock().closing);
        assert_eq!(memory.objects(), before);
        assert!(!session.engine.lock().merging);
    });
}

#[test]
fn an_oracle_that_does_not_know_keeps_everything() {
    struct Ignorant;
    impl LiveRanges for Ignorant {
        fn live(&self, _start: u64, _end: u64) -> Result<Vec<(u64, u64)>, String> {
            Err("the space map cannot be read".to_owned())
        }
    }
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        drop(tokio::spawn(cleaner::run(Arc::clone(&session.engine), Arc::new(Ignorant))));
        session.write(MUTABLE_BYTES, 8, 1).await.unwrap();
        for tag in 1..12 {
            session.write(MUTABLE_BYTES + tag * WINDOW_BYTES, 1, 1).await.unwrap();
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        session.discard(MUTABLE_BYTES, 8).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        session.expect(MUTABLE_BYTES, 8, 1).await;
    });
}

#[test]
fn puts_of_a_paused_old_owner_are_harmless() {
    let mut puts = 0;
    let first = testing::seed(0);
    for seed in (0..100).map(|n| first.wrapping_add(n)) {
        let memory = MemoryStore::new();
        let from = |at: u64| seed.wrapping_add(at);
        let host = |at| SimulatedStore::new(Arc::clone(&memory), Network::BAD, from(at));
        simulate(async {
            let mut rng = SmallRng::from_seed(seed);
            let live = LiveSectors::new();
            let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
            let (one, two) = (host(1000), host(2000));
            let old = Session::create(&one, options("old", seed)).await;
            old.clean(&live);
            for tag in 1..8 {
                round(&old, &mut blocks, &live, tag, &mut rng).await.unwrap();
            }
            // It is paused in the middle of a round, with puts under way.
            let busy = {
                let (old, live, mut blocks) = (old.clone(), LiveSectors::new(), blocks.clone());
                let mut rng = rng.clone();
                tokio::spawn(async move {
                    loop {
                        let done = round(&old, &mut blocks, &live, 99, &mut rng).await;
                        if done.is_err() {
                            return;
                        }
                    }
                })
            };
            busy.await_pause(&one, &mut rng).await;
            puts += one.puts_under_way();
            // Another host takes over, and its blocks are those of the last flush it finds.
            let mut new = Session::open(&two, options("new", from(1))).await.unwrap();
            expect_all(&new, &blocks).await;
            blocks.next = new.engine.first_unused;
            // It knows its own blocks only: the blocks of the old one's last round are dead for it.
            let live = LiveSectors::new();
            for (offset, sectors, _) in &blocks.known {
                live.set(*offset, *sectors, true);
            }
            new.clean(&live);
            for tag in 101..105 {
                round(&new, &mut blocks, &live, tag, &mut rng).await.unwrap();
            }
            one.set_paused(false);
            for tag in 105..110 {
                round(&new, &mut blocks, &live, tag, &mut rng).await.unwrap();
                expect_all(&new, &blocks).await;
            }
            assert!(old.flush_is_fenced().await);
            if seed % 2 == 0 {
                new.close().await;
            }
            new = Session::open(&two, options("newer", from(2))).await.unwrap();
            expect_all(&new, &blocks).await;
        });
    }
    assert!(puts > 50, "only {puts} puts were under way");
}

impl Session {
    async fn flush_is_fenced(&self) -> bool {
        let write = self.write(LABEL, 1, 12_345).await;
        let flush = self.flush().await;
        let is_fenced = |result: Result<(), forebay_io::Error>| {
            result.is_err_and(|error| error.kind() == forebay_io::ErrorKind::Gone)
        };
        is_fenced(write.and(flush))
    }
}

#[test]
fn orphans_of_dead_owners_are_deleted_and_nothing_else() {
    let first = testing::seed(0);
    for seed in (0..10).map(|n| first.wrapping_add(n)) {
        let memory = MemoryStore::new();
        let live = LiveSectors::new();
        let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
        let mut rng = SmallRng::from_seed(seed);
        let store = SimulatedStore::new(Arc::clone(&memory), Network::BAD, seed);
        for host in 0..4 {
            // Each host dies with unnamed objects, and objects that wait for their deletion.
            simulate(async {
                let options_seed = seed.wrapping_mul(100).wrapping_add(host);
                let mut options = options(&format!("host {host}"), options_seed);
                options.chain_objects = 6;
                let session = match host {
                    0 => Session::create(&store, options).await,
                    _ => Session::open(&store, options).await.unwrap(),
                };
                blocks.next = session.engine.first_unused;
                session.clean(&live);
                for tag in 1..8 {
                    round(&session, &mut blocks, &live, host * 10 + tag, &mut rng).await.unwrap();
                }
                for at in 0..3 {
                    session.write(blocks.next + at * WINDOW_BYTES, 5, 5).await.unwrap();
                }
            });
        }
        simulate(async {
            let session = Session::open(&store, options("last", 9999)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert!(session.counter("deleted_orphans") > 0);
            expect_all(&session, &blocks).await;
            session.write(LABEL, 1, 1).await.unwrap();
            session.flush().await.unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            let state = session.engine.lock();
            let named: BTreeSet<String> = state.map.iter().map(names::data).collect();
            drop(state);
            let keys = memory.objects().into_iter().map(|(key, _)| key);
            let data: BTreeSet<String> = keys.filter(|key| key.starts_with(names::DATA)).collect();
            assert_eq!(data, named, "seed {seed}");
            // The fences stay.
            let logs = memory.list_now(names::LOGS, "");
            for epoch in session.engine.epoch - 4..session.engine.epoch {
                assert!(
                    logs.iter().any(|key| names::parse_log(key).is_some_and(|(e, _)| e == epoch))
                );
            }
        });
        // All hosts' blocks, by a host that was never there.
        simulate(async {
            let session = Session::open(&store, options("after", 10_000)).await.unwrap();
            expect_all(&session, &blocks).await;
        });
    }
}

trait AwaitPause {
    async fn await_pause(self, store: &SimulatedStore, rng: &mut SmallRng);
}

impl AwaitPause for tokio::task::JoinHandle<()> {
    /// Pauses the host once it has a put under way.
    async fn await_pause(self, store: &SimulatedStore, rng: &mut SmallRng) {
        tokio::time::sleep(Duration::from_millis(rng.below(4000))).await;
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while store.puts_under_way() == 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        store.set_paused(true);
        drop(self);
    }
}

#[test]
fn a_read_only_pool_follows_its_owner_to_merged_objects() {
    let memory = MemoryStore::new();
    let seed = testing::seed(1);
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    simulate(async {
        let mut rng = SmallRng::from_seed(seed);
        let live = LiveSectors::new();
        let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
        let owner = Session::create(&store, options("one", seed)).await;
        owner.clean(&live);
        for tag in 1..20 {
            round(&owner, &mut blocks, &live, tag, &mut rng).await.unwrap();
        }
        let reader = Session::open_read_only(&store).await.unwrap();
        // These stay in use, the others may be freed.
        let kept = blocks.known.split_off(10);
        let others = blocks.known.clone();
        let merged = owner.counter("merged_objects");
        for tag in 20..50 {
            round(&owner, &mut blocks, &live, tag, &mut rng).await.unwrap();
        }
        // Until the cleaner may look at the last objects, too.
        for tag in 50..62 {
            owner.write(LABEL, 1, tag).await.unwrap();
            owner.flush().await.unwrap();
            owner.discard(MUTABLE_BYTES, (blocks.next - MUTABLE_BYTES) / SECTOR).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert!(owner.counter("merged_objects") > merged);
        for (offset, sectors, tag) in kept {
            reader.expect(offset, sectors, tag).await;
        }
        let mut freed = 0;
        for (offset, sectors, _) in others {
            if let Err(error) = reader.read(offset, sectors).await {
                assert!(error.to_string().contains("its owner has freed it"), "{error}");
                freed += 1;
            }
        }
        assert!(freed > 0);
    });
}

#[test]
fn destroy_removes_our_objects_and_no_other() {
    let memory = MemoryStore::new();
    memory.set("data/holiday.jpg", vec![1]);
    let store = SimulatedStore::new(Arc::clone(&memory), Network::BAD, 1);
    simulate(async {
        memory.delete_now("data/holiday.jpg");
        let session = Session::create(&store, options("one", 1)).await;
        memory.set("data/holiday.jpg", vec![1]);
        session.write(MUTABLE_BYTES, 900, 1).await.unwrap();
        session.write(LABEL, 1, 1).await.unwrap();
        session.flush().await.unwrap();
        let shared: Arc<dyn ObjectStore> = store.clone();
        let count = memory.objects().len() as u64 - 1;
        let mut careful = options("two", 2);
        careful.force = false;
        let refused = crate::destroy::destroy(Arc::clone(&shared), "test", careful).await;
        assert!(matches!(refused, Err(Error::InUse { .. })));
        let deleted = crate::destroy::destroy(shared, "test", options("two", 2)).await.unwrap();
        assert!(deleted >= count);
        assert_eq!(memory.objects(), [("data/holiday.jpg".to_owned(), 1)]);
        assert!(session.flush_is_fenced().await);
    });
}

/// Discards all that it was asked for, just after it has looked what is live.
struct Discarding(Session, Arc<LiveSectors>);

impl LiveRanges for Discarding {
    fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        let answer = self.1.live(start, end);
        self.1.set(start, (end - start) / SECTOR, false);
        self.0.engine.submit(Request::discard(start, end - start));
        answer
    }
}

/// A device with small objects, each of which was published, and the first of which is half dead.
async fn with_half_dead(store: &Arc<SimulatedStore>) -> (Session, Arc<LiveSectors>) {
    let session = Session::create(store, options("one", 1)).await;
    let live = LiveSectors::new();
    for tag in 0..12 {
        let offset = MUTABLE_BYTES + tag * WINDOW_BYTES;
        session.write(offset, 1000, 1).await.unwrap();
        live.set(offset, 1000, true);
        session.write(LABEL, 1, tag).await.unwrap();
        session.flush().await.unwrap();
    }
    live.set(MUTABLE_BYTES + 400 * SECTOR, 600, false);
    session.discard(MUTABLE_BYTES + 400 * SECTOR, 600).await;
    (session, live)
}

#[test]
fn what_is_discarded_while_the_cleaner_works_is_deleted_later() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let (session, live) = with_half_dead(&store).await;
        let engine = Arc::clone(&session.engine);
        // A discard that came twice: the count tells of no more.
        session.discard(MUTABLE_BYTES + 400 * SECTOR, 600).await;
        let oracle = Arc::new(Discarding(session.clone(), Arc::clone(&live)));
        let first = cleaner::Cleaner { engine: Arc::clone(&engine), oracle };
        assert!(first.step().await);
        assert_eq!(session.counter("merged_objects"), 1);
        let object = |engine: &Engine| engine.lock().map.get(MUTABLE_BYTES / SECTOR).copied();
        assert!(object(&engine).is_some());
        session.flush().await.unwrap();
        let later = cleaner::Cleaner { engine: Arc::clone(&engine), oracle: live };
        assert!(later.step().await);
        assert_eq!(object(&engine), None);
    });
}

#[test]
fn no_object_is_merged_again_before_it_is_published() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 1);
    simulate(async {
        let (session, live) = with_half_dead(&store).await;
        let engine = Arc::clone(&session.engine);
        let oracle = Arc::clone(&live);
        let cleaner = cleaner::Cleaner { engine: Arc::clone(&engine), oracle };
        assert!(cleaner.step().await);
        assert_eq!(session.counter("merged_objects"), 1);
        // The publisher has not run yet.
        assert_eq!(engine.lock().unpublished.len(), 1);
        live.set(MUTABLE_BYTES, 300, false);
        engine.submit(Request::discard(MUTABLE_BYTES, 300 * SECTOR));
        assert!(!cleaner.step().await);
        session.flush().await.unwrap();
        assert!(cleaner.step().await);
        assert_eq!(session.counter("merged_objects"), 2);
    });
}
