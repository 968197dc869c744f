//! `index`: lookup time, memory per entry and slowest insert from empty to sixteen million entries
//! (R4).
//!
//! An index grows in one run, and its lookups are measured at each step. The worst insert since the
//! last step is the slowest that was slow in *every* repetition: growth happens at the same insert
//! each time, interruptions do not.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use super::lines;
use crate::index::{FixedChains, HashTables, Table};
use crate::keys::{XorShift, scramble};
use crate::measure::preemptions;
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel, words};
use crate::report::{Against, Ratio, Record, fold_all};

const NAME: &str = "index";
const SUBJECTS: &[&str] = &[
    #[cfg(feature = "bench_internals")]
    "forebay",
    "fixed-chains",
    "hashbrown-1-lock",
    "hashbrown-64-locks",
];
const SHARDS: usize = 64;
/// Lookups per step.
const LOOKUPS: u64 = 400_000;
/// Slower inserts are recorded, in nanoseconds.
const SLOW_INSERT_NS: u64 = 20_000;

/// Options of `index`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Entries at the last step.
    #[arg(long, default_value_t = 16_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) max_entries: u64,
    /// Memory for which R4's table is sized, in GiB. Default: this machine's.
    #[arg(long)]
    pub(crate) memory_gib: Option<u64>,
}

impl Args {
    /// Steps: zero, a thousand, and about fourfold each up to the last.
    fn steps(&self) -> Vec<u64> {
        const STEPS: [u64; 8] =
            [0, 1000, 10_000, 100_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000];
        let mut steps: Vec<u64> = STEPS.into_iter().filter(|n| *n < self.max_entries).collect();
        steps.push(self.max_entries);
        steps
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_gib.map_or_else(physical_memory_bytes, |gib| gib << 30)
    }
}

fn physical_memory_bytes() -> u64 {
    // SAFETY: `sysconf` takes no pointer and fails with -1.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: `sysconf` takes no pointer and fails with -1.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(pages).unwrap_or(1 << 20) * u64::try_from(page).unwrap_or(4096)
}

/// Measures all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(SUBJECTS)?;
    let subjects: Vec<&str> = SUBJECTS.iter().copied().filter(|s| common.wants(s)).collect();
    let steps = args.steps();
    let mut found: Vec<Vec<Record>> = vec![Vec::new(); subjects.len() * steps.len()];
    let mut slow: Vec<Vec<SlowInserts>> = vec![Vec::new(); subjects.len() * steps.len()];
    for rep in 0..common.reps as usize {
        for turn in 0..subjects.len() {
            let i = (rep + turn) % subjects.len();
            for (step, grown) in grow_subject(subjects[i], args, &steps, common.seed).enumerate() {
                found[i * steps.len() + step].push(grown.record);
                slow[i * steps.len() + step].push(grown.slow);
            }
        }
    }
    let against = Against::Subject("fixed-chains");
    let ratio = Ratio { name: "ratio_to_fixed_chains", figure: "ns_per_lookup", against };
    let mut records = fold_all(&found, &[ratio]);
    for (record, slow) in records.iter_mut().zip(&slow) {
        let seen = record.number("slowest_seen_ns").unwrap_or(0.0);
        if seen > 0.0 {
            let worst = worst_of_all(slow).map_or(seen.min(SLOW_INSERT_NS as f64), |ns| ns as f64);
            record.figures.push(("worst_insert_ns", worst));
        }
    }
    Ok(records)
}

fn grow_subject(
    subject: &str,
    args: &Args,
    steps: &[u64],
    seed: u64,
) -> impl Iterator<Item = Grown> {
    let rows = match subject {
        #[cfg(feature = "bench_internals")]
        "forebay" => grow(subject, crate::index::ForebayIndex::new(args.max_entries), steps, seed),
        "fixed-chains" => grow(subject, FixedChains::new(args.memory_bytes()), steps, seed),
        "hashbrown-1-lock" => grow(subject, HashTables::new(1), steps, seed),
        _ => grow(subject, HashTables::new(SHARDS), steps, seed),
    };
    rows.into_iter()
}

/// Slow inserts by number, with their time in nanoseconds.
type SlowInserts = HashMap<u64, u64>;

/// An index at one step.
struct Grown {
    record: Record,
    slow: SlowInserts,
}

