//! Metrics at one instant, by family.
//!
//! Invariants: all samples of a family have one type and one help text, and no two have the same
//! labels. Families are in the order of their names.
//!
//! A name or a label that is not in snake case, or a family with two types, is a bug of the caller:
//! an assertion in tests, and left out otherwise, because a monitor would refuse the whole text.

use std::collections::BTreeMap;

use forebay_base::counters::CounterValue;
use forebay_base::histogram::HistogramSnapshot;

use crate::names;

/// Upper bounds of the buckets of durations, in nanoseconds. A histogram of `forebay_base` is
/// finer. A bucket of it that spans a bound counts for the next bound, which moves a bound by a
/// 16th at most.
const BOUNDS_NS: [u64; 20] = [
    1_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
const NS_PER_S: f64 = 1e9;

/// Names and values of labels, in the order in which they are printed.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Metrics at one instant.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    families: BTreeMap<String, Family>,
}

/// A metric with its samples.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Counter(u64),
    /// A counter of nanoseconds, shown in seconds.
    Time(u64),
    Gauge(f64),
    /// Upper bound and count of each bucket, not cumulated; the last bound is infinite.
    Histogram {
        sum: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

impl Value {
    fn kind(&self) -> Kind {
        match self {
            Value::Counter(_) | Value::Time(_) => Kind::Counter,
            Value::Gauge(_) => Kind::Gauge,
            Value::Histogram { .. } => Kind::Histogram,
        }
    }
}

impl Snapshot {
    /// Creates a snapshot without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a counter. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: u64) {
        match names::family_of(name) {
            Some(family) => self.add(family, help, labels, Value::Counter(value)),
            None => debug_assert!(false, "{name}: a counter ends in _total"),
        }
    }

    /// Adds the counters of a table. `part` names the table, and is a word of each name. A label
    /// that splits a counter comes after `labels`. A counter of nanoseconds, `…_ns`, is one of
    /// seconds here.
    pub fn counters(&mut self, part: &str, counters: &[CounterValue], labels: Labels<'_>) {
        for cell in counters {
            let mut labels = labels.to_vec();
            labels.extend(cell.label.map(|label| (cell.split, label)));
            let (name, value) = match cell.name.strip_suffix("_ns") {
                Some(what) => (format!("{what}_seconds"), Value::Time(cell.value)),
                None => (cell.name.to_owned(), Value::Counter(cell.value)),
            };
            let name = names::of_counter(part, &name);
            let family = names::family_of(&name).expect("a counter ends in _total");
            self.add(family, cell.help, &labels, value);
        }
    }

    /// Adds a gauge: a value that can fall.
    pub fn gauge(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: f64) {
        self.add(name, help, labels, Value::Gauge(value));
    }

    /// Adds a gauge for each of `states`: 1 for the current one, 0 for the others.
    pub fn state(
        &mut self,
        name: &str,
        help: &'static str,
        labels: Labels<'_>,
        states: &[&str],
        current: &str,
    ) {
        for state in states {
            let mut labels = labels.to_vec();
            labels.push(("state", state));
            self.gauge(name, help, &labels, f64::from(u8::from(*state == current)));
        }
    }

    /// Adds a histogram of durations, given in nanoseconds. Its name ends in `_seconds`.
    pub fn durations(
        &mut self,
        name: &str,
        help: &'static str,
        labels: Labels<'_>,
        taken: &HistogramSnapshot,
    ) {
        debug_assert!(name.ends_with("_seconds"), "{name}: durations are in seconds");
        let mut counts = [0; BOUNDS_NS.len() + 1];
        for (_, highest, count) in taken.buckets() {
            counts[BOUNDS_NS.partition_point(|bound| *bound < highest)] += count;
        }
        let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / NS_PER_S).chain([f64::INFINITY]);
        let (sum, count) = (taken.sum as f64 / NS_PER_S, taken.count);
        let buckets = bounds.zip(counts).collect();
        self.add(name, help, labels, Value::Histogram { sum, count, buckets });
    }

    /// The names of all metrics, as queries have them; a histogram without its suffixes.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.families.iter().map(|(name, family)| match family.kind {
            Kind::Counter => format!("{name}_total"),
            Kind::Gauge | Kind::Histogram => name.clone(),
        })
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = (&str, &Family)> {
        self.families.iter().map(|(name, family)| (&**name, family))
    }

    fn add(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: Value) {
        let kind = value.kind();
        let fits = names::is_snake_case(name)
            && labels.iter().all(|(label, _)| names::is_snake_case(label))
            && !help.is_empty();
        debug_assert!(fits, "{name}{labels:?}: not in snake case, or without help");
        if !fits {
            return;
        }
        let labels: Vec<_> =
            labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        let new = || Family { kind, help, samples: Vec::new() };
        let family = self.families.entry(name.to_owned()).or_insert_with(new);
        debug_assert!(
            family.samples.iter().all(|it| it.labels != labels),
            "{name}{labels:?}: twice"
        );
        debug_assert_eq!(family.kind, kind, "{name}: two types");
        if family.kind == kind {
            family.samples.push(Sample { labels, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::histogram::AtomicHistogram;

    use super::*;

    forebay_base::counters! {
        /// Counters of a gate.
        table GateCounters;
        labels side = ["north", "south"];
        /// Passages.
        passed: side;
        /// Bytes that passed.
        bytes;
        /// Time at the gate.
        wait_ns;
    }

    fn samples(snapshot: &Snapshot, name: &str) -> Vec<(Vec<(&'static str, String)>, Value)> {
        let family = snapshot.families.get(name).expect("a family");
        family.samples.iter().map(|it| (it.labels.clone(), it.value.clone())).collect()
    }

    #[test]
    fn a_table_becomes_families_with_the_labels_that_split_it() {
        let counters = GateCounters::new();
        counters.add(GateCounters::PASSED, 1, 7);
        counters.add(GateCounters::WAIT_NS, 0, 9);
        let mut snapshot = Snapshot::new();
        let values = counters.snapshot();
        snapshot.counters("gate", &values, &[("pool", "a")]);
        snapshot.counters("gate", &values, &[("pool", "b")]);
        let names: Vec<_> = snapshot.names().collect();
        let wait = "forebay_gate_wait_seconds_total";
        assert_eq!(names, ["forebay_gate_bytes_total", "forebay_gate_passed_total", wait]);
        assert_eq!(samples(&snapshot, "forebay_gate_wait_seconds")[0].1, Value::Time(9));
        let passed = samples(&snapshot, "forebay_gate_passed");
        assert_eq!(passed.len(), 4);
        let labels = vec![("pool", "a".to_owned()), ("side", "south".to_owned())];
        assert_eq!(passed[1], (labels, Value::Counter(7)));
        assert_eq!(snapshot.families["forebay_gate_passed"].help, "Passages.");
    }

    #[test]
    fn durations_become_seconds_and_every_value_is_in_the_bucket_of_its_bound() {
        let histogram = AtomicHistogram::new();
        for ns in [0, 900, 1_000_000, 90_000_000, u64::from(u32::MAX), 60_000_000_000] {
            histogram.record(ns);
        }
        let mut snapshot = Snapshot::new();
        snapshot.durations("wait_seconds", "Waits.", &[], &histogram.snapshot());
        let (_, Value::Histogram { sum, count, buckets }) =
            samples(&snapshot, "wait_seconds").remove(0)
        else {
            panic!("not a histogram");
        };
        assert_eq!(count, 6);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 6);
        assert!((sum - 64.385).abs() < 0.001, "{sum}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1)));
        let at = |bound: f64| {
            buckets.iter().filter(|(it, _)| *it <= bound).map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!((at(1e-6), at(2.5e-3), at(0.1), at(5.0)), (2, 3, 4, 5));
    }

    #[test]
    fn one_state_of_several_is_set() {
        let mut snapshot = Snapshot::new();
        snapshot.state("health", "Health.", &[("pool", "a")], &["good", "bad"], "bad");
        let values: Vec<_> = samples(&snapshot, "health").into_iter().map(|it| it.1).collect();
        assert_eq!(values, [Value::Gauge(0.0), Value::Gauge(1.0)]);
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn samples_have_different_labels() {
        let mut snapshot = Snapshot::new();
        snapshot.gauge("depth", "Depth.", &[("pool", "a")], 1.0);
        snapshot.gauge("depth", "Depth.", &[("pool", "a")], 2.0);
    }

    #[test]
    #[should_panic(expected = "snake case")]
    fn labels_are_in_snake_case() {
        Snapshot::new().gauge("depth", "Depth.", &[("po-ol", "a")], 1.0);
    }
}
