//! Files survive writing and reading, and hostile ones are refused.

use proptest::prelude::*;

use super::file::{put_dataset, put_end};
use super::*;
use crate::BlockLabel;

fn header() -> TraceHeader {
    TraceHeader { start_unix_us: 1_700_000_000_000_000, pool_guid: 77, pool: "tank".to_owned() }
}

fn record(n: u64) -> TraceRecord {
    TraceRecord {
        time_us: n,
        dataset: 3,
        label: [BlockLabel::Object(n), BlockLabel::Indirect, BlockLabel::Dnodes][n as usize % 3],
        block: n * 7,
        bytes: 4096,
        is_metadata: n.is_multiple_of(2),
        outcome: [TraceOutcome::Hit, TraceOutcome::Miss, TraceOutcome::ReadAhead][n as usize % 3],
    }
}

fn items(file: &[u8]) -> Result<Vec<TraceItem>, TraceError> {
    let mut reader = TraceReader::new(file)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok(items)
}

/// A file with more records than a frame holds.
fn file() -> (Vec<u8>, Vec<TraceItem>) {
    let records: Vec<TraceRecord> = (0..40_000).map(record).collect();
    let totals = TraceTotals { records: 40_000, dropped: 5, duration_us: 9 };
    let mut file = Vec::new();
    put_header(&mut file, &header());
    put_dataset(&mut file, 3, 99, "main");
    put_records(&mut file, &records);
    put_path(&mut file, 3, 12, "a/b");
    put_end(&mut file, &totals);
    let mut wanted = vec![TraceItem::Dataset(3, 99, "main".to_owned())];
    wanted.extend(records.into_iter().map(TraceItem::Record));
    wanted.push(TraceItem::Path(3, 12, "a/b".to_owned()));
    wanted.push(TraceItem::End(totals));
    (file, wanted)
}

#[test]
fn a_file_survives_writing_and_reading() {
    let (file, wanted) = file();
    assert_eq!(TraceReader::new(&file[..]).unwrap().header(), &header());
    assert!(items(&file).unwrap() == wanted);
}

#[test]
fn of_a_file_that_is_cut_the_whole_frames_are_read() {
    let (file, wanted) = file();
    // The header is needed.
    for len in [0, 7, 35, 38] {
        assert!(items(&file[..len]).is_err(), "{len} bytes");
    }
    let records = FRAME_BYTES_MAX / 32;
    let end = file.len() - 32;
    for (len, read) in [(45, 0), (70, 1), (100_000, 1), (1_200_000, 1 + records)] {
        let found = items(&file[..len]).unwrap();
        assert!(found[..] == wanted[..read], "{len} bytes: {}", found.len());
    }
    for len in [end, end + 5, file.len() - 1] {
        assert!(items(&file[..len]).unwrap()[..] == wanted[..wanted.len() - 1], "{len} bytes");
    }
    for (len, is_complete) in [(file.len(), true), (file.len() - 1, false)] {
        let mut reader = TraceReader::new(&file[..len]).unwrap();
        while reader.next_item().unwrap().is_some() {}
        assert_eq!(reader.is_complete(), is_complete);
    }
}

#[test]
fn names_cannot_change_a_terminal() {
    let mut file = Vec::new();
    put_header(&mut file, &TraceHeader { pool: "a\x1b[2Jb".to_owned(), ..header() });
    assert_eq!(TraceReader::new(&file[..]).unwrap().header().pool, "a\u{fffd}[2Jb");
}

#[test]
fn accesses_to_one_block_have_one_identity() {
    let [one, two] = [record(3), TraceRecord { time_us: 0, ..record(3) }];
    assert_eq!(one.identity(), two.identity());
    let others =
        [TraceRecord { dataset: 4, ..one }, TraceRecord { block: 22, ..one }, record(4), record(5)];
    assert!(others.iter().all(|other| other.identity() != one.identity()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut file = Vec::new();
        put_header(&mut file, &header());
        file.extend_from_slice(&bytes);
        drop(items(&file));
        drop(items(&bytes));
    }

    #[test]
    fn any_frame_is_read_or_refused(
        kind in 0u32..6,
        claimed in prop_oneof![0u32..200, any::<u32>()],
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut file = Vec::new();
        put_header(&mut file, &header());
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&claimed.to_le_bytes());
        file.extend_from_slice(&payload);
        drop(items(&file));
    }

    #[test]
    fn any_changed_byte_is_read_or_refused(at in 0usize..400, byte in any::<u8>()) {
        let mut file = Vec::new();
        put_header(&mut file, &header());
        put_records(&mut file, &[record(1), record(2), record(3)]);
        put_path(&mut file, 3, 12, "a/b");
        put_end(&mut file, &TraceTotals { records: 3, ..TraceTotals::default() });
        let at = at % file.len();
        file[at] = byte;
        drop(items(&file));
    }
}
