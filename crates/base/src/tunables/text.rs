//! Values of tunables as text, and names that are nearly right.

use super::Type;

/// Why a text is no value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseFailure {
    /// It cannot be read at all.
    NotAValue,
    /// It can be read, but is past what the type holds.
    TooLarge,
}

/// Suffixes of byte counts, by powers of 1024. Decimal ones (`kB`, `MB`) are refused rather
/// than taken for what they do not mean.
const BYTE_UNITS: [(&str, &str); 7] =
    [("", "B"), ("K", "KiB"), ("M", "MiB"), ("G", "GiB"), ("T", "TiB"), ("P", "PiB"), ("E", "EiB")];

/// Reads a value as it is kept. Spaces around it are ignored.
pub(super) fn parse(ty: Type, text: &str) -> Result<u64, ParseFailure> {
    let text = text.trim();
    let raw = match ty {
        Type::U32 | Type::U64 => digits(text)?,
        Type::Percent => digits(text.strip_suffix('%').unwrap_or(text).trim_end())?,
        Type::Bool => match text {
            "true" | "on" | "1" => 1,
            "false" | "off" | "0" => 0,
            _ => return Err(ParseFailure::NotAValue),
        },
        Type::Bytes => bytes(text)?,
    };
    if raw > ty.max() { Err(ParseFailure::TooLarge) } else { Ok(raw) }
}

/// Writes a kept value so that [`parse`] reads the same one.
pub(super) fn format(ty: Type, raw: u64) -> String {
    match ty {
        Type::U32 | Type::U64 => raw.to_string(),
        Type::Percent => format!("{raw}%"),
        Type::Bool => (raw != 0).to_string(),
        Type::Bytes => {
            // The largest unit that divides it: nothing is rounded.
            let power = if raw == 0 { 0 } else { raw.trailing_zeros() as usize / 10 };
            match power {
                0 => raw.to_string(),
                _ => format!("{}{}", raw >> (10 * power), BYTE_UNITS[power].1),
            }
        }
    }
}

fn digits(text: &str) -> Result<u64, ParseFailure> {
    // `u64::from_str` would take a plus sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseFailure::NotAValue);
    }
    // Only overflow is left to go wrong.
    text.parse().map_err(|_| ParseFailure::TooLarge)
}

fn bytes(text: &str) -> Result<u64, ParseFailure> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let is_unit = |(short, long): &(&str, &str)| {
        unit.eq_ignore_ascii_case(short) || unit.eq_ignore_ascii_case(long)
    };
    let power = BYTE_UNITS.iter().position(is_unit).ok_or(ParseFailure::NotAValue)?;
    digits(number)?.checked_mul(1 << (10 * power)).ok_or(ParseFailure::TooLarge)
}

/// The name most like `name`, if one is like it at all.
pub(super) fn nearest(
    name: &str,
    names: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    // The distance is quadratic; no real name is longer.
    const LONGEST: usize = 100;
    if name.len() > LONGEST {
        return None;
    }
    let (distance, nearest) = names.map(|other| (distance(name, other), other)).min()?;
    let close_enough = (name.len() / 3).max(1);
    (distance <= close_enough).then_some(nearest)
}

/// Levenshtein's edit distance, in bytes, `-` and `_` and upper and lower case being the same.
fn distance(a: &str, b: &str) -> usize {
    let fold = |byte: u8| {
        if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() }
    };
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        // `diagonal` is the entry of the row above, one to the left.
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, byte_b) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(fold(byte_a) != fold(byte_b));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The end of a message about an unknown name.
pub(super) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
