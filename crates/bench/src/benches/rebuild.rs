//! `rebuild`: how fast a cache on a device is rebuilt after a kill, and its memory per entry (R4).
//!
//! A child process fills the device and is killed. Another opens it, asks for keys until one hits,
//! and waits for the rebuild. The logs are in the page cache, so the rebuild itself is measured and
//! not the medium. With `--direct` they are not, and the rebuild reads them from the disk, as R4's
//! did.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{interleave, lines};
use crate::hybrids::{HybridPlan, Scratch, Subject, TieredCache, is_block_device};
use crate::keys::XorShift;
use crate::measure::{cpu_seconds, rss_bytes, storage_read_bytes};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel};
use crate::report::{Against, Ratio, Record, Value, fold_all};

const NAME: &str = "rebuild";
/// Weight of values in memory after the reopening. It is tiny, so that memory is the index's.
const OPEN_BYTES: u64 = 1 << 20;
/// Number of lookups at the end.
const SAMPLE: u64 = 20_000;
const FILLED: &str = "filled";
/// How long, and how often, a block device is looked at that a killed process had open.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE_LOOK: Duration = Duration::from_millis(10);
const FIGURES: [&str; 10] = [
    "first_hit_s",
    "full_s",
    "cpu_s",
    "entries_per_s",
    "read_bytes",
    "read_bytes_per_s",
    "bytes_per_entry",
    "found_share",
    "rss_bytes",
    "index_bytes_per_entry",
];

/// Options of `rebuild`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Entries on the device.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) entries: u64,
    /// Size of a value, in bytes.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub(crate) value_bytes: u64,
    /// Folder for the files of all subjects.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,
    /// Bypass the page cache, so that the rebuild reads the disk.
    #[arg(long)]
    pub(crate) direct: bool,
    /// A block device, which all subjects use in turns instead of files.
    #[arg(long, requires = "overwrite")]
    pub(crate) device: Option<PathBuf>,
    /// Overwrite the block device. All data on it is lost.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Fill the device at this path in this process.
    #[arg(long, hide = true)]
    pub(crate) child_fill: Option<PathBuf>,
    /// Open the device at this path in this process.
    #[arg(long, hide = true)]
    pub(crate) child_open: Option<PathBuf>,
}

impl Args {
    /// Weight of values in memory while the device is filled: all of them. A cache evicts values
    /// without a second use first, and L2 need not write them.
    fn fill_bytes(&self) -> u64 {
        self.entries * (self.value_bytes + 64)
    }

    fn plan(&self, common: &Common, subject: &Subject, path: &Path, fill: bool) -> HybridPlan {
        let value_bytes = self.value_bytes as usize;
        HybridPlan {
            path: path.to_owned(),
            direct: self.direct,
            memory_bytes: if fill { self.fill_bytes() } else { OPEN_BYTES },
            device_bytes: subject.device_bytes(self.entries, value_bytes),
            value_bytes,
            fill,
            seed: common.seed,
        }
    }
}

/// Fills, kills and reopens all subjects in turns.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let mut subjects = Subject::all();
    subjects.dedup_by_key(|subject| subject.name);
    common.check_subjects(&subjects.iter().map(|subject| subject.name).collect::<Vec<_>>())?;
    subjects.retain(|subject| common.wants(subject.name));
    let of_child = || Subject::named(common.subjects.first().map_or("", String::as_str));
    if let Some(path) = &args.child_fill {
        let subject = of_child()?;
        fill(&*subject.open(&args.plan(common, &subject, path, true))?, args.entries)?;
        return Ok(Vec::new());
    }
    if let Some(path) = &args.child_open {
        let subject = of_child()?;
        for (name, value) in reopened(common, args, &subject, path)? {
            if value.is_finite() {
                println!("{name} {value}");
            }
        }
        return Ok(Vec::new());
    }
    check_device(args)?;
    let found = interleave(common.reps, subjects.len(), |i, _| one(common, args, &subjects[i]))?;
    Ok(fold_all(&found, &[RATIO]))
}

/// Checks that `--device` names a block device.
fn check_device(args: &Args) -> Result<(), Failure> {
    match &args.device {
        Some(path) if !is_block_device(path) => Err(format!(
            "cannot use --device {}: it is no block device; name one, or give --folder for files",
            path.display()
        )
        .into()),
        _ => Ok(()),
    }
}

const RATIO: Ratio<'static> = Ratio {
    name: "entries_ratio_to_foyer",
    figure: "entries_per_s",
    against: Against::Subject("foyer"),
};

