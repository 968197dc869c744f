//! The run directory: where the sockets and logs of a user's processes are.
//!
//! It is `$FOREBAY_RUN_DIR` if that is set; `/run/forebay` for root, however root came to be, so that what a boot
//! mounts is found from a shell; else `$XDG_RUNTIME_DIR/forebay`; else `/tmp/forebay-UID`. It must be a directory of
//! this user's that nobody else may enter: in `/tmp` anybody could have made one of that name before.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Failure, Result};

/// Sockets of processes end so.
const SOCKET_ENDING: &str = "sock";

/// Who runs this.
pub(crate) fn uid() -> u32 {
    // SAFETY: it has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// Their group.
pub(crate) fn gid() -> u32 {
    // SAFETY: as above.
    unsafe { libc::getegid() }
}

/// Where the directory is, whether it exists or not: as it was when first asked for, whatever the working directory is.
pub(crate) fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::path::absolute(by_environment()).unwrap_or_else(|_| by_environment()))
        .clone()
}

fn by_environment() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("FOREBAY_RUN_DIR") {
        return path;
    }
    match (uid(), set("XDG_RUNTIME_DIR")) {
        (0, _) => PathBuf::from("/run/forebay"),
        (_, Some(runtime)) => runtime.join("forebay"),
        (uid, None) => PathBuf::from(format!("/tmp/forebay-{uid}")),
    }
}

/// The directory, made if it is not there.
///
/// # Errors
/// If it cannot be made, or is not this user's alone.
pub(crate) fn made() -> Result<PathBuf> {
    let path = path();
    let made = DirBuilder::new().mode(0o700).create(&path);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        let failure = Failure::about(&path, "make the run directory", &error);
        return Err(Failure::new(format!("{failure}; FOREBAY_RUN_DIR names another one")));
    }
    check(&path)?;
    Ok(path)
}

/// Checks that a directory is this user's alone; a mode that lets others in is mended.
fn check(path: &Path) -> Result<()> {
    let unsafe_because = |why: String| {
        let path = path.display();
        Failure::new(format!(
            "{path}: cannot be the run directory: {why}; FOREBAY_RUN_DIR names another one"
        ))
    };
    let found =
        fs::symlink_metadata(path).map_err(|error| Failure::about(path, "look at it", &error))?;
    if !found.is_dir() {
        return Err(unsafe_because("it is no directory".to_owned()));
    }
    if found.uid() != uid() {
        return Err(unsafe_because(format!("it belongs to user {}", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|error| Failure::about(path, "close it to others", &error))?;
    }
    Ok(())
}

/// The socket of a process.
pub(crate) fn socket(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("{pid}.{SOCKET_ENDING}"))
}

/// Sockets that are there, dead or alive, with the process that their name says. None if the directory is not there,
/// or is not this user's alone.
pub(crate) fn sockets() -> Vec<(u32, PathBuf)> {
    let directory = path();
    if check(&directory).is_err() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(&directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let socket = path.extension().is_some_and(|ending| ending == SOCKET_ENDING);
        let pid =
            path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let (true, Some(pid)) = (socket, pid) {
            found.push((pid, path));
        }
    }
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_lets_others_in_is_closed_to_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        check(folder.path()).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_or_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(check(&file).is_err());
        assert!(check(&link).is_err());
        assert!(check(&folder.path().join("absent")).is_err());
    }
}
