//! Serves the requests of the control socket.

use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_pool::{ErrorKind, NewVdev, Opened, Pool, PoolDevice};
use serde::Serialize;

use super::jobs::OnProgress;
use super::{
    Daemon, ImportedPool, curve, explain, jobs, mount_info, pool_info, sample, schedule, stats,
};
use crate::control::messages::{
    ExpandReport, FlushReport, JobReport, L2DeviceInfo, MountInfo, PoolStatus, ScrubInfo,
};
use crate::control::{Request, ScrubChange};
use crate::discover::known;
use crate::error::{Failure, Result};
use crate::pools;

/// Smallest growth of a device that is reported, in bytes. Less may be lost to the alignment of
/// labels.
const GROWTH_BYTES: u64 = 1 << 20;

/// What the check of an imported pool leaves out.
const NAMES_UNCHECKED: &str =
    "names and link counts were not compared; export the pool and check it again to compare them";

impl Daemon {
    /// Serves a request.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) fn serve(
        self: &Arc<Self>,
        request: Request,
        on_progress: OnProgress<'_>,
    ) -> Result<serde_json::Value> {
        match request {
            Request::Hello => answer(&self.info()),
            Request::Import { import } => {
                self.check_accepts_pools()?;
                let imported = self.import(&import)?;
                self.screen.say(&format!("imported pool {}", imported.pool().name()));
                answer(&pool_info(&imported))
            }
            Request::Mount { import, mount } => {
                self.check_accepts_pools()?;
                let mount = self.mount(&import, &mount)?;
                let info = mount_info(&mount);
                self.screen.say(&format!(
                    "mounted {}/{} at {}",
                    info.pool,
                    info.dataset,
                    info.at.display()
                ));
                answer(&info)
            }
            Request::Remount { at, flags } => answer(&self.remount(&at, &flags)?),
            Request::Unmount { at, lazy, pool } => answer(&self.unmount_at(&at, pool, lazy)?),
            Request::Export { pool, lazy, force } => answer(&self.export_pool(pool, lazy, force)?),
            Request::Status { pool } => {
                let imported = self.pool(pool)?;
                answer(&status(&imported))
            }
            Request::ChangeSide { pool, device, change } => {
                let pool = &self.pool(pool)?.pool();
                answer(&jobs::change_side(pool, &device, change, on_progress)?)
            }
            Request::Clear { pool } => answer(&self.clear_pool(pool)?),
            Request::Expand { pool, add, force, sector } => {
                answer(&expand_pool(&self.pool(pool)?.pool(), &add, (force, sector))?)
            }
            Request::Check { pool } => answer(&self.check_pool(pool, on_progress)?),
            Request::Scrub { pool, rate_bytes, wait } => {
                let how = jobs::ScrubStart { rate_bytes, wait };
                answer(&jobs::start_scrub(&self.pool(pool)?.pool(), how, on_progress)?)
            }
            Request::ControlScrub { pool, change } => answer(&self.control_scrub(pool, change)?),
            Request::Trim { pool } => answer(&jobs::trim(&self.pool(pool)?.pool(), on_progress)?),
            Request::AddL2 { pool, device, force } => {
                let imported = self.pool(pool)?;
                refuse_if_followed(&imported)?;
                answer(&add_l2(&imported.pool(), &device, force)?)
            }
            Request::RemoveL2 { pool, device } => answer(&self.remove_l2(pool, &device)?),
            Request::AddLog { pool, devices, force } => {
                answer(&add_log(&self.pool(pool)?.pool(), &devices, force)?)
            }
            Request::RemoveLog { pool } => answer(&remove_log(&self.pool(pool)?.pool())?),
            Request::FlushCache => answer(&self.flush_cache()),
            Request::Tunables { pool } => {
                answer(&stats::tunables(&self.cache, &self.pool(pool)?.pool()))
            }
            Request::SetTunable { pool, name, value } => {
                answer(&self.set_tunable(pool, &name, &value)?)
            }
            Request::Trace { .. } | Request::Events { .. } => {
                Err(Failure::new("a request for a stream needs a connection of its own"))
            }
            Request::Stats => answer(&stats::process(self)),
            Request::Sample => answer(&sample::process(self)),
            Request::Metrics { metrics } => answer(&self.serve_metrics(metrics)?),
            Request::Curve => answer(&curve::report(self)),
            Request::Explain(asked) => answer(&explain::explain(self, &asked)?),
        }
    }

    fn control_scrub(&self, pool: u64, change: Option<ScrubChange>) -> Result<ScrubInfo> {
        let pool = &self.pool(pool)?.pool();
        jobs::control_scrub(pool, change)?;
        schedule::start_due(pool);
        Ok(jobs::scrub_info(&pool.scrub_status()))
    }

    fn remove_l2(&self, pool: u64, device: &str) -> Result<()> {
        remove_l2(&self.pool(pool)?.pool(), device)
    }

    /// Resumes a pool that is suspended, and empties its error log. Exports it if it has stayed
    /// without a mount for its changes only. Returns what else there is to say, a sentence each.
    fn clear_pool(&self, pool: u64) -> Result<Vec<String>> {
        let imported = self.pool(pool)?;
        let pool = &imported.pool();
        let before = jobs::newest_event(pool);
        let was_suspended = pool.suspension().is_some();
        if was_suspended {
            pool.clear()?;
            self.screen.say(&format!("resumed pool {}", pool.name()));
        }
        // An export by force that waits for files in use gave up what is durable now.
        imported.give_changes_up(false);
        pool.clear_errors()?;
        if was_suspended {
            self.close_if_unused(self.changing.lock(), &imported).unwrap_or(Ok(()))?;
        }
        Ok(jobs::lost_ends(pool, before))
    }

    fn check_pool(&self, pool: u64, on_progress: OnProgress<'_>) -> Result<JobReport> {
        let mut info = jobs::check(&self.pool(pool)?.pool(), on_progress)?;
        info.notes.push(NAMES_UNCHECKED.to_owned());
        Ok(info)
    }

    fn unmount_at(&self, at: &Path, pool: Option<u64>, lazy: bool) -> Result<()> {
        let mount = self.mount_at(at, pool)?;
        self.check_mount_saved(&mount)?;
        self.unmount(&mount, lazy).map_err(with_lazy_hint)
    }

    fn export_pool(self: &Arc<Self>, pool: u64, lazy: bool, force: bool) -> Result<()> {
        let imported = self.pool(pool)?;
        // Until it returns: another export may wait already, and a later one waits again.
        let _giving_up = force.then(|| imported.give_up());
        // One by force that has begun to close the pool goes on.
        if force || !imported.is_closing() {
            imported.give_changes_up(force);
        }
        let exported = self.export(&imported, lazy).map_err(with_lazy_hint);
        // A lazy one goes on with the end of the last mount, unless the pool is cleared, mounted or
        // exported without force before.
        if exported.is_err() && force && !lazy {
            imported.give_changes_up(false);
        }
        exported?;
        self.screen.say(&format!("exported pool {}", imported.pool().name()));
        Ok(())
    }

    /// Changes the flags of a mount.
    fn remount(&self, at: &Path, flags: &[String]) -> Result<MountInfo> {
        let mount = self.mount_at(at, None)?;
        mount.remount(flags)?;
        self.screen.say(&format!("remounted {}", at.display()));
        Ok(mount_info(&mount))
    }

    fn check_accepts_pools(&self) -> Result<()> {
        if !self.in_background {
            let text =
                "this process is a foreground mount and accepts no other pools; use --separate";
            return Err(Failure::new(text));
        }
        self.note_used();
        Ok(())
    }

    fn set_tunable(&self, pool: u64, name: &str, value: &str) -> Result<()> {
        let cache = self.cache.cache();
        if !cache.tunables().entries().iter().any(|(row, _)| row.name == name) {
            return self.pool(pool)?.set_tunable(name, value);
        }
        cache.set_tunable(name, value).map_err(|error| Failure::new(error.to_string()))
    }

    fn flush_cache(&self) -> FlushReport {
        let before = self.cache.cache().stats().resident_bytes();
        let blocks = self.cache.cache().clear();
        let after = self.cache.cache().stats().resident_bytes();
        FlushReport { blocks, bytes: before.saturating_sub(after) }
    }
}

