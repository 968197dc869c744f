use std::collections::BTreeSet;

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::*;

const BLOCK_BYTES: u64 = 128 << 10;

/// A detector and a naive reader that keeps the prefetched blocks and checks each plan.
struct Reader {
    detector: StreamDetector,
    counters: PrefetchCounters,
    limits: Limits,
    end_block: u64,
    cached: BTreeSet<u64>,
    planned: u64,
    read: u64,
    now_ns: u64,
}

impl Reader {
    fn new(end_block: u64) -> Self {
        Self {
            detector: StreamDetector::new(),
            counters: PrefetchCounters::new(),
            limits: Limits::new(&PrefetchTunables::default(), BLOCK_BYTES),
            end_block,
            cached: BTreeSet::new(),
            planned: 0,
            read: 0,
            now_ns: 0,
        }
    }

    /// Reads, and returns whether the first block was prefetched.
    fn read(&mut self, first: u64, blocks: u32) -> bool {
        let hit = self.cached.contains(&first);
        let found = if hit { ReadOutcome::Hit } else { ReadOutcome::Miss };
        self.read_found(first, blocks, found);
        hit
    }

    fn read_found(&mut self, first: u64, blocks: u32, mut found: ReadOutcome) {
        self.read_leaving(first, blocks, &mut found);
    }

    /// Reads, after reads that met `found`, and leaves there what no stream has learned of.
    fn read_leaving(&mut self, first: u64, blocks: u32, found: &mut ReadOutcome) {
        self.now_ns += 1000;
        self.read += u64::from(blocks);
        self.cached.extend(first..first + u64::from(blocks));
        let (detector, counters) = (&mut self.detector, &self.counters);
        let read = (first, blocks);
        let now_ns = || self.now_ns;
        let plan = detector.on_read(read, self.end_block, found, now_ns, &self.limits, counters);
        let Some(plan) = plan else { return };
        let mut count = 0;
        for block in plan.blocks() {
            assert!(block < self.end_block, "block {block} of {}", self.end_block);
            self.cached.insert(block);
            count += 1;
        }
        assert!(count > 0, "an empty plan");
        assert!(count <= u64::from(self.limits.max_blocks), "{count} blocks at once");
        self.planned += count;
    }

    fn sum(&self, row: forebay_base::counters::Counter) -> u64 {
        self.counters.total(row)
    }
}

#[test]
fn sequential_reads_miss_twice() {
    let mut reader = Reader::new(1000);
    let misses = (0..1000).filter(|block| !reader.read(*block, 1)).count();
    assert_eq!(misses, 2);
    assert_eq!(reader.planned, 998, "each block once");
    assert_eq!(reader.sum(PrefetchCounters::STARTED), 1);
}

#[test]
fn large_and_overlapping_sequential_reads_are_one_stream() {
    let mut reader = Reader::new(1000);
    let misses = (0..199).filter(|n| !reader.read(n * 5, 6)).count();
    // The second read begins with the first one's last block.
    assert_eq!(misses, 1);
    assert_eq!(reader.sum(PrefetchCounters::STARTED), 1);
    assert!((980..=1000 - 11).contains(&reader.planned), "{}", reader.planned);
}

#[test]
fn small_reads_of_one_block_count_once() {
    let mut reader = Reader::new(100);
    for block in 0..100 {
        for _ in 0..32 {
            reader.read(block, 1);
        }
    }
    assert_eq!(reader.sum(PrefetchCounters::HITS), 98);
}

#[test]
fn strides_are_recognized_in_both_directions() {
    for (start, stride, run) in
        [(0, 17i64, 1), (16_999, -17, 1), (3, 8, 3), (5000, -1, 1), (0, 1000, 2)]
    {
        let mut reader = Reader::new(17_000);
        let mut block = start as u64;
        let mut misses = 0;
        let mut accesses = 0;
        while block < 17_000 {
            misses += u64::from(!reader.read(block, run));
            accesses += 1;
            block = block.wrapping_add_signed(stride);
        }
        assert_eq!(misses, 4, "stride {stride}");
        let read = u64::from(run) * accesses;
        assert!(reader.planned <= read, "stride {stride}: {} of {read}", reader.planned);
    }
}

