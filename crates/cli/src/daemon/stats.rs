//! Converts statistics of the libraries to messages.

use std::collections::BTreeMap;

use forebay_cache::Class;
use forebay_pool::format::{CacheMode, Compression, FailMode, SyncMode};
use forebay_pool::{BlockCache, L2Device, L2DeviceState, Pool};

use super::{Daemon, ImportedPool, MountedDataset, health, jobs, mount_info};
use crate::control::messages::{
    CacheStateStats, CacheStats, DatasetInfo, DeviceInfo, ErrorCounts, IntentLogStats,
    L2DeviceInfo, MemoryHits, MountStats, PoolStats, PoolStatus, ProcessStats, StoreRequests,
    StoredInfo, TunableInfo,
};

/// Statistics of the whole process.
pub(crate) fn process(daemon: &Daemon) -> ProcessStats {
    let pools = daemon.pools();
    let mut stats = ProcessStats {
        pid: std::process::id(),
        at_ns: uptime_ns(daemon),
        memory_bytes: daemon.plan.total_bytes,
        resident_bytes: forebay_base::memory::rss_bytes().unwrap_or(0),
        cache: cache_stats(&daemon.cache),
        in_memory: MemoryHits::default(),
        pools: pools.iter().map(|imported| pool_stats(&imported.pool())).collect(),
        mounts: pools
            .iter()
            .flat_map(|imported| imported.mounts())
            .map(|mount| mount_stats(&mount))
            .collect(),
    };
    stats.in_memory = stats.memory_hits(None);
    stats
}

