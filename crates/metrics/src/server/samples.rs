//! Answers of the source, each kept for a moment.

use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::Arc;
use hyper::body::Bytes;

use super::{Limits, Source};
use crate::Format;

/// A kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Metrics(Format),
    Stats,
    Insight,
}

/// The newest answer of each kind.
pub(super) struct Samples {
    source: Arc<dyn Source>,
    clock: Arc<dyn Clock>,
    most_bytes: usize,
    fresh: Duration,
    newest: Vec<(Kind, u64, Option<Bytes>)>,
}

impl Samples {
    pub(super) fn new(source: Arc<dyn Source>, limits: &Limits) -> Self {
        Self::with_clock(source, limits, Arc::new(SystemClock::new()))
    }

    fn with_clock(source: Arc<dyn Source>, limits: &Limits, clock: Arc<dyn Clock>) -> Self {
        let (most_bytes, fresh) = (limits.answer_bytes, limits.fresh);
        Self { source, clock, most_bytes, fresh, newest: Vec::new() }
    }

    /// The answer, or `None` if it is too long.
    pub(super) fn get(&mut self, kind: Kind) -> Option<Bytes> {
        let now_ns = self.clock.now_ns();
        let fresh_ns = u64::try_from(self.fresh.as_nanos()).unwrap_or(u64::MAX);
        let is_fresh = |of: &u64| now_ns.saturating_sub(*of) < fresh_ns;
        if let Some((.., text)) =
            self.newest.iter().find(|(it, taken_ns, _)| *it == kind && is_fresh(taken_ns))
        {
            return text.clone();
        }
        let text = match kind {
            Kind::Metrics(format) => self.source.snapshot().encode(format, self.most_bytes),
            Kind::Stats => self.bounded(self.source.stats_json()),
            Kind::Insight => self.bounded(self.source.insight_json()),
        };
        let text = text.map(Bytes::from);
        self.newest.retain(|(it, ..)| *it != kind);
        self.newest.push((kind, now_ns, text.clone()));
        text
    }

    fn bounded(&self, text: String) -> Option<String> {
        Some(text).filter(|text| text.len() <= self.most_bytes)
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::clock::ManualClock;
    use forebay_base::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Snapshot;

    #[derive(Default)]
    struct Counting(AtomicU64);

    impl Source for Counting {
        fn snapshot(&self) -> Snapshot {
            let mut snapshot = Snapshot::new();
            let asked = self.0.fetch_add(1, Ordering::Relaxed);
            snapshot.counter("asked_total", "Asked.", &[], asked);
            snapshot
        }

        fn stats_json(&self) -> String {
            "x".repeat(1000)
        }
    }

    #[test]
    fn the_source_is_asked_once_per_moment() {
        let clock = Arc::new(ManualClock::new());
        let limits = Limits { answer_bytes: 999, ..Limits::default() };
        let mut samples =
            Samples::with_clock(Arc::new(Counting::default()), &limits, clock.clone());
        let kind = Kind::Metrics(Format::Text);
        let first = samples.get(kind).expect("it is short");
        clock.advance(limits.fresh.as_nanos() as u64 - 1);
        assert_eq!(samples.get(kind), Some(first.clone()));
        assert_ne!(samples.get(Kind::Metrics(Format::OpenMetrics)), Some(first.clone()));
        clock.advance(1);
        assert_ne!(samples.get(kind), Some(first));
        assert_eq!(samples.get(Kind::Stats), None, "it is too long");
    }
}
