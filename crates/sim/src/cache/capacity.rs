//! The capacity of a simulated cache: a number of entries, or a share of the trace's keys.

use std::fmt;
use std::str::FromStr;

use super::trace::Trace;

/// Least number of entries of a share. Below this, policies differ by chance.
pub const MIN_SHARE_ENTRIES: usize = 32;

/// A requested capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Entries.
    Count(usize),
    /// Percent of the trace's keys, but no fewer than [`MIN_SHARE_ENTRIES`].
    Percent(f64),
}

impl Capacity {
    /// The capacity for a trace, in entries, at least one.
    pub fn entries(self, trace: &Trace) -> usize {
        match self {
            Self::Count(count) => count.max(1),
            Self::Percent(percent) => {
                // A binary fraction must not round a whole number down.
                let share = trace.unique() as f64 * percent / 100.0 + 1e-6;
                (share as usize).max(MIN_SHARE_ENTRIES)
            }
        }
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WAY_OUT: &str =
            "give a number of entries (1000) or a share of the trace's keys (10%)";
        if let Some(number) = text.strip_suffix('%') {
            return match number.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self::Percent(percent)),
                Ok(_) => Err("a share must be above 0% and at most 100%".to_owned()),
                Err(_) => Err(format!("not a share; {WAY_OUT}")),
            };
        }
        match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Self::Count(count as usize)),
            _ => Err(format!("not a number of entries from 1 to {}; {WAY_OUT}", u32::MAX)),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::TraceBuilder;
    use super::Capacity;

    #[test]
    fn shares_and_counts() {
        let mut builder = TraceBuilder::new();
        (0..20_484).for_each(|key| builder.number(key).unwrap());
        let trace = builder.build("t");
        let entries = |text: &str| text.parse::<Capacity>().unwrap().entries(&trace);
        assert_eq!(["0.1%", "1%", "10%", "50%", "7"].map(entries), [32, 204, 2048, 10_242, 7]);
        assert_eq!(entries("100%"), 20_484);
        for wrong in ["0", "-1", "1.5", "0%", "101%", "x%", "", "%", "nan%", "99999999999"] {
            assert!(wrong.parse::<Capacity>().is_err(), "{wrong}");
        }
    }
}
