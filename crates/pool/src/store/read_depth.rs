//! How many blocks of directories are read ahead at a time.
//!
//! A device serves some reads at once. More of them queue in it, where no priority reaches them,
//! and a read that somebody waits for queues behind all of them. How many it serves is not known
//! beforehand. So the *depth* follows the time that these reads take, as in congestion control by
//! delay (TCP Vegas, Linux' Kyber): it shrinks if they take [`SLOW_HALVES`] halves of the time of
//! the fastest one, and grows while it is used up and they do not. A device that serves many reads
//! at once gets many, and one that does not stays free for those that are waited for.
//!
//! If the depth is a little too large, even the fastest read has queued. So every
//! [`ROUNDS_PER_PROBE`] rounds, a *probe* measures anew how fast a read is with the least depth, as
//! in BBR.
//!
//! # Invariants
//!
//! The depth is between [`DEPTH_MIN`] and [`DEPTH_MAX`]. It limits nothing by itself: a caller
//! that reads ahead asks, and may exceed it.
//!
//! # Locking
//!
//! `store-read-depth`, a leaf lock, for a look.

use forebay_base::sync::{Arc, Mutex};

use super::Shared;

/// With fewer reads at a time, fast devices would have pauses.
const DEPTH_MIN: u32 = 8;
const DEPTH_MAX: u32 = 128;
const DEPTH_FIRST: u32 = 64;
/// Reads are slow if their mean takes more halves of the time of the fastest one.
const SLOW_HALVES: u64 = 3;
const ROUNDS_PER_PROBE: u32 = 32;

/// The reads ahead of a pool's directories.
pub(super) struct ReadDepth {
    state: Mutex<DepthState>,
}

struct DepthState {
    depth: u32,
    in_flight: u32,
    /// The time of the fastest read of late; 0 if none has ended.
    fastest_ns: u64,
    /// So many reads began before a probe, and do not count.
    skipped: u32,
    /// The depth before a probe.
    before_probe: Option<u32>,
    rounds: u32,
    round: Round,
}

/// As many reads as the depth allows at a time.
#[derive(Default)]
struct Round {
    reads: u32,
    sum_ns: u64,
    fastest_ns: u64,
    /// Whether somebody would have begun more reads.
    was_full: bool,
}

/// A read in flight.
pub(super) struct DepthRead {
    shared: Arc<Shared>,
    /// Its time, once it has ended well.
    took_ns: Option<u64>,
}

impl DepthState {
    fn new() -> Self {
        Self {
            depth: DEPTH_FIRST,
            in_flight: 0,
            fastest_ns: 0,
            skipped: 0,
            before_probe: None,
            rounds: 0,
            round: Round::default(),
        }
    }

    fn is_full(&mut self) -> bool {
        let is_full = self.in_flight >= self.depth;
        self.round.was_full |= is_full;
        is_full
    }

    fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A read has ended; well, if its time is given.
    fn end(&mut self, took_ns: Option<u64>) {
        self.in_flight -= 1;
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        let Some(took_ns) = took_ns.map(|ns| ns.max(1)) else { return };
        let round = &mut self.round;
        round.fastest_ns = if round.reads == 0 { took_ns } else { took_ns.min(round.fastest_ns) };
        round.reads += 1;
        round.sum_ns = round.sum_ns.saturating_add(took_ns);
        if round.reads >= self.depth {
            let round = std::mem::take(round);
            self.end_round(&round);
        }
    }

    fn end_round(&mut self, round: &Round) {
        if let Some(depth) = self.before_probe.take() {
            (self.depth, self.fastest_ns) = (depth, round.fastest_ns);
            return;
        }
        self.fastest_ns = match self.fastest_ns {
            0 => round.fastest_ns,
            known => known.min(round.fastest_ns),
        };
        self.rounds += 1;
        if self.rounds >= ROUNDS_PER_PROBE {
            self.rounds = 0;
            self.before_probe = Some(self.depth);
            (self.depth, self.skipped) = (DEPTH_MIN, self.in_flight);
            return;
        }
        let mean_ns = round.sum_ns / u64::from(round.reads.max(1));
        if mean_ns > self.fastest_ns.saturating_mul(SLOW_HALVES) / 2 {
            self.depth = (self.depth * 3 / 4).max(DEPTH_MIN);
        } else if round.was_full {
            self.depth = (self.depth + self.depth / 4).min(DEPTH_MAX);
        }
    }
}

