//! Reads every format in every packing, and rejects malformed files.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use forebay_base::rng::SmallRng;

use super::*;

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer =
        lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 3).unwrap()
}

fn parse(bytes: &[u8], format: Option<Format>) -> Result<Vec<u32>, String> {
    let read = read_from(Cursor::new(bytes.to_vec()), format);
    let explained = |kind| ReadError { path: PathBuf::from("FILE"), kind }.to_string();
    read.map(|builder| builder.build("t").accesses().to_vec()).map_err(explained)
}

const KEYS: [u64; 6] = [17, 18_446_744_073_709, 17, 0, 4, 0];
const NUMBERS: [u32; 6] = [0, 1, 0, 2, 3, 2];

fn text() -> Vec<u8> {
    KEYS.iter().flat_map(|key| format!("{key}\n").into_bytes()).collect()
}

#[test]
fn every_format_in_every_packing() {
    let csv: Vec<u8> =
        KEYS.iter().flat_map(|key| format!("12, {key} ,4096,read\r\n").into_bytes()).collect();
    let small: Vec<u8> = KEYS.iter().flat_map(|key| (*key as u32).to_le_bytes()).collect();
    let large: Vec<u8> = KEYS.iter().flat_map(|key| key.to_le_bytes()).collect();
    let contents =
        [(Format::Keys, text()), (Format::Csv, csv), (Format::U32, small), (Format::U64, large)];
    for (format, plain) in contents {
        for packed in [plain.clone(), gz(&plain), xz(&plain), zst(&plain)] {
            assert_eq!(parse(&packed, Some(format)).unwrap(), NUMBERS, "{format:?}");
        }
        let told = matches!(format, Format::Keys | Format::Csv);
        assert_eq!(parse(&plain, None).is_ok_and(|found| found == NUMBERS), told, "{format:?}");
    }
    // Members and streams behind one another are one file.
    for pack in [gz, xz, zst] {
        let two = [pack(b"1\n2\n"), pack(b"2\n3\n")].concat();
        assert_eq!(parse(&two, None).unwrap(), [0, 1, 1, 2]);
    }
}

#[test]
fn keys_across_the_edges_of_buffers() {
    let mut rng = SmallRng::from_seed(3);
    let keys: Vec<u64> = (0..30_000).map(|_| rng.next_u64() >> rng.below(64)).collect();
    let mut numbers = TraceBuilder::new();
    keys.iter().for_each(|key| numbers.number(*key).unwrap());
    let numbers = numbers.build("t");
    let lines: Vec<u8> = keys.iter().flat_map(|key| format!("{key}\n").into_bytes()).collect();
    let words: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    for capacity in [1, 3, 7, 13, 4096] {
        let read = |bytes: &[u8], format| {
            let input = BufReader::with_capacity(capacity, Cursor::new(bytes.to_vec()));
            read_from(input, Some(format)).unwrap().build("t")
        };
        assert!(read(&lines, Format::Keys) == numbers);
        assert!(read(&words, Format::U64) == numbers);
    }
}

#[test]
fn what_csv_may_look_like() {
    let csv = |text: &str| parse(text.as_bytes(), Some(Format::Csv));
    assert_eq!(csv("1,a,0,get\n2,\"a\",0,set\n3,b\n\n4,a,1,GET").unwrap(), [0, 0, 1, 0]);
    assert_eq!(csv("op,key,time\nget,5,1\ndelete,6,1\nGet,7,2\nget,5,3\n").unwrap(), [0, 1, 0]);
    assert_eq!(csv("1,5,0,get\n1,5,0,DELETE\n1,6,0,get").unwrap(), [0, 1]);
    let error = csv("1,5,0,get\n7\n").unwrap_err();
    assert!(error.contains("line 2") && error.contains("timestamp,key,size,op"), "{error}");
    let error = csv("1,5,0,get\n7,,\n").unwrap_err();
    assert!(error.contains("line 2"), "{error}");
    let builder = read_from(Cursor::new(b"1,5,0,get\n1,5,0,del\n".to_vec()), Some(Format::Csv));
    assert_eq!(builder.unwrap().build("t").skipped(), 1);
}

