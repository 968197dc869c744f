//! Followers see each state of the store as a whole, and what they pin stays.

use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::testing;

use super::cleaning::{Blocks, LABEL, data_bytes, expect_all, round};
use super::*;
use crate::decorator::StoreDecorator;
use crate::follower::{Following, keep_pinned};
use crate::format::{MUTABLE_BYTES, WINDOW_BYTES, names};
use crate::store::{Body, Condition, StoreError, StoreErrorKind, StoreFuture, Version};

const LEASE: Duration = Duration::from_secs(30);

fn following_options(seed: u64) -> Options {
    Options { lease: LEASE, pin_check: Duration::from_secs(3), ..options("follower", seed) }
}

/// Writes these data sectors as one object.
pub(super) async fn write_object(session: &Session, sectors: impl Iterator<Item = u64>, tag: u64) {
    let before = session.engine.lock().map.len();
    for sector in sectors {
        let writer = session.clone();
        let write = async move { writer.write(MUTABLE_BYTES + sector * SECTOR, 1, tag).await };
        drop(tokio::spawn(write));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(session.engine.lock().map.len(), before + 1);
}

/// A follower, with its newest view.
pub(super) struct Follower {
    pub(super) following: Arc<Following>,
    pub(super) view: Session,
}

impl Follower {
    pub(super) async fn open(store: &Arc<impl ObjectStore>, seed: u64) -> Self {
        let store: Arc<dyn ObjectStore> = store.clone();
        let opened = Following::open(store, "test", following_options(seed)).await;
        let (following, view) = opened.unwrap();
        Self { following, view: Session::of(view) }
    }

    /// Takes up the newest state, and renews the pin. Returns the view before if there is a new
    /// one.
    pub(super) async fn poll(&mut self) -> Option<Session> {
        let found = self.following.poll().await.unwrap();
        let before = found.map(|view| std::mem::replace(&mut self.view, Session::of(view)));
        self.following.renew().await;
        before
    }
}

/// Lets a follower poll every two leases, for ever, and keep its pin.
fn keep_polling(following: &Arc<Following>) -> tokio::task::JoinHandle<()> {
    let following = Arc::clone(following);
    tokio::spawn(async move {
        let pinned = keep_pinned(Arc::downgrade(&following));
        let polls = async {
            loop {
                // The view before is dropped.
                let _ = following.poll().await;
                tokio::time::sleep(2 * LEASE).await;
            }
        };
        tokio::join!(pinned, polls);
    })
}

/// The tag that the label of a view has.
async fn tag_of(view: &Session) -> u64 {
    let label = view.read(LABEL, 1).await.unwrap();
    u64::from_le_bytes(label[8..16].try_into().unwrap())
}

/// Publishes labels in free windows, so that the cleaner looks at all objects of before.
async fn move_on(session: &Session, blocks: &mut Blocks, labels: u64) {
    for tag in 0..labels {
        blocks.next = (blocks.next / WINDOW_BYTES + 1) * WINDOW_BYTES;
        session.write(blocks.next, 1, 1).await.unwrap();
        session.write(LABEL, 1, 1000 + tag).await.unwrap();
        session.flush().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

#[test]
fn views_are_whole_states_whatever_fails_and_whoever_owns_the_store() {
    for seed in 0..20 {
        let memory = MemoryStore::new();
        let host = |at| SimulatedStore::new(Arc::clone(&memory), Network::BAD, seed + 1000 * at);
        simulate(async {
            let mut rng = SmallRng::from_seed(testing::seed(seed));
            let live = LiveSectors::new();
            let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
            // Checkpoints are frequent.
            let options = |name, seed| Options { chain_objects: 12, ..options(name, seed) };
            let mut session = Session::create(&host(1), options("one", seed)).await;
            session.clean(&live);
            session.write(LABEL, 1, 0).await.unwrap();
            session.flush().await.unwrap();
            let mut follower = Follower::open(&host(2), seed + 1).await;
            let mut states = vec![Blocks::default()];
            let mut seen = 0;
            for tag in 1..40 {
                if tag % 13 == 0 {
                    // The owner crashes, and another one takes over.
                    session = Session::open(&host(2 + tag), options("next", tag)).await.unwrap();
                    session.clean(&live);
                    blocks.next = session.engine.first_unused;
                }
                round(&session, &mut blocks, &live, tag, &mut rng).await.unwrap();
                states.push(blocks.clone());
                if rng.below(3) == 0 {
                    follower.poll().await;
                    let of = tag_of(&follower.view).await;
                    assert!(of == tag, "state {of} instead of {tag}");
                    expect_all(&follower.view, &states[of as usize]).await;
                    seen += 1;
                }
            }
            assert!(seen > 3);
            let is_pin = |(key, _): &(String, u64)| names::is_pin(key);
            assert!(memory.objects().iter().any(is_pin), "no pin was put");
        });
    }
}

#[test]
fn an_incremental_load_is_as_a_whole_one() {
    let store = SimulatedStore::new(MemoryStore::new(), Network::GOOD, 3);
    simulate(async {
        let mut rng = SmallRng::from_seed(3);
        let live = LiveSectors::new();
        let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
        let session = Session::create(&store, options("one", 3)).await;
        session.clean(&live);
        let mut follower = Follower::open(&store, 4).await;
        let mut requests = 0;
        for tag in 1..30 {
            round(&session, &mut blocks, &live, tag, &mut rng).await.unwrap();
            // An fsync: a log object, which the next root names.
            session.write(16 << 20, 1, tag).await.unwrap();
            session.flush().await.unwrap();
            let before = follower.view.counter("requests");
            follower.poll().await;
            requests = follower.view.counter("requests") - before;
            let whole = Session::open_read_only(&store).await.unwrap();
            assert_eq!(tag_of(&follower.view).await, tag_of(&whole).await);
            let objects = |session: &Session| -> Vec<_> {
                session.engine.lock().map.iter().map(|object| object.first).collect()
            };
            let of_roots: Vec<_> = objects(&follower.view);
            assert!(of_roots.iter().all(|first| objects(&whole).contains(first)));
        }
        // `super`, the root, the log object before it, roots of the cleaner, the pin.
        assert!(requests <= 8, "{requests} requests for a group");
        let before = follower.view.counter("requests");
        follower.poll().await;
        assert!(
            follower.view.counter("requests") - before <= 2,
            "an idle pool is one get, and a pin"
        );
    });
}

#[test]
fn views_share_the_directories_of_objects() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        write_object(&session, (0..8).map(|at| 3 * at), 7).await;
        session.write(LABEL, 1, 0).await.unwrap();
        session.flush().await.unwrap();
        let mut follower = Follower::open(&store, 2).await;
        for tag in 1..8 {
            follower.view.expect(MUTABLE_BYTES + 3 * tag * SECTOR, 1, 7).await;
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
            assert!(follower.poll().await.is_some(), "a new view");
        }
        assert_eq!(follower.view.counter("directories_fetched"), 1);
    });
}

