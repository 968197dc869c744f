//! Options that all benches share, and what follows from them.

use std::path::PathBuf;
use std::time::Duration;

use crate::measure::Limit;

/// A bench could not do what was asked; the text says what and why.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// How to measure and how to say it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Print one flat JSON object a line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write a plot as well.
    #[arg(long, global = true, value_name = "FILE.svg", value_parser = plot_file)]
    pub(crate) plot: Option<PathBuf>,
    /// Repetitions of each measurement; figures are medians.
    #[arg(long, global = true, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reps: u32,
    /// Length of one measurement.
    #[arg(long, global = true, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Numbers of threads, instead of the bench's own.
    #[arg(long, global = true, value_delimiter = ',', value_name = "N,…")]
    pub(crate) threads: Vec<usize>,
    /// Only these subjects.
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) subjects: Vec<String>,
    /// Of every generator; the same seed gives the same load.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 3600.0 => Ok(s),
        Ok(_) => Err("more than 0 and at most 3600 seconds".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// Share of a measurement's length that one look at a candidate may take.
const TUNING_SHARE: f64 = 0.2;

impl Common {
    /// The length of a measurement.
    pub(crate) fn limit(&self) -> Limit {
        Limit::Time(Duration::from_secs_f64(self.seconds))
    }

    /// The length of the look at one of several candidates.
    pub(crate) fn tuning_limit(&self) -> Limit {
        Limit::Time(Duration::from_secs_f64(self.seconds * TUNING_SHARE))
    }

    /// The numbers of threads: those asked for, or `own`.
    ///
    /// # Errors
    /// If one is zero or absurd.
    pub(crate) fn threads_or(&self, own: &[usize]) -> Result<Vec<usize>, Failure> {
        const MAX_THREADS: usize = 1024;
        if let Some(wrong) = self.threads.iter().find(|n| !(1..=MAX_THREADS).contains(*n)) {
            return Err(format!("--threads {wrong}: 1 to {MAX_THREADS} threads").into());
        }
        Ok(if self.threads.is_empty() { own.to_vec() } else { self.threads.clone() })
    }

    /// True if a subject is asked for.
    pub(crate) fn wants(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|s| s == subject)
    }

    /// Checks the names given by `--subjects` against those that a bench has.
    ///
    /// # Errors
    /// If a name is not among them.
    pub(crate) fn check_subjects(&self, known: &[&str]) -> Result<(), Failure> {
        let Some(unknown) = self.subjects.iter().find(|s| !known.contains(&s.as_str())) else {
            return Ok(());
        };
        let mut names: Vec<&str> = known.to_vec();
        names.dedup();
        let mut text =
            format!("no subject `{unknown}` in this bench; there are {}", names.join(", "));
        if !cfg!(feature = "peers") {
            text.push_str(" (peers need a build with `--features peers`)");
        }
        if !cfg!(feature = "bench_internals") {
            text.push_str(" (forebay's own index needs one with `--features bench_internals`)");
        }
        Err(text.into())
    }
}

/// Looks, before anything is measured, whether a plot can be written.
///
/// # Errors
/// If the name does not end in `.svg`, or the file cannot be made.
fn plot_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err("plots are SVG: give a name that ends in .svg".to_owned());
    }
    let open = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    open.map(|_| path).map_err(|error| error.to_string())
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
