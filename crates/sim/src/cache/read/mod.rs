//! Trace files: four formats, each plain or packed.
//!
//! | format | what it is | name ending |
//! |---|---|---|
//! | `keys` | a decimal key a line | `.keys` |
//! | `csv` | timestamp, key, size, operation; see `lines.rs` | `.csv` |
//! | `u32`, `u64` | keys one after the other, little-endian | `.u32`, `.u64` |
//!
//! After that the name may say how it is packed (`.gz`, `.xz`, `.zst`), but the file's first bytes decide. A name
//! that says no format is good enough if the content is plainly lines of one or the other kind.
//!
//! A file is hostile: a line has a bound, so have the memory that an unpacker may use and the length of a trace; what
//! is kept grows only with what has been read. Errors name the file, the place, and the way out.

mod binary;
mod lines;
mod packed;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::trace::{MOST_ACCESSES, TooLong, Trace, TraceBuilder};

/// What the content of a trace file is, once unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A decimal key a line.
    Keys,
    /// Timestamp, key, size, operation.
    Csv,
    /// Little-endian keys of 4 bytes.
    U32,
    /// Little-endian keys of 8 bytes.
    U64,
}

impl Format {
    /// All of them with their names.
    pub const ALL: [(&'static str, Self); 4] =
        [("keys", Self::Keys), ("csv", Self::Csv), ("u32", Self::U32), ("u64", Self::U64)];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, format)| format)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::named(text).ok_or_else(|| "a format is one of keys, csv, u32, u64".to_owned())
    }
}

/// A trace could not be read.
#[derive(Debug)]
pub struct ReadError {
    path: PathBuf,
    what: What,
}

/// What was wrong with it.
#[derive(Debug)]
pub(crate) enum What {
    /// The system or an unpacker refused.
    Io(io::Error),
    /// Bad content of a line, counted from one.
    Line(u64, String),
    /// Bad content as a whole.
    Whole(String),
    /// Longer than a trace may be.
    TooLong,
}

impl From<io::Error> for What {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TooLong> for What {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.what {
            What::Io(error) if error.raw_os_error().is_some() => write!(f, "{error}"),
            What::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "ends too early ({error}): it was cut off; fetch it anew")
            }
            What::Io(error) => {
                write!(
                    f,
                    "cannot be unpacked: {error}; unpack it with its own tool and give the result"
                )
            }
            What::Line(line, text) => write!(f, "line {line}: {text}"),
            What::Whole(text) => f.write_str(text),
            What::TooLong => {
                write!(f, "more than {MOST_ACCESSES} accesses; give a part of the trace")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.what {
            What::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Reads a trace. The format is what its name or, failing that, its content says, if `format` does not.
///
/// # Errors
/// When the file cannot be read or unpacked, or its content is not what the format asks for.
pub fn read(path: &Path, format: Option<Format>) -> Result<Trace, ReadError> {
    let (name, by_name) = name_and_format(path);
    let error = |what| ReadError { path: path.to_owned(), what };
    let file = File::open(path).map_err(|e| error(What::Io(e)))?;
    let trace = read_from(BufReader::with_capacity(BUFFER_BYTES, file), format.or(by_name));
    trace.map(|builder| builder.build(name)).map_err(error)
}

const BUFFER_BYTES: usize = 1 << 16;

fn read_from(input: impl BufRead + 'static, format: Option<Format>) -> Result<TraceBuilder, What> {
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
    }
    if builder.is_empty() {
        return Err(What::Whole("no accesses in it".to_owned()));
    }
    Ok(builder)
}

/// What a file without a telling name holds, by its first bytes.
fn sniff(start: &[u8]) -> Result<Format, What> {
    let text = start.iter().all(|b| matches!(b, b'\t' | b'\r' | b'\n' | 0x20..=0x7e | 0x80..));
    if start.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace()) {
        Ok(Format::Keys)
    } else if text && start.contains(&b',') {
        Ok(Format::Csv)
    } else {
        let text = "neither name nor content says what it is; give --format keys, csv, u32 or u64";
        Err(What::Whole(text.to_owned()))
    }
}

/// The file's name without the endings that are known, and the format that they say.
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