#[test]
fn a_pinned_view_stays_and_what_it_needs_goes_after_it() {
    simulate(async {
        let Host { memory, store, session } = Host::new(following_options(1)).await;
        let live = LiveSectors::new();
        session.clean(&live);
        let mut blocks = Blocks { next: MUTABLE_BYTES + WINDOW_BYTES, ..Blocks::default() };
        published_data(&session).await;
        let follower = Follower::open(&store, 2).await;
        let polling = keep_polling(&follower.following);
        let old = follower.view;
        // All is freed, and the cleaner has released it.
        session.discard(MUTABLE_BYTES, 2048).await;
        move_on(&session, &mut blocks, 12).await;
        assert!(session.engine.lock().map.get(MUTABLE_BYTES / SECTOR).is_none());
        // Many grace periods and leases.
        tokio::time::sleep(Duration::from_secs(600)).await;
        old.expect(MUTABLE_BYTES, 2048, 7).await;
        assert!(!old.engine.lock().lost);
        old.engine.start_close();
        drop(old);
        let before = data_bytes(&memory);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(data_bytes(&memory) + 2048 * SECTOR <= before, "it stays after the view is gone");
        polling.abort();
    });
}

#[test]
fn a_follower_that_was_paused_loses_its_view_and_reads_on_in_a_new_one() {
    let memory = MemoryStore::new();
    let host = |seed| SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    let (store, readers) = (host(1), host(2));
    simulate(async {
        let session = Session::create(&store, following_options(1)).await;
        let live = LiveSectors::new();
        session.clean(&live);
        let mut blocks = Blocks { next: MUTABLE_BYTES, ..Blocks::default() };
        session.write(MUTABLE_BYTES, 2048, 7).await.unwrap();
        session.write(MUTABLE_BYTES + WINDOW_BYTES, 100, 8).await.unwrap();
        live.set(MUTABLE_BYTES + WINDOW_BYTES, 40, true);
        blocks.next += 2 * WINDOW_BYTES;
        session.write(LABEL, 1, 7).await.unwrap();
        session.flush().await.unwrap();
        let mut follower = Follower::open(&readers, 2).await;
        readers.set_paused(true);
        session.discard(MUTABLE_BYTES, 2048).await;
        session.discard(MUTABLE_BYTES + WINDOW_BYTES + 40 * SECTOR, 60).await;
        move_on(&session, &mut blocks, 12).await;
        tokio::time::sleep(LEASE + Duration::from_secs(60)).await;
        readers.set_paused(false);
        // What is live has moved, and is found. What was freed is gone, and so is the rest of it.
        follower.view.expect(MUTABLE_BYTES + WINDOW_BYTES, 40, 8).await;
        let error = follower.view.read(MUTABLE_BYTES, 8).await.unwrap_err().to_string();
        assert!(error.contains("has freed it since; open the file again"), "{error}");
        assert!(follower.view.engine.lock().lost);
        follower.poll().await.expect("there is a newer state");
        follower.view.expect(MUTABLE_BYTES + WINDOW_BYTES, 40, 8).await;
        assert!(!follower.view.engine.lock().lost);
    });
}

