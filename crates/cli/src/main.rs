//! `forebay`: pools, mounts and figures on the command line.
//!
//! A command either works on a pool that it opens itself, or asks the process that has it over that process's control
//! socket. Errors are one line on standard error, `forebay: …`, with the way out; the exit code is then 1, or 2 if the
//! command line makes no sense.
//!
//! # Where things are
//!
//! `args` has the command line, `commands` a module for each command, `pool_locks` says who may have a pool, `device_content` what else a device holds, `control` the socket between them and the
//! processes that have pools, `daemon` such a process, `pools` the way from what a user calls a pool to the pool.
//!
//! # What it does not do
//!
//! It knows no on-disk format, and nothing of FUSE but how to begin and end a mount.

// A program: it has threads, watches the time and asks the system itself. Nothing here runs under a model checker.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod args;
mod commands;
mod control;
mod daemon;
mod device_content;
mod error;
mod flags;
mod inspect;
mod memory;
mod output;
mod pool_locks;
mod pools;
mod units;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use error::USAGE;

fn main() -> ExitCode {
    forebay_base::memory::return_large_allocations();
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let arguments = match commands::mount_helper::arguments(&arguments) {
        Some(Ok(translated)) => translated,
        Some(Err(failure)) => return told(&failure),
        None => arguments,
    };
    let cli = match args::Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => told(&failure),
    }
}

fn told(failure: &error::Failure) -> ExitCode {
    eprintln!("forebay: {failure}");
    ExitCode::from(failure.code)
}

/// What clap says of a wrong command line, in one line; help as it is.
fn usage(error: &clap::Error) -> ExitCode {
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
            eprintln!("forebay: {}; see `forebay --help`", line.replace(":; ", ": "));
            ExitCode::from(USAGE)
        }
    }
}
