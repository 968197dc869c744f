//! A driver that ends and another one that begins, before a thread that waits looks.

#![allow(clippy::disallowed_methods, reason = "plain threads for a test")]
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay_base::sync::Arc;
use forebay_io::{Device, MemoryDevice, MemoryOptions};

use super::{Failure, ScrubState};
use crate::{BlockCache, BlockCacheOptions, CreateOptions, ErrorKind, Pool, Result};

/// A call that takes this long waits for a driver that nobody ends.
const DEADLOCK: Duration = Duration::from_secs(60);

fn pool() -> Pool {
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    let device: Arc<dyn Device> =
        Arc::new(MemoryDevice::new("scrub", 64 << 20, &options).expect("a device"));
    let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    let cache = BlockCache::new(options).expect("a cache");
    Pool::create(vec![device.into()], &CreateOptions::new("tank", cache)).expect("a pool")
}

/// Calls `change` beside a driver that then ends with `failure`, and at once gets a successor.
/// Returns whether the successor goes on with the scrub.
fn restarted_beside(
    pool: &Pool,
    change: impl FnOnce(&Pool) -> Result<()> + Send,
    failure: Option<Failure>,
) -> bool {
    let scrub = &pool.inner.scrub;
    pool.inner.begin_scrub().expect("the driver begins");
    let (done, changed) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || done.send(change(pool)));
        while scrub.run.lock().request.is_none() {
            thread::yield_now();
        }
        let goes_on = {
            let mut run = scrub.run.lock();
            if failure.is_none() {
                run.carry_out();
            }
            run.leave(failure);
            run.begin_driver(&pool.inner).expect("the next driver begins")
        };
        scrub.changed.notify_all();
        let in_time = changed.recv_timeout(DEADLOCK);
        scrub.leave(None);
        in_time.expect("it does not wait for the next driver").expect("durable");
        goes_on
    })
}

#[test]
fn a_pause_does_not_wait_for_a_scrub_that_was_started_again() {
    let pool = pool();
    assert!(restarted_beside(&pool, Pool::pause_scrub, None));
    assert_eq!(pool.scrub_status().state, ScrubState::Running);
}

#[test]
fn a_stop_beside_a_failing_scrub_stops_it() {
    let failure = (ErrorKind::Device, "a device failed".to_owned());
    assert!(!restarted_beside(&pool(), Pool::stop_scrub, Some(failure)), "a new one starts");
}
