//! The curve as characters: hit ratio over size, on a linear scale of sizes.

use crate::control::messages::CurveReport;
use crate::units;

const WIDTH: usize = 64;
const HEIGHT: usize = 10;

/// The plot, with its axes; nothing without points.
pub(super) fn lines(report: &CurveReport) -> String {
    let (Some(first), Some(last)) = (report.points.first(), report.points.last()) else {
        return String::new();
    };
    let ratios = || report.points.iter().map(|point| point.hit_ratio);
    let low = (ratios().fold(1.0, f64::min) * 20.0).floor() / 20.0;
    let high = ((ratios().fold(0.0, f64::max) * 20.0).ceil() / 20.0).max(low + 0.05);
    let column = |percent: f64| {
        let part = (percent - first.percent as f64) / (last.percent - first.percent).max(1) as f64;
        (part * (WIDTH - 1) as f64).round() as usize
    };
    let row = |ratio: f64| {
        let part = ((ratio - low) / (high - low)).clamp(0.0, 1.0);
        HEIGHT - 1 - (part * (HEIGHT - 1) as f64).round() as usize
    };
    let mut cells = [[' '; WIDTH]; HEIGHT];
    for pair in report.points.windows(2) {
        let (from, to) = (column(pair[0].percent as f64), column(pair[1].percent as f64));
        let steps = (to - from).max(1) as f64;
        let rise = pair[1].hit_ratio - pair[0].hit_ratio;
        (from..=to).for_each(|at| {
            let ratio = pair[0].hit_ratio + rise * (at - from) as f64 / steps;
            cells[row(ratio)][at] = '·';
        });
    }
    for point in &report.points {
        let mark = if point.percent == 100 { '*' } else { '●' };
        cells[row(point.hit_ratio)][column(point.percent as f64)] = mark;
    }
    let mut out = String::new();
    for (at, line) in cells.iter().enumerate() {
        let ratio = high - (high - low) * at as f64 / (HEIGHT - 1) as f64;
        let line: String = line.iter().collect();
        out.push_str(&format!("{:>6.1}% │{}\n", 100.0 * ratio, line.trim_end()));
    }
    let (left, right) = (units::bytes(first.capacity_bytes), units::bytes(last.capacity_bytes));
    let space = WIDTH.saturating_sub(left.chars().count());
    out.push_str(&format!("        └{}\n", "─".repeat(WIDTH)));
    out.push_str(&format!("         {left}{right:>space$}\n\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::CurvePointInfo;

    #[test]
    fn a_curve_rises_from_left_to_right() {
        let point = |(percent, hit_ratio)| CurvePointInfo {
            percent,
            hit_ratio,
            capacity_bytes: percent << 20,
            ..CurvePointInfo::default()
        };
        let points = [(25, 0.1), (100, 0.5), (400, 0.9)].map(point).to_vec();
        let text = lines(&CurveReport { points, ..CurveReport::default() });
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[0].starts_with("  90.0% │") && rows[0].ends_with('●'), "{text}");
        assert!(rows[HEIGHT - 1].starts_with("  10.0% │●"), "{text}");
        assert!(rows.iter().any(|row| row.contains('*')), "{text}");
        assert!(rows[HEIGHT + 1].contains("25.0 MiB") && rows[HEIGHT + 1].ends_with("400 MiB"));
        assert_eq!(lines(&CurveReport::default()), "");
    }
}