#[test]
fn a_new_owner_keeps_what_followers_of_the_old_one_need() {
    let memory = MemoryStore::new();
    let host = |seed| SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    simulate(async {
        let one = host(1);
        let session = Session::create(&one, following_options(1)).await;
        let live = LiveSectors::new();
        session.clean(&live);
        let mut blocks = Blocks { next: MUTABLE_BYTES + WINDOW_BYTES, ..Blocks::default() };
        published_data(&session).await;
        let follower = Follower::open(&host(2), 2).await;
        let polling = keep_polling(&follower.following);
        session.discard(MUTABLE_BYTES, 2048).await;
        move_on(&session, &mut blocks, 12).await;
        assert!(session.engine.lock().map.get(MUTABLE_BYTES / SECTOR).is_none());
        one.die_after(0);
        // To the new owner all of it is orphans.
        let next = Session::open(&host(3), following_options(3)).await.unwrap();
        next.clean(&live);
        tokio::time::sleep(Duration::from_secs(300)).await;
        follower.view.expect(MUTABLE_BYTES, 2048, 7).await;
        assert_eq!(next.counter("deleted_orphans"), 0);
        // The follower dies, too: its pin stays, but is not renewed.
        polling.abort();
        let is_pin = |(key, _): &(String, u64)| names::is_pin(key);
        assert!(memory.objects().iter().any(is_pin));
        tokio::time::sleep(LEASE * 3).await;
        assert!(next.counter("deleted_orphans") > 0);
        let error = follower.view.read(MUTABLE_BYTES, 8).await.unwrap_err().to_string();
        assert!(error.contains("has freed it since"), "{error}");
        // A pin that nobody renews goes at last, when the owner looks for something to delete.
        tokio::time::sleep(LEASE * 10).await;
        release(&next, crate::map::Object { first: 1, ..Default::default() }).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(!memory.objects().iter().any(is_pin));
    });
}

#[test]
fn a_pin_that_cannot_be_read_holds_everything_and_not_for_ever() {
    simulate(async {
        let Host { memory, session, .. } = Host::new(following_options(1)).await;
        session.clean(&LiveSectors::new());
        memory.set(&names::pin(5), b"of a later version".to_vec());
        let mut blocks = Blocks { next: MUTABLE_BYTES + WINDOW_BYTES, ..Blocks::default() };
        published_data(&session).await;
        session.discard(MUTABLE_BYTES, 2048).await;
        move_on(&session, &mut blocks, 12).await;
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert_eq!(session.counter("deleted_objects"), 0);
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(session.counter("deleted_objects") > 0);
    });
}

/// Writes data that a root names, and returns its object.
pub(super) async fn published_data(session: &Session) -> crate::map::Object {
    session.write(MUTABLE_BYTES, 2048, 7).await.unwrap();
    session.write(LABEL, 1, 7).await.unwrap();
    session.flush().await.unwrap();
    session.engine.lock().map.get(MUTABLE_BYTES / SECTOR).copied().unwrap()
}

/// Publishes a label and a root that releases an object.
pub(super) async fn release(session: &Session, object: crate::map::Object) {
    session.write(LABEL, 1, object.first).await.unwrap();
    {
        let mut state = session.engine.lock();
        state.map.remove(object.first);
        state.removed.push(object);
    }
    session.flush().await.unwrap();
}

