//! Opening a hybrid cache by path, listeners, values of other types, and lookups of many keys.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_io::Op;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_l2::{Cause, ErrorKind, HybridCache, L2Value, MemoryDevice, MemoryOptions, Postcard};

use crate::support::block_on;

const FILE_BYTES: u64 = 16 << 20;
const MEMORY_BYTES: u64 = 1 << 20;

type Hybrid = HybridCache<u64, Vec<u8>>;

fn memory_device(bytes: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new("memory", bytes, &MemoryOptions::default()).unwrap())
}

#[test]
fn one_call_creates_and_opens_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    // Not a multiple of any sector.
    let bytes = FILE_BYTES - 4000;
    let cache = Hybrid::open(&path, bytes, MEMORY_BYTES).unwrap();
    cache.insert(1, b"one".to_vec()).unwrap();
    cache.close().unwrap();
    drop(cache);
    let cache = Hybrid::open(&path, bytes, MEMORY_BYTES).unwrap();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.get(&1).as_deref().map(Vec::as_slice), Some(&b"one"[..]));
    // The file is free as soon as the close is known to have ended.
    block_on(cache.close_async()).unwrap();
    drop(cache);
    let builder = Hybrid::builder_at(&path, bytes).capacity(MEMORY_BYTES).recreate();
    let cache = builder.build().unwrap();
    assert!(cache.get(&1).is_none());
    cache.close().unwrap();
}

#[test]
fn errors_of_opening_name_the_file_the_cause_and_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, bytes| Hybrid::open(path, bytes, MEMORY_BYTES).unwrap_err();
    let check = |error: forebay_l2::Error, kind: ErrorKind, parts: &[&str]| {
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in parts {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    };
    let path = folder.path().join("no such folder/cache");
    let (shown, parent) = (path.display().to_string(), path.parent().unwrap().display());
    let missing = format!("there is no folder {parent}; create it");
    check(open(&path, FILE_BYTES), ErrorKind::Invalid, &[&shown, &missing]);

    let path = folder.path().join("small");
    std::fs::write(&path, [7; 100]).unwrap();
    let shown = path.display().to_string();
    let has = format!("has 100 bytes, but {FILE_BYTES} were asked for; ");
    check(open(&path, FILE_BYTES), ErrorKind::Invalid, &[&shown, &has, "delete it"]);
    assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);

    let path = folder.path().join("cache");
    let shown = path.display().to_string();
    check(open(&path, 1 << 20), ErrorKind::TooSmall, &[&shown, "1048576 bytes", "ask for more"]);
    assert!(!path.exists(), "nothing is left behind");
    let cache = Hybrid::open(&path, FILE_BYTES, MEMORY_BYTES).unwrap();
    check(open(&path, FILE_BYTES), ErrorKind::Device, &[&shown, "close it"]);
    cache.close().unwrap();
    drop(cache);
    let has = format!("has {FILE_BYTES} bytes, but {} were asked for; ", 2 * FILE_BYTES);
    check(open(&path, 2 * FILE_BYTES), ErrorKind::Invalid, &[&shown, &has]);
    check(open(folder.path(), FILE_BYTES), ErrorKind::Device, &["is a directory"]);

    let path = folder.path().join("other");
    std::fs::write(&path, vec![7; FILE_BYTES as usize]).unwrap();
    check(open(&path, FILE_BYTES), ErrorKind::Foreign, &["which would be lost"]);
    let error = Hybrid::builder_at(folder.path().join("c"), FILE_BYTES).build().unwrap_err();
    check(error, ErrorKind::Invalid, &["memory"]);
}

/// As a process leaves it that is killed while it creates the file.
#[test]
fn an_empty_file_is_as_good_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    std::fs::write(&path, []).unwrap();
    let cache = Hybrid::open(&path, FILE_BYTES, MEMORY_BYTES).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES);
    cache.close().unwrap();
    drop(cache);
    // Not while another process has it.
    std::fs::write(&path, []).unwrap();
    let other = std::fs::File::open(&path).unwrap();
    other.lock().unwrap();
    Hybrid::open(&path, FILE_BYTES, MEMORY_BYTES).unwrap_err();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_listener_hears_of_values_that_leave_memory() {
    let heard: Arc<Mutex<HashMap<u64, (Cause, Vec<u8>)>>> = Arc::default();
    let seen = Arc::clone(&heard);
    let cache = Hybrid::builder(memory_device(FILE_BYTES))
        .capacity(MEMORY_BYTES)
        .on_evicted(forebay_l2::Delivery::Lossless, move |evicted| {
            seen.lock().unwrap().insert(evicted.key, (evicted.cause, evicted.value));
        })
        .build()
        .unwrap();
    for key in 0..4 {
        cache.insert(key, vec![key as u8]).unwrap();
    }
    cache.flush_to_device().unwrap();
    cache.remove(&0).unwrap();
    cache.insert(1, b"new".to_vec()).unwrap();
    block_on(cache.insert_async(2, b"new".to_vec())).unwrap();
    block_on(cache.remove_async(&3)).unwrap();
    cache.close().unwrap();
    let heard = heard.lock().unwrap();
    let cause = |key: u64| heard.get(&key).map(|(cause, _)| *cause);
    assert_eq!(cause(0), Some(Cause::Removed));
    assert_eq!(cause(3), Some(Cause::Removed));
    // The new values left last, by the close.
    assert_eq!([1, 2].map(cause), [Some(Cause::Closed); 2]);
    assert_eq!(heard[&1].1, b"new");
}

