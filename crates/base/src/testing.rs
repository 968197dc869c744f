//! Seeds, long runs, skips and recorded log events, for the tests of all crates.
//!
//! Only development dependencies enable the feature `testing`.
//!
//! * `FOREBAY_SEED=N` repeats a randomised test; [`seed`] prints the seed in use.
//! * `FOREBAY_FULL=1` asks for long searches; `cargo xtask test --full` sets it.
//! * `FOREBAY_REQUIRE=fuse,uring,loop` makes [`skip`] a failure for these needs.
//! * `FOREBAY_SKIPS=FILE` collects reports of skipped tests for the table of `cargo xtask test`.

#[allow(
    clippy::disallowed_types,
    reason = "the subscriber of a process outlives the executions of a model check"
)]
mod events;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

pub use events::{events, record_events};

/// Whether this is a long run.
pub fn full() -> bool {
    std::env::var_os("FOREBAY_FULL").is_some_and(|value| value == "1")
}

/// The seed of a randomised test: `FOREBAY_SEED` if it is set, otherwise `default`.
///
/// A long run without `FOREBAY_SEED` takes a seed from the system, so that each run searches other
/// cases. The seed is printed; the harness shows it if the test fails.
///
/// # Panics
///
/// If `FOREBAY_SEED` is not a number.
pub fn seed(default: u64) -> u64 {
    let seed = requested_seed().unwrap_or_else(|| match full() {
        true => crate::rng::seed_from_system(),
        false => default,
    });
    println!("FOREBAY_SEED={seed}");
    seed
}

/// The value of `FOREBAY_SEED`, if it is set. For a test that runs one case if a seed is given.
///
/// # Panics
///
/// If `FOREBAY_SEED` is not a number.
pub fn requested_seed() -> Option<u64> {
    let text = std::env::var("FOREBAY_SEED").ok()?;
    Some(text.parse().expect("FOREBAY_SEED is a number"))
}

/// The begin of a shell script that runs in a new mount namespace: detaches the mounts of this type
/// there, except the one at `keep`. A namespace has copies of the mounts of tests that run at the
/// same time, and a file system ends only with its last copy.
pub fn detach_copies(fs_type: &str, keep: Option<&Path>) -> String {
    let keep = keep.unwrap_or(Path::new("")).display();
    format!(
        "for at in $(awk '$3 == \"{fs_type}\" && $2 != \"{keep}\" {{ print $2 }}' /proc/self/mounts)\n\
         do umount -i -c -l \"$at\" 2> /dev/null || true; done\n"
    )
}

/// Reports that the calling test cannot run, because `need` is missing. The test then returns.
///
/// `need` is one word that `FOREBAY_REQUIRE` can name, such as `fuse`, `uring`, `loop` or `root`.
/// Skipped tests do not count as passed; `cargo xtask test` lists them at its end.
///
/// # Panics
///
/// If `FOREBAY_REQUIRE` names `need`.
pub fn skip(need: &str, reason: impl Display) {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word.trim() == need),
        "FOREBAY_REQUIRE has `{need}`, but this test cannot run: {reason}"
    );
    // tidy: std, because the harness names the thread after the test
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    println!("SKIPPED {test}: no {need}: {reason}");
    let Some(file) = std::env::var_os("FOREBAY_SKIPS") else { return };
    let line = format!("{test}\t{need}\t{}\n", reason.to_string().replace(['\t', '\n'], " "));
    // One write in append mode: test binaries may report at the same time.
    let report = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    let written = report.and_then(|mut report| report.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot report a skipped test in {file:?}: {error}"));
}