#[test]
fn a_look_at_the_pins_of_before_a_release_permits_nothing() {
    simulate(async {
        let grace = Duration::from_secs(1);
        let pin_check = Duration::from_secs(10);
        let options = Options { grace, pin_check, ..options("one", 1) };
        let Host { store, session, .. } = Host::new(options).await;
        let object = published_data(&session).await;
        release(&session, crate::map::Object { first: 1, ..Default::default() }).await;
        // There is a look, which finds no pin.
        tokio::time::sleep(2 * grace).await;
        assert_eq!(session.counter("deleted_objects"), 1);
        let follower = Follower::open(&store, 2).await;
        let polling = keep_polling(&follower.following);
        release(&session, object).await;
        for _ in 0..30 {
            tokio::time::sleep(2 * grace).await;
            follower.view.expect(MUTABLE_BYTES, 2048, 7).await;
        }
        follower.view.engine.start_close();
        drop(follower.view);
        tokio::time::sleep(2 * LEASE).await;
        assert_eq!(session.counter("deleted_objects"), 2);
        polling.abort();
    });
}

#[test]
fn a_root_that_is_published_while_a_follower_opens_is_taken_up() {
    let memory = MemoryStore::new();
    let host = |seed| SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    let (store, reader) = (host(1), Refusing::new(host(2)));
    simulate(async {
        let session = Session::create(&store, options("one", 1)).await;
        published_data(&session).await;
        // The host of the follower sleeps after it has read `super`, before it puts its pin.
        reader.asleep.store(true, Ordering::Relaxed);
        let opening = Follower::open(&reader, 2);
        let publish = async {
            while !reader.sleeps.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            session.write(LABEL, 1, 8).await.unwrap();
            session.flush().await.unwrap();
            reader.asleep.store(false, Ordering::Relaxed);
        };
        let (follower, ()) = tokio::join!(opening, publish);
        assert_eq!(tag_of(&follower.view).await, 8);
    });
}

#[test]
fn a_takeover_that_has_published_nothing_costs_a_follower_one_get() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        for tag in 0..20 {
            session.write(LABEL, 1, tag).await.unwrap();
            session.flush().await.unwrap();
        }
        let mut follower = Follower::open(&store, 2).await;
        let next = options("next", 3);
        let client = Arc::new(crate::client::Client::new(store.clone(), &next));
        let persist = crate::client::Persist::Forever;
        let loader = crate::load::Loader { client, store: "test".into(), persist };
        let known = loader.known_super().await.unwrap();
        crate::open::take_over(&loader, known, &next).await.unwrap();
        let before = follower.view.counter("requests");
        assert!(follower.poll().await.is_none());
        assert_eq!(follower.view.counter("requests") - before, 1);
        // It goes on with what the new owner publishes.
        let session = Session::open(&store, options("third", 4)).await.unwrap();
        session.write(LABEL, 1, 20).await.unwrap();
        session.flush().await.unwrap();
        follower.poll().await.expect("a new state");
        assert_eq!(tag_of(&follower.view).await, 20);
    });
}

#[test]
fn a_pin_that_the_store_does_not_give_holds_everything_and_not_for_ever() {
    let memory = MemoryStore::new();
    let store = Refusing::new(SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1));
    simulate(async {
        let session = Session::create(&store, following_options(1)).await;
        let object = published_data(&session).await;
        memory.set(&names::pin(5), b"secret".to_vec());
        store.gets.store(true, Ordering::Relaxed);
        release(&session, object).await;
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert_eq!(session.counter("deleted_objects"), 0);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(session.counter("deleted_objects"), 1);
    });
}

#[test]
fn pins_that_cannot_be_listed_hold_everything_and_are_asked_for_at_times() {
    let memory = MemoryStore::new();
    let store = Refusing::new(SimulatedStore::new(Arc::clone(&memory), Network::GOOD, 1));
    simulate(async {
        let session = Session::create(&store, following_options(1)).await;
        let object = published_data(&session).await;
        store.lists.store(true, Ordering::Relaxed);
        release(&session, object).await;
        for first in 0..20 {
            release(&session, crate::map::Object { first, ..Default::default() }).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = session.counter("requests");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(session.counter("deleted_objects"), 0);
        // A look is due every 3 seconds, and is some attempts, whatever waits for it.
        let requests = session.counter("requests") - before;
        assert!(requests <= 8 * 600 / 3, "{requests} requests");
        store.lists.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(session.counter("deleted_objects"), 21);
    });
}

/// A store that refuses requests for pins, or sleeps before puts.
struct Refusing {
    inner: Arc<SimulatedStore>,
    lists: AtomicBool,
    gets: AtomicBool,
    asleep: AtomicBool,
    sleeps: AtomicBool,
}

impl Refusing {
    fn new(inner: Arc<SimulatedStore>) -> Arc<Self> {
        let [lists, gets, asleep, sleeps] = std::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(Self { inner, lists, gets, asleep, sleeps })
    }
}

fn refused<'a, T: Send + 'a>() -> StoreFuture<'a, T> {
    Box::pin(async { Err(StoreError::new(StoreErrorKind::Denied, "no permission")) })
}

