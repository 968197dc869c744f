//! `forebay-bench`: the workloads of Forebay's field reports, with peers, baselines and yardsticks.
//!
//! Each bench compares its subjects in one run, interleaved, and prints medians and ratios. Claims
//! are ratios; absolute figures are for the reader. `docs/benchmarks.md` describes each bench.

// A bench measures wall time, starts threads, and contains peers with their own locks. It never
// runs under a model checker.
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
mod null_mount;
mod object_requests;
mod options;
mod report;
mod served_device;
mod strided;
mod subjects;
mod test_file;
mod testbed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use benches::{
    cached_read, create, device, evict, freeing as freeing_bench, fsync, hybrid,
    index as index_bench, insight, keyed, memory, mirror, overflow, pool_read, r5, rebuild,
    restart, sim, smoke, strided_read, zap,
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
    /// Throughput of hits when all blocks are resident (R1).
    CachedRead(cached_read::Args),
    /// Creates of objects and names while the cache fills, when it is full, and cold (R5).
    Create(create::Args),
    /// Random reads of a file at depths from 1 to 256, compared with fio.
    Device(device::Args),
    /// Get or insert with a working set larger than the cache: throughput and hit ratio.
    Evict(evict::Args),
    /// Freeing of evicted blocks at once or later, over several indexes (R3).
    Freeing(freeing_bench::Args),
    /// Latency of fsync beside a scrub, compared with that of an idle pool.
    Fsync(fsync::Args),
    /// Caches in memory and on a device: hit ratios and bytes written.
    Hybrid(hybrid::Args),
    /// Lookup time, memory and slowest insert of growing indexes (R4).
    Index(index_bench::Args),
    /// What the flight recorder and a trace cost, on against off.
    Insight(insight::Args),
    /// The cache for keys of any type, with expiry and a listener, compared with moka.
    Keyed(keyed::Args),
    /// Memory of an entry, and peak memory under a hard bound.
    Memory(memory::Args),
    /// A mirror of two devices compared with one, and resilvers, idle and beside R1's job.
    Mirror(mirror::Args),
    /// Throughput and latency of inserts for each overflow limit (R1's reviewer).
    Overflow(overflow::Args),
    /// Mount the null file system, to measure the limit that FUSE sets on this machine.
    NullMount(null_mount::Args),
    /// Puts or ranged gets of an object store, with nothing above them.
    ObjectRequests(object_requests::Args),
    /// Cached reads of open objects through the pool's API, compared with memcpy.
    PoolRead(pool_read::Args),
    /// Hit ratio of a metadata loop against a stream that is read once (R5).
    R5(r5::Args),
    /// Rebuild of a cache on a device after a kill (R4).
    Rebuild(rebuild::Args),
    /// Time until a pool on a slow device is warm after a restart, with and without L2 (R4).
    Restart(restart::Args),
    /// Hit ratios of Forebay's cache, textbook policies and the optimum on traces.
    Sim(sim::Args),
    /// Strided reads with read-ahead from 256 threads under I/O roots (R2).
    StridedRead(strided_read::Args),
    /// Inserts, lookups and removals of names, compared with redb and fjall (R5).
    Zap(zap::Args),
    /// Runs every bench with tiny numbers.
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
        Command::Fsync(args) => with_panels(fsync::run(common, args)?, fsync::panels),
        Command::Hybrid(args) => with_panels(hybrid::run(common, args)?, hybrid::panels),
        Command::Index(args) => with_panels(index_bench::run(common, args)?, index_bench::panels),
        Command::Keyed(args) => with_panels(keyed::run(common, args)?, keyed::panels),
        Command::Memory(args) => with_panels(memory::run(common, args)?, memory::panels),
        Command::Mirror(args) => with_panels(mirror::run(common, args)?, mirror::panels),
        Command::NullMount(args) => {
            null_mount::run(args)?;
            (Vec::new(), Vec::new())
        }
        Command::ObjectRequests(args) => (object_requests::run(common, args)?, Vec::new()),
        Command::Overflow(args) => with_panels(overflow::run(common, args)?, overflow::panels),
        Command::Insight(args) => with_panels(insight::run(common, args)?, insight::panels),
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
        // A run may have rows of several benches with different columns.
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