/// Time since the process started.
pub(super) fn uptime_ns(daemon: &Daemon) -> u64 {
    u64::try_from(daemon.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Statistics of the cache.
pub(crate) fn cache_stats(cache: &BlockCache) -> CacheStats {
    let stats = cache.cache().usage();
    let name = |class| if class == Class::Metadata { "metadata" } else { "data" };
    let of = |class| {
        let states =
            stats.states.iter().filter(|s| s.class == class && !s.state.ends_with("ghost"));
        states.map(|s| s.bytes).sum()
    };
    CacheStats {
        bound_bytes: cache.bound_bytes(),
        capacity_bytes: stats.capacity,
        hits: stats.hits(),
        misses: stats.misses(),
        metadata_bytes: of(Class::Metadata),
        data_bytes: of(Class::Data),
        dirty_bytes: cache.dirty_bytes(),
        ghosts: stats.ghosts(),
        metadata_target_bytes: stats.metadata_target,
        states: stats
            .states
            .iter()
            .map(|s| CacheStateStats {
                state: s.state.to_owned(),
                class: name(s.class).to_owned(),
                bytes: s.bytes,
                blocks: s.blocks,
                sublists: sublists(s),
            })
            .collect(),
        counters: named(
            stats.counters.iter().map(|c| (c.name, c.label.unwrap_or_default(), c.value)),
        ),
    }
}

/// Blocks of each sublist.
pub(super) fn sublists(state: &forebay_cache::StateStats) -> Vec<u64> {
    state.sublist_traffic.iter().map(|(added, removed)| added.saturating_sub(*removed)).collect()
}

/// Maps counters by `name` or `name.label`.
fn named<'a>(counters: impl Iterator<Item = (&'a str, &'a str, u64)>) -> BTreeMap<String, u64> {
    let key = |name: &str, label: &str| {
        if label.is_empty() { name.to_owned() } else { format!("{name}.{label}") }
    };
    counters.map(|(name, label, value)| (key(name, label), value)).collect()
}

fn sum(counters: &[(&'static str, &'static str, u64)], wanted: &str) -> u64 {
    counters.iter().filter(|(name, ..)| *name == wanted).map(|(.., value)| value).sum()
}

/// Why a pool is suspended, and what to do.
pub(crate) fn why_suspended(pool: &Pool) -> Option<String> {
    let suspension = pool.suspension()?;
    let name = pool.name();
    Some(match suspension.resumable {
        true => format!("{suspension}; make the device work, then run `forebay clear {name}`"),
        false => format!("{suspension}; run `forebay export {name}`, and mount the pool again"),
    })
}

pub(super) fn pool_stats(pool: &Pool) -> PoolStats {
    let stats = pool.stats();
    PoolStats {
        name: pool.name().to_owned(),
        txg: stats.synced_txg,
        total_bytes: stats.total_bytes,
        allocated_bytes: stats.allocated_bytes,
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        dirty_bytes: stats.dirty_bytes,
        suspended: why_suspended(pool),
        health: pool.health().state,
        l2_devices: l2_devices(pool),
        throttled: stats.throttled.count,
        throttled_p99_ns: stats.throttled.p99_ns,
        quiesce_ns: stats.quiesced.sum_ns,
        sync_ns: stats.synced.sum_ns,
        counters: pool_counters(pool, &stats),
    }
}

/// Merges the counter tables of the parts of a pool. Counters with the same name are added. Those
/// of an object store have a prefix, since devices of other kinds count requests too.
fn pool_counters(pool: &Pool, stats: &forebay_pool::PoolStats) -> BTreeMap<String, u64> {
    let stores = pool.devices().into_iter().flat_map(|device| device.store_counters);
    let stores = stores.map(|(name, label, value)| (format!("object_{name}"), label, value));
    let stores: Vec<_> = stores.collect();
    let mut all = named(stores.iter().map(|(name, label, value)| (&**name, *label, *value)));
    for (name, label, value) in &stats.counters {
        let key = if label.is_empty() { (*name).to_owned() } else { format!("{name}.{label}") };
        *all.entry(key).or_insert(0) += value;
    }
    all
}

pub(super) fn mount_stats(mount: &MountedDataset) -> MountStats {
    let (files, served) = (mount.files_stats(), mount.mount_stats());
    let total =
        |wanted: &str| served.counters.iter().filter(|c| c.name == wanted).map(|c| c.value).sum();
    let counters = served.counters.iter().map(|c| (c.name, c.label.unwrap_or_default(), c.value));
    let mut counters = named(counters);
    for (name, label, value) in &files.counters {
        let key = if label.is_empty() {
            format!("files.{name}")
        } else {
            format!("files.{name}.{label}")
        };
        counters.insert(key, *value);
    }
    MountStats {
        pool: mount.pool.clone(),
        dataset: mount.dataset.clone(),
        at: mount.current_at(),
        // FORGET requests are not operations of users.
        operations: served
            .counters
            .iter()
            .filter(|c| c.name == "requests" && c.label != Some("forget"))
            .map(|c| c.value)
            .sum(),
        read_bytes: total("read_bytes"),
        write_bytes: total("write_bytes"),
        inodes: files.inodes,
        inode_bytes: files.inode_bytes,
        counters,
    }
}

/// Status of a pool; `imported` if it is in the registry of a daemon.
pub(crate) fn pool_status(pool: &Pool, imported: Option<&ImportedPool>, state: &str) -> PoolStatus {
    let stats = pool.stats();
    let counters = &stats.counters;
    let (health, logged) = (pool.health(), pool.damage());
    let device = |device: forebay_pool::PoolDevice| DeviceInfo {
        guid: device.guid,
        number: device.number,
        path: device.path,
        size_bytes: device.size_bytes,
        engine: device.engine,
        direct: device.direct,
        buffered: device.buffered,
        physical_bytes: device.physical_bytes,
        missing: device.missing,
        mirror: device.mirror,
        log: device.log,
        state: device.state.name().to_owned(),
        read_errors: device.read_errors,
        write_errors: device.write_errors,
        checksum_errors: device.checksum_errors,
        missed_from: device.missed_from,
        missed_to: device.missed_to,
        replaces: device.replaces,
        object_store: device.object_store,
        requests: store_requests(&device.store_counters),
        stored: device.stored.map(stored_info),
    };
    PoolStatus {
        name: pool.name().to_owned(),
        guid: pool.guid(),
        state: state.to_owned(),
        read_only: pool.is_read_only(),
        sector_bytes: pool.sector_bytes(),
        health: health.state,
        health_reasons: health.reasons,
        damage: health::describe(pool, &logged.damage),
        damage_unlisted: logged.unlisted,
        suspended: why_suspended(pool),
        txg: stats.synced_txg,
        total_bytes: stats.total_bytes,
        allocated_bytes: stats.allocated_bytes,
        deferred_bytes: stats.deferred_bytes,
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        dirty_bytes: stats.dirty_bytes,
        devices: pool.devices().into_iter().map(device).collect(),
        l2_devices: l2_devices(pool),
        import_notes: pool.import_notes().to_vec(),
        l2_devices_damage: pool.l2_devices_damage(),
        datasets: datasets(pool),
        mounts: imported
            .map(|imported| imported.mounts().iter().map(|mount| mount_info(mount)).collect())
            .unwrap_or_default(),
        errors: ErrorCounts {
            reads: sum(counters, "read_errors"),
            checksums: sum(counters, "verify_failures"),
            writes: sum(counters, "write_errors"),
            healed: sum(counters, "healed"),
            lost: sum(counters, "blocks_lost"),
        },
        log: IntentLogStats {
            commits: sum(counters, "commits"),
            bytes: sum(counters, "bytes"),
            to_txg: sum(counters, "to_txg"),
            replayed: sum(counters, "replayed"),
        },
        scrub: jobs::scrub_info(&pool.scrub_status()),
        resilver: Some(jobs::resilver_info(pool)).filter(|one| one.active || one.blocks > 0),
        follow: imported.and_then(|imported| Some(imported.following.as_ref()?.info(imported))),
    }
}

fn stored_info(stored: forebay_io::Stored) -> StoredInfo {
    let forebay_io::Stored { objects, bytes, live_bytes } = stored;
    StoredInfo { objects, bytes, live_bytes }
}

/// The requests to an object store, by kind, of its counters.
fn store_requests(counters: &[(&'static str, &'static str, u64)]) -> Vec<StoreRequests> {
    let value = |name: &str, kind: &str| {
        let found = counters.iter().find(|(is, of, _)| *is == name && *of == kind);
        found.map_or(0, |(_, _, value)| *value)
    };
    let kinds = counters.iter().filter(|(name, ..)| *name == "requests").map(|(_, kind, _)| *kind);
    let requests = |kind: &str| StoreRequests {
        kind: kind.to_owned(),
        count: value("requests", kind),
        bytes: value("request_bytes", kind),
        retries: value("retries", kind),
    };
    kinds.map(requests).collect()
}

/// Describes the L2 devices of a pool.
pub(crate) fn l2_devices(pool: &Pool) -> Vec<L2DeviceInfo> {
    pool.l2_devices().into_iter().map(|device| l2_device(pool.name(), device)).collect()
}

/// Describes an L2 device of the pool with that name.
pub(crate) fn l2_device(pool: &str, device: L2Device) -> L2DeviceInfo {
    let why = match &device.state {
        L2DeviceState::Failed(why) | L2DeviceState::Unavailable(why) => Some(why.clone()),
        _ => None,
    };
    let stats = device.stats.unwrap_or_default();
    L2DeviceInfo {
        pool: pool.to_owned(),
        number: format!("{:016x}", device.guid),
        path: device.path,
        state: device.state.name().to_owned(),
        why,
        size_bytes: device.size_bytes,
        used_bytes: stats.used_bytes,
        records: stats.records,
        rebuilt_segments: stats.rebuild.segments,
        segments: stats.rebuild.segments_total,
        rebuild_ns: stats.rebuild.elapsed_ns,
        hits: stats.hits,
        lookups: stats.lookups,
        hit_ratio: stats.hits as f64 / stats.lookups.max(1) as f64,
        written_bytes: stats.written_bytes,
        memory_bytes: stats.memory_bytes,
        counters: named(stats.counters.into_iter()),
    }
}

fn datasets(pool: &Pool) -> Vec<DatasetInfo> {
    let unknown = |name: &str, error: String| DatasetInfo {
        name: name.to_owned(),
        objects: 0,
        allocated_bytes: 0,
        record_bytes: 0,
        compression: "?".to_owned(),
        copies: 0,
        sync: "?".to_owned(),
        failmode: "?".to_owned(),
        l2: "?".to_owned(),
        error: Some(error),
    };
    let names = match pool.datasets() {
        Ok(names) => names,
        Err(error) => return vec![unknown("(all)", error.to_string())],
    };
    let info = |name: String| -> DatasetInfo {
        let known = pool.dataset(&name).and_then(|dataset| Ok((dataset.settings()?, dataset)));
        match known {
            Err(error) => unknown(&name, error.to_string()),
            Ok((settings, dataset)) => DatasetInfo {
                objects: dataset.object_count(),
                allocated_bytes: dataset.allocated_bytes(),
                record_bytes: settings.record_bytes,
                compression: match settings.data_compression {
                    Compression::Off => "off",
                    Compression::Lz4 => "lz4",
                    Compression::Zstd => "zstd",
                }
                .to_owned(),
                copies: settings.data_copies,
                sync: match settings.sync {
                    SyncMode::Log => "log",
                    SyncMode::Txg => "txg",
                }
                .to_owned(),
                failmode: match settings.fail_mode {
                    FailMode::Wait => "wait",
                    FailMode::Continue => "continue",
                }
                .to_owned(),
                l2: match settings.l2 {
                    CacheMode::All => "all",
                    CacheMode::Metadata => "metadata",
                    CacheMode::None => "none",
                }
                .to_owned(),
                error: None,
                name,
            },
        }
    };
    names.into_iter().map(info).collect()
}

/// Lists the tunables of the cache and of a pool.
pub(crate) fn tunables(cache: &BlockCache, pool: &Pool) -> Vec<TunableInfo> {
    let of = |of: &'static str| {
        move |(row, value): (&'static forebay_base::tunables::TunableRow, String)| TunableInfo {
            of: of.to_owned(),
            name: row.name.to_owned(),
            value,
            default: row.default_text(),
            range: row.range_text(),
            unit: row.unit.to_owned(),
            settable: row.when.to_string(),
            help: row.help.to_owned(),
        }
    };
    let cache = cache.cache().tunables().entries().into_iter().map(of("cache"));
    cache.chain(pool.tunables().into_iter().map(of("pool"))).collect()
}
