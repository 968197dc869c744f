//! The command `forebay`: creates, mounts, checks and measures storage pools.
//!
//! A command opens a pool itself, or sends a request over the control socket of the process that
//! has the pool imported. An error is one line on standard error, `forebay: …`, that says how to go
//! on. The exit code is 1 after a failure and 2 after a wrong command line. The commands that
//! monitors call (`list`, `status`, `scrub`, `check`) exit with 0 for a healthy pool, 1 for a
//! degraded or damaged one, and 2 for one that cannot be used or does not answer.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `args` | the command line |
//! | `commands` | one module per command |
//! | `daemon` | a process with imported pools and mounts, in the background or the foreground |
//! | `control` | the protocol between commands and daemons |
//! | `logging` | the log options, and the subscriber of events |
//! | `top` | the screen of `forebay top` |
//! | `discover` | finding pools that are not imported, by name |
//! | `pools` | finding, opening and importing pools |
//! | `pool_locks` | locks that keep a pool from being opened twice |
//! | `device_content` | protection of devices with foreign content |
//!
//! Not here: on-disk formats (`forebay-pool`) and the FUSE protocol (`forebay-fuse`).

// A program: it starts threads, reads the clock and calls the system directly. No model check runs
// this crate.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod args;
mod commands;
mod control;
mod daemon;
mod device_content;
mod discover;
mod error;
mod flags;
mod inspect;
mod logging;
mod memory;
mod object_stores;
mod output;
mod pool_locks;
mod pools;
mod top;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use error::USAGE;

fn main() -> ExitCode {
    forebay_base::memory::return_large_allocations();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let arguments = match commands::mount_helper::arguments(&arguments) {
        Some(Ok(translated)) => translated,
        Some(Err(failure)) => return fail(&failure),
        None => arguments,
    };
    let cli = match args::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &arguments),
    };
    match commands::run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &error::Failure) -> ExitCode {
    eprintln!("forebay: {failure}");
    ExitCode::from(failure.code)
}

/// The command of a command line, whose help says more.
fn command_of(arguments: &[OsString]) -> String {
    let root = args::Cli::command();
    let (mut command, mut name) = (&root, root.get_name().to_owned());
    let words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    for word in words.filter(|word| !word.starts_with('-')) {
        let Some(below) = command.find_subcommand(&*word) else { break };
        command = below;
        name.push_str(&format!(" {}", below.get_name()));
    }
    name
}

/// Prints help unchanged, and an error of clap as one line.
fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(&error.render().to_string());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", error.render());
            ExitCode::from(USAGE)
        }
        _ => {
            let text = error.render().to_string();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let kept = lines.filter(|line| {
                !line.starts_with("Usage:") && !line.starts_with("For more information")
            });
            let line = kept.collect::<Vec<_>>().join("; ").replacen("error: ", "", 1);
            let command = command_of(arguments);
            eprintln!("forebay: {}; see `{command} --help`", line.replace(":; ", ": "));
            ExitCode::from(USAGE)
        }
    }
}
