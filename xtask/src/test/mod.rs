//! The tiers of tests: `cargo xtask check`, `test` and `test --full`, and `flaky`.
//!
//! A tier is a list of [`step::Step`]s, cheap steps first; [`tiers`] has the lists. A step builds,
//! runs, or does both. The table at the end of a run shows the times of building and running. Most
//! steps share one build of the workspace, because cargo rebuilds a crate for each set of features.
//!
//! A step or test that cannot run is reported as skipped, with the reason, and does not count as
//! passed. With `FOREBAY_REQUIRE=fuse,uring,loop` a skip for one of these needs is a failure.

mod build;
mod flaky;
mod report;
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

/// The quick tier, to run before each commit.
pub(crate) fn check(root: &Path) -> io::Result<bool> {
    run::run(root, &tiers::check(), None)
}

/// Everything that a change must pass; with `full`, also the long searches.
pub(crate) fn test(root: &Path, full: bool, resume: bool) -> io::Result<bool> {
    let tree = Tree::load(root)?;
    if !full {
        return run::run(root, &tiers::test(&tree), None);
    }
    let state = resume::ResumeState::open(root, &tree, resume)?;
    run::run(root, &tiers::full(&tree), Some(state))
}

/// The model checks only.
pub(crate) fn model(root: &Path, full: bool) -> io::Result<bool> {
    let steps = tiers::model(&Tree::load(root)?);
    let steps: Vec<_> =
        if full { steps.into_iter().map(step::Step::long).collect() } else { steps };
    run::run(root, &steps, None)
}

/// Runs `forebay-soak` with these arguments, in a release build.
pub(crate) fn soak(root: &Path, arguments: &[&str]) -> io::Result<bool> {
    run::run(root, &[tiers::soak(arguments)], None)
}

/// Writes the generated pages of `docs/`. The crate `forebay-docs` does it, because it depends on
/// the crates that the pages describe.
pub(crate) fn docs(root: &Path) -> io::Result<bool> {
    let mut command = build::cargo();
    command.args(["run", "--quiet", "-p", "forebay-docs", "--", "write"]).current_dir(root);
    Ok(command.status()?.success())
}
