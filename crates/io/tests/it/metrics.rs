//! The measuring decorator.

use forebay_base::clock::ManualClock;
use forebay_base::sync::Arc;
use forebay_io::metrics::MetricsDevice;
use forebay_io::{Device, ErrorKind, MemoryDevice, MemoryOptions, Op, Priority, Request};

use crate::common::{arena, filled};
use crate::double::{Double, fail};

#[test]
fn latencies_failures_bytes_and_requests_in_flight() {
    let (arena, double, clock) = (arena(), Double::new(), Arc::new(ManualClock::new()));
    let device = MetricsDevice::with_clock(double.clone(), clock.clone());
    let mut requests: Vec<_> =
        (0..4).map(|at| Request::read(at * 4096, arena.alloc(4096).unwrap())).collect();
    device.submit_all(&mut requests);
    assert!(requests.is_empty());
    device.submit(Request::write(0, filled(&arena, 512, 1)).with_priority(Priority::SyncWrite));
    let metrics = device.snapshot();
    assert_eq!(metrics.in_flight(), 5);
    assert_eq!(metrics.of(Op::Read, Priority::SyncRead).in_flight, 4);
    clock.advance(1000);
    double.first().finish(Ok(()));
    clock.advance(2000);
    double.first().finish(Ok(()));
    fail(double.first(), ErrorKind::Device);
    let metrics = device.snapshot();
    let reads = metrics.of(Op::Read, Priority::SyncRead);
    assert_eq!((reads.in_flight, reads.failed, reads.bytes), (1, 1, 8192));
    let latency = &reads.latency_ns;
    assert_eq!((latency.count, latency.max, latency.sum), (3, 3000, 7000));
    assert!(latency.quantile(0.01).abs_diff(1000) <= 1000 / 16);
    let writes = metrics.of(Op::Write, Priority::SyncWrite);
    assert_eq!((writes.in_flight, writes.latency_ns.count), (1, 0));
    assert_eq!(metrics.of(Op::Write, Priority::AsyncWrite).in_flight, 0);
    double.finish_all();
    assert_eq!(device.snapshot().in_flight(), 0);
}

#[test]
fn the_table_has_a_line_for_each_kind_that_came() {
    let device = MetricsDevice::new(Double::new());
    assert_eq!(device.snapshot().to_string().lines().count(), 1);
    device.submit(Request::flush());
    let text = device.snapshot().to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("p99.9"), "{text}");
    assert!(lines[1].starts_with("flush    sync_write "), "{text}");
    assert_eq!(device.snapshot().rows().len(), Op::ALL.len() * Priority::COUNT);
}

#[test]
fn threads_lose_nothing() {
    const EACH: u64 = 500;
    let arena = arena();
    let memory = MemoryDevice::new("memory", 1 << 20, &MemoryOptions::default()).unwrap();
    let device = Arc::new(MetricsDevice::new(Arc::new(memory)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let device: &dyn Device = &*device;
                for at in 0..EACH {
                    let buffer = arena.alloc(4096).unwrap();
                    device.run(Request::read(at % 256 * 4096, buffer)).result.unwrap();
                }
            });
        }
        for _ in 0..100 {
            // The subtraction never overflows. Requests that come and go meanwhile may be counted.
            assert!(device.snapshot().in_flight() <= 4 * EACH);
        }
    });
    let metrics = device.snapshot();
    let reads = metrics.of(Op::Read, Priority::SyncRead);
    assert_eq!((reads.latency_ns.count, reads.in_flight), (4 * EACH, 0));
    assert_eq!(reads.bytes, 4 * EACH * 4096);
    device.close();
    (&*device as &dyn Device).run(Request::flush()).result.unwrap_err();
    assert_eq!(device.snapshot().of(Op::Flush, Priority::SyncWrite).failed, 1);
}
