//! Mounts whose place in the mount table others change.

use std::fs;
use std::os::unix::fs::MetadataExt;

use forebay_fuse::{MountError, MountFlags, mount_info, mount_null, unmount_dead};

use crate::{Cover, options, permitted};

#[test]
fn a_mount_over_ours_is_left_alone() {
    if !permitted() {
        return;
    }
    // Over the mount, and over a directory above it.
    for covered in ["above/at", "above"] {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(directory.path().join("above/at")).expect("a mount point");
        let mount = mount_null(&directory.path().join("above/at"), &options(false));
        let mount = mount.expect("a mount");
        let over = directory.path().canonicalize().expect("its path").join(covered);
        let Some(cover) = Cover::new(&over) else { return };
        fs::write(over.join("precious"), "content").expect("a file");
        let mut read_only = MountFlags::default();
        read_only.read_only = true;
        for refused in [mount.unmount(), mount.unmount_lazily(), mount.remount(&read_only)] {
            let Err(error @ MountError::Covered { .. }) = refused else { panic!("{refused:?}") };
            let wanted = format!("tmpfs (cover) is mounted over it at {}", over.display());
            assert!(error.to_string().contains(&wanted), "{error}");
        }
        assert!(!mount.has_ended());
        assert_eq!(fs::read(over.join("precious")).expect("it is there"), b"content");
        fs::write(over.join("precious"), "it is writable").expect("a write");
        drop(cover);
        mount.unmount().expect("it unmounts");
        assert_eq!(mount_info(mount.path()).expect("the table"), None);
    }
}

#[test]
fn a_mount_is_found_after_a_rename_above_it() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (before, after) = (directory.path().join("before"), directory.path().join("after"));
    fs::create_dir_all(before.join("at")).expect("a mount point");
    let mount = mount_null(&before.join("at"), &options(false)).expect("a mount");
    fs::rename(&before, &after).expect("a rename");
    let now = after.join("at").canonicalize().expect("its path");
    assert_eq!(mount.current_path(), Some(now));
    let mut flags = MountFlags::default();
    flags.no_exec = true;
    match mount.remount(&flags) {
        Ok(()) => assert!(mount.flags().expect("they are shown").no_exec),
        Err(why @ MountError::RemountNotPermitted { .. }) => {
            forebay_base::testing::skip("remount", why);
        }
        Err(error) => panic!("{error}"),
    }
    mount.unmount().expect("it unmounts");
    assert_eq!(mount_info(&after.join("at")).expect("the table"), None);
}

/// Its own mount stays behind, dead, until it can be reached.
#[test]
fn a_broken_session_leaves_the_mount_over_it_alone() {
    if !permitted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mount = mount_null(directory.path(), &options(false)).expect("a mount");
    let at = mount.path().to_path_buf();
    let device = fs::metadata(&at).expect("its attributes").dev();
    let control = tempfile::tempdir().expect("a directory");
    let Some(_control) = Cover::control(control.path()) else { return };
    let cut = control.path().join(format!("{}/abort", device & 0xff | device >> 12 & 0xfff00));
    let Some(cover) = Cover::new(&at) else { return };
    fs::write(at.join("precious"), "content").expect("a file");
    fs::write(&cut, "1").expect("it is cut off");
    mount.wait();
    assert_eq!(fs::read(at.join("precious")).expect("it is there"), b"content");
    drop(cover);
    unmount_dead(&at).expect("it is cleared");
    assert_eq!(mount_info(&at).expect("the table"), None);
}
