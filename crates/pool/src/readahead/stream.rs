//! A recognized stream: accesses of `run` blocks, `stride` blocks from one to the next. A
//! sequential stream has accesses of one block with a stride of one; a read may span several of
//! them.

use super::detector::{Limits, Plan, ReadOutcome};

/// Initial distance of a stream, in accesses.
const FIRST_DISTANCE: u32 = 4;
/// Reads up to this many accesses behind the newest belong to the stream: readers on several
/// threads overtake each other.
const BEHIND: i64 = 32;
/// Reads up to this many accesses ahead of the expected one belong to the stream too, for the same
/// reason. Reads further ahead are coincidence.
const JUMP: i64 = 8;
/// A read that skips more than this many accesses counts as a jump.
const NEAR: i64 = 2;
/// Excess of jumps over other reads at which the stream counts as a coincidence.
const JUMPS_MAX: u8 = 3;

/// How a read relates to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// It does not belong to the stream.
    None,
    /// It repeats blocks that were read shortly before.
    Behind,
    /// It advances the stream by this many accesses. `jumps` if it skips some expected accesses.
    Takes { accesses: u32, jumps: bool },
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// First block of the access expected next.
    next: u64,
    stride: i64,
    run: u32,
    /// Issued accesses from `next` on.
    ahead: u32,
    /// Target of `ahead`.
    distance: u32,
    /// Whether the newest read was longer than `ahead`, as the one is that made the stream: it
    /// misses blocks that were never issued.
    outran: bool,
    /// Reads that jumped minus reads that did not.
    jumps: u8,
    pub(super) last_ns: u64,
}

impl Stream {
    pub(super) fn new(next: u64, stride: i64, run: u32, now_ns: u64) -> Self {
        debug_assert!(stride != 0);
        let distance = FIRST_DISTANCE;
        Self { next, stride, run, ahead: 0, distance, outran: false, jumps: 0, last_ns: now_ns }
    }

    /// Blocks issued and not read yet.
    pub(super) fn unused_blocks(&self) -> u64 {
        u64::from(self.ahead) * u64::from(self.run)
    }

    /// Whether the newest read was longer than what was issued.
    pub(super) fn outran(&self) -> bool {
        self.outran
    }

    /// Whether a read from this block on may belong to the stream.
    #[inline]
    pub(super) fn is_near(&self, first: u64) -> bool {
        let delta = first.wrapping_sub(self.next) as i64;
        let window = (i64::from(self.ahead) + BEHIND).saturating_mul(self.stride.saturating_abs());
        -window <= delta && delta <= window
    }

    /// How a read of `blocks` blocks from `first` on relates to the stream.
    #[inline]
    pub(super) fn matches(&self, first: u64, blocks: u32) -> Match {
        if !self.is_near(first) {
            return Match::None;
        }
        let delta = first.wrapping_sub(self.next) as i64;
        let accesses = delta / self.stride;
        let most = i64::from(self.ahead).min(JUMP);
        let chance = self.jumps >= JUMPS_MAX;
        if chance || accesses * self.stride != delta || !(-BEHIND..=most).contains(&accesses) {
            return Match::None;
        }
        let taken = match self.stride {
            1 => accesses + i64::from(blocks),
            _ if blocks > self.run => return Match::None,
            _ => accesses + 1,
        };
        if taken <= 0 {
            return Match::Behind;
        }
        Match::Takes { accesses: taken.min(i64::from(u32::MAX)) as u32, jumps: accesses > NEAR }
    }

    /// Advances the stream by a read that [`matches`](Self::matches), and returns the blocks to
    /// read ahead.
    pub(super) fn take(
        &mut self,
        (accesses, jumps): (u32, bool),
        found: ReadOutcome,
        end_block: u64,
        limits: &Limits,
    ) -> Option<Plan> {
        self.jumps = if jumps { self.jumps + 1 } else { self.jumps.saturating_sub(1) };
        let expected = self.ahead > 0;
        let outran = std::mem::replace(&mut self.outran, self.ahead < accesses.max(1));
        self.ahead = self.ahead.saturating_sub(accesses);
        self.next = self.next.wrapping_add_signed(i64::from(accesses).saturating_mul(self.stride));
        let most = limits.max_blocks / self.run.max(1);
        if most == 0 {
            // A single access exceeds the limit of read-ahead.
            self.ahead = 0;
            return None;
        }
        match found {
            ReadOutcome::InFlight if expected => self.distance = self.distance.saturating_mul(2),
            ReadOutcome::Miss if expected && !outran => {
                // The other issued blocks are probably missing too.
                self.distance /= 2;
                self.ahead = 0;
            }
            _ => {}
        }
        self.distance = self.distance.clamp(1, most);
        if self.ahead > self.distance / 2 {
            return None;
        }
        let plan = self.plan(end_block);
        let ramp = (limits.ramp_blocks / self.run.max(1)).min(most);
        if self.distance < ramp && !jumps {
            self.distance = (self.distance * 2).min(ramp);
        }
        plan
    }

    /// Issues accesses up to the distance, within the object.
    fn plan(&mut self, end_block: u64) -> Option<Plan> {
        let available = self.accesses_in_object(end_block);
        let count =
            u64::from(self.distance).min(available).saturating_sub(u64::from(self.ahead)) as u32;
        if count == 0 {
            return None;
        }
        let skip = i64::from(self.ahead) * self.stride;
        let first = self.next.wrapping_add_signed(skip);
        self.ahead += count;
        Some(Plan { first, stride: self.stride, run: self.run, count, end_block })
    }

    /// Accesses from the next one on that begin within the object.
    fn accesses_in_object(&self, end_block: u64) -> u64 {
        if self.next >= end_block {
            // Past the end; or, for negative strides, before the beginning.
            return 0;
        }
        let step = self.stride.unsigned_abs();
        if self.stride > 0 { (end_block - self.next).div_ceil(step) } else { self.next / step + 1 }
    }
}
