//! `restart`: how soon a pool on a slow device is warm again after a restart, with and without L2.
//!
//! R1's job: each thread reads blocks of its own object at random, and all of it fits into memory.
//! In its first life the pool fills memory and reports its warm rate. It is then exported, and
//! imported with an empty cache and a slower device. Time counts from the start of the import. The
//! L2 device is a file.
//!
//! The second life lasts until hardly any read leaves memory. The measured time is when the rate
//! first reached a share of that life's own warm rate, because the machine's speed changes from
//! minute to minute. The first life's rate is reported too.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_io::{Device, FileDevice, OpenOptions};
use forebay_pool::format::Compression;
use forebay_pool::{DatasetSettings, L2DeviceStats, Object, Pool};

use super::interleave;
use crate::blocks::BLOCK_BYTES;
use crate::keys::{Distribution, KeySpace};
use crate::options::{Common, Failure};
use crate::report::{Against, Ratio, Record, fold_all};
use crate::testbed::{self, BackingArgs, TestBed};

const NAME: &str = "restart";
const THREADS: [usize; 1] = [32];
const SUBJECTS: [&str; 2] = ["without", "l2"];
/// Bytes per transaction while the pool is filled.
const FILL_BYTES: usize = 1 << 20;
/// Length of a rate window.
const WINDOW: Duration = Duration::from_millis(100);
/// The pool is warm again at this share of the warm rate.
const WARM_SHARE: f64 = 0.9;
/// The warm rate is the median of so many windows.
const WARM_WINDOWS: usize = 10;
/// The pool is warm when at most one in so many reads left memory during those windows.
const WARM_READS: f64 = 10_000.0;

/// Options of `restart`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of each thread's object.
    #[arg(long, default_value = "32MiB", value_parser = testbed::bytes)]
    pub(crate) bytes_each: u64,
    /// Extra time of each read of the pool's device after the restart, in microseconds.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) delay_us: u64,
    /// End the first life like a crash instead of an export.
    #[arg(long)]
    pub(crate) crash: bool,
    /// Give up after this many seconds.
    #[arg(long, default_value_t = 300.0)]
    pub(crate) give_up_s: f64,
    #[command(flatten)]
    pub(crate) backing: BackingArgs,
    /// Folder for the L2 device, a temporary file.
    #[arg(long, default_value = ".")]
    pub(crate) l2_folder: PathBuf,
}

/// The file of an L2 device, removed at the end.
struct L2File(PathBuf);

