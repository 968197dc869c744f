//! Options that all benches share.

use std::path::PathBuf;
use std::time::Duration;

use crate::measure::Limit;

/// Why a bench could not run.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// How to measure and what to print.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Print one flat JSON object per line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Also write a plot.
    #[arg(long, global = true, value_name = "FILE.svg", value_parser = plot_file)]
    pub(crate) plot: Option<PathBuf>,
    /// Repetitions of each measurement; figures are medians.
    #[arg(long, global = true, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reps: u32,
    /// Length of one measurement, in seconds.
    #[arg(long, global = true, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Numbers of threads, instead of the bench's default.
    #[arg(long, global = true, value_delimiter = ',', value_name = "N,…")]
    pub(crate) threads: Vec<usize>,
    /// Measure only these subjects.
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) subjects: Vec<String>,
    /// Seed of all random numbers; the same seed gives the same load.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 3600.0 => Ok(s),
        Ok(_) => Err("give more than 0 and at most 3600 seconds".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// Length of a candidate's trial run, as a share of a measurement.
const TUNING_SHARE: f64 = 0.2;

impl Common {
    /// The length of a measurement.
    pub(crate) fn limit(&self) -> Limit {
        Limit::Time(Duration::from_secs_f64(self.seconds))
    }

    /// The length of a candidate's trial run.
    pub(crate) fn tuning_limit(&self) -> Limit {
        Limit::Time(Duration::from_secs_f64(self.seconds * TUNING_SHARE))
    }

    /// The requested numbers of threads, or `own`.
    ///
    /// # Errors
    /// If a number is zero or too large.
    pub(crate) fn threads_or(&self, own: &[usize]) -> Result<Vec<usize>, Failure> {
        const MAX_THREADS: usize = 1024;
        if let Some(wrong) = self.threads.iter().find(|n| !(1..=MAX_THREADS).contains(*n)) {
            return Err(format!("--threads {wrong}: give 1 to {MAX_THREADS} threads").into());
        }
        Ok(if self.threads.is_empty() { own.to_vec() } else { self.threads.clone() })
    }

    /// True if `subject` was requested.
    pub(crate) fn wants(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|s| s == subject)
    }

    /// Checks the names in `--subjects` against the bench's subjects.
    ///
    /// # Errors
    /// If a name is unknown.
    pub(crate) fn check_subjects(&self, known: &[&str]) -> Result<(), Failure> {
        let Some(unknown) = self.subjects.iter().find(|s| !known.contains(&s.as_str())) else {
            return Ok(());
        };
        let mut names: Vec<&str> = known.to_vec();
        names.dedup();
        let mut text = format!("unknown subject `{unknown}`; this bench has {}", names.join(", "));
        if !cfg!(feature = "peers") {
            text.push_str(" (peers need a build with `--features peers`)");
        }
        if !cfg!(feature = "bench_internals") {
            text.push_str(" (Forebay's index needs a build with `--features bench_internals`)");
        }
        Err(text.into())
    }
}

/// Checks before the measurement that the plot can be written.
///
/// # Errors
/// If the name does not end in `.svg`, or the file cannot be created.
fn plot_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err("plots are SVG; give a name that ends in .svg".to_owned());
    }
    let open = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    open.map(|_| path).map_err(|error| error.to_string())
}

/// Number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
