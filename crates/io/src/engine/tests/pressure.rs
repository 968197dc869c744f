//! More requests than slots or workers, and operations that fail as a whole: no request may be
//! forgotten.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;
use crate::{MemoryDevice, MemoryOptions, Payload};

/// Time after which a test counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

fn tunables(settings: &[(&str, u64)]) -> Arc<IoTunables> {
    let tunables = IoTunables::default();
    for (name, value) in settings {
        tunables.set(name, &value.to_string()).unwrap();
    }
    Arc::new(tunables)
}

fn with(path: &Path, choice: EngineChoice, queues: usize, tunables: Arc<IoTunables>) -> FileEngine {
    let setup = Setup { choice, queues, threads: 0, tunables };
    engine_over(open(path, false), path, false, &setup)
}

/// `request`, whose `name` and result are sent when it completes.
fn told<T: Send + 'static>(
    to: &Sender<(T, Result<(), ErrorKind>)>,
    name: T,
    request: Request,
) -> Request {
    let to = to.clone();
    request.on_done(move |done| {
        let _ = to.send((name, done.result.map_err(|error| error.kind())));
    })
}

/// Receives the next `count` completions. If they do not come, leaks the device, since closing it
/// would hang.
fn ends<T, D>(from: &Receiver<T>, count: usize, device: D) -> (Vec<T>, D) {
    let ends: Vec<T> = (0..count).map_while(|_| from.recv_timeout(HANG_TIMEOUT).ok()).collect();
    if ends.len() < count {
        std::mem::forget(device);
        panic!("{} of {count} have ended", ends.len());
    }
    (ends, device)
}

#[test]
fn a_failed_merged_operation_is_retried_request_by_request() {
    let arena = arena();
    for choice in choices() {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(&dir);
        // Every read fails.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let tunables = Arc::new(IoTunables::default());
        let setup = Setup { choice, queues: 1, threads: 0, tunables };
        let engine = engine_over(file.into(), &path, false, &setup);
        let (to, from) = channel();
        let read = |at: u64| told(&to, at, Request::read(at * 4096, alloc(&arena, 4096)));
        let mut requests: Vec<_> = (0..4).map(read).collect();
        engine.submit_all(&mut requests);
        let (ends, engine) = ends(&from, 4, engine);
        assert!(ends.iter().all(|end| end.1 == Err(ErrorKind::Device)), "{ends:?}");
        engine.close();
    }
}

/// A chain of reads that continues until `stop`.
fn chain(engine: &Arc<FileEngine>, stop: &Arc<AtomicBool>, buffer: Buffer, at: u64) {
    let (again, stopped) = (Arc::clone(engine), Arc::clone(stop));
    engine.submit(Request::read(at, buffer).on_done(move |done| {
        if !stopped.load(Relaxed) {
            let buffer = done.into_buffer().unwrap();
            // Never adjacent to another, since merged reads are no flood.
            chain(&again, &stopped, buffer, (at + 17 * 8192) % FILE_BYTES);
        }
    }));
}

#[test]
fn a_flood_of_one_class_does_not_starve_the_others() {
    let arena = arena();
    for (choice, queues) in choices().flat_map(|choice| [(choice, 1), (choice, 2)]) {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(engine(&filled(&dir), choice, queues, false));
        let stop = Arc::new(AtomicBool::new(false));
        for i in 0..64 {
            chain(&engine, &stop, alloc(&arena, 4096), i * 8192);
        }
        let (to, from) = channel();
        for class in &Priority::ALL[1..] {
            let read = Request::read(8192, alloc(&arena, 4096)).with_priority(*class);
            engine.submit(told(&to, *class, read));
        }
        let (ends, engine) = ends(&from, 4, engine);
        assert!(ends.iter().all(|end| end.1.is_ok()), "{ends:?}");
        stop.store(true, Relaxed);
        engine.close();
    }
}

