//! Codecs that panic: the block is not written, or its load is a miss. Nothing else is affected.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use forebay_cache::Class;
use forebay_io::Device;
use forebay_l2::{
    AdmissionRefusal, Codec, ErrorKind, Health, HybridBuilder, HybridCache, InsertError, L2Key,
    L2Value,
};

use crate::support::memory;

const KEYS: u64 = 100;
/// The key on which the codec panics.
const BAD: u64 = 13;

/// Panics in one of its functions on one key.
#[derive(Default)]
struct PanickingCodec {
    panics_in: Mutex<&'static str>,
}

impl PanickingCodec {
    fn panic_if_chosen(&self, function: &str, key: u64) {
        let panics = key == BAD && *self.panics_in.lock().unwrap() == function;
        assert!(!panics, "a test panics here");
    }
}

/// Values begin with their key.
fn key_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

fn value(key: u64) -> Vec<u8> {
    let mut bytes = key.to_le_bytes().to_vec();
    bytes.resize(300, key as u8);
    bytes
}

impl Codec<u64, Vec<u8>> for PanickingCodec {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        self.panic_if_chosen("encode_key", *key);
        L2Key::encode(key, out);
    }
    fn note_bytes(&self) -> usize {
        1
    }
    fn encode_note(&self, key: &u64, out: &mut [u8]) {
        self.panic_if_chosen("encode_note", *key);
        out.fill(1);
    }
    fn decodes_keys(&self) -> bool {
        true
    }
    fn decode_key(&self, key: &[u8], _note: &[u8]) -> Option<u64> {
        let key = u64::from_encoded(key)?;
        self.panic_if_chosen("decode_key", key);
        Some(key)
    }
    fn stamp(&self, key: &u64) -> u64 {
        self.panic_if_chosen("stamp", *key);
        0
    }
    fn encoded_len(&self, value: &Vec<u8>) -> usize {
        self.panic_if_chosen("encoded_len", key_of(value));
        value.len()
    }
    fn encode(&self, value: &Vec<u8>, out: &mut [u8]) {
        out[..8].copy_from_slice(&value[..8]);
        self.panic_if_chosen("encode", key_of(value));
        out.copy_from_slice(value);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Vec<u8>> {
        self.panic_if_chosen("decode", *key);
        Some(bytes.to_vec())
    }
    fn admit(&self, key: &u64, _class: Class) -> Result<(), AdmissionRefusal> {
        self.panic_if_chosen("admit", *key);
        Ok(())
    }
    fn admit_value(&self, key: &u64, value: &Vec<u8>) -> bool {
        assert_eq!(key_of(value), *key);
        self.panic_if_chosen("admit_value", *key);
        true
    }
}

fn open(
    device: &Arc<dyn Device>,
    panics_in: &'static str,
    warm_up: &str,
) -> HybridCache<u64, Vec<u8>> {
    let codec = PanickingCodec { panics_in: Mutex::new(panics_in) };
    let weigh = |_: &u64, value: &Vec<u8>| value.len() as u64;
    let builder = HybridBuilder::new(device.clone(), Arc::new(codec), weigh).capacity(8 << 20);
    builder.l2_tunable("warm_up", warm_up).build().unwrap()
}

/// Number of keys that are found.
fn found(cache: &HybridCache<u64, Vec<u8>>) -> u64 {
    let is_right = |key: &u64| cache.get(key).inspect(|found| assert_eq!(**found, value(*key)));
    (0..KEYS).filter(|key| is_right(key).is_some()).count() as u64
}

#[test]
fn blocks_on_which_the_codec_panics_are_not_written_and_nothing_else_is_lost() {
    let functions =
        ["encode_key", "encode_note", "stamp", "encoded_len", "encode", "admit", "admit_value"];
    for function in functions {
        println!("{function}");
        let device = memory(16 << 20);
        let cache = open(&device, function, "true");
        for key in 0..KEYS {
            match cache.insert(key, value(key)) {
                Ok(()) => {}
                Err(InsertError::ForgetFailed { error, value: None }) => {
                    assert_eq!(
                        (key, function, error.kind()),
                        (BAD, "encode_key", ErrorKind::Codec)
                    );
                }
                Err(error) => panic!("{key}: {error}"),
            }
        }
        assert_eq!(found(&cache), KEYS, "memory has them all");
        cache.flush_to_device().unwrap();
        cache.memory().evict_all();
        assert_eq!(found(&cache), KEYS - 1);
        assert!(cache.get(&BAD).is_none());
        let stats = cache.stats().l2;
        assert_eq!(stats.health, Health::Healthy);
        assert!(stats.count("codec_panics") > 0);
        // Unwritten blocks are counted.
        assert_eq!(stats.count("stored"), KEYS - 1);
        let not_written = stats.count("refused") + stats.count("admitted_lost");
        assert!(not_written > 0, "{not_written}");
        // Other operations on the key still work.
        let loaded = cache.get_or_load(BAD, || Ok::<_, std::io::Error>(value(BAD))).unwrap();
        assert_eq!(*loaded, value(BAD));
        drop(loaded);
        assert_eq!(cache.remove(&BAD).is_err(), function == "encode_key");
        cache.remove(&1).unwrap();
        cache.close().unwrap();
        drop(cache);
        let cache = open(&device, "nothing", "false");
        assert!(cache.l2().wait_rebuilt());
        assert_eq!(found(&cache), KEYS - 2, "it is warm");
        cache.close().unwrap();
    }
}

