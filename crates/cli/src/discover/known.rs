//! Where pools were last: a file per pool in the state directory of the user.
//!
//! The directory is `$FOREBAY_STATE_DIR` if set; else `/var/lib/forebay` for root; else `forebay`
//! in `$XDG_STATE_HOME` or `~/.local/state`. It survives a reboot, unlike the run directory.
//!
//! A file is written when a pool is created, imported or exported, to a new file that replaces the
//! old one. It is a hint: labels are read before it is believed, so a stale or lost file does no
//! harm, and a failure to write it is only logged.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::run_dir;

/// First letters of the name of a file.
const PREFIX: &str = "known-";

/// Where a pool was last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KnownPool {
    pub(crate) name: String,
    /// In 16 hexadecimal digits.
    pub(crate) guid: String,
    /// Canonical paths of its devices.
    pub(crate) paths: Vec<PathBuf>,
}

impl KnownPool {
    pub(super) fn is_called(&self, spec: &str) -> bool {
        self.name == spec || self.guid == spec
    }
}

fn directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("FOREBAY_STATE_DIR") {
        return Some(path);
    }
    if run_dir::uid() == 0 {
        return Some(PathBuf::from("/var/lib/forebay"));
    }
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    Some(state?.join("forebay"))
}

/// All pools that were noted.
pub(crate) fn all() -> Vec<KnownPool> {
    let Some(entries) = directory().and_then(|directory| fs::read_dir(directory).ok()) else {
        return Vec::new();
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(PREFIX) && name.ends_with(".json")
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(is_ours);
    let read = |path: PathBuf| serde_json::from_slice(&fs::read(path).ok()?).ok();
    paths.filter_map(read).collect()
}

/// Notes where a pool is.
pub(crate) fn note(name: &str, guid: u64, paths: &[PathBuf]) {
    let Some(directory) = directory() else { return };
    let known =
        KnownPool { name: name.to_owned(), guid: format!("{guid:016x}"), paths: paths.to_vec() };
    if let Err(error) = write(&directory, &known) {
        let directory = directory.display();
        tracing::warn!(pool = name, %directory, %error, "cannot note where the pool is");
    }
}

/// Forgets a pool that was destroyed.
pub(crate) fn forget(guid: u64) {
    if let Some(directory) = directory() {
        // A file that stays is only a hint.
        let _ = fs::remove_file(file_of(&directory, &format!("{guid:016x}")));
    }
}

fn file_of(directory: &Path, guid: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{guid}.json"))
}

fn write(directory: &Path, known: &KnownPool) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    let temporary = directory.join(format!("{PREFIX}{}.{}", known.guid, std::process::id()));
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(known)?)?;
    fs::rename(&temporary, file_of(directory, &known.guid))
}
