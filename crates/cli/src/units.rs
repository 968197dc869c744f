//! Parses and formats bytes, counts, times and tables.

use std::net::SocketAddr;

use crate::error::{Failure, Result};

const STEPS: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// Parses a number of bytes: digits and an optional suffix `K`, `M`, `G`, `T` (or `KiB`, `KB`, …),
/// all powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no number of bytes; give one such as 4096, 64K, 512MiB or 10G");
    let lower = text.trim().to_ascii_uppercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &lower[digits.len()..];
    let scale = match unit {
        "" | "B" => 1,
        _ => {
            let letter = unit.chars().next().ok_or_else(wrong)?;
            let rest = &unit[letter.len_utf8()..];
            let step = STEPS.iter().find(|(name, _)| *name == letter).ok_or_else(wrong)?;
            match rest {
                "" | "B" | "IB" => step.1,
                _ => return Err(wrong()),
            }
        }
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number
        .checked_mul(scale)
        .ok_or_else(|| format!("`{text}` exceeds 64 bits; give a smaller number of bytes"))
}

/// Shortest and longest interval between samples, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<f64> = 100.0..=3_600_000.0;

/// Parses an interval: a number of seconds, or one with a suffix `ms`, `s` or `m`.
pub(crate) fn parse_interval(text: &str) -> Result<std::time::Duration, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale_ms = match &text[digits.len()..] {
        "ms" => 1.0,
        "s" | "" => 1e3,
        "m" | "min" => 60e3,
        _ => f64::NAN,
    };
    let ms = digits.trim().parse::<f64>().map_or(f64::NAN, |number| number * scale_ms);
    match INTERVAL_MS.contains(&ms) {
        true => Ok(std::time::Duration::from_secs_f64(ms / 1e3)),
        false => Err(format!("`{text}` is no interval from 100ms to 60m; give one such as 1s")),
    }
}

/// Parses a ratio from 0 to 1, also as a percentage.
pub(crate) fn parse_ratio(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let ratio = number.trim().parse::<f64>().map(|number| number / scale);
    ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio)).ok_or_else(|| {
        format!(
            "`{text}` is no ratio; give one from 0 to 1, or from 0% to 100%, such as 0.9 or 90%"
        )
    })
}

/// Parses the URL of an object store.
///
/// # Errors
/// If it is none.
pub(crate) fn parse_store(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    match text.split_once("://") {
        Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => Ok(text.to_owned()),
        _ => Err("give the URL of an object store, such as s3://bucket/prefix".to_owned()),
    }
}

/// Parses a sector size. The pool checks it.
pub(crate) fn parse_sector(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).map_err(|_| format!("`{text}` is no sector size; give 512 to 4096 bytes"))
}

/// Parses an address with a port.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is no address with a port; give one such as 127.0.0.1:9469 or [::1]:9469")
    })
}

/// Parses a time in seconds: digits and an optional suffix `s`, `m` or `h`.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time; give seconds, or one such as 90s, 10m or 1h");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(scale).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

