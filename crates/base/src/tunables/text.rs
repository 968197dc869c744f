//! Parsing and formatting of values, and suggestions for misspelled names.

use super::ValueType;

/// The reason why a text is not a value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseFailure {
    /// The text does not have the form of a value.
    Invalid,
    /// The value is greater than the largest value of the type.
    TooLarge,
}

/// Suffixes of byte counts, by powers of 1024. Decimal suffixes (`kB`, `MB`) are refused.
const BYTE_UNITS: [(&str, &str); 7] =
    [("", "B"), ("K", "KiB"), ("M", "MiB"), ("G", "GiB"), ("T", "TiB"), ("P", "PiB"), ("E", "EiB")];

/// Parses a raw value. Ignores spaces around it.
pub(super) fn parse(ty: ValueType, text: &str) -> Result<u64, ParseFailure> {
    let text = text.trim();
    let raw = match ty {
        ValueType::U32 | ValueType::U64 => digits(text)?,
        ValueType::Percent => digits(text.strip_suffix('%').unwrap_or(text).trim_end())?,
        ValueType::Bool => match text {
            "true" | "on" | "1" => 1,
            "false" | "off" | "0" => 0,
            _ => return Err(ParseFailure::Invalid),
        },
        ValueType::Bytes => bytes(text)?,
    };
    if raw > ty.max() { Err(ParseFailure::TooLarge) } else { Ok(raw) }
}

/// Formats a raw value so that [`parse`] returns the same value.
pub(super) fn format(ty: ValueType, raw: u64) -> String {
    match ty {
        ValueType::U32 | ValueType::U64 => raw.to_string(),
        ValueType::Percent => format!("{raw}%"),
        ValueType::Bool => (raw != 0).to_string(),
        ValueType::Bytes => {
            // The largest unit that divides the value, so that nothing is rounded.
            let power = if raw == 0 { 0 } else { raw.trailing_zeros() as usize / 10 };
            match power {
                0 => raw.to_string(),
                _ => format!("{}{}", raw >> (10 * power), BYTE_UNITS[power].1),
            }
        }
    }
}

fn digits(text: &str) -> Result<u64, ParseFailure> {
    // `u64::from_str` would accept a plus sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseFailure::Invalid);
    }
    // The only possible error is overflow.
    text.parse().map_err(|_| ParseFailure::TooLarge)
}

fn bytes(text: &str) -> Result<u64, ParseFailure> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let is_unit = |(short, long): &(&str, &str)| {
        unit.eq_ignore_ascii_case(short) || unit.eq_ignore_ascii_case(long)
    };
    let power = BYTE_UNITS.iter().position(is_unit).ok_or(ParseFailure::Invalid)?;
    digits(number)?.checked_mul(1 << (10 * power)).ok_or(ParseFailure::TooLarge)
}

/// The name that is most similar to `name`, if one is similar.
pub(super) fn nearest(
    name: &str,
    names: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    // The distance takes quadratic time, and no tunable has a longer name.
    const LONGEST: usize = 100;
    if name.len() > LONGEST {
        return None;
    }
    let (distance, nearest) = names.map(|other| (distance(name, other), other)).min()?;
    let close_enough = (name.len() / 3).max(1);
    (distance <= close_enough).then_some(nearest)
}

/// The Levenshtein distance in bytes. `-` equals `_`, and case is ignored.
fn distance(a: &str, b: &str) -> usize {
    let fold = |byte: u8| {
        if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() }
    };
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        // `diagonal` is the entry of the previous row and column.
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

/// The last part of a message about an unknown name.
pub(super) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
