//! Finds pools that no daemon has imported, without the paths of their devices.
//!
//! * [`candidates`]: block devices and files that may hold a label.
//! * [`known`]: where pools were last, for files in any folder; only a hint.
//! * Here: which pools the candidates hold, which devices they lack, and which pool a name means.
//!
//! A label decides, whatever a path or a hint says. Two paths with the label of one device are
//! named and not used: one is a copy, or both are one device.
//!
//! It opens candidates for reading only, and without the lock of a pool. A device that a process
//! uses is left out: its daemon says what it has.

pub(crate) mod candidates;
pub(crate) mod known;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_pool::format::label::LOG_VDEV;
use forebay_pool::{HostId, LabelInfo};

use crate::error::{Failure, Result};
use crate::{object_stores, pools};
use known::KnownPool;

/// A device of a pool, and where it was found: nowhere if it is missing, once, or at several paths.
pub(crate) struct FoundDevice {
    pub(crate) guid: u64,
    /// The number of its top-level vdev.
    pub(crate) vdev: u16,
    pub(crate) paths: Vec<PathBuf>,
}

/// A pool, by the newest of the labels that were found.
pub(crate) struct FoundPool {
    pub(crate) label: LabelInfo,
    pub(crate) devices: Vec<FoundDevice>,
    /// Paths of devices that have a label of the pool, which the newest label does not list.
    pub(crate) strangers: Vec<PathBuf>,
}

/// What a search has found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) pools: Vec<FoundPool>,
    /// Devices with a label that cannot be read, and why.
    pub(crate) unreadable: Vec<String>,
}

impl FoundPool {
    /// Paths of the devices that were found.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().filter_map(|device| device.paths.first().cloned()).collect()
    }

    /// `online` with all devices, `degraded` if each vdev has some, else `incomplete`.
    pub(crate) fn state(&self) -> &'static str {
        let is_there = |device: &FoundDevice| !device.paths.is_empty();
        // What the loss of a log device means is known after an import has read the newest group.
        let has_some = |vdev| {
            vdev >= LOG_VDEV || self.devices.iter().any(|one| one.vdev == vdev && is_there(one))
        };
        match () {
            () if self.devices.iter().all(is_there) => "online",
            () if self.devices.iter().all(|one| has_some(one.vdev)) => "degraded",
            () => "incomplete",
        }
    }

    /// Whether the pool was exported, and what an import needs if not.
    pub(crate) fn ownership(&self) -> String {
        let label = &self.label;
        match (label.active, label.host.id == HostId::of_this_host().id) {
            (false, _) => "exported".to_owned(),
            (true, true) => "not exported: an import replays its intent log".to_owned(),
            (true, false) => {
                format!("not exported by host {}: an import needs --force", label.host)
            }
        }
    }

    /// Whether this is the pool of that name, or guid in 16 hexadecimal digits.
    fn is_called(&self, spec: &str) -> bool {
        self.label.pool_name == spec || format!("{:016x}", self.label.pool_guid) == spec
    }

    /// # Errors
    /// If a device was found at several paths.
    fn check_unique(&self) -> Result<()> {
        let Some(twice) = self.devices.iter().find(|device| device.paths.len() > 1) else {
            return Ok(());
        };
        Err(Failure::new(format!(
            "pool {}: {} hold the label of one device: one is a copy, or both are one device; give the paths of the devices \
             to use, joined by `:`",
            self.label.pool_name,
            list(&twice.paths)
        )))
    }
}

/// Pools on these paths, by name and guid.
pub(crate) fn on(paths: &[PathBuf]) -> Found {
    let mut found = Found::default();
    let mut labelled: BTreeMap<(String, u64), Vec<(LabelInfo, PathBuf)>> = BTreeMap::new();
    for path in paths {
        match pools::labels(std::slice::from_ref(path)).map(|mut labels| labels.pop().flatten()) {
            Ok(Some(label)) => {
                let key = (label.pool_name.clone(), label.pool_guid);
                labelled.entry(key).or_default().push((label, path.clone()));
            }
            Ok(None) => {}
            Err(error) => found.unreadable.push(error.message),
        }
    }
    // One pool may have been renamed on some of its devices only: the guid decides.
    let mut pools: BTreeMap<u64, Vec<(LabelInfo, PathBuf)>> = BTreeMap::new();
    for ((_, guid), labels) in labelled {
        pools.entry(guid).or_default().extend(labels);
    }
    found.pools = pools.into_values().filter_map(assemble).collect();
    found.pools.sort_by(|a, b| a.label.pool_name.cmp(&b.label.pool_name));
    found
}

