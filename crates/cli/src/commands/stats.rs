//! `forebay stats`: statistics of daemons, once or repeatedly.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::args::StatsArgs;
use crate::control::Request;
use crate::control::client::Process;
use crate::control::client::processes_of;
use crate::control::messages::ProcessStats;
use crate::error::Result;
use crate::{output, units};

/// Interval at which the stop flag is checked.
const STOP_PERIOD: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &StatsArgs) -> Result<()> {
    let processes = processes_of(args.pool.as_deref())?;
    let mut before = sample(&processes)?;
    let Some(seconds) = args.watch else {
        return show(args, &before, None);
    };
    let stop = output::interruptible()?;
    show(args, &before, None)?;
    loop {
        let until = Instant::now() + Duration::from_secs(u64::from(seconds));
        while Instant::now() < until {
            if output::is_raised(&stop) {
                return Ok(());
            }
            std::thread::sleep(STOP_PERIOD);
        }
        let after = sample(&processes)?;
        if std::io::stdout().is_terminal() && !args.json {
            output::print("\x1b[H\x1b[2J");
        }
        show(args, &after, Some(&before))?;
        before = after;
    }
}

fn sample(processes: &[Process]) -> Result<Vec<ProcessStats>> {
    processes.iter().map(|process| process.ask(&Request::Stats)).collect()
}

fn show(args: &StatsArgs, now: &[ProcessStats], before: Option<&[ProcessStats]>) -> Result<()> {
    if args.json {
        return output::json(&now);
    }
    for (at, info) in now.iter().enumerate() {
        let before = before.and_then(|before| before.get(at));
        output::print(&text(info, before));
    }
    Ok(())
}

fn text(info: &ProcessStats, before: Option<&ProcessStats>) -> String {
    let mut out = format!(
        "process {}: {} of {} of memory in use\n",
        info.pid,
        units::bytes(info.resident_bytes),
        units::bytes(info.memory_bytes)
    );
    out.push_str(&cache_text(info, before));
    out.push('\n');
    let pools: Vec<Vec<String>> = info.pools.iter().map(pool_row).collect();
    let headings = [
        "POOL",
        ">TXG",
        ">SIZE",
        ">USED",
        ">AVAIL",
        ">DIRTY",
        ">THROTTLED",
        ">DELAY P99",
        "HEALTH",
    ];
    out.push_str(&units::table(&headings, &pools));
    out.push('\n');
    let devices: Vec<_> = info.pools.iter().flat_map(|pool| pool.l2_devices.clone()).collect();
    if !devices.is_empty() {
        out.push_str(&super::l2::table(&devices));
        out.push('\n');
    }
    out.push_str(&mounts_text(info, before));
    out
}

fn cache_text(info: &ProcessStats, before: Option<&ProcessStats>) -> String {
    let cache = &info.cache;
    let memory = info.memory_hits(before);
    let mut out = format!(
        "cache: {} bound, {} data, {} metadata (may take {}), {} dirty; {} of {} requested blocks were in memory ({}), read-ahead not counted; {} ghosts\n",
        units::bytes(cache.bound_bytes),
        units::bytes(cache.data_bytes),
        units::bytes(cache.metadata_bytes),
        units::bytes(cache.metadata_target_bytes),
        units::bytes(cache.dirty_bytes),
        units::count(memory.found as f64),
        units::count(memory.wanted as f64),
        units::percent(memory.found, memory.wanted),
        units::count(cache.ghosts as f64)
    );
    let states: Vec<Vec<String>> = cache
        .states
        .iter()
        .filter(|state| state.blocks > 0)
        .map(|s| {
            vec![
                s.state.clone(),
                s.class.clone(),
                units::bytes(s.bytes),
                units::count(s.blocks as f64),
                shortest_and_longest(&s.sublists),
            ]
        })
        .collect();
    out.push_str(&units::table(&["STATE", "CLASS", ">BYTES", ">BLOCKS", ">SUBLISTS"], &states));
    out
}

/// Blocks of the shortest and of the longest sublist.
fn shortest_and_longest(sublists: &[u64]) -> String {
    match (sublists.iter().min(), sublists.iter().max()) {
        (Some(shortest), Some(longest)) => format!(
            "{} of {} to {}",
            sublists.len(),
            units::count(*shortest as f64),
            units::count(*longest as f64)
        ),
        _ => "-".to_owned(),
    }
}

fn pool_row(pool: &crate::control::messages::PoolStats) -> Vec<String> {
    vec![
        pool.name.clone(),
        pool.txg.to_string(),
        units::bytes(pool.total_bytes),
        units::bytes(pool.allocated_bytes),
        units::bytes(pool.available_bytes),
        units::bytes(pool.dirty_bytes),
        units::count(pool.throttled as f64),
        units::nanoseconds(pool.throttled_p99_ns),
        pool.health.to_string(),
    ]
}

/// Formats mounts: totals, or rates since the sample `before`.
fn mounts_text(info: &ProcessStats, before: Option<&ProcessStats>) -> String {
    let rows: Vec<Vec<String>> = info
        .mounts
        .iter()
        .map(|mount| {
            let earlier = before.and_then(|before| {
                let earlier = before.mounts.iter().find(|earlier| earlier.at == mount.at)?;
                let seconds = info.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
                (seconds > 0.0).then_some((earlier, seconds))
            });
            let shown = |of: &dyn Fn(&crate::control::messages::MountStats) -> u64| match earlier {
                Some((earlier, seconds)) => of(mount).saturating_sub(of(earlier)) as f64 / seconds,
                None => of(mount) as f64,
            };
            vec![
                mount.at.display().to_string(),
                format!("{}/{}", mount.pool, mount.dataset),
                units::count(shown(&|mount| mount.operations)),
                units::bytes(shown(&|mount| mount.read_bytes) as u64),
                units::bytes(shown(&|mount| mount.write_bytes) as u64),
                units::count(mount.inodes as f64),
                units::bytes(mount.inode_bytes),
            ]
        })
        .collect();
    let headings = match before {
        Some(_) => ["MOUNT", "OF", ">OP/S", ">READ/S", ">WRITE/S", ">INODES", ">INODE MEM"],
        None => ["MOUNT", "OF", ">OPS", ">READ", ">WRITTEN", ">INODES", ">INODE MEM"],
    };
    units::table(&headings, &rows)
}
