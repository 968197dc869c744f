//! Reports of what could not run: the counterpart of `forebay_base::testing::skip`.
//!
//! This crate links none of the product, so the format stands twice: a line of test, need and reason
//! with tabs between them, appended to the file that `FOREBAY_SKIPS` names.

use std::fs::OpenOptions;
use std::io::Write;

/// A test that could not run: its name, what it needs, and why that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) need: String,
    pub(crate) reason: String,
}

/// Whether `FOREBAY_REQUIRE` says that this machine has `need`.
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
