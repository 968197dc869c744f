//! `mirror`: a mirror of two devices compared with one of them, and resilvers.
//!
//! The devices serve a few reads at once, each in a fixed time, and write at a fixed rate. The
//! bench reads at random and past the cache, then overwrites all objects and waits until that is
//! durable. A resilver fills a new device that is attached to a pool: while the pool is idle, and
//! beside R1's job, in which threads read cached blocks. Its rate is compared with sequential
//! writes to such a device. R1's rate is compared with that before the device is attached.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::{Device, Request};
use forebay_pool::format::Compression;
use forebay_pool::{
    AttachOptions, CreateOptions, DatasetSettings, HostId, LeafState, NewVdev, Object, Opened, Pool,
};

use super::{interleave, panels_over_threads};
use crate::blocks::BLOCK_BYTES;
use crate::keys::XorShift;
use crate::measure::{self, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::served_device::{ServedDevice, ServiceTimes};
use crate::testbed;

const NAME: &str = "mirror";
const THREADS: [usize; 1] = [32];
/// Bytes per transaction.
const WRITE_BYTES: usize = 1 << 20;
/// Sequential writes to a device that are in flight at once.
const SEQUENTIAL_DEPTH: usize = 4;

/// Options of `mirror`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of all objects together.
    #[arg(long, default_value = "256MiB", value_parser = testbed::bytes)]
    pub(crate) bytes: u64,
    /// Record sizes of the objects that a resilver reads.
    #[arg(long, value_delimiter = ',', default_value = "8KiB,128KiB", value_parser = testbed::bytes)]
    pub(crate) record: Vec<u64>,
    /// Reads that a device serves at once.
    #[arg(long, default_value_t = 4)]
    pub(crate) lanes: usize,
    /// Time of a read, in microseconds.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) read_us: u64,
    /// Bytes that a device writes per second.
    #[arg(long, default_value = "200000000", value_parser = testbed::bytes)]
    pub(crate) write_rate: u64,
}

impl Args {
    fn device(&self, name: &str) -> Result<Arc<ServedDevice>, Failure> {
        let times = ServiceTimes {
            lanes: self.lanes,
            read: Duration::from_micros(self.read_us),
            write_bytes_per_s: self.write_rate,
        };
        // Overwritten blocks are free three groups later.
        ServedDevice::new(name, 4 * self.bytes + (128 << 20), times)
    }
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Read,
    Write,
    Resilver,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Resilver => "resilver",
        }
    }
}

/// A measurement: what is done, to what, with records of so many bytes.
#[derive(Clone, Copy)]
struct Cell {
    load: Load,
    subject: &'static str,
    record: u64,
}

/// A pool, with an object for each thread.
struct Filled {
    objects: Vec<Object>,
    bytes_each: u64,
    // Dropped after the objects.
    pool: Pool,
    devices: Vec<Arc<ServedDevice>>,
}

impl Filled {
    fn new(
        common: &Common,
        args: &Args,
        (sides, record): (usize, u64),
        (threads, cache_bytes): (usize, u64),
    ) -> Result<Self, Failure> {
        let names = ["a", "b"];
        let devices: Result<Vec<_>, _> =
            names.iter().take(sides).map(|name| args.device(name)).collect();
        let devices = devices?;
        let mut opened: Vec<Opened> =
            devices.iter().map(|one| (Arc::clone(one) as Arc<dyn Device>).into()).collect();
        let vdev = match opened.pop() {
            Some(one) if opened.is_empty() => NewVdev::Device(one),
            last => NewVdev::Mirror(opened.into_iter().chain(last).collect()),
        };
        let options = CreateOptions {
            host: HostId { id: 1, name: "bench".to_owned() },
            seed: Some(common.seed),
            ..CreateOptions::new("bench", testbed::cache(cache_bytes, false, common.seed)?)
        };
        let pool = Pool::create_tree(vec![vdev], &options)?;
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: u32::try_from(record)?,
            ..DatasetSettings::default()
        };
        let data = pool.create_dataset("data", &settings)?;
        let bytes_each = (args.bytes / threads as u64).next_multiple_of(WRITE_BYTES as u64);
        let mut objects = Vec::new();
        for _ in 0..threads {
            let tx = pool.begin()?;
            let number = data.create_object(&tx, &[])?;
            drop(tx);
            objects.push(data.object(number)?);
        }
        let filled = Self { objects, bytes_each, pool, devices };
        for thread in 0..threads {
            filled.overwrite(thread, byte_of(thread))?;
        }
        filled.pool.sync()?;
        Ok(filled)
    }

    /// From now on the devices take their time.
    fn begin(&self) {
        self.devices.iter().for_each(|device| device.begin());
    }

    /// Overwrites the object of a thread.
    fn overwrite(&self, thread: usize, byte: u8) -> Result<(), forebay_pool::Error> {
        let content = vec![byte; WRITE_BYTES];
        for offset in (0..self.bytes_each).step_by(WRITE_BYTES) {
            let tx = self.pool.begin()?;
            self.objects[thread].write(&tx, offset, &content)?;
        }
        Ok(())
    }
}

