//! Reads trace files in five formats, plain or packed.
//!
//! | format | content | extension | |---|---|---| | `keys` | a decimal key per line | `.keys` | |
//! `csv` | timestamp, key, size, operation; see `lines.rs` | `.csv` | | `u32`, `u64` |
//! little-endian keys | `.u32`, `.u64` | | `pool` | a trace of a pool, by `forebay trace record`;
//! read-ahead is left out | none: its first bytes tell |
//!
//! A second extension may name the packing (`.gz`, `.xz`, `.zst`), but the file's first bytes
//! decide. A file without a known extension is read if its content is plainly lines of keys or of
//! values.
//!
//! A file is not trusted. The length of a line, the memory of a decoder and the length of a trace
//! are bounded, and memory grows only with the bytes read. Errors name the file, the position, and
//! the way out.

mod binary;
mod lines;
mod packed;
mod pool;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_pool::trace::TRACE_MAGIC;

use super::trace::{MAX_ACCESSES, TooLong, Trace, TraceBuilder};

/// The format of a trace file's content, once unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A decimal key per line.
    Keys,
    /// Timestamp, key, size, operation.
    Csv,
    /// Little-endian keys of 4 bytes.
    U32,
    /// Little-endian keys of 8 bytes.
    U64,
    /// A trace of a pool.
    Pool,
}

impl Format {
    /// All formats with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("keys", Self::Keys),
        ("csv", Self::Csv),
        ("u32", Self::U32),
        ("u64", Self::U64),
        ("pool", Self::Pool),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, format)| format)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::named(text)
            .ok_or_else(|| "unknown format; use keys, csv, u32, u64 or pool".to_owned())
    }
}

/// A trace could not be read.
#[derive(Debug)]
pub struct ReadError {
    path: PathBuf,
    kind: ReadErrorKind,
}

/// The cause of a [`ReadError`].
#[derive(Debug)]
pub(crate) enum ReadErrorKind {
    /// The system or a decoder failed.
    Io(io::Error),
    /// A malformed line, counted from one.
    Line(u64, String),
    /// Malformed content of the whole file.
    Whole(String),
    /// More accesses than a trace may have.
    TooLong,
}

impl From<io::Error> for ReadErrorKind {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TooLong> for ReadErrorKind {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.kind {
            ReadErrorKind::Io(error) if error.raw_os_error().is_some() => write!(f, "{error}"),
            ReadErrorKind::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "the file is truncated ({error}); fetch it again")
            }
            ReadErrorKind::Io(error) => {
                write!(
                    f,
                    "cannot unpack: {error}; unpack the file with its own tool and pass the result"
                )
            }
            ReadErrorKind::Line(line, text) => write!(f, "line {line}: {text}"),
            ReadErrorKind::Whole(text) => f.write_str(text),
            ReadErrorKind::TooLong => {
                write!(f, "more than {MAX_ACCESSES} accesses; shorten the trace")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ReadErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Reads a trace. Without `format`, the file's name decides, or its content.
///
/// # Errors
/// If the file cannot be read or unpacked, or if it does not have the format.
pub fn read(path: &Path, format: Option<Format>) -> Result<Trace, ReadError> {
    let (name, by_name) = name_and_format(path);
    let error = |kind| ReadError { path: path.to_owned(), kind };
    let file = File::open(path).map_err(|e| error(ReadErrorKind::Io(e)))?;
    let trace = read_from(BufReader::with_capacity(BUFFER_BYTES, file), format.or(by_name));
    trace.map(|builder| builder.build(name)).map_err(error)
}

const BUFFER_BYTES: usize = 1 << 16;

fn read_from(
    input: impl BufRead + 'static,
    format: Option<Format>,
) -> Result<TraceBuilder, ReadErrorKind> {
    let mut input = packed::unpack(input)?;
    let format = match format {
        Some(format) => format,
        None => sniff(input.fill_buf()?)?,
    };
    let mut builder = TraceBuilder::new();
    match format {
        Format::Keys => lines::read_keys(&mut input, &mut builder)?,
        Format::Csv => lines::read_csv(&mut input, &mut builder)?,
        Format::U32 => binary::read::<4>(&mut input, &mut builder)?,
        Format::U64 => binary::read::<8>(&mut input, &mut builder)?,
        Format::Pool => pool::read(&mut input, &mut builder)?,
    }
    if builder.is_empty() {
        let cut =
            if builder.is_cut() { ": it was cut before its first ones were complete" } else { "" };
        return Err(ReadErrorKind::Whole(format!("the file has no accesses{cut}")));
    }
    Ok(builder)
}

/// Guesses the format from the first bytes of a file.
fn sniff(start: &[u8]) -> Result<Format, ReadErrorKind> {
    let text = start.iter().all(|b| matches!(b, b'\t' | b'\r' | b'\n' | 0x20..=0x7e | 0x80..));
    if start.starts_with(&TRACE_MAGIC) {
        Ok(Format::Pool)
    } else if start.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace()) {
        Ok(Format::Keys)
    } else if text && start.contains(&b',') {
        Ok(Format::Csv)
    } else {
        let text = "unknown format; give --format keys, csv, u32, u64 or pool";
        Err(ReadErrorKind::Whole(text.to_owned()))
    }
}

/// The file's name without known extensions, and the format that they name.
fn name_and_format(path: &Path) -> (String, Option<Format>) {
    let mut name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let mut cut = |is_known: &dyn Fn(&str) -> bool| -> Option<String> {
        let (stem, ending) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?;
        let (stem, ending) = (stem.to_owned(), ending.to_ascii_lowercase());
        is_known(&ending).then(|| name = stem)?;
        Some(ending)
    };
    cut(&|ending| packed::ENDINGS.contains(&ending));
    let format = cut(&|ending| Format::named(ending).is_some());
    (name, format.as_deref().and_then(Format::named))
}

#[cfg(test)]
mod tests;
