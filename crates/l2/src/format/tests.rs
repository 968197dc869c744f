//! Tests of the format: round trips, and parsers on arbitrary bytes.

use forebay_cache::Class;
use proptest::prelude::*;

use super::*;
use crate::MAX_NOTE_BYTES;
use crate::record::{KeyHash, MAX_BLOCK_UNITS, MAX_HITS, Tombstone};

const GUID: u64 = 77;
const SEQ: u64 = 1234;

fn record() -> impl Strategy<Value = LogRecord> {
    // Within the payload of the batch below.
    let block = (any::<u64>(), 0..100u32, 1..28u32, any::<bool>(), 0..=MAX_HITS).prop_map(
        |(hash, at, units, data, hits)| {
            let class = if data { Class::Data } else { Class::Metadata };
            LogRecord::Block { hash, unit: 128 + at, units, class, hits }
        },
    );
    let tombstone = (any::<u64>(), any::<bool>()).prop_map(|(number, is_group)| {
        LogRecord::Tombstone(match is_group {
            false => Tombstone::Key(KeyHash(number)),
            true => Tombstone::Group(number),
        })
    });
    prop_oneof![block, tombstone]
}

/// The second page of a segment holds a log block of one page, and two pages of blocks follow.
const OFFSET: u64 = PAGE_BYTES;
const PAYLOAD: u64 = 2 * PAGE_BYTES;
const SPACE: u64 = 1 << 20;

fn header() -> BatchHeader {
    BatchHeader {
        seq: SEQ,
        number: 3,
        log_bytes: PAGE_BYTES,
        payload_bytes: PAYLOAD,
        previous: 5,
        stamp: 6,
        durable: 2,
    }
}

fn parse_log(log: &[u8]) -> Option<LogBlock<'_>> {
    LogBlock::parse((GUID, SEQ), log, (OFFSET, SPACE))
}

/// Parses any bytes with every parser.
fn parse_all(bytes: &[u8]) {
    let _ = LabelPhys::parse(bytes);
    let _ = SegmentHeader::parse(GUID, bytes);
    if let Some(footer) = Footer::parse((GUID, SEQ), bytes, (PAGE_BYTES, SPACE)) {
        assert!(footer.extents().all(|extent| extent.offset + extent.log_bytes <= SPACE));
    }
    if let Some((log, payload)) = BatchHeader::peek((GUID, SEQ), bytes, SPACE) {
        assert!(log > 0 && log + payload <= SPACE);
    }
    if let Some(log) = parse_log(bytes) {
        for record in log.records() {
            let LogRecord::Block { unit, units, .. } = record else { continue };
            assert!(units > 0 && units <= MAX_BLOCK_UNITS && unit + units <= log.end_unit());
        }
    }
    if let Some(block) = verify_block(BlockSeed::new(GUID, SEQ), bytes) {
        assert!(block.key.len() + block.note.len() + block.value.len() <= bytes.len());
    }
}

