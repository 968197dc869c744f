//! `forebay mount`: mounts a dataset, in the foreground or by the daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_pool::DatasetSettings;

use super::create::{DEFAULT_BYTES, New, create};
use super::expand::remove_unused;
use super::import::import_request;
use super::metrics;
use crate::args::MountArgs;
use crate::control::client::{self, Process, Target};
use crate::control::messages::{MetricsInfo, MountInfo, PoolInfo, PoolStatus, ProcessInfo};
use crate::control::run_dir;
use crate::control::{Request, server};
use crate::daemon::screen::Screen;
use crate::daemon::spawn::DaemonOptions;
use crate::daemon::{
    Daemon, DaemonMode, MountRequest, mount_info, run as daemon_run, spawn, stats,
};
use crate::error::{Failure, Result};
use crate::logging::LogArgs;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

/// Path of the default pool.
const DEFAULT_POOL: &str = "forebay.pool";

pub(crate) fn run(mut args: MountArgs, log: &LogArgs) -> Result<()> {
    super::mount_helper::take_options(&mut args)?;
    if args.remount {
        return remount(&args);
    }
    // Before anything is created.
    forebay_fuse::available()?;
    let target = match &args.pool {
        Some(spec) => client::find(spec)?,
        None => default_pool(&args)?,
    };
    let made = match args.at {
        Some(_) => None,
        None => Some(default_mount_point(&target)).filter(|at| !at.exists()),
    };
    let mounted = match &args.at {
        Some(at) => prepare(at, false),
        None => prepare(&default_mount_point(&target), true),
    }
    .and_then(|at| {
        let l2 = super::follower_l2::make(&mut args.import.readers)?;
        let mounted = mount_at(&args, log, target, at);
        mounted.inspect_err(|_| l2.iter().for_each(|path| remove_unused(path)))
    });
    if let (Err(_), Some(made)) = (&mounted, made) {
        // The error of the command is reported. A directory in use is not removed.
        let _ = std::fs::remove_dir(made);
    }
    mounted
}

fn mount_at(args: &MountArgs, log: &LogArgs, target: Target, at: PathBuf) -> Result<()> {
    let mount = MountRequest {
        dataset: args.dataset.clone(),
        at,
        flags: args.flags,
        kernel_cache: args.kernel_cache,
        allow_other: args.allow_other || run_dir::uid() == 0,
        threads: args.threads.map(usize::from),
    };
    match target {
        Target::InUse { process, pool } if args.daemon && process.info.daemon => {
            let import = import_request(&args.import, pool.devices);
            let metrics = metrics::serve(&args.metrics, &process)?;
            let info = process.ask(&Request::Mount { import, mount })?;
            print_mounted(&info, &process, false);
            metrics::print(metrics.as_ref());
            Ok(())
        }
        Target::InUse { process, pool } => Err(Failure::new(format!(
            "pool {0} is in use by process {1}; run `forebay export {0}` first{2}",
            pool.name,
            process.info.pid,
            if process.info.daemon {
                ", or use --daemon to have that process mount another dataset"
            } else {
                ""
            }
        ))),
        Target::Paths(paths) => {
            let import = import_request(&args.import, paths);
            if args.daemon {
                in_background(args, log, import, mount)
            } else {
                in_foreground(args, &import, &mount)
            }
        }
    }
}

/// Changes the flags of a mount.
fn remount(args: &MountArgs) -> Result<()> {
    let at = args.at.as_deref().or(args.pool.as_deref().map(Path::new));
    let at =
        at.ok_or_else(|| Failure::usage("-o remount: no mount point is given; give its path"))?;
    let Some((process, mount)) = client::served(at)? else {
        return Err(Failure::new(format!(
            "{0}: cannot remount: no daemon of this user has a mount there; `forebay list` shows \
             mounts",
            at.display()
        )));
    };
    let request = Request::Remount { at: mount.at, flags: args.flag_names.clone() };
    let info: MountInfo = process.ask(&request)?;
    let mode = if info.read_only { "read-only" } else { "read-write" };
    output::line(&format!("remounted {}, {mode}", info.at.display()));
    Ok(())
}

/// The default pool, created if it does not exist.
fn default_pool(args: &MountArgs) -> Result<Target> {
    let path = PathBuf::from(DEFAULT_POOL);
    if !path.exists() && !args.import.read_only {
        let new = New {
            name: "forebay",
            devices: std::slice::from_ref(&path),
            mirrors: &[],
            logs: &[],
            size_bytes: DEFAULT_BYTES,
            dataset: &args.dataset,
            settings: DatasetSettings::default(),
            force: false,
            sector: None,
        };
        create(&new)?.close()?;
        output::line(&format!(
            "created {DEFAULT_POOL}, a sparse file of {}",
            units::bytes(DEFAULT_BYTES)
        ));
    }
    // The slash makes it a path, not a name.
    client::find(&format!("./{DEFAULT_POOL}"))
}

fn default_mount_point(target: &Target) -> PathBuf {
    let name = match target {
        Target::InUse { pool, .. } => pool.name.clone(),
        Target::Paths(paths) => {
            paths.first().map_or_else(|| "forebay".to_owned(), |path| pools::name_from(path))
        }
    };
    PathBuf::from(format!("{name}-mnt"))
}

