//! Records the `tracing` events of the process, for tests of what a library logs.

use std::fmt::{Debug, Write};
// tidy: std, because the subscriber of a process outlives the executions of a model check
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events so far, one string each.
static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records the events of Forebay's crates from now on. Only the first call of a process has an
/// effect.
///
/// # Panics
///
/// If the process has another subscriber.
pub fn record_events() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Recorder).expect("the only subscriber");
    });
}

/// The recorded events that contain all of `parts`, oldest first. Tests of one process run at the
/// same time, so one part should be a name that only one of them uses.
///
/// An event is its level, and each field as `name=value`, in the order of the source; the message
/// is the field `message`.
pub fn events(parts: &[&str]) -> Vec<String> {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let has_all = |event: &&String| parts.iter().all(|part| event.contains(part));
    events.iter().filter(has_all).cloned().collect()
}

struct Recorder;

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("memory does not fail");
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forebay_")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(fields.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
