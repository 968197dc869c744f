//! The warm-up: blocks are in memory after a restart before they are requested.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_cache::{Attributes, Cache, Class, Reclaim};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_l2::{Codec, Health, L2, L2Options, WarmUpOutcome, WarmUpStatus};
use proptest::prelude::*;

use crate::support::{Fixture, NumberCodec, Value, memory, options};

const MIB: u64 = 1 << 20;

fn reopen(device: &Arc<dyn Device>, options: &L2Options, capacity: u64) -> Fixture {
    reopen_with(device, Arc::new(NumberCodec), options, capacity)
}

fn reopen_with(
    device: &Arc<dyn Device>,
    codec: Arc<dyn Codec<u64, Value>>,
    options: &L2Options,
    capacity: u64,
) -> Fixture {
    let l2 = L2::open(device.clone(), codec, options).unwrap();
    let cache = Cache::builder()
        .capacity(capacity)
        .weigher(|_, value: &Value| value.bytes.len() as u64 + 64)
        .reclaim(Reclaim::Inline)
        .secondary_cache(l2.clone())
        .build()
        .unwrap();
    Fixture { l2, cache }
}

/// Runs the warm-up to its end.
fn warm(fixture: &Fixture) -> WarmUpOutcome {
    fixture.l2.warm_up(fixture.cache.warm_up());
    match fixture.l2.wait_warm_up() {
        WarmUpStatus::Ended(end) => end,
        other => panic!("{other:?}"),
    }
}

fn skipped(fixture: &Fixture, why: &str) -> u64 {
    let counters = fixture.l2.stats().counters;
    let one = counters.iter().find(|c| c.name == "warm_up_skipped" && c.label == Some(why));
    one.unwrap_or_else(|| panic!("there is no label {why}")).value
}

fn warmed(fixture: &Fixture) -> u64 {
    fixture.l2.stats().count("warmed")
}

#[derive(Clone, Debug)]
enum Action {
    Insert(u64, usize),
    Remove(u64),
    Spill,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..60u64, 0..6000usize).prop_map(|(key, len)| Action::Insert(key, len)),
        2 => (0..60u64).prop_map(Action::Remove),
        1 => Just(Action::Spill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The reference model is a map. The last spilled version of each unchanged key is restored,
    /// nothing else is, and no load occurs.
    #[test]
    fn warm_up_restores_exactly_the_current_blocks(
        actions in prop::collection::vec(action(), 1..150),
        sealed in any::<bool>(),
    ) {
        let device = memory(16 * MIB);
        let fixture = Fixture::create(&device, &options());
        let (mut now, mut there) = (HashMap::new(), HashMap::new());
        for (version, action) in actions.into_iter().enumerate() {
            match action {
                Action::Insert(key, len) => {
                    fixture.insert(key, version as u64, len);
                    now.insert(key, version as u64);
                    there.remove(&key);
                }
                Action::Remove(key) => {
                    fixture.cache.remove(&key);
                    now.remove(&key);
                    there.remove(&key);
                }
                Action::Spill => {
                    fixture.spill();
                    there.extend(now.iter());
                }
            }
        }
        // Without a close, the newest segment has no footer.
        let device = if sealed { fixture.close(); device } else { copy_of(&device) };
        let fixture = reopen(&device, &options(), 64 * MIB);
        prop_assert_eq!(warm(&fixture), WarmUpOutcome::Done);
        for key in 0..60 {
            let found = fixture.cache.get(&key).map(|value| value.version);
            prop_assert_eq!(found, there.get(&key).copied(), "key {}", key);
        }
        prop_assert_eq!(warmed(&fixture), there.len() as u64);
        let stats = fixture.l2.stats();
        prop_assert_eq!((stats.loads, stats.count("forgotten")), (0, 0));
        fixture.close();
    }
}

/// Copies the contents of a device to another one.
fn copy_of(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let size = device.info().size_bytes;
    let copy = memory(size);
    let arena = crate::support::arena();
    for offset in (0..size).step_by(MIB as usize) {
        let buffer = arena.alloc(MIB as usize).unwrap();
        let buffer = device.run(Request::read(offset, buffer)).into_buffer().unwrap();
        copy.run(Request::write(offset, buffer)).result.unwrap();
    }
    copy
}

/// A closed L2 with these keys, a KiB each. Keys of later batches are newer.
fn filled(device: &Arc<dyn Device>, batches: &[std::ops::Range<u64>]) {
    let fixture = Fixture::create(device, &options());
    for batch in batches {
        batch.clone().for_each(|key| fixture.insert(key, 1, 1024));
        fixture.spill();
    }
    fixture.close();
}