/// Fill byte of a thread's object. Zeros would not be stored.
fn byte_of(thread: usize) -> u8 {
    (thread % 255) as u8 + 1
}

/// Reads blocks of some objects at random.
struct Reader<'a> {
    objects: &'a [Object],
    /// The number of the first of them.
    first: usize,
    blocks_each: u64,
    rng: XorShift,
    block: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// A reader of all objects. With an object each, those of some threads would be cached, and
    /// these threads would do nearly all reads.
    fn of_all(filled: &'a Filled, thread: usize, seed: u64) -> Self {
        Self {
            objects: &filled.objects,
            first: 0,
            blocks_each: filled.bytes_each / BLOCK_BYTES as u64,
            rng: XorShift::new(seed.wrapping_add(thread as u64)),
            block: vec![0; BLOCK_BYTES],
        }
    }

    /// A reader of the thread's object.
    fn of_own(filled: &'a Filled, thread: usize, seed: u64) -> Self {
        let objects = &filled.objects[thread..=thread];
        Self { objects, first: thread, ..Self::of_all(filled, thread, seed) }
    }
}

impl Worker for Reader<'_> {
    const BATCH_OPERATIONS: u64 = 8;

    fn step(&mut self) -> bool {
        let nth = self.rng.below(self.objects.len() as u64 * self.blocks_each);
        let (at, block) = ((nth / self.blocks_each) as usize, nth % self.blocks_each);
        let read = self.objects[at].read(block * BLOCK_BYTES as u64, &mut self.block);
        black_box(&self.block);
        let byte = byte_of(self.first + at);
        read.is_ok_and(|len| len == BLOCK_BYTES) && self.block[17] == byte
    }
}

/// Measures all loads.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let threads = common.threads_or(&THREADS)?;
    common.check_subjects(&["device", "mirror", "idle", "beside-r1"])?;
    let block = BLOCK_BYTES as u64;
    let mut cells = Vec::new();
    for subject in ["device", "mirror"] {
        cells.push(Cell { load: Load::Read, subject, record: block });
        cells.push(Cell { load: Load::Write, subject, record: 128 << 10 });
    }
    for record in args.record.iter().copied() {
        let cell = |subject| Cell { load: Load::Resilver, subject, record };
        cells.extend(["device", "idle", "beside-r1"].map(cell));
    }
    cells.retain(|cell| common.wants(cell.subject));
    let with_threads: Vec<(usize, Cell)> =
        threads.iter().flat_map(|threads| cells.iter().map(|cell| (*threads, *cell))).collect();
    let found = interleave(common.reps, with_threads.len(), |i, _| {
        let (threads, cell) = with_threads[i];
        let record = Record::new(NAME, cell.subject, threads)
            .param("load", cell.load.name())
            .param("record", cell.record);
        measure(common, args, threads, cell, record)
    })?;
    let against = Against::Subject("device");
    Ok(fold_all(&found, &[Ratio { name: "ratio_to_device", figure: "bytes_per_s", against }]))
}

fn measure(
    common: &Common,
    args: &Args,
    threads: usize,
    cell: Cell,
    record: Record,
) -> Result<Record, Failure> {
    let sides = if cell.subject == "mirror" { 2 } else { 1 };
    // What R1 reads is all in memory, with room for copies that are being written.
    let all = args.bytes * 2 + (256 << 20);
    let few = (args.bytes / 8).max(16 << 20);
    let cache_bytes = if cell.subject == "beside-r1" { all } else { few };
    let fill = || Filled::new(common, args, (sides, cell.record), (threads, cache_bytes));
    match (cell.load, cell.subject) {
        (Load::Read, _) => reads(common, &fill()?, threads, record),
        (Load::Write, _) => writes(&fill()?, threads, record),
        (Load::Resilver, "device") => sequential(args, record),
        (Load::Resilver, "idle") => resilver(args, &fill()?, record),
        (Load::Resilver, _) => beside_r1(common, args, &fill()?, record),
    }
}

fn reads(
    common: &Common,
    filled: &Filled,
    threads: usize,
    record: Record,
) -> Result<Record, Failure> {
    filled.begin();
    let make = |thread| Reader::of_all(filled, thread, common.seed);
    let device_reads = || filled.devices.iter().map(|device| device.reads()).sum::<u64>();
    let before = device_reads();
    let sample = measure::run(threads, common.limit(), make, || {});
    let device_reads = device_reads() - before;
    if sample.hits != sample.ops {
        return Err(format!("{} reads failed", sample.ops - sample.hits).into());
    }
    Ok(record
        .figure("bytes_per_s", sample.ops_per_s() * BLOCK_BYTES as f64)
        .figure("cpu_s", sample.cpu_s)
        .figure("device_reads_per_op", device_reads as f64 / sample.ops.max(1) as f64))
}

