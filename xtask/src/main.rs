//! The project's own chores: `cargo xtask check`, `test`, `tidy`, `docs`, `conformance` and others.
//!
//! Everything that a change must pass is a step of [`mod@test`]; continuous integration calls that
//! and nothing else. Steps run as child processes, so a step's command can be repeated by hand. This
//! crate links none of the others, so that `tidy` starts at once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a tool: it reads the clock and runs processes, and no model checker runs it"
)]

mod conformance;
mod source;
mod test;
mod tidy;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask <command>

  check           formatting, tidy, clippy, unit and property tests; before each commit
  test            everything that a change must pass: what CI runs
  test --full [--resume]
                  the long searches as well; --resume goes on after the steps that passed
  flaky N         all tests, N times, beside a busy loop on each core
  tidy            the house rules: layers, sizes, SAFETY comments, links, ...
  model [--full]  the model checks alone
  docs            writes the generated files of docs/
  conformance [NAME..] [--full]
                  other people's tools on a real mount: pjdfstest, fsx, fio, fs_mark, tar, git, cargo, kill
  soak [--minutes N] [--seed N] [--folder EMPTY_FOLDER]
                  pools under work, faults and kills, ten minutes by default
  help            prints this

environment:
  FOREBAY_SEED=N              the seed of randomised tests, to repeat one
  FOREBAY_REQUIRE=fuse,...    a test that lacks one of these fails instead of being skipped:
                              fuse, uring, loop, root, or a tool's name
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let outcome = match arguments.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(true)
        }
        ["check"] => test::check(&root),
        ["test"] => test::test(&root, false, false),
        ["test", "--full"] => test::test(&root, true, false),
        ["test", "--full", "--resume"] => test::test(&root, true, true),
        ["flaky", rounds] => match rounds.parse() {
            Ok(rounds) => test::flaky(&root, rounds),
            Err(_) => Err(io::Error::other(format!("`{rounds}` is no number of rounds"))),
        },
        ["model"] => test::model(&root, false),
        ["model", "--full"] => test::model(&root, true),
        ["tidy"] => tidy::run(&root),
        ["soak", arguments @ ..] => test::soak(&root, arguments),
        ["conformance", arguments @ ..] => conformance::run(&root, arguments),
        ["docs"] => test::docs(&root),
        other => {
            eprintln!("xtask: do not know `{}`\n", other.join(" "));
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder: the parent of this crate's, where cargo says that is today.
fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_folder.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
