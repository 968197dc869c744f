//! The choice of a file's backend, with its reason.
//!
//! Many systems have io_uring but refuse it: by `kernel.io_uring_disabled`, a container's seccomp
//! filter, or the limit on locked memory. So it is tried, up to one operation through a ring.
//!
//! Locking: none.

use std::io;

use rustix::io::Errno;

use super::ring;
use crate::file::EngineChoice;

/// The backend to use.
pub(super) enum Verdict {
    /// io_uring works.
    Use,
    /// io_uring was not requested.
    NotWanted,
    /// The system refuses io_uring.
    Refused(io::Error),
}

/// Probes io_uring, unless `choice` rules it out.
pub(super) fn io_uring(choice: EngineChoice) -> Verdict {
    if choice == EngineChoice::Threads {
        return Verdict::NotWanted;
    }
    match ring::probe() {
        Ok(()) => Verdict::Use,
        Err(error) => Verdict::Refused(error),
    }
}

/// Explains why setting up io_uring failed with `error`, and how to allow it.
pub(super) fn explain(error: &io::Error) -> String {
    let usual = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => match disabled() {
            Some(level @ ("1" | "2")) => {
                return format!(
                    "io_uring is refused: {error}; kernel.io_uring_disabled is {level}; set it to 0 to allow it"
                );
            }
            _ => "a container's seccomp filter, or kernel.io_uring_disabled",
        },
        Some(Errno::NOSYS) => "a kernel without io_uring, or a seccomp filter",
        Some(Errno::NOMEM) => "the limit on locked memory (ulimit -l)",
        Some(Errno::MFILE | Errno::NFILE) => "the limit on open files (ulimit -n)",
        Some(Errno::INVAL) => "a kernel whose io_uring is too old",
        _ => "unknown",
    };
    format!("io_uring is refused: {error}; usual cause: {usual}")
}

fn disabled() -> Option<&'static str> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    ["0", "1", "2"].into_iter().find(|level| *level == text.trim())
}
