//! FUSE sessions: the handshake with the kernel and the threads that take requests.
//!
//! Each thread has its own clone of the `/dev/fuse` descriptor (`FUSE_DEV_IOC_CLONE`). A reply goes
//! out through the descriptor on which its request came in, from whichever thread sends it.

use std::io;
use std::os::fd::OwnedFd;

use forebay_base::sync::Arc;
use fuser::SessionACL;

use super::dispatch::Dispatcher;
use super::{KernelNotifier, Server};
use crate::counters::MountMetrics;
use crate::options::MountOptions;

/// A session that has completed the handshake and takes no requests yet.
pub(crate) struct Session<S: Server> {
    inner: fuser::Session<Dispatcher<S>>,
    server: Arc<S>,
}

/// Completes the FUSE handshake over `device`, which is already attached to a mount point.
pub(crate) fn start<S: Server>(
    device: OwnedFd,
    server: Arc<S>,
    metrics: Arc<MountMetrics>,
    options: &MountOptions,
) -> io::Result<Session<S>> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads);
    config.clone_fd = options.threads > 1;
    // The kernel enforces `allow_other`, so `fuser` need not check it again.
    let dispatcher = Dispatcher {
        server: server.clone(),
        metrics,
        options: options.clone(),
        page_cache: options.kernel_cache,
    };
    let inner = fuser::Session::from_fd(dispatcher, device, SessionACL::All, config)?;
    Ok(Session { inner, server })
}

impl<S: Server> Session<S> {
    /// Serves requests on the session's own threads. Returns when the kernel ends the session.
    pub(crate) fn run(self) -> io::Result<()> {
        self.server.started(&KernelNotifier::new(self.inner.notifier()));
        let end = self.inner.run();
        self.server.ended();
        end
    }
}