fn status(imported: &ImportedPool) -> PoolStatus {
    let state = if imported.mounts().is_empty() { "imported" } else { "mounted" };
    stats::pool_status(&imported.pool(), Some(imported), state)
}

/// Replaces the hint of the library with the option of the command line.
fn with_lazy_hint(mut failure: Failure) -> Failure {
    failure.message = failure.message.replace("or detach it lazily", "or use --lazy");
    failure
}

fn answer(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value)
        .map_err(|error| Failure::new(format!("cannot serialise the answer: {error}")))
}

/// Adds vdevs, each a device or the devices of a mirror, and uses the added space of grown devices.
///
/// # Errors
/// If a device cannot be added or expanded; devices added before stay.
pub(crate) fn expand_pool(
    pool: &Pool,
    add: &[Vec<PathBuf>],
    (force, sector): (bool, Option<u32>),
) -> Result<ExpandReport> {
    let before_bytes = pool.stats().total_bytes;
    let mut added = Vec::new();
    for paths in add {
        let opened = pools::open_new_devices(paths, Some(pool))?;
        // The content first: who adds a device without a mirror by force has then been told of it.
        for (one, path) in opened.iter().zip(paths) {
            pools::refuse_content(one, path, force)?;
        }
        if !force {
            refuse_unmirrored(pool, paths)?;
        }
        added.push(opened);
    }
    for opened in added {
        let vdev = match <[Opened; 1]>::try_from(opened) {
            Ok([device]) => NewVdev::Device(device),
            Err(sides) => NewVdev::Mirror(sides),
        };
        pool.add_vdev(vdev, force, sector)?;
    }
    for device in pool.devices().into_iter().filter(|device| !device.log) {
        pool.expand(device.number)?;
    }
    let devices = pool.devices().into_iter().filter(|device| !device.log);
    let grown = devices.filter(has_grown).map(|device| device.path.into());
    Ok(ExpandReport {
        before_bytes,
        after_bytes: pool.stats().total_bytes,
        added: add.concat(),
        grown: grown.collect(),
    })
}

