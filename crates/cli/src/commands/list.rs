//! `forebay list`: lists imported pools and their mounts.

use crate::args::ListArgs;
use crate::control::client;
use crate::control::messages::{PoolInfo, ProcessInfo};
use crate::daemon::health;
use crate::error::Result;
use crate::{output, units};

/// Prints the pools, and returns the exit code of the worst one.
pub(crate) fn run(args: &ListArgs) -> Result<u8> {
    let daemons = client::daemons();
    let processes: Vec<ProcessInfo> =
        daemons.answering.iter().map(|process| process.info.clone()).collect();
    let pools = processes.iter().flat_map(|process| &process.pools);
    let mut code = pools.map(|pool| health::exit_code(pool.health)).max().unwrap_or(0);
    if processes.is_empty() {
        daemons.check_all_answer()?;
    } else {
        for silent in &daemons.silent {
            eprintln!("forebay: {}", silent.failure);
            code = health::UNUSABLE;
        }
    }
    if args.json {
        output::json(&processes)?;
        return Ok(code);
    }
    let mut rows = Vec::new();
    for process in &processes {
        for pool in &process.pools {
            rows.extend(rows_of(process, pool));
        }
    }
    match rows.is_empty() {
        true => output::line("no pools are in use; mount one with `forebay mount`"),
        false => output::print(&units::table(
            &[
                "POOL",
                "HEALTH",
                "DATASET",
                "MOUNTED AT",
                "OPTIONS",
                ">SIZE",
                ">AVAIL",
                ">PROCESS",
                "DEVICES",
            ],
            &rows,
        )),
    }
    tell_suspensions(&processes);
    Ok(code)
}

/// Says why pools are suspended.
fn tell_suspensions(processes: &[ProcessInfo]) {
    for pool in processes.iter().flat_map(|process| &process.pools) {
        if let Some(why) = &pool.suspended {
            output::line(&format!("{} is SUSPENDED: {why}", pool.name));
        }
    }
}

fn rows_of(process: &ProcessInfo, pool: &PoolInfo) -> Vec<Vec<String>> {
    let devices: Vec<String> = pool.devices.iter().map(|path| path.display().to_string()).collect();
    let row = |dataset: &str, at: String, options: String| {
        vec![
            pool.name.clone(),
            pool.health.to_string(),
            dataset.to_owned(),
            at,
            options,
            units::bytes(pool.total_bytes),
            units::bytes(pool.available_bytes),
            process.pid.to_string(),
            devices.join(" "),
        ]
    };
    let suspended = pool.suspended.as_ref().map(|_| "SUSPENDED");
    if pool.mounts.is_empty() {
        return vec![row("-", "-".to_owned(), suspended.unwrap_or("-").to_owned())];
    }
    let of_mount = |mount: &crate::control::messages::MountInfo| {
        let flags = [
            Some(if mount.read_only { "ro" } else { "rw" }),
            mount.kernel_cache.then_some("kernel_cache"),
            process.daemon.then_some("daemon"),
            suspended,
        ];
        let options = flags.into_iter().flatten().collect::<Vec<_>>().join(",");
        row(&mount.dataset, mount.place(), options)
    };
    pool.mounts.iter().map(of_mount).collect()
}
