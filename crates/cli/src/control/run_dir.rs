//! The run directory: sockets, logs and pool locks of the daemons of one user.
//!
//! The path is `$FOREBAY_RUN_DIR` if set; else `/run/forebay` for root, so that a shell finds the
//! mounts of the boot; else `$XDG_RUNTIME_DIR/forebay`; else `/tmp/forebay-UID`. The directory must
//! belong to this user and be closed to others, because any user can create a directory of that
//! name in `/tmp`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
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

/// Checks that a directory belongs to this user and is closed to others. It may have another
/// purpose, so its mode is never changed.
fn check(path: &Path) -> Result<()> {
    let unsafe_because = |why: String| {
        let path = path.display();
        Failure::new(format!(
            "{path}: cannot be the run directory: {why}; set FOREBAY_RUN_DIR to a directory of your own"
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
    let mode = found.mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(unsafe_because(format!("its mode {mode:o} admits other users; it needs 700"))),
    }
}

/// The socket path of a process.
pub(crate) fn socket(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("{pid}.{SOCKET_EXTENSION}"))
}

/// All sockets in the run directory with the process ids in their names. Empty if the directory is
/// missing.
///
/// # Errors
/// If it cannot be read, or other users can access it.
pub(crate) fn sockets() -> Result<Vec<(u32, PathBuf)>> {
    let directory = path();
    if fs::symlink_metadata(&directory).is_err() {
        return Ok(Vec::new());
    }
    check(&directory)?;
    let entries = fs::read_dir(&directory)
        .map_err(|error| Failure::about(&directory, "read the run directory", &error))?;
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
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_open_to_others_is_refused_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o755, 0o710, 0o777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let refused = check(folder.path()).unwrap_err().message;
            assert!(refused.contains(&format!("{mode:o}")), "{refused}");
            assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, mode);
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        check(folder.path()).unwrap();
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
