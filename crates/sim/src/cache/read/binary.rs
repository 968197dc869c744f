//! Reads little-endian keys of 4 or 8 bytes without separators.

use std::io::BufRead;

use super::ReadErrorKind;
use crate::cache::trace::TraceBuilder;

/// Reads keys of `N` bytes to the end.
pub(super) fn read<const N: usize>(
    input: &mut dyn BufRead,
    builder: &mut TraceBuilder,
) -> Result<(), ReadErrorKind> {
    let mut rest = Vec::with_capacity(N);
    loop {
        let mut chunk = input.fill_buf()?;
        let bytes = chunk.len();
        if bytes == 0 {
            break;
        }
        // A key that started in the previous chunk.
        while !rest.is_empty() && rest.len() < N && !chunk.is_empty() {
            rest.push(chunk[0]);
            chunk = &chunk[1..];
        }
        if rest.len() == N {
            builder.number(little_endian(&rest))?;
            rest.clear();
        }
        let (keys, tail) = chunk.as_chunks::<N>();
        for key in keys {
            builder.number(little_endian(key))?;
        }
        rest.extend_from_slice(tail);
        input.consume(bytes);
    }
    if rest.is_empty() {
        return Ok(());
    }
    let left = rest.len();
    let other = if N == 8 { "u32" } else { "u64" };
    Err(ReadErrorKind::Whole(format!(
        "the last key has {left} bytes of {N}; the file is truncated or has another format (--format {other}, keys, csv)"
    )))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |key, byte| key << 8 | u64::from(*byte))
}
