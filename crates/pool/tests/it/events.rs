//! The events that the pool logs.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{CreateOptions, Pool};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::{MIB, cache, create_options, memory};

/// Records the events of the process, one string each, with all fields.
struct Recorder;

static EVENTS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

fn events() -> &'static Mutex<Vec<String>> {
    EVENTS.get_or_init(Mutex::default)
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forebay_pool")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(format!("{} ", event.metadata().level()));
        event.record(&mut fields);
        events().lock().expect("no panic under the lock").push(fields.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[test]
fn a_suspension_is_logged_once_with_pool_txg_and_error() {
    tracing::subscriber::set_global_default(Recorder).expect("the only subscriber of this binary");
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let faulty = Arc::new(FaultDevice::new(memory, 1));
    let device: Arc<dyn Device> = Arc::clone(&faulty) as Arc<dyn Device>;
    // A name of its own: other tests of this binary suspend pools at the same time.
    let options = CreateOptions { name: "suspends-once".to_owned(), ..create_options(&cache) };
    let pool = Pool::create(vec![device.into()], &options).expect("a pool");
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    let dataset = pool.create_dataset("data", &forebay_pool::DatasetSettings::default());
    assert!(dataset.is_err(), "it is durable when it returns");
    assert!(pool.sync().is_err());
    assert!(pool.sync().is_err(), "it stays suspended");
    assert!(pool.export().is_err());
    let events = events().lock().expect("no panic under the lock").clone();
    let of = |message: &str| {
        let ours = |event: &&String| {
            event.contains("pool=\"suspends-once\"")
                && event.contains(&format!("message={message}"))
        };
        events.iter().filter(ours).cloned().collect::<Vec<_>>()
    };
    let suspended = of("suspended pool");
    assert_eq!(suspended.len(), 1, "{suspended:?}");
    let suspended = &suspended[0];
    assert!(suspended.starts_with("ERROR ") && suspended.contains("txg="), "{suspended}");
    assert!(suspended.contains("error="), "{suspended}");
    assert_eq!(of("closed pool without a clean export").len(), 1, "{events:?}");
}
