//! Cases of a submission queue that the random walk of the model test would rarely hit.

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex};

use super::super::class_queue::MAX_PASSED_OVER;
use super::super::{Limits, MAX_MERGED, Operation, Permits, SubmissionQueue};
use super::double::{Ends, SECTOR, limits, queue, read, request, sectors};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::request::{Fence, Op};
use crate::tunables::IoTunables;

fn defaults() -> (SubmissionQueue, Permits) {
    let tunables = Arc::new(IoTunables::new());
    let permits = Permits::new(Limits::new(&tunables), 1);
    (queue(0, &tunables), permits)
}

/// One operation at a time in each class.
fn narrow() -> (SubmissionQueue, Permits) {
    let permits = Permits::new(limits([1; 5], [1; 5], 5, 8), 1);
    (queue(0, &Arc::new(IoTunables::new())), permits)
}

fn operation(queue: &mut SubmissionQueue, permits: &Permits) -> Operation {
    queue.next(permits).expect("a queued request and a permit")
}

fn finish(queue: &mut SubmissionQueue, permits: &Permits, operation: Operation) {
    let class = operation.priority;
    operation.finish(Ok(()));
    queue.done(class, permits);
}

#[test]
fn defaults_let_every_class_run_32_deep_and_reads_230_deep() {
    for class in Priority::ALL {
        let (mut queue, permits) = defaults();
        // Far from each other, so that none are merged.
        (0..300).for_each(|at| queue.push(read(class, at * 100)).unwrap());
        let mut operations: Vec<_> = std::iter::from_fn(|| queue.next(&permits)).collect();
        assert!(operations.len() >= 32, "{class}: {}", operations.len());
        if class == Priority::SyncRead {
            assert!(operations.len() >= 230, "{}", operations.len());
        }
        operations.drain(..).for_each(|operation| finish(&mut queue, &permits, operation));
    }
}

#[test]
fn limits_that_contradict_each_other_are_reconciled() {
    let tunables = IoTunables::new();
    tunables.set_scrub_min(100).unwrap();
    tunables.set_scrub_max(1).unwrap();
    tunables.set_total_max(5).unwrap();
    let limits = Limits::new(&tunables);
    assert_eq!((limits.min[4], limits.max[4]), (100, 100));
    assert_eq!((limits.shared(), limits.total), (0, limits.min.iter().sum()));
}

#[test]
fn minimums_fit_among_the_workers() {
    let tunables = IoTunables::new();
    for workers in 5..=100 {
        let limits = Limits::for_workers(&tunables, workers);
        let min = limits.min.iter().sum::<u32>();
        assert!(limits.min.iter().all(|min| *min >= 1) && min <= workers, "{workers}: {limits:?}");
        assert!(Priority::ALL.iter().all(|class| limits.reachable(class.index()) >= 32));
        assert_eq!(limits == Limits::new(&tunables), workers >= 58);
    }
}

#[test]
fn an_elevator_serves_upwards_and_begins_again() {
    let (mut queue, permits) = narrow();
    for sector in [50, 10, 90, 30] {
        queue.push(read(Priority::AsyncRead, sector)).unwrap();
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        let next = operation(&mut queue, &permits);
        order.push(next.offset / SECTOR);
        if order.len() == 2 {
            queue.push(read(Priority::AsyncRead, 20)).unwrap();
        }
        finish(&mut queue, &permits, next);
    }
    assert_eq!(order, [10, 30, 50, 90]);
    assert_eq!(operation(&mut queue, &permits).offset / SECTOR, 20);
}

#[test]
fn new_requests_ahead_of_the_elevator_do_not_starve_those_behind() {
    let (mut queue, permits) = narrow();
    queue.push(read(Priority::AsyncRead, 1000)).unwrap();
    let first = operation(&mut queue, &permits);
    finish(&mut queue, &permits, first);
    queue.push(read(Priority::AsyncRead, 1)).unwrap();
    for round in 0..MAX_PASSED_OVER {
        queue.push(read(Priority::AsyncRead, 2000 + round * 10)).unwrap();
        let next = operation(&mut queue, &permits);
        assert!(next.offset > 1000 * SECTOR, "served {round} others before");
        finish(&mut queue, &permits, next);
    }
    queue.push(read(Priority::AsyncRead, 1 << 20)).unwrap();
    assert_eq!(operation(&mut queue, &permits).offset, SECTOR);
}

#[test]
fn synchronous_classes_serve_by_age_but_merge_adjacent_requests() {
    let (mut queue, permits) = narrow();
    let sync = Priority::SyncRead;
    [7, 100, 8, 6, 101].into_iter().for_each(|at| queue.push(read(sync, at)).unwrap());
    let first = operation(&mut queue, &permits);
    assert_eq!(sectors(&first), [(6, 1), (7, 1), (8, 1)]);
    assert_eq!((first.offset, first.len), (6 * SECTOR, 3 * SECTOR));
    finish(&mut queue, &permits, first);
    assert_eq!(sectors(&operation(&mut queue, &permits)), [(100, 1), (101, 1)]);
}