/// The slowest insert that was slow in every repetition, at its fastest.
fn worst_of_all(repetitions: &[SlowInserts]) -> Option<u64> {
    let (first, others) = repetitions.split_first()?;
    let fastest = |(insert, ns): (&u64, &u64)| {
        others.iter().try_fold(*ns, |least, other| Some(least.min(*other.get(insert)?)))
    };
    first.iter().filter_map(fastest).max()
}

/// Grows an index through all steps.
fn grow<T: Table>(subject: &str, mut table: T, steps: &[u64], seed: u64) -> Vec<Grown> {
    let mut rows = Vec::new();
    let mut entries = 0;
    for step in steps {
        let inserts = insert_until(&mut table, entries, *step);
        entries = *step;
        let mut record = Record::new(NAME, subject, 1)
            .param("entries", entries)
            .figure("ns_per_lookup", lookups(&table, entries, seed))
            .figure("index_bytes", table.bytes() as f64);
        if entries > 0 {
            record = record
                .figure("bytes_per_entry", table.bytes() as f64 / entries as f64)
                .figure("ns_per_insert", inserts.mean_ns)
                .figure("slowest_seen_ns", inserts.slowest_ns as f64)
                .figure("preempted_inserts", inserts.preempted as f64);
        }
        if let Some(chain) = table.longest_chain() {
            record = record.figure("longest_chain", chain as f64);
        }
        rows.push(Grown { record, slow: inserts.slow });
    }
    rows
}

struct Inserts {
    mean_ns: f64,
    slowest_ns: u64,
    preempted: u64,
    slow: SlowInserts,
}

fn insert_until<T: Table>(table: &mut T, from: u64, to: u64) -> Inserts {
    let begun = Instant::now();
    let mut inserts = Inserts { mean_ns: 0.0, slowest_ns: 0, preempted: 0, slow: HashMap::new() };
    let mut switches = preemptions();
    let mut last = begun;
    for i in from..to {
        table.insert(scramble(i), i);
        let now = Instant::now();
        let ns = now.duration_since(last).as_nanos() as u64;
        last = now;
        if ns > SLOW_INSERT_NS {
            inserts.slow.insert(i, ns);
            let seen = preemptions();
            if seen == switches {
                inserts.slowest_ns = inserts.slowest_ns.max(ns);
            } else {
                inserts.preempted += 1;
                switches = seen;
            }
            last = Instant::now();
        } else {
            inserts.slowest_ns = inserts.slowest_ns.max(ns);
        }
    }
    inserts.mean_ns = begun.elapsed().as_nanos() as f64 / (to - from).max(1) as f64;
    inserts
}

/// Mean time of a lookup of a random present key, or of a missing one in an empty index.
fn lookups<T: Table>(table: &T, entries: u64, seed: u64) -> f64 {
    let mut rng = XorShift::new(seed);
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        let i = rng.below(entries.max(1));
        let found = black_box(table.lookup(scramble(i)));
        debug_assert_eq!(found, (entries > 0).then_some(i));
    }
    begun.elapsed().as_nanos() as f64 / LOOKUPS as f64
}

/// Lookup, memory and slowest insert over entries.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let all: Vec<&Record> = records.iter().collect();
    let entries = |r: &Record| match r.get("entries") {
        Some(crate::report::Value::Integer(entries)) => *entries as f64,
        _ => 0.0,
    };
    let panel = |figure: &str| Panel {
        title: "Index".to_owned(),
        x: Axis::log("entries"),
        y: Axis::log(&words(figure)),
        series: lines(&all, entries, figure),
    };
    ["ns_per_lookup", "bytes_per_entry", "worst_insert_ns"].map(panel).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_always_slow_counts() {
        let rep = |slow: &[(u64, u64)]| slow.iter().copied().collect::<SlowInserts>();
        let reps = [
            rep(&[(7, 90_000), (9, 5_000_000), (12, 30_000)]),
            rep(&[(7, 70_000), (12, 40_000), (13, 8_000_000)]),
            rep(&[(7, 95_000), (12, 2_000_000)]),
        ];
        assert_eq!(worst_of_all(&reps), Some(70_000));
        assert_eq!(worst_of_all(&reps[..1]), Some(5_000_000));
        assert_eq!(worst_of_all(&[rep(&[]), rep(&[(1, 30_000)])]), None);
    }

    #[test]
    fn steps_end_where_they_should() {
        let steps = |max_entries| Args { max_entries, memory_gib: None }.steps();
        assert_eq!(steps(16_000_000).len(), 7);
        assert_eq!(steps(1500), [0, 1000, 1500]);
    }
}
