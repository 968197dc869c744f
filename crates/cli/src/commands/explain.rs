//! `forebay explain`: says why blocks were not in memory, and what would help.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::args::ExplainArgs;
use crate::control::client::{self, Process, Target};
use crate::control::messages::{ExplainReport, MountInfo};
use crate::control::{ExplainScope, Request};
use crate::error::{Failure, Result};
use crate::output;

pub(crate) fn run(args: &ExplainArgs) -> Result<()> {
    let (processes, mut scope) = match &args.target {
        None => (client::processes_of(None)?, ExplainScope::default()),
        Some(target) => {
            let (process, scope) = scope_of(target)?;
            (vec![process], scope)
        }
    };
    scope.since_s = args.since;
    let request = Request::Explain(scope);
    let reports: Vec<ExplainReport> =
        processes.iter().map(|process| process.ask(&request)).collect::<Result<_>>()?;
    if args.json {
        return output::json(&reports);
    }
    for (process, report) in processes.iter().zip(&reports) {
        if processes.len() > 1 {
            output::print(&format!("process {}:\n", process.info.pid));
        }
        output::print(&text(report));
    }
    Ok(())
}

fn text(report: &ExplainReport) -> String {
    let mut out = String::new();
    for (number, sentences) in report.sentences.iter().enumerate() {
        for (line, sentence) in sentences.iter().enumerate() {
            let indent = match (number, line) {
                (0, _) => String::new(),
                (_, 0) => format!("\n{number}. "),
                _ => "   ".to_owned(),
            };
            out.push_str(&format!("{indent}{sentence}\n"));
        }
    }
    out
}

/// Finds what a target names, and the daemon that has it: a path in a mount, a pool, or a dataset.
fn scope_of(target: &str) -> Result<(Process, ExplainScope)> {
    if let Some(found) = mounted(Path::new(target))? {
        return Ok(found);
    }
    let not_found = match client::find(target) {
        Ok(Target::InUse { process, pool }) => {
            return Ok((*process, ExplainScope { pool: Some(pool.guid), ..Default::default() }));
        }
        Ok(Target::Paths(_)) => in_no_mount(target),
        Err(_) if Path::new(target).is_absolute() => in_no_mount(target),
        Err(error) => error,
    };
    let Some((pool, dataset)) = target.rsplit_once('/') else { return Err(not_found) };
    if Path::new(target).is_absolute() || Path::new(target).exists() {
        return Err(not_found);
    }
    let Target::InUse { process, pool } = client::find(pool)? else {
        return Err(in_no_mount(target));
    };
    let scope = ExplainScope {
        pool: Some(pool.guid),
        dataset: Some(dataset.to_owned()),
        inode: None,
        ..Default::default()
    };
    Ok((*process, scope))
}

/// The error of a path that is in no mount. Says which mounts there are.
fn in_no_mount(target: &str) -> Failure {
    let mut mounts = Vec::new();
    for pool in client::processes().iter().flat_map(|process| &process.info.pools) {
        let shown =
            |mount: &MountInfo| format!("{} ({}/{})", mount.place(), mount.pool, mount.dataset);
        mounts.extend(pool.mounts.iter().map(shown));
    }
    Failure::new(match mounts.is_empty() {
        true => format!(
            "{target}: neither a pool in use nor a path in a mounted one; mount the pool first"
        ),
        false => format!(
            "{target}: neither a pool in use nor a path in a mount; mounted are {}",
            mounts.join(", ")
        ),
    })
}

/// The scope of a path in a mount. The mount point itself stands for the dataset.
fn mounted(path: &Path) -> Result<Option<(Process, ExplainScope)>> {
    let Ok(canonical) = path.canonicalize() else { return Ok(None) };
    let mut mounts = Vec::new();
    for process in client::processes() {
        for pool in &process.info.pools {
            let holds = |mount: &&MountInfo| !mount.detached && canonical.starts_with(&mount.at);
            mounts.extend(
                pool.mounts.iter().filter(holds).map(|m| (process.clone(), pool.guid, m.clone())),
            );
        }
    }
    // The innermost one, if one is mounted in another.
    let innermost = mounts.into_iter().max_by_key(|(_, _, m)| m.at.components().count());
    let Some((process, guid, mount)) = innermost else { return Ok(None) };
    let inode = match canonical == mount.at {
        true => None,
        false => {
            let found = std::fs::symlink_metadata(&canonical);
            let found = found.map_err(|error| Failure::new(format!("{}: {error}", path.display())));
            Some(found?.ino())
        }
    };
    let scope = ExplainScope { pool: Some(guid), dataset: Some(mount.dataset), inode, since_s: 0 };
    Ok(Some((process, scope)))
}
