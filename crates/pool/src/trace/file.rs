//! The file format of traces.
//!
//! All integers are little-endian. A file is usually compressed with zstd as a whole; the format
//! is that of the unpacked bytes.
//!
//! | part | content |
//! |---|---|
//! | header | the 8 bytes `FBYTRACE`; version, u32: 1; bytes of a record, u32: 32; start in microseconds since 1970, u64; GUID of the pool, u64; bytes of its name, u32; the name |
//! | frames | kind, u32; bytes of the payload, u32, at most 1 MiB; the payload |
//!
//! | kind | payload |
//! |---|---|
//! | 1, records | any number of records of 32 bytes: time in µs since the start, u64; object, u64; block, u64; bytes, u32; dataset, u16; flags, u8; 0, u8 |
//! | 2, dataset | number, u16; GUID, u64; name. The pool's own objects have GUID 0 and no name |
//! | 3, path | dataset, u16; object, u64; path |
//! | 4, end | records, u64; dropped records, u64; duration in µs, u64 |
//!
//! Flags: bits 0 and 1 are 0 for a hit, 1 for a miss, 2 for read-ahead; bit 2 is set for metadata;
//! bits 4 and 5 are 1 for the content of an object, 2 for an indirect block (its block is an
//! address), 3 for a block of dnodes. Readers skip frames of other kinds. A file without an end
//! frame, or one that ends within a frame, is the beginning of a trace: of one whose recording
//! failed, or whose file was cut.

use std::io::Read;

use zerocopy::{FromBytes, IntoBytes};

use super::record::{PackedRecord, RECORD_BYTES, TraceRecord};

/// First bytes of a trace.
pub const TRACE_MAGIC: [u8; 8] = *b"FBYTRACE";
/// Most bytes of the payload of a frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
const VERSION: u32 = 1;
/// Most bytes of the name of a pool or a dataset, or of a path.
const NAME_BYTES_MAX: usize = 1 << 16;

const RECORDS: u32 = 1;
const DATASET: u32 = 2;
const PATH: u32 = 3;
const END: u32 = 4;

/// What a trace is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// Start of the trace in microseconds since 1970.
    pub start_unix_us: u64,
    /// GUID of the pool.
    pub pool_guid: u64,
    /// Name of the pool.
    pub pool: String,
}

/// Totals at the end of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTotals {
    /// Records in the file: accesses, and blocks that read-ahead began to read.
    pub records: u64,
    /// Accesses that did not fit into the rings and are missing.
    pub dropped: u64,
    /// Duration of the trace in microseconds.
    pub duration_us: u64,
}

/// A part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceItem {
    /// An access.
    Record(TraceRecord),
    /// Number, GUID and name of a dataset.
    Dataset(u16, u64, String),
    /// Dataset and number of an object, and its path.
    Path(u16, u64, String),
    /// The end of the trace. Nothing follows.
    End(TraceTotals),
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read or unpacked.
    #[error("cannot read the trace: {0}")]
    Io(#[from] std::io::Error),
    /// The content is not a trace, or damaged.
    #[error("{0}")]
    Malformed(String),
}

fn malformed<T>(text: impl Into<String>) -> Result<T, TraceError> {
    Err(TraceError::Malformed(text.into()))
}

