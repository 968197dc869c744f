//! Logging: the global options `--log`, `--log-file` and `--log-format`, and the subscriber that
//! they install.
//!
//! The libraries emit `tracing` events for errors and state changes. Without `--log` a command
//! installs no subscriber; a daemon logs at level `info` to its log file. Events go to `--log-file`
//! if given, else to the journal if standard error is connected to it, else to standard error.
//!
//! # Invariants
//!
//! Each place in the source logs at most [`EVENTS_PER_SECOND`] events per second. A failing device
//! can return thousands of errors per second, and the run directory with the logs of daemons may be
//! in memory.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use forebay_base::sync::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::error::{Failure, Result};

/// Limit of events of one place in the source, per second.
const EVENTS_PER_SECOND: u32 = 20;

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
                    .with(journal.with_filter(RateLimit::new()).with_filter(level))
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
                .with(layer.with_filter(RateLimit::new()).with_filter(level))
                .init(),
            LogFormat::Json => tracing_subscriber::registry()
                .with(
                    layer
                        .json()
                        .flatten_event(true)
                        .with_filter(RateLimit::new())
                        .with_filter(level),
                )
                .init(),
        }
    }
}

/// A filter that drops events beyond [`EVENTS_PER_SECOND`] of one place in the source.
struct RateLimit {
    started: Instant,
    /// For each place, the second of its last event and the number of events in that second.
    places: Mutex<HashMap<Identifier, (u64, u32)>>,
}

impl RateLimit {
    fn new() -> Self {
        Self { started: Instant::now(), places: Mutex::named("log-places", HashMap::new()) }
    }

    /// True if an event of this place in this second is within the limit.
    fn admits(&self, place: Identifier, second: u64) -> bool {
        let mut places = self.places.lock();
        let (last, count) = places.entry(place).or_insert((second, 0));
        if *last != second {
            (*last, *count) = (second, 0);
        }
        *count += 1;
        *count <= EVENTS_PER_SECOND
    }
}

impl<S> Filter<S> for RateLimit {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        self.admits(event.metadata().callsite(), self.started.elapsed().as_secs())
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

    #[test]
    fn a_place_logs_a_bounded_number_of_events_per_second() {
        struct Place;
        impl tracing::Callsite for Place {
            fn set_interest(&self, _interest: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("only its address is used")
            }
        }
        static PLACE: Place = Place;
        let limit = RateLimit::new();
        let admitted =
            |second| (0..1000).filter(|_| limit.admits(Identifier(&PLACE), second)).count();
        assert_eq!(admitted(1), EVENTS_PER_SECOND as usize);
        assert_eq!(admitted(2), EVENTS_PER_SECOND as usize);
    }
}
