//! Testbeds: the devices, caches and pools of the pool benches.
//!
//! A testbed is made once per measurement. Its device is memory or a file, and its reads can be
//! slowed down later. It may have an L2 device, whose reads are not. A new file is removed at the
//! end. An existing file must not hold a pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_cache::Class;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, FileDevice, MemoryDevice, MemoryOptions, Op, OpenOptions};
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, HostId, ImportOptions, Opened, Pool,
};

use crate::options::Failure;

/// What backs a pool's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory.
    Memory,
    /// A file or block device.
    File(PathBuf),
    /// A temporary file in a folder.
    Temporary(PathBuf),
}

impl Backing {
    /// Parses the value of `--device`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("give `mem`, or the name of a file, a folder or a block device".to_owned()),
            "mem" => Ok(Self::Memory),
            path if Path::new(path).is_dir() => Ok(Self::Temporary(path.into())),
            path => Ok(Self::File(path.into())),
        }
    }
}

/// Options for a pool's device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BackingArgs {
    /// Device of the pool: `mem`, a folder for a temporary file, or a file or block device.
    #[arg(long, default_value = "mem", value_name = "mem|PATH", value_parser = Backing::parse)]
    pub(crate) device: Backing,
    /// Size of the device, unless it exists.
    #[arg(long, default_value = "8GiB", value_parser = bytes)]
    pub(crate) device_size: u64,
    /// Overwrite a pool on the device.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Options for an L2 device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct L2Args {
    /// Also measure with an L2 on this device: `mem`, a folder for a temporary file, or a file or
    /// block device (`--overwrite`: even if it holds an L2).
    #[arg(long, value_name = "mem|PATH", value_parser = Backing::parse)]
    pub(crate) l2: Option<Backing>,
    /// Size of the L2 device, unless it exists.
    #[arg(long, default_value = "1GiB", value_parser = bytes, requires = "l2")]
    pub(crate) l2_size: u64,
    /// Fill the L2 from memory before the import, instead of beginning with an empty one.
    #[arg(long, requires = "l2")]
    pub(crate) l2_warm: bool,
}

/// Parses a number of bytes: digits, and `KiB`, `MiB`, `GiB` or their first letters.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 6] =
        [("KiB", 10), ("MiB", 20), ("GiB", 30), ("K", 10), ("M", 20), ("G", 30)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number = digits.trim_end().parse::<u64>().map_err(|error| error.to_string())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more than 2^64 bytes".to_owned())
}

/// A file that is removed at the end if this process created it.
struct TemporaryFile {
    path: PathBuf,
    ours: bool,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.ours {
            // An error has no consequence for the measurement.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An unused name in `folder`.
pub(crate) fn temporary_path(folder: &Path) -> PathBuf {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let nth = MADE.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("forebay-bench-{}-{nth}.pool", std::process::id()))
}

/// A device for one pool after another.
pub(crate) struct TestBed {
    backing: Arc<dyn Device>,
    /// The same device, perhaps slowed down, for the next pool.
    device: Arc<dyn Device>,
    /// The memory device is too large to be populated at the start.
    sparse: bool,
    /// The L2 device of the pools.
    l2: Option<Arc<dyn Device>>,
    seed: u64,
    overwrite: bool,
    // Dropped last.
    files: Vec<TemporaryFile>,
}

/// A device of a testbed.
struct Made {
    device: Arc<dyn Device>,
    /// The memory device is too large to be populated at the start.
    sparse: bool,
    file: Option<TemporaryFile>,
}

impl Made {
    /// Makes a device called `name`. An existing file keeps its size.
    fn new(backing: &Backing, size_bytes: u64, name: &str) -> Result<Self, Failure> {
        match backing {
            Backing::Memory => {
                let sparse = size_bytes > forebay_base::memory::limit_bytes() / 2;
                let options = MemoryOptions { populated: !sparse, ..MemoryOptions::default() };
                let device = Arc::new(MemoryDevice::new(name, size_bytes, &options)?);
                Ok(Self { device, sparse, file: None })
            }
            Backing::File(path) => Self::file(path.clone(), size_bytes),
            Backing::Temporary(folder) => Self::file(temporary_path(folder), size_bytes),
        }
    }

    fn file(path: PathBuf, size_bytes: u64) -> Result<Self, Failure> {
        let file = TemporaryFile { ours: !path.exists(), path };
        let options = OpenOptions { create_bytes: Some(size_bytes), ..OpenOptions::default() };
        let device = Arc::new(FileDevice::open(&file.path, &options)?);
        Ok(Self { device, sparse: false, file: Some(file) })
    }
}

impl TestBed {
    /// The device of these options. An existing file keeps its size.
    ///
    /// # Errors
    /// If the device cannot be made.
    pub(crate) fn new(args: &BackingArgs, seed: u64) -> Result<Self, Failure> {
        let Made { device, sparse, file } = Made::new(&args.device, args.device_size, "bench")?;
        let (files, overwrite) = (file.into_iter().collect(), args.overwrite);
        let backing = Arc::clone(&device);
        Ok(Self { backing, device, sparse, l2: None, seed, overwrite, files })
    }

