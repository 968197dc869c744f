//! Rules: which fault for which requests, and how often.
//!
//! Each rule has its own random numbers, derived from the device's seed and the rule's number. So
//! the fate of the n-th request that a rule matches depends on nothing else, and adding a rule does
//! not affect the others.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use forebay_base::rng::SmallRng;

use crate::priority::Priority;
use crate::request::{Op, Request};

/// Most faults in the list of the latest ones.
const MAX_LISTED: usize = 1024;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request is not executed and fails with this `errno`: 5 (`EIO`) is a medium error, 28
    /// (`ENOSPC`) no space, 19 (`ENODEV`) a device that is gone.
    Error(i32),
    /// The request is executed, but fails with this `errno`, as if only the device's answer was
    /// lost.
    ErrorAfter(i32),
    /// A read succeeds with flipped bits, within the range of the rule.
    Rot {
        /// Number of bits to flip. A bit may be drawn twice.
        bits: u32,
    },
    /// A write reaches the medium up to some byte. The sector with that byte stays old or is
    /// damaged. Later sectors stay old.
    Torn {
        /// The write fails with `EIO`. Otherwise it reports success.
        reported: bool,
    },
    /// A write succeeds but never reaches the medium, even after a flush.
    Lost,
    /// A write succeeds and stays in the device's volatile cache. Reads see it. A flush makes it
    /// durable, and [`FaultDevice::crash`](super::FaultDevice::crash) may lose it.
    Volatile,
    /// The request is forwarded later.
    Delay(Duration),
}

impl Fault {
    /// Returns its label in the counters.
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

    fn applies_to(self, op: Op) -> bool {
        match self {
            Self::Error(_) | Self::ErrorAfter(_) | Self::Delay(_) => true,
            Self::Rot { .. } => op == Op::Read,
            Self::Torn { .. } | Self::Lost | Self::Volatile => op == Op::Write,
        }
    }
}

/// A fault and its conditions. By default it is injected into every request that it applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    ops: [bool; Op::ALL.len()],
    priority: Option<Priority>,
    range: Option<Range<u64>>,
    after: u64,
    times: u64,
    probability: f64,
    /// Shortest time between the ends of two delays.
    every_ns: u64,
}

impl Rule {
    /// Creates a rule that always injects `fault`.
    pub fn new(fault: Fault) -> Self {
        let ops = Op::ALL.map(|op| fault.applies_to(op));
        let (priority, range) = (None, None);
        Self {
            fault,
            ops,
            priority,
            range,
            after: 0,
            times: u64::MAX,
            probability: 1.0,
            every_ns: 0,
        }
    }

    /// Only for this operation.
    ///
    /// # Panics
    /// If the fault does not apply to it.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        assert!(self.fault.applies_to(op), "{:?} does not apply to a {op}", self.fault);
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

    /// Not for the first `n` matching requests.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        self.after = n;
        self
    }

    /// At most `n` times.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Only for the `n`-th matching request, counted from 1.
    ///
    /// # Panics
    /// If `n` is 0.
    #[must_use]
    pub fn nth(self, n: u64) -> Self {
        assert!(n > 0, "requests are numbered from 1");
        self.after(n - 1).times(1)
    }

    /// With this probability for each matching request.
    ///
    /// # Panics
    /// If `probability` is not between 0 and 1.
    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        assert!((0.0..=1.0).contains(&probability), "a probability is between 0 and 1");
        self.probability = probability;
        self
    }

    /// Delays end at most `n` times a second, as on a device that serves no more requests. Later
    /// ones queue.
    ///
    /// # Panics
    /// If `n` is 0, or the fault is not a delay.
    #[must_use]
    pub fn at_most_per_s(mut self, n: u32) -> Self {
        assert!(matches!(self.fault, Fault::Delay(_)), "only delays can queue");
        self.every_ns = 1_000_000_000 / u64::from(n);
        self
    }

    /// Returns the bytes of the device that the fault may affect, if the rule matches the request.
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

/// The identifier of a rule of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The rule.
    pub rule: RuleId,
    /// The fault.
    pub fault: Fault,
    /// The operation of the request.
    pub op: Op,
    /// First byte of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub len: u64,
}

/// The decision of the rules for one request.
pub(super) struct Decision {
    /// Delay before anything else: the sum over the rules.
    pub(super) delay: Duration,
    pub(super) planned: Option<PlannedFault>,
}

/// A fault to inject into a request.
pub(super) struct PlannedFault {
    pub(super) fault: Fault,
    /// The bytes of the device that it may affect.
    pub(super) range: Range<u64>,
    pub(super) rng: SmallRng,
}

struct Active {
    id: RuleId,
    rule: Rule,
    matched: u64,
    fired: u64,
    /// When the next delay may begin, if delays queue.
    next_ns: u64,
    rng: SmallRng,
}

/// The rules of a device, and the faults that they injected.
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
        // Seeds may be close together: the generator mixes them.
        let rng = SmallRng::from_seed(self.seed.wrapping_add(id.0));
        self.active.push(Active { id, rule, matched: 0, fired: 0, next_ns: 0, rng });
        id
    }

    /// Returns how often the rule fired, if it existed.
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

    /// Decides about `request` at a time in nanoseconds. Delays add up. Of the other faults the
    /// first that fires is injected, and later rules do not see the request.
    pub(super) fn decide(&mut self, request: &Request, now_ns: u64) -> Decision {
        let mut decision = Decision { delay: Duration::ZERO, planned: None };
        for active in &mut self.active {
            let Some(range) = active.rule.matches(request) else {
                continue;
            };
            if !active.fires() {
                continue;
            }
            let fault = active.rule.fault;
            if self.injected.len() == MAX_LISTED {
                self.injected.pop_front();
            }
            let (op, offset, len) = (request.op(), request.offset(), request.len());
            self.injected.push_back(Injected { rule: active.id, fault, op, offset, len });
            if let Fault::Delay(delay) = fault {
                let queued = active.queue(now_ns);
                decision.delay = decision.delay.saturating_add(delay).saturating_add(queued);
                continue;
            }
            let rng = SmallRng::from_seed(active.rng.next_u64());
            decision.planned = Some(PlannedFault { fault, range, rng });
            break;
        }
        decision
    }
}

impl Active {
    /// How long a delay that is requested now must wait for those before it.
    fn queue(&mut self, now_ns: u64) -> Duration {
        let begin_ns = self.next_ns.max(now_ns);
        self.next_ns = begin_ns.saturating_add(self.rule.every_ns);
        Duration::from_nanos(begin_ns - now_ns)
    }

    /// Counts a match, and returns whether the fault is injected.
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
