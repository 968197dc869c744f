//! `smoke`: runs every bench with tiny numbers in a few seconds. It checks that all expected
//! subjects have figures, not their values.

use std::path::Path;

use forebay_sim::cache::capacity::Capacity;

use super::{
    cached_read, create, device, evict, freeing, fsync, hybrid, index, insight, keyed, memory,
    mirror, overflow, pool_read, r5, rebuild, restart, sim, strided_read, zap,
};
use crate::creates::Removals;
use crate::keys::Distribution;
use crate::options::{Common, Failure};
use crate::report::plot::{self, Panel};
use crate::report::{self, Record};
use crate::subjects::Value;
use crate::testbed::{Backing, BackingArgs, L2Args};

const SECONDS: f64 = 0.02;
const BLOCKS: u64 = 256;

fn small(common: &Common, threads: &[usize]) -> Common {
    Common { reps: 1, seconds: SECONDS, threads: threads.to_vec(), plot: None, ..common.clone() }
}

/// Runs every bench, checks its records, and draws its plot.
pub(crate) fn run(common: &Common) -> Result<Vec<Record>, Failure> {
    let two = small(common, &[2]);
    let one = small(common, &[1]);
    let distribution = vec![Distribution::Uniform, Distribution::Zipf];
    let mut read =
        cached_read::Args { blocks: BLOCKS, copy: vec![true, false], distribution, model: false };
    let mut all = Vec::new();
    let mut add = |name: &str, records: Vec<Record>, panels: Vec<Panel>, figure: &str| {
        check(name, &records, figure)?;
        draw(name, &panels)?;
        all.extend(records);
        Ok::<(), Failure>(())
    };

    let records = cached_read::run(&two, &read)?;
    add("cached-read", records.clone(), cached_read::panels(&read, &records), "ops_per_s")?;
    read.model = true;
    if crate::options::cpus() >= 2 {
        let records = cached_read::run(&two, &read)?;
        let panels = cached_read::panels(&read, &records);
        add("cached-read --model", records, panels, "predicted_ops_per_s")?;
    }
    let args = evict::Args {
        capacity: 512,
        factor: 2,
        distribution: read.distribution.clone(),
        value: vec![Value::Word, Value::Block],
    };
    for common in [&one, &two] {
        let records = evict::run(common, &args)?;
        add("evict", records.clone(), evict::panels(&records), "ops_per_s")?;
    }
    let args = index::Args { max_entries: 3000, memory_gib: Some(1) };
    let records = index::run(&one, &args)?;
    add("index", records.clone(), index::panels(&records), "ns_per_lookup")?;
    let args = insight::Args { capacity: 512, bytes: 1 << 20 };
    let records = insight::run(&two, &args)?;
    add("insight", records.clone(), insight::panels(&records), "ops_per_s")?;
    let args = freeing::Args {
        capacity_mib: 2,
        factor: 4,
        operations: 5000,
        distribution: Distribution::Zipf,
        spread: true,
        child: None,
    };
    let records = freeing::run(&two, &args)?;
    add("freeing", records.clone(), freeing::panels(&records), "ops_per_s")?;
    let args = overflow::Args { capacity_mib: 1, shifts: vec![6, 0] };
    let records = overflow::run(&two, &args)?;
    add("overflow", records.clone(), overflow::panels(&records), "insert_p99_ns")?;
    let args = memory::Args {
        max_entries: 2000,
        storm: false,
        bound_mib: 32,
        child_entries: None,
        child_storm: false,
    };
    let records = memory::run(&two, &args)?;
    let (fill, storm) = records.split_at(records.len().saturating_sub(1));
    add("memory", fill.to_vec(), memory::panels(fill), "index_bytes_per_entry")?;
    add("memory --storm", storm.to_vec(), memory::panels(fill), "rss_to_bound")?;
    let parts = [of_devices(&one, &two)?, of_pools(&two)?, of_hybrids(&one)?, of_policies(&one)?];
    for (name, records, panels, figure) in parts.into_iter().flatten() {
        add(name, records, panels, figure)?;
    }
    Ok(all)
}

/// A bench's name, records and plot, and the figure that every record must have.
type Part = (&'static str, Vec<Record>, Vec<Panel>, &'static str);

