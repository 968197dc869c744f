//! Engines: submission queues, and the backends that execute their operations.
//!
//! * [`core`]: the part that all backends share: queues, their runs, completion of requests;
//! * [`submit`]: submission: checks, the limit of the queues, raising and cancelling;
//! * [`queued_device`]: a device with its owner, and closing;
//! * [`uring`] over [`ring`]: io_uring, one ring per queue. A waiting thread drives it, otherwise a
//!   completion thread;
//! * [`threads`]: a thread pool with blocking calls, where io_uring is refused;
//! * [`inline_flush`]: flushes executed by the thread that waits for them;
//! * [`probe`]: the choice between the two, with its reason;
//! * [`blocking`]: the blocking calls;
//! * [`transfer`]: short transfers and system errors, for both;
//! * the memory device ([`crate::memory`]) has a backend of its own.
//!
//! Locking: one lock per queue, `io-submission-queue`. Callbacks run outside it. See [`core`].
//!
//! Opening and inspecting files is in [`crate::file`], scheduling in [`crate::queue`].

mod blocking;
mod core;
mod inline_flush;
mod probe;
mod queued_device;
mod ring;
mod submit;
mod threads;
mod transfer;
mod uring;

use std::io;
use std::os::fd::OwnedFd;

use forebay_base::sync::Arc;

pub(crate) use self::core::{Backend, Core, EndedOperation, QueueState, RunContext};
pub(crate) use self::queued_device::QueuedDevice;
use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::file::EngineChoice;
pub(crate) use crate::queue::MAX_SUBMISSION_QUEUES;
use crate::request::Request;
use crate::tunables::IoTunables;
use crate::waiter::Waiter;

/// The configuration of a file's engine.
pub(crate) struct Setup {
    pub(crate) choice: EngineChoice,
    /// Submission queues, each with its ring. 0: the default of the backend.
    pub(crate) queues: usize,
    /// Threads of the pool. 0: two per CPU, at least 8.
    pub(crate) threads: usize,
    pub(crate) tunables: Arc<IoTunables>,
}

/// A file or block device with its running engine.
pub(crate) enum FileEngine {
    Uring(QueuedDevice<uring::Uring>),
    Threads(QueuedDevice<threads::Threads>),
}

/// Starts an engine over `fd`, and sets `info.engine`.
///
/// # Errors
/// If threads cannot be started, or io_uring was required and is refused. The text says why.
pub(crate) fn start(fd: OwnedFd, mut info: DeviceInfo, setup: &Setup) -> io::Result<FileEngine> {
    let why = match probe::io_uring(setup.choice) {
        probe::Verdict::Use => {
            info.engine = Engine::IoUring;
            match uring::start(fd, info.clone(), setup) {
                Ok(queued) => return Ok(FileEngine::Uring(queued)),
                Err((error, _)) if setup.choice == EngineChoice::IoUring => return Err(error),
                Err((error, fd)) => {
                    let why = probe::explain(&error);
                    tracing::warn!(
                        device = &*info.name,
                        reason = why,
                        "using threads instead of io_uring"
                    );
                    info.engine = Engine::Threads { why };
                    return threads::start(fd, info, setup).map(FileEngine::Threads);
                }
            }
        }
        probe::Verdict::Refused(error) if setup.choice == EngineChoice::IoUring => {
            return Err(io::Error::new(error.kind(), probe::explain(&error)));
        }
        probe::Verdict::Refused(error) => probe::explain(&error),
        probe::Verdict::NotWanted => "requested".to_owned(),
    };
    tracing::info!(device = &*info.name, reason = why, "using threads instead of io_uring");
    info.engine = Engine::Threads { why };
    threads::start(fd, info, setup).map(FileEngine::Threads)
}

macro_rules! delegate {
    ($self:ident, $queued:ident => $do:expr) => {
        match $self {
            FileEngine::Uring($queued) => $do,
            FileEngine::Threads($queued) => $do,
        }
    };
}

impl Device for FileEngine {
    fn submit(&self, request: Request) {
        delegate!(self, queued => queued.submit(request));
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        delegate!(self, queued => queued.submit_all(requests));
    }

    fn info(&self) -> &DeviceInfo {
        delegate!(self, queued => queued.info())
    }

    fn health(&self) -> Health {
        delegate!(self, queued => queued.health())
    }

    fn stats(&self) -> DeviceStats {
        delegate!(self, queued => queued.stats())
    }

    fn help(&self, waiter: &Waiter) {
        delegate!(self, queued => queued.help(waiter));
    }

    fn close(&self) {
        delegate!(self, queued => queued.close());
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
