//! The run directory: sockets, logs and pool locks of the daemons of one user.
//!
//! The path is `$FOREBAY_RUN_DIR` if set; else `/run/forebay` for root, so that a shell finds the
//! mounts of the boot; else `$XDG_RUNTIME_DIR/forebay`; else `/tmp/forebay-UID`. The directory must
//! belong to this user and be closed to others, because any user can create a directory of that
//! name in `/tmp`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Failure, Result};

/// Extension of sockets.
const SOCKET_EXTENSION: &str = "sock";

/// The effective user id.
pub(crate) fn uid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// The effective group id.
pub(crate) fn gid() -> u32 {
    // SAFETY: getegid has no preconditions and cannot fail.
    unsafe { libc::getegid() }
}

/// The path of the run directory, which may not exist. The first call fixes it, so a later change
/// of the working directory has no effect.
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

/// Returns the run directory, and creates it if needed.
///
/// # Errors
/// If it cannot be created, or other users can access it.
pub(crate) fn create() -> Result<PathBuf> {
    let path = path();
    let made = DirBuilder::new().mode(0o700).create(&path);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        let failure = Failure::about(&path, "create the run directory", &error);
        return Err(Failure::new(format!("{failure}; set FOREBAY_RUN_DIR to another directory")));
    }
    check(&path)?;
    Ok(path)
}

/// Checks that a directory belongs to this user, and closes it to others.
fn check(path: &Path) -> Result<()> {
    let unsafe_because = |why: String| {
        let path = path.display();
        Failure::new(format!(
            "{path}: cannot be the run directory: {why}; set FOREBAY_RUN_DIR to another directory"
        ))
    };
    let found = fs::symlink_metadata(path)
        .map_err(|error| Failure::about(path, "read its attributes", &error))?;
    if !found.is_dir() {
        return Err(unsafe_because("it is not a directory".to_owned()));
    }
    if found.uid() != uid() {
        return Err(unsafe_because(format!("it belongs to user {}", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|error| Failure::about(path, "close the directory to others", &error))?;
    }
    Ok(())
}

/// The socket path of a process.
pub(crate) fn socket(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("{pid}.{SOCKET_EXTENSION}"))
}

/// All sockets in the run directory with the process ids in their names. Empty if the directory is
/// missing or accessible to others.
pub(crate) fn sockets() -> Vec<(u32, PathBuf)> {
    let directory = path();
    if check(&directory).is_err() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(&directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let socket = path.extension().is_some_and(|ending| ending == SOCKET_EXTENSION);
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
    fn a_directory_open_to_others_is_closed() {
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
