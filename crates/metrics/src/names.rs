//! Names of metrics, as the OpenMetrics specification and promtool want them.
//!
//! A name is `forebay_`, the part of the program, what is counted, and the base unit. A counter
//! ends in `_total`, which is not part of the name of its family.

use prometheus_client::registry::Unit;

const TOTAL: &str = "_total";

/// The name of a counter in the table of `part`. It repeats no part that it begins with.
pub(crate) fn of_counter(part: &str, counter: &str) -> String {
    let repeats = counter.strip_prefix(part).is_some_and(|rest| rest.starts_with('_'));
    match repeats {
        true => format!("forebay_{counter}{TOTAL}"),
        false => format!("forebay_{part}_{counter}{TOTAL}"),
    }
}

/// Whether it may name a metric or a label: words in snake case.
pub(crate) fn is_snake_case(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(allowed)
        && !name.ends_with('_')
        && !name.contains("__")
}

/// The name of the family of a counter.
pub(crate) fn family_of(counter: &str) -> Option<&str> {
    counter.strip_suffix(TOTAL)
}

/// Splits the base unit off the name of a family.
pub(crate) fn split_unit(family: &str) -> (&str, Option<Unit>) {
    for unit in [Unit::Bytes, Unit::Seconds] {
        let name = family.strip_suffix(unit.as_str()).and_then(|name| name.strip_suffix('_'));
        if let Some(name) = name {
            return (name, Some(unit));
        }
    }
    (family, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_its_part_once_and_a_suffix() {
        assert_eq!(of_counter("cache", "hits_mru"), "forebay_cache_hits_mru_total");
        assert_eq!(of_counter("scrub", "scrub_slices"), "forebay_scrub_slices_total");
        assert_eq!(of_counter("trim", "trimmed"), "forebay_trim_trimmed_total");
    }

    #[test]
    fn units_are_the_last_word_of_a_family() {
        let split = |name| {
            let (name, unit) = split_unit(name);
            (name, unit.map(|unit| unit.as_str().to_owned()))
        };
        assert_eq!(split("forebay_l2_load_bytes"), ("forebay_l2_load", Some("bytes".to_owned())));
        assert_eq!(split("a_seconds"), ("a", Some("seconds".to_owned())));
        assert_eq!(split("forebay_megabytes"), ("forebay_megabytes", None));
        assert_eq!(split("forebay_bytes_read"), ("forebay_bytes_read", None));
        assert_eq!(family_of("forebay_x_bytes_total"), Some("forebay_x_bytes"));
        assert_eq!(family_of("forebay_x_bytes"), None);
    }

    #[test]
    fn names_are_in_snake_case() {
        for good in ["a", "forebay_l2_hits_total", "le"] {
            assert!(is_snake_case(good), "{good}");
        }
        for bad in ["", "1a", "_a", "a_", "a__b", "a-b", "aB", "a:b", "ä", "a b", "a\n"] {
            assert!(!is_snake_case(bad), "{bad}");
        }
    }
}
