//! `r5`: a metadata working set in a loop against a stream that is read once (R5).
//!
//! The loop is 40 % of the cache. For each of its accesses, four blocks of the stream pass,
//! metadata and data in turns, each once. The stream is ten times the cache. Between two uses of a
//! block of the loop, two caches full of other blocks pass: neither LRU nor textbook ARC, whose
//! ghosts remember one cache, can keep it.
//!
//! One thread, no time: the figure is the hit ratio of the loop after the warm-up passes.

use forebay_sim::cache::policies::Policy;
use forebay_sim::cache::policies::arc::Arc;
use forebay_sim::cache::policies::lru::Lru;

use crate::options::{Common, Failure};
use crate::report::Record;
use crate::report::plot::{Axis, Panel, Series};
use crate::subjects::forebay::r5_cache;

const NAME: &str = "r5";
const SUBJECTS: [&str; 3] = ["forebay", "textbook-lru", "textbook-arc"];
/// Size of the loop as a share of the cache.
const LOOP_SHARE: (u64, u64) = (2, 5);
/// Stream blocks per access of the loop.
const STREAM_PER_LOOP_ACCESS: u64 = 4;

/// Options of `r5`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Capacity of the cache, in blocks.
    #[arg(long, default_value_t = 1 << 15, value_parser = clap::value_parser!(u64).range(64..=1 << 28))]
    pub(crate) capacity: u64,
    /// Length of the stream as a multiple of the cache.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(4..=1000))]
    pub(crate) factor: u64,
    /// Passes of the loop that count as warm-up.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=6))]
    pub(crate) warmup_passes: u64,
}

impl Args {
    /// Blocks of the loop.
    fn loop_blocks(&self) -> u64 {
        (self.capacity * LOOP_SHARE.0 / LOOP_SHARE.1).max(1)
    }

    /// Accesses to blocks of the loop.
    fn loop_accesses(&self) -> u64 {
        self.capacity * self.factor / STREAM_PER_LOOP_ACCESS
    }

    /// Replays the pattern to a textbook policy of the simulator.
    ///
    /// # Errors
    /// If the pattern has more keys than the simulator supports.
    fn replay_textbook<P: Policy>(&self) -> Result<Passes, Failure> {
        let keys = self.loop_blocks() + self.loop_accesses() * STREAM_PER_LOOP_ACCESS;
        if keys > u64::from(u32::MAX) {
            let text = format!("{keys} blocks are too many for a textbook policy");
            return Err(format!("{text}; lower --capacity or --factor").into());
        }
        let mut policy = P::new(self.capacity as usize, keys as usize);
        Ok(replay(self, |key, _| policy.access(key as u32)))
    }
}

/// Whether a block is metadata or data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockClass {
    /// Directory leaves, dnodes, indirect blocks.
    Metadata,
    /// Content of files.
    Data,
}

/// Hits and accesses of each pass of the loop.
struct Passes(Vec<(u64, u64)>);

impl Passes {
    fn ratio_from(&self, pass: usize) -> f64 {
        let counted = self.0.get(pass..).unwrap_or_default();
        let (hits, all) = counted.iter().fold((0, 0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        hits as f64 / (all as f64).max(1.0)
    }
}

/// Replays the pattern to a cache.
fn replay(args: &Args, mut request: impl FnMut(u64, BlockClass) -> bool) -> Passes {
    let (in_loop, accesses) = (args.loop_blocks(), args.loop_accesses());
    let mut passes = vec![(0, 0); accesses.div_ceil(in_loop) as usize];
    // Keys of the stream follow those of the loop.
    let mut stream = in_loop;
    for access in 0..accesses {
        let pass = &mut passes[(access / in_loop) as usize];
        pass.0 += u64::from(request(access % in_loop, BlockClass::Metadata));
        pass.1 += 1;
        for _ in 0..STREAM_PER_LOOP_ACCESS {
            let kind =
                if stream.is_multiple_of(2) { BlockClass::Metadata } else { BlockClass::Data };
            request(stream, kind);
            stream += 1;
        }
    }
    Passes(passes)
}

/// Replays the pattern to all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&SUBJECTS)?;
    let mut records = Vec::new();
    for subject in SUBJECTS.into_iter().filter(|s| common.wants(s)) {
        let passes = match subject {
            "forebay" => replay(args, r5_cache(args.capacity, common.seed)),
            "textbook-arc" => args.replay_textbook::<Arc>()?,
            _ => args.replay_textbook::<Lru>()?,
        };
        let mut record = Record::new(NAME, subject, 1)
            .param("capacity_blocks", args.capacity)
            .figure("loop_hit_ratio", passes.ratio_from(args.warmup_passes as usize));
        for (name, pass) in PASSES.into_iter().zip(&passes.0) {
            record = record.figure(name, pass.0 as f64 / pass.1.max(1) as f64);
        }
        records.push(record);
    }
    Ok(records)
}

/// Figures of the first passes.
const PASSES: [&str; 7] = [
    "pass_1_hit_ratio",
    "pass_2_hit_ratio",
    "pass_3_hit_ratio",
    "pass_4_hit_ratio",
    "pass_5_hit_ratio",
    "pass_6_hit_ratio",
    "pass_7_hit_ratio",
];

/// Hit ratio over passes.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let line = |record: &Record| {
        let point = |(i, name): (usize, &&str)| Some(((i + 1) as f64, record.number(name)?));
        Series {
            name: record.subject().to_owned(),
            points: PASSES.iter().enumerate().filter_map(point).collect(),
        }
    };
    vec![Panel {
        title: "R5's pattern: hits of the loop".to_owned(),
        x: Axis::linear("pass over the loop"),
        y: Axis::of("hit_ratio"),
        series: records.iter().map(line).collect(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_as_described() {
        let args = Args { capacity: 1000, factor: 10, warmup_passes: 2 };
        let (mut looped, mut metadata, mut data) = (0u64, 0u64, 0u64);
        let mut seen = std::collections::HashSet::new();
        let passes = replay(&args, |key, kind| {
            if key < 400 {
                assert!(kind == BlockClass::Metadata);
                looped += 1;
                return true;
            }
            assert!(seen.insert(key), "the stream passes once");
            metadata += u64::from(kind == BlockClass::Metadata);
            data += u64::from(kind == BlockClass::Data);
            false
        });
        assert_eq!((looped, metadata, data), (2500, 5000, 5000));
        assert_eq!(passes.0.len(), 7);
        assert_eq!(passes.ratio_from(2), 1.0);
    }
}