impl StoreDecorator for Refusing {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn own_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (bytes::Bytes, Version)> {
        match names::is_pin(key) && self.gets.load(Ordering::Relaxed) {
            true => refused(),
            false => self.inner.get(key),
        }
    }

    fn own_put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            while self.asleep.load(Ordering::Relaxed) {
                self.sleeps.store(true, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.inner.put(key, body, condition).await
        })
    }

    fn own_list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        match prefix == names::PINS && self.lists.load(Ordering::Relaxed) {
            true => refused(),
            false => self.inner.list(prefix, after),
        }
    }
}

/// Attempts to put a pin, in the two leases after the first one, which a store refuses as `kind`.
fn attempts_while_refused(kind: StoreErrorKind) -> u64 {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(LABEL, 1, 7).await.unwrap();
        session.flush().await.unwrap();
        let refusing = Arc::new(RefusingPins { inner: store, kind, pins: AtomicU64::new(0) });
        let follower = Follower::open(&refusing, 2).await;
        let before = refusing.pins.load(Ordering::Relaxed);
        let pinned = tokio::spawn(keep_pinned(Arc::downgrade(&follower.following)));
        tokio::time::sleep(2 * LEASE).await;
        pinned.abort();
        refusing.pins.load(Ordering::Relaxed) - before
    })
}

/// A store that refuses pins.
struct RefusingPins {
    inner: Arc<SimulatedStore>,
    kind: StoreErrorKind,
    pins: AtomicU64,
}

impl StoreDecorator for RefusingPins {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn own_put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        if !names::is_pin(key) {
            return self.inner.put(key, body, condition);
        }
        self.pins.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(StoreError::new(self.kind, "no")) })
    }
}

/// A clock is set at any time, and a permission is rarely given: the pin must be back soon.
#[test]
fn a_pin_that_a_wrong_clock_keeps_away_is_tried_more_often_than_one_without_permission() {
    let denied = attempts_while_refused(StoreErrorKind::Denied);
    let skewed = attempts_while_refused(StoreErrorKind::ClockSkew);
    assert!(denied > 0 && skewed >= 3 * denied, "{skewed} attempts, {denied} without permission");
}

#[test]
fn a_follower_whose_pool_was_destroyed_says_so() {
    simulate(async {
        let Host { memory, store, session } = Host::new(options("one", 1)).await;
        session.write(LABEL, 1, 7).await.unwrap();
        session.close().await;
        let follower = Follower::open(&store, 2).await;
        let destroyed = crate::destroy::destroy(store.clone(), "test", options("one", 3)).await;
        assert!(destroyed.unwrap() > 0);
        assert!(matches!(follower.following.poll().await, Err(Error::NotFound { .. })));
        // Its pin comes late, and is in nobody's way.
        tokio::time::sleep(LEASE).await;
        follower.following.renew().await;
        assert!(memory.objects().iter().any(|(key, _)| names::is_pin(key)));
        let session = Session::create(&store, options("two", 4)).await;
        session.write(LABEL, 1, 7).await.unwrap();
        session.flush().await.unwrap();
        let polled = follower.following.poll().await;
        assert!(matches!(polled, Err(Error::Replaced { .. })), "{:?}", polled.err());
    });
}

#[test]
fn a_close_removes_the_pin_and_waits_for_no_outage() {
    simulate(async {
        let Host { memory, store, session } = Host::new(options("one", 1)).await;
        session.write(LABEL, 1, 7).await.unwrap();
        session.flush().await.unwrap();
        let is_pin = |(key, _): &(String, u64)| names::is_pin(key);
        for away in [false, true] {
            let follower = Follower::open(&store, 2).await;
            assert!(memory.objects().iter().any(is_pin));
            store.set_away(away);
            // A look is under way, which would renew the pin after it.
            let polling = keep_polling(&follower.following);
            tokio::time::sleep(LEASE).await;
            let begun = tokio::time::Instant::now();
            follower.following.close().await;
            assert!(begun.elapsed() <= options("", 0).close_budget, "{:?}", begun.elapsed());
            let polled = follower.following.poll().await;
            assert!(polled.is_err(), "a request after the close");
            store.set_away(false);
            tokio::time::sleep(2 * LEASE).await;
            assert_eq!(memory.objects().iter().any(is_pin), away, "away: {away}");
            polling.abort();
        }
    });
}
