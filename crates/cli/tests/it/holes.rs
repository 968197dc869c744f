//! Where data and holes are, while the kernel holds content that was not written yet.

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use crate::fixture::{Fixture, fuse, mounted};

const MIB: u64 = 1 << 20;
const LEN: u64 = 8 * MIB;
const AT: u64 = 3 * MIB;
/// A record, so that a hole begins right behind it.
const BYTES: usize = 128 << 10;

/// Changes the file and leaves it as it is then: perhaps not written yet, and open.
type Change = fn(&File) -> Mapping;

/// A shared mapping, if there is one; unmapped when it is dropped.
struct Mapping(*mut libc::c_void);

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it was mapped with this length, and nothing refers to it any more.
            unsafe { libc::munmap(self.0, LEN as usize) };
        }
    }
}

fn by_write(file: &File) -> Mapping {
    file.write_all_at(&[7; BYTES], AT).unwrap();
    Mapping(ptr::null_mut())
}

fn by_mapping(file: &File) -> Mapping {
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file of that length; the range that is written lies within.
    unsafe {
        let map = libc::mmap(ptr::null_mut(), LEN as usize, access, shared, file.as_raw_fd(), 0);
        assert!(map != libc::MAP_FAILED, "{}", Error::last_os_error());
        map.cast::<u8>().add(AT as usize).write_bytes(7, BYTES);
        Mapping(map)
    }
}

fn seek(file: &File, from: u64, whence: i32) -> Option<u64> {
    // SAFETY: it takes numbers only.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) };
    match u64::try_from(found) {
        Ok(found) => Some(found),
        Err(_) => {
            assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENXIO));
            None
        }
    }
}

fn run(program: &str, arguments: &[&str], at: &Path) {
    let output = Command::new(program).args(arguments).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

#[test]
fn data_that_the_kernel_holds_back_is_no_hole() {
    if !fuse() {
        return;
    }
    let changes: [(&str, Change); 2] = [("write", by_write), ("mapping", by_mapping)];
    for mode in [&[][..], &["--kernel-cache"]] {
        for (what, change) in changes {
            let fixture = Fixture::new();
            fixture.pool("tank.img");
            let at = fixture.folder("at");
            let _running = mounted(&fixture, &[&["mount", "tank.img", "at"], mode].concat(), &at);
            let file = File::options();
            let file = file.clone().read(true).write(true).create(true).open(at.join("a")).unwrap();
            file.set_len(LEN).unwrap();
            let map = change(&file);
            let told = format!("{what} {mode:?}");
            assert_eq!(seek(&file, 0, libc::SEEK_DATA), Some(AT), "{told}");
            assert_eq!(seek(&file, AT, libc::SEEK_HOLE), Some(AT + BYTES as u64), "{told}");
            assert_eq!(seek(&file, AT + BYTES as u64, libc::SEEK_DATA), None, "{told}");
            assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Some(0), "{told}");

            // Again, by tools that copy data and leave holes out.
            let mut wanted = vec![0; LEN as usize];
            wanted[AT as usize..][..BYTES].fill(7);
            drop(map);
            let _map = change(&file);
            run("cp", &["--sparse=auto", "a", "b"], &at);
            assert!(fs::read(at.join("b")).unwrap() == wanted, "{told}: cp");
            fs::create_dir(at.join("out")).unwrap();
            run("tar", &["-S", "-cf", "a.tar", "a"], &at);
            run("tar", &["-S", "-C", "out", "-xf", "a.tar"], &at);
            assert!(fs::read(at.join("out/a")).unwrap() == wanted, "{told}: tar");
        }
    }
}

#[test]
fn many_may_ask_at_a_time_while_others_write() {
    if !fuse() {
        return;
    }
    for mode in [&[][..], &["--kernel-cache"]] {
        let fixture = Fixture::new();
        fixture.pool("tank.img");
        let at = fixture.folder("at");
        let _running = mounted(&fixture, &[&["mount", "tank.img", "at"], mode].concat(), &at);
        std::thread::scope(|scope| {
            for n in 0..16 {
                let path = at.join(format!("file {}", n % 4));
                scope.spawn(move || {
                    let mut options = File::options();
                    let file = options.read(true).write(true).create(true).open(path).unwrap();
                    for round in 0..20 {
                        file.write_all_at(&[1; 4096], (n * 20 + round) * 8192).unwrap();
                        assert!(seek(&file, 0, libc::SEEK_DATA).is_some());
                        file.sync_data().unwrap();
                    }
                });
            }
        });
    }
}
