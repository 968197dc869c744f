//! The module `forebay._forebay`: the caches of byte strings as classes of Python.
//!
//! Whatever may wait for another thread or for a device runs without the interpreter's lock: loads
//! and all calls of the hybrid cache. A loader takes it again. So two threads that load one key do
//! not wait for each other in a circle: the one that waits for the load does not have the lock.
//!
//! Locking: `HybridCache` has a lock, held for a moment to copy a reference, and never together
//! with another one.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::l2::{Error, ErrorKind};
use forebay::{BuildError, LoadError};
use forebay_c::{ByteCache, CacheOptions, CacheStats, HybridByteCache, HybridOptions};
use pyo3::exceptions::{PyException, PyKeyError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

pyo3::create_exception!(
    forebay,
    CacheError,
    PyException,
    "The cache is closed, refused a value, or a loader requested the key that it loads."
);

/// An exception that a loader raised. All threads that wait for the load raise it.
struct Raised(PyErr);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn load_error(py: Python<'_>, error: LoadError<Raised>) -> PyErr {
    match error {
        LoadError::Failed(raised) => raised.0.clone_ref(py),
        LoadError::NoMemory(_) => PyMemoryError::new_err(error.to_string()),
        other => CacheError::new_err(other.to_string()),
    }
}

fn device_error(error: Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::TooSmall => PyValueError::new_err(text),
        ErrorKind::Closed | ErrorKind::NoMemory => CacheError::new_err(text),
        _ => PyOSError::new_err(text),
    }
}

fn build_error(error: BuildError) -> PyErr {
    match error {
        BuildError::Memory(_) => PyMemoryError::new_err(error.to_string()),
        BuildError::Thread(_) => PyOSError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

fn seconds(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(number) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(number) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(PyValueError::new_err(format!(
            "{name} is {number}; give a positive number of seconds, or None"
        ))),
    }
}

fn missing(key: &Bound<'_, PyBytes>) -> PyErr {
    PyKeyError::new_err(key.clone().unbind())
}

/// Makes a loader of a function of Python.
fn loader(
    key: &Bound<'_, PyBytes>,
    load: &Bound<'_, PyAny>,
) -> impl FnOnce() -> Result<Vec<u8>, Raised> + Send {
    let (key, load) = (key.clone().unbind(), load.clone().unbind());
    move || {
        Python::attach(|py| {
            let value = load.call1(py, (key,))?;
            Ok::<_, PyErr>(value.extract::<Vec<u8>>(py)?)
        })
        .map_err(Raised)
    }
}

fn fill(counts: &Bound<'_, PyDict>, stats: &CacheStats) -> PyResult<()> {
    let CacheStats { entries, weight, capacity, hits, misses, inserts, evictions, expirations } =
        *stats;
    let all = [
        ("entries", entries),
        ("weight", weight),
        ("capacity", capacity),
        ("hits", hits),
        ("misses", misses),
        ("inserts", inserts),
        ("evictions", evictions),
        ("expirations", expirations),
    ];
    all.iter().try_for_each(|(name, count)| counts.set_item(name, count))
}

/// A cache in memory.
#[pyclass(frozen, module = "forebay")]
struct Cache(ByteCache);

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, capacity_bytes=None, max_entries=None, ttl=None, idle=None))]
    fn new(
        capacity_bytes: Option<u64>,
        max_entries: Option<u64>,
        ttl: Option<f64>,
        idle: Option<f64>,
    ) -> PyResult<Self> {
        if capacity_bytes.is_some() == max_entries.is_some() {
            let text = "give exactly one of capacity_bytes and max_entries";
            return Err(PyValueError::new_err(text));
        }
        let options = CacheOptions {
            capacity_bytes,
            max_entries,
            time_to_live: seconds("ttl", ttl)?,
            time_to_idle: seconds("idle", idle)?,
        };
        ByteCache::new(&options).map(Self).map_err(build_error)
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        match self.0.get(key) {
            Some(value) => Some(PyBytes::new(py, &value).into_any()),
            None => default,
        }
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.0.get(key.as_bytes()).ok_or_else(|| missing(key))?;
        Ok(PyBytes::new(key.py(), &value))
    }

    #[pyo3(signature = (key, value, ttl=None))]
    fn set(&self, key: &[u8], value: &[u8], ttl: Option<f64>) -> PyResult<()> {
        let inserted = self.0.insert(key, value, seconds("ttl", ttl)?);
        inserted.map_err(|refused| CacheError::new_err(refused.to_string()))
    }

    fn __setitem__(&self, key: &[u8], value: &[u8]) -> PyResult<()> {
        self.set(key, value, None)
    }

    fn __delitem__(&self, key: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.0.remove(key.as_bytes()).then_some(()).ok_or_else(|| missing(key))
    }

    fn __contains__(&self, key: &[u8]) -> bool {
        self.0.contains(key)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn get_or_load<'py>(
        &self,
        key: &Bound<'py, PyBytes>,
        load: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (py, bytes) = (key.py(), key.as_bytes());
        if let Some(value) = self.0.get(bytes) {
            return Ok(PyBytes::new(py, &value));
        }
        let load = loader(key, load);
        let value = py.detach(|| self.0.get_or_load(bytes, load));
        Ok(PyBytes::new(py, &value.map_err(|error| load_error(py, error))?))
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear());
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        fill(&counts, &self.0.stats())?;
        Ok(counts)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}