#[test]
fn warm_up_uses_only_free_capacity_and_inserts_the_newest_first() {
    let device = memory(32 * MIB);
    filled(&device, &[0..4000, 4000..8000]);
    let one_thread = options();
    one_thread.tunables.set("warm_up_threads", "1").unwrap();
    let fixture = reopen(&device, &one_thread, 4 * MIB);
    assert_eq!(warm(&fixture), WarmUpOutcome::NoCapacity);
    let stats = fixture.cache.stats();
    assert_eq!(stats.counter("left"), 0, "nothing is evicted for it");
    assert_eq!(stats.counter("misses") + stats.counter("ghost_hits_mru"), 0, "it is no use");
    let held = warmed(&fixture) * (1024 + 64);
    assert!(held <= 4 * MIB * 15 / 16 && held > 4 * MIB * 7 / 8, "{held}");
    let back =
        |keys: std::ops::Range<u64>| keys.filter(|key| fixture.cache.contains(key)).count() as u64;
    let (older, newer) = (back(0..4000), back(4000..8000));
    assert_eq!(older + newer, warmed(&fixture));
    // Ranges of one step arrive in any order.
    assert!(newer > 2 * older, "{older} older ones, {newer} newer ones");
    fixture.close();
}

#[test]
fn warm_up_ends_after_an_eviction_and_keeps_resident_values() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..1000)));
    let fixture = reopen(&device, &options(), 4 * MIB);
    assert!(fixture.l2.wait_rebuilt());
    let target = fixture.cache.warm_up();
    // A stream of other keys passes through memory. Most of it is free again afterwards.
    (10_000..15_000).for_each(|key| fixture.insert(key, 1, 1024));
    (10_000..15_000).for_each(|key| _ = fixture.cache.remove(&key));
    fixture.l2.warm_up(target);
    assert_eq!(fixture.l2.wait_warm_up(), WarmUpStatus::Ended(WarmUpOutcome::NoCapacity));
    assert_eq!(warmed(&fixture), 0);
    fixture.close();

    let fixture = reopen(&device, &options(), 64 * MIB);
    assert!(fixture.l2.wait_rebuilt());
    fixture.insert(7, 2, 100);
    assert!(fixture.get(8).is_some());
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    assert_eq!(fixture.cache.get(&7).unwrap().version, 2, "a newer one is not overwritten");
    assert_eq!(
        (warmed(&fixture), skipped(&fixture, "cached")),
        (998, 1),
        "the older one is forgotten"
    );
    // The warm-up runs once.
    fixture.cache.clear();
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    assert_eq!(warmed(&fixture), 998);
    fixture.close();
}

#[test]
fn corrupt_blocks_are_skipped_and_counted() {
    let device = memory(16 * MIB);
    filled(&device, std::slice::from_ref(&(0..2000)));
    // Changes a byte of some blocks, but not of logs: those have their own tests.
    let arena = crate::support::arena();
    let wanted: Vec<Vec<u8>> = (0..40).map(|n| Value::new(n * 50, 1, 1024).bytes).collect();
    let size = device.info().size_bytes;
    let buffer = arena.alloc(size as usize).unwrap();
    let mut buffer = device.run(Request::read(0, buffer)).into_buffer().unwrap();
    for content in &wanted {
        let at = buffer.windows(32).position(|bytes| bytes == &content[..32]).expect("it is there");
        buffer[at] ^= 1;
    }
    device.run(Request::write(0, buffer)).result.unwrap();
    let fixture = reopen(&device, &options(), 64 * MIB);
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    assert_eq!((warmed(&fixture), skipped(&fixture, "corrupt")), (1960, 40));
    for key in 0..2000 {
        assert_eq!(fixture.get(key).is_some(), key % 50 != 0, "key {key}");
    }
    fixture.close();
}

#[test]
fn failed_reads_are_counted_and_the_rest_is_restored() {
    let plain = memory(32 * MIB);
    filled(&plain, &[0..2000, 2000..4000, 4000..6000]);
    let faulty = Arc::new(FaultDevice::new(plain, 3));
    let device: Arc<dyn Device> = faulty.clone();
    let fixture = reopen(&device, &options(), 64 * MIB);
    assert!(fixture.l2.wait_rebuilt());
    // In the middle of the written blocks.
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Read).within(3 * MIB..3 * MIB + 4096));
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    let errors = fixture.l2.stats().count("warm_up_errors");
    assert!(errors > 0 && warmed(&fixture) >= 3000, "{errors}, {}", warmed(&fixture));
    assert_eq!(fixture.l2.health(), forebay_l2::Health::Healthy);
    fixture.close();
}

