//! The benches, one file each: arguments, the run, and the panels of its plot.

pub(crate) mod cached_read;
mod cached_read_model;
pub(crate) mod create;
mod curve;
pub(crate) mod device;
pub(crate) mod evict;
pub(crate) mod freeing;
pub(crate) mod fsync;
pub(crate) mod hybrid;
pub(crate) mod index;
pub(crate) mod insight;
pub(crate) mod keyed;
pub(crate) mod memory;
pub(crate) mod mirror;
pub(crate) mod overflow;
pub(crate) mod pool_read;
pub(crate) mod r5;
pub(crate) mod rebuild;
pub(crate) mod restart;
pub(crate) mod sim;
pub(crate) mod smoke;
pub(crate) mod strided_read;
mod strided_read_model;
pub(crate) mod zap;

use crate::report::Value;
use crate::report::plot::{Axis, Panel, Series};
use crate::report::{Record, fold};

/// Makes a line per subject from rows, through (x, figure).
fn lines(records: &[&Record], x: impl Fn(&Record) -> f64, figure: &str) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for record in records {
        let Some(y) = record.number(figure) else { continue };
        let point = (x(record), y);
        match series.iter_mut().find(|s| s.name == record.subject()) {
            Some(line) => line.points.push(point),
            None => series.push(Series { name: record.subject().to_owned(), points: vec![point] }),
        }
    }
    for line in &mut series {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}

/// One panel over threads for each combination of the parameters in `by`.
fn panels_over_threads(
    records: &[Record],
    by: &[&'static str],
    figure: &'static str,
) -> Vec<Panel> {
    let of = |r: &Record| -> Vec<Option<Value>> { by.iter().map(|n| r.get(n).cloned()).collect() };
    let mut combinations: Vec<Vec<Option<Value>>> = Vec::new();
    for record in records {
        if !combinations.contains(&of(record)) {
            combinations.push(of(record));
        }
    }
    let panel = |combination: Vec<Option<Value>>| {
        let own: Vec<&Record> = records.iter().filter(|r| of(r) == combination).collect();
        let say = |(name, value): (&&str, &Option<Value>)| match value {
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Integer(count)) => format!("{name} {count}"),
            Some(Value::Flag(true)) => (*name).to_owned(),
            Some(Value::Flag(false)) => format!("no {name}"),
            None => String::new(),
        };
        let title: Vec<String> = by.iter().zip(&combination).map(say).collect();
        Panel {
            title: title.join(", "),
            x: Axis::doubling("threads"),
            y: Axis::of(figure),
            series: lines(&own, |r| r.threads() as f64, figure),
        }
    };
    combinations.into_iter().map(panel).collect()
}

/// Measures `count` cells in turns, `reps` times, each time starting with another cell.
fn interleave<E>(
    reps: u32,
    count: usize,
    mut measure: impl FnMut(usize, usize) -> Result<Record, E>,
) -> Result<Vec<Vec<Record>>, E> {
    let mut found: Vec<Vec<Record>> = vec![Vec::new(); count];
    for rep in 0..reps as usize {
        for turn in 0..count {
            let i = (rep + turn) % count;
            found[i].push(measure(i, rep)?);
        }
    }
    Ok(found)
}

/// Measures one cell several times, each in its own process.
fn fold_children<E>(
    reps: u32,
    mut measure: impl FnMut() -> Result<Record, E>,
) -> Result<Option<Record>, E> {
    let found = interleave(reps, 1, |_, _| measure())?;
    Ok(found.first().and_then(|repetitions| fold(repetitions)))
}

/// Groups candidates by subject, in the order of the first candidates.
fn group_by_name<T>(candidates: Vec<T>, name: impl Fn(&T) -> &'static str) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for candidate in candidates {
        match groups.iter_mut().find(|g| g.first().is_some_and(|c| name(c) == name(&candidate))) {
            Some(group) => group.push(candidate),
            None => groups.push(vec![candidate]),
        }
    }
    groups
}

/// Describes the selected candidate.
fn chosen(config: &str, candidates: usize) -> String {
    if candidates > 1 { format!("{config} (best of {candidates})") } else { config.to_owned() }
}

/// The candidate with the highest score. A single candidate is not scored.
fn best<T>(candidates: &[T], mut score: impl FnMut(&T) -> f64) -> &T {
    if candidates.len() == 1 {
        return &candidates[0];
    }
    let mut winner = (&candidates[0], f64::MIN);
    for candidate in candidates {
        let found = score(candidate);
        if found > winner.1 {
            winner = (candidate, found);
        }
    }
    winner.0
}
