//! Shared test support: self-describing values, and a cache with an L2.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Begin, Cache, Class, LoadError, Reclaim};
use forebay_io::record::Image;
use forebay_io::{Device, MemoryDevice, MemoryOptions, Request};
use forebay_l2::{Codec, ErrorKind, L2, L2Options, L2Value};

/// The owner of the tests' L2s.
pub(crate) const OWNER: [u8; 16] = *b"owner of the L2s";

/// A value that identifies its key and version and detects truncation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) version: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Value {
    /// The only value of this key, version and length.
    pub(crate) fn new(key: u64, version: u64, len: usize) -> Self {
        let mut bytes = vec![0; len];
        SmallRng::from_seed(key.rotate_left(32) ^ version).fill(&mut bytes);
        Self { version, bytes }
    }

    /// Panics unless this is a value of the key.
    pub(crate) fn check(&self, key: u64) {
        let right = Self::new(key, self.version, self.bytes.len());
        assert_eq!(*self, right, "the value of {key} is wrong");
    }
}

/// A value that calls a function when it is dropped. One that the device returns does not. It is
/// encoded as no bytes.
pub(crate) struct DropValue {
    pub(crate) key: u64,
    on_drop: Option<Box<dyn Fn() + Send + Sync>>,
}

impl DropValue {
    pub(crate) fn new(key: u64, on_drop: impl Fn() + Send + Sync + 'static) -> Self {
        Self { key, on_drop: Some(Box::new(on_drop)) }
    }
}

impl Drop for DropValue {
    fn drop(&mut self) {
        self.on_drop.iter().for_each(|on_drop| on_drop());
    }
}

impl L2Value for DropValue {
    fn encoded_len(&self) -> usize {
        0
    }

    fn encode(&self, _out: &mut [u8]) {}

    fn decode(_bytes: &[u8]) -> Option<Self> {
        Some(Self { key: 0, on_drop: None })
    }
}

/// The keys of a group.
pub(crate) const GROUP_KEYS: u64 = 10;

/// Keys are numbers. Values begin with their version.
pub(crate) struct NumberCodec;

impl Codec<u64, Value> for NumberCodec {
    fn key_bytes(&self) -> usize {
        8
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&key.to_le_bytes());
    }

    fn decodes_keys(&self) -> bool {
        true
    }

    fn decode_key(&self, key: &[u8], note: &[u8]) -> Option<u64> {
        assert!(note.is_empty());
        Some(u64::from_le_bytes(key.try_into().ok()?))
    }

    fn group(&self, key: &u64) -> Option<u64> {
        Some(key / GROUP_KEYS)
    }

    fn encoded_len(&self, value: &Value) -> usize {
        8 + value.bytes.len()
    }

    fn encode(&self, value: &Value, out: &mut [u8]) {
        out[..8].copy_from_slice(&value.version.to_le_bytes());
        out[8..].copy_from_slice(&value.bytes);
    }

    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        let (version, rest) = bytes.split_at_checked(8)?;
        let version = u64::from_le_bytes(version.try_into().ok()?);
        let value = Value { version, bytes: rest.to_vec() };
        value.check(*key);
        Some(value)
    }
}

pub(crate) fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 256 << 20, huge_pages: HugePages::Never }).unwrap()
}

/// Options for tests: every block is admitted.
pub(crate) fn options() -> L2Options {
    let options = L2Options::new(OWNER, arena());
    options.tunables.set("admit_all", "true").unwrap();
    options.tunables.set("linger_ms", "1").unwrap();
    options.tunables.set("write_max_bytes_per_s", "64G").unwrap();
    options.tunables.set("queue_bytes", "1G").unwrap();
    options
}

pub(crate) fn memory(bytes: u64) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: 4096, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new("memory", bytes, &options).unwrap())
}

/// The contents of a device, as a crash leaves them if it has all writes.
pub(crate) fn contents(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut contents = Vec::new();
    while contents.len() as u64 != device.info().size_bytes {
        let read = Request::read(contents.len() as u64, arena().alloc(1 << 20).unwrap());
        contents.extend_from_slice(&device.run(read).into_buffer().unwrap());
    }
    contents
}