#[test]
fn close_and_remove_end_the_warm_up() {
    let plain = memory(32 * MIB);
    filled(&plain, &[0..4000, 4000..8000]);
    for removes in [false, true] {
        let faulty = Arc::new(FaultDevice::new(copy_of(&plain), 3));
        let device: Arc<dyn Device> = faulty.clone();
        let patient = options();
        // A held read must not count as a stall.
        patient.tunables.set("stall_timeout_ms", "600000").unwrap();
        let fixture = reopen(&device, &patient, 64 * MIB);
        assert!(fixture.l2.wait_rebuilt());
        // Until the rule is removed.
        let held = Fault::Delay(Duration::from_secs(3600));
        faulty.add(Rule::new(held).on(Op::Read));
        fixture.l2.warm_up(fixture.cache.warm_up());
        while faulty.injected().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(fixture.l2.warm_up_status(), WarmUpStatus::Running);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| match removes {
                true => fixture.l2.remove().unwrap(),
                false => fixture.l2.close(),
            });
            while fixture.l2.health() == Health::Healthy {
                std::thread::yield_now();
            }
            faulty.clear();
            ending.join().unwrap();
        });
        // All its threads have ended, and what they have read meanwhile is not in memory.
        assert_eq!(fixture.l2.warm_up_status(), WarmUpStatus::Ended(WarmUpOutcome::Closed));
        assert_eq!(warmed(&fixture), 0);
        fixture.close();
    }
}

#[test]
fn warm_up_of_a_dropped_cache_ends_at_once() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..4000)));
    let Fixture { l2, cache } = reopen(&device, &options(), 64 * MIB);
    let target = cache.warm_up();
    drop(cache);
    assert_eq!(target.bytes(), 0);
    l2.warm_up(target);
    assert_eq!(l2.wait_warm_up(), WarmUpStatus::Ended(WarmUpOutcome::NoCapacity));
    l2.close();
    // After a close it does not start.
    let fixture = reopen(&device, &options(), 64 * MIB);
    fixture.l2.close();
    assert_eq!(warm(&fixture), WarmUpOutcome::Closed);
    fixture.close();
}

#[test]
fn warm_up_can_be_disabled() {
    let device = memory(16 * MIB);
    filled(&device, std::slice::from_ref(&(0..100)));
    let off = options();
    off.tunables.set("warm_up", "false").unwrap();
    let fixture = reopen(&device, &off, 64 * MIB);
    assert_eq!(fixture.l2.warm_up_status(), WarmUpStatus::NotAsked);
    assert_eq!(warm(&fixture), WarmUpOutcome::Disabled);
    assert_eq!((warmed(&fixture), fixture.l2.stats().count("warm_up_ended")), (0, 1));
    fixture.close();
}

/// Keys that need their note to be restored. The note is the key's upper half.
struct NoteCodec {
    makes_keys: bool,
    panics: AtomicBool,
}

impl NoteCodec {
    fn new(makes_keys: bool) -> Arc<Self> {
        Arc::new(Self { makes_keys, panics: AtomicBool::new(false) })
    }
}

impl Codec<u64, Value> for NoteCodec {
    fn key_bytes(&self) -> usize {
        4
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&(*key as u32).to_le_bytes());
    }
    fn note_bytes(&self) -> usize {
        if self.makes_keys { 4 } else { 0 }
    }
    fn encode_note(&self, key: &u64, out: &mut [u8]) {
        let high = ((key >> 32) as u32).to_le_bytes();
        out.copy_from_slice(&high[..self.note_bytes()]);
    }
    fn decodes_keys(&self) -> bool {
        self.makes_keys
    }
    fn decode_key(&self, key: &[u8], note: &[u8]) -> Option<u64> {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        let (low, high) = (key.try_into().ok()?, note.try_into().ok()?);
        Some(u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32)
    }
    fn encoded_len(&self, value: &Value) -> usize {
        NumberCodec.encoded_len(value)
    }
    fn encode(&self, value: &Value, out: &mut [u8]) {
        NumberCodec.encode(value, out);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        NumberCodec.decode(key, bytes)
    }
}

/// The key of this number, with a nonzero upper half.
fn key_with_note(number: u64) -> u64 {
    number | (number % 7 + 1) << 32
}