/// Parses a time between scrubs in seconds: digits with a suffix `h`, `d` or `w`; `never` is 0.
pub(crate) fn parse_every(text: &str) -> Result<u64, String> {
    if text == "never" {
        return Ok(0);
    }
    let wrong =
        || format!("`{text}` is no time between scrubs; give one such as 12h, 30d or 2w, or never");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(scale).filter(|seconds| *seconds <= EVERY_MAX_S);
    seconds.filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

/// A hundred years.
const EVERY_MAX_S: u64 = 100 * 365 * 86_400;

/// Formats bytes with about three digits.
pub(crate) fn bytes(count: u64) -> String {
    // A value that rounds to 1024 of one unit is shown as 1 of the next.
    match STEPS.iter().find(|(_, scale)| count as f64 >= *scale as f64 * 0.9995) {
        None => format!("{count} B"),
        Some((letter, scale)) => {
            let value = count as f64 / *scale as f64;
            let digits = if value < 10.0 {
                2
            } else if value < 100.0 {
                1
            } else {
                0
            };
            format!("{value:.digits$} {letter}iB")
        }
    }
}

/// Formats a limit in whole MiB, rounded up.
pub(crate) fn whole(count: u64) -> String {
    format!("{} MiB", count.div_ceil(1 << 20))
}

/// Formats a count with about three digits and a suffix k, M, G.
pub(crate) fn count(number: f64) -> String {
    let steps = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match steps.iter().find(|(_, scale)| number >= *scale) {
        None if number < 10.0 && number.fract() > 0.05 => format!("{number:.1}"),
        None => format!("{number:.0}"),
        Some((letter, scale)) => format!("{:.1}{letter}", number / scale),
    }
}

/// Formats nanoseconds with about three digits.
pub(crate) fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Formats a duration in seconds, in its largest two units.
pub(crate) fn seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Formats a ratio as a percentage; a dash if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1}%", 100.0 * part as f64 / whole as f64),
    }
}

/// Parses `NAME=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!(
            "`{text}` is not NAME=VALUE; give a tunable and its value, as in txg_timeout_ms=1000"
        )),
    }
}

/// Formats a table. A column is right-aligned if its heading begins with `>`.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let right: Vec<bool> = headings.iter().map(|heading| heading.starts_with('>')).collect();
    let headings: Vec<String> =
        headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
    let wide = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).chain(headings.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(wide).collect();
    let mut out = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = widths.get(at).copied().unwrap_or(0);
            match right.get(at) {
                Some(true) => line.push_str(&format!("{cell:>width$}  ")),
                _ => line.push_str(&format!("{cell:<width$}  ")),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Turns a parse error into a usage failure.
pub(crate) fn usage<T>(result: Result<T, String>) -> Result<T> {
    result.map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_read_in_both_their_forms() {
        let read = ["0.9", "90%", "0", "100 %", "1"].map(|text| parse_ratio(text).unwrap());
        assert_eq!(read, [0.9, 0.9, 0.0, 1.0, 1.0]);
        for wrong in ["90", "-1%", "101%", "nan", "%", "", "x"] {
            assert!(parse_ratio(wrong).unwrap_err().contains("is no ratio"), "{wrong}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        let read = ["90", "90s", "10m", "2h"].map(|text| parse_time(text).unwrap());
        assert_eq!(read, [90, 90, 600, 7200]);
        for wrong in ["", "0", "m", "1d", "-1", "1 m", "99999999999999999999h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_between_scrubs_have_a_unit_or_are_never() {
        let read = ["1h", "30d", "2w", "never"].map(|text| parse_every(text).unwrap());
        assert_eq!(read, [3600, 30 * 86_400, 14 * 86_400, 0]);
        for wrong in ["", "0d", "30", "d", "1m", "-1d", "1 d", "Never", "36501d"] {
            assert!(parse_every(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_are_read_in_all_their_forms() {
        for (text, value) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("1MiB", 1 << 20),
            ("3 GB", 3 << 30),
            ("2T", 2 << 40),
            ("9B", 9),
        ] {
            assert_eq!(parse_bytes(text), Ok(value), "{text}");
        }
        for text in
            ["", "K", "1X", "1KiBB", "-1", "1.5G", "99999999999999999999", "99999999T", "ß", "1é"]
        {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn formatted_numbers_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes((1 << 30) - 1), "1.00 GiB");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(250 << 20), "250 MiB");
        assert_eq!(count(12.0), "12");
        assert_eq!(count(0.5), "0.5");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(nanoseconds(1_500_000), "1.5 ms");
        assert_eq!(percent(1, 4), "25.0%");
        assert_eq!(percent(0, 0), "-");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "22".to_owned()]];
        assert_eq!(table(&["n", ">size"], &rows), "n    size\na       1\nbcd    22\n");
    }
}
