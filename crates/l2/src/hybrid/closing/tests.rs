use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};

use super::Closing;
use crate::error::{ErrorKind, Result};

/// Polls a future to its end.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => return output,
            Poll::Pending => forebay_base::sync::thread::yield_now(),
        }
    }
}

/// A refused thread closes nothing and says so to all that wait. A later close does its work.
#[test]
fn a_refused_thread_leaves_the_cache_open() {
    for later_by_future in [false, true] {
        let (closing, closed) = (Arc::new(Closing::new()), Arc::new(AtomicBool::new(false)));
        let close = || {
            let closed = Arc::clone(&closed);
            move || -> Result<()> {
                closed.store(true, Ordering::SeqCst);
                Ok(())
            }
        };
        let mut waiting = None;
        let answer = closing.close_on(close(), |body| {
            // Another caller waits for this thread.
            waiting = Some(closing.close_on_thread(close()).wait());
            // As the system does: the body is dropped before the error is returned.
            drop(body);
            Err(io::Error::from(io::ErrorKind::WouldBlock))
        });
        let refused = block_on(answer.wait());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Thread);
        assert_eq!(block_on(waiting.unwrap()).unwrap_err().kind(), ErrorKind::Thread);
        assert!(closing.is_set(), "changes are refused from now on");
        assert!(!closed.load(Ordering::SeqCst), "closed without a thread");
        match later_by_future {
            false => closing.close(true, close()).unwrap(),
            true => block_on(closing.close_on_thread(close()).wait()).unwrap(),
        }
        assert!(closed.load(Ordering::SeqCst), "the later close did nothing");
    }
}
