//! `device`: random reads of 4 KiB at depths from 1 to 256, by Forebay's engines and by fio.

use std::path::PathBuf;

use super::{interleave, lines};
use crate::iops::{Engines, Fio, IopsPlan, IopsResult, ours, theirs};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel, words};
use crate::report::{Against, Ratio, Record, Value, fold_all};
use crate::test_file::{BLOCK_BYTES, TestFile};

const NAME: &str = "device";
const FIO: &str = "fio";
/// One thread submits all reads.
const THREADS: usize = 1;

/// Options of `device`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// File or block device to read; it is never written. Default: a temporary file.
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Size of the temporary file, or of the part of the named file that is read, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) size_mib: u64,
    /// Whether to bypass the page cache.
    #[arg(long, value_delimiter = ',', default_value = "true,false")]
    pub(crate) direct: Vec<bool>,
    /// Reads in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256",
        value_parser = clap::value_parser!(u64).range(1..=MAX_DEPTH))]
    pub(crate) depths: Vec<u64>,
}

const MAX_DEPTH: u64 = 4096;

/// A subject.
#[derive(Clone, Debug)]
enum Subject {
    Ours(Engines),
    Fio(Fio),
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Self::Ours(Engines::IoUring) => "forebay",
            Self::Ours(Engines::Threads) => "forebay-threads",
            Self::Fio(_) => FIO,
        }
    }

    fn run(&self, plan: &IopsPlan<'_>, file: &TestFile) -> Result<IopsResult, Failure> {
        match self {
            Self::Ours(engine) => ours(plan, *engine, file.stamp),
            Self::Fio(fio) => theirs(plan, fio),
        }
    }
}

/// Measures all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&["forebay", "forebay-threads", FIO])?;
    let mut subjects = vec![Subject::Ours(Engines::IoUring), Subject::Ours(Engines::Threads)];
    match Fio::find() {
        Some(fio) => subjects.push(Subject::Fio(fio)),
        None if common.wants(FIO) => {
            eprintln!(
                "forebay-bench device: fio with io_uring is not installed; its rows are left out"
            );
        }
        None => {}
    }
    subjects.retain(|subject| common.wants(subject.name()));
    let file =
        TestFile::named_or_temporary(args.file.as_deref(), args.size_mib << 20, common.seed)?;
    let mut records = Vec::new();
    let mut refused = None;
    for direct in &args.direct {
        // A file system without direct I/O is reported, and the other rows are measured.
        match measure(common, args, &subjects, &file, *direct) {
            Ok(rows) => records.extend(rows),
            Err(failure) => {
                eprintln!("forebay-bench device --direct {direct}: {failure}");
                refused = Some(failure);
            }
        }
    }
    match refused {
        Some(failure) if records.is_empty() => Err(failure),
        _ => Ok(records),
    }
}

/// All subjects at all depths.
fn measure(
    common: &Common,
    args: &Args,
    subjects: &[Subject],
    file: &TestFile,
    direct: bool,
) -> Result<Vec<Record>, Failure> {
    let cells: Vec<(usize, &Subject)> = args
        .depths
        .iter()
        .flat_map(|depth| subjects.iter().map(|subject| (*depth as usize, subject)))
        .collect();
    let size_bytes = file.size_bytes.min(args.size_mib << 20);
    let found = interleave(common.reps, cells.len(), |i, rep| {
        let (depth, subject) = cells[i];
        let seed = common.seed + rep as u64;
        let path = file.path.as_path();
        let plan = IopsPlan { path, size_bytes, direct, depth, seconds: common.seconds, seed };
        let found = subject.run(&plan, file)?;
        let record = Record::new(NAME, subject.name(), THREADS)
            .param("direct", direct)
            .param("depth", depth as u64)
            .param("block_bytes", BLOCK_BYTES as u64)
            .param("size_bytes", size_bytes)
            .param("config", found.config.as_str())
            .figure("iops", found.iops)
            .figure("cpu_ns_per_io", found.cpu_ns_per_io)
            .figure("p50_ns", found.p50_ns)
            .figure("p99_ns", found.p99_ns);
        Ok::<_, Failure>(record)
    })?;
    let ratio = |name, figure| Ratio { name, figure, against: Against::Subject(FIO) };
    let ratios = [ratio("ratio_to_fio", "iops"), ratio("cpu_ratio_to_fio", "cpu_ns_per_io")];
    Ok(fold_all(&found, &ratios))
}

/// Reads per second and latency over depth.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let depth = |r: &Record| match r.get("depth") {
        Some(Value::Integer(depth)) => *depth as f64,
        _ => 0.0,
    };
    let mut panels = Vec::new();
    for direct in [true, false] {
        let is = Some(&Value::Flag(direct));
        let own: Vec<&Record> = records.iter().filter(|r| r.get("direct") == is).collect();
        if own.is_empty() {
            continue;
        }
        for figure in ["iops", "p99_ns"] {
            panels.push(Panel {
                title: if direct { "direct" } else { "through the page cache" }.to_owned(),
                x: Axis::doubling("reads in flight"),
                y: if figure == "p99_ns" { Axis::log(&words(figure)) } else { Axis::of(figure) },
                series: lines(&own, depth, figure),
            });
        }
    }
    panels
}
