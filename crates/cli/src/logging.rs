//! Logging: the global options `--log`, `--log-file` and `--log-format`, and the subscriber that
//! they install.
//!
//! The libraries emit `tracing` events for errors and state changes. Without `--log` a command
//! installs no subscriber; a daemon logs at level `info` to its log file. Events go to `--log-file`
//! if given, else to the journal if standard error is connected to it, else to standard error.
//!
//! # Invariants
//!
//! Each place in the source logs a bounded number of events per second (`rate_limit`). A failing
//! device can return thousands of errors per second, and the run directory with the logs of daemons
//! may be in memory.

mod rate_limit;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::error::{Failure, Result};
use rate_limit::RateLimited;

/// Options for logging, valid for every command. Their ids are distinct from those of all commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct LogArgs {
    /// Log events of this level and above [default: off; info for a daemon]
    #[arg(id = "log_level", long = "log", value_name = "LEVEL", value_enum, global = true)]
    level: Option<LogLevel>,
    /// Append the log to this file [default: standard error, or the journal if it is standard
    /// error]
    #[arg(id = "log_file", long = "log-file", value_name = "PATH", global = true)]
    file: Option<PathBuf>,
    /// Format of the log
    #[arg(
        id = "log_format",
        long = "log-format",
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        global = true
    )]
    format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// The level of a process without `--log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultLevel {
    /// No logging, for commands and foreground mounts.
    Off,
    /// Level `info`, for daemons.
    Info,
}

impl LogArgs {
    /// True if an option was given.
    pub(crate) fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// The log file, if one was given.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Adds these options to the command line of a daemon, which has another working directory.
    ///
    /// # Errors
    /// If the path of the log file cannot be made absolute.
    pub(crate) fn pass_on(&self, command: &mut Command) -> Result<()> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        if let Some(level) = self.level {
            command.arg(format!("--log={}", name(&|| level.to_possible_value())));
        }
        if let Some(file) = &self.file {
            let file = std::path::absolute(file)
                .map_err(|error| Failure::about(file, "resolve the path of the log", &error))?;
            command.arg("--log-file").arg(file);
        }
        command.arg(format!("--log-format={}", name(&|| self.format.to_possible_value())));
        Ok(())
    }

    fn level(&self, default: DefaultLevel) -> LevelFilter {
        match (self.level, default) {
            (Some(LogLevel::Error), _) => LevelFilter::ERROR,
            (Some(LogLevel::Warn), _) => LevelFilter::WARN,
            (Some(LogLevel::Info), _) | (None, DefaultLevel::Info) => LevelFilter::INFO,
            (Some(LogLevel::Debug), _) => LevelFilter::DEBUG,
            (Some(LogLevel::Trace), _) => LevelFilter::TRACE,
            (Some(LogLevel::Off), _) | (None, DefaultLevel::Off) => LevelFilter::OFF,
        }
    }

    /// Installs the subscriber of this process. Call it once, with standard error in its final
    /// place.
    ///
    /// # Errors
    /// If the log file cannot be opened, or the journal cannot be reached.
    pub(crate) fn install(&self, default: DefaultLevel) -> Result<()> {
        let level = self.level(default);
        if level == LevelFilter::OFF {
            return Ok(());
        }
        match &self.file {
            // One write per event to a file opened for appending: lines of several threads do not
            // mix.
            Some(path) => self.install_writer(level, Arc::new(open(path)?)),
            None if stderr_is_journal() => {
                let journal = tracing_journald::layer().map_err(|error| {
                    Failure::new(format!("cannot log to the journal: {error}; give --log-file"))
                })?;
                tracing_subscriber::registry()
                    .with(RateLimited::new(journal).with_filter(level))
                    .init();
            }
            None => self.install_writer(level, std::io::stderr),
        }
        Ok(())
    }

    fn install_writer<W>(&self, level: LevelFilter, writer: W)
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let layer = fmt::layer().with_ansi(false).with_writer(writer);
        match self.format {
            LogFormat::Text => tracing_subscriber::registry()
                .with(RateLimited::new(layer).with_filter(level))
                .init(),
            LogFormat::Json => tracing_subscriber::registry()
                .with(RateLimited::new(layer.json().flatten_event(true)).with_filter(level))
                .init(),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|error| Failure::about(path, "open the log file", &error))
}

/// True if standard error is connected to the journal: systemd sets `JOURNAL_STREAM` to its device
/// and inode.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_logs_without_options_and_a_command_does_not() {
        let level = |level, default| LogArgs { level, ..LogArgs::default() }.level(default);
        assert_eq!(level(None, DefaultLevel::Off), LevelFilter::OFF);
        assert_eq!(level(None, DefaultLevel::Info), LevelFilter::INFO);
        assert_eq!(level(Some(LogLevel::Off), DefaultLevel::Info), LevelFilter::OFF);
        assert_eq!(level(Some(LogLevel::Debug), DefaultLevel::Off), LevelFilter::DEBUG);
    }

    #[test]
    fn the_options_of_a_command_reach_its_daemon() {
        let args = LogArgs {
            level: Some(LogLevel::Warn),
            file: Some(PathBuf::from("/x/log")),
            format: LogFormat::Json,
        };
        let mut command = Command::new("forebay");
        args.pass_on(&mut command).unwrap();
        let passed: Vec<_> =
            command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert_eq!(passed, ["--log=warn", "--log-file", "/x/log", "--log-format=json"]);
    }
}
