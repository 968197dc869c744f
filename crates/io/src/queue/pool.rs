//! The permits that no lane has, and those that are on their way to a lane; see [`super::permits`].

use forebay_base::sync::atomic::Ordering::SeqCst;

use super::lease::{Lease, Part};
use super::limits::Limits;
use super::permits::{Board, PermitStats};
use crate::priority::Priority;

/// What `io-permits` protects.
pub(super) struct Pool {
    reserved: [u32; Priority::COUNT],
    headroom: [u32; Priority::COUNT],
    shared: u32,
    /// By lane.
    grants: Box<[Lease]>,
    /// The lane that was served last, by class.
    last: [u32; Priority::COUNT],
    /// Sizes of lots.
    lots: [u32; 2 * Priority::COUNT + 1],
    pub(super) stats: PermitStats,
}

impl Pool {
    pub(super) fn new(limits: &Limits, lanes: usize) -> Self {
        // No lot is larger than what each lane can have.
        let lot = |all: u32| (all / lanes as u32).clamp(1, limits.lot);
        let mut lots = [0; 2 * Priority::COUNT + 1];
        for part in Part::all() {
            lots[index(part)] = lot(match part {
                Part::Reserved(class) => limits.min[class],
                Part::Headroom(class) => limits.headroom(class),
                Part::Shared => limits.shared(),
            });
        }
        Self {
            reserved: limits.min,
            headroom: std::array::from_fn(|class| limits.headroom(class)),
            shared: limits.shared(),
            grants: vec![Lease::NONE; lanes].into(),
            last: [0; Priority::COUNT],
            lots,
            stats: PermitStats::default(),
        }
    }

    /// Permits of `part` that a lane leases at once.
    pub(super) fn lot(&self, part: Part) -> u32 {
        self.lots[index(part)]
    }

    /// Takes up to a lot of `part`.
    pub(super) fn take_lot(&mut self, part: Part) -> u32 {
        let lot = self.lot(part);
        let free = self.free(part);
        let n = lot.min(*free);
        *free -= n;
        n
    }

    /// Takes `lease` back. Whoever adds then serves those who wait.
    pub(super) fn add(&mut self, lease: Lease) {
        for part in Part::all() {
            *self.free(part) += lease.count(part);
        }
    }

    /// What `lane` was granted.
    pub(super) fn take_grant(&mut self, lane: usize) -> Lease {
        std::mem::take(&mut self.grants[lane])
    }

    /// Grants what there is to those who want it, one permit a registration: classes below their minimum
    /// first, each by urgency; lanes in rotation. Returns the lanes that got something.
    /// Afterwards nobody waits for what is in the pool.
    pub(super) fn serve(&mut self, board: &Board) -> u64 {
        let mut kicks = 0;
        for class in 0..Priority::COUNT {
            while self.reserved[class] > 0
                && let Some(lane) = self.next_lane(board, class)
            {
                self.reserved[class] -= 1;
                kicks |= self.grant(board, (lane, class), Lease::of(Part::Reserved(class), 1));
            }
        }
        for class in 0..Priority::COUNT {
            while self.shared > 0
                && self.headroom[class] > 0
                && let Some(lane) = self.next_lane(board, class)
            {
                self.shared -= 1;
                self.headroom[class] -= 1;
                kicks |= self.grant(board, (lane, class), Lease::extra(class));
            }
        }
        kicks
    }

    /// Whether there is a permit of `part` that nobody was granted.
    pub(super) fn has(&self, part: Part) -> bool {
        self.left(part) > 0
    }

    /// Permits of `part` in the pool or granted.
    pub(super) fn holds(&self, part: Part) -> u32 {
        self.left(part) + self.grants.iter().map(|grant| grant.count(part)).sum::<u32>()
    }

    /// The lane to serve next in `class`: the first that wants it after the one served last.
    fn next_lane(&self, board: &Board, class: usize) -> Option<u32> {
        let wanted = board.wanted[class].load(SeqCst);
        let after = wanted & (u64::MAX << self.last[class]) << 1;
        let from = if after != 0 { after } else { wanted };
        (from != 0).then(|| from.trailing_zeros())
    }

    fn grant(&mut self, board: &Board, (lane, class): (u32, usize), lease: Lease) -> u64 {
        let bit = 1 << lane;
        self.last[class] = lane;
        self.grants[lane as usize] = self.grants[lane as usize].plus(lease);
        self.stats.grants += 1;
        board.wanted[class].fetch_and(!bit, SeqCst);
        board.granted.fetch_or(bit, SeqCst);
        bit
    }

    fn left(&self, part: Part) -> u32 {
        match part {
            Part::Reserved(class) => self.reserved[class],
            Part::Headroom(class) => self.headroom[class],
            Part::Shared => self.shared,
        }
    }

    fn free(&mut self, part: Part) -> &mut u32 {
        match part {
            Part::Reserved(class) => &mut self.reserved[class],
            Part::Headroom(class) => &mut self.headroom[class],
            Part::Shared => &mut self.shared,
        }
    }
}

fn index(part: Part) -> usize {
    match part {
        Part::Reserved(class) => class,
        Part::Headroom(class) => Priority::COUNT + class,
        Part::Shared => 2 * Priority::COUNT,
    }
}