#[test]
fn a_ninth_concurrent_stream_is_refused() {
    let mut reader = Reader::new(1 << 20);
    for n in 0..500 {
        for stream in 0..9u64 {
            reader.read((stream << 16) + n, 1);
        }
    }
    assert_eq!(reader.sum(PrefetchCounters::STARTED), 8);
    assert!(reader.sum(PrefetchCounters::REFUSED) > 0);
    assert_eq!(reader.sum(PrefetchCounters::HITS), 8 * 498);
    reader.now_ns += 2_000_000_000;
    for n in 0..10 {
        reader.read((9 << 16) + n, 1);
    }
    assert_eq!(reader.sum(PrefetchCounters::RECYCLED), 1);
    assert!(reader.sum(PrefetchCounters::UNUSED) > 0);
}

#[test]
fn distance_grows_by_use_to_one_bound_and_by_late_prefetches_to_another() {
    let mut reader = Reader::new(100_000);
    let ahead = |reader: &Reader| reader.cached.last().map_or(0, |last| last + 1);
    for block in 0..200 {
        reader.read(block, 1);
    }
    assert!(ahead(&reader) - 200 <= 8, "the ramp is 1 MiB");
    for block in 200..300 {
        reader.read_found(block, 1, ReadOutcome::InFlight);
    }
    let far = ahead(&reader) - 300;
    assert!((32..=64).contains(&far), "{far} blocks");
    // The prefetched blocks are lost, so the distance shrinks.
    for block in 300..310 {
        reader.read_found(block, 1, ReadOutcome::Miss);
    }
    assert!(ahead(&reader) - 310 <= 64);
    assert!(reader.sum(PrefetchCounters::LOST) > 0);
    assert_eq!(reader.detector.streams.len(), 1);
}

#[test]
fn what_a_read_met_is_kept_until_its_stream_reads_on() {
    let mut reader = Reader::new(100_000);
    for block in 0..20 {
        reader.read(block, 1);
    }
    let mut found = ReadOutcome::InFlight;
    // The second half of the newest block, and a read that another thread has overtaken.
    for block in [19, 17] {
        reader.read_leaving(block, 1, &mut found);
        assert_eq!(found, ReadOutcome::InFlight);
    }
    assert_eq!(reader.sum(PrefetchCounters::LATE), 0);
    reader.read_leaving(20, 1, &mut found);
    assert_eq!((found, reader.sum(PrefetchCounters::LATE)), (ReadOutcome::Hit, 1));
    // A read elsewhere leaves nothing to a later stream, and neither do its repetitions.
    for _ in 0..2 {
        found = ReadOutcome::Miss;
        reader.read_leaving(50_000, 1, &mut found);
        assert_eq!(found, ReadOutcome::Hit);
    }
}

#[test]
fn reads_longer_than_the_first_distance_do_not_hold_it_down() {
    let mut reader = Reader::new(100_000);
    let mut found = ReadOutcome::Hit;
    for first in (0..400).step_by(8) {
        let missing = (first..first + 8).any(|block| !reader.cached.contains(&block));
        reader.read_leaving(first, 8, &mut found);
        if missing {
            found = ReadOutcome::Miss;
        }
    }
    assert_eq!(reader.sum(PrefetchCounters::LOST), 0);
    let last = reader.cached.last().map_or(0, |last| last + 1);
    assert!(last > 400, "the reads are ahead: {last}");
}

