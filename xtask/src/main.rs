//! Tasks of the project: `cargo xtask check`, `test`, `tidy`, `docs`, `conformance` and others.
//!
//! Everything that a change must pass is a step of [`mod@test`]; continuous integration runs only
//! that. Steps run as child processes, so the command of a step can be repeated by hand. This crate
//! depends on no other crate of the workspace, so that `tidy` starts at once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a tool: it reads the clock and runs processes; the model checker does not run it"
)]

mod conformance;
mod python;
mod source;
mod store_proxy;
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
                  also the long searches; --resume skips the steps that passed
  flaky N         all tests, N times, with a busy loop on each core
  tidy            the house rules: layers, file sizes, SAFETY comments, links, ...
  model [--full]  the model checks only
  docs            write the generated files: of docs/, and forebay.h
  python          build and test the Python package, in a venv of its own
  conformance [NAME..] [--full] [--minutes N]
                  external test suites and tools on a real mount: pjdfstest, fsx, fio, fs_mark,
                  mirror, tar, git, cargo, kill, sqlite, postgresql, power_cut, prometheus;
                  object-store and object-store-follow by name or with --full; mirror takes 20
                  seconds of fio, ten minutes with --full, or the given minutes
  store-server    an S3 server with an empty bucket behind a proxy that misbehaves as told; prints
                  the variables of its clients; `help` on standard input lists what it takes
  soak [--minutes N] [--seed N] [--folder EMPTY_FOLDER] [--l2] [--mirror]
                  pools under load, faults and kills, ten minutes by default
  help            print this text

environment:
  FOREBAY_SEED=N              seed of randomised tests, to repeat a run
  FOREBAY_REQUIRE=fuse,...    fail a test that lacks one of these, instead of skipping it:
                              fuse, uring, loop, root, or the name of a tool
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
            Err(_) => Err(io::Error::other(format!("flaky: `{rounds}` is not a number of rounds"))),
        },
        ["model"] => test::model(&root, false),
        ["model", "--full"] => test::model(&root, true),
        ["tidy"] => tidy::run(&root),
        ["soak", arguments @ ..] => test::soak(&root, arguments),
        ["conformance", arguments @ ..] => conformance::run(&root, arguments),
        ["store-server"] => conformance::store_server(&root),
        ["python"] => python::run(&root),
        ["docs"] => test::docs(&root),
        other => {
            eprintln!("xtask: unknown command `{}`\n", other.join(" "));
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

/// The folder of the workspace. Cargo sets the variable when it runs this program; the path of the
/// build is used otherwise.
fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_folder.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
