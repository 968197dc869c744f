//! Standard output, and the progress bar of jobs.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::control::messages::JobProgress;
use crate::error::{Failure, Result};

/// Prints text. A closed pipe ends the process without an error.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written {
        let quiet = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !quiet {
            eprintln!("forebay: standard output: {error}");
        }
        std::process::exit(if quiet { 0 } else { 1 });
    }
}

/// Prints a line.
pub(crate) fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Prints a value as JSON.
///
/// # Errors
/// If the value cannot be serialised.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    line(&text.map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?);
    Ok(())
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal ends the process at once.
///
/// # Errors
/// If the signal handlers cannot be installed.
pub(crate) fn interruptible() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let refused =
            |error: std::io::Error| Failure::new(format!("cannot handle signals: {error}"));
        // Order matters: the shutdown handler runs first, and acts only if an earlier signal set
        // the flag.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .map_err(refused)?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(refused)?;
    }
    Ok(flag)
}

/// True if the flag is set.
pub(crate) fn is_raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// A progress bar that also watches for a request to stop.
pub(crate) struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Starts a bar for the job called `name`.
    ///
    /// # Errors
    /// If the signal handlers cannot be installed.
    pub(crate) fn begin(name: &str) -> Result<Self> {
        let bar = ProgressBar::with_draw_target(Some(0), target());
        let template = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        Ok(Self { bar, stop: interruptible()? })
    }

    /// Shows progress.
    pub(crate) fn show(&self, info: &JobProgress) {
        self.bar.set_length(info.total_bytes.max(info.bytes));
        self.bar.set_position(info.bytes);
        if info.problems > 0 {
            self.bar.set_message(format!("{} PROBLEMS", info.problems));
        }
    }

    /// Shows `bytes` done of `total_bytes`.
    pub(crate) fn show_bytes(&self, bytes: u64, total_bytes: u64) {
        self.show(&JobProgress { bytes, total_bytes, ..JobProgress::default() });
    }

    /// Shows progress, and breaks if the user interrupted the job.
    pub(crate) fn step(&self, info: &JobProgress) -> ControlFlow<()> {
        self.show(info);
        if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The flag that is set when the user interrupts the job.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// True if the user interrupted the job.
    pub(crate) fn is_stopped(&self) -> bool {
        is_raised(&self.stop)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Standard error if it is a terminal, else nothing.
pub(crate) fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}