/// Refuses to add a device without a mirror to a pool of mirrors: blocks on it would have one copy,
/// and it cannot be removed again.
fn refuse_unmirrored(pool: &Pool, added: &[PathBuf]) -> Result<()> {
    let [device] = added else { return Ok(()) };
    let devices = pool.devices();
    let mut of_blocks = devices.iter().filter(|device| !device.log).peekable();
    if of_blocks.peek().is_none() || !of_blocks.all(|device| device.mirror) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{device}: pool {0} consists of mirrors, and blocks on a device without a mirror are lost with it; add a mirror \
         with `forebay expand {0} --mirror {device} OTHER`, or add the device for good with --force",
        pool.name(),
        device = device.display()
    )))
}

/// Adds a log device, or a mirror of them.
///
/// # Errors
/// If the pool refuses.
pub(crate) fn add_log(pool: &Pool, paths: &[PathBuf], force: bool) -> Result<()> {
    let opened = pools::open_new_devices(paths, Some(pool))?;
    for (one, path) in opened.iter().zip(paths) {
        pools::refuse_content(one, path, force)?;
    }
    pool.add_vdev(NewVdev::Log(opened), force, None)?;
    note_devices(pool);
    Ok(())
}

/// Removes the log device.
///
/// # Errors
/// If the pool refuses.
pub(crate) fn remove_log(pool: &Pool) -> Result<()> {
    pool.remove_log()?;
    note_devices(pool);
    Ok(())
}

/// Notes where the pool is, for a later import by name.
fn note_devices(pool: &Pool) {
    let paths: Vec<PathBuf> = pool.devices().into_iter().map(|one| one.path.into()).collect();
    known::note(pool.name(), pool.guid(), &paths);
}

/// Adds an L2 device, and describes it.
///
/// # Errors
/// If the pool refuses.
pub(crate) fn add_l2(pool: &Pool, path: &Path, force: bool) -> Result<L2DeviceInfo> {
    let opened = pools::open_new_device(path, pool)?;
    let guid = pool.add_l2_device(opened, force)?;
    let number = format!("{guid:016x}");
    let added = stats::l2_devices(pool).into_iter().find(|device| device.number == number);
    added.ok_or_else(|| Failure::new("the L2 device was removed meanwhile; add it again"))
}

/// # Errors
/// If the pool is followed.
fn refuse_if_followed(imported: &ImportedPool) -> Result<()> {
    if imported.following.is_none() {
        return Ok(());
    }
    let pool = imported.pool();
    Err(Failure::new(format!(
        "pool {} is followed here, and its L2 devices are those of the host that writes it; for a \
         cache on an SSD of this host, export it and mount it with --l2",
        pool.name()
    )))
}

/// Removes an L2 device.
///
/// # Errors
/// If the pool refuses.
pub(crate) fn remove_l2(pool: &Pool, device: &str) -> Result<()> {
    pool.remove_l2_device(device).map_err(|error| {
        let not_there = error.kind() == ErrorKind::NotFound;
        let mut failure = Failure::from(error);
        if not_there {
            failure.message.push_str(&format!("; `forebay l2 list {}` lists them", pool.name()));
        }
        failure
    })
}

/// True if a device has grown since it was opened.
fn has_grown(device: &PoolDevice) -> bool {
    let end = || std::fs::File::open(&device.path)?.seek(SeekFrom::End(0));
    // Less than this may add no space.
    end().is_ok_and(|bytes: u64| bytes >= device.size_bytes + GROWTH_BYTES)
}
