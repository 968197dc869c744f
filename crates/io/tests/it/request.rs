//! Requests: their properties, and that each completes exactly once.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_io::{Device, Error, ErrorKind, Op, Priority, Request};

use crate::double::{Double, fail};

fn buffer(len: usize, fill: u8) -> Buffer {
    let config = ArenaConfig { limit_bytes: 64 << 20, huge_pages: HugePages::Never };
    let mut buffer = Arena::new(config).unwrap().alloc(len).unwrap();
    buffer.fill(fill);
    buffer
}

#[test]
fn each_kind_of_request_has_its_properties() {
    let shared = std::sync::Arc::new(buffer(1024, 7));
    let rows = [
        (Request::read(512, buffer(4096, 0)), Op::Read, Priority::SyncRead, 512, 4096),
        (Request::write(0, buffer(512, 0)), Op::Write, Priority::AsyncWrite, 0, 512),
        (
            Request::write_shared(9, Box::new(buffer(1024, 7))),
            Op::Write,
            Priority::AsyncWrite,
            9,
            1024,
        ),
        (Request::flush(), Op::Flush, Priority::SyncWrite, 0, 0),
        (Request::discard(1 << 40, 1 << 41), Op::Discard, Priority::AsyncWrite, 1 << 40, 1 << 41),
    ];
    for (request, op, priority, offset, len) in rows {
        assert_eq!((request.op(), request.priority()), (op, priority));
        assert_eq!((request.offset(), request.len()), (offset, len));
        assert_eq!(request.end(), Some(offset + len));
        assert!(!request.is_cancelled());
        let request = request.with_priority(Priority::Scrub);
        assert_eq!(request.priority(), Priority::Scrub);
    }
    assert_eq!(Request::discard(u64::MAX, 2).end(), None);
    // Shared bytes are read-only.
    let mut request = Request::write_shared(0, Box::new(shared));
    assert_eq!(request.payload().unwrap().bytes(), [7; 1024]);
    assert!(request.bytes_mut().is_none());
}

#[test]
fn memory_comes_back_whatever_the_result() {
    for works in [true, false] {
        let (sent, received) = mpsc::channel();
        let read = Request::read(4096, buffer(512, 1));
        let mut request = read.on_done(move |completion| sent.send(completion).unwrap());
        request.bytes_mut().unwrap().fill(5);
        if works {
            request.finish(Ok(()))
        } else {
            fail(request, ErrorKind::Device)
        }
        let completion = received.recv().unwrap();
        assert_eq!((completion.op, completion.offset), (Op::Read, 4096));
        assert_eq!(completion.payload.as_ref().unwrap().bytes(), [5; 512]);
        assert_eq!(completion.into_buffer().is_ok(), works);
    }
}

#[test]
fn a_dropped_request_ends_with_an_error_and_its_memory() {
    let (sent, received) = mpsc::channel();
    let request = Request::write(512, buffer(1024, 3));
    drop(request.on_done(move |completion| sent.send(completion).unwrap()));
    let completion = received.recv().unwrap();
    let error = completion.result.unwrap_err();
    assert_eq!((error.kind(), error.range()), (ErrorKind::Device, (512, 1024)));
    assert_eq!(completion.payload.unwrap().into_buffer().unwrap().len(), 1024);
    received.recv().unwrap_err();
}

#[test]
fn a_panic_that_holds_requests_ends_them() {
    let (sent, received) = mpsc::channel();
    let requests: Vec<_> = (0..3)
        .map(|offset| {
            let sent = sent.clone();
            Request::discard(offset, 1).on_done(move |completion| {
                sent.send(completion.offset).unwrap();
                panic!("on purpose, while unwinding");
            })
        })
        .collect();
    let thrown = catch_unwind(AssertUnwindSafe(move || {
        let _held = requests;
        panic!("on purpose");
    }));
    assert!(thrown.is_err());
    drop(sent);
    assert_eq!(received.iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn one_callback_and_layers_over_it() {
    let twice = || Request::flush().on_done(|_| {}).on_done(|_| {});
    assert!(catch_unwind(twice).is_err());
    let late = || Request::flush().layered(|_| {}).on_done(|_| {});
    assert!(catch_unwind(late).is_err());
    let (sent, received) = mpsc::channel();
    Request::flush().layered(move |_| sent.send(()).unwrap()).finish(Ok(()));
    received.recv().unwrap();
}

#[test]
fn a_handle_cancels_and_every_copy_does() {
    let (request, handle) = Request::flush().raisable();
    let (request, second) = request.raisable();
    assert!(!request.is_cancelled());
    handle.raise(Priority::SyncRead);
    second.clone().cancel();
    assert!(request.is_cancelled());
    request.finish(Ok(()));
    // Too late to have an effect, and harmless.
    handle.cancel();
    second.raise(Priority::SyncRead);
}

#[test]
fn waiting_works_on_a_thread_and_as_a_future() {
    let device = Double::new();
    let device_of = || -> &dyn Device { &*device };
    let completion = device_of().run(Request::flush());
    assert_eq!((completion.op, completion.result.is_ok()), (Op::Flush, true));

    let (request, pending) = Request::discard(512, 512).pending();
    device.submit(request);
    thread::scope(|s| {
        let waits = s.spawn(|| pending.wait(device_of()));
        assert!(!waits.is_finished());
        fail(device.first(), ErrorKind::Gone);
        let error = waits.join().unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
    });

    // First as a future, then on the thread.
    let (request, mut pending) = Request::discard(512, 512).pending();
    device.submit(request);
    let mut context = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut pending).poll(&mut context).is_pending());
    assert!(format!("{pending:?}").contains("complete: false"));
    device.finish_all();
    assert!(pending.wait(device_of()).result.is_ok());
}

#[test]
fn a_callback_must_not_wait() {
    let device = Double::new();
    let (sent, received) = mpsc::channel();
    let theirs = device.clone();
    let request = Request::flush().on_done(move |_| {
        let (request, pending) = Request::flush().pending();
        theirs.submit(request);
        let waited = catch_unwind(AssertUnwindSafe(|| pending.wait(&*theirs)));
        sent.send(waited.is_err()).unwrap();
    });
    device.submit(request);
    assert!(received.recv().unwrap());
}

#[test]
fn errors_name_operation_range_and_device() {
    let name = "/dev/disk".into();
    let text = Error::system(Op::Write, &name, (4096, 512), 28).to_string();
    assert!(text.starts_with("write of 512 bytes at 4096 of /dev/disk: "), "{text}");
    let kinds = [(28, ErrorKind::NoSpace), (19, ErrorKind::Gone), (5, ErrorKind::Device)];
    for (errno, kind) in kinds {
        let error = Error::system(Op::Flush, &name, (0, 0), errno);
        assert_eq!((error.kind(), error.errno()), (kind, Some(errno)));
        assert!(error.to_string().starts_with("flush of /dev/disk: "));
        assert_eq!(error.device(), "/dev/disk");
    }
}
