//! The commands, one module each.

pub(crate) mod advise;
mod cache;
mod check;
mod clear;
mod completions;
mod create;
mod dataset;
mod demo;
mod destroy;
mod events;
mod expand;
mod explain;
mod export;
mod follower_l2;
mod import;
mod l2;
mod list;
mod log;
mod metrics;
mod mount;
pub(crate) mod mount_helper;
mod scrub;
mod sides;
mod stats;
mod status;
mod trace;
mod trim;
mod tunable;
mod umount;

use crate::args::{
    CacheCommand, Cli, Command, DatasetCommand, L2Command, LogCommand, TunableCommand,
};
use crate::daemon::health;
use crate::error::{Failure, Result};
use crate::logging::{DefaultLevel, LogArgs};
use crate::{daemon, inspect};

/// Runs a command. Returns its exit code.
///
/// # Errors
/// If the command fails. If monitors call the command, the exit code is 2, unless it has found
/// problems.
pub(crate) fn run(cli: Cli) -> Result<u8> {
    let Cli { command, log } = cli;
    let has_read_only =
        matches!(command, Command::Import(_) | Command::Mount(_) | Command::Check(_));
    let is_monitored = matches!(
        command,
        Command::List(_) | Command::Status(_) | Command::Scrub(_) | Command::Check(_)
    );
    run_logged(command, &log).map_err(|failure| {
        let code = match is_monitored && !failure.found_trouble {
            true => health::UNUSABLE,
            false => failure.code,
        };
        let failure = if has_read_only { failure } else { failure.without_read_only() };
        Failure { code, ..failure }
    })
}

fn run_logged(command: Command, log: &LogArgs) -> Result<u8> {
    if !matches!(command, Command::Serve(_)) {
        log.install(DefaultLevel::Off)?;
    }
    dispatch(command, log)
}

fn dispatch(command: Command, logging: &LogArgs) -> Result<u8> {
    let ended = match command {
        Command::Create(args) => create::run(&args),
        Command::Import(args) => import::run(&args, logging),
        Command::Export(args) => export::run(&args),
        Command::Expand(args) => expand::run(&args),
        Command::Mount(args) => mount::run(args, logging),
        Command::Umount(args) => umount::run(&args),
        Command::List(args) => return list::run(&args),
        Command::Status(args) => return status::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Destroy(args) => destroy::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Clear(args) => clear::run(&args),
        Command::Offline(args) => sides::offline(&args),
        Command::Online(args) => sides::online(&args),
        Command::Attach(args) => sides::attach(&args),
        Command::Detach(args) => sides::detach(&args),
        Command::Replace(args) => sides::replace(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Cache(CacheCommand::Flush { pool }) => cache::flush(pool.as_deref()),
        Command::L2(L2Command::Add { pool, device, size, force }) => {
            l2::add(&pool, &device, size, force)
        }
        Command::L2(L2Command::Remove { pool, device }) => l2::remove(&pool, &device),
        Command::L2(L2Command::List { pool, json }) => l2::list(pool.as_deref(), json),
        Command::Log(LogCommand::Add { pool, devices, size, force }) => {
            log::add(&pool, &devices, size, force)
        }
        Command::Log(LogCommand::Remove { pool }) => log::remove(&pool),
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
        Command::Trace(command) => trace::run(&command),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => crate::top::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Serve(args) => {
            daemon::spawn::serve(args.memory, args.threads, args.separate, logging)
        }
    };
    ended.map(|()| 0)
}
