//! Which backend a file gets, and why.
//!
//! io_uring is refused in many places where it exists: by `kernel.io_uring_disabled`, by the
//! seccomp filter of a container, by a limit on locked memory. So it is tried, up to an operation
//! that goes through it, rather than looked for.
//!
//! Locking: none.

use std::io;

use rustix::io::Errno;

use super::ring;
use crate::file::EngineChoice;

/// What is to execute requests.
pub(super) enum Verdict {
    /// io_uring works.
    Use,
    /// It was not asked for.
    NotWanted,
    /// The system refuses it.
    Refused(io::Error),
}

/// Asks for io_uring, unless `choice` is against it.
pub(super) fn io_uring(choice: EngineChoice) -> Verdict {
    if choice == EngineChoice::Threads {
        return Verdict::NotWanted;
    }
    match ring::probe() {
        Ok(()) => Verdict::Use,
        Err(error) => Verdict::Refused(error),
    }
}

/// What `error` means when setting up io_uring, and what can be done about it.
pub(super) fn explain(error: &io::Error) -> String {
    let usual = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => match disabled() {
            Some(level @ ("1" | "2")) => {
                return format!(
                    "io_uring is refused: {error}; kernel.io_uring_disabled is {level}"
                );
            }
            _ => "a seccomp filter, as containers have it, or kernel.io_uring_disabled",
        },
        Some(Errno::NOSYS) => "a kernel without io_uring, or a seccomp filter",
        Some(Errno::NOMEM) => "the limit on locked memory (ulimit -l)",
        Some(Errno::MFILE | Errno::NFILE) => "the limit on open files (ulimit -n)",
        Some(Errno::INVAL) => "a kernel whose io_uring is too old",
        _ => "not a usual one",
    };
    format!("io_uring is refused: {error}; the usual reason: {usual}")
}

fn disabled() -> Option<&'static str> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    ["0", "1", "2"].into_iter().find(|level| *level == text.trim())
}