/// A device with these contents.
pub(crate) fn device_with(contents: &[u8]) -> Arc<dyn Device> {
    let device = memory(contents.len() as u64);
    for (number, bytes) in contents.chunks(1 << 20).enumerate() {
        let mut buffer = arena().alloc(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        device.run(Request::write((number as u64) << 20, buffer)).result.unwrap();
    }
    device
}

/// A copy of a device, as a crash leaves it if it has all writes.
pub(crate) fn copy(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    device_with(&contents(device))
}

/// Polls a future on this thread until it is ready.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// Writes the sectors in which `after` differs from `before` to the device.
pub(crate) fn put_difference(device: &dyn Device, before: &Image, after: &Image) {
    for (offset, sector) in after.sectors() {
        let mut old = vec![0; sector.len()];
        before.read(offset, &mut old);
        if old != sector {
            let mut buffer = arena().alloc(sector.len()).unwrap();
            buffer.copy_from_slice(sector);
            device.run(Request::write(offset, buffer)).result.unwrap();
        }
    }
}

/// A cache with an L2.
pub(crate) struct Fixture {
    pub(crate) l2: Arc<L2<u64, Value>>,
    pub(crate) cache: Cache<u64, Value>,
}

impl Fixture {
    pub(crate) fn create(device: &Arc<dyn Device>, options: &L2Options) -> Self {
        Self::over(L2::create(device.clone(), Arc::new(NumberCodec), options).unwrap())
    }

    pub(crate) fn open(device: &Arc<dyn Device>, options: &L2Options) -> Self {
        Self::over(L2::open(device.clone(), Arc::new(NumberCodec), options).unwrap())
    }

    /// With memory for everything that a test uses. Blocks reach the L2 only when the test says so.
    pub(crate) fn over(l2: Arc<L2<u64, Value>>) -> Self {
        let cache = Cache::builder()
            .capacity(1 << 30)
            .weigher(|_, value: &Value| value.bytes.len() as u64 + 64)
            .reclaim(Reclaim::Inline)
            .secondary_cache(l2.clone())
            .build()
            .unwrap();
        Self { l2, cache }
    }

    /// Inserts a value. The L2 forgets older values of the key.
    pub(crate) fn insert(&self, key: u64, version: u64, len: usize) {
        self.insert_as(key, version, len, Class::Data);
    }

    pub(crate) fn insert_as(&self, key: u64, version: u64, len: usize, class: Class) {
        let attributes = Attributes { class, ..Attributes::DATA };
        self.cache.insert_with(key, Value::new(key, version, len), attributes).unwrap();
    }

    /// Forgets a group, in memory and on the L2.
    pub(crate) fn forget_group(&self, group: u64) -> forebay_l2::Result<()> {
        self.l2.forget_group(group, |is_of| _ = self.cache.remove_all_from_memory(is_of))
    }

    /// Writes all values that the L2 lacks, durably, and evicts them from memory.
    pub(crate) fn spill(&self) {
        self.offer_all();
        match self.l2.flush() {
            // The test has made a write fail.
            Err(error) if error.kind() == ErrorKind::Device => {}
            flushed => flushed.unwrap(),
        }
        self.cache.clear();
    }

    /// Offers all values in memory to the L2.
    pub(crate) fn offer_all(&self) {
        self.cache.offer_all(256, |candidates| {
            forebay_cache::SecondaryCache::offer(&*self.l2, candidates);
        });
    }

    /// The value of a key, from memory or from the L2.
    pub(crate) fn get(&self, key: u64) -> Option<Value> {
        for _ in 0..8 {
            match self.cache.begin(key, 64, Attributes::DATA).unwrap() {
                Begin::Hit(value) => {
                    value.check(key);
                    return Some((*value).clone());
                }
                Begin::InFlight(flight) => match flight.wait() {
                    Ok(value) => {
                        value.check(key);
                        return Some((*value).clone());
                    }
                    Err(LoadError::Abandoned) => {}
                    Err(error) => panic!("a load failed: {error}"),
                },
                Begin::Vacant(guard) => {
                    guard.withdraw();
                    return None;
                }
            }
        }
        panic!("key {key} is in flight for ever");
    }

    /// Closes both, the L2 first.
    pub(crate) fn close(self) {
        self.l2.close();
        self.cache.close();
        self.cache.audit();
    }
}
