//! Tests of the null file system, and with it of the transport and of mounts.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_fuse::{MountError, mount_info, mount_null, unmount_dead};

use crate::{names, options, permitted};

#[test]
fn names_and_sizes_in_both_modes() {
    if !permitted() {
        return;
    }
    for kernel_cache in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let mount = mount_null(directory.path(), &options(kernel_cache)).expect("a mount");
        let at = mount.path().to_path_buf();
        let mut file = File::create(at.join("one")).expect("a file");
        file.write_all(&[7; 5000]).expect("a write");
        drop(file);
        assert_eq!(fs::metadata(at.join("one")).expect("it is there").len(), 5000);
        let mut content = Vec::new();
        File::open(at.join("one")).expect("open").read_to_end(&mut content).expect("a read");
        assert_eq!(content.len(), 5000);
        fs::create_dir(at.join("directory")).expect("a directory");
        for n in 0..2000 {
            File::create(at.join("directory").join(format!("f{n}"))).expect("a file");
        }
        assert_eq!(names(&at.join("directory")).len(), 2000);
        assert_eq!(names(&at), ["directory", "one"]);
        assert!(fs::metadata(at.join("absent")).is_err());
        fs::hard_link(at.join("one"), at.join("two")).expect("a link");
        assert_eq!(fs::metadata(at.join("two")).expect("it is there").nlink(), 2);
        fs::rename(at.join("two"), at.join("directory/f0")).expect("a rename");
        assert_eq!(names(&at.join("directory")).len(), 2000);
        assert!(fs::remove_dir(at.join("directory")).is_err());
        fs::remove_dir_all(at.join("directory")).expect("all of it");
        assert_eq!(fs::metadata(at.join("one")).expect("it is there").nlink(), 1);
        mount.unmount().expect("it unmounts");
        assert!(mount.has_ended());
        let stats = mount.stats();
        let lookups =
            stats.counters.iter().find(|cell| cell.label == Some("lookup")).expect("a row");
        assert!(lookups.value > 0);
    }
}

/// The last close sends a request, and the kernel takes it back when it ends the session.
#[test]
fn the_last_close_of_a_detached_mount_is_no_error() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    for _ in 0..100 {
        let mount = mount_null(directory.path(), &options(false)).expect("a mount");
        let open = File::create(directory.path().join("held")).expect("a file");
        mount.unmount_lazily().expect("lazily");
        drop(open);
        assert_eq!(mount.wait(), None);
    }
}

#[test]
fn a_busy_mount_is_reported_and_any_process_can_unmount_it() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let mount = mount_null(path, &options(false)).expect("a mount");
    let seen = mount_info(path).expect("the table").expect("it is there");
    assert!(seen.ours && !seen.dead);
    assert_eq!(seen.source, "test/main");
    assert!(matches!(unmount_dead(path), Err(MountError::Alive { .. })));
    assert!(matches!(mount_null(path, &options(false)), Err(MountError::AlreadyMounted { .. })));

    let open = File::create(path.join("held")).expect("a file");
    let stdin = open.try_clone().expect("another handle");
    let mut other = std::process::Command::new("sleep").arg("60").stdin(stdin).spawn().expect("it");
    let Err(MountError::Busy { users, .. }) = mount.unmount() else { panic!("it is in use") };
    // This process also has a file open, but is not named.
    assert_eq!(users.iter().map(|user| user.pid).collect::<Vec<_>>(), [other.id()], "{users:?}");
    other.kill().expect("it runs");
    other.wait().expect("it has ended");
    assert!(!mount.has_ended());

    // A lazily detached mount is still served for the open file.
    mount.unmount_lazily().expect("lazily");
    assert_eq!(mount_info(path).expect("the table"), None);
    assert_eq!(open.metadata().expect("it is served").len(), 0);
    assert!(!mount.has_ended());
    drop(open);
    assert_eq!(mount.wait(), None);

    // Unmounted by another process.
    let mount = mount_null(path, &options(false)).expect("a mount");
    let status = std::process::Command::new("umount").arg(path).status();
    match status.is_ok_and(|status| status.success()) {
        true => assert_eq!(mount.wait(), None),
        false => forebay_base::testing::skip("umount", "this user may not unmount"),
    }
    drop(mount);
    assert_eq!(mount_info(path).expect("the table"), None);
}

#[test]
fn a_dropped_mount_is_gone() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    drop(mount_null(directory.path(), &options(false)).expect("a mount"));
    assert_eq!(mount_info(directory.path()).expect("the table"), None);
    assert_eq!(names(directory.path()), Vec::<String>::new());
}

/// Environment variable with the mount point of [`a_process_that_is_killed`].
const MOUNT_POINT_VAR: &str = "FOREBAY_TEST_MOUNT_AT";

/// Not a test of its own: the process that the next test kills.
#[test]
fn a_process_that_is_killed() {
    if let Some(at) = std::env::var_os(MOUNT_POINT_VAR) {
        let mount = mount_null(at.as_ref(), &options(true)).expect("a mount");
        mount.wait();
    }
}

/// Unmounts when a test fails half-way.
struct Cleared<'a>(&'a Path);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        let _ = unmount_dead(self.0);
    }
}

#[test]
fn a_mount_of_a_killed_server_is_detected_and_cleared() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let this = std::env::current_exe().expect("this program");
    let mut server = Command::new(this)
        .args(["--exact", "null::a_process_that_is_killed"])
        .env(MOUNT_POINT_VAR, path)
        .stdout(Stdio::null())
        .spawn()
        .expect("another process");
    let _cleared = Cleared(path);
    while mount_info(path).expect("the table").is_none() {
        assert_eq!(server.try_wait().expect("its state"), None, "it mounts and stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    File::create(path.join("file")).expect("a file");
    // From now on the kernel has cached these attributes.
    fs::metadata(path).expect("the root");
    assert!(!mount_info(path).expect("the table").expect("it is there").dead);
    server.kill().expect("it is killed");
    server.wait().expect("it is gone");
    let seen = mount_info(path).expect("the table").expect("it is there");
    assert!(seen.ours && seen.dead);
    assert!(matches!(mount_null(path, &options(false)), Err(MountError::Dead { .. })));
    unmount_dead(path).expect("it is cleared");
    assert_eq!(mount_info(path).expect("the table"), None);
    assert_eq!(names(path), Vec::<String>::new());
}