impl Drop for L2File {
    fn drop(&mut self) {
        // An error has no consequence for the measurement.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Rates of the job over time.
struct RateWindows {
    /// End of each window in seconds, and its reads per second.
    windows: Vec<(f64, f64)>,
}

impl RateWindows {
    /// The end of the first of three consecutive windows with at least `rate`.
    fn reaches(&self, rate: f64) -> Option<f64> {
        let fast = |window: &[(f64, f64)]| window.iter().all(|(_, ops)| *ops >= rate);
        self.windows.windows(3).find(|window| fast(window)).map(|window| window[0].0)
    }

    /// Approximate number of reads in the last `count` windows.
    fn reads(&self, count: usize) -> Option<f64> {
        let from = self.windows.len().checked_sub(count)?;
        Some(self.windows[from..].iter().map(|(_, ops)| ops * WINDOW.as_secs_f64()).sum())
    }

    fn last(&self, count: usize) -> Option<f64> {
        let from = self.windows.len().checked_sub(count)?;
        let rates: Vec<f64> = self.windows[from..].iter().map(|(_, ops)| *ops).collect();
        Some(crate::report::median(&rates))
    }
}

/// Fill byte of a thread's object. Zeros would not be stored.
fn byte_of(thread: usize) -> u8 {
    (thread % 255) as u8 + 1
}

struct Job<'a> {
    threads: usize,
    blocks_each: u64,
    bytes_each: u64,
    common: &'a Common,
    args: &'a Args,
}

impl Job<'_> {
    fn fill(&self, pool: &Pool) -> Result<Vec<u64>, Failure> {
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: u32::try_from(BLOCK_BYTES)?,
            ..DatasetSettings::default()
        };
        let data = pool.create_dataset("read", &settings)?;
        let mut numbers = Vec::new();
        for thread in 0..self.threads {
            let tx = pool.begin()?;
            let number = data.create_object(&tx, &[])?;
            drop(tx);
            let object = data.object(number)?;
            let content = vec![byte_of(thread); FILL_BYTES];
            for offset in (0..self.bytes_each).step_by(FILL_BYTES) {
                let tx = pool.begin()?;
                let len = (self.bytes_each - offset).min(FILL_BYTES as u64) as usize;
                object.write(&tx, offset, &content[..len])?;
            }
            numbers.push(number);
        }
        pool.sync()?;
        Ok(numbers)
    }

    /// Runs the job, and calls `enough` after each window.
    fn run(
        &self,
        begun: Instant,
        objects: &[Object],
        mut enough: impl FnMut(&RateWindows) -> bool,
    ) -> Result<RateWindows, Failure> {
        let (stop, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
        let done: Vec<AtomicU64> = objects.iter().map(|_| AtomicU64::new(0)).collect();
        let keys = KeySpace::new(Distribution::Uniform, self.blocks_each, self.common.seed);
        let mut seen = RateWindows { windows: Vec::new() };
        std::thread::scope(|scope| {
            for (thread, object) in objects.iter().enumerate() {
                let mut keys = keys.stream(thread, self.threads, self.common.seed);
                let (stop, wrong, done) = (&stop, &wrong, &done[thread]);
                scope.spawn(move || {
                    let mut block = vec![0; BLOCK_BYTES];
                    while !stop.load(Ordering::Relaxed) {
                        let offset = keys.next() * BLOCK_BYTES as u64;
                        let read = object.read(offset, &mut block);
                        if !read.is_ok_and(|len| len == BLOCK_BYTES) || block[17] != byte_of(thread)
                        {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        black_box(&block);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut before = (begun.elapsed(), 0);
            while seen.windows.is_empty() || !enough(&seen) {
                std::thread::sleep(WINDOW);
                let now: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
                let at = begun.elapsed();
                let rate = (now - before.1) as f64 / (at - before.0).as_secs_f64();
                seen.windows.push((at.as_secs_f64(), rate));
                before = (at, now);
            }
            stop.store(true, Ordering::Relaxed);
        });
        match wrong.into_inner() {
            0 => Ok(seen),
            count => Err(format!("{count} reads failed or returned wrong bytes").into()),
        }
    }

    /// Reads everything once, and returns the warm rate.
    fn warm(&self, objects: &[Object]) -> Result<f64, Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        for object in objects {
            for at in 0..self.blocks_each {
                object.read(at * BLOCK_BYTES as u64, &mut block)?;
            }
        }
        let windows = WARM_WINDOWS.max((self.common.seconds / WINDOW.as_secs_f64()) as usize);
        let seen = self.run(Instant::now(), objects, |seen| seen.windows.len() >= windows)?;
        Ok(seen.last(WARM_WINDOWS).unwrap_or_default())
    }

    fn l2_device(&self) -> Result<(L2File, Arc<dyn Device>), Failure> {
        let file = L2File(testbed::temporary_path(&self.args.l2_folder));
        let bytes = self.bytes_each * self.threads as u64 * 3 / 2 + (64 << 20);
        let options = OpenOptions {
            create_bytes: Some(bytes.next_multiple_of(1 << 20)),
            ..OpenOptions::default()
        };
        let device = Arc::new(FileDevice::open(&file.0, &options)?);
        Ok((file, device))
    }

    fn measure(&self, subject: &'static str) -> Result<Record, Failure> {
        let (args, common) = (self.args, self.common);
        let mut testbed = TestBed::new(&args.backing, common.seed)?;
        let all = self.bytes_each * self.threads as u64;
        let memory = || testbed::cache(all + all / 2 + (256 << 20), false, common.seed);
        let numbers = {
            let pool = testbed.create(&memory()?, &[])?;
            let numbers = self.fill(&pool)?;
            pool.export()?;
            numbers
        };
        let l2 = (subject == "l2").then(|| self.l2_device()).transpose()?;
        let device = |given: &(L2File, Arc<dyn Device>)| Arc::clone(&given.1).into();
        let open = |pool: &Pool| -> Result<Vec<Object>, Failure> {
            let data = pool.dataset("read")?;
            Ok(numbers.iter().map(|number| data.object(*number)).collect::<Result<_, _>>()?)
        };

        let pool = testbed.import(&memory()?, &[])?;
        if let Some(given) = &l2 {
            pool.add_l2_device(device(given), false)?;
        }
        let objects = open(&pool)?;
        let warm_before = self.warm(&objects)?;
        drop(objects);
        let ending = Instant::now();
        match args.crash {
            true => pool.abandon(),
            false => pool.close()?,
        }
        let end_s = ending.elapsed().as_secs_f64();

        testbed.slow_reads(Duration::from_micros(args.delay_us), 0);
        let begun = Instant::now();
        let pool = testbed.import_with(&memory()?, l2.iter().map(device).collect(), &[])?;
        let import_s = begun.elapsed().as_secs_f64();
        let objects = open(&pool)?;
        let device_reads =
            || pool.stats().counters.iter().filter(|c| c.0 == "reads").map(|c| c.2).sum::<u64>();
        let left_memory = || device_reads() + stats(&pool).unwrap_or_default().hits;
        let mut left = Vec::new();
        let seen = self.run(begun, &objects, |seen| {
            left.push(left_memory());
            let lately = left.len().checked_sub(WARM_WINDOWS + 1).map(|from| left[from]);
            let since = |before| (left_memory() - before) as f64 * WARM_READS;
            let warm = lately.zip(seen.reads(WARM_WINDOWS)).is_some_and(|(b, all)| since(b) <= all);
            warm || begun.elapsed().as_secs_f64() > args.give_up_s
        })?;
        let warm = seen.last(WARM_WINDOWS).unwrap_or_default();
        let reached = seen.reaches(WARM_SHARE * warm);
        let found = stats(&pool).unwrap_or_default();
        let device_reads = device_reads();
        drop(objects);
        pool.close()?;
        Ok(Record::new(NAME, subject, self.threads)
            .param("end", if args.crash { "crash" } else { "export" })
            .param("delay_us", args.delay_us)
            .param("bytes", all)
            .param("reached", reached.is_some())
            .figure("warm_before_iops", warm_before)
            .figure("warm_iops", warm)
            .figure("end_s", end_s)
            .figure("import_s", import_s)
            .figure("to_90_percent_s", reached.unwrap_or(args.give_up_s))
            .figure("rebuild_s", found.rebuild.elapsed_ns as f64 / 1e9)
            .figure("found_records", found.rebuild.records as f64)
            .figure("warmed", warmed(&found) as f64)
            .figure("l2_hits", found.hits as f64)
            .figure("device_reads", device_reads as f64))
    }
}

fn stats(pool: &Pool) -> Option<L2DeviceStats> {
    pool.l2_devices().into_iter().next().and_then(|device| device.stats)
}

/// Blocks that the warm-up read.
fn warmed(stats: &L2DeviceStats) -> u64 {
    stats.counters.iter().filter(|c| c.0 == "warmed").map(|c| c.2).sum()
}

/// Measures restarts with and without L2, in turns.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&SUBJECTS)?;
    let subjects: Vec<_> = SUBJECTS.into_iter().filter(|name| common.wants(name)).collect();
    let mut records = Vec::new();
    for threads in common.threads_or(&THREADS)? {
        let blocks_each = (args.bytes_each / BLOCK_BYTES as u64).max(1);
        let bytes_each = blocks_each * BLOCK_BYTES as u64;
        let job = Job { threads, blocks_each, bytes_each, common, args };
        let found = interleave(common.reps, subjects.len(), |i, _| job.measure(subjects[i]))?;
        let sooner = Ratio {
            name: "ratio_to_without",
            figure: "to_90_percent_s",
            against: Against::Subject("without"),
        };
        records.extend(fold_all(&found, &[sooner]));
    }
    Ok(records)
}
