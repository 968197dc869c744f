//! Output of a daemon: messages, and a status line.
//!
//! On a terminal the status line stays below the messages and is redrawn each second. Elsewhere it
//! is printed as a message every minute.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::sync::Mutex;
use forebay_pool::HealthState;

use crate::control::messages::ProcessStats;
use crate::units;

/// Interval of the status line on a terminal.
pub(crate) const TERMINAL_PERIOD: Duration = Duration::from_secs(1);
/// Interval of the status line elsewhere.
pub(crate) const PLAIN_PERIOD: Duration = Duration::from_secs(60);

/// Columns that the full status line needs.
const WIDE_COLUMNS: usize = 130;

/// Destination of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Output {
    /// Standard output, a terminal.
    Terminal,
    /// Standard output, not a terminal.
    Plain,
    /// Events of the log at this path.
    Log(PathBuf),
    Silent,
}

/// The output of a daemon.
pub(crate) struct Screen {
    output: Output,
    /// True while the status line is on the screen.
    line: Mutex<bool>,
}

impl Screen {
    /// Standard output, for a process in the foreground.
    pub(crate) fn foreground() -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self::new(if terminal { Output::Terminal } else { Output::Plain })
    }

    /// The log at `path`, for a process in the background.
    pub(crate) fn background(path: &Path) -> Self {
        Self::new(Output::Log(path.to_owned()))
    }

    /// No output.
    pub(crate) fn silent() -> Self {
        Self::new(Output::Silent)
    }

    fn new(output: Output) -> Self {
        Self { output, line: Mutex::named("screen", false) }
    }

    /// Path of the log; empty without one.
    pub(crate) fn log(&self) -> &Path {
        match &self.output {
            Output::Log(path) => path,
            _ => Path::new(""),
        }
    }

    fn is_terminal(&self) -> bool {
        self.output == Output::Terminal
    }

    /// Interval of the status line.
    pub(crate) fn period(&self) -> Duration {
        if self.is_terminal() { TERMINAL_PERIOD } else { PLAIN_PERIOD }
    }

    /// Prints a message. Errors are ignored, since a closed output must not stop the daemon.
    pub(crate) fn say(&self, message: &str) {
        match &self.output {
            Output::Log(_) => tracing::info!("{message}"),
            _ => self.print(message),
        }
    }

    /// Prints the message of a failure.
    pub(crate) fn warn(&self, message: &str) {
        match &self.output {
            Output::Log(_) => tracing::error!("{message}"),
            _ => self.print(message),
        }
    }

    /// Prints a message about a pool to standard error. In the background, the log has an event.
    pub(crate) fn alert(&self, message: &str) {
        if matches!(self.output, Output::Terminal | Output::Plain) {
            self.print_to(&mut std::io::stderr(), message);
        }
    }

    fn print(&self, message: &str) {
        if self.output != Output::Silent {
            self.print_to(&mut std::io::stdout(), message);
        }
    }

    fn print_to(&self, out: &mut dyn Write, message: &str) {
        let mut line = self.line.lock();
        if std::mem::take(&mut *line) {
            let mut terminal = std::io::stdout();
            let _ = write!(terminal, "\r\x1b[K");
            let _ = terminal.flush();
        }
        let _ = writeln!(out, "{message}");
        let _ = out.flush();
    }

    /// True if the full status line fits.
    pub(crate) fn is_wide(&self) -> bool {
        !self.is_terminal() || width() >= WIDE_COLUMNS
    }

    /// Shows the status line.
    pub(crate) fn show(&self, text: &str) {
        if !self.is_terminal() {
            self.print(text);
            return;
        }
        let mut line = self.line.lock();
        let fits: String = text.chars().take(width().saturating_sub(1)).collect();
        let mut out = std::io::stdout();
        let _ = write!(out, "\r\x1b[K{fits}");
        let _ = out.flush();
        *line = true;
    }
}

