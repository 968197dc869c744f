//! `forebay mount`: a dataset's files at a folder, by this process or by the one in the background.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_pool::DatasetSettings;

use super::create::{DEFAULT_BYTES, New, create};
use super::import::wanted;
use crate::args::MountArgs;
use crate::control::client::{self, Process, Target};
use crate::control::run_dir;
use crate::control::views::{MountView, PoolStatus, PoolView, ProcessView};
use crate::control::{Request, server};
use crate::error::{Failure, Result};
use crate::host::live::Screen;
use crate::host::{Host, MountWanted, Service, figures, mount_view, run as host_run, spawn};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportWanted};
use crate::{output, units};

/// The pool, if none is named.
const DEFAULT_POOL: &str = "forebay.pool";

pub(crate) fn run(mut args: MountArgs) -> Result<()> {
    super::helper::take_options(&mut args)?;
    if args.remount {
        return remount(&args);
    }
    // Before anything is made.
    forebay_fuse::available()?;
    let target = match &args.pool {
        Some(spec) => client::find(spec)?,
        None => default_pool(&args)?,
    };
    let made = match args.at {
        Some(_) => None,
        None => Some(default_place(&target)).filter(|at| !at.exists()),
    };
    let mounted = match &args.at {
        Some(at) => prepare(at, false),
        None => prepare(&default_place(&target), true),
    }
    .and_then(|at| mount_at(&args, target, at));
    if let (Err(_), Some(made)) = (&mounted, made) {
        // The error is told. What is not empty, or has something mounted, stays.
        let _ = std::fs::remove_dir(made);
    }
    mounted
}

fn mount_at(args: &MountArgs, target: Target, at: PathBuf) -> Result<()> {
    let mount = MountWanted {
        dataset: args.dataset.clone(),
        at,
        flags: args.flags,
        kernel_cache: args.kernel_cache,
        allow_other: args.allow_other || run_dir::uid() == 0,
        threads: args.threads.map(usize::from),
    };
    match target {
        Target::Held { process, pool } if args.daemon && process.view.daemon => {
            let import = wanted(&args.import, pool.devices);
            let view = process.ask(&Request::Mount { import, mount })?;
            tell(&view, &process, false);
            Ok(())
        }
        Target::Held { process, pool } => Err(Failure::new(format!(
            "pool {0} is in use by process {1}; `forebay export {0}` first{2}",
            pool.name,
            process.view.pid,
            if process.view.daemon {
                ", or use --daemon to have that process mount another dataset"
            } else {
                ""
            }
        ))),
        Target::Paths(paths) => {
            let import = wanted(&args.import, paths);
            if args.daemon {
                in_background(args, import, mount)
            } else {
                in_foreground(args, &import, &mount)
            }
        }
    }
}

/// Gives what is mounted other flags.
fn remount(args: &MountArgs) -> Result<()> {
    let at = args.at.as_deref().or(args.pool.as_deref().map(Path::new));
    let at = at.ok_or_else(|| Failure::usage("-o remount: name the mount point"))?;
    let Some((process, at)) = client::served(at) else {
        return Err(Failure::new(format!(
            "{0}: cannot remount: no running forebay of yours has mounted it; `forebay list` shows \
             mounts",
            at.display()
        )));
    };
    let view: MountView = process.ask(&Request::Remount { at, flags: args.flag_names.clone() })?;
    let mode = if view.read_only { "read-only" } else { "read-write" };
    output::line(&format!("remounted {}, {mode}", view.at.display()));
    Ok(())
}

/// `./forebay.pool`, made if it is not there.
fn default_pool(args: &MountArgs) -> Result<Target> {
    let path = PathBuf::from(DEFAULT_POOL);
    if !path.exists() && !args.import.read_only {
        let new = New {
            name: "forebay",
            devices: std::slice::from_ref(&path),
            size_bytes: DEFAULT_BYTES,
            dataset: &args.dataset,
            settings: DatasetSettings::default(),
            force: false,
        };
        create(&new)?.close()?;
        output::line(&format!(
            "made {DEFAULT_POOL}, a sparse file of {}",
            units::bytes(DEFAULT_BYTES)
        ));
    }
    // With a slash: a path and no name.
    client::find(&format!("./{DEFAULT_POOL}"))
}

fn default_place(target: &Target) -> PathBuf {
    let name = match target {
        Target::Held { pool, .. } => pool.name.clone(),
        Target::Paths(paths) => {
            paths.first().map_or_else(|| "forebay".to_owned(), |path| pools::name_from(path))
        }
    };
    PathBuf::from(format!("{name}-mnt"))
}

