//! The sentences of `forebay advise`. They follow from the numbers of a report alone.

use super::{l2, percent};
use crate::control::messages::{CurvePointInfo, CurveReport};
use crate::units;

/// With fewer accesses than this, a curve says nothing.
pub(super) const MIN_ACCESSES: f64 = 1000.0;
/// With less time with accesses than this, the curve is of a moment.
const MIN_BUSY_SECONDS: f64 = 30.0;
/// A difference of hit ratios that matters.
pub(super) const MATTERS: f64 = 0.005;

/// What the curve says about a target, a budget, or else about more and less memory.
pub(crate) fn sentences(
    report: &CurveReport,
    target: Option<f64>,
    budget: Option<u64>,
) -> Vec<String> {
    let (Some(today), Some(first), Some(last)) =
        (report.today(), report.points.first(), report.points.last())
    else {
        return vec!["This daemon measures no miss-ratio curve.".to_owned()];
    };
    if report.accesses < MIN_ACCESSES {
        return vec![format!(
            "There were only {:.0} accesses in the last minutes: use the pool, then ask again.",
            report.accesses
        )];
    }
    let mut said = Vec::new();
    if report.busy_seconds < MIN_BUSY_SECONDS {
        said.push(format!(
            "This is only what {:.0} s of traffic tell: ask again after minutes of the usual load.",
            report.busy_seconds.ceil()
        ));
    }
    let nothing_asked = target.is_none() && budget.is_none();
    if let Some(target) = target {
        said.push(for_target(report, target, first, last));
    }
    if let Some(budget) = budget {
        said.push(for_budget(report, budget, first));
    }
    if nothing_asked {
        said.push(more(report, &today));
        said.extend(less(report, &today));
    }
    if !last.full && report.points.iter().any(|point| point.hit_ratio > today.hit_ratio + MATTERS) {
        said.push(
            "The larger simulated caches have not filled yet, so their hit ratios may still rise."
                .to_owned(),
        );
    }
    if nothing_asked {
        said.extend(report.l2.iter().flat_map(l2::sentences));
    }
    said
}

fn size(point: &CurvePointInfo) -> String {
    let (cache, memory) = (units::bytes(point.capacity_bytes), units::bytes(point.memory_bytes));
    format!("a cache of {cache} (--memory {memory})")
}

fn for_target(
    report: &CurveReport,
    target: f64,
    first: &CurvePointInfo,
    last: &CurvePointInfo,
) -> String {
    let reached = report.points.windows(2).find(|pair| pair[1].hit_ratio >= target);
    match (first.hit_ratio >= target, reached) {
        (true, _) => format!("Already {} reaches {}.", size(first), percent(target)),
        (false, Some(pair)) => {
            let rise = pair[1].hit_ratio - pair[0].hit_ratio;
            let part = (target - pair[0].hit_ratio) / rise;
            let between = |low: u64, high: u64| low + ((high - low) as f64 * part).ceil() as u64;
            let point = CurvePointInfo {
                capacity_bytes: between(pair[0].capacity_bytes, pair[1].capacity_bytes),
                memory_bytes: between(pair[0].memory_bytes, pair[1].memory_bytes),
                ..pair[1].clone()
            };
            format!("{} reaches {}.", capital(&size(&point)), percent(target))
        }
        (false, None) => format!(
            "No size up to four times today's reaches {}: {} reaches {}.",
            percent(target),
            size(last),
            percent(last.hit_ratio)
        ),
    }
}

fn for_budget(report: &CurveReport, budget: u64, first: &CurvePointInfo) -> String {
    let within: Vec<&CurvePointInfo> =
        report.points.iter().filter(|point| point.memory_bytes <= budget).collect();
    let best = within.iter().map(|point| point.hit_ratio).fold(0.0, f64::max);
    // The smallest that is about as good.
    match within.iter().find(|point| point.hit_ratio >= best - MATTERS) {
        Some(point) => format!(
            "Within {} of memory, {} reaches {}.",
            units::bytes(budget),
            size(point),
            percent(point.hit_ratio)
        ),
        None => format!(
            "The smallest simulated size needs more than {}: {}.",
            units::bytes(budget),
            size(first)
        ),
    }
}