impl ReadDepth {
    pub(super) fn new() -> Self {
        Self { state: Mutex::named("store-read-depth", DepthState::new()) }
    }

    /// Whether as many reads are in flight as should be.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().is_full()
    }
}

impl DepthRead {
    /// A read begins.
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        shared.read_depth.state.lock().begin();
        Self { shared: Arc::clone(shared), took_ns: None }
    }

    /// It has ended well, in this time. One that fails says nothing about queues.
    pub(super) fn succeed(mut self, took_ns: u64) {
        self.took_ns = Some(took_ns);
    }
}

impl Drop for DepthRead {
    fn drop(&mut self) {
        self.shared.read_depth.state.lock().end(self.took_ns);
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const BASE_NS: u64 = 5_000_000;

    /// A device that begins a read each `every_ns`, and takes `base_ns` for it.
    struct Device {
        every_ns: u64,
        base_ns: u64,
        now_ns: u64,
        next_ns: u64,
        /// When reads began, and will end.
        reads: VecDeque<(u64, u64)>,
    }

    impl Device {
        fn new(every_ns: u64) -> Self {
            Self { every_ns, base_ns: BASE_NS, now_ns: 0, next_ns: 0, reads: VecDeque::new() }
        }

        /// Ends so many reads, while as many begin as the depth allows. Returns the longest one.
        fn serve(&mut self, depth: &mut DepthState, reads: u32) -> u64 {
            let mut longest_ns = 0;
            for _ in 0..reads {
                while !depth.is_full() {
                    depth.begin();
                    let starts_ns = self.next_ns.max(self.now_ns);
                    self.next_ns = starts_ns + self.every_ns;
                    self.reads.push_back((self.now_ns, starts_ns + self.base_ns));
                }
                let (begun_ns, ends_ns) = self.reads.pop_front().expect("the depth is not 0");
                self.now_ns = self.now_ns.max(ends_ns);
                longest_ns = longest_ns.max(self.now_ns - begun_ns);
                depth.end(Some(self.now_ns - begun_ns));
            }
            longest_ns
        }
    }

    #[test]
    fn few_reads_queue_in_a_device_that_serves_few_at_once() {
        // Ten at once.
        let (mut depth, mut device) = (DepthState::new(), Device::new(BASE_NS / 10));
        let longest_ns = device.serve(&mut depth, 400);
        assert!(longest_ns > 5 * BASE_NS, "they queue at first: {longest_ns}");
        let begun_ns = device.now_ns;
        let longest_ns = device.serve(&mut depth, 10_000);
        assert!(longest_ns <= 2 * BASE_NS, "{longest_ns} with a depth of {}", depth.depth);
        let mean_ns = (device.now_ns - begun_ns) / 10_000;
        assert!(mean_ns < BASE_NS / 10 * 11 / 10, "the device pauses: {mean_ns}");
    }

    #[test]
    fn a_device_that_serves_many_at_once_gets_many() {
        let (mut depth, mut device) = (DepthState::new(), Device::new(0));
        device.serve(&mut depth, 1000);
        assert_eq!(depth.depth, DEPTH_MAX);
        // All reads take longer from now on, which is no queue.
        device.base_ns *= 4;
        device.serve(&mut depth, 40_000);
        let (depth, before) = (depth.depth, depth.before_probe);
        assert_eq!(before.unwrap_or(depth), DEPTH_MAX);
    }

    #[test]
    fn reads_that_are_few_or_fail_change_nothing() {
        let mut depth = DepthState::new();
        for _ in 0..1000 {
            depth.begin();
            depth.end(Some(BASE_NS));
            depth.begin();
            depth.end(None);
        }
        assert_eq!((depth.depth, depth.in_flight), (DEPTH_FIRST, 0));
        assert_eq!(depth.fastest_ns, BASE_NS);
    }
}
