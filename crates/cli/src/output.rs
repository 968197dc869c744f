//! Standard output, and the progress of long work.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::control::messages::JobProgress;
use crate::error::{Failure, Result};

/// Prints. If nobody reads it any more, the process ends quietly.
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

/// Prints for machines.
///
/// # Errors
/// If it cannot be written as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    line(&text.map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?);
    Ok(())
}

/// A flag that SIGINT and SIGTERM raise. A second one ends the process at once.
///
/// # Errors
/// If the system refuses.
pub(crate) fn interruptible() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let refused =
            |error: std::io::Error| Failure::new(format!("cannot handle signals: {error}"));
        // The order matters: the second one ends it only if the first has been.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .map_err(refused)?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(refused)?;
    }
    Ok(flag)
}

/// Whether a flag is raised.
pub(crate) fn is_raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Shows how far long work is, and hears whether it is to stop.
pub(crate) struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Of work that is called `what`.
    ///
    /// # Errors
    /// If signals cannot be handled.
    pub(crate) fn begin(what: &str) -> Result<Self> {
        let bar = ProgressBar::with_draw_target(Some(0), target());
        let template = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        Ok(Self { bar, stop: interruptible()? })
    }

    /// Shows it.
    pub(crate) fn show(&self, info: &JobProgress) {
        self.bar.set_length(info.total_bytes.max(info.bytes));
        self.bar.set_position(info.bytes);
        if info.problems > 0 {
            self.bar.set_message(format!("{} PROBLEMS", info.problems));
        }
    }

    /// Shows so many bytes of so many.
    pub(crate) fn show_bytes(&self, bytes: u64, total_bytes: u64) {
        self.show(&JobProgress { bytes, total_bytes, ..JobProgress::default() });
    }

    /// Shows it, and says whether to go on.
    pub(crate) fn step(&self, info: &JobProgress) -> ControlFlow<()> {
        self.show(info);
        if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The flag that is raised when the user wants it to stop.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Whether the user wants it to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        is_raised(&self.stop)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Standard error, if somebody looks.
fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}
