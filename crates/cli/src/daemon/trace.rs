//! Traces of the accesses to a pool's blocks, for a client that writes them to a file.
//!
//! Nothing waits for the client but the thread that serves it: what the client does not take in
//! time is dropped and counted.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cache::OwnerId;
use forebay_pool::Pool;
use forebay_pool::trace::{TraceSession, put_path};

use super::Daemon;
use crate::control::messages::TraceReport;
use crate::error::Result;

/// Pause between two looks at the rings, and the one while they fill.
const PERIOD: Duration = Duration::from_millis(20);
const BUSY_PERIOD: Duration = Duration::from_millis(1);

/// Sends bytes to the client. `Break` if it wants no more but the end.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>>;

/// Records a trace until the client ends it, `seconds` have passed, or the pool is exported. With
/// `names`, paths of the accessed files follow.
///
/// # Errors
/// If the pool is traced already, or the client is gone.
pub(crate) fn record(
    daemon: &Arc<Daemon>,
    pool: u64,
    (seconds, names): (Option<u64>, bool),
    sink: Sink<'_>,
) -> Result<TraceReport> {
    let imported = daemon.pool(pool)?;
    let pool = &imported.pool();
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut session = pool.trace()?;
    if names {
        session.keep_objects();
    }
    let mut bytes = Vec::new();
    session.put_header(&mut bytes);
    pool.put_trace_datasets(&mut session, &mut bytes);
    loop {
        let is_busy = session.drain(&mut bytes);
        let wanted = sink(&bytes)?;
        bytes.clear();
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        if wanted.is_break() || is_late || session.is_over() {
            break;
        }
        let period = if is_busy { BUSY_PERIOD } else { PERIOD };
        let left = until.map_or(period, |until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(period.min(left));
    }
    session.stop();
    session.drain(&mut bytes);
    pool.put_trace_datasets(&mut session, &mut bytes);
    if names {
        put_paths(pool, &session, &mut bytes);
    }
    let read_ahead = session.read_ahead();
    let totals = session.finish(&mut bytes);
    // Whether it wants more does not matter any more.
    let _ = sink(&bytes)?;
    Ok(TraceReport {
        accesses: totals.records - read_ahead,
        read_ahead,
        dropped: totals.dropped,
        duration_us: totals.duration_us,
    })
}

/// Appends the paths of the files and directories that were accessed. Reads directories.
fn put_paths(pool: &Pool, session: &TraceSession, out: &mut Vec<u8>) {
    let objects = session.objects();
    for of_dataset in objects.chunk_by(|one, next| one.0 == next.0) {
        let number = of_dataset[0].0;
        let Some(dataset) = pool.dataset_of_blocks(OwnerId::from_raw(number)) else { continue };
        let objects: Vec<u64> = of_dataset.iter().map(|(_, object)| *object).collect();
        for (object, inode) in forebay_fs::paths(&dataset, &objects) {
            if let Some(path) = inode.path {
                put_path(out, number, object, &path);
            }
        }
    }
}
