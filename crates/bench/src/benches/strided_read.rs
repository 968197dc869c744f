//! `strided-read` (R2): the cost of I/O roots under read-ahead from many threads.
//!
//! Device, queue and read-ahead are the same for all subjects; only the roots differ. The load is
//! in [`crate::strided`].

use std::path::PathBuf;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::tunables::IoTunables;
use forebay_io::{Device, FileDevice, MemoryDevice, MemoryOptions, OpenOptions};

use super::{interleave, panels_over_threads, strided_read_model};
use crate::lock_counts::{LockCounts, LockUse};
use crate::measure;
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::strided::{ReadErrors, Reader, ReaderContext, Region, RootsKind, STRIDE_BLOCKS};
use crate::test_file::{BLOCK_BYTES, Stamp, TestFile};

const NAME: &str = "strided-read";
const THREADS: [usize; 1] = [256];
/// One submission queue per CPU.
const SUBMISSION_QUEUES: usize = 0;
/// So long that no submitter waits for the queue, which is not what is measured.
const QUEUE_LIMIT: u32 = 16384;

/// At least the other classes' reservations, besides the reads in flight.
const MIN_TOTAL: u32 = 128;

/// The kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReadDevice {
    /// Memory with a latency.
    Memory,
    /// A file.
    File,
}

impl ReadDevice {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
        }
    }
}

/// Options of `strided-read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Devices to read.
    #[arg(long, value_delimiter = ',', default_value = "memory,file")]
    pub(crate) device: Vec<ReadDevice>,
    /// Latency of the memory device, in microseconds.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) latency_us: u64,
    /// Blocks that each thread reads ahead, in two batches.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) read_ahead: u64,
    /// Reads in flight; more wait in the queue.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: u32,
    /// Size of each thread's region of the device, in KiB.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    pub(crate) region_kib: u64,
    /// File or block device to read, with regions as large as possible; it is never written.
    /// Default: a temporary file.
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Also predict the throughput of 1 to 64 CPUs.
    #[arg(long)]
    pub(crate) model: bool,
}

/// A device and its regions.
struct Opened {
    read_device: ReadDevice,
    device: Arc<dyn Device>,
    stamp: Stamp,
    region_blocks: u64,
    // Dropped last.
    _file: Option<TestFile>,
}

/// Measures all subjects on all devices.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let names = RootsKind::ALL.map(RootsKind::name);
    common.check_subjects(&names)?;
    let threads = common.threads_or(&THREADS)?;
    let most = threads.iter().copied().max().unwrap_or(1);
    let mut records = Vec::new();
    for read_device in &args.device {
        let opened = open(common, args, *read_device, most)?;
        records.extend(measure(common, args, &opened, &threads)?);
        opened.device.close();
    }
    if args.model {
        let opened = open(common, args, ReadDevice::Memory, most)?;
        let mut uses = Vec::new();
        for kind in RootsKind::ALL.into_iter().filter(|kind| common.wants(kind.name())) {
            uses.push((kind, lock_uses(common, args, &opened, kind, most)?));
        }
        let found = strided_read_model::run(common, &records, &uses)?;
        records.extend(found);
    }
    Ok(records)
}

fn open(
    common: &Common,
    args: &Args,
    read_device: ReadDevice,
    threads: usize,
) -> Result<Opened, Failure> {
    let block = BLOCK_BYTES as u64;
    let region_blocks = (args.region_kib << 10) / block;
    let size_bytes = region_blocks * block * threads as u64;
    let tunables = Arc::new(IoTunables::default());
    tunables.set_queue_limit(QUEUE_LIMIT)?;
    tunables.set_async_read_max(args.in_flight)?;
    tunables.set_total_max(2 * args.in_flight.max(MIN_TOTAL))?;
    if read_device == ReadDevice::Memory {
        let options = MemoryOptions {
            sector_bytes: BLOCK_BYTES as u32,
            latency_ns: args.latency_us * 1000,
            submission_queues: SUBMISSION_QUEUES,
            tunables,
            ..MemoryOptions::default()
        };
        let device = Arc::new(MemoryDevice::new("strided-read", size_bytes, &options)?);
        return Ok(Opened { read_device, device, stamp: Stamp::Zero, region_blocks, _file: None });
    }
    let file = TestFile::named_or_temporary(args.file.as_deref(), size_bytes, common.seed)?;
    let region_blocks = file.size_bytes / block / threads as u64;
    if region_blocks == 0 {
        let path = file.path.display();
        return Err(format!("{path} is too small for a block per thread ({threads}); use a larger file or fewer --threads").into());
    }
    let options = OpenOptions {
        read_only: true,
        submission_queues: SUBMISSION_QUEUES,
        tunables,
        ..OpenOptions::default()
    };
    let device = Arc::new(FileDevice::open(&file.path, &options)?);
    Ok(Opened { read_device, device, stamp: file.stamp, region_blocks, _file: Some(file) })
}

/// All subjects at all numbers of threads on one device.
fn measure(
    common: &Common,
    args: &Args,
    opened: &Opened,
    threads: &[usize],
) -> Result<Vec<Record>, Failure> {
    let mut cells = Vec::new();
    for threads in threads {
        let wanted = RootsKind::ALL.into_iter().filter(|kind| common.wants(kind.name()));
        cells.extend(wanted.map(|kind| (*threads, kind)));
    }
    let found = interleave(common.reps, cells.len(), |i, _| {
        let (threads, kind) = cells[i];
        one(common, args, opened, kind, threads)
    })?;
    let ratio = |name, figure, subject: RootsKind| Ratio {
        name,
        figure,
        against: Against::Subject(subject.name()),
    };
    let cpu = "cpu_s_per_million";
    let ratios = [
        ratio("ratio_to_one_root", "ops_per_s", RootsKind::OneLocked),
        ratio("ratio_to_16_roots", "ops_per_s", RootsKind::SixteenLocked),
        ratio("cpu_ratio_to_one_root", cpu, RootsKind::OneLocked),
        ratio("cpu_ratio_to_16_roots", cpu, RootsKind::SixteenLocked),
    ];
    Ok(fold_all(&found, &ratios))
}

