//! A proxy between Forebay and an S3 server, which misbehaves as told, and counts requests.
//!
//! It speaks HTTP/1.1 without TLS. Each connection of a client has a thread, and a connection to
//! the server of its own. What it does may change at any time, and holds for requests that begin
//! afterwards; a stalled one goes on as soon as it no longer is to stall.
//!
//! Locking: `State` is held for a look; nobody waits under it, except for its own condition.

mod clock;
mod connection;
mod fault;
mod http;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clock::{Clock, SystemClock};
pub(crate) use fault::{Behaviour, Counts, Fault};

/// A proxy, until it is dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

/// What the threads share.
struct Shared {
    upstream: SocketAddr,
    clock: Box<dyn Clock>,
    state: Mutex<State>,
    /// The behaviour was changed.
    changed: Condvar,
}

struct State {
    behaviour: Behaviour,
    counts: Counts,
    in_flight: u64,
    /// Of the next random number.
    seed: u64,
    /// When the bodies that have passed are through, at the limited rate.
    free_at: Duration,
    ended: bool,
}

/// The SplitMix64 output for `seed`.
fn mix(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Proxy {
    /// Starts one in front of a server, which need not run yet.
    pub(crate) fn start(upstream: SocketAddr, seed: u64) -> io::Result<Self> {
        Self::start_with(upstream, seed, Box::new(SystemClock::default()))
    }

    fn start_with(upstream: SocketAddr, seed: u64, clock: Box<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = State {
            behaviour: Behaviour::default(),
            counts: Counts::default(),
            in_flight: 0,
            seed,
            free_at: clock.now(),
            ended: false,
        };
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { upstream, clock, state, changed: Condvar::new() });
        let accepted = Arc::clone(&shared);
        let accepting = thread::spawn(move || accepted.accept(&listener));
        Ok(Self { shared, address, accepting: Some(accepting) })
    }

    /// Where it is reached.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Behaves like this from now on.
    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.shared.lock().behaviour = behaviour;
        self.shared.changed.notify_all();
    }

    /// What has passed since the last call.
    pub(crate) fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.shared.lock().counts)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under it")
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.lock().ended {
                return;
            }
            let shared = Arc::clone(self);
            thread::spawn(move || connection::serve(client, &shared));
        }
    }

    /// Counts a request, until the result is dropped.
    fn begin(&self) -> InFlight<'_> {
        let mut state = self.lock();
        state.in_flight += 1;
        state.counts.requests += 1;
        state.counts.in_flight_max = state.counts.in_flight_max.max(state.in_flight);
        InFlight { shared: self }
    }

    /// Waits for the delay, and tells which fault hits a request of this method, and a random
    /// number for it.
    fn fault(&self, method: &str) -> Option<(Fault, u64)> {
        let (delay, fault, random) = {
            let mut state = self.lock();
            state.seed = state.seed.wrapping_add(1);
            (state.behaviour.delay, state.behaviour.fault, mix(state.seed))
        };
        self.clock.sleep(delay);
        let (fault, per_mille) = fault?;
        let concerns = match fault {
            Fault::Full => method == "PUT",
            Fault::Short => method == "GET",
            _ => true,
        };
        (concerns && random % 1000 < u64::from(per_mille)).then(|| {
            self.lock().counts.faults += 1;
            (fault, random / 1000)
        })
    }

    /// Waits until requests no longer stall. Returns whether the proxy goes on.
    fn wait_for_stall(&self) -> bool {
        let mut state = self.lock();
        while !state.ended && matches!(state.behaviour.fault, Some((Fault::Stalled, _))) {
            state = self.changed.wait(state).expect("no thread panics under it");
        }
        !state.ended
    }

    /// Waits until so many bytes of a body may pass.
    fn pass(&self, bytes: u64) {
        let wait = {
            let mut state = self.lock();
            state.counts.body_bytes += bytes;
            let Some(rate) = state.behaviour.bytes_per_second else { return };
            let now = self.clock.now();
            state.free_at =
                state.free_at.max(now) + Duration::from_secs(bytes) / rate.max(1) as u32;
            state.free_at - now
        };
        self.clock.sleep(wait);
    }
}

/// A request that has not ended.
struct InFlight<'a> {
    shared: &'a Shared,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.shared.lock().in_flight -= 1;
    }
}
