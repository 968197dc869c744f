//! Synchronous writes: what a call has returned from is there after the serving process was killed.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::{io, ptr};

use crate::fixture::{Fixture, fuse, mounted};

const BYTES: usize = 8192;

type Call = fn(&Path) -> io::Result<Vec<u8>>;

/// Ways to write so that the return of the call is a promise. Each returns what its file then
/// holds.
const CALLS: [(&str, Call); 10] = [
    ("O_DSYNC", |at| written(at, libc::O_DSYNC)),
    ("O_SYNC", |at| written(at, libc::O_SYNC)),
    ("O_DIRECT and O_DSYNC", |at| written(at, libc::O_DSYNC | libc::O_DIRECT)),
    ("RWF_DSYNC", |at| written_with(at, libc::RWF_DSYNC)),
    ("RWF_SYNC", |at| written_with(at, libc::RWF_SYNC)),
    ("O_APPEND", appended),
    ("an overwrite", overwritten),
    ("fallocate", allocated),
    ("copy_file_range", copied),
    ("msync", mapped),
];

fn open(at: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(at)
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

/// Content where direct I/O takes it.
#[repr(align(4096))]
struct Aligned([u8; BYTES]);

fn written(at: &Path, flags: i32) -> io::Result<Vec<u8>> {
    let content = Box::new(Aligned([7; BYTES]));
    open(at, flags)?.write_all(&content.0)?;
    Ok(content.0.to_vec())
}

fn written_with(at: &Path, flags: i32) -> io::Result<Vec<u8>> {
    let (file, content) = (open(at, 0)?, vec![8; BYTES]);
    let part = libc::iovec { iov_base: content.as_ptr() as *mut _, iov_len: content.len() };
    // SAFETY: the vector names `content`, which outlives the call.
    check(unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, 0, flags) })?;
    Ok(content)
}

fn appended(at: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(at, libc::O_APPEND | libc::O_DSYNC)?;
    file.write_all(&[1; 100])?;
    file.write_all(&[2; 5000])?;
    Ok([vec![1; 100], vec![2; 5000]].concat())
}

fn overwritten(at: &Path) -> io::Result<Vec<u8>> {
    fs::write(at, vec![1; BYTES])?;
    File::open(at)?.sync_all()?;
    open(at, libc::O_DSYNC)?.write_all(&[9; 1000])?;
    Ok([vec![9; 1000], vec![1; BYTES - 1000]].concat())
}

fn allocated(at: &Path) -> io::Result<Vec<u8>> {
    let file = open(at, libc::O_SYNC)?;
    // SAFETY: it takes numbers only.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, BYTES as i64) } as isize)?;
    Ok(vec![0; BYTES])
}

fn copied(at: &Path) -> io::Result<Vec<u8>> {
    let from = at.with_extension("from");
    fs::write(&from, vec![4; BYTES])?;
    let (from, to) = (File::open(from)?, open(at, libc::O_DSYNC)?);
    let (from, to, none) = (from.as_raw_fd(), to.as_raw_fd(), ptr::null_mut());
    // SAFETY: without offsets it takes numbers only.
    let copied = unsafe { libc::copy_file_range(from, none, to, none, BYTES, 0) };
    assert_eq!(check(copied)?, BYTES);
    Ok(vec![4; BYTES])
}

fn mapped(at: &Path) -> io::Result<Vec<u8>> {
    let file = open(at, 0)?;
    file.set_len(BYTES as u64)?;
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is long enough; it is unmapped below.
    unsafe {
        let map = libc::mmap(ptr::null_mut(), BYTES, access, shared, file.as_raw_fd(), 0);
        if map == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        map.cast::<u8>().write_bytes(5, BYTES);
        check(libc::msync(map, BYTES, libc::MS_SYNC) as isize)?;
        libc::munmap(map, BYTES);
    }
    Ok(vec![5; BYTES])
}

#[test]
fn synchronous_writes_survive_a_kill() {
    if !fuse() {
        return;
    }
    for mode in [&[][..], &["--kernel-cache"]] {
        for (what, call) in CALLS {
            let fixture = Fixture::new();
            fixture.pool("tank.img");
            let at = fixture.folder("at");
            let arguments = [&["mount", "tank.img", "at"], mode].concat();
            // No transaction group comes in between: only the log can hold the write.
            let running = mounted(&fixture, &arguments, &at);
            fixture.ok(&["tunable", "set", "tank", "txg_timeout_ms", "600000"]);
            let content = call(&at.join("file"));
            running.signal(libc::SIGKILL);
            running.wait();
            fixture.ok(&["umount", "at"]);
            let content = content.unwrap_or_else(|error| panic!("{what} {mode:?}: {error}"));
            let running = mounted(&fixture, &arguments, &at);
            let found = fs::read(at.join("file")).unwrap();
            assert!(found == content, "{what} {mode:?}: {} bytes", found.len());
            drop(running);
        }
    }
}

#[test]
fn a_mapping_that_finds_no_space_fails_each_fsync_until_it_is_made_good() {
    if !fuse() {
        return;
    }
    // More than the pool has. Each piece has other content, so that none is packed away.
    const LEN: usize = 96 << 20;
    for mode in [&[][..], &["--kernel-cache"]] {
        let fixture = Fixture::new();
        fixture.pool("tank.img");
        let at = fixture.folder("at");
        let _running = mounted(&fixture, &[&["mount", "tank.img", "at"], mode].concat(), &at);
        let file = open(&at.join("file"), 0).unwrap();
        file.set_len(LEN as u64).unwrap();
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let mut random = fs::File::open("/dev/urandom").unwrap();
        // SAFETY: a new mapping of a file that is long enough; it is unmapped below, and nothing
        // refers to it then.
        unsafe {
            let map = libc::mmap(ptr::null_mut(), LEN, access, shared, file.as_raw_fd(), 0);
            assert!(map != libc::MAP_FAILED, "{}", Error::last_os_error());
            let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN);
            io::Read::read_exact(&mut random, bytes).unwrap();
            assert!(libc::msync(map, LEN, libc::MS_SYNC) != 0, "{mode:?}: all of it was written");
            libc::munmap(map, LEN);
        }
        // The kernel reports what it learns itself, each once; then the file system is asked.
        for _ in 0..3 {
            file.sync_all().unwrap_err();
        }
        for _ in 0..2 {
            let failed = [file.sync_all(), file.sync_data()];
            let numbers = failed.map(|done| done.unwrap_err().raw_os_error());
            assert_eq!(numbers, [Some(libc::EIO); 2], "{mode:?}");
        }
        file.set_len(0).unwrap();
        file.sync_all().unwrap();
    }
}
