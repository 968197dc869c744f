//! The builder of a hybrid cache.

use std::path::PathBuf;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_cache::{BuildError, Cache, Delivery, Evicted, Key};
use forebay_io::Device;

use super::closing::Closing;
use super::expiry::{Expiries, LifetimeOf, Lifetimes};
use super::file::Medium;
use super::values::{ValueCodec, WriteIf};
use super::{HybridCache, L2Hook, L2Key, L2Value};
use crate::codec::Codec;
use crate::error::{Error, ErrorKind, Result};
use crate::l2::L2;
use crate::options::L2Options;
use crate::tunables::L2Tunables;

/// Default limit of memory for I/O. It is allocated when needed.
const IO_MEMORY_BYTES: u64 = 64 << 20;

/// A listener, and how it is told.
type Listener<K, V> = (Delivery, Box<dyn Fn(Evicted<K, V>) + Send + Sync>);

/// The codec of the cache.
enum CodecSource<K, V> {
    /// Keys and values encode themselves. Makes a codec that knows when values expire, and which
    /// may be written.
    Values(fn(Option<Arc<Expiries<V>>>, Option<WriteIf<K, V>>) -> Arc<dyn Codec<K, V>>),
    Given(Arc<dyn Codec<K, V>>),
}

impl<K, V> CodecSource<K, V> {
    fn codec(
        &self,
        expiries: Option<Arc<Expiries<V>>>,
        write_if: Option<WriteIf<K, V>>,
    ) -> Result<Arc<dyn Codec<K, V>>> {
        match self {
            Self::Values(make) => Ok(make(expiries, write_if)),
            Self::Given(codec) if write_if.is_none() => Ok(Arc::clone(codec)),
            Self::Given(_) => {
                let text = "cannot build the hybrid cache: it has a condition to write values and a codec; let `Codec::admit_value` decide instead";
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// Builds a hybrid cache; see [`HybridCache::builder`].
#[must_use = "call `build` to get the cache"]
pub struct HybridBuilder<K: Key, V: Send + Sync + 'static> {
    medium: Medium,
    codec: CodecSource<K, V>,
    write_if: Option<WriteIf<K, V>>,
    lifetime: Option<LifetimeOf<V>>,
    pub(super) lifetimes: Lifetimes,
    listener: Option<Listener<K, V>>,
    weigh: Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>,
    capacity: Option<u64>,
    bound: Option<u64>,
    owner: [u8; 16],
    recreate: bool,
    force: bool,
    immutable_keys: bool,
    writes_on_close: bool,
    io_memory: u64,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    memory_tunables: Vec<(String, String)>,
    l2_tunables: Vec<(String, String)>,
}

impl<K: L2Key, V: L2Value> HybridCache<K, V> {
    /// A cache in `memory_bytes` of memory and a file of `bytes` at `path`, which is created if
    /// there is none. The path may name a block device of at least that size, too.
    ///
    /// Values weigh what [`L2Value::memory_bytes`] says; `memory_bytes` is the
    /// [capacity](HybridBuilder::capacity). [`builder_at`](Self::builder_at) has more options.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("thumbnails.cache");
    /// use forebay_l2::HybridCache;
    ///
    /// let cache = HybridCache::<u64, Vec<u8>>::open(&path, 64 << 20, 4 << 20)?;
    /// cache.insert(1, vec![0; 8192])?;
    /// cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`HybridBuilder::build`]. [`ErrorKind::Invalid`] also if the folder of the file does not
    /// exist, or the file exists and has another size; [`ErrorKind::Device`] if it cannot be
    /// opened.
    pub fn open(path: impl Into<PathBuf>, bytes: u64, memory_bytes: u64) -> Result<Self> {
        Self::builder_at(path, bytes).capacity(memory_bytes).build()
    }

    /// A cache in memory and in a file of `bytes` at `path`; see [`open`](Self::open).
    pub fn builder_at(path: impl Into<PathBuf>, bytes: u64) -> HybridBuilder<K, V> {
        Self::builder_on(Medium::Path(path.into(), bytes))
    }

    /// A cache on the device. [`L2Value::memory_bytes`] gives the weight of values.
    pub fn builder(device: Arc<dyn Device>) -> HybridBuilder<K, V> {
        Self::builder_on(Medium::Device(device))
    }

    fn builder_on(medium: Medium) -> HybridBuilder<K, V> {
        let codec =
            CodecSource::Values(|expiries, write_if| Arc::new(ValueCodec::new(expiries, write_if)));
        let lifetime = V::EXPIRES.then_some(V::lifetime as LifetimeOf<V>);
        HybridBuilder::on(medium, codec, lifetime, |_, value| value.memory_bytes())
    }
}

impl<K: Key, V: Send + Sync + 'static> HybridBuilder<K, V> {
    /// A cache on the device with a codec. `weigh` returns the weight of a value in bytes.
    pub fn new(
        device: Arc<dyn Device>,
        codec: Arc<dyn Codec<K, V>>,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self::on(Medium::Device(device), CodecSource::Given(codec), None, weigh)
    }

    fn on(
        medium: Medium,
        codec: CodecSource<K, V>,
        lifetime: Option<LifetimeOf<V>>,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            medium,
            codec,
            write_if: None,
            lifetime,
            lifetimes: Lifetimes::default(),
            listener: None,
            weigh: Arc::new(weigh),
            capacity: None,
            bound: None,
            owner: owner_tag(""),
            recreate: false,
            force: false,
            immutable_keys: false,
            writes_on_close: true,
            io_memory: IO_MEMORY_BYTES,
            clock: None,
            seed: None,
            memory_tunables: Vec::new(),
            l2_tunables: Vec::new(),
        }
    }

    /// The weight of values to hold in memory, in bytes. The cache's structures and the index of
    /// the L2 come on top.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// A hard bound on all memory in bytes: values, the cache's structures, the index of the L2
    /// (about 20 bytes per block), and memory for I/O. The rest is the capacity. A value counts as
    /// what it weighs, so weights must not be less than what values take; those of a
    /// `Postcard` may be.
    pub fn bound(mut self, bytes: u64) -> Self {
        self.bound = Some(bytes);
        self
    }

    /// A function that is called with each value that has left memory, and why; see
    /// [`Builder::on_evicted`](forebay_cache::Builder::on_evicted). The device may still have the
    /// value, unless the cause is a removal or a replacement.
    pub fn on_evicted(
        mut self,
        delivery: Delivery,
        listener: impl Fn(Evicted<K, V>) + Send + Sync + 'static,
    ) -> Self {
        self.listener = Some((delivery, Box::new(listener)));
        self
    }

    /// Writes to the device only the values for which `condition` is true, such as those that are
    /// not too large. Others are in memory alone, until they are evicted. Also for
    /// [`flush_to_device`](HybridCache::flush_to_device) and the close.
    ///
    /// It runs when memory is about to evict a value, under no lock. It must not use the cache. If
    /// it panics, the value is not written. A cache with a codec of its own has
    /// [`Codec::admit_value`] instead.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # use forebay_l2::HybridCache;
    /// let cache = HybridCache::<u64, Vec<u8>>::builder_at(&path, 64 << 20)
    ///     .capacity(4 << 20)
    ///     .write_if(|_key, value| value.len() <= 64 << 10)
    ///     .build()?;
    /// # cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_if(mut self, condition: impl Fn(&K, &V) -> bool + Send + Sync + 'static) -> Self {
        self.write_if = Some(Arc::new(condition));
        self
    }

