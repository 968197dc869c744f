//! Reports of skipped tests: the counterpart of `forebay_base::testing::skip`.
//!
//! `FOREBAY_SKIPS` names a file. Each report is a line of test, need and reason, separated by tabs.
//! This crate does not depend on the product, so both crates implement the format.

use std::fs::OpenOptions;
use std::io::Write;

/// A test that could not run: its name, its need, and the reason that the need is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) need: String,
    pub(crate) reason: String,
}

/// Whether `FOREBAY_REQUIRE` contains `need`.
pub(crate) fn is_required(need: &str) -> bool {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    required.split(',').any(|word| word.trim() == need)
}

/// Reports that `test` was skipped.
///
/// # Errors
///
/// If `need` is required, or the report cannot be written.
pub(crate) fn report(test: &str, need: &str, reason: &str) -> Result<(), String> {
    if is_required(need) {
        return Err(format!("FOREBAY_REQUIRE has `{need}`, but {test} cannot run: {reason}"));
    }
    println!("SKIPPED {test}: no {need}: {reason}");
    let Some(file) = std::env::var_os("FOREBAY_SKIPS") else { return Ok(()) };
    let line = format!("{test}\t{need}\t{}\n", reason.replace(['\t', '\n'], " "));
    let report = OpenOptions::new().append(true).create(true).open(&file);
    let written = report.and_then(|mut report| report.write_all(line.as_bytes()));
    written.map_err(|error| format!("cannot report a skipped test in {file:?}: {error}"))
}

/// The reports in a file's text.
pub(crate) fn read(text: &str) -> Vec<Skip> {
    let skip = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        Some(Skip { test: parts.next()?, need: parts.next()?, reason: parts.next()? })
    };
    text.lines().filter_map(skip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let skips = read("files::a_mount\tfuse\t/dev/fuse: no such file\nnothing\n");
        assert_eq!(skips.len(), 1);
        let Skip { test, need, reason } = &skips[0];
        assert_eq!((test.as_str(), need.as_str()), ("files::a_mount", "fuse"));
        assert_eq!(reason, "/dev/fuse: no such file");
    }
}
