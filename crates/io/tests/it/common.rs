//! Shared by all tests: an arena, and running without io_uring.
//!
//! With `FOREBAY_TEST_REFUSE_IO_URING=1` the whole binary runs under a seccomp filter that refuses
//! io_uring, as in a container. Then every test of a file runs on the thread pool. The filter is
//! installed before `main`, so it covers every test and every thread.

use std::ffi::c_long;
use std::mem::offset_of;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::Arc;

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

/// A filter instruction that loads the word at `offset` of the system call's data.
fn load(offset: usize) -> libc::sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: offset as u32 }
}

/// A filter instruction that continues if the loaded word is `value`, and else skips `skip`
/// instructions.
fn unless_equal(value: c_long, skip: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: skip, k: value as u32 }
}

fn end(verdict: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: verdict }
}

/// Makes `io_uring_setup` fail with `EPERM`, from now on and for all threads.
fn refuse_io_uring() -> std::io::Result<()> {
    let mut steps = [
        load(offset_of!(libc::seccomp_data, nr)),
        unless_equal(libc::SYS_io_uring_setup, 1),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program =
        libc::sock_fprog { len: steps.len() as libc::c_ushort, filter: steps.as_mut_ptr() };
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the program and its instructions outlive the call, which copies them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
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
