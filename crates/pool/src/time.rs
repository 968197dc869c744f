//! Times for people.

const DAY_MS: u64 = 86_400_000;

/// Formats a time in milliseconds since 1970 as date and time in UTC.
pub fn utc(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / DAY_MS, unix_ms % DAY_MS);
    let (year, month, day) = date(days);
    let (hour, minute) = (ms / 3_600_000, ms / 60_000 % 60);
    let (second, ms) = (ms / 1000 % 60, ms % 1000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}")
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant, `civil_from_days`). Years
/// begin in March there, so that leap days end them.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096;
    let year = (day_of_era + day_of_era / 36_524 - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_399, "2000-02-28 23:59:59.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (1_772_323_200, "2026-03-01 00:00:00.000"),
            (4_107_542_399, "2100-02-28 23:59:59.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(utc(unix_s * 1000), text);
        }
        assert_eq!(utc(1_999), "1970-01-01 00:00:01.999");
    }
}
