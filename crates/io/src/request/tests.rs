//! Handles of requests, against a queue that notes what it is asked.
#![allow(clippy::disallowed_types, reason = "a plain lock for a test")]

use std::sync::{Arc, Mutex, Weak};

use super::{Home, RaiseHandle, Request};
use crate::priority::Priority;

#[derive(Default)]
struct Queue(Mutex<Vec<(u64, Option<Priority>)>>);

impl Home for Queue {
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

fn home(queue: &Arc<Queue>, id: u64) -> Option<(Weak<dyn Home>, u64)> {
    let queue: Arc<dyn Home> = queue.clone();
    Some((Arc::downgrade(&queue), id))
}

#[test]
fn the_queue_in_which_it_waits_is_asked_and_no_other() {
    let (first, second) = (Arc::new(Queue::default()), Arc::new(Queue::default()));
    let (request, handle) = prefetch();
    assert!(request.has_handle());
    request.set_home(home(&first, 7));
    handle.raise(Priority::SyncRead);
    handle.cancel();
    assert_eq!(first.asked(), [(7, Some(Priority::SyncRead)), (7, None)]);
    request.set_home(home(&second, 8));
    handle.raise(Priority::SyncWrite);
    assert_eq!((first.asked().len(), second.asked().len()), (0, 1));
    request.set_home(None);
    handle.raise(Priority::SyncRead);
    assert!(second.asked().is_empty());
}

#[test]
fn a_raise_that_comes_before_the_queue_is_not_lost() {
    let queue = Arc::new(Queue::default());
    let (request, handle) = prefetch();
    assert_eq!(request.priority(), Priority::AsyncRead);
    // Less urgent than it is anyway.
    handle.raise(Priority::Scrub);
    assert_eq!(request.priority(), Priority::AsyncRead);
    handle.raise(Priority::SyncRead);
    handle.raise(Priority::SyncWrite);
    request.set_home(home(&queue, 1));
    assert_eq!(request.priority(), Priority::SyncRead);
    assert!(queue.asked().is_empty());
}

#[test]
fn an_ended_request_and_a_gone_queue_hear_nothing() {
    let queue = Arc::new(Queue::default());
    let (request, handle) = prefetch();
    request.set_home(home(&queue, 1));
    request.finish(Ok(()));
    handle.raise(Priority::SyncRead);
    assert!(queue.asked().is_empty());

    let (request, handle) = prefetch();
    request.set_home(home(&queue, 2));
    drop(queue);
    handle.cancel();
    assert!(request.is_cancelled());
}

#[test]
fn a_queue_may_end_the_request_that_is_cancelled() {
    struct Ends(Mutex<Option<Request>>);
    impl Home for Ends {
        fn requeue(&self, _: u64, priority: Option<Priority>) {
            assert!(priority.is_none());
            let request = self.0.lock().unwrap().take();
            assert!(request.as_ref().is_some_and(Request::is_cancelled));
            drop(request);
        }
    }
    let (request, handle) = prefetch();
    let ends = Arc::new(Ends(Mutex::new(None)));
    let home: Arc<dyn Home> = ends.clone();
    request.set_home(Some((Arc::downgrade(&home), 1)));
    *ends.0.lock().unwrap() = Some(request);
    handle.cancel();
    assert!(ends.0.lock().unwrap().is_none());
}
