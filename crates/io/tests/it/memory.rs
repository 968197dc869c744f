//! The memory device: content, latency, closing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_io::{Device, Engine, ErrorKind, MemoryDevice, MemoryOptions, Request};
use proptest::prelude::*;

fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 64 << 20, huge_pages: HugePages::Never }).unwrap()
}

fn device(size_bytes: u64, latency_ns: u64) -> MemoryDevice {
    let options = MemoryOptions { latency_ns, submission_queues: 2, ..MemoryOptions::default() };
    MemoryDevice::new("memory", size_bytes, &options).unwrap()
}

fn buffer(arena: &Arena, len: usize, fill: u8) -> Buffer {
    let mut buffer = arena.alloc(len).unwrap();
    buffer.fill(fill);
    buffer
}

fn counted(device: &dyn Device, name: &str) -> u64 {
    device.stats().counters.iter().filter(|counter| counter.0 == name).map(|c| c.2).sum()
}

fn run(device: &dyn Device, request: Request) -> forebay_io::Completion {
    device.run(request)
}

#[test]
fn unwritten_bytes_are_zero() {
    let device = device(1 << 40, 0);
    let arena = arena();
    for offset in [0, 1 << 30, (1 << 40) - 8192] {
        let read = run(&device, Request::read(offset, buffer(&arena, 8192, 9)));
        assert_eq!(read.into_buffer().unwrap()[..], [0; 8192]);
    }
    assert_eq!(device.info().engine, Engine::Memory);
    // Also with a partial last chunk.
    let options = MemoryOptions { populated: true, ..MemoryOptions::default() };
    let device = MemoryDevice::new("populated", (1 << 20) + 8192, &options).unwrap();
    for offset in [0, 1 << 20] {
        let read = run(&device, Request::read(offset, buffer(&arena, 8192, 9)));
        assert_eq!(read.into_buffer().unwrap()[..], [0; 8192]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_behaves_like_a_plain_array(
        steps in prop::collection::vec((0..3u8, 0..2048u64, 1..600u64, any::<u8>()), 1..40),
    ) {
        const SECTORS: u64 = 2648;
        let device = device(SECTORS * 512, 0);
        let arena = arena();
        let mut model = vec![0u8; SECTORS as usize * 512];
        for (what, at, len, fill) in steps {
            let (offset, len) = (at * 512, (len * 512) as usize);
            let range = offset as usize..offset as usize + len;
            match what {
                0 => {
                    run(&device, Request::write(offset, buffer(&arena, len, fill))).result.unwrap();
                    model[range].fill(fill);
                }
                1 => {
                    run(&device, Request::discard(offset, len as u64)).result.unwrap();
                    model[range].fill(0);
                }
                _ => {
                    let read = run(&device, Request::read(offset, buffer(&arena, len, !fill)));
                    prop_assert_eq!(&read.into_buffer().unwrap()[..], &model[range]);
                }
            }
        }
    }
}

#[test]
fn an_operation_takes_its_latency_however_many_there_are() {
    const LATENCY: Duration = Duration::from_millis(500);
    const COUNT: u64 = 500;
    let device = device(COUNT * 8192, LATENCY.as_nanos() as u64);
    let arena = arena();
    let begin = Instant::now();
    let mut most_in_flight = 0;
    let ends: Vec<_> = (0..COUNT)
        .map(|i| {
            // Not adjacent, so that they are not merged.
            let (request, pending) = Request::read(i * 8192, buffer(&arena, 4096, 0)).pending();
            device.submit(request);
            let in_flight =
                counted(&device, "issued").saturating_sub(counted(&device, "completed"));
            most_in_flight = most_in_flight.max(in_flight);
            pending
        })
        .collect();
    for end in ends {
        end.wait(&device).result.unwrap();
    }
    let took = begin.elapsed();
    assert!(took >= LATENCY, "{took:?}");
    assert!(most_in_flight >= 10, "one after the other: {most_in_flight} in flight");
}

#[test]
fn a_long_chain_of_callbacks_is_no_recursion() {
    fn next(device: &Arc<MemoryDevice>, buffer: Buffer, left: usize, count: &Arc<AtomicUsize>) {
        let (again, counted) = (Arc::clone(device), Arc::clone(count));
        device.submit(Request::read(0, buffer).on_done(move |done| {
            counted.fetch_add(1, Ordering::Relaxed);
            if left > 1 {
                next(&again, done.into_buffer().unwrap(), left - 1, &counted);
            }
        }));
    }
    for latency_ns in [0, 1000] {
        let device = Arc::new(device(4096, latency_ns));
        let count = Arc::new(AtomicUsize::new(0));
        next(&device, buffer(&arena(), 4096, 0), 10_000, &count);
        while count.load(Ordering::Relaxed) < 10_000 {
            std::thread::yield_now();
        }
        device.close();
    }
}

#[test]
fn a_close_waits_for_operations_due_later() {
    let device = device(1 << 20, 5_000_000);
    let arena = arena();
    let ended = Arc::new(AtomicUsize::new(0));
    for i in 0..100u64 {
        let ended = Arc::clone(&ended);
        device.submit(Request::read(i * 8192, buffer(&arena, 4096, 0)).on_done(move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
        }));
    }
    device.close();
    assert_eq!(ended.load(Ordering::Relaxed), 100);
    let refused = run(&device, Request::read(0, buffer(&arena, 4096, 0))).result.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
}

#[test]
fn a_read_only_device_refuses_writes() {
    let options = MemoryOptions { read_only: true, ..MemoryOptions::default() };
    let device = MemoryDevice::new("memory", 4096, &options).unwrap();
    let arena = arena();
    for request in [Request::write(0, buffer(&arena, 512, 1)), Request::discard(0, 512)] {
        assert_eq!(run(&device, request).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    run(&device, Request::read(0, buffer(&arena, 512, 1))).result.unwrap();
}

#[test]
fn a_submitter_waits_while_the_queue_is_full() {
    let tunables = forebay_io::tunables::IoTunables::default();
    tunables.set_queue_limit(2).unwrap();
    let options = MemoryOptions {
        latency_ns: 50_000,
        submission_queues: 1,
        tunables: Arc::new(tunables),
        ..MemoryOptions::default()
    };
    let device = MemoryDevice::new("memory", 1 << 20, &options).unwrap();
    let arena = arena();
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut ends = Vec::new();
                for i in 0..600u64 {
                    let read = Request::read(i * 8192 % (1 << 20), buffer(&arena, 512, 0));
                    let (request, pending) = read.pending();
                    device.submit(request);
                    ends.push(pending);
                }
                for end in ends {
                    end.wait(&device).result.unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(ended.load(Ordering::Relaxed), 2400);
}