/// Benches of hit ratios, and of the cache for keys of any type.
fn of_policies(one: &Common) -> Result<Vec<Part>, Failure> {
    let args = r5::Args { capacity: 500, factor: 10, warmup_passes: 2 };
    let records = r5::run(one, &args)?;
    let panels = r5::panels(&records);
    let r5 = ("r5", records, panels, "loop_hit_ratio");
    let args = sim::Args {
        synthetic: vec!["loop-1.1".to_owned()],
        capacity: vec![Capacity::Percent(50.0), Capacity::Count(100)],
        ..sim::Args::default()
    };
    let records = sim::run(one, &args)?;
    let panels = sim::panels(&records);
    let sim = ("sim", records, panels, "hit_ratio");
    let records = keyed::run(one, &keyed::Args { entries: 100, factor: 4 })?;
    let panels = keyed::panels(&records);
    Ok(vec![r5, sim, ("keyed", records, panels, "ops_per_s")])
}

/// Benches of caches in memory and on a device.
fn of_hybrids(one: &Common) -> Result<Vec<Part>, Failure> {
    let args = rebuild::Args {
        entries: 1000,
        value_bytes: 64,
        folder: std::env::temp_dir(),
        direct: false,
        device: None,
        overwrite: false,
        child_fill: None,
        child_open: None,
    };
    let records = rebuild::run(one, &args)?;
    let panels = rebuild::panels(&records);
    let rebuild = ("rebuild", records, panels, "entries_per_s");
    let args = hybrid::Args {
        memory: 1 << 20,
        device: 32 << 20,
        value_bytes: 16_000,
        rounds: 4,
        pace: 0,
        tasks: 0,
        folder: std::env::temp_dir(),
    };
    let records = hybrid::run(one, &args)?;
    let panels = hybrid::panels(&records);
    Ok(vec![rebuild, ("hybrid", records, panels, "hit_ratio")])
}

/// Benches of devices.
fn of_devices(one: &Common, two: &Common) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    let args = strided_read::Args {
        device: vec![strided_read::ReadDevice::Memory, strided_read::ReadDevice::File],
        latency_us: 20,
        read_ahead: 4,
        in_flight: 256,
        region_kib: 256,
        file: None,
        model: crate::options::cpus() >= 2,
    };
    let records = strided_read::run(two, &args)?;
    let model = |r: &Record| r.number("predicted_ops_per_s").is_some();
    let (predicted, measured): (Vec<Record>, Vec<Record>) = records.into_iter().partition(model);
    let panels = strided_read::panels(&measured);
    parts.push(("strided-read", measured, panels, "cpu_s_per_million"));
    if args.model {
        let panels = strided_read::panels(&predicted);
        parts.push(("strided-read --model", predicted, panels, "predicted_ops_per_s"));
    }
    let args =
        device::Args { file: None, size_mib: 4, direct: vec![true, false], depths: vec![1, 32] };
    let records = device::run(one, &args)?;
    let panels = device::panels(&records);
    parts.push(("device", records, panels, "iops"));
    Ok(parts)
}

