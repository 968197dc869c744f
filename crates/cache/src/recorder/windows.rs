//! Recorded misses by time: windows of equal length, each with a uniform sample of its misses
//! (reservoir sampling, Vitter's algorithm R, 1985).
//!
//! Locking: none; a part of the [`Log`](super::log::Log).

use std::collections::VecDeque;

use forebay_base::rng::SmallRng;

use super::Miss;

/// Length of a window.
const WINDOW_NS: u64 = 30_000_000_000;
/// Windows that are kept: twenty minutes.
const WINDOWS: usize = if cfg!(forebay_model) { 2 } else { 40 };
/// Misses kept of the last window.
const KEPT: usize = if cfg!(forebay_model) { 4 } else { 512 };
/// Misses kept of an earlier window.
const KEPT_LONG: usize = KEPT / 4;

/// Sums at the start of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) now_ns: u64,
    pub(super) hits: u64,
    /// Loads begun.
    pub(super) misses: u64,
    /// The cache's target.
    pub(super) target: u64,
}

struct Window {
    start: Totals,
    peak_target: u64,
    /// Recorded misses.
    seen: u64,
    kept: Vec<Miss>,
}

pub(super) struct Windows {
    /// Never empty.
    windows: VecDeque<Window>,
    rng: SmallRng,
}

impl Windows {
    pub(super) fn new(start: Totals, seed: u64) -> Self {
        let first = Window::new(start);
        Self { windows: VecDeque::from([first]), rng: SmallRng::from_seed(seed) }
    }

    fn last(&mut self) -> &mut Window {
        self.windows.back_mut().expect("there is always one")
    }

    /// Begins a new window if the last one is long enough, and drops those that ended more than
    /// twenty minutes ago. `totals` is called if so.
    pub(super) fn advance(&mut self, now_ns: u64, target: u64, totals: impl FnOnce() -> Totals) {
        let last = self.last();
        last.peak_target = last.peak_target.max(target);
        if now_ns.saturating_sub(last.start.now_ns) < WINDOW_NS {
            return;
        }
        let next = Window::new(totals());
        self.thin_last();
        let oldest_ns = next.start.now_ns.saturating_sub(WINDOWS as u64 * WINDOW_NS);
        let ended = self.windows.partition_point(|window| window.end_ns() < oldest_ns);
        self.windows.drain(..ended.max((self.windows.len() + 1).saturating_sub(WINDOWS)));
        self.windows.push_back(next);
    }

    /// Drops misses of the last window at random. A sample of a uniform sample is uniform.
    fn thin_last(&mut self) {
        let Self { windows, rng } = self;
        let kept = &mut windows.back_mut().expect("there is always one").kept;
        while kept.len() > KEPT_LONG {
            kept.swap_remove(rng.below(kept.len() as u64) as usize);
        }
        kept.shrink_to_fit();
    }

    pub(super) fn add(&mut self, miss: Miss) {
        let Self { windows, rng } = self;
        let window = windows.back_mut().expect("there is always one");
        window.seen += 1;
        if window.kept.len() < KEPT {
            window.kept.push(miss);
        } else if let Some(kept) = window.kept.get_mut(rng.below(window.seen) as usize) {
            *kept = miss;
        }
    }

    /// The largest target of the cache in all windows.
    pub(super) fn peak_target(&self) -> u64 {
        self.windows.iter().map(|window| window.peak_target).max().unwrap_or(0)
    }

    /// The totals at the start of the oldest window that ended after `from_ns`, or of the last one,
    /// and the misses since, each with the number of misses that it stands for.
    pub(super) fn since(&self, from_ns: u64) -> (Totals, Vec<(f64, Miss)>) {
        let wanted = self.windows.partition_point(|window| window.end_ns() <= from_ns);
        let first = wanted.min(self.windows.len() - 1);
        let misses = self.windows.range(first..).flat_map(|window| {
            let each = window.seen as f64 / window.kept.len().max(1) as f64;
            window.kept.iter().map(move |miss| (each * miss.scale as f64, *miss))
        });
        (self.windows[first].start, misses.collect())
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let kept: usize = self.windows.iter().map(|window| window.kept.capacity()).sum();
        (kept * size_of::<Miss>() + self.windows.capacity() * size_of::<Window>()) as u64
    }
}

impl Window {
    fn new(start: Totals) -> Self {
        Self { start, peak_target: start.target, seen: 0, kept: Vec::new() }
    }

    /// Misses after this begin a window, which may be much later.
    fn end_ns(&self) -> u64 {
        self.start.now_ns + WINDOW_NS
    }
}