/// Prepares an empty directory as a mount point. A dead Forebay mount there is removed.
fn prepare(at: &Path, make: bool) -> Result<PathBuf> {
    if let Ok(Some(mounted)) = forebay_fuse::mount_info(at) {
        if mounted.ours && mounted.dead {
            forebay_fuse::unmount_dead(at)?;
            output::line(&format!(
                "cleared {}: removed the dead mount of a killed process",
                at.display()
            ));
        } else {
            let hint = match mounted.ours {
                true => format!("run `forebay umount {}` first", at.display()),
                false => "use another directory".to_owned(),
            };
            let (at, what) = (at.display(), mounted.source);
            return Err(Failure::new(format!("{at}: {what} is mounted there; {hint}")));
        }
    }
    let made = make && !at.exists();
    if made {
        std::fs::create_dir(at)
            .map_err(|error| Failure::about(at, "create the directory", &error))?;
    }
    let found = match std::fs::metadata(at) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::new(format!(
                "{0}: no such directory; create it with `mkdir {0}`",
                at.display()
            )));
        }
        Err(error) => return Err(Failure::about(at, "read the mount point", &error)),
    };
    if !found.is_dir() {
        return Err(Failure::new(format!(
            "{}: is not a directory; give a directory as the mount point",
            at.display()
        )));
    }
    let mut entries =
        std::fs::read_dir(at).map_err(|error| Failure::about(at, "list the directory", &error))?;
    if entries.next().is_some() {
        return Err(Failure::new(format!(
            "{}: is not empty, and a mount would hide its content; use an empty directory",
            at.display()
        )));
    }
    pools::canonical(at)
}

fn in_background(
    args: &MountArgs,
    log: &LogArgs,
    import: ImportRequest,
    mount: MountRequest,
) -> Result<()> {
    let has_l2 = import.l2_devices && !import.read_only;
    let request = Request::Mount { import, mount };
    let options =
        DaemonOptions { memory: args.memory, threads: args.threads.map(usize::from), log };
    let ask = |process: &Process| -> Result<(MountInfo, Option<MetricsInfo>)> {
        let metrics = metrics::serve(&args.metrics, process)?;
        Ok((process.ask(&request)?, metrics))
    };
    let (process, (info, metrics)) = match args.separate {
        false => spawn::ask_shared(&options, ask)?,
        true => {
            let process = spawn::start(&options, DaemonMode::Separate)?;
            let answers = ask(&process)?;
            (process, answers)
        }
    };
    print_mounted(&info, &process, has_l2);
    metrics::print(metrics.as_ref());
    Ok(())
}

/// Prints the mount, and what the import gave up or does without.
fn print_mounted(info: &MountInfo, process: &Process, has_l2: bool) {
    if let Ok(status) = status_of(info, process) {
        super::import::warn(&status, has_l2);
    }
    output::line(&format!(
        "mounted {}/{} at {}; served by process {}, log {}",
        info.pool,
        info.dataset,
        info.at.display(),
        process.info.pid,
        process.info.log.display()
    ));
}

/// Status of the pool of a mount.
fn status_of(info: &MountInfo, process: &Process) -> Result<PoolStatus> {
    let now: ProcessInfo = process.ask(&Request::Hello)?;
    let is_it = |mount: &MountInfo| (&mount.at, mount.mount_id) == (&info.at, info.mount_id);
    let has = |pool: &&PoolInfo| pool.mounts.iter().any(is_it);
    let pool = now.pools.iter().find(has);
    let pool =
        pool.ok_or_else(|| Failure::new("the dataset was unmounted meanwhile; mount it again"))?;
    process.ask(&Request::Status { pool: pool.guid })
}

fn in_foreground(args: &MountArgs, import: &ImportRequest, request: &MountRequest) -> Result<()> {
    let plan = MemoryPlan::new(args.memory, args.threads.map(usize::from))?;
    let (events, receiver) = channel();
    let screen = Arc::new(Screen::foreground());
    let daemon = Daemon::new(plan, DaemonMode::Foreground, Arc::clone(&screen), events.clone())?;
    daemon_run::watch_signals(events)?;
    let listening = server::listen(&daemon);
    if let Err(error) = &listening {
        screen.say(&format!(
            "no control socket, so other commands, such as `forebay list`, do not see this mount: {error}"
        ));
    }
    let metrics = metrics::request(&args.metrics).map(|it| daemon.serve_metrics(it)).transpose()?;
    let info = mount_info(&*daemon.mount(import, request)?);
    let has_l2 = import.l2_devices && !import.read_only;
    for imported in daemon.pools() {
        let status = stats::pool_status(&imported.pool(), None, "mounted");
        super::import::warnings(&status, has_l2).iter().for_each(|line| screen.say(line));
    }
    let at = info.at.display();
    let unmount = match &listening {
        Ok(_) => format!("press Ctrl-C or run `forebay umount {at}` to unmount"),
        Err(_) => "press Ctrl-C to unmount".to_owned(),
    };
    screen.say(&format!(
        "mounted {}/{} at {at}, memory limit {}; {unmount}",
        info.pool,
        info.dataset,
        units::bytes(plan.total_bytes)
    ));
    if let Some(info) = &metrics {
        screen.say(&metrics::text(info));
    }
    daemon_run::notify_ready();
    daemon_run::run(&daemon, &receiver, None)
}
