//! Rules: which fault, for which requests, how often.
//!
//! Each rule has random numbers of its own, which depend on the seed of the device and the number
//! of the rule. So the fate of the n-th request that a rule matches depends on nothing else, and
//! adding a rule does not change what the others do.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use forebay_base::rng::SmallRng;

use crate::priority::Priority;
use crate::request::{Op, Request};

/// Faults that the list of the latest remembers.
const REMEMBERED: usize = 1024;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request is not executed and fails with this `errno` of the system: 5 (`EIO`) is a
    /// medium error, 28 (`ENOSPC`) no space, 19 (`ENODEV`) a device that is gone.
    Error(i32),
    /// The request is executed, and fails with this `errno` all the same: as if only the device's
    /// answer had been lost.
    ErrorAfter(i32),
    /// A read succeeds with so many bits flipped, within the range of the rule.
    Rot {
        /// Bits to flip; the same one may be drawn twice.
        bits: u32,
    },
    /// A write reaches the medium up to some byte; the sector that has that byte is the old one
    /// or is damaged, the others keep what they had.
    Torn {
        /// Whether the write fails then (with `EIO`), or pretends that it succeeded.
        reported: bool,
    },
    /// A write succeeds and never reaches the medium, whatever is flushed.
    Lost,
    /// A write succeeds and stays in the device's volatile cache. Reads see it. A flush makes it
    /// durable, and [`FaultDevice::crash`](super::FaultDevice::crash) may lose it.
    Volatile,
    /// The request is handed on later.
    Delay(Duration),
}

impl Fault {
    /// Its label in the counters.
    pub(super) fn label(self) -> usize {
        match self {
            Self::Error(_) => 0,
            Self::Rot { .. } => 1,
            Self::Torn { .. } => 2,
            Self::Lost => 3,
            Self::Volatile => 4,
            Self::Delay(_) => 5,
            Self::ErrorAfter(_) => 6,
        }
    }

    fn can_hit(self, op: Op) -> bool {
        match self {
            Self::Error(_) | Self::ErrorAfter(_) | Self::Delay(_) => true,
            Self::Rot { .. } => op == Op::Read,
            Self::Torn { .. } | Self::Lost | Self::Volatile => op == Op::Write,
        }
    }
}

/// A fault and when to inject it: by default, into every request that it can happen to.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    ops: [bool; Op::ALL.len()],
    priority: Option<Priority>,
    range: Option<Range<u64>>,
    after: u64,
    times: u64,
    probability: f64,
}

impl Rule {
    /// `fault`, always.
    pub fn new(fault: Fault) -> Self {
        let ops = Op::ALL.map(|op| fault.can_hit(op));
        let (priority, range) = (None, None);
        Self { fault, ops, priority, range, after: 0, times: u64::MAX, probability: 1.0 }
    }

    /// Only for operations of this kind.
    ///
    /// # Panics
    /// If the fault cannot happen to them.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        assert!(self.fault.can_hit(op), "{:?} cannot happen to a {op}", self.fault);
        self.ops = Op::ALL.map(|other| other == op);
        self
    }

    /// Only for requests of this priority.
    #[must_use]
    pub fn at(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Only for requests that touch these bytes of the device. Flushes touch none.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Not for the first `n` requests that match.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        self.after = n;
        self
    }

    /// At most so often.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Only for the `n`-th request that matches, counted from 1.
    ///
    /// # Panics
    /// If `n` is 0.
    #[must_use]
    pub fn nth(self, n: u64) -> Self {
        assert!(n > 0, "the first request is number 1");
        self.after(n - 1).times(1)
    }

    /// With this probability for each request that matches.
    ///
    /// # Panics
    /// If `probability` is not within 0 and 1.
    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        assert!((0.0..=1.0).contains(&probability), "a probability is within 0 and 1");
        self.probability = probability;
        self
    }

    /// The bytes of the device that the fault may touch, if it may touch the request.
    fn matches(&self, request: &Request) -> Option<Range<u64>> {
        let fits = self.ops[request.op() as usize]
            && self.priority.is_none_or(|priority| priority == request.priority());
        let whole = request.offset()..request.end().unwrap_or(u64::MAX);
        match &self.range {
            _ if !fits => None,
            None => Some(whole),
            Some(range) => {
                let common = range.start.max(whole.start)..range.end.min(whole.end);
                (!common.is_empty()).then_some(common)
            }
        }
    }
}

/// The name of a rule of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// By which rule.
    pub rule: RuleId,
    /// What.
    pub fault: Fault,
    /// Into what.
    pub op: Op,
    /// First byte of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub len: u64,
}

/// What the rules say of a request.
pub(super) struct Decision {
    /// Time to wait before anything else; the sum, if several rules say so.
    pub(super) delay: Duration,
    pub(super) hit: Option<Hit>,
}

/// A fault that is to happen to a request.
pub(super) struct Hit {
    pub(super) fault: Fault,
    /// The bytes of the device that it may touch.
    pub(super) range: Range<u64>,
    pub(super) rng: SmallRng,
}

struct Active {
    id: RuleId,
    rule: Rule,
    matched: u64,
    fired: u64,
    rng: SmallRng,
}

/// The rules of a device, and what they did.
pub(super) struct Rules {
    seed: u64,
    next: u64,
    active: Vec<Active>,
    injected: VecDeque<Injected>,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, next: 0, active: Vec::new(), injected: VecDeque::new() }
    }

    pub(super) fn add(&mut self, rule: Rule) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        // Seeds need not be far apart: the generator mixes them.
        let rng = SmallRng::from_seed(self.seed.wrapping_add(id.0));
        self.active.push(Active { id, rule, matched: 0, fired: 0, rng });
        id
    }

    /// Returns how often the rule fired, if it was there.
    pub(super) fn remove(&mut self, id: RuleId) -> Option<u64> {
        let at = self.active.iter().position(|active| active.id == id)?;
        Some(self.active.remove(at).fired)
    }

    pub(super) fn clear(&mut self) {
        self.active.clear();
    }

    pub(super) fn injected(&self) -> Vec<Injected> {
        self.injected.iter().cloned().collect()
    }

    /// What is to happen to `request`. Delays add up; of the other faults the first one that
    /// fires happens, and the rules after it do not see the request.
    pub(super) fn decide(&mut self, request: &Request) -> Decision {
        let mut decision = Decision { delay: Duration::ZERO, hit: None };
        for active in &mut self.active {
            let Some(range) = active.rule.matches(request) else {
                continue;
            };
            if !active.fires() {
                continue;
            }
            let fault = active.rule.fault;
            if self.injected.len() == REMEMBERED {
                self.injected.pop_front();
            }
            let (op, offset, len) = (request.op(), request.offset(), request.len());
            self.injected.push_back(Injected { rule: active.id, fault, op, offset, len });
            if let Fault::Delay(delay) = fault {
                decision.delay = decision.delay.saturating_add(delay);
                continue;
            }
            let rng = SmallRng::from_seed(active.rng.next_u64());
            decision.hit = Some(Hit { fault, range, rng });
            break;
        }
        decision
    }
}

impl Active {
    /// Counts a match, and says whether the fault happens.
    fn fires(&mut self) -> bool {
        self.matched += 1;
        if self.matched <= self.rule.after || self.fired >= self.rule.times {
            return false;
        }
        let fires = self.rng.next_f64() < self.rule.probability;
        self.fired += u64::from(fires);
        fires
    }
}
