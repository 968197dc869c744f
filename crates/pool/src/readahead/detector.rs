//! Recognizes streams among the reads of one object, and plans the blocks to read ahead.
//!
//! A state machine without I/O. [`StreamDetector::on_read`] takes each read that a stream may
//! expect, and returns the plan. Streams are sequential, or strided with a constant step in either
//! direction.
//!
//! # Algorithm
//!
//! A read that no stream expects is compared with the newest other such reads, the *candidates*.
//! Right behind a candidate, it makes a sequential stream. At some distance, it makes a guess of a
//! stride; a guess that comes true [`CONFIRMATIONS`] times makes a strided stream.
//!
//! Each stream is read ahead by its *distance*, which is refilled when half of it is used. The
//! distance starts small. It doubles with each refill up to a bound (`prefetch_ramp_bytes`), and up
//! to a higher bound (`prefetch_max_bytes`) with each read that finds its block still in flight:
//! only then does more distance help. It halves with each read whose block was read ahead and is
//! gone: the cache keeps less than that.
//!
//! # Invariants
//!
//! - No plan goes past the object's end, before its beginning, or beyond the distance.
//! - A stream plans each access once, unless its planned blocks were lost.
//!
//! # What it does not do
//!
//! It takes no locks: the caller holds the object's lock. It does not know which blocks are cached
//! or holes; the caller skips those.

use super::counters::PrefetchCounters;
use super::stream::{Match, Stream};
use super::tunables::PrefetchTunables;

#[cfg(all(test, not(forebay_model)))]
mod tests;

/// Most streams of an object.
const STREAMS_MAX: usize = 8;
/// Reads that are remembered because no stream expected them.
const CANDIDATES: usize = 16;
/// Times that a stride has to come true: of random reads hardly any does once.
const CONFIRMATIONS: u8 = 2;
/// The longest stride that is recognized, in blocks.
const STRIDE_MAX: u64 = 1024;

/// Where the caller found the first block of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// In the cache.
    Hit,
    /// On its way there.
    InFlight,
    /// Neither.
    Miss,
}

/// Bounds of what is read ahead of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(super) max_blocks: u32,
    pub(super) ramp_blocks: u32,
    idle_ns: u64,
}

impl Limits {
    /// The tunables' for blocks of `block_bytes`.
    #[inline]
    pub(crate) fn new(tunables: &PrefetchTunables, block_bytes: u64) -> Self {
        let blocks = |bytes: u64| (bytes / block_bytes.max(1)).min(u64::from(u32::MAX / 4)) as u32;
        Self {
            max_blocks: blocks(tunables.prefetch_max_bytes()),
            ramp_blocks: blocks(tunables.prefetch_ramp_bytes()),
            idle_ns: u64::from(tunables.prefetch_idle_ms()) * 1_000_000,
        }
    }
}

/// What to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) first: u64,
    pub(super) stride: i64,
    pub(super) run: u32,
    pub(super) count: u32,
    pub(super) end_block: u64,
}

impl Plan {
    /// Blocks, in the order in which they will be wanted.
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        let starts = (0..i64::from(self.count))
            .map(move |access| self.first.wrapping_add_signed(access * self.stride));
        starts.flat_map(move |start| start..(start + u64::from(self.run)).min(self.end_block))
    }
}

/// A read that no stream expected, but for its first block.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    /// 0: there is none here.
    blocks: u32,
    /// Times that the guess came true.
    confirmed: u8,
    /// Step to the next read, by a guess; 0 without one.
    stride: i64,
}

/// What is known of the reads of one object. Each read that it is told of changes it, whichever
/// processor it is on: what random reads look at is in few cache lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct StreamDetector {
    /// The newest read: first block, and the one behind the last.
    last: (u64, u64),
    /// The candidate that the next one replaces.
    oldest: u32,
    /// What the largest candidate so far had.
    most_blocks: u32,
    streams: Vec<Stream>,
    /// Of each candidate.
    firsts: [u64; CANDIDATES],
    candidates: [Candidate; CANDIDATES],
}

impl StreamDetector {
    /// Without any knowledge.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Whether a read of that block may concern a stream. Changes nothing.
    #[inline]
    pub(crate) fn is_near_a_stream(&self, block: u64) -> bool {
        self.streams.iter().any(|stream| stream.is_near(block))
    }

