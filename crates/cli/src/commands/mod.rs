//! The commands, one module each.

mod cache;
mod check;
mod clear;
mod completions;
mod create;
mod dataset;
mod demo;
mod destroy;
mod expand;
mod export;
mod import;
mod l2;
mod list;
mod mount;
pub(crate) mod mount_helper;
mod scrub;
mod stats;
mod status;
mod tunable;
mod umount;

use crate::args::{CacheCommand, Cli, Command, DatasetCommand, L2Command, TunableCommand};
use crate::error::Result;
use crate::logging::{DefaultLevel, LogArgs};
use crate::{daemon, inspect};

/// Runs a command.
///
/// # Errors
/// If the command fails.
pub(crate) fn run(cli: Cli) -> Result<()> {
    let Cli { command, log } = cli;
    if !matches!(command, Command::Serve(_)) {
        log.install(DefaultLevel::Off)?;
    }
    let has_read_only =
        matches!(command, Command::Import(_) | Command::Mount(_) | Command::Check(_));
    dispatch(command, &log).map_err(|failure| match has_read_only {
        true => failure,
        false => failure.without_read_only(),
    })
}

fn dispatch(command: Command, log: &LogArgs) -> Result<()> {
    match command {
        Command::Create(args) => create::run(&args),
        Command::Import(args) => import::run(&args, log),
        Command::Export(args) => export::run(&args),
        Command::Clear(args) => clear::run(&args),
        Command::Expand(args) => expand::run(&args),
        Command::Mount(args) => mount::run(args, log),
        Command::Umount(args) => umount::run(&args),
        Command::List(args) => list::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Destroy(args) => destroy::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Cache(CacheCommand::Flush { pool }) => cache::flush(pool.as_deref()),
        Command::L2(L2Command::Add { pool, device, size, force }) => {
            l2::add(&pool, &device, size, force)
        }
        Command::L2(L2Command::Remove { pool, device }) => l2::remove(&pool, &device),
        Command::L2(L2Command::List { pool, json }) => l2::list(pool.as_deref(), json),
        Command::Dataset(DatasetCommand::Create { pool, name, settings }) => {
            dataset::create(&pool, &name, &settings)
        }
        Command::Dataset(DatasetCommand::Set { pool, name, settings }) => {
            dataset::set(&pool, &name, &settings)
        }
        Command::Dataset(DatasetCommand::List { pool }) => dataset::list(&pool),
        Command::Tunable(TunableCommand::Get { pool, name, json }) => {
            tunable::get(&pool, name.as_deref(), json)
        }
        Command::Tunable(TunableCommand::Set { pool, name, value }) => {
            tunable::set(&pool, &name, &value)
        }
        Command::Stats(args) => stats::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Serve(args) => daemon::spawn::serve(args.memory, args.threads, args.separate, log),
    }
}
