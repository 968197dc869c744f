//! The text of a snapshot.
//!
//! `prometheus-client` writes OpenMetrics text. Prometheus asks for it; `promtool check metrics`
//! and tools that name no format understand only the older text format, in which the family of a
//! counter has the suffix `_total`, and units and the end are not marked. [`to_text`] rewrites the
//! lines that differ. Both have the same samples.

use std::fmt::{self, Write};
use std::sync::Arc; // tidy: std, because the client takes this type.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use crate::names;
use crate::snapshot::{Family, Kind, Snapshot, Value};

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Format {
    /// The format for a client that sends this header `Accept`.
    pub fn of_accept(accept: Option<&str>) -> Self {
        let asks = |accept: &str| accept.contains("application/openmetrics-text");
        if accept.is_some_and(asks) { Self::OpenMetrics } else { Self::Text }
    }

    /// The header `Content-Type` of the text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Snapshot {
    /// Returns the text, or `None` if it is longer than `most_bytes`.
    pub fn encode(self, format: Format, most_bytes: usize) -> Option<String> {
        let mut text = Bounded { text: String::new(), most_bytes };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::new(self)));
        encode(&mut text, &registry).ok()?;
        match format {
            Format::OpenMetrics => Some(text.text),
            Format::Text => Some(to_text(&text.text)).filter(|text| text.len() <= most_bytes),
        }
    }
}

/// Text that refuses to grow beyond a limit.
struct Bounded {
    text: String,
    most_bytes: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.text.len() + more.len() > self.most_bytes {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, family) in self.families() {
            let (name, unit) = names::split_unit(name);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let help = escaped(family.help);
            let metric = encoder.encode_descriptor(name, &help, unit.as_ref(), kind)?;
            samples(family, metric)?;
        }
        Ok(())
    }
}

fn samples(family: &Family, mut metric: MetricEncoder<'_>) -> fmt::Result {
    for sample in &family.samples {
        match sample.labels.is_empty() {
            true => value(&sample.value, &mut metric)?,
            false => value(&sample.value, &mut metric.encode_family(&sample.labels)?)?,
        }
    }
    Ok(())
}

fn value(value: &Value, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    match value {
        Value::Time(ns) => {
            let seconds = *ns as f64 / 1e9;
            metric.encode_counter(&seconds, None::<&Exemplar<NoLabelSet, f64>>)
        }
        Value::Counter(count) => metric.encode_counter(count, None::<&Exemplar<NoLabelSet, f64>>),
        Value::Gauge(value) => metric.encode_gauge(value),
        Value::Histogram { sum, count, buckets } => {
            metric.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
        }
    }
}

/// The client escapes values of labels, but no help.
fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Rewrites OpenMetrics text to the older text format.
fn to_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        let of_type = lines.peek().copied().unwrap_or_default();
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        let counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with(" counter");
        let (family, rest) = match line.strip_prefix("# HELP ") {
            Some(_) if counter(of_type) => split_family(line),
            None if counter(line) => split_family(line),
            _ => (line, ""),
        };
        text.push_str(family);
        if !rest.is_empty() {
            text.push_str("_total");
        }
        text.push_str(rest);
        text.push('\n');
    }
    text
}

/// Splits a line of metadata after the name of its family.
fn split_family(line: &str) -> (&str, &str) {
    let end = line.match_indices(' ').nth(2).map_or(line.len(), |(at, _)| at);
    line.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::new();
        snapshot.counter("forebay_reads_total", "Reads \\ all.", &[("pool", "a")], 7);
        snapshot.counter("forebay_read_bytes_total", "Bytes.", &[], u64::MAX);
        snapshot.gauge("forebay_dirty_bytes", "Dirty.", &[], 1.5);
        snapshot.durations(
            "forebay_wait_seconds",
            "Waits.",
            &[("pool", "a")],
            &forebay_base::histogram::HistogramSnapshot::empty(),
        );
        snapshot
    }

    #[test]
    fn open_metrics_has_families_units_and_an_end() {
        let text = snapshot().encode(Format::OpenMetrics, 1 << 20).expect("it is short");
        let expected = "# HELP forebay_dirty_bytes Dirty.\n# TYPE forebay_dirty_bytes gauge\n\
                        # UNIT forebay_dirty_bytes bytes\nforebay_dirty_bytes 1.5\n\
                        # HELP forebay_read_bytes Bytes.\n# TYPE forebay_read_bytes counter\n\
                        # UNIT forebay_read_bytes bytes\n\
                        forebay_read_bytes_total 18446744073709551615\n\
                        # HELP forebay_reads Reads \\\\ all.\n# TYPE forebay_reads counter\n\
                        forebay_reads_total{pool=\"a\"} 7\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("\nforebay_wait_seconds_bucket{le=\"+Inf\",pool=\"a\"} 0\n"),
            "{text}"
        );
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }

    #[test]
    fn the_text_format_has_the_same_samples_and_its_own_metadata() {
        let open = snapshot().encode(Format::OpenMetrics, 1 << 20).expect("it is short");
        let text = snapshot().encode(Format::Text, 1 << 20).expect("it is short");
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&open), samples(&text));
        for line in [
            "# HELP forebay_reads_total Reads \\\\ all.",
            "# TYPE forebay_reads_total counter",
            "# TYPE forebay_read_bytes_total counter",
            "# HELP forebay_dirty_bytes Dirty.",
            "# TYPE forebay_wait_seconds histogram",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn labels_and_help_are_escaped() {
        let mut snapshot = Snapshot::new();
        let hostile = "a\"} 1\nforebay_evil{x=\"\\";
        snapshot.gauge("forebay_up", "Line\none.", &[("pool", hostile)], 1.0);
        for format in [Format::OpenMetrics, Format::Text] {
            let text = snapshot.clone().encode(format, 1 << 20).expect("it is short");
            let escaped = "forebay_up{pool=\"a\\\"} 1\\nforebay_evil{x=\\\"\\\\\"} 1.0";
            assert!(text.lines().any(|line| line == escaped), "{text}");
            assert!(text.lines().any(|line| line == "# HELP forebay_up Line\\none."), "{text}");
        }
    }

    #[test]
    fn a_text_beyond_the_limit_is_no_text() {
        let length = |format| snapshot().encode(format, 1 << 20).expect("it is short").len();
        let longest = length(Format::OpenMetrics).max(length(Format::Text));
        for format in [Format::OpenMetrics, Format::Text] {
            assert!(snapshot().encode(format, longest).is_some());
            assert!(snapshot().encode(format, length(format) / 2).is_none());
        }
    }

    #[test]
    fn the_client_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,\
                          text/plain;version=0.0.4;q=0.2";
        assert_eq!(Format::of_accept(Some(prometheus)), Format::OpenMetrics);
        for other in [None, Some("*/*"), Some("text/html")] {
            assert_eq!(Format::of_accept(other), Format::Text);
        }
    }
}