/// Queues that compete for few permits, with raises and cancels in between. A queue that needs a
/// granted permit no longer returns it.
#[test]
fn few_permits_circulate_among_queues() {
    let arena = arena();
    for choice in choices() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["sync_read", "sync_write", "async_read", "async_write", "scrub"];
        let settings: Vec<_> = names
            .iter()
            .flat_map(|class| ["min", "max"].map(|of| format!("{class}_{of}")))
            .collect();
        let mut settings: Vec<_> = settings.iter().map(|name| (name.as_str(), 1)).collect();
        settings.push(("total_max", 5));
        let engine = Arc::new(with(&filled(&dir), choice, 3, tunables(&settings)));
        let (to, from) = channel();
        let threads: Vec<_> = (0..6u64)
            .map(|thread| {
                let (engine, arena, to) = (Arc::clone(&engine), Arc::clone(&arena), to.clone());
                std::thread::spawn(move || {
                    for i in 0..150u64 {
                        let at = (thread * 977 + i * 31) % (FILE_BYTES / 4096) * 4096;
                        let class = Priority::ALL[(thread + i) as usize % 5];
                        let read = Request::read(at, alloc(&arena, 4096)).with_priority(class);
                        let (read, handle) = told(&to, i, read).raisable();
                        engine.submit(read);
                        match i % 3 {
                            0 => handle.cancel(),
                            1 => handle.raise(Priority::SyncRead),
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        let (ends, engine) = ends(&from, 6 * 150, engine);
        assert!(ends.iter().all(|end| matches!(end.1, Ok(()) | Err(ErrorKind::Cancelled))));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        engine.close();
    }
}

/// A memory device that serves one asynchronous read at a time, each for `latency_ns`, and queues
/// one.
fn narrow(latency_ns: u64) -> Arc<MemoryDevice> {
    let settings = [("async_read_min", 1), ("async_read_max", 1), ("queue_limit", 1)];
    let tunables = tunables(&settings);
    let options =
        MemoryOptions { latency_ns, submission_queues: 1, tunables, ..Default::default() };
    Arc::new(MemoryDevice::new("narrow", 1 << 20, &options).unwrap())
}

/// Blocks the device's only queue in a callback. Nothing completes until the returned channel is
/// used.
fn stopped(device: &dyn Device) -> SyncSender<()> {
    let (entered, is_in) = sync_channel(0);
    let (go, gate) = sync_channel(0);
    device.submit(Request::flush().on_done(move |_| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
    }));
    is_in.recv().unwrap();
    go
}

fn counted(device: &dyn Device, name: &str) -> u64 {
    device.stats().counters.iter().filter(|counter| counter.0 == name).map(|c| c.2).sum()
}

fn wait_for(condition: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < HANG_TIMEOUT, "the condition never became true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A slot freed by a cancel or a raise wakes a waiting submitter.
#[test]
fn a_cancel_or_raise_wakes_a_blocked_submitter() {
    let arena = arena();
    for raises in [false, true] {
        let device = narrow(1);
        let (to, from) = channel();
        let go = stopped(&*device);
        let before = counted(&*device, "completed");
        let read = |at: u64| {
            let read = Request::read(at * 8192, alloc(&arena, 4096));
            told(&to, at, read.with_priority(Priority::AsyncRead))
        };
        device.submit(read(0));
        let (queued, handle) = read(1).raisable();
        device.submit(queued);
        let late = read(2);
        let theirs = Arc::clone(&device);
        let submitter = std::thread::spawn(move || theirs.submit(late));
        wait_for(|| counted(&*device, "queue_full") == 1);
        if raises {
            handle.raise(Priority::SyncRead);
        } else {
            handle.cancel();
        }
        // The read in flight has not ended.
        submitter.join().unwrap();
        assert_eq!(counted(&*device, "completed"), before);
        go.send(()).unwrap();
        let (mut ends, device) = ends(&from, 3, device);
        ends.sort_by_key(|end| end.0);
        let second = if raises { Ok(()) } else { Err(ErrorKind::Cancelled) };
        assert_eq!(ends, [(0, Ok(())), (1, second), (2, Ok(()))]);
        device.close();
    }
}

/// A request whose submitter waits for a slot can be raised into a queue that has one, or
/// cancelled.
#[test]
fn a_blocked_request_can_be_raised_or_cancelled_at_once() {
    let arena = arena();
    for raises in [false, true] {
        let device = narrow(1);
        let (to, from) = channel();
        let go = stopped(&*device);
        let read = |at: u64| {
            let read = Request::read(at * 8192, alloc(&arena, 4096));
            told(&to, at, read.with_priority(Priority::AsyncRead))
        };
        device.submit(read(0));
        device.submit(read(1));
        let (late, handle) = read(2).raisable();
        let theirs = Arc::clone(&device);
        let submitter = std::thread::spawn(move || theirs.submit(late));
        wait_for(|| counted(&*device, "queue_full") == 1);
        std::thread::sleep(Duration::from_millis(5));
        if raises {
            handle.raise(Priority::SyncRead);
        } else {
            handle.cancel();
        }
        submitter.join().unwrap();
        assert_eq!(from.try_iter().filter(|(name, _)| *name != 2).count(), 0);
        go.send(()).unwrap();
        device.close();
        assert_eq!(counted(&*device, "completed"), if raises { 4 } else { 3 });
        assert_eq!(counted(&*device, "cancelled"), u64::from(!raises));
    }
}

/// Many threads wait for slots. Each slot wakes one, and all get one.
#[test]
fn many_blocked_submitters_all_get_through() {
    let arena = arena();
    let device = narrow(20_000);
    let (to, from) = channel();
    let threads: Vec<_> = (0..48u64)
        .map(|thread| {
            let (device, arena, to) = (Arc::clone(&device), Arc::clone(&arena), to.clone());
            std::thread::spawn(move || {
                for i in 0..20 {
                    let read = Request::read((thread + i) % 64 * 8192, alloc(&arena, 512));
                    let read = told(&to, i, read.with_priority(Priority::AsyncRead));
                    let (read, handle) = read.raisable();
                    device.submit(read);
                    if i % 4 == 0 {
                        handle.cancel();
                    }
                }
            })
        })
        .collect();
    let (_, device) = ends(&from, 48 * 20, device);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    device.close();
}

/// Raising and cancelling run no callbacks, so they may be called under a lock that callbacks take.
#[test]
fn raising_and_cancelling_run_no_callbacks() {
    let arena = arena();
    let busy = Arc::new(Mutex::named("test-callbacks", ()));
    let test = |device: Arc<dyn Device>| {
        let (to, from) = channel();
        let mut count = 0;
        for round in 0..50u64 {
            let mut handles = Vec::new();
            let mut requests = Vec::new();
            for i in 0..40u64 {
                let read = Request::read(i * 8192, alloc(&arena, 4096));
                let (busy, to) = (Arc::clone(&busy), to.clone());
                let read = read.with_priority(Priority::Scrub).on_done(move |_| {
                    drop(busy.lock());
                    let _ = to.send(());
                });
                let (read, handle) = read.raisable();
                requests.push(read);
                handles.push(handle);
                count += 1;
            }
            device.submit_all(&mut requests);
            let held = busy.lock();
            for (i, handle) in handles.iter().enumerate() {
                match (i as u64 + round) % 2 {
                    0 => handle.cancel(),
                    _ => handle.raise(Priority::SyncRead),
                }
            }
            drop(held);
        }
        let (_, device) = ends(&from, count, device);
        device.close();
    };
    for choice in choices() {
        let dir = tempfile::tempdir().unwrap();
        test(Arc::new(engine(&filled(&dir), choice, 1, false)));
    }
    let options = MemoryOptions { submission_queues: 1, ..MemoryOptions::default() };
    test(Arc::new(MemoryDevice::new("memory", FILE_BYTES, &options).unwrap()));
}

/// Requests that a callback cancels are finished by another thread. The close waits for that.
#[test]
fn a_close_waits_for_requests_that_callbacks_cancelled() {
    let arena = arena();
    for choice in choices() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let settings = [("scrub_min", 1), ("scrub_max", 1)];
            let engine = with(&filled(&dir), choice, 1, tunables(&settings));
            let ended = Arc::new(AtomicUsize::new(0));
            let counts = |request: Request| {
                let ended = Arc::clone(&ended);
                request.with_priority(Priority::Scrub).on_done(move |_| {
                    ended.fetch_add(1, Relaxed);
                })
            };
            let mut handles = Vec::new();
            let mut requests = Vec::new();
            for i in 1..20u64 {
                let (read, handle) =
                    counts(Request::read(i * 8192, alloc(&arena, 4096))).raisable();
                requests.push(read);
                handles.push(handle);
            }
            let cancels = Request::read(0, alloc(&arena, 4096)).on_done(move |_| {
                handles.iter().for_each(crate::RaiseHandle::cancel);
            });
            requests.push(cancels);
            engine.submit_all(&mut requests);
            engine.close();
            assert_eq!(ended.load(Relaxed), 19);
        }
    }
}

/// A thread that drives a ring while it waits for a request is woken when that request is
/// cancelled.
#[test]
fn a_helping_thread_is_woken_by_a_cancel() {
    let arena = arena();
    for choice in choices() {
        let dir = tempfile::tempdir().unwrap();
        let settings = [("scrub_min", 1), ("scrub_max", 1)];
        let engine = with(&filled(&dir), choice, 1, tunables(&settings));
        for _ in 0..200 {
            let scrub =
                |at| Request::read(at, alloc(&arena, 1 << 20)).with_priority(Priority::Scrub);
            let (first, first_end) = scrub(0).pending();
            engine.submit(first);
            let (queued, handle) = scrub(2 << 20).raisable();
            let (queued, pending) = queued.pending();
            engine.submit(queued);
            std::thread::scope(|scope| {
                scope.spawn(move || handle.cancel());
                let end = pending.wait(&engine);
                match end.result {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
                }
            });
            first_end.wait(&engine).result.unwrap();
        }
    }
}

/// Two queues of a device without latency pass one permit back and forth, on small stacks.
#[test]
fn running_other_queues_does_not_recurse() {
    let arena = arena();
    let settings = [("async_read_min", 1), ("async_read_max", 1)];
    let tunables = tunables(&settings);
    let options = MemoryOptions { submission_queues: 2, tunables, ..MemoryOptions::default() };
    let device = Arc::new(MemoryDevice::new("memory", 1 << 20, &options).unwrap());
    let (to, from) = channel();
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (device, arena, to) = (Arc::clone(&device), Arc::clone(&arena), to.clone());
            let body = move || {
                for round in 0..20 {
                    let read = |i: u64| {
                        let read = Request::read(i % 64 * 8192, alloc(&arena, 512));
                        told(&to, round, read.with_priority(Priority::AsyncRead))
                    };
                    let mut requests: Vec<_> = (0..200).map(|i| read(thread + i)).collect();
                    device.submit_all(&mut requests);
                }
            };
            std::thread::Builder::new().stack_size(96 << 10).spawn(body).unwrap()
        })
        .collect();
    let (_, device) = ends(&from, 4 * 20 * 200, device);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    device.close();
}

/// Replaced memory is checked before anything depends on it.
#[test]
fn memory_that_does_not_fit_is_refused() {
    let arena = arena();
    on_both(|_, engine| {
        let mut shared = Request::read(0, alloc(&arena, 4096));
        *shared.payload_mut().unwrap() = Payload::Shared(Box::new(alloc(&arena, 4096)));
        let mut short = Request::write(0, alloc(&arena, 8192));
        *short.payload_mut().unwrap() = Payload::Owned(alloc(&arena, 4096));
        for request in [shared, short] {
            let error = run(engine, request).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        }
        run(engine, Request::flush()).result.unwrap();
    });
}

/// The request was not cancelled, and part of it may have happened.
#[test]
fn a_persistent_ecanceled_is_a_device_error() {
    let arena = arena();
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir);
    let engine = engine(&path, EngineChoice::Threads, 1, false);
    let medium = transfer::DeviceFile::new(open(&path, false), engine.info());
    let request = Request::write(0, alloc(&arena, 4096));
    let mut transfer = transfer::Transfer::new(crate::queue::Operation {
        op: Op::Write,
        offset: 0,
        len: 4096,
        priority: Priority::AsyncWrite,
        requests: crate::queue::Requests::One(request),
    });
    let given_up = std::iter::from_fn(|| match transfer.step(&medium, Err(libc::ECANCELED)) {
        transfer::NextStep::Retry => Some(None),
        transfer::NextStep::End(result) => Some(Some(result.unwrap_err())),
        other => panic!("{other:?}"),
    });
    let error = given_up.take(100).flatten().next().expect("it is tried a bounded number of times");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
}