fn writes(filled: &Filled, threads: usize, record: Record) -> Result<Record, Failure> {
    filled.begin();
    let cpu_s = measure::cpu_seconds();
    let begun = Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let write = |thread| scope.spawn(move || filled.overwrite(thread, 255));
        let writers: Vec<_> = (0..threads).map(write).collect();
        let join = |writer: std::thread::ScopedJoinHandle<'_, _>| writer.join();
        writers.into_iter().map(join).collect()
    });
    for result in results {
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    filled.pool.sync()?;
    let bytes = filled.bytes_each * threads as u64;
    Ok(record
        .figure("bytes_per_s", bytes as f64 / begun.elapsed().as_secs_f64())
        .figure("cpu_s", measure::cpu_seconds() - cpu_s))
}

/// Writes to a device from its beginning.
fn sequential(args: &Args, record: Record) -> Result<Record, Failure> {
    let device = args.device("new")?;
    device.begin();
    let limit_bytes = (4 * SEQUENTIAL_DEPTH * WRITE_BYTES).max(64 << 20) as u64;
    let arena = Arena::new(ArenaConfig { limit_bytes, huge_pages: HugePages::Never })?;
    let (cpu_s, begun) = (measure::cpu_seconds(), Instant::now());
    let mut pending = std::collections::VecDeque::new();
    for offset in (0..args.bytes).step_by(WRITE_BYTES) {
        if pending.len() == SEQUENTIAL_DEPTH {
            let first: Option<forebay_io::Pending> = pending.pop_front();
            first.map(|first| first.wait(&*device).result).transpose()?;
        }
        let (request, written) = Request::write(offset, arena.alloc(WRITE_BYTES)?).pending();
        device.submit(request);
        pending.push_back(written);
    }
    for written in pending {
        written.wait(&*device).result?;
    }
    Ok(record
        .figure("bytes_per_s", device.written_bytes() as f64 / begun.elapsed().as_secs_f64())
        .figure("cpu_s", measure::cpu_seconds() - cpu_s))
}

/// Attaches a device, and waits until it has all blocks.
fn resilver(args: &Args, filled: &Filled, record: Record) -> Result<Record, Failure> {
    filled.begin();
    let new = args.device("new")?;
    new.begin();
    let (cpu_s, begun) = (measure::cpu_seconds(), Instant::now());
    let opened = Opened::from(Arc::clone(&new) as Arc<dyn Device>);
    filled.pool.attach_device("a", opened, AttachOptions::default())?;
    let status = filled.pool.wait_resilver();
    let seconds = begun.elapsed().as_secs_f64();
    let is_whole = filled.pool.devices().iter().all(|one| one.state == LeafState::Online);
    if status.lost > 0 || !is_whole || new.written_bytes() < args.bytes {
        return Err(format!("the resilver ended before its work: {status}").into());
    }
    Ok(record
        .figure("bytes_per_s", new.written_bytes() as f64 / seconds)
        .figure("cpu_s", measure::cpu_seconds() - cpu_s))
}

/// Reads cached blocks on all threads, and attaches a device meanwhile.
fn beside_r1(
    common: &Common,
    args: &Args,
    filled: &Filled,
    record: Record,
) -> Result<Record, Failure> {
    for (thread, object) in filled.objects.iter().enumerate() {
        let mut block = vec![0; BLOCK_BYTES];
        for offset in (0..filled.bytes_each).step_by(BLOCK_BYTES) {
            if object.read(offset, &mut block)? != BLOCK_BYTES || block[17] != byte_of(thread) {
                return Err(format!("object {thread}, offset {offset}: wrong content").into());
            }
        }
    }
    let (stop, wrong, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..filled.objects.len() {
            let mut reader = Reader::of_own(filled, thread, common.seed);
            let (stop, wrong, done) = (&stop, &wrong, &done);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    const BATCH: u64 = 64;
                    let good = (0..BATCH).filter(|_| reader.step()).count() as u64;
                    wrong.fetch_add(BATCH - good, Ordering::Relaxed);
                    done.fetch_add(BATCH, Ordering::Relaxed);
                }
            });
        }
        let begin = || (Instant::now(), done.load(Ordering::Relaxed));
        let rate = |(begun, before): (Instant, u64)| {
            let ops = done.load(Ordering::Relaxed) - before;
            ops as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        };
        // Half of the time alone before the resilver, and half after it.
        let half = Duration::from_secs_f64(common.seconds / 2.0);
        let alone = || {
            let begun = begin();
            std::thread::sleep(half);
            rate(begun)
        };
        let before = alone();
        let begun = begin();
        let resilvered = resilver(args, filled, record);
        let beside = rate(begun);
        let after = alone();
        stop.store(true, Ordering::Relaxed);
        let record = resilvered?
            .figure("r1_ops_per_s", beside)
            .figure("r1_ratio", beside / ((before + after) / 2.0).max(1e-9));
        match wrong.load(Ordering::Relaxed) {
            0 => Ok(record),
            count => Err(format!("{count} reads failed or returned wrong bytes").into()),
        }
    })
}

/// Rates of each load.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    panels_over_threads(records, &["load", "record"], "bytes_per_s")
}
