//! `forebay-bench`: the workloads of Forebay's field reports, beside peers, baselines and
//! yardsticks. `docs/benchmarks.md` says how to run and read each.
//!
//! Every bench compares its subjects in one run, interleaved, prints medians, and
//! states ratios: absolute times are for the reader, ratios are for claims.

// A bench measures wall time, starts threads of its own and holds peers that bring their own
// locks: nothing here is ever run under a model checker.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod baseline;
mod benches;
mod blocks;
mod creates;
mod freeing;
mod hybrids;
mod index;
mod iops;
mod keys;
mod lock_counts;
mod measure;
mod model;
mod names;
mod options;
mod report;
mod strided;
mod subjects;
mod test_file;
mod testbed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use benches::{
    cached_read, create, device, evict, freeing as freeing_bench, hybrid, index as index_bench,
    memory, overflow, pool_read, r5, rebuild, restart, sim, smoke, strided_read, zap,
};
use options::{Common, Failure};
use report::Record;
use report::plot::{self, Panel};

/// The workloads of Forebay's field reports, with peers, baselines and plots.
#[derive(Parser)]
#[command(name = "forebay-bench", version, about)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All blocks resident: throughput of hits (R1).
    CachedRead(cached_read::Args),
    /// Objects and their names in 32 directories, as the cache fills, overflows, and cold (R5).
    Create(create::Args),
    /// Random reads of a file at depths from 1 to 256, beside fio's io_uring engine.
    Device(device::Args),
    /// Get or insert, working set larger than the cache: throughput and hit ratio.
    Evict(evict::Args),
    /// Freeing evicted blocks at once or later, over several indexes (R3).
    Freeing(freeing_bench::Args),
    /// Caches in memory and on a device: hit ratio by level, bytes written, metadata beside a
    /// stream.
    Hybrid(hybrid::Args),
    /// Lookup, memory and slowest insert of indexes as they grow (R4).
    Index(index_bench::Args),
    /// What an entry costs, and whether a hard bound holds under a storm of inserts.
    Memory(memory::Args),
    /// How far past its target the cache may grow before inserters wait (R1's reviewer).
    Overflow(overflow::Args),
    /// Cached reads of open objects through the pool's API, beside memcpy.
    PoolRead(pool_read::Args),
    /// A metadata loop against a stream read once: hit ratio of the loop (R5).
    R5(r5::Args),
    /// A cache on a device, killed and opened again: what it knows, and how soon (R4).
    Rebuild(rebuild::Args),
    /// How soon a pool on a slow device is fast again after a restart, with a cache device and
    /// without (R1's job).
    Restart(restart::Args),
    /// Hit ratios of our cache, the textbook's policies and the optimum, on traces.
    Sim(sim::Args),
    /// Strided reads from 256 threads with read-ahead under I/O roots (R2).
    StridedRead(strided_read::Args),
    /// Names into directories, lookups, and out again, beside redb and fjall (R5).
    Zap(zap::Args),
    /// Every bench with tiny numbers: do they run?
    Smoke,
}

fn run(cli: &Cli) -> Result<(Vec<Record>, Vec<Panel>), Failure> {
    let common = &cli.common;
    Ok(match &cli.command {
        Command::CachedRead(args) => {
            let records = cached_read::run(common, args)?;
            let panels = cached_read::panels(args, &records);
            (records, panels)
        }
        Command::Create(args) => with_panels(create::run(common, args)?, create::panels),
        Command::Device(args) => with_panels(device::run(common, args)?, device::panels),
        Command::Evict(args) => with_panels(evict::run(common, args)?, evict::panels),
        Command::Freeing(args) => {
            with_panels(freeing_bench::run(common, args)?, freeing_bench::panels)
        }
        Command::Hybrid(args) => with_panels(hybrid::run(common, args)?, hybrid::panels),
        Command::Index(args) => with_panels(index_bench::run(common, args)?, index_bench::panels),
        Command::Memory(args) => with_panels(memory::run(common, args)?, memory::panels),
        Command::Overflow(args) => with_panels(overflow::run(common, args)?, overflow::panels),
        Command::PoolRead(args) => with_panels(pool_read::run(common, args)?, pool_read::panels),
        Command::R5(args) => with_panels(r5::run(common, args)?, r5::panels),
        Command::Rebuild(args) => with_panels(rebuild::run(common, args)?, rebuild::panels),
        Command::Restart(args) => (restart::run(common, args)?, Vec::new()),
        Command::Sim(args) => with_panels(sim::run(common, args)?, sim::panels),
        Command::StridedRead(args) => {
            with_panels(strided_read::run(common, args)?, strided_read::panels)
        }
        Command::Zap(args) => with_panels(zap::run(common, args)?, zap::panels),
        Command::Smoke => (smoke::run(common)?, Vec::new()),
    })
}

fn with_panels(
    records: Vec<Record>,
    panels: impl Fn(&[Record]) -> Vec<Panel>,
) -> (Vec<Record>, Vec<Panel>) {
    let panels = panels(&records);
    (records, panels)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = run(&cli).and_then(|(records, panels)| {
        // A run may have rows of several benches, which have different columns.
        smoke::print(&records, cli.common.json);
        if matches!(cli.command, Command::Sim(_)) && !cli.common.json {
            report::print(&sim::means(&records), false);
        }
        match &cli.common.plot {
            Some(path) if !panels.is_empty() => plot::write(path, &panels),
            _ => Ok(()),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("forebay-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
