//! What executes requests: lanes, each with its queue and a backend's share of the work.
//!
//! * [`core`]: what all backends share: lanes, their steps, how requests end;
//! * [`entry`]: how requests come in: checks, the bound of the queues, raising and cancelling;
//! * [`queued`]: a device with its owner, and closing;
//! * [`uring`] over [`ring`]: io_uring, a ring a lane; whoever waits drives it, a reaper otherwise;
//! * [`threads`]: a pool of threads and blocking calls, where io_uring is refused;
//! * [`attended`]: flushes that whoever waits for them executes;
//! * [`probe`]: which of the two it is to be, and why;
//! * [`blocking`]: those calls;
//! * [`transfer`]: what short transfers and errors of the system mean, for both;
//! * the memory device ([`crate::memory`]) brings a backend of its own.
//!
//! Locking: one lock a lane, `io-queue`; callbacks run outside it. See [`core`].
//!
//! Deliberately absent: opening and looking at files ([`crate::file`]), scheduling
//! ([`crate::queue`]).

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

/// How a file's engine is to be set up.
pub(crate) struct Setup {
    pub(crate) choice: EngineChoice,
    /// Queues, each with its ring. 0: the default of the backend.
    pub(crate) queues: usize,
    /// Threads of the pool. 0: two a CPU, at least 8.
    pub(crate) threads: usize,
    pub(crate) tunables: Arc<IoTunables>,
}

/// A file or block device with its engine running.
pub(crate) enum FileEngine {
    Uring(QueuedDevice<uring::Uring>),
    Threads(QueuedDevice<threads::Threads>),
}

/// Starts an engine over `fd`. `info.engine` is overwritten with what came of it.
///
/// # Errors
/// If threads cannot be started, or io_uring was asked for and is refused: the text says why.
pub(crate) fn start(fd: OwnedFd, mut info: DeviceInfo, setup: &Setup) -> io::Result<FileEngine> {
    let why = match probe::io_uring(setup.choice) {
        probe::Verdict::Use => {
            info.engine = Engine::IoUring;
            match uring::start(fd, info.clone(), setup) {
                Ok(queued) => return Ok(FileEngine::Uring(queued)),
                Err((error, _)) if setup.choice == EngineChoice::IoUring => return Err(error),
                Err((error, fd)) => {
                    info.engine = Engine::Threads { why: probe::explain(&error) };
                    return threads::start(fd, info, setup).map(FileEngine::Threads);
                }
            }
        }
        probe::Verdict::Refused(error) if setup.choice == EngineChoice::IoUring => {
            return Err(io::Error::new(error.kind(), probe::explain(&error)));
        }
        probe::Verdict::Refused(error) => probe::explain(&error),
        probe::Verdict::NotWanted => "asked for".to_owned(),
    };
    info.engine = Engine::Threads { why };
    threads::start(fd, info, setup).map(FileEngine::Threads)
}

macro_rules! each {
    ($self:ident, $queued:ident => $do:expr) => {
        match $self {
            FileEngine::Uring($queued) => $do,
            FileEngine::Threads($queued) => $do,
        }
    };
}

impl Device for FileEngine {
    fn submit(&self, request: Request) {
        each!(self, queued => queued.submit(request));
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        each!(self, queued => queued.submit_all(requests));
    }

    fn info(&self) -> &DeviceInfo {
        each!(self, queued => queued.info())
    }

    fn health(&self) -> Health {
        each!(self, queued => queued.health())
    }

    fn stats(&self) -> DeviceStats {
        each!(self, queued => queued.stats())
    }

    fn help(&self, waiter: &Waiter) {
        each!(self, queued => queued.help(waiter));
    }

    fn close(&self) {
        each!(self, queued => queued.close());
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
