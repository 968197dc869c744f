//! `forebay advise`: what a smaller or larger cache would bring, from the miss-ratio curves of
//! daemons.

pub(crate) mod advice;
mod l2;
mod plot;
mod svg;

use crate::args::AdviseArgs;
use crate::control::Request;
use crate::control::client::processes_of;
use crate::control::messages::{CurvePointInfo, CurveReport, DatasetSavings};
use crate::error::{Failure, Result};
use crate::{output, units};

pub(crate) fn run(args: &AdviseArgs) -> Result<()> {
    let mut reports = Vec::new();
    for process in processes_of(args.pool.as_deref())? {
        let mut report: CurveReport = process.ask(&Request::Curve)?;
        report.advice = advice::sentences(&report, args.target_hit_ratio, args.budget);
        reports.push(report);
    }
    if let Some(path) = &args.plot {
        let [report] = &reports[..] else {
            return Err(Failure::usage(
                "--plot: several daemons are running; name a pool of the one to plot",
            ));
        };
        std::fs::write(path, svg::document(report)).map_err(|error| {
            Failure::new(format!("cannot write the plot to {}: {error}", path.display()))
        })?;
    }
    if args.json {
        return output::json(&reports);
    }
    reports.iter().for_each(|report| output::print(&text(report)));
    Ok(())
}

fn text(report: &CurveReport) -> String {
    let mut out = format!(
        "process {}: {} of memory, {} of it for cached blocks; {} accesses in the last {}\n\n",
        report.pid,
        units::bytes(report.memory_bytes),
        units::bytes(report.capacity_bytes),
        units::count(report.accesses),
        units::seconds(report.seconds.ceil() as u64)
    );
    let today = report.today();
    let rows: Vec<Vec<String>> =
        report.points.iter().map(|point| row(report, point, today.as_ref())).collect();
    let headings = [
        ">SIZE",
        ">CACHE",
        ">MEMORY",
        ">HIT RATIO",
        ">METADATA",
        ">DATA",
        ">READS SAVED/S",
        ">TIME SAVED/S",
    ];
    out.push_str(&units::table(&headings, &rows));
    out.push('\n');
    out.push_str(&plot::lines(report));
    out.push_str(&datasets(&report.datasets));
    if let Some(curve) = &report.l2 {
        out.push_str(&l2::text(curve));
    }
    for sentence in &report.advice {
        out.push_str(sentence);
        out.push('\n');
    }
    out
}

/// Reads saved a second by dataset. Empty if nothing was missed.
fn datasets(datasets: &[DatasetSavings]) -> String {
    let Some(first) = datasets.first() else { return String::new() };
    let mut headings = vec!["DATASET".to_owned(), "CLASS".to_owned(), ">MISSES/S".to_owned()];
    let sizes = first.saved_per_s.keys();
    headings.extend(sizes.map(|percent| format!(">SAVED/S {:.2}x", *percent as f64 / 100.0)));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let row = |of: &DatasetSavings| {
        let mut cells = vec![of.name.clone(), of.class.clone(), units::count(of.misses_per_s)];
        cells.extend(of.saved_per_s.values().map(|saved| units::count(*saved)));
        cells
    };
    let rows: Vec<Vec<String>> = datasets.iter().map(row).collect();
    units::table(&headings, &rows) + "\n"
}

fn row(
    report: &CurveReport,
    point: &CurvePointInfo,
    today: Option<&CurvePointInfo>,
) -> Vec<String> {
    let is_today = today.is_some_and(|today| today.percent == point.percent);
    let saved = today.map_or(0.0, |today| report.reads_saved_per_s(today, point));
    let sign = if saved < 0.0 { "-" } else { "" };
    let time = (saved.abs() * report.load_ns) as u64;
    let time = match report.load_ns > 0.0 {
        true => format!("{sign}{}", units::nanoseconds(time)),
        false => "-".to_owned(),
    };
    let reads = format!("{sign}{}", units::count(saved.abs()));
    let star = if is_today { "*" } else { "" };
    vec![
        format!("{star}{:.2}x", point.percent as f64 / 100.0),
        units::bytes(point.capacity_bytes),
        units::bytes(point.memory_bytes),
        ratio(Some(point.hit_ratio)),
        ratio(point.metadata_hit_ratio),
        ratio(point.data_hit_ratio),
        if is_today { "-".to_owned() } else { reads },
        if is_today { "-".to_owned() } else { time },
    ]
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), percent)
}

/// A ratio as a percentage.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.1}%", 100.0 * ratio)
}
