//! The HTTP server.
//!
//! All who can reach the address may read: on a loopback address that is each local user. So the
//! server only reads, answers only requests that name it by an address, `localhost` or the name of
//! this host ([`host`]), and allows no other site to read its answers.
//!
//! # Invariants
//!
//! - Connections, the time of each, the size of a request and of an answer are bounded
//!   ([`Limits`]). A connection serves one request, so a slow client holds a slot for a bounded
//!   time. A connection beyond the limit is closed at once.
//! - The source is asked at most once per [`Limits::fresh`] for each kind of answer. More requests
//!   get the same answer.
//!
//! # Locking
//!
//! None. One thread runs all connections, and asks the source between them. If the source waits, no
//! request is answered meanwhile, and nothing else waits.

mod answer;
mod host;
mod samples;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_base::sync::Arc;
use forebay_base::sync::thread::spawn_named;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use self::answer::Site;
use self::host::Hosts;
use self::samples::Samples;
use crate::Snapshot;

/// Pause after an `accept` that failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server tells about. It is asked on the thread of the server, and must not wait for
/// anything that may take long.
pub trait Source: Send + Sync + 'static {
    /// The metrics now.
    fn snapshot(&self) -> Snapshot;

    /// What the page shows, as JSON.
    fn stats_json(&self) -> String;

    /// What the page shows about why the cache behaves as it does, as JSON.
    fn insight_json(&self) -> String {
        "{}".to_owned()
    }
}

/// Where and for whom to serve.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Address and port. With port 0 the system chooses one.
    pub address: SocketAddr,
    /// Whether the address may be another than a loopback address.
    pub allow_remote: bool,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time.
    pub connections: usize,
    /// The longest time until the header of a request is complete.
    pub header_time: Duration,
    /// The longest time of a connection, from the accept to the last byte of the answer.
    pub connection_time: Duration,
    /// The longest header of a request, in bytes; at least 8192.
    pub header_bytes: usize,
    /// The longest answer, in bytes.
    pub answer_bytes: usize,
    /// How long an answer of the source may be given again.
    pub fresh: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            header_time: Duration::from_secs(5),
            connection_time: Duration::from_secs(10),
            header_bytes: 16 << 10,
            answer_bytes: 8 << 20,
            fresh: Duration::from_millis(500),
        }
    }
}

/// Why a server did not start.
#[derive(Debug)]
pub enum ServerError {
    /// The address is not a loopback address, and remote clients are not allowed.
    NotLoopback(SocketAddr),
    /// Another socket has the address.
    InUse(SocketAddr),
    /// The system refused.
    Refused(SocketAddr, io::Error),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoopback(address) => write!(
                f,
                "cannot serve metrics at {address}: it is not a loopback address, so other hosts \
                 could read them"
            ),
            Self::InUse(address) => write!(
                f,
                "cannot serve metrics at {address}: the address is in use; give another port, or \
                 port 0 to have a free one chosen"
            ),
            Self::Refused(address, error) => {
                write!(f, "cannot serve metrics at {address}: {error}")
            }
        }
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A running server. Soon after it is dropped, the address and all connections are closed.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    // Its drop tells the thread to end. Nobody waits for the thread: it may be what drops this.
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Opens the address, and serves it on a thread.
    ///
    /// # Errors
    /// If the address is not allowed, in use or invalid, or the system refuses the thread.
    pub fn start(options: &ServerOptions, source: Arc<dyn Source>) -> Result<Self, ServerError> {
        let wanted = options.address;
        if !options.allow_remote && !wanted.ip().is_loopback() {
            return Err(ServerError::NotLoopback(wanted));
        }
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => ServerError::InUse(wanted),
            _ => ServerError::Refused(wanted, error),
        };
        let listener = StdListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime =
            Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let (stop, stopped) = oneshot::channel();
        let limits = options.limits;
        let hosts = Hosts::new(options.allow_remote);
        let run = move || {
            let site =
                Rc::new(Site { hosts, samples: RefCell::new(Samples::new(source, &limits)) });
            serve(&runtime, listener, stopped, &site, limits);
        };
        spawn_named("forebay-metrics", run).map_err(failed)?;
        Ok(Self { address, _stop: stop })
    }

    /// The address, with the port that the system has chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Accepts connections until the other end of `stopped` is dropped. Connections end with the set
/// of their tasks.
fn serve(
    runtime: &Runtime,
    listener: TcpListener,
    mut stopped: oneshot::Receiver<()>,
    site: &Rc<Site>,
    limits: Limits,
) {
    let connections = LocalSet::new();
    connections.block_on(runtime, async {
        // Each connection has a clone.
        let slots = Rc::new(());
        loop {
            let next = poll_fn(|context| match Pin::new(&mut stopped).poll(context) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => listener.poll_accept(context).map(Some),
            });
            match next.await {
                None => return,
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
                Some(Ok(_)) if Rc::strong_count(&slots) > limits.connections => {}
                Some(Ok((stream, _))) => {
                    let (site, slot) = (Rc::clone(site), Rc::clone(&slots));
                    tokio::task::spawn_local(async move {
                        connection(stream, &site, limits).await;
                        drop(slot);
                    });
                }
            }
        }
    });
}

/// Serves one request.
async fn connection(stream: TcpStream, site: &Rc<Site>, limits: Limits) {
    let service = service_fn(|request| {
        let answered = site.answer(&request);
        async move { Ok::<_, Infallible>(answered) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .keep_alive(false)
        .max_buf_size(limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    // Errors are those of the client: it sent something else than a request, is slow, or is gone.
    let _ = tokio::time::timeout(limits.connection_time, serving).await;
}