fn more(report: &CurveReport, today: &CurvePointInfo) -> String {
    let larger = || report.points.iter().filter(|point| point.percent > today.percent);
    let best = larger().map(|point| point.hit_ratio).fold(0.0, f64::max);
    if best < today.hit_ratio + MATTERS {
        return format!(
            "More memory buys nothing: today's cache reaches {}, and one four times as large {}.",
            percent(today.hit_ratio),
            percent(best)
        );
    }
    // Up to the smallest size that is about as good as the best one.
    let Some(enough) = larger().find(|point| point.hit_ratio >= best - MATTERS) else {
        return String::new();
    };
    let points = 100.0 * (enough.hit_ratio - today.hit_ratio);
    let reads = report.reads_saved_per_s(today, enough);
    let step = larger().next().filter(|step| step.percent < enough.percent);
    let first = step.map_or_else(String::new, |step| {
        let bought = 100.0 * (step.hit_ratio - today.hit_ratio);
        let added = step.memory_bytes.saturating_sub(today.memory_bytes);
        format!("; the first {} of it buy {bought:.1}", units::bytes(added))
    });
    let end = match larger().next_back().is_some_and(|last| last.percent > enough.percent) {
        true => " Beyond that, more buys nothing.",
        false => " More may buy more still.",
    };
    format!(
        "{} more memory buys {points:.1} points of hit ratio, and saves {} reads a second{first}: {} \
         reaches {}.{end}",
        units::bytes(enough.memory_bytes.saturating_sub(today.memory_bytes)),
        units::count(reads),
        size(enough),
        percent(enough.hit_ratio)
    )
}

fn less(report: &CurveReport, today: &CurvePointInfo) -> Option<String> {
    let enough = report.points.iter().find(|p| p.hit_ratio >= today.hit_ratio - MATTERS)?;
    (enough.percent < today.percent).then(|| {
        format!(
            "Less would do: {} reaches {}, today's {}.",
            size(enough),
            percent(enough.hit_ratio),
            percent(today.hit_ratio)
        )
    })
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratios: [f64; 4]) -> CurveReport {
        let point = |(percent, hit_ratio): (u64, f64)| CurvePointInfo {
            percent,
            hit_ratio,
            misses: 10_000.0 * (1.0 - hit_ratio),
            capacity_bytes: percent << 20,
            memory_bytes: percent << 21,
            full: true,
            ..CurvePointInfo::default()
        };
        CurveReport {
            accesses: 10_000.0,
            seconds: 100.0,
            busy_seconds: 60.0,
            points: [50, 100, 200, 400].into_iter().zip(ratios).map(point).collect(),
            ..CurveReport::default()
        }
    }

    #[test]
    fn a_target_is_met_at_the_size_between_the_points() {
        let steep = report([0.4, 0.6, 0.8, 0.8]);
        let said = |target| sentences(&steep, Some(target), None).remove(0);
        assert_eq!(said(0.7), "A cache of 150 MiB (--memory 300 MiB) reaches 70.0%.");
        assert!(said(0.3).starts_with("Already a cache of 50.0 MiB"), "{}", said(0.3));
        assert!(said(0.9).starts_with("No size up to four times today's reaches 90.0%"));
    }

    #[test]
    fn a_budget_buys_the_smallest_size_that_is_as_good() {
        let steep = report([0.4, 0.6, 0.8, 0.8]);
        let said = |budget| sentences(&steep, None, Some(budget)).remove(0);
        assert!(said(1 << 30).contains("a cache of 200 MiB"), "{}", said(1 << 30));
        assert!(said(300 << 20).contains("a cache of 100 MiB"), "{}", said(300 << 20));
        assert!(said(1 << 20).starts_with("The smallest simulated size needs more than 1.00 MiB"));
    }

    #[test]
    fn more_and_less_are_valued() {
        let said = sentences(&report([0.4, 0.6, 0.8, 0.8]), None, None);
        let wanted = "200 MiB more memory buys 20.0 points of hit ratio, and saves 20 reads a \
                      second: a cache of 200 MiB (--memory 400 MiB) reaches 80.0%. Beyond that, more \
                      buys nothing.";
        assert_eq!(said, [wanted]);
        let said = sentences(&report([0.4, 0.6, 0.7, 0.8]), None, None);
        assert!(said[0].contains("; the first 200 MiB of it buy 10.0: "), "{}", said[0]);
        assert!(said[0].ends_with("More may buy more still."), "{}", said[0]);
        let said = sentences(&report([0.6, 0.6, 0.6, 0.6]), None, None);
        assert!(said[0].starts_with("More memory buys nothing"), "{}", said[0]);
        assert!(said[1].starts_with("Less would do: a cache of 50.0 MiB"), "{}", said[1]);
        let idle = CurveReport { accesses: 3.0, ..report([0.0; 4]) };
        assert!(sentences(&idle, None, None)[0].starts_with("There were only 3 accesses"));
        let short = CurveReport { busy_seconds: 2.4, ..report([0.4, 0.6, 0.8, 0.8]) };
        let said = sentences(&short, None, None);
        assert!(said[0].starts_with("This is only what 3 s of traffic tell"), "{}", said[0]);
        assert!(said[1].contains(" more memory buys "), "{}", said[1]);
        let full = |point: &CurvePointInfo| CurvePointInfo { full: false, ..point.clone() };
        let cold = report([0.4, 0.6, 0.8, 0.8]);
        let cold = CurveReport { points: cold.points.iter().map(full).collect(), ..cold };
        assert!(sentences(&cold, None, None)[1].contains("have not filled yet"));
    }
}
