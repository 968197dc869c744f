//! One recognized stream: accesses of `run` blocks, `stride` blocks from one to the next. A
//! sequential stream has accesses of one block with a stride of one; a read may be several of them.

use super::detector::{Limits, Plan, ReadOutcome};

/// Accesses that a new stream is read ahead of by.
const FIRST_DISTANCE: u32 = 4;
/// Reads up to so many accesses behind the newest belong to the stream: readers on several threads
/// overtake each other.
const BEHIND: i64 = 32;
/// Reads so far ahead of the one expected belong to it too, for the same reason; others only happen
/// to lie there.
const JUMP: i64 = 8;
/// A jump is one that leaves out more than this many accesses.
const NEAR: i64 = 2;
/// A stream whose reads jump so much oftener than not was chance.
const JUMPS_MAX: u8 = 3;

/// What a read is to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Nothing.
    None,
    /// It repeats what was read shortly before.
    Behind,
    /// It takes so many accesses; `jumps` if it leaves out some that were expected before it.
    Takes { accesses: u32, jumps: bool },
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// First block of the access expected next.
    next: u64,
    stride: i64,
    run: u32,
    /// Accesses from `next` on that were issued.
    ahead: u32,
    /// Accesses that shall be.
    distance: u32,
    /// Reads that jumped, less those that did not.
    jumps: u8,
    pub(super) last_ns: u64,
}

impl Stream {
    pub(super) fn new(next: u64, stride: i64, run: u32, now_ns: u64) -> Self {
        debug_assert!(stride != 0);
        Self { next, stride, run, ahead: 0, distance: FIRST_DISTANCE, jumps: 0, last_ns: now_ns }
    }

    /// Blocks that were issued and not read.
    pub(super) fn unused_blocks(&self) -> u64 {
        u64::from(self.ahead) * u64::from(self.run)
    }

    /// Whether a read from that block on may be one of this stream.
    #[inline]
    pub(super) fn is_near(&self, first: u64) -> bool {
        let delta = first.wrapping_sub(self.next) as i64;
        let window = (i64::from(self.ahead) + BEHIND).saturating_mul(self.stride.saturating_abs());
        -window <= delta && delta <= window
    }

    /// What a read of `blocks` blocks from `first` on is to this stream.
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

    /// Moves on by a read that [`matches`](Self::matches), and says what is to be read ahead.
    pub(super) fn take(
        &mut self,
        (accesses, jumps): (u32, bool),
        found: ReadOutcome,
        end_block: u64,
        limits: &Limits,
    ) -> Option<Plan> {
        self.jumps = if jumps { self.jumps + 1 } else { self.jumps.saturating_sub(1) };
        let expected = self.ahead > 0;
        self.ahead = self.ahead.saturating_sub(accesses);
        self.next = self.next.wrapping_add_signed(i64::from(accesses).saturating_mul(self.stride));
        let most = limits.max_blocks / self.run.max(1);
        if most == 0 {
            // One access is more than what may be read ahead.
            self.ahead = 0;
            return None;
        }
        match found {
            ReadOutcome::InFlight if expected => self.distance = self.distance.saturating_mul(2),
            ReadOutcome::Miss if expected => {
                // What else was issued is hardly there either.
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

    /// Fills up to the distance, within the object.
    fn plan(&mut self, end_block: u64) -> Option<Plan> {
        let there = self.accesses_there(end_block);
        let count =
            u64::from(self.distance).min(there).saturating_sub(u64::from(self.ahead)) as u32;
        if count == 0 {
            return None;
        }
        let skip = i64::from(self.ahead) * self.stride;
        let first = self.next.wrapping_add_signed(skip);
        self.ahead += count;
        Some(Plan { first, stride: self.stride, run: self.run, count, end_block })
    }

    /// Accesses from the next one on that begin within the object.
    fn accesses_there(&self, end_block: u64) -> u64 {
        if self.next >= end_block {
            // Past the end; or, backwards, past the beginning.
            return 0;
        }
        let step = self.stride.unsigned_abs();
        if self.stride > 0 { (end_block - self.next).div_ceil(step) } else { self.next / step + 1 }
    }
}
