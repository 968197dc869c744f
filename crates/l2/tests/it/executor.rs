//! A single-threaded executor, which polls a future only when it was woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Futures that one thread runs together.
#[derive(Default)]
pub(crate) struct Executor<'a> {
    tasks: Vec<(Pin<Box<dyn Future<Output = ()> + 'a>>, Arc<Task>)>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken {
    any: Mutex<bool>,
    changed: Condvar,
}

struct Task {
    is_due: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.is_due.store(true, Ordering::SeqCst);
        *self.woken.any.lock().unwrap() = true;
        self.woken.changed.notify_all();
    }
}

impl<'a> Executor<'a> {
    pub(crate) fn spawn(&mut self, future: impl Future<Output = ()> + 'a) {
        let task = Task { is_due: AtomicBool::new(true), woken: Arc::clone(&self.woken) };
        self.tasks.push((Box::pin(future), Arc::new(task)));
    }

    /// Polls all futures to their end, on this thread.
    pub(crate) fn run(mut self) {
        while !self.tasks.is_empty() {
            *self.woken.any.lock().unwrap() = false;
            self.tasks.retain_mut(|(future, task)| {
                if !task.is_due.swap(false, Ordering::SeqCst) {
                    return true;
                }
                let waker = Waker::from(Arc::clone(task));
                future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
            });
            let mut any = self.woken.any.lock().unwrap();
            while !*any && !self.tasks.is_empty() {
                any = self.woken.changed.wait(any).unwrap();
            }
        }
    }
}

/// Lets other futures of the executor run.
pub(crate) async fn yield_now() {
    let mut first = true;
    std::future::poll_fn(|context| {
        if !std::mem::replace(&mut first, false) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