/// Appends the header of a file.
pub fn put_header(out: &mut Vec<u8>, header: &TraceHeader) {
    let name = cut(&header.pool);
    out.extend_from_slice(&TRACE_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    out.extend_from_slice(&header.start_unix_us.to_le_bytes());
    out.extend_from_slice(&header.pool_guid.to_le_bytes());
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(name);
}

/// Appends frames of records.
pub fn put_records(out: &mut Vec<u8>, records: &[TraceRecord]) {
    let packed: Vec<PackedRecord> = records.iter().map(|record| record.to_packed()).collect();
    put_packed(out, &packed);
}

pub(super) fn put_packed(out: &mut Vec<u8>, records: &[PackedRecord]) {
    for frame in records.chunks(FRAME_BYTES_MAX / RECORD_BYTES) {
        put_frame(out, RECORDS, &[frame.as_bytes()]);
    }
}

pub(super) fn put_dataset(out: &mut Vec<u8>, number: u16, guid: u64, name: &str) {
    put_frame(out, DATASET, &[&number.to_le_bytes(), &guid.to_le_bytes(), cut(name)]);
}

/// Appends the path of an object.
pub fn put_path(out: &mut Vec<u8>, dataset: u16, object: u64, path: &str) {
    put_frame(out, PATH, &[&dataset.to_le_bytes(), &object.to_le_bytes(), cut(path)]);
}

pub(super) fn put_end(out: &mut Vec<u8>, totals: &TraceTotals) {
    let TraceTotals { records, dropped, duration_us } = totals;
    let fields = [records.to_le_bytes(), dropped.to_le_bytes(), duration_us.to_le_bytes()];
    put_frame(out, END, &[fields.as_flattened()]);
}

fn put_frame(out: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(bytes as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn cut(name: &str) -> &[u8] {
    let bytes = name.as_bytes();
    &bytes[..bytes.len().min(NAME_BYTES_MAX)]
}

/// Reads a trace, unpacked, part by part.
pub struct TraceReader<R> {
    input: R,
    header: TraceHeader,
    /// The records of the current frame, and how many of their bytes are read.
    frame: Vec<u8>,
    read_bytes: usize,
    records: u64,
    has_ended: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// If `input` does not begin with one.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut fixed = [0; 36];
        if !fill(&mut input, &mut fixed)? || fixed[..8] != TRACE_MAGIC {
            return malformed("not a trace of a pool; `forebay trace record` makes one");
        }
        let word = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64_at(&fixed, at);
        if word(8) != VERSION || word(12) as usize != RECORD_BYTES {
            let (version, bytes) = (word(8), word(12));
            return malformed(format!(
                "the trace has version {version} and records of {bytes} bytes; this program reads version {VERSION} with {RECORD_BYTES} bytes: use the one that recorded it"
            ));
        }
        let (start_unix_us, pool_guid) = (long(16), long(24));
        let name_bytes = word(32) as usize;
        if name_bytes > NAME_BYTES_MAX {
            return malformed(format!("the name of the pool has {name_bytes} bytes"));
        }
        let mut name = vec![0; name_bytes];
        if !fill(&mut input, &mut name)? {
            return malformed("the trace ends in its header; record it again");
        }
        let header = TraceHeader { start_unix_us, pool_guid, pool: text(&name) };
        let frame = Vec::new();
        Ok(Self { input, header, frame, read_bytes: 0, records: 0, has_ended: false })
    }

    /// What the trace is of.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Records that were read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether the end of the trace was read. If not, and there is no next part, the trace is cut.
    pub fn is_complete(&self) -> bool {
        self.has_ended
    }

    /// The next part; `None` after the end, or after the last whole frame of a file that is cut.
    ///
    /// # Errors
    /// If the file cannot be read, or is malformed.
    pub fn next_item(&mut self) -> Result<Option<TraceItem>, TraceError> {
        loop {
            if let Some(bytes) = self.frame[self.read_bytes..].first_chunk::<RECORD_BYTES>() {
                self.read_bytes += RECORD_BYTES;
                self.records += 1;
                let phys = PackedRecord::read_from_bytes(bytes).expect("the size of a record");
                return match TraceRecord::of_packed(&phys) {
                    Some(record) => Ok(Some(TraceItem::Record(record))),
                    None => malformed(format!("record {} has unknown flags", self.records)),
                };
            }
            if self.has_ended {
                return Ok(None);
            }
            let Some((kind, payload)) = self.next_frame()? else { return Ok(None) };
            if let Some(item) = self.take(kind, payload)? {
                return Ok(Some(item));
            }
        }
    }

    fn next_frame(&mut self) -> Result<Option<(u32, Vec<u8>)>, TraceError> {
        let mut head = [0; 8];
        let got = fill_some(&mut self.input, &mut head)?;
        if got < head.len() {
            return Ok(None);
        }
        let bytes = u32::from_le_bytes(head[4..].try_into().expect("4 bytes")) as usize;
        if bytes > FRAME_BYTES_MAX {
            return malformed(format!("a frame after record {} has {bytes} bytes", self.records));
        }
        let mut payload = vec![0; bytes];
        if !fill(&mut self.input, &mut payload)? {
            return Ok(None);
        }
        let kind = u32::from_le_bytes(head[..4].try_into().expect("4 bytes"));
        Ok(Some((kind, payload)))
    }

    /// Keeps the records of a frame, or returns its item.
    fn take(&mut self, kind: u32, payload: Vec<u8>) -> Result<Option<TraceItem>, TraceError> {
        let wrong = |what: &str| malformed(format!("a frame of {what} has a wrong length"));
        let named = |payload: &[u8]| {
            (u16::from_le_bytes([payload[0], payload[1]]), u64_at(payload, 2), text(&payload[10..]))
        };
        match (kind, payload.len()) {
            (RECORDS, bytes) if bytes.is_multiple_of(RECORD_BYTES) => {
                (self.frame, self.read_bytes) = (payload, 0);
                Ok(None)
            }
            (RECORDS, _) => wrong("records"),
            (DATASET, 10..) => {
                let (number, guid, name) = named(&payload);
                Ok(Some(TraceItem::Dataset(number, guid, name)))
            }
            (PATH, 10..) => {
                let (dataset, object, path) = named(&payload);
                Ok(Some(TraceItem::Path(dataset, object, path)))
            }
            (DATASET | PATH, _) => wrong("names"),
            (END, 24) => {
                self.has_ended = true;
                let [records, dropped, duration_us] = [0, 8, 16].map(|at| u64_at(&payload, at));
                if records != self.records {
                    return malformed(format!(
                        "the trace has {} records, but should have {records}; record it again",
                        self.records
                    ));
                }
                Ok(Some(TraceItem::End(TraceTotals { records, dropped, duration_us })))
            }
            (END, _) => wrong("totals"),
            _ => Ok(None),
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// A name without control characters, which could change a terminal.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Fills `out`; false if the input ends before.
fn fill(input: &mut impl Read, out: &mut [u8]) -> std::io::Result<bool> {
    Ok(fill_some(input, out)? == out.len())
}

/// Fills `out` as far as the input goes. Returns the number of bytes. A decompressor reports an
/// input that is cut as an error; it is an end like another.
fn fill_some(input: &mut impl Read, out: &mut [u8]) -> std::io::Result<usize> {
    let mut at = 0;
    while at < out.len() {
        match input.read(&mut out[at..]) {
            Ok(0) => break,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Ok(bytes) => at += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}
