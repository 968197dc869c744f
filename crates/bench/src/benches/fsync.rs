//! `fsync`: the latency of fsync while the pool is scrubbed, compared with that of an idle pool.
//!
//! Threads append to an object each and fsync after each write. Periods without and with a scrub
//! take turns on one pool, so that both have the same device in the same state. A scrub that ends
//! within a period is started again.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use forebay_pool::format::Compression;
use forebay_pool::{Dataset, DatasetSettings, Object, Pool};
use hdrhistogram::Histogram;

use super::{interleave, panels_over_threads};
use crate::keys::XorShift;
use crate::measure::{self, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::testbed::{self, BackingArgs, TestBed};

const NAME: &str = "fsync";
const SUBJECTS: [&str; 2] = ["alone", "beside-scrub"];
const THREADS: [usize; 2] = [1, 16];
/// Bytes per transaction while the pool is filled.
const FILL_BYTES: usize = 1 << 20;
/// Bytes of an object that is appended to, before its beginning is overwritten.
const OBJECT_BYTES: u64 = 16 << 20;
/// Longest time that the histogram distinguishes, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;

/// Options of `fsync`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes that the scrub reads.
    #[arg(long, default_value = "1GiB", value_parser = testbed::bytes)]
    pub(crate) bytes: u64,
    /// Bytes of each write.
    #[arg(long, default_value = "4KiB", value_parser = testbed::bytes)]
    pub(crate) write: u64,
    /// Size of the cache.
    #[arg(long, default_value = "256MiB", value_parser = testbed::bytes)]
    pub(crate) cache: u64,
    /// Most bytes that the scrub reads per second: the tunable `scrub_rate_bytes`. 0: no limit.
    #[arg(long, default_value = "0", value_parser = testbed::bytes)]
    pub(crate) scrub_rate: u64,
    #[command(flatten)]
    pub(crate) backing: BackingArgs,
}

/// A pool with data to scrub, and an object for each thread.
struct Filled {
    objects: Vec<Object>,
    data: Dataset,
    // Dropped after the objects.
    pool: Pool,
    bed: TestBed,
}

impl Filled {
    fn new(common: &Common, args: &Args, threads: usize) -> Result<Self, Failure> {
        let bed = TestBed::new(&args.backing, common.seed)?;
        let pool = bed.create(&testbed::cache(args.cache, false, common.seed)?, &[])?;
        pool.set_tunable("scrub_rate_bytes", &args.scrub_rate.to_string())?;
        // What a scrub reads is to be as large as what was written.
        let settings =
            DatasetSettings { data_compression: Compression::Off, ..DatasetSettings::default() };
        let data = pool.create_dataset("data", &settings)?;
        let create = || -> Result<Object, Failure> {
            let tx = pool.begin()?;
            let number = data.create_object(&tx, &[])?;
            drop(tx);
            Ok(data.object(number)?)
        };
        let mut rng = XorShift::new(common.seed);
        let scrubbed = create()?;
        let mut content = vec![0; FILL_BYTES];
        for offset in (0..args.bytes).step_by(FILL_BYTES) {
            // No block is like another one.
            content.iter_mut().step_by(64).for_each(|byte| *byte = rng.below(256) as u8);
            let tx = pool.begin()?;
            scrubbed.write(&tx, offset, &content)?;
        }
        let objects: Result<Vec<_>, _> = (0..threads).map(|_| create()).collect();
        let objects = objects?;
        drop(scrubbed);
        pool.sync()?;
        Ok(Self { objects, data, pool, bed })
    }

    /// The sum of the counters of the pool with this name.
    fn counter(&self, name: &str) -> u64 {
        let counters = self.pool.stats().counters;
        counters.iter().filter(|(found, ..)| *found == name).map(|(.., value)| value).sum()
    }

    /// Bytes that scrubs have read.
    fn scrubbed_bytes(&self) -> u64 {
        let counters = self.pool.stats().counters;
        let of_scrubs =
            |(name, label, _): &&(_, _, u64)| (*name, *label) == ("read_bytes", "scrub");
        counters.iter().find(of_scrubs).map_or(0, |(.., value)| *value)
    }