    /// The name of the cache. A device with another name is refused. Change the name when the
    /// meaning of keys or values changes.
    pub fn name(mut self, name: &str) -> Self {
        self.owner = owner_tag(name);
        self
    }

    /// Empty the device first. By default its values are kept, and a blank device is initialized.
    pub fn recreate(mut self) -> Self {
        self.recreate = true;
        self
    }

    /// Use the device even if it holds other data, which is lost.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// The value of a key never changes. Removing is then fast, and a removed value may return
    /// after a restart.
    pub fn immutable_keys(mut self) -> Self {
        self.immutable_keys = true;
        self
    }

    /// Do not write values that are only in memory on close.
    pub fn without_writing_on_close(mut self) -> Self {
        self.writes_on_close = false;
        self
    }

    /// Maximum memory for I/O in bytes. Must hold two batches and a few of the largest values.
    pub fn io_memory(mut self, bytes: u64) -> Self {
        self.io_memory = bytes;
        self
    }

    /// Sets a tunable of the memory: one of
    /// [`CacheTunables`](forebay_cache::tunables::CacheTunables). `docs/tunables.md` in the
    /// repository has a table of them. [`build`](Self::build) checks it.
    pub fn memory_tunable(mut self, name: &str, value: &str) -> Self {
        self.memory_tunables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a tunable of the L2: one of [`L2Tunables`], such as `write_max_bytes_per_s` to `64MiB`.
    /// [`build`](Self::build) checks it.
    pub fn l2_tunable(mut self, name: &str, value: &str) -> Self {
        self.l2_tunables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The seed of everything random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// A monotonic clock other than the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the device. The cache serves at once, while the rebuild reads the log.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if an argument is invalid, and the errors of [`L2::open`].
    pub fn build(mut self) -> Result<HybridCache<K, V>> {
        let arena = Arena::new(ArenaConfig {
            limit_bytes: self.io_memory,
            huge_pages: HugePages::default(),
        });
        let arena = arena.map_err(|error| invalid("the limit of memory for I/O", error))?;
        let tunables = L2Tunables::default();
        for (name, value) in &self.l2_tunables {
            tunables.set(name, value).map_err(|error| invalid("a tunable of the L2", error))?;
        }
        let mut options = L2Options::new(self.owner, Arc::clone(&arena));
        options.tunables = Arc::new(tunables);
        (options.force, options.create) = (self.force, true);
        options.immutable_keys = self.immutable_keys;
        if let Some(seed) = self.seed {
            options.seed = seed;
        }
        if let Some(clock) = &self.clock {
            options.clock = Arc::clone(clock);
        }
        let expiries = self.lifetimes.expiries(self.lifetime, self.clock.as_ref())?;
        let codec = self.codec.codec(expiries.clone(), self.write_if.take())?;
        let device = self.medium.open()?;
        let l2 = match self.recreate {
            true => L2::create(device, codec, &options)?,
            false => L2::open(device, codec, &options)?,
        };
        let listener = self.listener.take();
        let cache = self.cache(&l2, arena, listener, expiries.clone());
        let cache = cache.map_err(|error| invalid("the configuration of its memory", error))?;
        l2.warm_up(cache.warm_up());
        Ok(HybridCache {
            cache: Arc::new(cache),
            l2,
            writes_on_close: self.writes_on_close,
            closing: Arc::new(Closing::new()),
            expiries,
        })
    }

    fn cache(
        &self,
        l2: &Arc<L2<K, V>>,
        arena: Arc<Arena>,
        listener: Option<Listener<K, V>>,
        expiries: Option<Arc<Expiries<V>>>,
    ) -> Result<Cache<K, V>, BuildError> {
        let weigh = Arc::clone(&self.weigh);
        let mut builder = Cache::builder();
        builder = match expiries {
            None => builder.weigher(move |key, value| weigh(key, value)),
            // A value is weighed when it is about to be cached.
            Some(expiries) => {
                builder.expiry(Arc::<Expiries<V>>::clone(&expiries)).weigher(move |key, value| {
                    expiries.begin(value);
                    weigh(key, value)
                })
            }
        };
        builder = builder
            .secondary_cache(Arc::new(L2Hook(Arc::clone(l2))))
            // Blocks in the write queue are pinned, and are free soon.
            .tunable("overflow_wait_ms", "200");
        if let Some((delivery, listener)) = listener {
            builder = builder.on_evicted(delivery, listener);
        }
        if let Some(bytes) = self.capacity {
            builder = builder.capacity(bytes);
        }
        if let Some(bytes) = self.bound {
            let l2 = Arc::clone(l2);
            builder =
                builder.bound(bytes).overhead(move || l2.memory_bytes() + arena.committed_bytes());
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(clock) = &self.clock {
            builder = builder.clock(Arc::clone(clock));
        }
        for (name, value) in &self.memory_tunables {
            builder = builder.tunable(name, value);
        }
        builder.build()
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for HybridBuilder<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HybridBuilder")
            .field("capacity", &self.capacity)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

/// The owner's tag of a name.
fn owner_tag(name: &str) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(name.as_bytes()).to_le_bytes()
}

fn invalid(what: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    let text = format!("cannot build the hybrid cache: {what} is invalid: {cause}");
    Error::new(ErrorKind::Invalid, text).because(cause)
}
