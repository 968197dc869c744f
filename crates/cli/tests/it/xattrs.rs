//! Extended attributes, as processes with and without privileges see them.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Fixture, fuse, mounted, root};
use crate::set_id::{Aligned, Become, by, nobody};

const PLAIN: &CStr = c"user.plain";
const TRUSTED: &CStr = c"trusted.secret";

/// The length of the list of names, asked for without and with a buffer; 255 if it fails. Calls the
/// system and nothing else.
fn listed(path: &CStr, buffer: &mut Aligned) -> (isize, isize) {
    // SAFETY: a string with its zero, and no buffer.
    let probed = unsafe { libc::listxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    let (start, len) = (buffer.0.as_mut_ptr().cast(), buffer.0.len());
    // SAFETY: a string with its zero, and a buffer of that length.
    (probed, unsafe { libc::listxattr(path.as_ptr(), start, len) })
}

fn sees(path: &CStr, buffer: &mut Aligned, names: &[&CStr]) -> i32 {
    let bytes: usize = names.iter().map(|name| name.to_bytes_with_nul().len()).sum();
    let wanted = bytes as isize;
    i32::from(listed(path, buffer) != (wanted, wanted))
}

/// Nobody, with all capabilities in a user namespace of its own; without them where the system
/// allows no such namespaces.
fn nobody_with_capabilities() -> bool {
    if !nobody() {
        return false;
    }
    // SAFETY: it takes a number.
    unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    true
}

#[test]
fn trusted_attributes_are_hidden_from_others() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let _running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    let file = at.join("file");
    fs::write(&file, "").unwrap();
    let path = CString::new(file.as_os_str().as_bytes()).unwrap();
    for name in [PLAIN, TRUSTED] {
        let (name_at, value) = (name.as_ptr(), c"v".as_ptr().cast());
        // SAFETY: strings with their zeros, and a value of one byte.
        let set = unsafe { libc::setxattr(path.as_ptr(), name_at, value, 1, 0) };
        assert_eq!(set, 0, "{name:?}: {}", std::io::Error::last_os_error());
    }
    by(|| true, &file, &file, |path, _, buffer| sees(path, buffer, &[PLAIN, TRUSTED]));
    for become_them in [nobody as Become, nobody_with_capabilities] {
        by(become_them, &file, &file, |path, _, buffer| sees(path, buffer, &[PLAIN]));
    }
}
