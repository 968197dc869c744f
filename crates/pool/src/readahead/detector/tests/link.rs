//! A reader in order behind a simulated link to an object store: a get takes a round trip, those in
//! flight share the link, and each is of one object. Time is simulated.

use std::ops::Range;

use super::*;

const MIB: u64 = 1 << 20;
/// From a plan to the first byte.
const ROUND_TRIP_US: u64 = 24_000;
const BYTES_PER_US: u64 = 1200;
/// Of a block that is there.
const READ_BLOCK_US: u64 = 56;
const STEP_US: u64 = 100;
const READ_BLOCKS: u64 = 8;
const OBJECT_BLOCKS: u64 = 64;
/// Other content lies before the first block.
const FIRST_AT: u64 = 20;

struct Get {
    begins_us: u64,
    /// Those that have not arrived.
    blocks: Range<u64>,
    /// Bytes of the first of them that have.
    bytes: u64,
}

#[derive(Default)]
struct Link {
    now_us: u64,
    /// Time with nothing on its way.
    idle_us: u64,
    gets: Vec<Get>,
    gets_sent: u64,
    asked: BTreeSet<u64>,
    arrived: BTreeSet<u64>,
}

impl Link {
    /// Asks for blocks that nobody has asked for, neighbours together.
    fn ask(&mut self, blocks: impl Iterator<Item = u64>) {
        let begins_object = |block: u64| (FIRST_AT + block).is_multiple_of(OBJECT_BLOCKS);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in blocks.filter(|block| self.asked.insert(*block)) {
            match runs.last_mut() {
                Some(run) if run.end == block && !begins_object(block) => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        self.gets_sent += runs.len() as u64;
        let begins_us = self.now_us + ROUND_TRIP_US;
        self.gets.extend(runs.into_iter().map(|blocks| Get { begins_us, blocks, bytes: 0 }));
    }

    fn pass(&mut self, us: u64) {
        let now_us = self.now_us;
        let flows = |get: &&mut Get| get.begins_us <= now_us;
        let flowing = self.gets.iter_mut().filter(flows).count() as u64;
        self.idle_us += if flowing == 0 { us } else { 0 };
        for get in self.gets.iter_mut().filter(flows) {
            get.bytes += BYTES_PER_US * us / flowing;
            while get.bytes >= BLOCK_BYTES && !get.blocks.is_empty() {
                self.arrived.insert(get.blocks.start);
                get.blocks.start += 1;
                get.bytes -= BLOCK_BYTES;
            }
        }
        self.gets.retain(|get| !get.blocks.is_empty());
        self.now_us += us;
    }

    fn first_missing(&self, mut blocks: Range<u64>) -> Option<u64> {
        blocks.find(|block| !self.arrived.contains(block))
    }
}

/// Reads an object in order. Returns the link, and how long it was idle, except for the first and
/// the last quarter of the object.
fn read_in_order(blocks: u64) -> (Link, u64) {
    let tunables = PrefetchTunables::default();
    tunables.set_prefetch_max_bytes(64 * MIB).unwrap();
    tunables.set_prefetch_ramp_bytes(8 * MIB).unwrap();
    let limits = Limits::new(&tunables, BLOCK_BYTES);
    let (mut detector, counters) = (StreamDetector::new(), PrefetchCounters::new());
    let (mut link, mut found) = (Link::default(), ReadOutcome::Hit);
    let (mut idle_from, mut idle_us) = (0, 0);
    for first in (0..blocks).step_by(READ_BLOCKS as usize) {
        if first == blocks / 4 {
            idle_from = link.idle_us;
        } else if first == blocks / 4 * 3 {
            idle_us = link.idle_us - idle_from;
        }
        let now_ns = link.now_us * 1000;
        let read = (first, READ_BLOCKS as u32);
        let plan = detector.on_read(read, blocks, &mut found, || now_ns, &limits, &counters);
        link.ask(plan.into_iter().flat_map(Plan::blocks));
        let read = first..first + READ_BLOCKS;
        if let Some(missing) = link.first_missing(read.clone()) {
            if found == ReadOutcome::Hit {
                let is_asked = link.asked.contains(&missing);
                found = if is_asked { ReadOutcome::InFlight } else { ReadOutcome::Miss };
            }
            link.ask(read.clone());
            while link.first_missing(read.clone()).is_some() {
                link.pass(STEP_US);
            }
        }
        link.pass(READ_BLOCKS * READ_BLOCK_US);
    }
    (link, idle_us)
}

/// The reader is faster than the link, so that the link alone should limit it. Each get has a share
/// of the link, so the next one to be read ends hardly before those after it.
#[test]
fn a_stream_keeps_a_fast_link_busy() {
    let blocks = 512 * MIB / BLOCK_BYTES;
    let (link, idle_us) = read_in_order(blocks);
    let bytes_per_us = blocks * BLOCK_BYTES / link.now_us;
    println!("{bytes_per_us} MB/s, {} gets, idle {idle_us} us", link.gets_sent);
    assert!(idle_us < ROUND_TRIP_US / 4, "{idle_us} us");
    // The first reads take round trips.
    assert!(bytes_per_us > BYTES_PER_US * 3 / 4, "{bytes_per_us} MB/s");
}
