//! The tiers of tests: `cargo xtask check`, `test` and `test --full`, and `flaky`.
//!
//! A tier is a list of [`step::Step`]s, cheap ones first; [`tiers`] has the lists. A step may build,
//! and then run what it built. Both are timed apart: the table at the end of a run says where the
//! minutes went. One build of the whole workspace serves most steps, because cargo builds a crate
//! anew for each set of features.
//!
//! What could not run is reported as skipped, with the reason, and never counts as passed.
//! `FOREBAY_REQUIRE=fuse,uring,loop` makes a skip of these a failure.

mod build;
mod flaky;
mod resume;
mod run;
pub(crate) mod skip;
mod step;
mod table;
mod tiers;

use std::io;
use std::path::Path;

use crate::tree::Tree;

pub(crate) use flaky::flaky;

/// The quick tier: what to run before each commit.
pub(crate) fn check(root: &Path) -> io::Result<bool> {
    run::run(root, &tiers::check(), None)
}

/// Everything that a change must pass; with `full`, the long searches as well.
pub(crate) fn test(root: &Path, full: bool, resume: bool) -> io::Result<bool> {
    let tree = Tree::load(root)?;
    if !full {
        return run::run(root, &tiers::test(&tree), None);
    }
    let state = resume::State::open(root, &tree, resume)?;
    run::run(root, &tiers::full(&tree), Some(state))
}

/// The model checks alone.
pub(crate) fn model(root: &Path, full: bool) -> io::Result<bool> {
    let steps = tiers::model(&Tree::load(root)?);
    let steps: Vec<_> =
        if full { steps.into_iter().map(step::Step::long).collect() } else { steps };
    run::run(root, &steps, None)
}

/// Runs `forebay-soak`, optimised, with these arguments.
pub(crate) fn soak(root: &Path, arguments: &[&str]) -> io::Result<bool> {
    run::run(root, &[tiers::soak(arguments)], None)
}

/// Writes the generated pages of `docs/`, by the crate that links what they describe.
pub(crate) fn docs(root: &Path) -> io::Result<bool> {
    let mut command = build::cargo();
    command.args(["run", "--quiet", "-p", "forebay-docs", "--", "write"]).current_dir(root);
    Ok(command.status()?.success())
}