/// A value of any of these types. One cache has them all, because each type of cache takes seconds
/// to build.
#[derive(Clone, Debug, PartialEq)]
enum AnyValue {
    Shared(Arc<[u8]>),
    Boxed(Box<[u8]>),
    Bytes(bytes::Bytes),
    Text(String),
    Pair(Postcard<(String, Vec<Option<u64>>)>),
}

macro_rules! with_inner {
    ($any:expr, $inner:ident => $result:expr) => {
        match $any {
            AnyValue::Shared($inner) => $result,
            AnyValue::Boxed($inner) => $result,
            AnyValue::Bytes($inner) => $result,
            AnyValue::Text($inner) => $result,
            AnyValue::Pair($inner) => $result,
        }
    };
}

impl L2Value for AnyValue {
    fn encoded_len(&self) -> usize {
        1 + with_inner!(self, inner => L2Value::encoded_len(inner))
    }

    fn encode(&self, out: &mut [u8]) {
        let (tag, out) = out.split_first_mut().unwrap();
        *tag = match self {
            Self::Shared(_) => 0,
            Self::Boxed(_) => 1,
            Self::Bytes(_) => 2,
            Self::Text(_) => 3,
            Self::Pair(_) => 4,
        };
        with_inner!(self, inner => L2Value::encode(inner, out));
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, bytes) = bytes.split_first()?;
        match tag {
            0 => L2Value::decode(bytes).map(Self::Shared),
            1 => L2Value::decode(bytes).map(Self::Boxed),
            2 => L2Value::decode(bytes).map(Self::Bytes),
            3 => L2Value::decode(bytes).map(Self::Text),
            4 => L2Value::decode(bytes).map(Self::Pair),
            _ => None,
        }
    }

    fn memory_bytes(&self) -> u64 {
        with_inner!(self, inner => L2Value::memory_bytes(inner))
    }
}

#[test]
fn values_of_other_types_return_from_the_device() {
    let cache = HybridCache::<(u32, u64), AnyValue>::builder(memory_device(FILE_BYTES));
    let cache = cache.capacity(MEMORY_BYTES).build().unwrap();
    let values = [
        AnyValue::Shared([1, 2, 3].into()),
        AnyValue::Boxed([4, 5, 6].into()),
        AnyValue::Bytes(bytes::Bytes::from_static(b"bytes")),
        AnyValue::Text("text".to_owned()),
        AnyValue::Pair(Postcard(("pair".to_owned(), vec![Some(1), None]))),
    ];
    let keys = || (0_u32..).map(|number| (number, u64::MAX - u64::from(number)));
    for (key, value) in keys().zip(&values) {
        cache.insert(key, value.clone()).unwrap();
    }
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    for (key, value) in keys().zip(&values) {
        assert_eq!(cache.get(&key).as_deref(), Some(value));
    }
    cache.close().unwrap();
}

#[test]
fn many_keys_are_read_from_the_device_at_once() {
    const KEYS: u64 = 40;
    let faults = Arc::new(FaultDevice::new(memory_device(FILE_BYTES), 7));
    let cache = Hybrid::builder(faults.clone())
        .capacity(MEMORY_BYTES)
        .l2_tunable("load_timeout_ms", "600000")
        .build()
        .unwrap();
    for key in (0..KEYS).filter(|key| key % 4 != 0) {
        cache.insert(key, vec![key as u8]).unwrap();
    }
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    let keys: Vec<u64> = (0..KEYS).chain(0..KEYS).collect();
    let expected: Vec<Option<Vec<u8>>> =
        keys.iter().map(|key| (key % 4 != 0).then(|| vec![*key as u8])).collect();
    let values = |found: Vec<Option<forebay_l2::OwnedRef<u64, Vec<u8>>>>| {
        found.iter().map(|value| value.as_deref().cloned()).collect::<Vec<_>>()
    };
    for asynchronous in [false, true] {
        assert_eq!(cache.get(&1).as_deref(), Some(&vec![1]), "in memory");
        let before = faults.injected().len();
        let rule = Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Read);
        faults.add(rule);
        let found = std::thread::scope(|scope| {
            let lookup = scope.spawn(|| match asynchronous {
                true => values(block_on(cache.get_many_async(&keys))),
                false => values(cache.get_many(&keys)),
            });
            // All reads are in flight before the first one ends.
            while faults.injected().len() - before < KEYS as usize * 3 / 4 - 1 {
                std::thread::yield_now();
            }
            faults.clear();
            lookup.join().unwrap()
        });
        assert_eq!(found, expected);
        cache.memory().evict_all();
    }
    // More than are in flight at once.
    let keys: Vec<u64> = (0..KEYS * 10).collect();
    assert_eq!(values(cache.get_many(&keys)).iter().flatten().count(), KEYS as usize * 3 / 4);
    assert!(cache.get_many(&[]).is_empty());
    cache.close().unwrap();
}
