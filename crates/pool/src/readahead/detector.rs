//! Recognizes streams among the reads of one object, and plans the blocks to read ahead.
//!
//! A state machine without I/O. [`StreamDetector::on_read`] takes each read that a stream may
//! expect, and returns the plan. Streams are sequential, or strided with a constant step in either
//! direction.
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

/// Maximum streams of an object.
const STREAMS_MAX: usize = 8;
/// Candidates that are remembered.
const CANDIDATES: usize = 16;
/// Confirmations that make a stride a stream. Random reads rarely confirm one even once.
const CONFIRMATIONS: u8 = 2;
/// So many times as long as a plan the next two can be, together with it: a plan of `n` blocks is
/// followed by one of up to `2n - 1`, and that by one of up to `4n - 3`.
const LONGER: u64 = 7;
/// Maximum recognized stride, in blocks.
const STRIDE_MAX: u64 = 1024;

/// Where the caller found a block of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// In the cache.
    Hit,
    /// Being loaded into the cache.
    InFlight,
    /// On a device.
    Miss,
}

/// Limits of the read-ahead of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(super) max_blocks: u32,
    pub(super) ramp_blocks: u32,
    idle_ns: u64,
}

impl Limits {
    /// The limits of the tunables, for blocks of `block_bytes`.
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

/// Blocks to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) first: u64,
    pub(super) stride: i64,
    pub(super) run: u32,
    pub(super) count: u32,
    pub(super) end_block: u64,
}

impl Plan {
    /// The blocks, in the order in which they will be read.
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        let starts = (0..i64::from(self.count))
            .map(move |access| self.first.wrapping_add_signed(access * self.stride));
        starts.flat_map(move |start| start..(start + u64::from(self.run)).min(self.end_block))
    }

    /// What is left of it when the first `done` blocks have been read.
    pub(crate) fn after(self, done: usize) -> Self {
        let accesses = (done / self.run as usize).min(self.count as usize) as u32;
        let first = self.first.wrapping_add_signed(i64::from(accesses) * self.stride);
        Self { first, count: self.count - accesses, ..self }
    }

    /// Blocks that plans after this one may reach, one for each indirect block of so many pointers.
    /// The next plan can be several times as long. Of a stream with a stride, only the last block.
    pub(crate) fn pointers_ahead(self, pointers: u64) -> impl Iterator<Item = u64> {
        let access = |number: u64| {
            let offset = self.stride.checked_mul(i64::try_from(number).ok()?)?;
            self.first.checked_add_signed(offset).filter(|block| *block < self.end_block)
        };
        let count = u64::from(self.count);
        let last = match self.stride {
            1 => access(LONGER * count - 1).or(self.end_block.checked_sub(1)),
            _ => access(2 * count - 1),
        };
        let next = if self.stride == 1 { access(count) } else { last };
        let until = last.unwrap_or(0);
        let steps = next.into_iter().flat_map(move |next| (next..until).step_by(pointers as usize));
        steps.chain(last)
    }
}

/// A read that no stream expected, without its first block.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    /// 0: the slot is empty.
    blocks: u32,
    /// How often the stride was confirmed.
    confirmed: u8,
    /// Suggested stride to the next read; 0 if there is none.
    stride: i64,
}

/// Read-ahead state of one object. Each reported read changes it, from any processor, so the fields
/// that random reads use lie in few cache lines.
///
/// # Algorithm
///
/// A read that no stream expects is compared with the newest other such reads, the *candidates*. A
/// read right after a candidate makes a sequential stream. A read at some distance from a candidate
/// suggests a stride. A stride that is confirmed [`CONFIRMATIONS`] times makes a strided stream.
///
/// Each stream is read ahead by its *distance*, which is refilled when half of it is used. The
/// distance starts small. It doubles with each refill up to a bound (`prefetch_ramp_bytes`), and up
/// to a higher bound (`prefetch_max_bytes`) with each read that finds its block still in flight:
/// only then does more distance help. It halves with each read whose prefetched block is missing:
/// the cache cannot keep so many. A read that is longer than what was issued misses the rest, and
/// says nothing of that.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct StreamDetector {
    /// The newest read: first block, and the block after the last.
    last: (u64, u64),
    /// Index of the candidate to replace next.
    oldest: u32,
    /// Length of the longest candidate so far.
    most_blocks: u32,
    streams: Vec<Stream>,
    /// First block of each candidate.
    firsts: [u64; CANDIDATES],
    candidates: [Candidate; CANDIDATES],
}