    /// Adds an L2 on the device of these options to a pool of this testbed. Later imports use it
    /// too.
    ///
    /// # Errors
    /// If the device cannot be made, or the pool refuses it.
    pub(crate) fn add_l2(&mut self, pool: &Pool, args: &L2Args) -> Result<(), Failure> {
        let Some(backing) = &args.l2 else { return Ok(()) };
        let Made { device, file, .. } = Made::new(backing, args.l2_size, "bench-l2")?;
        self.files.extend(file);
        pool.add_l2_device(Arc::clone(&device).into(), self.overwrite)?;
        self.l2 = Some(device);
        Ok(())
    }

    /// The devices' engines and modes, for the column `config`.
    pub(crate) fn config(&self) -> String {
        let mode = |device: &dyn Device| {
            let info = device.info();
            format!("{}, direct {}", info.engine, info.direct)
        };
        let sparse = if self.sparse { ", sparse" } else { "" };
        let l2 = self.l2.as_ref().map(|l2| format!("; L2: {}", mode(&**l2))).unwrap_or_default();
        format!("{}{sparse}{l2}", mode(&*self.backing))
    }

    /// Creates a pool.
    ///
    /// # Errors
    /// If the device holds a pool, or creating fails.
    pub(crate) fn create(
        &self,
        cache: &Arc<BlockCache>,
        tunables: &[(String, String)],
    ) -> Result<Pool, Failure> {
        let options = CreateOptions {
            host: HostId { id: 1, name: "bench".to_owned() },
            force: self.overwrite,
            seed: Some(self.seed),
            tunables: tunables.to_vec(),
            ..CreateOptions::new("bench", Arc::clone(cache))
        };
        Ok(Pool::create(vec![Arc::clone(&self.device).into()], &options)?)
    }

    /// Imports the exported pool, with its L2 device.
    ///
    /// # Errors
    /// If the import fails.
    pub(crate) fn import(
        &self,
        cache: &Arc<BlockCache>,
        tunables: &[(String, String)],
    ) -> Result<Pool, Failure> {
        let l2_devices = self.l2.iter().map(|device| Arc::clone(device).into());
        self.import_with(cache, l2_devices.collect(), tunables)
    }

    /// Imports the exported pool with L2 devices.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub(crate) fn import_with(
        &self,
        cache: &Arc<BlockCache>,
        l2_devices: Vec<Opened>,
        tunables: &[(String, String)],
    ) -> Result<Pool, Failure> {
        let options = ImportOptions {
            host: HostId { id: 1, name: "bench".to_owned() },
            seed: Some(self.seed),
            tunables: tunables.to_vec(),
            find_l2_devices: false,
            ..ImportOptions::new(Arc::clone(cache))
        };
        let devices = vec![Arc::clone(&self.device).into()];
        Ok(Pool::import_with(devices, l2_devices, &options)?)
    }

    /// From the next pool on, each read takes `delay` longer, and at most `per_s` of them are
    /// served a second; 0: any number. Zero and 0 remove the delay.
    pub(crate) fn slow_reads(&mut self, delay: Duration, per_s: u32) {
        self.device = Arc::clone(&self.backing);
        if !delay.is_zero() || per_s > 0 {
            let slow = FaultDevice::new(Arc::clone(&self.backing), self.seed);
            let rule = Rule::new(Fault::Delay(delay)).on(Op::Read);
            slow.add(if per_s > 0 { rule.at_most_per_s(per_s) } else { rule });
            self.device = Arc::new(slow);
        }
    }
}

/// A cache with a bound of `bytes`, or one LRU list.
///
/// # Errors
/// If the bound is too small.
pub(crate) fn cache(bytes: u64, plain_lru: bool, seed: u64) -> Result<Arc<BlockCache>, Failure> {
    Ok(BlockCache::new(BlockCacheOptions {
        bytes,
        plain_lru,
        seed: Some(seed),
        ..BlockCacheOptions::default()
    })?)
}

/// Cached bytes of metadata and of data.
pub(crate) fn resident_by_class(cache: &BlockCache) -> [u64; 2] {
    let stats = cache.cache().stats();
    Class::ALL.map(|class| {
        let resident = stats.states.iter().filter(|s| s.class == class && !is_ghost(s.state));
        resident.map(|state| state.bytes).sum()
    })
}

/// Cached bytes in mru, of both classes.
pub(crate) fn resident_in_mru(cache: &BlockCache) -> u64 {
    let stats = cache.cache().stats();
    stats.states.iter().filter(|s| s.state == "mru").map(|state| state.bytes).sum()
}

fn is_ghost(state: &str) -> bool {
    state.ends_with("ghost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_bytes_are_read() {
        assert_eq!(bytes("12"), Ok(12));
        assert_eq!(bytes("3K"), Ok(3 << 10));
        assert_eq!(bytes("5 MiB"), Ok(5 << 20));
        assert!(bytes("").is_err() && bytes("x").is_err() && bytes("99999999999G").is_err());
    }
}
