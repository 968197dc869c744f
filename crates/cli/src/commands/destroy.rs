//! `forebay destroy`: destroys a pool.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use forebay_pool::Opened;

use crate::args::DestroyArgs;
use crate::control::client::{self, Target};
use crate::discover::known;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::{device_content, object_stores, output, pools};

pub(crate) fn run(args: &DestroyArgs) -> Result<()> {
    let paths = match client::find(&args.pool)? {
        Target::Paths(paths) => paths,
        Target::InUse { process, pool } => {
            return Err(Failure::new(format!(
                "pool {0} is in use by process {1}; run `forebay export {0}` first",
                pool.name, process.info.pid
            )));
        }
    };
    if let [path] = &*paths
        && let Some(url) = object_stores::url(path)
        // A store gets its owner record first, and a label with the first transaction group.
        && (!object_stores::can_be_opened(url)? || matches!(*pools::labels(&paths)?, [None]))
    {
        return destroy_leftovers(url, args);
    }
    let labels = pools::labels(&paths)?;
    let mut named = None;
    for (path, label) in paths.iter().zip(&labels) {
        let Some(label) = label else {
            let text = format!("{}: holds no pool; give the devices of a pool", path.display());
            return Err(Failure::new(text));
        };
        if let Some((name, guid)) = &named
            && *guid != label.pool_guid
        {
            let (path, other) = (path.display(), &label.pool_name);
            return Err(Failure::new(format!(
                "{path}: is a device of pool {other} ({:016x}), and not of {name} ({guid:016x}); \
                 nothing was destroyed: give the devices of one pool",
                label.pool_guid
            )));
        }
        named = Some((label.pool_name.clone(), label.pool_guid));
    }
    let (name, guid) =
        named.ok_or_else(|| Failure::usage("no devices are given; give the devices of a pool"))?;
    if !args.yes {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let text =
            format!("All of pool {name} on {} will be lost. Type its name", paths.join(", "));
        ask(&format!("pool {name}"), &name, &text)?;
    }
    if let Some(url) = paths.iter().find_map(|path| object_stores::url(path)) {
        let objects = destroy_store(url, &paths, args)?;
        known::forget(guid);
        output::line(&format!("destroyed pool {name}, {objects} objects"));
        return Ok(());
    }
    let opened = pools::open_devices(&paths, false)?;
    destroy_devices(&paths, opened, args.force, args.remove_files)?;
    known::forget(guid);
    output::line(&format!("destroyed pool {name}"));
    Ok(())
}

/// Destroys the pool in a store, then what its log devices hold: if the store refuses, the pool
/// lives, and needs them. Returns the number of objects.
fn destroy_store(url: &str, paths: &[PathBuf], args: &DestroyArgs) -> Result<u64> {
    let is_log = |path: &&PathBuf| object_stores::url(path).is_none();
    let logs: Vec<PathBuf> = paths.iter().filter(is_log).cloned().collect();
    // Before anything is destroyed: they may be in use.
    let opened = match logs.is_empty() {
        true => Vec::new(),
        false => pools::open_devices(&logs, false)?,
    };
    let objects = object_stores::destroy(url, args.force)?;
    if !logs.is_empty() {
        // By force: they are not all devices of the pool, and its store is gone.
        destroy_devices(&logs, opened, true, args.remove_files)?;
    }
    Ok(objects)
}

fn destroy_devices(
    paths: &[PathBuf],
    opened: Vec<Opened>,
    force: bool,
    remove_files: bool,
) -> Result<()> {
    forebay_pool::destroy(&opened, force, &*pools::cache(MemoryPlan::small())?).map_err(
        |error| {
            let mut failure = Failure::from(error);
            failure.message = failure.message.replace("or force it", "or use --force");
            failure
        },
    )?;
    // So that the devices count as empty.
    for path in paths {
        device_content::clear(path)?;
    }
    drop(opened);
    if remove_files {
        for path in paths.iter().filter(|path| path.is_file()) {
            std::fs::remove_file(path)
                .map_err(|error| Failure::about(path, "remove the file", &error))?;
        }
    }
    Ok(())
}

/// Deletes what is left of a pool that was created or destroyed in part. Nothing tells its name.
fn destroy_leftovers(url: &str, args: &DestroyArgs) -> Result<()> {
    let what = format!("what is left of a pool in {url}");
    if !args.yes {
        ask(&what, url, &format!("{url} has no pool, but may have objects of one. Type the URL"))?;
    }
    let objects = object_stores::destroy(url, args.force)?;
    output::line(&format!("destroyed {what}, {objects} objects"));
    Ok(())
}

/// Asks for `name` as confirmation that `what` shall be destroyed.
fn ask(what: &str, name: &str, text: &str) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!(
            "cannot ask before destroying {what}: standard input is not a terminal; use --yes"
        )));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "{text} to destroy it: ");
    let _ = err.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::new(format!("cannot read the answer: {error}; use --yes")))?;
    match answer.trim() == name {
        true => Ok(()),
        false => {
            Err(Failure::new(format!("{what} was not destroyed: the answer was not `{name}`")))
        }
    }
}