proptest! {
    #[test]
    fn sealed_structures_parse(
        records in prop::collection::vec(record(), 0..200),
        key in prop::collection::vec(any::<u8>(), 1..32),
        note in prop::collection::vec(any::<u8>(), 0..=MAX_NOTE_BYTES),
        value in prop::collection::vec(any::<u8>(), 0..5000),
    ) {
        let mut log = vec![7; PAGE_BYTES as usize];
        let chain = seal_log(GUID, &header(), &records, &mut log);
        let parsed = parse_log(&log).expect("it parses");
        prop_assert_eq!((parsed.header, parsed.chain), (header(), chain));
        prop_assert_eq!(parsed.end_unit(), ((OFFSET + PAGE_BYTES + PAYLOAD) / 64) as u32);
        let found: Vec<LogRecord> = parsed.records().collect();
        prop_assert_eq!(found, records);
        prop_assert!(LogBlock::parse((GUID, SEQ + 1), &log, (OFFSET, SPACE)).is_none());
        prop_assert!(LogBlock::parse((GUID + 1, SEQ), &log, (OFFSET, SPACE)).is_none());
        prop_assert!(LogBlock::parse((GUID, SEQ), &log, (OFFSET, PAYLOAD)).is_none());

        let seed = BlockSeed::new(GUID, SEQ);
        let mut block = vec![7; block_bytes(key.len() + note.len(), value.len()) as usize];
        seal_block(seed, (&key, &note), value.len(), &mut block, |out| out.copy_from_slice(&value));
        let found = verify_block(seed, &block).expect("it parses");
        prop_assert_eq!((found.key, found.value), (&key[..], &value[..]));
        prop_assert!(verify_block(BlockSeed::new(GUID, SEQ + 1), &block).is_none());
        prop_assert!(verify_block(seed, &block[..20]).is_none());
    }

    #[test]
    fn segment_headers_and_footers_parse(
        seq in 1..1u64 << 40,
        stamp in any::<u64>(),
        floor in any::<(u64, u32)>(),
        (durable, batches) in any::<(u32, u32)>(),
        pages in prop::collection::vec((0..3u64, 1..4u64), 0..60),
    ) {
        let (previous_durable, previous_batches) = (durable, batches);
        let header = SegmentHeader { seq, stamp, floor, previous_durable, previous_batches };
        let mut page = vec![7; PAGE_BYTES as usize];
        let chain = header.seal(GUID, &mut page);
        prop_assert_eq!(SegmentHeader::parse(GUID, &page), Some((header, chain)));
        prop_assert_eq!(SegmentHeader::parse(GUID + 1, &page), None);

        let mut next = PAGE_BYTES;
        let mut extents = Vec::new();
        for (gap, log) in pages {
            let (offset, log_bytes) = (next + gap * PAGE_BYTES, log * PAGE_BYTES);
            extents.push(BatchExtent { offset, log_bytes });
            next = offset + log_bytes;
        }
        let header = FooterHeader { seq, records: 9, stamp, durable };
        let mut bytes = vec![7; PAGE_BYTES as usize];
        seal_footer(GUID, header, &extents, &mut bytes);
        let found = Footer::parse((GUID, seq), &bytes, (PAGE_BYTES, next)).expect("it parses");
        prop_assert_eq!(found.header, header);
        prop_assert_eq!(found.extents().collect::<Vec<_>>(), extents.clone());
        let shorter = Footer::parse((GUID, seq), &bytes, (PAGE_BYTES, next - 1));
        prop_assert_eq!(shorter.is_none(), !extents.is_empty());
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_within_bounds(
        mut bytes in prop::collection::vec(any::<u8>(), 0..9000),
        records in prop::collection::vec(record(), 0..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0..8192usize,
    ) {
        parse_all(&bytes);
        // With a valid magic and guid the parser gets further.
        let mut log = vec![0; PAGE_BYTES as usize];
        seal_log(GUID, &header(), &records, &mut log);
        let front = log.len().min(bytes.len()).min(48);
        bytes[..front].copy_from_slice(&log[..front]);
        parse_all(&bytes);
        let mut mutated = log.clone();
        for (at, byte) in changes {
            let at = at.index(mutated.len());
            mutated[at] ^= byte;
        }
        parse_all(&mutated);
        parse_all(&mutated[..cut.min(mutated.len())]);
        // The checksum covers everything except the zeros behind the records.
        let end = BATCH_HEADER_BYTES + records.len() * RECORD_BYTES;
        if mutated[..end] != log[..end] {
            prop_assert!(parse_log(&mutated).is_none());
        }
    }

    #[test]
    fn records_with_a_valid_checksum_are_still_validated(lines in prop::collection::vec(any::<[u8; 16]>(), 1..200)) {
        // A sealed log block whose records are invalid: the checksum is right.
        let mut log = vec![0; PAGE_BYTES as usize];
        let blank = vec![LogRecord::Tombstone(Tombstone::Key(KeyHash(0))); lines.len()];
        seal_log(GUID, &header(), &blank, &mut log);
        let end = BATCH_HEADER_BYTES + lines.len() * RECORD_BYTES;
        log[BATCH_HEADER_BYTES..end].copy_from_slice(lines.as_flattened());
        let checksum = sum(&log[24..end]);
        log[8..24].copy_from_slice(&checksum);
        prop_assert!(parse_log(&log).is_some());
        parse_all(&log);
    }
}

#[test]
fn labels_parse_and_changed_labels_are_rejected() {
    let mut label = LabelPhys::new();
    label.owner = [9; 16];
    let bytes = label.seal();
    assert_eq!(LabelPhys::parse(&bytes).map(|label| label.owner), Ok([9; 16]));
    for at in (0..LABEL_BYTES).step_by(61) {
        let mut changed = bytes;
        changed[at] ^= 4;
        assert!(LabelPhys::parse(&changed).is_err(), "byte {at}");
    }
    assert!(LabelPhys::parse(&void_page()).is_err());
    assert!(LabelPhys::parse(&bytes[..100]).is_err());
}