/// One measurement, with new roots.
fn one(
    common: &Common,
    args: &Args,
    opened: &Opened,
    kind: RootsKind,
    threads: usize,
) -> Result<Record, Failure> {
    let before = device_counts(&*opened.device);
    let counted = LockCounts::start();
    let (sample, config) = load(args, opened, kind, (threads, common.limit()), common.seed)?;
    let info = opened.device.info();
    let config = format!("{config}; {}, direct {}", info.engine, info.direct);
    let mut record = Record::new(NAME, kind.name(), threads)
        .param("device", opened.read_device.name())
        .param("stride_blocks", STRIDE_BLOCKS)
        .param("read_ahead_blocks", args.read_ahead)
        .param(
            "latency_ns",
            if opened.read_device == ReadDevice::Memory { args.latency_us * 1000 } else { 0 },
        )
        .param("config", config.as_str())
        .figure("ops_per_s", sample.ops_per_s())
        .figure("cpu_s_per_million", sample.cpu_ns_per_op() / 1e3)
        .figure("waits_per_op", 1.0 - sample.hit_ratio())
        .figure("cpu_s", sample.cpu_s);
    let after = device_counts(&*opened.device);
    for ((_, figure), (before, after)) in DEVICE_FIGURES.iter().zip(before.iter().zip(after)) {
        record = record.figure(figure, (after - before) as f64 / sample.ops.max(1) as f64);
    }
    Ok(counted.add_to(record, sample.ops))
}

/// Counters of the device, and their figures.
const DEVICE_FIGURES: [(&str, &str); 3] = [
    ("raised", "raised_per_op"),
    ("queue_full", "queue_full_per_op"),
    ("completion_thread_wakes", "completion_thread_wakes_per_op"),
];

fn device_counts(device: &dyn Device) -> [u64; DEVICE_FIGURES.len()] {
    let counters = device.stats().counters;
    let sum = |name| counters.iter().filter(|(n, ..)| *n == name).map(|(.., value)| value).sum();
    DEVICE_FIGURES.map(|(name, _)| sum(name))
}

/// Runs the load. Returns the sample and a description of the roots.
fn load(
    args: &Args,
    opened: &Opened,
    kind: RootsKind,
    (threads, limit): (usize, measure::Limit),
    seed: u64,
) -> Result<(measure::Sample, String), Failure> {
    let window = args.read_ahead as usize;
    // Twice as much, since the arena allocates whole chunks.
    let limit_bytes = (2 * threads * window * BLOCK_BYTES).max(64 << 20) as u64;
    let arena = Arena::new(ArenaConfig { limit_bytes, huge_pages: HugePages::Never })?;
    let roots = kind.open(&opened.device);
    let errors = ReadErrors::default();
    let context = ReaderContext {
        device: &*opened.device,
        roots: &roots,
        stamp: opened.stamp,
        errors: &errors,
    };
    let make = |thread: usize| {
        let blocks = opened.region_blocks;
        let region = Region { first: thread as u64 * blocks, blocks };
        let buffer = |_| arena.alloc(BLOCK_BYTES).expect("the arena has twice the memory");
        let buffers = (0..window).map(buffer).collect();
        Reader::new(&context, region, seed.wrapping_add(thread as u64), buffers)
    };
    let sample = measure::run(threads, limit, make, || {});
    let drained = roots.drain();
    if let Some(summary) = errors.summary() {
        return Err(format!("{}: {summary}", kind.name()).into());
    }
    drained?;
    Ok((sample, roots.config()))
}

/// Locks per read: class, visits under the load, hold time. Empty without the counting build.
/// Preempted holders make the mean hold time longer, so one thread's hold time counts if it is
/// shorter.
fn lock_uses(
    common: &Common,
    args: &Args,
    opened: &Opened,
    kind: RootsKind,
    threads: usize,
) -> Result<strided_read_model::LockUses, Failure> {
    let of = |threads| -> Result<strided_read_model::LockUses, Failure> {
        let counted = LockCounts::start();
        let (sample, _) = load(args, opened, kind, (threads, common.tuning_limit()), common.seed)?;
        let ops = sample.ops.max(1) as f64;
        let used = |lock: &LockUse| {
            (lock.name, lock.locks as f64 / ops, lock.hold_ns as f64 / lock.locks as f64)
        };
        Ok(counted.locks().iter().map(used).collect())
    };
    let (mut loaded, alone) = (of(threads)?, of(1)?);
    for (name, _, hold_ns) in &mut loaded {
        let shorter = alone.iter().find(|(other, ..)| other == name).map(|(.., hold_ns)| *hold_ns);
        *hold_ns = hold_ns.min(shorter.unwrap_or(f64::INFINITY));
    }
    Ok(loaded)
}

/// Throughput and CPU time over threads, and the model's predictions.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let measured: Vec<Record> =
        records.iter().filter(|r| r.number("predicted_ops_per_s").is_none()).cloned().collect();
    let mut panels = panels_over_threads(&measured, &["device"], "ops_per_s");
    panels.extend(panels_over_threads(&measured, &["device"], "cpu_s_per_million"));
    panels.extend(strided_read_model::panels(records));
    panels
}