#[test]
fn bad_content_is_refused_with_its_place_and_a_way_out() {
    let long = vec![b'1'; 5000];
    let cases: [(&[u8], Option<Format>, &[&str]); 9] = [
        (b"", None, &["no accesses"]),
        (b"\n\n", Some(Format::Keys), &["no accesses"]),
        (b"1\n2\nx3\n", Some(Format::Keys), &["line 3", "x3", "--format"]),
        (b"1\n-2\n", Some(Format::Keys), &["line 2", "-2"]),
        (b"1\n18446744073709551616\n", Some(Format::Keys), &["line 2", "2^64"]),
        (&long, Some(Format::Keys), &["line 1", "4096", "--format"]),
        (&[1, 0, 0, 0, 9], Some(Format::U32), &["1 bytes of 4", "--format"]),
        (&[1, 0, 0, 0, 9], Some(Format::U64), &["5 bytes of 8", "--format"]),
        (&[0, 1, 2, 3], None, &["--format"]),
    ];
    for (bytes, format, words) in cases {
        let error = parse(bytes, format).unwrap_err();
        assert!(error.starts_with("FILE: "), "{error}");
        for word in words {
            assert!(error.contains(word), "{error} has no `{word}`");
        }
    }
    let error = read(Path::new("/nowhere/at/all.keys"), None).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all.keys"), "{error}");
}

#[test]
fn cut_and_mutated_files_are_errors_or_traces_and_nothing_else() {
    let mut rng = SmallRng::from_seed(11);
    let plain: Vec<u8> = (0..3000).flat_map(|key| format!("{}\n", key * 7).into_bytes()).collect();
    for pack in [gz, xz, zst] {
        let packed = pack(&plain);
        for _ in 0..150 {
            let cut = 8 + rng.below(packed.len() as u64 - 8) as usize;
            let error = parse(&packed[..cut], Some(Format::Keys)).unwrap_err();
            let explained = error.contains("truncated") || error.contains("its own tool");
            assert!(explained && error.starts_with("FILE: "), "{error}");
            let mut mutated = packed.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(packed.len() as u64) as usize;
                mutated[at] ^= 1 << rng.below(8);
            }
            // It must come back, without a panic; checksums find most.
            let _ = parse(&mutated, None);
        }
    }
}

#[test]
fn memory_that_a_header_asks_for_is_not_given() {
    // A frame of zstd whose window is 2 GiB.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
    let error = parse(&frame, Some(Format::Keys)).unwrap_err();
    assert!(error.contains("memory") && error.contains("its own tool"), "{error}");
    // A stream of xz whose dictionary is 4 GiB: in the header of its block, whose checksum is made
    // anew.
    let mut stream = xz(b"1\n2\n");
    let header = 12..12 + (usize::from(stream[12]) + 1) * 4;
    let filter = header.clone().find(|at| stream[*at..].starts_with(&[0x21, 0x01])).unwrap();
    stream[filter + 2] = 40;
    let sum = crc32(&stream[header.start..header.end - 4]);
    stream[header.end - 4..header.end].copy_from_slice(&sum.to_le_bytes());
    let error = parse(&stream, Some(Format::Keys)).unwrap_err();
    assert!(error.contains("mem"), "{error}");
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[test]
fn names_say_formats() {
    let found = |path: &str| name_and_format(Path::new(path));
    for (path, name, format) in [
        ("/a/w106.keys.xz", "w106", Some(Format::Keys)),
        ("w106.CSV.zst", "w106", Some(Format::Csv)),
        ("w.u32", "w", Some(Format::U32)),
        ("w.u64.gz", "w", Some(Format::U64)),
        ("w.1.txt", "w.1.txt", None),
        ("w.1.gz", "w.1", None),
        (".keys", ".keys", None),
    ] {
        assert_eq!(found(path), (name.to_owned(), format), "{path}");
    }
}

#[test]
fn a_trace_of_a_pool_is_played_without_its_read_ahead() {
    use forebay_pool::BlockLabel;
    use forebay_pool::trace::{TraceHeader, TraceOutcome, TraceRecord, put_header, put_records};

    let access = |block, is_metadata, outcome| TraceRecord {
        time_us: 0,
        dataset: 1,
        label: BlockLabel::Object(4),
        block,
        bytes: 4096,
        is_metadata,
        outcome,
    };
    let records = [
        access(8, false, TraceOutcome::Miss),
        access(9, false, TraceOutcome::ReadAhead),
        access(5, true, TraceOutcome::Hit),
        access(8, false, TraceOutcome::Hit),
    ];
    let mut plain = Vec::new();
    put_header(&mut plain, &TraceHeader::default());
    put_records(&mut plain, &records);
    for file in [plain.clone(), zst(&plain), gz(&plain)] {
        assert_eq!(parse(&file, None).unwrap(), [0, 1, 0]);
    }
    let trace = read_from(Cursor::new(plain.clone()), None).unwrap().build("t");
    assert_eq!([trace.is_metadata(0), trace.is_metadata(1)], [false, true]);
    let refused = parse(&plain[..plain.len() - 1], None).unwrap_err();
    assert!(refused.contains("no accesses: it was cut"), "{refused}");
}
