//! Permits shared by several lanes: what is in flight, who is served, and how often lanes meet.

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::super::{Kick, Limits, Permits, Seat};
use super::double::limits;
use crate::priority::Priority;
use crate::tunables::IoTunables;

/// Lanes without requests: only how many of each class wait.
struct Desk {
    permits: Permits,
    seats: Vec<Seat>,
    waiting: Vec<[u32; 5]>,
    /// Operations begun, by lane and class.
    begun: Vec<[u64; 5]>,
}

impl Desk {
    fn new(limits: Limits, lanes: usize) -> Self {
        Self {
            permits: Permits::new(limits, lanes),
            seats: (0..lanes).map(Seat::new).collect(),
            waiting: vec![[0; 5]; lanes],
            begun: vec![[0; 5]; lanes],
        }
    }

    /// A step of a lane, and of those it kicks.
    fn step(&mut self, lane: usize) {
        let mut due = vec![lane];
        while let Some(lane) = due.pop() {
            due.extend(self.step_of(lane));
        }
        self.check();
    }

    fn step_of(&mut self, lane: usize) -> Kick {
        loop {
            let bits = (0..5).filter(|class| self.waiting[lane][*class] > 0);
            let bits = bits.map(|class| 1 << class).sum();
            let Some(class) = self.permits.admit(&mut self.seats[lane], bits) else { break };
            self.waiting[lane][class.index()] -= 1;
            self.begun[lane][class.index()] += 1;
        }
        self.seats[lane].take_kicks()
    }

    fn end(&mut self, lane: usize, class: usize) {
        self.permits.end(&mut self.seats[lane], Priority::ALL[class]);
        self.step(lane);
    }

    fn in_flight(&self, class: usize) -> u32 {
        self.seats.iter().map(|seat| seat.in_flight(Priority::ALL[class])).sum()
    }

    /// The limits hold, no permit is lost, and nobody waits for what there is.
    fn check(&self) {
        let limits = *self.permits.limits();
        let flying: [u32; 5] = std::array::from_fn(|class| self.in_flight(class));
        assert!(flying.iter().zip(&limits.max).all(|(now, max)| now <= max), "{flying:?}");
        assert!(flying.iter().sum::<u32>() <= limits.total);
        self.permits.audit(&self.seats.iter().collect::<Vec<_>>());
        for (lane, waiting) in self.waiting.iter().enumerate() {
            for class in (0..5).filter(|class| waiting[*class] > 0) {
                let class = Priority::ALL[class];
                let stuck =
                    self.seats[lane].in_flight(class) == 0 && self.permits.obtainable(class);
                assert!(!stuck, "lane {lane} waits for {class} in vain: {flying:?}");
            }
        }
    }
}