/// A mount point that can be used: a folder, empty, with nothing mounted on it. What a killed process of ours left there is
/// cleared.
fn prepare(at: &Path, make: bool) -> Result<PathBuf> {
    if let Ok(Some(mounted)) = forebay_fuse::mount_info(at) {
        if mounted.ours && mounted.dead {
            forebay_fuse::unmount_dead(at)?;
            output::line(&format!(
                "cleared {}, which a process that is gone had left",
                at.display()
            ));
        } else {
            let way_out = match mounted.ours {
                true => format!("`forebay umount {}` first", at.display()),
                false => "name another folder".to_owned(),
            };
            let (at, what) = (at.display(), mounted.source);
            return Err(Failure::new(format!("{at}: {what} is mounted there; {way_out}")));
        }
    }
    let made = make && !at.exists();
    if made {
        std::fs::create_dir(at).map_err(|error| Failure::about(at, "make the folder", &error))?;
    }
    let found = match std::fs::metadata(at) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::new(format!(
                "{0}: no such folder; `mkdir {0}` makes it",
                at.display()
            )));
        }
        Err(error) => return Err(Failure::about(at, "look at the mount point", &error)),
    };
    if !found.is_dir() {
        return Err(Failure::new(format!("{}: is no folder; name one to mount at", at.display())));
    }
    let mut entries = std::fs::read_dir(at)
        .map_err(|error| Failure::about(at, "look into the folder", &error))?;
    if entries.next().is_some() {
        return Err(Failure::new(format!(
            "{}: is not empty; name an empty folder, since a mount hides what is in it",
            at.display()
        )));
    }
    pools::canonical(at)
}

fn in_background(args: &MountArgs, import: ImportWanted, mount: MountWanted) -> Result<()> {
    let warns = import.l2_devices && !import.read_only;
    let request = Request::Mount { import, mount };
    let threads = args.threads.map(usize::from);
    if !args.separate {
        let (process, started) = spawn::find_or_start(args.memory, threads)?;
        let has = process.view.memory_bytes;
        if !started && args.memory.is_some_and(|wanted| wanted != has) {
            eprintln!(
                "forebay: process {} has {} of memory, and keeps that; --separate starts another one",
                process.view.pid,
                units::bytes(has)
            );
        }
        match process.ask::<MountView>(&request) {
            // It was about to end.
            Err(error) if error.message.contains("try again") => {}
            other => return other.map(|view| tell(&view, &process, warns)),
        }
    }
    let service = if args.separate { Service::Separate } else { Service::Shared };
    let process = spawn::start(args.memory, threads, service)?;
    let view = process.ask(&request)?;
    tell(&view, &process, warns);
    Ok(())
}

/// Says what was mounted, and, if the pool was imported for it, what cache devices it does without.
fn tell(view: &MountView, process: &Process, warns: bool) {
    if warns && let Ok(status) = status_of(view, process) {
        super::cache::warn(&status);
    }
    output::line(&format!(
        "mounted {}/{} at {}; process {} serves it, its log is {}",
        view.pool,
        view.dataset,
        view.at.display(),
        process.view.pid,
        spawn::log_of(process.view.pid).display()
    ));
}

/// How the pool of a mount is.
fn status_of(view: &MountView, process: &Process) -> Result<PoolStatus> {
    let now: ProcessView = process.ask(&Request::Hello)?;
    let has = |pool: &&PoolView| pool.mounts.iter().any(|mount| mount.at == view.at);
    let pool = now.pools.iter().find(has);
    let pool = pool.ok_or_else(|| Failure::new("it was unmounted meanwhile"))?;
    process.ask(&Request::Status { pool: pool.guid })
}

fn in_foreground(args: &MountArgs, import: &ImportWanted, wanted: &MountWanted) -> Result<()> {
    let plan = MemoryPlan::new(args.memory, args.threads.map(usize::from))?;
    let (events, heard) = channel();
    let screen = Arc::new(Screen::foreground());
    let host = Host::new(plan, Service::Foreground, Arc::clone(&screen), events.clone())?;
    host_run::hear_signals(events)?;
    let listening = server::listen(&host);
    if let Err(error) = &listening {
        screen.say(&format!("no control socket, so other commands do not see this mount: {error}"));
    }
    let view = mount_view(&*host.mount(import, wanted)?);
    if import.l2_devices && !import.read_only {
        for held in host.pools() {
            let status = figures::status(&held.pool, None, "mounted");
            super::cache::warnings(&status).iter().for_each(|line| screen.say(line));
        }
    }
    screen.say(&format!(
        "mounted {}/{} at {}, with {} of memory; Ctrl-C or `forebay umount {}` ends it",
        view.pool,
        view.dataset,
        view.at.display(),
        units::bytes(plan.total_bytes),
        view.at.display()
    ));
    host_run::notify_ready();
    host_run::run(&host, &heard, None)
}
