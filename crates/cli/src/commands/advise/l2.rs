//! The part of `forebay advise` about L2: a table, and sentences that follow from it.

use super::advice::{MATTERS, MIN_ACCESSES};
use super::{datasets, percent, ratio};
use crate::control::messages::{L2CurveReport, L2PointInfo};
use crate::units;

/// The table of sizes, and that of datasets.
pub(super) fn text(curve: &L2CurveReport) -> String {
    let Some(today) = curve.today() else { return String::new() };
    let headings =
        [">L2 SIZE", ">L2", ">OF MISSES", ">WITH MEMORY", ">METADATA", ">DATA", ">READS SAVED/S"];
    let row = |point: &L2PointInfo| {
        let is_today = point.percent == today.percent;
        let saved = curve.reads_saved_per_s(today, point);
        let sign = if saved < 0.0 { "-" } else { "" };
        let reads = format!("{sign}{}", units::count(saved.abs()));
        vec![
            format!("{}{:.2}x", if is_today { "*" } else { "" }, point.percent as f64 / 100.0),
            units::bytes(point.capacity_bytes),
            percent(point.of_misses),
            percent(point.hit_ratio),
            ratio(point.metadata_hit_ratio),
            ratio(point.data_hit_ratio),
            if is_today { "-".to_owned() } else { reads },
        ]
    };
    let rows: Vec<Vec<String>> = curve.points.iter().map(row).collect();
    format!("{}\n{}", units::table(&headings, &rows), datasets(&curve.datasets))
}

/// What a larger or smaller L2 would serve. Empty if memory misses next to nothing.
pub(super) fn sentences(curve: &L2CurveReport) -> Vec<String> {
    let Some(today) = curve.today() else { return Vec::new() };
    if curve.asked < MIN_ACCESSES {
        return Vec::new();
    }
    if !today.full {
        return vec![
            "Less has left memory so far than L2 holds, so nothing is said yet of another size of \
             L2."
            .to_owned(),
        ];
    }
    let mut said = vec![more(curve, today)];
    said.extend(less(curve, today));
    let gains = curve.points.iter().any(|point| point.hit_ratio > today.hit_ratio + MATTERS);
    if gains && curve.points.last().is_some_and(|last| !last.full) {
        said.push(
            "Less has left memory so far than the largest L2 would hold, so that may still serve \
             more."
                .to_owned(),
        );
    }
    said
}

fn more(curve: &L2CurveReport, today: &L2PointInfo) -> String {
    let larger = || curve.points.iter().filter(|point| point.percent > today.percent);
    let best = larger().map(|point| point.hit_ratio).fold(0.0, f64::max);
    let enough = larger().find(|point| point.hit_ratio >= best - MATTERS);
    let Some(enough) = enough.filter(|_| best >= today.hit_ratio + MATTERS) else {
        let most = larger().map(|point| point.of_misses).fold(today.of_misses, f64::max);
        return format!(
            "A larger L2 buys nothing: today's serves {} of the misses of memory, and one four \
             times as large {}.",
            percent(today.of_misses),
            percent(most)
        );
    };
    let end = match larger().next_back().is_some_and(|last| last.percent > enough.percent) {
        true => " Beyond that, more buys nothing.",
        false => " More may buy more still.",
    };
    format!(
        "An L2 of {} instead of {} serves {} of the misses of memory instead of {}, and saves {} \
         reads of the pool's devices a second.{end}",
        units::bytes(enough.capacity_bytes),
        units::bytes(today.capacity_bytes),
        percent(enough.of_misses),
        percent(today.of_misses),
        units::count(curve.reads_saved_per_s(today, enough)),
    )
}

fn less(curve: &L2CurveReport, today: &L2PointInfo) -> Option<String> {
    let enough = curve.points.iter().find(|p| p.hit_ratio >= today.hit_ratio - MATTERS)?;
    (enough.percent < today.percent).then(|| {
        format!(
            "A smaller L2 would do: one of {} serves {} of the misses of memory, today's {}.",
            units::bytes(enough.capacity_bytes),
            percent(enough.of_misses),
            percent(today.of_misses)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(of_misses: [f64; 4]) -> L2CurveReport {
        let point = |(percent, of_misses): (u64, f64)| L2PointInfo {
            percent,
            of_misses,
            // Memory answers half.
            hit_ratio: 0.5 + of_misses / 2.0,
            misses: 10_000.0 * (1.0 - of_misses),
            capacity_bytes: percent << 20,
            full: true,
            ..L2PointInfo::default()
        };
        let points = [50, 100, 200, 400].into_iter().zip(of_misses).map(point).collect();
        let capacity_bytes = 100 << 20;
        L2CurveReport {
            capacity_bytes,
            asked: 10_000.0,
            seconds: 100.0,
            points,
            ..L2CurveReport::default()
        }
    }

    #[test]
    fn larger_and_smaller_sizes_are_valued() {
        let said = sentences(&curve([0.2, 0.4, 0.7, 0.7]));
        let wanted = "An L2 of 200 MiB instead of 100 MiB serves 70.0% of the misses of memory \
                      instead of 40.0%, and saves 30 reads of the pool's devices a second. Beyond \
                      that, more buys nothing.";
        assert_eq!(said, [wanted]);
        let said = sentences(&curve([0.4, 0.4, 0.4, 0.4]));
        assert!(said[0].starts_with("A larger L2 buys nothing: today's serves 40.0%"), "{said:?}");
        assert!(said[1].starts_with("A smaller L2 would do: one of 50.0 MiB"), "{said:?}");
        let table = text(&curve([0.2, 0.4, 0.7, 0.7]));
        assert!(table.contains("*1.00x   100 MiB"), "{table}");
        assert!(table.contains("-20") && table.contains("85.0%"), "{table}");
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let idle = L2CurveReport { asked: 9.0, ..curve([0.2, 0.4, 0.7, 0.7]) };
        assert!(sentences(&idle).is_empty());
        let mut cold = curve([0.2, 0.4, 0.7, 0.7]);
        cold.points[3].full = false;
        assert!(sentences(&cold)[1].ends_with("so that may still serve more."));
        cold.points.iter_mut().for_each(|point| point.full = false);
        let said = sentences(&cold);
        assert!(said.len() == 1 && said[0].starts_with("Less has left memory so far"), "{said:?}");
    }
}
