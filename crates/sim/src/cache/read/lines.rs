//! Formats of lines: decimal keys, and comma-separated values.
//!
//! Values are `timestamp,key,size,operation`, the last two of which may be missing. A first line that
//! names its columns is taken at its word: then they may stand in any order, with others between them. A key is a
//! number or any text. A line is one access, whatever its size and its operation, but for deletions (`delete`, `remove`,
//! …), which are counted and left out.

use std::io::BufRead;

use super::What;
use crate::cache::trace::TraceBuilder;

/// A longer line is an error, so that a file without any cannot take all memory.
const LONGEST_LINE: usize = 4096;
const KEY_COLUMN: usize = 1;
const OPERATION_COLUMN: usize = 3;
const NO_ACCESS: [&str; 6] = ["delete", "del", "remove", "discard", "trim", "unlink"];

/// Reads a decimal key a line. Empty lines are passed over.
pub(super) fn read_keys(input: &mut dyn BufRead, builder: &mut TraceBuilder) -> Result<(), What> {
    each_line(input, |number, line| {
        if line.is_empty() {
            return Ok(());
        }
        let key = decimal(line).ok_or_else(|| {
            let found = shown(line);
            let text = format!("`{found}` is no decimal key below 2^64; if these are not lines of keys, say --format csv, u32 or u64");
            What::Line(number, text)
        })?;
        Ok(builder.number(key)?)
    })
}

/// Where the columns are.
struct Columns {
    key: usize,
    operation: usize,
}

/// Reads comma-separated values.
pub(super) fn read_csv(input: &mut dyn BufRead, builder: &mut TraceBuilder) -> Result<(), What> {
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
            What::Line(number, text)
        })?;
        let operation = field(line, columns.operation).unwrap_or_default();
        if NO_ACCESS.iter().any(|name| operation.eq_ignore_ascii_case(name.as_bytes())) {
            builder.leave_out();
            return Ok(());
        }
        match decimal(key) {
            Some(number) => builder.number(number)?,
            None => builder.text(key)?,
        }
        Ok(())
    })
}

/// The columns that a line names, if it is a head line.
fn named_columns(line: &[u8]) -> Option<Columns> {
    let named = |names: &[&str]| {
        fields(line).position(|f| names.iter().any(|n| f.eq_ignore_ascii_case(n.as_bytes())))
    };
    let key = named(&["key", "keys", "obj_id", "object", "lba", "block"])?;
    // Without such a column every line is an access.
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

/// The start of a line, for a message.
fn shown(line: &[u8]) -> String {
    const MOST: usize = 40;
    let start = String::from_utf8_lossy(&line[..line.len().min(MOST)]);
    let dots = if line.len() > MOST { "…" } else { "" };
    format!("{}{dots}", start.escape_debug())
}

/// Calls `take` with each line's number, from one, and its bytes without white space around them.
fn each_line(
    input: &mut dyn BufRead,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), What>,
) -> Result<(), What> {
    let mut number = 1;
    // What has come of a line whose end is not in the buffer.
    let mut begun: Vec<u8> = Vec::new();
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if begun.len() + part.len() > LONGEST_LINE {
            let text = format!(
                "longer than {LONGEST_LINE} bytes; if the file is not made of lines, say --format u32 or u64"
            );
            return Err(What::Line(number, text));
        }
        if end.is_none() || !begun.is_empty() {
            begun.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        if end.is_some() {
            let line = if begun.is_empty() { part } else { &begun };
            take(number, line.trim_ascii())?;
            begun.clear();
            number += 1;
        }
        input.consume(used);
    }
    if begun.is_empty() { Ok(()) } else { take(number, begun.trim_ascii()) }
}