#[test]
fn blocks_on_which_the_codec_panics_are_misses_and_nothing_else_is_lost() {
    let device = memory(16 << 20);
    let cache = open(&device, "nothing", "true");
    (0..KEYS).for_each(|key| cache.insert(key, value(key)).unwrap());
    cache.close().unwrap();
    drop(cache);
    for function in ["encode_key", "decode", "decode_key"] {
        println!("{function}");
        let cache = open(&device, function, "true");
        assert!(cache.l2().wait_rebuilt());
        cache.l2().wait_warm_up();
        cache.memory().evict_all();
        assert_eq!(found(&cache), KEYS - u64::from(function != "decode_key"));
        assert_eq!(cache.l2().health(), Health::Healthy);
        assert!(cache.stats().l2.count("codec_panics") > 0);
        let loaded = cache.get_or_load(BAD, || Ok::<_, std::io::Error>(value(BAD))).unwrap();
        assert_eq!(*loaded, value(BAD));
        drop(loaded);
        cache.close().unwrap();
        drop(cache);
        let cache = open(&device, "nothing", "false");
        assert!(cache.l2().wait_rebuilt());
        assert_eq!(found(&cache), KEYS, "it is warm");
        cache.close().unwrap();
    }
}

#[test]
fn values_that_the_user_excludes_are_not_written() {
    let device = memory(16 << 20);
    let open = |longest: usize| {
        HybridCache::<u64, Vec<u8>>::builder(device.clone())
            .capacity(8 << 20)
            .l2_tunable("warm_up", "false")
            .write_if(move |key, value| value.len() <= longest && *key != BAD)
            .build()
            .unwrap()
    };
    let cache = open(1000);
    assert!(cache.l2().wait_rebuilt());
    let fits = |key: u64| key.is_multiple_of(2) && key != BAD;
    for key in 0..KEYS {
        let mut long = value(key);
        long.resize(if key.is_multiple_of(2) { 1000 } else { 1001 }, 1);
        cache.insert(key, long).unwrap();
    }
    cache.flush_to_device().unwrap();
    let refused = (0..KEYS).filter(|key| !fits(*key)).count() as u64;
    let short = cache.stats().l2.short();
    assert!(short.contains(&("refused", "value_excluded", refused)), "{short:?}");
    (0..KEYS).for_each(|key| assert!(cache.get(&key).is_some(), "memory has {key}"));
    cache.memory().evict_all();
    (0..KEYS).for_each(|key| assert_eq!(cache.get(&key).is_some(), fits(key), "{key}"));
    // An excluded value replaces one on the device.
    cache.insert(2, vec![2; 2000]).unwrap();
    // The close does not write it either, and this is no error.
    cache.close().unwrap();
    drop(cache);
    let cache = open(5000);
    assert!(cache.l2().wait_rebuilt());
    (0..KEYS).for_each(|key| assert_eq!(cache.get(&key).is_some(), fits(key) && key != 2, "{key}"));
    cache.close().unwrap();

    let codec = Arc::new(PanickingCodec::default());
    let builder =
        HybridBuilder::new(device.clone(), codec, |_, value: &Vec<u8>| value.len() as u64);
    let error = builder.capacity(8 << 20).write_if(|_, _| true).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("Codec::admit_value"), "{error}");
}

/// The function in which the values of the next test panic.
static PANICS_IN: AtomicU8 = AtomicU8::new(0);
const ENCODE: u8 = 1;
const DECODE: u8 = 2;
const WEIGH: u8 = 3;

#[derive(Debug, PartialEq)]
struct Value(Vec<u8>);

fn panic_if_chosen(function: u8, value: &[u8]) {
    let panics = key_of(value) == BAD && PANICS_IN.load(Ordering::SeqCst) == function;
    assert!(!panics, "a test panics here");
}

impl L2Value for Value {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }
    fn encode(&self, out: &mut [u8]) {
        panic_if_chosen(ENCODE, &self.0);
        out.copy_from_slice(&self.0);
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        panic_if_chosen(DECODE, bytes);
        Some(Self(bytes.to_vec()))
    }
    fn memory_bytes(&self) -> u64 {
        panic_if_chosen(WEIGH, &self.0);
        self.0.len() as u64
    }
}

#[test]
fn values_that_panic_are_misses_and_nothing_else_is_lost() {
    let device = memory(16 << 20);
    let open = || {
        let builder = HybridCache::<u64, Value>::builder(device.clone()).capacity(8 << 20);
        builder.l2_tunable("warm_up", "false").build().unwrap()
    };
    let cache = open();
    let found = |cache: &HybridCache<u64, Value>| {
        (0..KEYS).filter(|key| cache.get(key).is_some()).count() as u64
    };
    (0..KEYS).for_each(|key| cache.insert(key, Value(value(key))).unwrap());
    PANICS_IN.store(ENCODE, Ordering::SeqCst);
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert_eq!(found(&cache), KEYS - 1);
    PANICS_IN.store(0, Ordering::SeqCst);
    cache.insert(BAD, Value(value(BAD))).unwrap();
    cache.flush_to_device().unwrap();
    for function in [DECODE, WEIGH] {
        cache.memory().evict_all();
        PANICS_IN.store(function, Ordering::SeqCst);
        assert_eq!(found(&cache), KEYS - 1, "{function}");
        assert_eq!(cache.l2().health(), Health::Healthy);
    }
    PANICS_IN.store(0, Ordering::SeqCst);
    cache.close().unwrap();
    drop(cache);
    let cache = open();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(found(&cache), KEYS, "it is warm");
    cache.close().unwrap();
}