impl StreamDetector {
    /// A detector without streams and candidates.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Whether a read of the block may belong to a stream. Changes nothing.
    #[inline]
    pub(crate) fn is_near_a_stream(&self, block: u64) -> bool {
        self.streams.iter().any(|stream| stream.is_near(block))
    }

    /// Reports a read of `blocks` blocks from `first` on, of an object of `end_block` blocks, and
    /// returns the blocks to read ahead.
    ///
    /// `found` is the first that earlier reads met other than a hit. The stream that takes this
    /// read learns from it, and it becomes a hit again. Until then it stays: a read that repeats
    /// what a stream has passed, such as the second half of a block, says nothing of how far ahead
    /// is enough. A read that belongs to no stream leaves a hit.
    #[inline]
    pub(crate) fn on_read(
        &mut self,
        (first, blocks): (u64, u32),
        end_block: u64,
        found: &mut ReadOutcome,
        now_ns: impl Fn() -> u64,
        limits: &Limits,
        counters: &PrefetchCounters,
    ) -> Option<Plan> {
        let end = first.saturating_add(u64::from(blocks));
        // Consecutive small reads within one block count as one read.
        if (first >= self.last.0 && end <= self.last.1) || blocks == 0 {
            if !self.is_near_a_stream(first) {
                take(found);
            }
            return None;
        }
        self.last = (first, end);
        if limits.max_blocks == 0 {
            take(found);
            return None;
        }
        for stream in &mut self.streams {
            match stream.matches(first, blocks) {
                Match::None => {}
                Match::Behind => return None,
                Match::Takes { accesses, jumps } => {
                    stream.last_ns = now_ns();
                    let found = take(found);
                    let row = match (stream.unused_blocks() > 0, found) {
                        (false, _) => PrefetchCounters::MISSES,
                        (true, ReadOutcome::Hit) => PrefetchCounters::HITS,
                        (true, ReadOutcome::InFlight) => PrefetchCounters::LATE,
                        (true, ReadOutcome::Miss) if !stream.outran() => PrefetchCounters::LOST,
                        (true, ReadOutcome::Miss) => PrefetchCounters::MISSES,
                    };
                    counters.add(row, 0, 1);
                    let plan = stream.take((accesses, jumps), found, end_block, limits);
                    return issue(plan, counters);
                }
            }
        }
        take(found);
        let stream = self.recognize(first, blocks, now_ns)?;
        let plan = self.start(stream, end_block, limits, counters);
        issue(plan, counters)
    }

    /// Searches for a stream that the read forms with earlier ones. Otherwise remembers the read as
    /// a candidate.
    fn recognize(&mut self, first: u64, blocks: u32, now_ns: impl Fn() -> u64) -> Option<Stream> {
        let mut nearest: Option<(u64, usize)> = None;
        let most = STRIDE_MAX + u64::from(self.most_blocks);
        for (at, candidate_first) in self.firsts.iter_mut().enumerate() {
            // The cost for random reads: one comparison per candidate.
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
            let suggests = candidate.confirmed == 0 && (1..=STRIDE_MAX).contains(&distance);
            if suggests && nearest.is_none_or(|(best, _)| distance < best) {
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

    /// Adds a new stream. If there are too many, it replaces the stream that has been idle longest.
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
            let replaced = self.streams.swap_remove(oldest);
            counters.add(PrefetchCounters::RECYCLED, 0, 1);
            counters.add(PrefetchCounters::UNUSED, 0, replaced.unused_blocks());
        }
        counters.add(PrefetchCounters::STARTED, 0, 1);
        counters.add(PrefetchCounters::MISSES, 0, 1);
        self.streams.push(stream);
        self.streams.last_mut()?.take((0, false), ReadOutcome::Hit, end_block, limits)
    }
}

/// The outcome, with a hit in its place. Writes only if it changes.
#[inline]
fn take(found: &mut ReadOutcome) -> ReadOutcome {
    if *found == ReadOutcome::Hit { *found } else { std::mem::replace(found, ReadOutcome::Hit) }
}

fn issue(plan: Option<Plan>, counters: &PrefetchCounters) -> Option<Plan> {
    if let Some(plan) = plan {
        counters.add(PrefetchCounters::ISSUED, 0, u64::from(plan.count) * u64::from(plan.run));
    }
    plan
}