#[test]
fn what_is_left_of_a_plan_and_which_pointers_the_next_ones_need() {
    let plan = Plan { first: 10, stride: 1, run: 1, count: 6, end_block: 40 };
    let left = plan.after(4);
    assert_eq!(left.blocks().collect::<Vec<_>>(), [14, 15]);
    let ahead = |plan: Plan, pointers| plan.pointers_ahead(pointers).collect::<Vec<_>>();
    assert_eq!((ahead(plan, 512), ahead(left, 512)), (vec![16, 39], vec![16, 27]));
    assert_eq!(ahead(plan, 8), [16, 24, 32, 39]);
    assert_eq!(ahead(Plan { end_block: 21, ..plan }, 512), [16, 20], "to the end");
    assert_eq!(ahead(Plan { end_block: 16, ..plan }, 512), [15], "nothing is left");
    let far = Plan { stride: 5, ..plan };
    assert_eq!(ahead(Plan { end_block: 100, ..far }, 8), [65], "one block");
    assert_eq!(ahead(far, 8), [0; 0], "past the end");
    let back = Plan { first: 30, stride: -7, run: 2, count: 3, end_block: 40 };
    // An access that is half done is done again.
    assert_eq!(back.after(3).blocks().collect::<Vec<_>>(), [23, 24, 16, 17]);
    assert_eq!(ahead(back, 512), [0; 0], "before the beginning");
    assert_eq!(plan.after(9).blocks().count(), 0);
}

#[test]
fn random_reads_issue_few_blocks() {
    for seed in 0..20 {
        let mut rng = SmallRng::from_seed(seed);
        let mut reader = Reader::new(100_000);
        for _ in 0..10_000 {
            reader.read(rng.below(100_000), 1);
        }
        // A few random reads happen to follow another.
        assert!(reader.planned < 200, "seed {seed}: {}", reader.planned);
    }
}

#[test]
fn streams_are_found_among_random_reads() {
    let mut rng = SmallRng::from_seed(7);
    let mut reader = Reader::new(1 << 24);
    let mut hits = 0;
    for n in 0..2000 {
        hits += u64::from(reader.read(n, 1));
        reader.read(1_000_000 + rng.below(10_000_000), 1);
    }
    assert!(hits >= 1990, "{hits}");
}

#[test]
fn readers_that_overtake_each_other_stay_one_stream() {
    let mut rng = SmallRng::from_seed(3);
    let mut reader = Reader::new(1 << 20);
    let mut waiting: Vec<u64> = Vec::new();
    for block in 0..2000u64 {
        waiting.push(block);
        if waiting.len() == 4 {
            let at = rng.below(4) as usize;
            let block = waiting.swap_remove(at);
            reader.read(block, 1);
        }
    }
    assert!(reader.sum(PrefetchCounters::STARTED) <= 2);
    assert!(reader.planned <= 2100, "{}", reader.planned);
}

proptest! {
    /// Plans stay inside the object and within the limits.
    #[test]
    fn plans_stay_inside_the_object(
        seed in any::<u64>(),
        end_block in 1u64..3000,
        max_bytes in 0u64..4 << 20,
    ) {
        let mut rng = SmallRng::from_seed(seed);
        let mut reader = Reader::new(end_block);
        let tunables = PrefetchTunables::default();
        tunables.set_prefetch_max_bytes(max_bytes).unwrap();
        reader.limits = Limits::new(&tunables, 4096);
        let mut at = 0u64;
        for _ in 0..500 {
            at = match rng.below(4) {
                0 => rng.below(end_block),
                1 => at.saturating_sub(rng.below(4)),
                _ => (at + [1, 1, 2, 17][rng.below(4) as usize]) % end_block,
            };
            let found = [ReadOutcome::Hit, ReadOutcome::InFlight, ReadOutcome::Miss][rng.below(3) as usize];
            let blocks = 1 + rng.below(3).min(end_block - at - 1) as u32;
            reader.now_ns += rng.below(2_000_000_000);
            reader.read_found(at, blocks, found);
            if max_bytes < 4096 {
                prop_assert_eq!(reader.planned, 0);
            }
        }
    }

    /// Reads at the limits of the number range.
    #[test]
    fn reads_at_numeric_limits_never_panic(first in prop::collection::vec(any::<u64>(), 1..50), step in any::<u64>()) {
        let mut reader = Reader::new(u64::MAX);
        for first in first {
            for n in 0..6 {
                let block = first.wrapping_add(step.wrapping_mul(n)) >> 1;
                reader.read(block, 1);
            }
        }
    }
}