/// Puts the devices of one pool together, by its newest label.
fn assemble(labels: Vec<(LabelInfo, PathBuf)>) -> Option<FoundPool> {
    let (newest, _) = labels.iter().max_by_key(|(label, _)| (label.generation, label.txg))?;
    let paths_of = |guid| {
        let its = labels.iter().filter(move |(label, _)| label.device_guid == guid);
        its.map(|(_, path)| path.clone()).collect()
    };
    let devices = newest.leaves.iter();
    let devices = devices.map(|(vdev, guid)| FoundDevice {
        guid: *guid,
        vdev: *vdev,
        paths: paths_of(*guid),
    });
    let is_listed = |guid| newest.leaves.iter().any(|(_, listed)| *listed == guid);
    let strangers = labels.iter().filter(|(label, _)| !is_listed(label.device_guid));
    Some(FoundPool {
        devices: devices.collect(),
        strangers: strangers.map(|(_, path)| path.clone()).collect(),
        label: newest.clone(),
    })
}

/// Finds all pools on block devices, in these folders and in those where pools were last.
pub(crate) fn all(folders: &[PathBuf]) -> Found {
    on(&all_candidates(folders))
}

fn all_candidates(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = folders.to_vec();
    let known = known::all().into_iter().flat_map(|pool| pool.paths);
    folders.extend(known.filter_map(|path| path.parent().map(Path::to_owned)));
    candidates::find(&folders)
}

/// The paths of the pool with this name or guid, in these folders too. `None` if there is none.
///
/// # Errors
/// If several pools have the name, or a device was found twice.
pub(crate) fn named(spec: &str, folders: &[PathBuf]) -> Result<Option<Vec<PathBuf>>> {
    let hinted: Vec<_> = known::all().into_iter().filter(|pool| pool.is_called(spec)).collect();
    // No search finds a store.
    let mut stores = Vec::new();
    // With one hint that is right, nothing else is opened.
    if let [hint] = &hinted[..] {
        stores.extend(hint.paths.iter().find(|path| object_stores::url(path).is_some()).cloned());
        // With the log devices of a store.
        let mut found = on(&[&stores[..], &candidates::labelled(&hint.paths)].concat());
        if let (false, Some(error)) = (stores.is_empty(), found.unreadable.pop()) {
            return Err(Failure::new(error));
        }
        found.pools.retain(|pool| pool.is_called(spec));
        if let [pool] = &found.pools[..]
            && pool.state() == "online"
        {
            pool.check_unique()?;
            return Ok(Some(pool.paths()));
        }
    }
    // A log device of a store may be at another path, or missing.
    let mut found = on(&[stores, all_candidates(folders)].concat());
    found.pools.retain(|pool| pool.is_called(spec));
    match &found.pools[..] {
        [] => Ok(None),
        [pool] => {
            pool.check_unique()?;
            check_unreadable(pool, &hinted)?;
            Ok(Some(pool.paths()))
        }
        several => {
            let each = several.iter();
            let each = each
                .map(|pool| format!("{:016x} on {}", pool.label.pool_guid, list(&pool.paths())));
            Err(Failure::new(format!(
                "{spec}: several pools have that name: {}; give the number instead of the name",
                each.collect::<Vec<_>>().join("; ")
            )))
        }
    }
}

/// Checks that no device of a pool is there and cannot be read: without it the pool would be
/// degraded, and that device would miss what is written.
///
/// # Errors
/// If one is.
fn check_unreadable(pool: &FoundPool, hinted: &[KnownPool]) -> Result<()> {
    let found = pool.paths();
    let guid = format!("{:016x}", pool.label.pool_guid);
    let known = hinted.iter().filter(|hint| hint.guid == guid).flat_map(|hint| hint.paths.clone());
    let mut rest = candidates::labelled(&known.collect::<Vec<_>>());
    rest.retain(|path| !found.contains(path));
    let unreadable = on(&rest).unreadable;
    if pool.state() == "online" || unreadable.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "pool {}: a device of it cannot be used: {}; wait until it can be, or give the paths of the other devices, joined by `:`, to \
         go on without it: {}",
        pool.label.pool_name,
        unreadable.join("; "),
        list(&found)
    )))
}

/// Paths, for messages.
pub(crate) fn list(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    texts.join(", ")
}