/// Fills the device in one process, kills it, and opens the device in another.
fn one(common: &Common, args: &Args, subject: &Subject) -> Result<Record, Failure> {
    let scratch = Scratch::new(&args.folder, subject.name);
    let path = args.device.as_ref().unwrap_or(&scratch.0);
    let child = |how: &str| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(NAME).arg(format!("--{how}")).arg(path);
        command.arg(format!("--entries={}", args.entries));
        command.arg(format!("--value-bytes={}", args.value_bytes));
        command.arg(format!("--subjects={}", subject.name));
        command.arg(format!("--seed={}", common.seed));
        command.args(args.direct.then_some("--direct"));
        command.stdout(Stdio::piped());
        Ok::<_, Failure>(command)
    };
    let mut filler = child("child-fill")?.stdin(Stdio::piped()).spawn()?;
    let mut said = String::new();
    if let Some(out) = filler.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    // The process still has everything open.
    filler.kill()?;
    filler.wait()?;
    wait_released(path);
    if said.trim() != FILLED {
        return Err(
            format!("cannot fill the device of {}; its error is above", subject.name).into()
        );
    }
    let output = child("child-open")?.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(
            format!("cannot reopen the device of {}; its error is above", subject.name).into()
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut record = Record::new(NAME, subject.name, crate::options::cpus())
        .param("entries", args.entries)
        .param("value_bytes", args.value_bytes)
        .param("direct", args.direct);
    for name in FIGURES {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        if let Some(value) = line.and_then(|value| value.parse().ok()) {
            record = record.figure(name, value);
        }
    }
    Ok(record)
}

/// Waits until the kernel has closed a block device for a killed process, which it does later if
/// io_uring used it. Gives up after some seconds: the next open says why it fails.
fn wait_released(path: &Path) {
    let exclusive = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    let begun = Instant::now();
    while is_block_device(path) && exclusive().is_err() && begun.elapsed() < RELEASE_TIMEOUT {
        std::thread::sleep(RELEASE_LOOK);
    }
}

/// Fills the device, reports it, and waits to be killed.
fn fill(cache: &dyn TieredCache, entries: u64) -> Result<(), Failure> {
    for key in 0..entries {
        cache.insert(key);
    }
    cache.settle()?;
    println!("{FILLED}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Err("the process that fills the device was not killed".into())
}

fn reopened(
    common: &Common,
    args: &Args,
    subject: &Subject,
    path: &Path,
) -> Result<Vec<(&'static str, f64)>, Failure> {
    let plan = args.plan(common, subject, path, false);
    let mut rng = XorShift::new(common.seed);
    let read_before = storage_read_bytes();
    let (rss_before, cpu_before, start) = (rss_bytes(), cpu_seconds(), Instant::now());
    let cache = subject.open(&plan)?;
    // Random keys, since the order of the rebuild is unknown.
    let patience = 1000 * SAMPLE;
    let first = (0..patience).find(|_| cache.get(rng.below(args.entries)));
    let first_hit_s = start.elapsed().as_secs_f64();
    first.ok_or("no key was found after the reopening")?;
    cache.wait_rebuilt();
    let full_s = start.elapsed().as_secs_f64();
    let cpu_s = cpu_seconds() - cpu_before;
    let read =
        storage_read_bytes().zip(read_before).map_or(f64::NAN, |(now, then)| (now - then) as f64);
    let found = (0..SAMPLE).filter(|_| cache.get(rng.below(args.entries))).count();
    // Returns the memory that only the rebuild needed.
    forebay_base::memory::return_free_memory();
    let rss = rss_bytes().saturating_sub(rss_before) as f64;
    let entries = args.entries as f64;
    let index = cache.index_bytes().map_or(f64::NAN, |bytes| bytes as f64 / entries);
    let found_share = found as f64 / SAMPLE as f64;
    let rate = entries * found_share / full_s;
    let times = [first_hit_s, full_s, cpu_s, rate, read, read / full_s];
    let values = times.into_iter().chain([rss / entries, found_share, rss, index]);
    Ok(FIGURES.into_iter().zip(values).collect())
}

/// Rate over entries.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let entries = |record: &Record| match record.get("entries") {
        Some(Value::Integer(entries)) => *entries as f64,
        _ => 0.0,
    };
    let all: Vec<&Record> = records.iter().collect();
    vec![Panel {
        title: "rebuild after a kill".to_owned(),
        x: Axis::log("entries"),
        y: Axis::of("entries_per_s"),
        series: lines(&all, entries, "entries_per_s"),
    }]
}