#[test]
fn merging_stops_at_64_requests_at_flushes_and_at_other_operations() {
    let (mut queue, permits) = defaults();
    let class = Priority::AsyncWrite;
    let write = |at| request(Op::Write, class, (at, 1));
    (0..100).for_each(|at| queue.push(write(at)).unwrap());
    queue.push(request(Op::Read, class, (100, 1))).unwrap();
    assert_eq!(operation(&mut queue, &permits).requests.as_slice().len(), MAX_MERGED);
    assert_eq!(operation(&mut queue, &permits).requests.as_slice().len(), 100 - MAX_MERGED);
    assert_eq!(operation(&mut queue, &permits).op, Op::Read);

    queue.push(write(500)).unwrap();
    queue.push(request(Op::Flush, Priority::SyncWrite, (0, 0))).unwrap();
    queue.push(write(501)).unwrap();
    assert_eq!(operation(&mut queue, &permits).op, Op::Flush);
    assert_eq!(sectors(&operation(&mut queue, &permits)), [(500, 1)]);
    assert_eq!(sectors(&operation(&mut queue, &permits)), [(501, 1)]);
}

#[test]
fn a_short_operation_succeeds_for_the_requests_it_covered() {
    let (mut queue, permits) = defaults();
    let ends = Ends::default();
    for at in 0..4 {
        queue.push(ends.noted(at, read(Priority::SyncRead, at))).unwrap();
    }
    let merged = operation(&mut queue, &permits);
    let error = Error::new(ErrorKind::Gone, Op::Read, &"disk".into(), (0, 2048), "it shrank");
    merged.finish_short(2 * SECTOR + 17, &error);
    assert_eq!(ends.take(), [(0, true), (1, true), (2, false), (3, false)]);
}

#[test]
fn an_error_tells_each_request_its_own_range() {
    let (mut queue, permits) = defaults();
    let ranges = Arc::new(Mutex::named("test-ranges", Vec::new()));
    for at in 0..2 {
        let ranges = Arc::clone(&ranges);
        let one = read(Priority::SyncRead, at).on_done(move |completion| {
            ranges.lock().push(completion.result.unwrap_err().range());
        });
        queue.push(one).unwrap();
    }
    let error = Error::system(Op::Read, &"disk".into(), (0, 2 * SECTOR), 5);
    operation(&mut queue, &permits).finish(Err(error));
    assert_eq!(*ranges.lock(), [(0, SECTOR), (SECTOR, SECTOR)]);
}

#[test]
fn a_raised_request_overtakes_and_keeps_its_age() {
    let (mut queue, permits) = narrow();
    let ends = Ends::default();
    let raised = ends.noted(0, read(Priority::AsyncRead, 300));
    let (raised, handle) = raised.raisable();
    queue.push(raised).unwrap();
    queue.push(read(Priority::SyncRead, 100)).unwrap();
    assert!(queue.requeue(0, Some(Priority::SyncRead)));
    assert!(!queue.requeue(0, Some(Priority::SyncRead)), "it was raised already");
    assert!(!queue.requeue(99, Some(Priority::SyncRead)), "no request has that identifier");
    let first = operation(&mut queue, &permits);
    assert_eq!((first.offset, first.priority), (300 * SECTOR, Priority::SyncRead));
    handle.cancel();
    assert!(!queue.requeue(0, None), "it was issued");
    finish(&mut queue, &permits, first);
    assert_eq!(ends.take(), [(0, true)]);
}

#[test]
fn a_fence_is_asked_when_a_request_is_issued() {
    let (mut queue, permits) = narrow();
    let ends = Ends::default();
    let is_open = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_open);
    let fence = Fence::new(move || asked.load(Ordering::SeqCst));
    for number in 0..2 {
        let request = ends.noted(number, read(Priority::SyncRead, 100 * number));
        queue.push(request.with_fence(Some(fence.clone()))).unwrap();
    }
    let first = operation(&mut queue, &permits);
    is_open.store(false, Ordering::SeqCst);
    finish(&mut queue, &permits, first);
    assert_eq!(ends.take(), [(0, true)], "it was issued before");
    assert!(queue.next(&permits).is_none());
    assert_eq!(queue.take_cancelled().len(), 1);
}

#[test]
fn queued_requests_can_be_taken_out_and_the_limit_holds() {
    let tunables = Arc::new(IoTunables::new());
    tunables.set_queue_limit(2).unwrap();
    let mut queue = queue(3, &tunables);
    assert_eq!(SubmissionQueue::queue_of(3 << 56 | 5), 3);
    queue.push(read(Priority::Scrub, 1)).unwrap();
    queue.push(read(Priority::Scrub, 9)).unwrap();
    let refused = queue.push(read(Priority::Scrub, 2)).unwrap_err();
    assert!(queue.push(read(Priority::SyncRead, 2)).is_ok(), "each class has its own bound");
    queue.push_unbounded(refused);
    assert_eq!((queue.queued(Priority::Scrub), queue.has_free_slot(Priority::Scrub)), (3, false));
    assert_eq!(queue.take_queued().len(), 4);
    assert!(queue.is_idle());
}
