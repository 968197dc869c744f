//! Shared by all tests: an arena, and running without io_uring.
//!
//! With `FOREBAY_TEST_REFUSE_IO_URING=1` the whole binary runs under a seccomp filter that refuses
//! io_uring, as in a container. Then every test of a file runs on the thread pool. The filter is
//! installed before `main`, so it covers every test and every thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, OpenError, OpenOptions, Request};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The variable that requests a run without io_uring.
const REFUSE: &str = "FOREBAY_TEST_REFUSE_IO_URING";

/// Returns whether this run is without io_uring.
pub(crate) fn is_refused() -> bool {
    std::env::var_os(REFUSE).is_some_and(|value| value == "1")
}

/// Checks that io_uring is refused if and only if the run is without it.
pub(crate) fn setup() {
    if is_refused() {
        assert_eq!(uring_errno(), Some(libc::EPERM), "the filter is in place");
    }
}

/// Returns the kernel's answer to a request for a ring without parameters: `EFAULT` if rings are
/// allowed.
pub(crate) fn uring_errno() -> Option<i32> {
    // SAFETY: the kernel cannot read parameters at null, and returns an error.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null_mut::<u8>()) };
    (result < 0).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

#[used]
// SAFETY: the loader calls the entries of this section before `main`, with the environment set up.
// `before_main` has the expected signature, with arguments left out.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    if is_refused()
        && let Err(error) = refuse_io_uring()
    {
        eprintln!("{REFUSE} is set, but the filter cannot be installed: {error}");
        std::process::abort();
    }
}

/// Makes `io_uring_setup` fail with `EPERM`, from now on and for all threads.
fn refuse_io_uring() -> Result<(), Box<dyn std::error::Error>> {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter)?)?;
    Ok(())
}

/// An arena for a test.
pub(crate) fn arena() -> Arc<Arena> {
    setup();
    let config = ArenaConfig { limit_bytes: 64 << 20, huge_pages: HugePages::Never };
    Arena::new(config).expect("address space")
}

/// A buffer of `len` bytes `fill`.
pub(crate) fn filled(arena: &Arena, len: usize, fill: u8) -> Buffer {
    let mut buffer = arena.alloc(len).expect("room in the arena");
    buffer.fill(fill);
    buffer
}

pub(crate) fn folder_with(bytes: u64) -> (tempfile::TempDir, PathBuf) {
    setup();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("medium");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    (folder, path)
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions::default()
}

/// The error, which must name the path.
pub(crate) fn refused(path: impl AsRef<Path>, options: &OpenOptions) -> OpenError {
    setup();
    let path = path.as_ref();
    let error = FileDevice::open(path, options).expect_err("must not open");
    let text = error.to_string();
    assert!(text.starts_with(&*path.to_string_lossy()), "{text}");
    error
}

pub(crate) fn read(device: &FileDevice, arena: &Arena, offset: u64, len: usize) -> Vec<u8> {
    let device: &dyn Device = device;
    device.run(Request::read(offset, arena.alloc(len).unwrap())).into_buffer().unwrap().to_vec()
}

pub(crate) fn write(device: &FileDevice, arena: &Arena, offset: u64, len: usize, fill: u8) {
    let device: &dyn Device = device;
    device.run(Request::write(offset, filled(arena, len, fill))).result.unwrap();
}