/// A cache in memory and in a file.
#[pyclass(frozen, module = "forebay")]
struct HybridCache(Mutex<Option<Arc<HybridByteCache>>>);

impl HybridCache {
    /// The cache, for one call. The file is unlocked once it is closed and no call has it.
    fn open(&self) -> PyResult<Arc<HybridByteCache>> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cache.ok_or_else(|| CacheError::new_err("the cache is closed; open it again"))
    }
}

#[pymethods]
impl HybridCache {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, bytes: u64, memory_bytes: u64) -> PyResult<Self> {
        let options = HybridOptions { path: &path, bytes, memory_bytes };
        let cache = py.detach(|| HybridByteCache::open(&options)).map_err(device_error)?;
        Ok(Self(Mutex::new(Some(Arc::new(cache)))))
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let cache = self.open()?;
        Ok(match py.detach(|| cache.get(key)) {
            Some(value) => Some(PyBytes::new(py, &value).into_any()),
            None => default,
        })
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyBytes>> {
        let (cache, bytes) = (self.open()?, key.as_bytes());
        let value = key.py().detach(|| cache.get(bytes)).ok_or_else(|| missing(key))?;
        Ok(PyBytes::new(key.py(), &value))
    }

    fn __setitem__(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.insert(key, value)).map_err(device_error)
    }

    fn remove(&self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.remove(key)).map_err(device_error)
    }

    fn __delitem__(&self, key: &Bound<'_, PyBytes>) -> PyResult<()> {
        let (py, bytes) = (key.py(), key.as_bytes());
        let cache = self.open()?;
        if py.detach(|| cache.get(bytes)).is_none() {
            return Err(missing(key));
        }
        self.remove(py, bytes)
    }

    fn __contains__(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        let cache = self.open()?;
        Ok(py.detach(|| cache.get(key).is_some()))
    }

    fn get_or_load<'py>(
        &self,
        key: &Bound<'py, PyBytes>,
        load: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (py, bytes) = (key.py(), key.as_bytes());
        let (cache, load) = (self.open()?, loader(key, load));
        let value = py.detach(|| cache.get_or_load(bytes, load));
        Ok(PyBytes::new(py, &value.map_err(|error| load_error(py, error))?))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.flush()).map_err(device_error)
    }

    fn wait_ready(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.wait_ready()).map_err(device_error)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (cache, counts) = (self.open()?, PyDict::new(py));
        fill(&counts, &cache.memory_stats())?;
        let device = cache.device_stats();
        counts.set_item("device_entries", device.records)?;
        counts.set_item("device_used_bytes", device.used_bytes)?;
        counts.set_item("device_hits", device.hits)?;
        Ok(counts)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let close = || cache.map_or(Ok(()), |cache| cache.close());
        py.detach(close).map_err(device_error)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Cache>()?;
    module.add_class::<HybridCache>()?;
    module.add("CacheError", module.py().get_type::<CacheError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