fn tiny() -> impl Strategy<Value = Limits> {
    let parts =
        ([1..3u32, 1..3, 1..3, 1..3, 1..3], [0..4u32, 0..4, 0..4, 0..4, 0..4], 0..6u32, 1..6u32);
    parts.prop_map(|(min, above, shared, lot)| {
        let max = std::array::from_fn(|class| min[class] + above[class]);
        limits(min, max, min.iter().sum::<u32>() + shared, lot)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    /// Whatever comes and ends in whatever order: limits hold, permits are conserved, a lane that could be
    /// served is, and in the end everybody was.
    #[test]
    fn lanes_share_permits(limits in tiny(), lanes in 1..6usize, seed in any::<u64>()) {
        let mut rng = SmallRng::from_seed(seed);
        let mut desk = Desk::new(limits, lanes);
        let mut asked = 0;
        for _ in 0..400 {
            let (lane, class) = (rng.below(lanes as u64) as usize, rng.below(5) as usize);
            if rng.below(2) == 0 {
                let n = 1 + rng.below(4) as u32;
                desk.waiting[lane][class] += n;
                asked += u64::from(n);
                desk.step(lane);
            } else if desk.seats[lane].in_flight(Priority::ALL[class]) > 0 {
                desk.end(lane, class);
            } else if rng.below(8) == 0 {
                // All were cancelled.
                asked -= u64::from(std::mem::take(&mut desk.waiting[lane][class]));
                desk.step(lane);
            }
        }
        while (0..5).any(|class| desk.in_flight(class) > 0) {
            let (lane, class) = (rng.below(lanes as u64) as usize, rng.below(5) as usize);
            if desk.seats[lane].in_flight(Priority::ALL[class]) > 0 {
                desk.end(lane, class);
            }
        }
        prop_assert_eq!(desk.begun.iter().flatten().sum::<u64>(), asked);
    }
}

/// Endless work in all classes of all lanes, fewer permits than lanes: each gets its turns.
#[test]
fn no_lane_and_no_class_starves() {
    let lanes = 6;
    let mut desk = Desk::new(limits([1, 1, 1, 1, 2], [4, 1, 2, 9, 2], 9, 8), lanes);
    desk.waiting.fill([u32::MAX; 5]);
    (0..lanes).for_each(|lane| desk.step(lane));
    let mut rng = SmallRng::from_seed(3);
    for _ in 0..6000 {
        let flying: Vec<_> = (0..lanes)
            .flat_map(|lane| (0..5).map(move |class| (lane, class)))
            .filter(|(lane, class)| desk.seats[*lane].in_flight(Priority::ALL[*class]) > 0)
            .collect();
        let (lane, class) = flying[rng.below(flying.len() as u64) as usize];
        desk.end(lane, class);
    }
    for class in 0..5 {
        let turns: Vec<u64> = desk.begun.iter().map(|begun| begun[class]).collect();
        let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
        assert!(*least >= 30 && *least * 4 >= *most, "class {class}: {turns:?}");
    }
}

/// A lane that had everything gives way to one that comes later, up to the latter's share.
#[test]
fn a_late_lane_gets_its_share() {
    let mut desk = Desk::new(limits([1; 5], [32, 1, 1, 1, 1], 36, 4), 2);
    desk.waiting[0][0] = u32::MAX;
    desk.step(0);
    assert_eq!(desk.in_flight(0), 32);
    desk.waiting[1][0] = u32::MAX;
    desk.step(1);
    (0..200).for_each(|_| desk.end(0, 0));
    assert_eq!(desk.seats[1].in_flight(Priority::SyncRead), 16);
    let before = desk.permits.stats();
    // Now both keep what they have.
    (0..1600).for_each(|round| desk.end(round % 2, 0));
    let visits = desk.permits.stats().visits - before.visits;
    assert!(visits <= 400, "{visits} visits of the pool by 1600 operations");
}

/// Spares of a lane that does nothing are there for others.
#[test]
fn an_idle_lane_hoards_nothing() {
    let mut desk = Desk::new(limits([2, 1, 1, 1, 1], [8, 1, 1, 1, 1], 12, 8), 3);
    for lane in 0..2 {
        desk.waiting[lane][0] = 4;
        desk.step(lane);
        (0..4).for_each(|_| desk.end(lane, 0));
    }
    desk.waiting[2][0] = 9;
    desk.step(2);
    assert_eq!(desk.seats[2].in_flight(Priority::SyncRead), 8);
}

/// With permits at hand lanes do not meet, whatever depth they run at.
#[test]
fn the_usual_path_does_not_visit_the_pool() {
    for (lanes, depth) in [(1, 1), (1, 32), (1, 200), (16, 1), (16, 8)] {
        let mut desk = Desk::new(Limits::new(&IoTunables::new()), lanes);
        let round = |desk: &mut Desk, lane: usize| {
            desk.waiting[lane][0] += depth;
            desk.step(lane);
            (0..depth).for_each(|_| desk.end(lane, 0));
        };
        (0..lanes).for_each(|lane| round(&mut desk, lane));
        let before = desk.permits.stats().visits;
        (0..50).for_each(|_| (0..lanes).for_each(|lane| round(&mut desk, lane)));
        let visits = desk.permits.stats().visits - before;
        let operations = u64::from(depth) * lanes as u64 * 50;
        assert!(visits * 4 <= operations || visits <= 50, "{visits} for {operations} operations");
        if depth == 1 {
            assert_eq!(visits, 0);
        }
    }
}

/// A lane with one worker that is never short of scrubs, and one that waits for its turn: what comes back is
/// given on though the first does not come to the end of a step (of which the desk knows nothing).
#[test]
fn a_lane_that_rests_gives_on_what_comes_back() {
    let permits = Permits::new(limits([1; 5], [1, 1, 1, 1, 1], 5, 8), 2);
    let (mut busy, mut other) = (Seat::new(0), Seat::new(1));
    let scrub = 1 << Priority::Scrub.index();
    let read = 1 << Priority::SyncRead.index();
    assert_eq!(permits.admit(&mut busy, scrub), Some(Priority::Scrub));
    permits.rest(&mut busy);
    assert_eq!(permits.admit(&mut other, scrub), None);
    // Its one worker goes on with something more urgent: no contest for scrubs.
    permits.end(&mut busy, Priority::Scrub);
    assert_eq!(permits.admit(&mut busy, read | scrub), Some(Priority::SyncRead));
    permits.rest(&mut busy);
    assert_eq!(busy.take_kicks().collect::<Vec<_>>(), [1]);
    // The other has no use for it any more, and nobody who would come to the end of a step.
    permits.rest(&mut other);
    assert_eq!(permits.admit(&mut busy, scrub), Some(Priority::Scrub));
    permits.audit(&[&busy, &other]);
}

/// A lane that waited and now rests is not granted what it would not take.
#[test]
fn a_lane_that_rests_asks_for_nothing() {
    let permits = Permits::new(limits([1; 5], [1; 5], 5, 8), 2);
    let (mut busy, mut other) = (Seat::new(0), Seat::new(1));
    let scrub = 1 << Priority::Scrub.index();
    assert_eq!(permits.admit(&mut busy, scrub), Some(Priority::Scrub));
    assert_eq!(permits.admit(&mut busy, scrub), None);
    assert_eq!(permits.admit(&mut other, scrub), None);
    permits.rest(&mut other);
    permits.end(&mut busy, Priority::Scrub);
    assert_eq!(permits.admit(&mut busy, 0), None);
    assert!(busy.take_kicks().is_empty());
    assert_eq!(permits.admit(&mut other, scrub), Some(Priority::Scrub));
    permits.audit(&[&busy, &other]);
}
