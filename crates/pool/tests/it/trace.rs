//! Traces of accesses to blocks.

use std::sync::Arc;

use forebay_pool::trace::{TraceItem, TraceOutcome, TraceReader, TraceRecord, TraceTotals};
use forebay_pool::{BlockCache, BlockLabel, ErrorKind, Object, Pool, TraceSession};

use crate::common::{MIB, cache, create, dataset, memory};

const RECORD: u64 = 8192;
const BLOCKS: u64 = 300;

struct Fixture {
    pool: Pool,
    object: Object,
    owner: u16,
    cache: Arc<BlockCache>,
}

/// A pool with an object whose blocks are not in memory.
fn fixture() -> Fixture {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    for block in 0..BLOCKS {
        object.write(&tx, block * RECORD, &[1; RECORD as usize]).unwrap();
    }
    drop(tx);
    pool.sync().unwrap();
    cache.cache().clear();
    Fixture { pool, object, owner: data.block_owner().get(), cache }
}

/// Ends a session. Returns its records, its datasets and its totals.
fn finish(pool: &Pool, mut session: TraceSession) -> (Vec<TraceRecord>, Vec<String>, TraceTotals) {
    let mut file = Vec::new();
    session.put_header(&mut file);
    pool.put_trace_datasets(&mut session, &mut file);
    session.stop();
    session.drain(&mut file);
    session.finish(&mut file);
    let mut reader = TraceReader::new(&file[..]).unwrap();
    assert_eq!(reader.header().pool, "tank");
    let (mut records, mut datasets, mut totals) = (Vec::new(), Vec::new(), None);
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            TraceItem::Record(record) => records.push(record),
            TraceItem::Dataset(_, _, name) => datasets.push(name),
            TraceItem::End(found) => totals = Some(found),
            TraceItem::Path(..) => panic!("nobody asked for paths"),
        }
    }
    (records, datasets, totals.expect("an end"))
}

impl Fixture {
    fn read(&self, block: u64, blocks: u64) {
        let mut out = vec![0; (blocks * RECORD) as usize];
        self.object.read(block * RECORD, &mut out).unwrap();
    }

    /// Blocks and outcomes of the accesses to the object.
    fn of_object(&self, records: &[TraceRecord]) -> Vec<(u64, TraceOutcome)> {
        let label = BlockLabel::Object(self.object.number());
        let own = records.iter().filter(|r| r.label == label && r.dataset == self.owner);
        own.map(|record| {
            assert_eq!((u64::from(record.bytes), record.is_metadata), (RECORD, false));
            (record.block, record.outcome)
        })
        .collect()
    }
}

#[test]
fn each_access_is_recorded_with_its_block_and_outcome() {
    use TraceOutcome::{Hit, Miss};
    let fixture = fixture();
    let session = fixture.pool.trace().unwrap();
    for block in [250, 7, 250, 7, 100] {
        fixture.read(block, 1);
    }
    // Two blocks, of which one is in memory.
    fixture.read(7, 2);
    let (records, datasets, totals) = finish(&fixture.pool, session);
    let wanted = [(250, Miss), (7, Miss), (250, Hit), (7, Hit), (100, Miss), (7, Hit), (8, Miss)];
    let found = fixture.of_object(&records);
    let demanded: Vec<_> =
        found.iter().copied().filter(|(_, outcome)| *outcome != TraceOutcome::ReadAhead).collect();
    assert_eq!(demanded, wanted);
    // The pointers of the blocks had to be read as well.
    assert!(records.iter().any(|r| r.label == BlockLabel::Indirect && r.outcome == Miss));
    assert_eq!((totals.records, totals.dropped), (records.len() as u64, 0));
    assert!(datasets.contains(&"data".to_owned()), "{datasets:?}");
}

#[test]
fn a_stream_is_recorded_once_and_its_read_ahead_apart() {
    let fixture = fixture();
    let session = fixture.pool.trace().unwrap();
    for block in 0..BLOCKS {
        fixture.read(block, 1);
    }
    let (records, ..) = finish(&fixture.pool, session);
    let found = fixture.of_object(&records);
    let ahead = found.iter().filter(|(_, outcome)| *outcome == TraceOutcome::ReadAhead).count();
    let demanded = found.iter().filter(|(_, outcome)| *outcome != TraceOutcome::ReadAhead);
    assert!(demanded.map(|(block, _)| *block).eq(0..BLOCKS));
    assert!(ahead as u64 > BLOCKS / 2, "{ahead} blocks");
}

/// A read that may not wait is repeated after a fetch.
#[test]
fn a_read_that_is_repeated_counts_once() {
    use TraceOutcome::{Hit, Miss};
    let fixture = fixture();
    fixture.read(40, 1);
    let session = fixture.pool.trace().unwrap();
    let mut out = vec![0; 4 * RECORD as usize];
    let view = fixture.object.non_blocking();
    let mut attempts = 0;
    while let Err(error) = view.read(40 * RECORD, &mut out) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move || {
            let _ = sender.send(());
        });
        fixture.object.fetch(40 * RECORD, 4 * RECORD, done);
        receiver.recv().unwrap();
        attempts += 1;
    }
    let (records, ..) = finish(&fixture.pool, session);
    let mut found = fixture.of_object(&records);
    found.retain(|(_, outcome)| *outcome != TraceOutcome::ReadAhead);
    found.sort_unstable();
    // On a memory device a read may end at once; no attempt fails then.
    assert!(attempts < 10);
    assert_eq!(found, [(40, Hit), (41, Miss), (42, Miss), (43, Miss)]);
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let fixture = fixture();
    fixture.read(0, 1);
    let session = fixture.pool.trace().unwrap();
    let reads = 100_000;
    for _ in 0..reads {
        fixture.read(0, 1);
    }
    let (records, _, totals) = finish(&fixture.pool, session);
    assert!(totals.dropped > 0 && !records.is_empty());
    assert_eq!(records.len() as u64 + totals.dropped, reads);
}

#[test]
fn there_is_one_trace_at_a_time_and_none_after_an_export() {
    let fixture = fixture();
    let session = fixture.pool.trace().unwrap();
    let refused = fixture.pool.trace().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("tank"), "{refused}");
    drop(session);
    // Between two traces nothing is recorded.
    fixture.read(1, 1);
    let session = fixture.pool.trace().unwrap();
    assert_eq!(finish(&fixture.pool, session).2.records, 0);

    let session = fixture.pool.trace().unwrap();
    fixture.pool.close().unwrap();
    assert!(session.is_over());
    drop(session);
    assert_eq!(fixture.pool.trace().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn the_memory_of_a_trace_counts_against_the_bound() {
    let fixture = fixture();
    let resident = || fixture.cache.cache().stats().resident_bytes();
    let session = fixture.pool.trace().unwrap();
    assert!(fixture.cache.other_bytes() >= 768 << 10, "{} bytes", fixture.cache.other_bytes());
    assert!(fixture.cache.other_bytes() + resident() <= fixture.cache.bound_bytes());
    drop(session);
    assert_eq!(fixture.cache.other_bytes(), 0);
}
