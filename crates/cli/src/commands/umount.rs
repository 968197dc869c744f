//! `forebay umount`: unmounts a dataset or all datasets of a pool, or removes a dead mount.
//!
//! It returns when everything is committed. With the last mount of a pool that was imported for
//! mounts, the pool is exported and its devices are closed. As the helper of umount(8) it does the
//! same for that command, if the mount is the daemon's own: one in another mount namespace, or one
//! bound over the daemon's, is a copy, and its unmount must not end the daemon's.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::args::UmountArgs;
use crate::control::Request;
use crate::control::client::{self, Process, Target};
use crate::control::messages::MountInfo;
use crate::error::{Failure, Result};
use crate::output;

pub(crate) fn run(args: &UmountArgs) -> Result<()> {
    let at = Path::new(&args.target);
    if let Some((process, mount)) = served(args)? {
        let at = mount.at;
        process.ask::<()>(&Request::Unmount { at: at.clone(), lazy: args.lazy, pool: None })?;
        if !args.helper {
            output::line(&format!("unmounted {}", at.display()));
        }
        return Ok(());
    }
    if args.helper {
        return Err(unmount_without_helper(args));
    }
    let looked = forebay_fuse::mount_info(at);
    match looked {
        Ok(Some(mounted)) if mounted.dead => {
            forebay_fuse::unmount_dead(at)?;
            output::line(&format!(
                "cleared {}: removed the dead mount of a killed process; the next mount of the pool replays its intent log",
                mounted.path.display()
            ));
            Ok(())
        }
        Ok(Some(mounted)) if mounted.ours => Err(Failure::new(format!(
            "{0}: is served by a process of another user or with another FOREBAY_RUN_DIR; use `umount {0}` or \
             `fusermount3 -u {0}`",
            mounted.path.display()
        ))),
        Ok(Some(mounted)) => Err(Failure::new(format!(
            "{0}: is a mount of {1}, not of a pool; use `umount {0}`",
            mounted.path.display(),
            mounted.source
        ))),
        Ok(None) if at.is_dir() => Err(Failure::new(format!(
            "{}: nothing is mounted there; `forebay list` shows mounts",
            at.display()
        ))),
        Ok(None) | Err(_) => umount_pool(args),
    }
}

/// The daemon to ask for the unmount, and the mount; `None` if umount(8) is to do without.
fn served(args: &UmountArgs) -> Result<Option<(Process, MountInfo)>> {
    if args.force {
        return Ok(None);
    }
    match client::served(Path::new(&args.target)) {
        Ok(Some((process, mount))) if args.helper && is_copy(&process, &mount) => Ok(None),
        // A lazy unmount waits for nothing, so it works without the daemon.
        Err(_) if args.helper && args.lazy => Ok(None),
        served => served,
    }
}

/// Whether umount(8) is to unmount a copy of a mount of the daemon.
fn is_copy(process: &Process, mount: &MountInfo) -> bool {
    let is_over = |id: u64| forebay_fuse::mount_id_at(&mount.at).is_ok_and(|reached| reached != id);
    !process.shares_mounts() || mount.detached || mount.mount_id.is_some_and(is_over)
}

/// Replaces this process by umount(8), which then calls no helper. Returns the error if it cannot.
fn unmount_without_helper(args: &UmountArgs) -> Failure {
    let mut command = Command::new("umount");
    command.arg("-i");
    for (chosen, flag) in [(args.lazy, "-l"), (args.force, "-f")] {
        if chosen {
            command.arg(flag);
        }
    }
    let error = command.arg("--").arg(&args.target).exec();
    Failure::about(Path::new(&args.target), "run umount -i", &error)
}

fn umount_pool(args: &UmountArgs) -> Result<()> {
    match client::find(&args.target)? {
        Target::InUse { process, pool } => {
            for mount in &pool.mounts {
                let (at, lazy) = (mount.at.clone(), args.lazy);
                // Another pool may be mounted where this one was detached. Daemons that do not tell
                // refuse the field.
                let pool = (mount.detached || mount.mount_id.is_some()).then_some(pool.guid);
                process.ask::<()>(&Request::Unmount { at, lazy, pool })?;
                output::line(&format!("unmounted {}", mount.at.display()));
            }
            if pool.mounts.is_empty() {
                let text = format!(
                    "pool {0} is not mounted; export it with `forebay export {0}`",
                    pool.name
                );
                return Err(Failure::new(text));
            }
            Ok(())
        }
        Target::Paths(_) => Err(Failure::new(format!(
            "{}: the pool is not mounted; `forebay list` shows mounts",
            args.target
        ))),
    }
}