    /// Starts a scrub, or goes on with one that was paused, and waits until it reads.
    fn scrub(&self) -> Result<(), Failure> {
        let before = self.scrubbed_bytes();
        self.pool.start_scrub()?;
        while self.scrubbed_bytes() == before && self.pool.scrub_status().is_active {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ends the thread that scrubs.
    fn pause(&self) -> Result<(), Failure> {
        // It may have ended by itself.
        let _ = self.pool.pause_scrub();
        let report = self.pool.wait_scrub(&mut |_| ControlFlow::Continue(()))?;
        match report.lost_count {
            0 => Ok(()),
            lost => Err(format!("the scrub found {lost} damaged blocks").into()),
        }
    }
}

/// Writes to its object and fsyncs it.
struct Appender<'a> {
    filled: &'a Filled,
    object: &'a Object,
    content: Vec<u8>,
    offset: u64,
    own: Histogram<u64>,
    all: &'a Mutex<Histogram<u64>>,
}

impl Appender<'_> {
    fn append(&mut self) -> Result<(), forebay_pool::Error> {
        let tx = self.filled.pool.begin()?;
        self.object.write(&tx, self.offset, &self.content)?;
        drop(tx);
        self.offset = (self.offset + self.content.len() as u64) % OBJECT_BYTES;
        let begun = Instant::now();
        self.filled.data.fsync(self.object.number())?;
        self.own.saturating_record(begun.elapsed().as_nanos() as u64);
        Ok(())
    }
}

impl Worker for Appender<'_> {
    const BATCH_OPERATIONS: u64 = 1;

    fn step(&mut self) -> bool {
        self.append().is_ok()
    }
}

impl Drop for Appender<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Both histograms have the same bounds, so this cannot fail.
        let _ = all.add(&self.own);
    }
}

/// Measures both subjects, for each number of threads.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&SUBJECTS)?;
    if args.write == 0 || args.write > OBJECT_BYTES {
        return Err(format!("--write {}: give 1 to {OBJECT_BYTES} bytes", args.write).into());
    }
    let subjects: Vec<_> = SUBJECTS.into_iter().filter(|subject| common.wants(subject)).collect();
    let ratio = |name, figure| Ratio { name, figure, against: Against::Subject("alone") };
    let ratios = [ratio("p99_to_alone", "fsync_p99_ns"), ratio("speed_to_alone", "ops_per_s")];
    let threads = common.threads_or(&THREADS)?;
    let most = threads.iter().copied().max().unwrap_or(1);
    let filled = Filled::new(common, args, most)?;
    let mut records = Vec::new();
    for threads in threads {
        let found = interleave(common.reps, subjects.len(), |i, _| {
            period(common, args, &filled, (subjects[i], threads))
        })?;
        records.extend(fold_all(&found, &ratios));
    }
    Ok(records)
}

/// Measures one period.
fn period(
    common: &Common,
    args: &Args,
    filled: &Filled,
    (subject, threads): (&'static str, usize),
) -> Result<Record, Failure> {
    let histogram = || Histogram::<u64>::new_with_bounds(1, MAX_NS, 3);
    let (all, own) = (Mutex::new(histogram()?), histogram()?);
    let is_scrubbed = subject == "beside-scrub";
    if is_scrubbed {
        filled.scrub()?;
    }
    let figures = || (filled.scrubbed_bytes(), filled.counter("commits_waited_for_scrub"));
    let before = figures();
    let make = |thread: usize| Appender {
        filled,
        object: &filled.objects[thread],
        content: vec![thread as u8 + 1; args.write as usize],
        offset: 0,
        own: own.clone(),
        all: &all,
    };
    let mut restarted = Ok(());
    let sample = measure::run(threads, common.limit(), make, || {
        if is_scrubbed && restarted.is_ok() {
            // Does nothing while it is active.
            restarted = filled.pool.start_scrub();
        }
    });
    let after = figures();
    if is_scrubbed {
        restarted?;
        filled.pause()?;
    }
    if sample.hits != sample.ops {
        return Err(format!("{} of {} fsyncs failed", sample.ops - sample.hits, sample.ops).into());
    }
    let latency = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Record::new(NAME, subject, threads)
        .param("config", filled.bed.config().as_str())
        .param("write_bytes", args.write)
        .param("scrub_rate", args.scrub_rate)
        .figure("ops_per_s", sample.ops_per_s())
        .figure("fsync_p50_ns", latency.value_at_quantile(0.5) as f64)
        .figure("fsync_p99_ns", latency.value_at_quantile(0.99) as f64)
        .figure("fsync_max_ns", latency.max() as f64)
        .figure("scrubbed_bytes_per_s", (after.0 - before.0) as f64 / sample.elapsed_s)
        .figure("commits_waited", (after.1 - before.1) as f64)
        .figure("cpu_s", sample.cpu_s))
}

/// The 99th percentile of both.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    panels_over_threads(records, &["write_bytes"], "fsync_p99_ns")
}