/// Width of the terminal in columns.
fn width() -> usize {
    // SAFETY: `winsize` consists of integers, for which zero is valid.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most one `winsize` to `size`.
    let rc = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if rc == 0 && size.ws_col > 20 { usize::from(size.ws_col) } else { 80 }
}

/// Formats the status line from two samples: rates between them and the state of the second.
pub(crate) fn line(before: &ProcessStats, after: &ProcessStats, wide: bool) -> String {
    let seconds = after.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
    let rate = |of: &dyn Fn(&ProcessStats) -> u64| {
        let grown = of(after).saturating_sub(of(before)) as f64;
        if seconds > 0.0 { grown / seconds } else { 0.0 }
    };
    let operations = rate(&|info| info.mounts.iter().map(|mount| mount.operations).sum());
    let reads = rate(&|info| info.mounts.iter().map(|mount| mount.read_bytes).sum());
    let writes = rate(&|info| info.mounts.iter().map(|mount| mount.write_bytes).sum());
    let memory = after.memory_hits(Some(before));
    let free: u64 = after.pools.iter().map(|pool| pool.available_bytes).sum();
    let named = |health: HealthState| {
        let pools = after.pools.iter().filter(|pool| pool.health == health);
        pools.map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let cache = &after.cache;
    let values = [
        reads as u64,
        writes as u64,
        cache.data_bytes,
        cache.metadata_bytes,
        cache.dirty_bytes,
        free,
    ];
    let [reads, writes, data, metadata, dirty, free] = values.map(|bytes| match wide {
        true => units::bytes(bytes),
        false => units::bytes(bytes).replace([' ', 'i', 'B'], ""),
    });
    let found = units::percent(memory.found, memory.wanted);
    let operations = units::count(operations);
    let mut line = match wide {
        true => format!(
            "{operations} op/s | read {reads}/s write {writes}/s | from memory {found} | cache: data {data} metadata \
             {metadata} dirty {dirty} | free {free}"
        ),
        false => format!(
            "{operations} op/s r {reads} w {writes} | hits {found} | data {data} meta {metadata} dirty {dirty} | free {free}"
        ),
    };
    for health in [HealthState::Degraded, HealthState::Damaged, HealthState::Suspended] {
        let pools = named(health);
        if !pools.is_empty() {
            let word = health.name().to_uppercase();
            line = format!("{word}: {pools} (see `forebay status`) | {line}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::{MountStats, PoolStats};

    #[test]
    fn the_status_line_has_rates_between_two_samples() {
        let mut before = ProcessStats::default();
        before.mounts.push(MountStats { operations: 100, ..MountStats::default() });
        let mut after = ProcessStats { at_ns: 2_000_000_000, ..ProcessStats::default() };
        after.mounts.push(MountStats {
            operations: 300,
            read_bytes: 4 << 20,
            ..MountStats::default()
        });
        after.cache.hits = 8;
        after.cache.counters = [("misses.metadata", 4), ("misses.data", 1)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        let text = line(&before, &after, true);
        assert!(
            text.starts_with("100 op/s | read 2.00 MiB/s write 0 B/s | from memory 37.5% |"),
            "{text}"
        );
        let (suspended, damaged) = (HealthState::Suspended, HealthState::Damaged);
        for (name, health) in [("tank", suspended), ("a", damaged), ("b", damaged)] {
            let name = name.to_owned();
            after.pools.push(PoolStats { name, health, ..PoolStats::default() });
        }
        let text = line(&before, &after, true);
        let expected = "SUSPENDED: tank (see `forebay status`) | DAMAGED: a, b (see ";
        assert!(text.starts_with(expected), "{text}");
        (after.cache.counters, after.pools) = Default::default();
        assert_eq!(
            line(&before, &after, false),
            "100 op/s r 2.00M w 0 | hits 100.0% | data 0 meta 0 dirty 0 | free 0"
        );
    }
}