/// Benches of pools.
fn of_pools(two: &Common) -> Result<Vec<Part>, Failure> {
    const DEVICE_BYTES: u64 = 256 << 20;
    const CACHE_BYTES: u64 = 64 << 20;
    let mut parts = Vec::new();
    let args = create::Args {
        backing: BackingArgs {
            device: Backing::Memory,
            device_size: DEVICE_BYTES,
            overwrite: false,
        },
        l2: L2Args { l2: Some(Backing::Memory), l2_size: CACHE_BYTES, l2_warm: true },
        preload: 2000,
        count: 2000,
        cache: CACHE_BYTES,
        cache_leaves: None,
        dnode_caches: None,
        delay: 1,
        reads_per_s: 100_000,
        random_names: true,
        lookup: true,
        merge: true,
        limit: 60,
        cycle: 0,
        iteration: 500,
        removals: Removals::Newest,
        bucket: 10,
        warmup: 0,
        copies: 2,
        tunables: Vec::new(),
    };
    let records = create::run(two, &args)?;
    let panels = create::panels(&records);
    parts.push(("create", records, panels, "creates_per_s"));
    let records = create::run(two, &create::Args { cycle: 2, removals: Removals::Random, ..args })?;
    let panels = create::panels(&records);
    parts.push(("create --cycle", records, panels, "changes_per_s"));
    let args = zap::Args {
        count: 20_000,
        batch: 100,
        folder: std::env::temp_dir(),
        device_size: DEVICE_BYTES,
        cache: CACHE_BYTES,
        copies: 1,
        shape: false,
    };
    let records = zap::run(two, &args)?;
    let panels = zap::panels(&records);
    let (timed, shape) = records.split_at(records.len().saturating_sub(1));
    parts.push(("zap", timed.to_vec(), panels, "insert_per_s"));
    parts.push(("zap --shape", shape.to_vec(), Vec::new(), "bytes_per_entry"));
    let args = pool_read::Args {
        bytes: BLOCKS * 8192,
        record: 8192,
        distribution: vec![Distribution::Uniform],
    };
    let records = pool_read::run(two, &args)?;
    let panels = pool_read::panels(&records);
    parts.push(("pool-read", records, panels, "ops_per_s"));
    parts.push(of_mirrors(two)?);
    parts.push(of_fsyncs(two)?);
    let backing = BackingArgs { device: Backing::Memory, device_size: 64 << 20, overwrite: false };
    let args = restart::Args {
        bytes_each: BLOCKS * 8192,
        delay_us: 100,
        crash: false,
        // It need not get warm.
        give_up_s: 0.3,
        backing,
        l2_folder: std::env::temp_dir(),
    };
    parts.push(("restart", restart::run(two, &args)?, Vec::new(), "warm_iops"));
    Ok(parts)
}

/// The bench of fsyncs beside a scrub.
fn of_fsyncs(two: &Common) -> Result<Part, Failure> {
    let backing = BackingArgs { device: Backing::Memory, device_size: 256 << 20, overwrite: false };
    let args = fsync::Args { bytes: 4 << 20, write: 4096, cache: 64 << 20, scrub_rate: 0, backing };
    let records = fsync::run(two, &args)?;
    let panels = fsync::panels(&records);
    Ok(("fsync", records, panels, "fsync_p99_ns"))
}

/// The bench of mirrors and resilvers.
fn of_mirrors(two: &Common) -> Result<Part, Failure> {
    let args = mirror::Args {
        bytes: 4 << 20,
        record: vec![128 << 10],
        lanes: 4,
        read_us: 200,
        write_rate: 200_000_000,
    };
    let records = mirror::run(two, &args)?;
    let panels = mirror::panels(&records);
    Ok(("mirror", records, panels, "bytes_per_s"))
}

fn check(bench: &str, records: &[Record], figure: &str) -> Result<(), Failure> {
    if records.is_empty() {
        return Err(format!("{bench} has no records").into());
    }
    for record in records {
        let found = record.number(figure);
        let sound = found.is_some_and(|value| value.is_finite() && value >= 0.0);
        if !sound {
            let subject = record.subject();
            return Err(format!("{bench}: {subject} has {figure} = {found:?}").into());
        }
    }
    Ok(())
}

fn draw(bench: &str, panels: &[Panel]) -> Result<(), Failure> {
    let path = std::env::temp_dir().join(format!("forebay-smoke-{}.svg", std::process::id()));
    let drawn = plot::write(&path, panels);
    let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
    remove(&path);
    drawn?;
    if bytes == 0 { Err(format!("the plot of {bench} is empty").into()) } else { Ok(()) }
}

fn remove(path: &Path) {
    // An error has no consequence: this is the system's temporary folder.
    let _ = std::fs::remove_file(path);
}

/// Prints the records by bench, since their tables have different columns.
pub(crate) fn print(records: &[Record], as_json: bool) {
    let mut rest = records;
    while let Some(first) = rest.first() {
        let bench = first.get("bench");
        let count = rest.iter().take_while(|r| r.get("bench") == bench).count();
        report::print(&rest[..count], as_json);
        rest = &rest[count..];
        if !as_json {
            println!();
        }
    }
}
