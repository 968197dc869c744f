//! Set-user-id, set-group-id and file capabilities go when somebody changes a file who may not keep
//! them. The table is what ext4 does.

use std::ffi::CString;
use std::fs;
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::fixture::{Fixture, fuse, mounted, root};

const NOBODY: u32 = 65534;
const BYTES: usize = 8192;
const CAPABILITY: &std::ffi::CStr = c"security.capability";
/// `cap_net_raw=ep`, as `setcap` writes it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// What is done to a file by a name; 0 says that it worked. Runs between `fork` and `exec`, so it
/// calls the system and nothing else.
pub(crate) type Change = fn(&std::ffi::CStr, &std::ffi::CStr, &mut Aligned) -> i32;

#[repr(align(4096))]
pub(crate) struct Aligned(pub(crate) [u8; BYTES]);

fn open(path: &std::ffi::CStr, flags: i32) -> i32 {
    // SAFETY: the path is a string with its zero.
    unsafe { libc::open(path.as_ptr(), flags) }
}

fn write(path: &std::ffi::CStr, flags: i32, buffer: &Aligned) -> i32 {
    let file = open(path, libc::O_WRONLY | flags);
    // SAFETY: the buffer has so many bytes.
    i32::from(unsafe { libc::write(file, buffer.0.as_ptr().cast(), BYTES) } != BYTES as isize)
}

fn allocate(path: &std::ffi::CStr, mode: i32) -> i32 {
    let file = open(path, libc::O_WRONLY);
    // SAFETY: it takes numbers only.
    unsafe { libc::fallocate(file, mode, 0, 3000) }
}

const CHANGES: [(&str, Change); 10] = [
    ("write", |path, _, buffer| write(path, 0, buffer)),
    ("direct write", |path, _, buffer| write(path, libc::O_DIRECT, buffer)),
    ("append", |path, _, buffer| write(path, libc::O_APPEND, buffer)),
    ("fallocate", |path, _, _| allocate(path, 0)),
    ("punch", |path, _, _| allocate(path, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)),
    ("zero range", |path, _, _| allocate(path, libc::FALLOC_FL_ZERO_RANGE)),
    // SAFETY: the path is a string with its zero.
    ("truncate", |path, _, _| unsafe { libc::truncate(path.as_ptr(), 7) }),
    ("ftruncate", |path, _, _| {
        let file = open(path, libc::O_WRONLY);
        // SAFETY: it takes numbers only.
        unsafe { libc::ftruncate(file, 7) }
    }),
    ("O_TRUNC", |path, _, _| i32::from(open(path, libc::O_WRONLY | libc::O_TRUNC) < 0)),
    ("copy_file_range", |path, other, _| {
        let (from, to) = (open(other, libc::O_RDONLY), open(path, libc::O_WRONLY));
        let none = std::ptr::null_mut();
        // SAFETY: without offsets it takes numbers only.
        i32::from(unsafe { libc::copy_file_range(from, none, to, none, 100, 0) } != 100)
    }),
];

/// Who a child becomes; false if that fails. As [`Change`].
pub(crate) type Become = fn() -> bool;

pub(crate) fn nobody() -> bool {
    // SAFETY: they take numbers, and no groups.
    unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(NOBODY) == 0
            && libc::setuid(NOBODY) == 0
    }
}

fn nobody_in_group_0() -> bool {
    // SAFETY: one group, and numbers.
    unsafe { libc::setgroups(1, &0) == 0 && libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 }
}

