//! The rate limit of the log: a layer that passes on a bounded number of events per second of each
//! place in the source.
//!
//! # Invariants
//!
//! Dropped events are counted. The next event of their place that is passed on has the count in its
//! field [`SUPPRESSED`].
//!
//! # Not done
//!
//! A count that no later event follows is not logged.

use std::collections::HashMap;
use std::fmt;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::{Arc, Mutex};
use tracing::callsite::Identifier;
use tracing::field::{Field, FieldSet, Value, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Limit of events of one place in the source, per second.
const EVENTS_PER_SECOND: u32 = 20;
/// Field with the number of events that were dropped before this one.
const SUPPRESSED: &str = "suppressed";

const SECOND_NS: u64 = 1_000_000_000;

/// Passes at most [`EVENTS_PER_SECOND`] events of one place in the source to the layer inside.
pub(super) struct RateLimited<L> {
    inner: L,
    clock: Arc<dyn Clock>,
    places: Mutex<HashMap<Identifier, Place>>,
}

/// The events of one place.
#[derive(Default)]
struct Place {
    /// The second of the last event.
    second: u64,
    /// Events in that second.
    events: u32,
    /// Events dropped since one was passed on.
    suppressed: u64,
    /// Metadata with the field [`SUPPRESSED`]. Never freed, as `tracing` requires of metadata.
    extended: Option<&'static Metadata<'static>>,
}

/// A number of dropped events, and the metadata of an event that reports it.
type Report = (u64, &'static Metadata<'static>);

impl<L> RateLimited<L> {
    pub(super) fn new(inner: L) -> Self {
        Self::with_clock(inner, Arc::new(SystemClock::new()))
    }

    fn with_clock(inner: L, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, places: Mutex::named("log-places", HashMap::new()) }
    }

    /// Returns `None` if an event is above the limit; else the report that it must carry, if any.
    fn admit(&self, metadata: &'static Metadata<'static>) -> Option<Option<Report>> {
        let second = self.clock.now_ns() / SECOND_NS;
        let mut places = self.places.lock();
        let place = places.entry(metadata.callsite()).or_default();
        if place.second != second {
            (place.second, place.events) = (second, 0);
        }
        if place.events == EVENTS_PER_SECOND {
            place.suppressed += 1;
            return None;
        }
        place.events += 1;
        if place.suppressed == 0 {
            return Some(None);
        }
        let extended = *place.extended.get_or_insert_with(|| extend(metadata));
        Some(Some((std::mem::take(&mut place.suppressed), extended)))
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for RateLimited<L> {
    fn on_layer(&mut self, subscriber: &mut S) {
        self.inner.on_layer(subscriber);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.inner.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.inner.on_record(id, values, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        match self.admit(event.metadata()) {
            None => {}
            Some(None) => self.inner.on_event(event, context),
            Some(Some((suppressed, metadata))) => {
                let mut values = Values(metadata.fields().iter().map(|_| None).collect());
                event.record(&mut values);
                if let Some(last) = values.0.last_mut() {
                    *last = Some(Box::new(suppressed));
                }
                let values: Vec<_> = values.0.iter().map(Option::as_deref).collect();
                let values = metadata.fields().value_set_all(&values);
                self.inner.on_event(&Event::new(metadata, &values), context);
            }
        }
    }
}

/// Metadata of the same place with one more field, the last.
fn extend(metadata: &'static Metadata<'static>) -> &'static Metadata<'static> {
    let names = metadata.fields().iter().map(|field| field.name());
    let names: Vec<&'static str> = names.chain([SUPPRESSED]).collect();
    Box::leak(Box::new(Metadata::new(
        metadata.name(),
        metadata.target(),
        *metadata.level(),
        metadata.file(),
        metadata.line(),
        metadata.module_path(),
        FieldSet::new(names.leak(), metadata.callsite()),
        tracing::metadata::Kind::EVENT,
    )))
}

/// Copies of the values of an event, by the index of their field.
struct Values(Vec<Option<Box<dyn Value>>>);

impl Values {
    fn set(&mut self, field: &Field, value: impl Value + 'static) {
        self.0[field.index()] = Some(Box::new(value));
    }
}

impl Visit for Values {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, tracing::field::display(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use forebay_base::clock::ManualClock;
    use serde_json::Value as Json;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The text of a log.
    #[derive(Clone)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Text {
        fn new() -> Self {
            Self(Arc::new(Mutex::named("log-text", Vec::new())))
        }

        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(self.0.lock().clone()).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    /// Emits events of one place, and one of another.
    fn emit(events: u64) {
        for n in 0..events {
            tracing::warn!(n, ok = false, path = "a b", error = %"torn", "device error");
        }
        tracing::info!("a quiet place");
    }

    /// Events of three seconds, 1000 in each of the first two and one in the third.
    fn log(layer: impl Layer<tracing_subscriber::Registry> + Send + Sync) {
        let clock = Arc::new(ManualClock::new());
        let layer = RateLimited::with_clock(layer, clock.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for events in [1000, 1000, 1] {
                emit(events);
                clock.advance(SECOND_NS);
            }
        });
    }

    #[test]
    fn a_place_logs_a_bounded_number_of_events_and_counts_the_rest() {
        let text = Text::new();
        let writer = text.clone();
        log(fmt::layer().json().flatten_event(true).with_writer(move || writer.clone()));
        let lines: Vec<Json> =
            text.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (loud, quiet): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line["message"] == "device error");
        assert_eq!(quiet.len(), 3);
        assert!(quiet.iter().all(|line| line.get("suppressed").is_none()));
        let limit = EVENTS_PER_SECOND as usize;
        assert_eq!(loud.len(), 2 * limit + 1);
        for (i, line) in loud.iter().enumerate() {
            // The first of the second and of the third second.
            let expected = (i > 0 && i % limit == 0).then(|| Json::from(1000 - limit));
            assert_eq!(line.get("suppressed"), expected.as_ref(), "{line}");
            // All else is as if nothing had been dropped.
            assert_eq!(line["n"], Json::from(i % limit));
            assert_eq!((&line["ok"], &line["path"]), (&Json::from(false), &Json::from("a b")));
            assert_eq!(
                (&line["error"], &line["level"]),
                (&Json::from("torn"), &Json::from("WARN"))
            );
            assert_eq!(line["target"], loud[0]["target"]);
        }
    }

    #[test]
    fn text_logs_say_how_many_events_were_suppressed() {
        let text = Text::new();
        let writer = text.clone();
        let layer = fmt::layer().with_ansi(false).without_time().with_target(false);
        log(layer.with_writer(move || writer.clone()));
        let lines = text.lines();
        let expected = r#" WARN device error n=0 ok=false path="a b" error=torn suppressed=980"#;
        assert_eq!(lines.iter().filter(|line| *line == expected).count(), 2, "{lines:#?}");
    }
}
