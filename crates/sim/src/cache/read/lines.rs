//! Line formats: decimal keys, and comma-separated values.
//!
//! Values are `timestamp,key,size,operation`; the last two may be missing. If the first line names
//! its columns, they may be in any order, with others between them. A key is a number or any text.
//! Each line is one access of any size and operation, except deletions (`delete`, `remove`, ...),
//! which are counted and skipped.

use std::io::BufRead;

use super::ReadErrorKind;
use crate::cache::trace::TraceBuilder;

/// Longer lines are an error, so that a file without line ends cannot exhaust memory.
const MAX_LINE_BYTES: usize = 4096;
const KEY_COLUMN: usize = 1;
const OPERATION_COLUMN: usize = 3;
const DELETIONS: [&str; 6] = ["delete", "del", "remove", "discard", "trim", "unlink"];

/// Reads a decimal key per line. Empty lines are skipped.
pub(super) fn read_keys(
    input: &mut dyn BufRead,
    builder: &mut TraceBuilder,
) -> Result<(), ReadErrorKind> {
    each_line(input, |number, line| {
        if line.is_empty() {
            return Ok(());
        }
        let key = decimal(line).ok_or_else(|| {
            let found = shown(line);
            let text = format!("`{found}` is not a decimal key below 2^64; if the file has another format, give --format csv, u32 or u64");
            ReadErrorKind::Line(number, text)
        })?;
        Ok(builder.number(key)?)
    })
}

/// Indices of the columns.
struct Columns {
    key: usize,
    operation: usize,
}

/// Reads comma-separated values.
pub(super) fn read_csv(
    input: &mut dyn BufRead,
    builder: &mut TraceBuilder,
) -> Result<(), ReadErrorKind> {
    let mut columns = Columns { key: KEY_COLUMN, operation: OPERATION_COLUMN };
    let mut first = true;
    each_line(input, |number, line| {
        if line.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut first)
            && let Some(named) = named_columns(line)
        {
            columns = named;
            return Ok(());
        }
        let key = field(line, columns.key).filter(|key| !key.is_empty()).ok_or_else(|| {
            let column = columns.key + 1;
            let text =
                format!("no key in column {column} (timestamp,key,size,op): `{}`", shown(line));
            ReadErrorKind::Line(number, text)
        })?;
        let operation = field(line, columns.operation).unwrap_or_default();
        if DELETIONS.iter().any(|name| operation.eq_ignore_ascii_case(name.as_bytes())) {
            builder.skip();
            return Ok(());
        }
        match decimal(key) {
            Some(number) => builder.number(number)?,
            None => builder.text(key)?,
        }
        Ok(())
    })
}

/// The columns that a header line names.
fn named_columns(line: &[u8]) -> Option<Columns> {
    let named = |names: &[&str]| {
        fields(line).position(|f| names.iter().any(|n| f.eq_ignore_ascii_case(n.as_bytes())))
    };
    let key = named(&["key", "keys", "obj_id", "object", "lba", "block"])?;
    // Without such a column, every line is an access.
    let operation = named(&["op", "operation", "type"]).unwrap_or(usize::MAX);
    Some(Columns { key, operation })
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| *b == b',').map(|field| {
        let field = field.trim_ascii();
        field.strip_prefix(b"\"").and_then(|f| f.strip_suffix(b"\"")).unwrap_or(field)
    })
}

fn field(line: &[u8], column: usize) -> Option<&[u8]> {
    fields(line).nth(column)
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

/// The start of a line, for messages.
fn shown(line: &[u8]) -> String {
    const MAX_SHOWN: usize = 40;
    let start = String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]);
    let dots = if line.len() > MAX_SHOWN { "…" } else { "" };
    format!("{}{dots}", start.escape_debug())
}

/// Calls `take` with the number of each line, from one, and its trimmed bytes.
fn each_line(
    input: &mut dyn BufRead,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), ReadErrorKind>,
) -> Result<(), ReadErrorKind> {
    let mut number = 1;
    // The part of the current line that is not in the buffer any more.
    let mut partial: Vec<u8> = Vec::new();
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if partial.len() + part.len() > MAX_LINE_BYTES {
            let text = format!(
                "longer than {MAX_LINE_BYTES} bytes; if the file is binary, give --format u32 or u64"
            );
            return Err(ReadErrorKind::Line(number, text));
        }
        if end.is_none() || !partial.is_empty() {
            partial.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        if end.is_some() {
            let line = if partial.is_empty() { part } else { &partial };
            take(number, line.trim_ascii())?;
            partial.clear();
            number += 1;
        }
        input.consume(used);
    }
    if partial.is_empty() { Ok(()) } else { take(number, partial.trim_ascii()) }
}
