//! Handles of requests, against a queue that records its calls.
#![allow(clippy::disallowed_types, reason = "a plain lock for a test")]

use std::sync::{Arc, Mutex, Weak};

use super::{RaiseHandle, Request, RequeueTarget};
use crate::priority::Priority;

#[derive(Default)]
struct Queue(Mutex<Vec<(u64, Option<Priority>)>>);

impl RequeueTarget for Queue {
    fn requeue(&self, id: u64, priority: Option<Priority>) {
        self.0.lock().unwrap().push((id, priority));
    }
}

impl Queue {
    fn asked(&self) -> Vec<(u64, Option<Priority>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn prefetch() -> (Request, RaiseHandle) {
    Request::discard(0, 512).with_priority(Priority::AsyncRead).raisable()
}

fn requeue_target(queue: &Arc<Queue>, id: u64) -> Option<(Weak<dyn RequeueTarget>, u64)> {
    let queue: Arc<dyn RequeueTarget> = queue.clone();
    Some((Arc::downgrade(&queue), id))
}

#[test]
fn the_queue_in_which_it_waits_is_asked_and_no_other() {
    let (first, second) = (Arc::new(Queue::default()), Arc::new(Queue::default()));
    let (request, handle) = prefetch();
    assert!(request.has_handle());
    request.set_requeue_target(requeue_target(&first, 7));
    handle.raise(Priority::SyncRead);
    handle.cancel();
    assert_eq!(first.asked(), [(7, Some(Priority::SyncRead)), (7, None)]);
    request.set_requeue_target(requeue_target(&second, 8));
    handle.raise(Priority::SyncWrite);
    assert_eq!((first.asked().len(), second.asked().len()), (0, 1));
    request.set_requeue_target(None);
    handle.raise(Priority::SyncRead);
    assert!(second.asked().is_empty());
}

#[test]
fn a_raise_that_comes_before_the_queue_is_not_lost() {
    let queue = Arc::new(Queue::default());
    let (request, handle) = prefetch();
    assert_eq!(request.priority(), Priority::AsyncRead);
    // Less urgent than its current priority.
    handle.raise(Priority::Scrub);
    assert_eq!(request.priority(), Priority::AsyncRead);
    handle.raise(Priority::SyncRead);
    handle.raise(Priority::SyncWrite);
    request.set_requeue_target(requeue_target(&queue, 1));
    assert_eq!(request.priority(), Priority::SyncRead);
    assert!(queue.asked().is_empty());
}

#[test]
fn an_ended_request_and_a_gone_queue_hear_nothing() {
    let queue = Arc::new(Queue::default());
    let (request, handle) = prefetch();
    request.set_requeue_target(requeue_target(&queue, 1));
    request.finish(Ok(()));
    handle.raise(Priority::SyncRead);
    assert!(queue.asked().is_empty());

    let (request, handle) = prefetch();
    request.set_requeue_target(requeue_target(&queue, 2));
    drop(queue);
    handle.cancel();
    assert!(request.is_cancelled());
}

#[test]
fn a_queue_may_end_the_request_that_is_cancelled() {
    struct Ends(Mutex<Option<Request>>);
    impl RequeueTarget for Ends {
        fn requeue(&self, _: u64, priority: Option<Priority>) {
            assert!(priority.is_none());
            let request = self.0.lock().unwrap().take();
            assert!(request.as_ref().is_some_and(Request::is_cancelled));
            drop(request);
        }
    }
    let (request, handle) = prefetch();
    let ends = Arc::new(Ends(Mutex::new(None)));
    let requeue_target: Arc<dyn RequeueTarget> = ends.clone();
    request.set_requeue_target(Some((Arc::downgrade(&requeue_target), 1)));
    *ends.0.lock().unwrap() = Some(request);
    handle.cancel();
    assert!(ends.0.lock().unwrap().is_none());
}