/// User 0 without the right to keep set-id bits, and in no group that has the file.
fn weak_root() -> bool {
    /// As `capset` takes it.
    #[repr(C)]
    struct Head {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Masks {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    const FSETID: u32 = 1 << 4;
    let mut head = Head { version: VERSION_3, pid: 0 };
    let mut masks = [Masks::default(); 2];
    // SAFETY: a head, and two masks as this version has them.
    if unsafe { libc::syscall(libc::SYS_capget, &mut head, masks.as_mut_ptr()) } != 0 {
        return false;
    }
    masks[0].effective &= !FSETID;
    // SAFETY: the same; and no groups, and a number.
    unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(NOBODY) == 0
            && libc::syscall(libc::SYS_capset, &mut head, masks.as_ptr()) == 0
    }
}

/// The same, with all capabilities in a user namespace of its own; without them where the system
/// allows no such namespaces.
fn root_elsewhere() -> bool {
    if !weak_root() {
        return false;
    }
    // SAFETY: it takes a number.
    unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    true
}

/// Has a child do it as somebody else.
pub(crate) fn by(become_them: Become, path: &Path, other: &Path, change: Change) {
    let c = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (path, other, mut buffer) = (c(path), c(other), Box::new(Aligned([1; BYTES])));
    // SAFETY: until it exits, the child calls the system only, and touches memory that is its own.
    let done = unsafe {
        match libc::fork() {
            0 => {
                let done = if become_them() { change(&path, &other, &mut buffer) } else { 77 };
                libc::_exit(done.abs());
            }
            child => {
                let mut status = 0;
                assert_eq!(
                    libc::waitpid(child, &mut status, 0),
                    child,
                    "{}",
                    Error::last_os_error()
                );
                status
            }
        }
    };
    assert_eq!(done, 0, "the child could not do it");
}

fn set_capability(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let (name, value) = (CAPABILITY.as_ptr(), NET_RAW.as_ptr().cast());
    // SAFETY: strings with their zeros, and a value of that length.
    let set = unsafe { libc::setxattr(path.as_ptr(), name, value, NET_RAW.len(), 0) };
    assert_eq!(set, 0, "{}", Error::last_os_error());
}

fn has_capability(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: strings with their zeros; no value is written.
    unsafe { libc::getxattr(path.as_ptr(), CAPABILITY.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

#[test]
fn set_id_bits_and_capabilities_do_not_survive_a_change() {
    if !fuse() || !root() {
        return;
    }
    for mode in [&[][..], &["--kernel-cache"]] {
        let fixture = Fixture::new();
        fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        fixture.pool("tank.img");
        let at = fixture.folder("at");
        let _running = mounted(&fixture, &[&["mount", "tank.img", "at"], mode].concat(), &at);
        let (file, other) = (at.join("file"), at.join("other"));
        fs::write(&other, [3; BYTES]).unwrap();
        let fresh = |bits: u32| {
            let _ = fs::remove_file(&file);
            fs::write(&file, [2; BYTES]).unwrap();
            set_capability(&file);
            // Last: setting attributes of any kind may clear them.
            fs::set_permissions(&file, fs::Permissions::from_mode(bits)).unwrap();
            assert_eq!(bits_of(&file), bits);
        };
        for (what, change) in CHANGES {
            let cases: [(&str, Become, u32, u32); 8] = [
                ("nobody", nobody, 0o6777, 0o777),
                ("nobody", nobody, 0o2777, 0o777),
                ("nobody", nobody, 0o6666, 0o666),
                // A mark for locking, which a member of the group may keep.
                ("a member", nobody_in_group_0, 0o6666, 0o2666),
                ("root without CAP_FSETID", weak_root, 0o6777, 0o777),
                ("root without CAP_FSETID", weak_root, 0o6666, 0o666),
                ("root of another namespace", root_elsewhere, 0o6777, 0o777),
                ("root of another namespace", root_elsewhere, 0o6666, 0o666),
            ];
            for (who, become_them, before, after) in cases {
                fresh(before);
                by(become_them, &file, &other, change);
                let told = format!("{what} {mode:?}: {before:o}, by {who}");
                assert_eq!(format!("{:o}", bits_of(&file)), format!("{after:o}"), "{told}");
                assert!(!has_capability(&file), "{told}: capabilities");
            }
        }
        for (before, after) in [(0o6777, 0o777), (0o6666, 0o2666)] {
            for (uid, gid) in [(Some(1), Some(1)), (None, Some(1))] {
                fresh(before);
                chown(&file, uid, gid).unwrap();
                assert_eq!(bits_of(&file), after, "chown {uid:?} {gid:?} {mode:?}");
                assert!(!has_capability(&file), "chown {mode:?}: capabilities");
            }
        }
        // By the owner, to the same owner and group.
        fresh(0o777);
        chown(&file, Some(NOBODY), None).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        // SAFETY: the path is a string with its zero.
        by(nobody, &file, &other, |path, _, _| unsafe { libc::chown(path.as_ptr(), !0, !0) });
        assert_eq!(bits_of(&file), 0o777, "chown to the same owner {mode:?}");
        // Root keeps the bits, and nobody keeps capabilities.
        for (what, change) in CHANGES {
            fresh(0o6777);
            by(|| true, &file, &other, change);
            assert_eq!(bits_of(&file), 0o6777, "{what} by root {mode:?}");
            assert!(!has_capability(&file), "{what} by root {mode:?}");
        }
    }
}

fn bits_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
