//! What tests of every crate share: seeds, the length of a search, and skipped tests.
//!
//! Behind the feature `testing`, which only development dependencies turn on.
//!
//! * `FOREBAY_SEED=N` replays a randomised test; [`seed`] prints the seed that is in use.
//! * `FOREBAY_FULL=1` asks for long searches, as `cargo xtask test --full` does.
//! * `FOREBAY_REQUIRE=fuse,uring,loop` makes [`skip`] a failure for what it names.
//! * `FOREBAY_SKIPS=FILE` collects skipped tests, a line each, for the table of `cargo xtask test`.

use std::fmt::Display;
use std::io::Write;

/// Whether this is a long run.
pub fn full() -> bool {
    std::env::var_os("FOREBAY_FULL").is_some_and(|value| value == "1")
}

/// The seed of a randomised test: `FOREBAY_SEED` if that is set, otherwise `default`.
///
/// A long run without `FOREBAY_SEED` takes a seed from the system, so that each one looks
/// elsewhere. The seed is printed either way; the harness shows it when the test fails.
///
/// # Panics
///
/// If `FOREBAY_SEED` is not a number.
pub fn seed(default: u64) -> u64 {
    let seed = match std::env::var("FOREBAY_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_SEED is not a number"),
        Err(_) if full() => crate::rng::seed_from_system(),
        Err(_) => default,
    };
    println!("FOREBAY_SEED={seed}");
    seed
}

/// Reports that the calling test cannot run here, because `need` is missing; the test then returns.
///
/// `need` is one word that `FOREBAY_REQUIRE` can name, such as `fuse`, `uring`, `loop` or `root`.
/// Tests that are skipped do not count as passed: `cargo xtask test` lists them at its end.
///
/// # Panics
///
/// If `FOREBAY_REQUIRE` names `need`: the machine was said to have it.
pub fn skip(need: &str, reason: impl Display) {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word.trim() == need),
        "FOREBAY_REQUIRE has `{need}`, but this test cannot run: {reason}"
    );
    // tidy: std, because the harness names the system's thread after the test
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