#[test]
fn notes_restore_keys_of_reinserted_blocks() {
    let device = memory(8 * MIB);
    let l2 = L2::create(device.clone(), NoteCodec::new(true), &options()).unwrap();
    let fixture = Fixture::over(l2);
    (0..70).for_each(|n| fixture.insert_as(key_with_note(n), 1, 1000, Class::Metadata));
    fixture.spill();
    for round in 1..40u64 {
        (0..400).for_each(|n| fixture.insert(key_with_note(round * 1000 + n), 1, 1000));
        fixture.spill();
    }
    assert!(fixture.l2.stats().count("reinserted") > 0, "{:?}", fixture.l2.stats().short());
    fixture.close();
    let fixture = reopen_with(&device, NoteCodec::new(true), &options(), 64 * MIB);
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    let back = (0..70).filter(|n| fixture.cache.contains(&key_with_note(*n))).count();
    assert!(back >= 60, "{back}");
    assert_eq!(warmed(&fixture), fixture.l2.len());
    // Their class was restored too.
    let states = fixture.cache.usage().states;
    let metadata = states.iter().filter(|state| state.class == Class::Metadata);
    assert_eq!(metadata.map(|state| state.blocks).sum::<u64>(), back as u64);
    fixture.close();
}

#[test]
fn blocks_without_notes_are_served_but_not_warmed() {
    let device = memory(16 * MIB);
    let l2 = L2::create(device.clone(), NoteCodec::new(false), &options()).unwrap();
    let fixture = Fixture::over(l2);
    (0..100).for_each(|n| fixture.insert(key_with_note(n), 1, 1000));
    fixture.spill();
    assert_eq!(warm(&fixture), WarmUpOutcome::NoKeys);
    fixture.close();
    let fixture = reopen_with(&device, NoteCodec::new(true), &options(), 64 * MIB);
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    assert_eq!((warmed(&fixture), skipped(&fixture, "unknown_owner")), (0, 100));
    (0..100).for_each(|n| assert!(fixture.get(key_with_note(n)).is_some()));
    fixture.close();
}

#[test]
fn warm_up_skips_blocks_on_which_the_codec_panics() {
    let device = memory(16 * MIB);
    let l2 = L2::create(device.clone(), NoteCodec::new(true), &options()).unwrap();
    let fixture = Fixture::over(l2);
    (0..100).for_each(|n| fixture.insert(key_with_note(n), 1, 1000));
    fixture.spill();
    fixture.close();
    let codec = NoteCodec::new(true);
    codec.panics.store(true, Ordering::Relaxed);
    let fixture = reopen_with(&device, codec, &options(), 64 * MIB);
    assert_eq!(warm(&fixture), WarmUpOutcome::Done);
    assert_eq!((warmed(&fixture), skipped(&fixture, "undecodable")), (0, 100));
    (0..100).for_each(|n| assert!(fixture.get(key_with_note(n)).is_some()));
    fixture
        .cache
        .insert_with(key_with_note(1), Value::new(key_with_note(1), 2, 10), Attributes::DATA)
        .unwrap();
    fixture.close();
}

/// The first warm-up thread panics while another one works, and the other one continues for a
/// while.
#[derive(Default)]
struct PanicRendezvous {
    inside: AtomicU64,
    panicked: AtomicBool,
}

impl PanicRendezvous {
    #[allow(clippy::disallowed_methods, reason = "it is about which thread this is")]
    fn weigh(&self) -> u64 {
        let thread = std::thread::current();
        let Some(name) = thread.name().filter(|name| name.starts_with("l2-warm-up")) else {
            return 64;
        };
        if name == "l2-warm-up" {
            while self.inside.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            self.panicked.store(true, Ordering::SeqCst);
            panic!("as it was told");
        }
        if !self.panicked.load(Ordering::SeqCst) {
            self.inside.fetch_add(1, Ordering::SeqCst);
            while !self.panicked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(100));
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
        64
    }
}

#[test]
fn warm_up_that_panicked_leaves_no_running_threads() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..4000)));
    let two = options();
    two.tunables.set("warm_up_threads", "2").unwrap();
    let rendezvous = Arc::new(PanicRendezvous::default());
    let l2 = L2::open(device, Arc::new(NumberCodec), &two).unwrap();
    let weighing = rendezvous.clone();
    let cache = Cache::builder()
        .capacity(64 * MIB)
        .weigher(move |_, _: &Value| weighing.weigh())
        .reclaim(Reclaim::Inline)
        .secondary_cache(l2.clone())
        .build()
        .unwrap();
    let fixture = Fixture { l2, cache };
    assert_eq!(warm(&fixture), WarmUpOutcome::Failed);
    assert_eq!(rendezvous.inside.load(Ordering::SeqCst), 0);
    assert_eq!(fixture.l2.health(), Health::Healthy);
    fixture.close();
}
