//! `forebay destroy`: destroys a pool.

use std::io::{BufRead, IsTerminal, Write};

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
        // Their labels alone would look like a pool.
        let logs = paths.iter().filter(|path| object_stores::url(path).is_none());
        let logs: Vec<_> = logs.cloned().collect();
        if !logs.is_empty() {
            let opened = pools::open_devices(&logs, false)?;
            forebay_pool::destroy(&opened, true, &*pools::cache(MemoryPlan::small())?)?;
        }
        let objects = object_stores::destroy(url, args.force)?;
        known::forget(guid);
        output::line(&format!("destroyed pool {name}, {objects} objects"));
        return Ok(());
    }
    let opened = pools::open_devices(&paths, false)?;
    forebay_pool::destroy(&opened, args.force, &*pools::cache(MemoryPlan::small())?).map_err(
        |error| {
            let mut failure = Failure::from(error);
            failure.message = failure.message.replace("or force it", "or use --force");
            failure
        },
    )?;
    // So that the devices count as empty.
    for path in &paths {
        device_content::clear(path)?;
    }
    drop(opened);
    known::forget(guid);
    if args.remove_files {
        for path in paths.iter().filter(|path| path.is_file()) {
            std::fs::remove_file(path)
                .map_err(|error| Failure::about(path, "remove the file", &error))?;
        }
    }
    output::line(&format!("destroyed pool {name}"));
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
