//! Forebay's engines at a depth: as many chains of reads. The callback of each read submits the
//! next one, and one thread helps the device until all chains have ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_io::tunables::IoTunables;
use forebay_io::{
    Completion, Device, Direct, EngineChoice, FileDevice, OpenOptions, Payload, Request,
};
use hdrhistogram::Histogram;

use super::{IopsPlan, IopsResult};
use crate::keys::XorShift;
use crate::measure::cpu_seconds;
use crate::options::Failure;
use crate::test_file::{BLOCK_BYTES, Stamp};

/// One queue, because one thread submits.
const SUBMISSION_QUEUES: usize = 1;
/// Longest latency that the histogram distinguishes, in nanoseconds; its precision is 1 %.
const MAX_NS: u64 = 60_000_000_000;

/// Forebay's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engines {
    /// io_uring.
    IoUring,
    /// The thread pool.
    Threads,
}

/// Reads with one of Forebay's engines.
///
/// # Errors
/// If the file cannot be opened in this mode, a read fails, or a read returns wrong bytes.
pub(crate) fn ours(
    plan: &IopsPlan<'_>,
    engine: Engines,
    stamp: Stamp,
) -> Result<IopsResult, Failure> {
    let tunables = Arc::new(IoTunables::default());
    // All reads are in flight; none waits in the queue.
    let depth = u32::try_from(plan.depth)?.max(tunables.sync_read_max());
    tunables.set_sync_read_max(depth)?;
    tunables.set_total_max(2 * depth)?;
    let options = OpenOptions {
        read_only: true,
        direct: if plan.direct { Direct::Always } else { Direct::Never },
        engine: match engine {
            Engines::IoUring => EngineChoice::Auto,
            Engines::Threads => EngineChoice::Threads,
        },
        submission_queues: SUBMISSION_QUEUES,
        tunables,
        ..OpenOptions::default()
    };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(plan.path, &options)?);
    let found = run(plan, &device, stamp);
    device.close();
    found
}

/// State that the chains share. The helping thread runs nearly all callbacks, so the lock is free.
struct Chains {
    device: Arc<dyn Device>,
    blocks: u64,
    stamp: Stamp,
    deadline: Instant,
    state: Mutex<ChainsState>,
}

struct ChainsState {
    rng: XorShift,
    latency: Histogram<u64>,
    ios: u64,
    running: usize,
    error: Option<String>,
    /// Never submitted: finishing it tells the helping thread that the last chain has ended.
    last: Option<Request>,
}

impl Chains {
    fn read(self: Arc<Self>, offset: u64, buffer: Buffer, begun: Instant) -> Request {
        Request::read(offset, buffer).on_done(move |completion| self.ended(completion, begun))
    }

    /// Handles a completion: submits the chain's next read, or ends the chain.
    fn ended(self: Arc<Self>, completion: Completion, begun: Instant) {
        let now = Instant::now();
        let Completion { offset, result, payload, .. } = completion;
        let buffer = payload.and_then(Payload::into_buffer);
        let error = match (result, &buffer) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Some(block)) if self.stamp.fits(offset, block) => None,
            (Ok(()), _) => Some(format!("the block at offset {offset} has wrong content")),
        };
        let (next, last) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ios += 1;
            let latency_ns = now.duration_since(begun).as_nanos() as u64;
            state.latency.saturating_record(latency_ns.max(1));
            match (error, buffer) {
                (None, Some(buffer)) if now < self.deadline => {
                    (Some((state.rng.below(self.blocks), buffer)), None)
                }
                (error, _) => {
                    state.error = state.error.take().or(error);
                    state.running -= 1;
                    (None, if state.running == 0 { state.last.take() } else { None })
                }
            }
        };
        if let Some((block, buffer)) = next {
            let device = Arc::clone(&self.device);
            device.submit(self.read(block * BLOCK_BYTES as u64, buffer, now));
        }
        if let Some(last) = last {
            last.finish(Ok(()));
        }
    }
}

fn run(plan: &IopsPlan<'_>, device: &Arc<dyn Device>, stamp: Stamp) -> Result<IopsResult, Failure> {
    let limit_bytes = (2 * plan.depth * BLOCK_BYTES).max(16 << 20) as u64;
    let arena = Arena::new(ArenaConfig { limit_bytes, huge_pages: HugePages::Never })?;
    let blocks = plan.size_bytes / BLOCK_BYTES as u64;
    let mut rng = XorShift::new(plan.seed);
    let mut starts = Vec::with_capacity(plan.depth);
    for _ in 0..plan.depth {
        let offset = rng.below(blocks) * BLOCK_BYTES as u64;
        starts.push((offset, arena.alloc(BLOCK_BYTES)?));
    }
    let (last, pending) = Request::flush().pending();
    let latency = Histogram::new_with_bounds(1, MAX_NS, 2)?;
    let state =
        ChainsState { rng, latency, ios: 0, running: plan.depth, error: None, last: Some(last) };
    let cpu_before = cpu_seconds();
    let begun = Instant::now();
    let chains = Arc::new(Chains {
        device: Arc::clone(device),
        blocks,
        stamp,
        deadline: begun + Duration::from_secs_f64(plan.seconds),
        state: Mutex::new(state),
    });
    let start = |(offset, buffer)| Arc::clone(&chains).read(offset, buffer, begun);
    let mut requests: Vec<Request> = starts.into_iter().map(start).collect();
    device.submit_all(&mut requests);
    drop(pending.wait(&**device));
    let elapsed_s = begun.elapsed().as_secs_f64();
    let cpu_s = cpu_seconds() - cpu_before;
    let state = chains.state.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = &state.error {
        return Err(error.clone().into());
    }
    let ios = state.ios.max(1) as f64;
    Ok(IopsResult {
        config: device.info().engine.to_string(),
        iops: ios / elapsed_s,
        cpu_ns_per_io: cpu_s * 1e9 / ios,
        p50_ns: state.latency.value_at_quantile(0.5) as f64,
        p99_ns: state.latency.value_at_quantile(0.99) as f64,
    })
}
