//! Model check: changes against two closes, and against a drop beside a close.

use forebay_base::model::check;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Closing;
use crate::error::{Error, ErrorKind};

#[derive(Default)]
struct Observed {
    closes: AtomicU64,
    /// Whether the close has ended.
    closed: AtomicBool,
    in_progress: AtomicU64,
}

/// No change is in progress during the close, and every close returns after the first one, with its
/// result.
#[test]
fn changes_and_closes_do_not_overlap() {
    check(3000, || {
        let (closing, observed) = (Arc::new(Closing::new()), Arc::new(Observed::default()));
        let spawn = |body: fn(&Closing, &Observed)| {
            let (closing, observed) = (Arc::clone(&closing), Arc::clone(&observed));
            shuttle::thread::spawn(move || body(&closing, &observed))
        };
        let change = |closing: &Closing, observed: &Observed| {
            for _ in 0..3 {
                let Some(change) = closing.begin_change() else {
                    assert!(closing.is_set());
                    return;
                };
                observed.in_progress.fetch_add(1, Ordering::SeqCst);
                assert_eq!(observed.closes.load(Ordering::SeqCst), 0, "a change during the close");
                observed.in_progress.fetch_sub(1, Ordering::SeqCst);
                drop(change);
            }
        };
        let close = |closing: &Closing, observed: &Observed| {
            let result = closing.close(true, || {
                observed.closes.fetch_add(1, Ordering::SeqCst);
                assert_eq!(observed.in_progress.load(Ordering::SeqCst), 0, "not waited for");
                observed.closed.store(true, Ordering::SeqCst);
                Err(Error::new(ErrorKind::Device, "the first result"))
            });
            assert!(observed.closed.load(Ordering::SeqCst), "returned before the first close");
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Device);
        };
        let threads = [spawn(change), spawn(change), spawn(close), spawn(close)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(observed.closes.load(Ordering::SeqCst), 1);
    });
}

/// A drop returns when no change is in progress, and after a close that has begun has written its
/// values, but does not wait for its end.
#[test]
fn a_drop_waits_for_changes_and_for_what_a_close_writes() {
    check(3000, || {
        let (closing, observed) = (Arc::new(Closing::new()), Arc::new(Observed::default()));
        let changes = [(); 2].map(|()| {
            let change = closing.begin_own_change().expect("no close has begun");
            observed.in_progress.fetch_add(1, Ordering::SeqCst);
            let observed = Arc::clone(&observed);
            shuttle::thread::spawn(move || {
                observed.in_progress.fetch_sub(1, Ordering::SeqCst);
                drop(change);
            })
        });
        let is_written = Arc::new(AtomicBool::new(false));
        let held = Arc::new(forebay_base::sync::Mutex::named("test", ()));
        // As a value that the dropping thread holds: the close ends after it is gone.
        let hold = held.lock();
        let (of_close, written, wait) = (closing.clone(), is_written.clone(), held.clone());
        let close = move || {
            written.store(true, Ordering::SeqCst);
            of_close.note_written();
            drop(wait.lock());
            Ok(())
        };
        let spawn = |body: Box<dyn FnOnce() + Send>| {
            shuttle::thread::spawn(body);
            Ok(())
        };
        let answer = closing.close_on(close, spawn);
        closing.wait_for_writes();
        assert!(is_written.load(Ordering::SeqCst), "the close was not waited for");
        assert_eq!(observed.in_progress.load(Ordering::SeqCst), 0, "a change was not waited for");
        drop(hold);
        changes.into_iter().for_each(|thread| thread.join().unwrap());
        // The scheduler ends timed waits.
        let result = loop {
            match answer.wait_timeout(std::time::Duration::MAX) {
                Some(result) => break result,
                None => shuttle::thread::yield_now(),
            }
        };
        result.unwrap();
    });
}