    /// Notes a read of `blocks` blocks from `first` on, of an object of `end_block` blocks, and
    /// says what is to be read ahead. `found` is where its first block was.
    #[inline]
    pub(crate) fn on_read(
        &mut self,
        (first, blocks): (u64, u32),
        end_block: u64,
        found: ReadOutcome,
        now_ns: impl Fn() -> u64,
        limits: &Limits,
        counters: &PrefetchCounters,
    ) -> Option<Plan> {
        let end = first.saturating_add(u64::from(blocks));
        // Small reads of one block after another are one read.
        if (first >= self.last.0 && end <= self.last.1) || blocks == 0 {
            return None;
        }
        self.last = (first, end);
        if limits.max_blocks == 0 {
            return None;
        }
        for stream in &mut self.streams {
            match stream.matches(first, blocks) {
                Match::None => {}
                Match::Behind => return None,
                Match::Takes { accesses, jumps } => {
                    stream.last_ns = now_ns();
                    let row = match (stream.unused_blocks() > 0, found) {
                        (false, _) => PrefetchCounters::MISSES,
                        (true, ReadOutcome::Hit) => PrefetchCounters::HITS,
                        (true, ReadOutcome::InFlight) => PrefetchCounters::LATE,
                        (true, ReadOutcome::Miss) => PrefetchCounters::LOST,
                    };
                    counters.add(row, 0, 1);
                    let plan = stream.take((accesses, jumps), found, end_block, limits);
                    return issue(plan, counters);
                }
            }
        }
        let stream = self.recognize(first, blocks, now_ns)?;
        let plan = self.start(stream, end_block, limits, counters);
        issue(plan, counters)
    }

    /// Looks for a stream that the read makes with earlier ones, and remembers it otherwise.
    fn recognize(&mut self, first: u64, blocks: u32, now_ns: impl Fn() -> u64) -> Option<Stream> {
        let mut nearest: Option<(u64, usize)> = None;
        let most = STRIDE_MAX + u64::from(self.most_blocks);
        for (at, candidate_first) in self.firsts.iter_mut().enumerate() {
            // All that random reads come to: one comparison.
            let delta = first.wrapping_sub(*candidate_first) as i64;
            if delta.unsigned_abs() > most {
                continue;
            }
            let candidate = &mut self.candidates[at];
            let reach = STRIDE_MAX + u64::from(candidate.blocks);
            if delta.unsigned_abs() > reach || candidate.blocks == 0 {
                continue;
            }
            let end = candidate_first.saturating_add(u64::from(candidate.blocks));
            let read_end = first.saturating_add(u64::from(blocks));
            if delta > 0 && first <= end && read_end > end {
                *candidate = Candidate::default();
                return Some(Stream::new(read_end, 1, 1, now_ns()));
            }
            if delta == candidate.stride && delta != 0 {
                *candidate_first = first;
                candidate.confirmed += 1;
                if candidate.confirmed < CONFIRMATIONS {
                    return None;
                }
                let run = candidate.blocks.max(blocks);
                *candidate = Candidate::default();
                return Some(Stream::new(first.wrapping_add_signed(delta), delta, run, now_ns()));
            }
            let distance = delta.unsigned_abs();
            let guesses = candidate.confirmed == 0 && (1..=STRIDE_MAX).contains(&distance);
            if guesses && nearest.is_none_or(|(best, _)| distance < best) {
                nearest = Some((distance, at));
            }
        }
        let (at, stride) = match nearest {
            Some((_, at)) => (at, first.wrapping_sub(self.firsts[at]) as i64),
            None => {
                let at = self.oldest as usize;
                self.oldest = ((at + 1) % CANDIDATES) as u32;
                (at, 0)
            }
        };
        self.firsts[at] = first;
        self.candidates[at] = Candidate { blocks, stride, confirmed: 0 };
        self.most_blocks = self.most_blocks.max(blocks);
        None
    }

    /// Takes a new stream in, in the place of one that has been idle if there is no other.
    fn start(
        &mut self,
        stream: Stream,
        end_block: u64,
        limits: &Limits,
        counters: &PrefetchCounters,
    ) -> Option<Plan> {
        if self.streams.len() == STREAMS_MAX {
            let oldest = (0..STREAMS_MAX).min_by_key(|at| self.streams[*at].last_ns)?;
            let idle_ns = stream.last_ns.saturating_sub(self.streams[oldest].last_ns);
            if idle_ns < limits.idle_ns {
                counters.add(PrefetchCounters::REFUSED, 0, 1);
                return None;
            }
            let gone = self.streams.swap_remove(oldest);
            counters.add(PrefetchCounters::RECYCLED, 0, 1);
            counters.add(PrefetchCounters::UNUSED, 0, gone.unused_blocks());
        }
        counters.add(PrefetchCounters::STARTED, 0, 1);
        counters.add(PrefetchCounters::MISSES, 0, 1);
        self.streams.push(stream);
        self.streams.last_mut()?.take((0, false), ReadOutcome::Hit, end_block, limits)
    }
}

fn issue(plan: Option<Plan>, counters: &PrefetchCounters) -> Option<Plan> {
    if let Some(plan) = plan {
        counters.add(PrefetchCounters::ISSUED, 0, u64::from(plan.count) * u64::from(plan.run));
    }
    plan
}
