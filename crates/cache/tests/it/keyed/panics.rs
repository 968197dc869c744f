//! User code that panics leaves the cache sound and usable.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use forebay_cache::{Attributes, KeyedCache};

use super::{Constant, audit, inline};
use crate::support::{Live, block_on};

thread_local! {
    static HASH_PANICS: Cell<bool> = const { Cell::new(false) };
    static EQ_PANICS: Cell<bool> = const { Cell::new(false) };
    static WEIGHER_PANICS: Cell<bool> = const { Cell::new(false) };
    static LIFETIME_PANICS: Cell<bool> = const { Cell::new(false) };
    static IDLE_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// A key that owns memory and panics on demand.
#[derive(Debug)]
struct Key(Arc<u64>);

impl Key {
    fn new(n: u64) -> Self {
        Self(Arc::new(n))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!HASH_PANICS.get(), "hash");
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        assert!(!EQ_PANICS.get(), "eq");
        self.0 == other.0
    }
}

impl Eq for Key {}

fn cache() -> KeyedCache<Key, crate::support::Counted, Constant> {
    KeyedCache::builder()
        .capacity(10)
        .weigher(|_, _| {
            assert!(!WEIGHER_PANICS.get(), "weigher");
            1
        })
        .expire_with(|_, _| {
            assert!(!LIFETIME_PANICS.get(), "lifetime");
            Some(Duration::from_secs(1000))
        })
        .idle_with(|_, _| {
            assert!(!IDLE_PANICS.get(), "idle time");
            Some(Duration::from_secs(1000))
        })
        .hasher(Constant)
        .build()
        .unwrap()
}

/// Runs `call` with the flag set; it must panic.
fn panics<T>(flag: &'static std::thread::LocalKey<Cell<bool>>, call: impl FnOnce() -> T) {
    flag.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| drop(call())));
    flag.set(false);
    assert!(outcome.is_err());
}

#[test]
fn hash_and_eq_may_panic_anywhere() {
    let live = Live::default();
    let cache = cache();
    cache.insert(Key::new(1), live.value(1)).unwrap();
    for flag in [&HASH_PANICS, &EQ_PANICS] {
        panics(flag, || cache.get(&Key::new(1)));
        panics(flag, || cache.peek(&Key::new(1)));
        panics(flag, || cache.contains(&Key::new(1)));
        panics(flag, || cache.remove(&Key::new(1)));
        panics(flag, || cache.remove_if(&Key::new(1), |_| true));
        let load = || Ok::<_, std::io::Error>(live.value(2));
        panics(flag, || cache.get_or_load(Key::new(1), load));
        panics(flag, || block_on(cache.get_or_load_async(Key::new(1), || async { load() })));
        panics(flag, || cache.entry(Key::new(1)).or_insert(live.value(3)));
    }
    panics(&HASH_PANICS, || cache.insert(Key::new(1), live.value(4)));
    assert_eq!(cache.get(&Key::new(1)).unwrap().payload(), 1);
    audit(&cache);
    drop(cache);
    assert_eq!(live.count(), 0);
}

#[test]
fn eq_may_panic_while_another_load_is_in_flight() {
    let live = Live::default();
    let cache = cache();
    let load = |n| Ok::<_, std::io::Error>(live.value(n));
    let outer = cache.get_or_load(Key::new(1), || {
        panics(&EQ_PANICS, || cache.get_or_load(Key::new(2), || load(2)));
        assert_eq!(cache.get_or_load(Key::new(3), || load(3)).unwrap().payload(), 3);
        load(1)
    });
    assert_eq!(outer.unwrap().payload(), 1);
    assert_eq!(cache.get_or_load(Key::new(2), || load(2)).unwrap().payload(), 2);
    audit(&cache);
    drop(cache);
    assert_eq!(live.count(), 0);
}

#[test]
fn weighers_and_lifetimes_may_panic() {
    let live = Live::default();
    let cache = cache();
    cache.insert(Key::new(1), live.value(1)).unwrap();
    // It is called at each use, too.
    panics(&IDLE_PANICS, || cache.get(&Key::new(1)));
    assert_eq!(cache.get(&Key::new(1)).unwrap().payload(), 1);
    for flag in [&WEIGHER_PANICS, &LIFETIME_PANICS, &IDLE_PANICS] {
        panics(flag, || cache.insert(Key::new(1), live.value(2)));
        panics(flag, || cache.entry(Key::new(1)).and_upsert_with(|_| live.value(2)));
        panics(flag, || cache.get_or_load(Key::new(2), || Ok::<_, std::io::Error>(live.value(2))));
        assert!(!cache.contains(&Key::new(2)));
    }
    assert_eq!(cache.remove(&Key::new(2)).map(|value| value.payload()), None);
    let loaded = cache.get_or_load(Key::new(2), || Ok::<_, std::io::Error>(live.value(2)));
    assert_eq!(loaded.unwrap().payload(), 2);
    audit(&cache);
    drop(cache);
    assert_eq!(live.count(), 0);
}

#[test]
fn loaders_and_predicates_may_panic() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let caught = |call: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    caught(&|| {
        let load = || -> Result<u64, std::io::Error> { panic!("loader") };
        let _ = cache.get_or_load("a".to_owned(), load);
    });
    caught(&|| {
        let load = || async { panic!("loader") as Result<u64, std::io::Error> };
        let key = "a".to_owned();
        let _ = block_on(cache.get_or_load_with_async(key, Attributes::DATA, load));
    });
    assert_eq!(*cache.entry("a".to_owned()).or_insert(1).unwrap(), 1);
    caught(&|| drop(cache.remove_if("a", |_| panic!("predicate"))));
    for key in ["a", "b"] {
        caught(&|| drop(cache.entry(key.to_owned()).and_upsert_with(|_| panic!("upsert"))));
    }
    assert!(!cache.contains("b"));
    assert!(cache.contains("a"));
    audit(&cache);
}
