//! The curve as an SVG: both classes together, metadata and data, over the size of the cache.

use std::fmt::Write;

use crate::control::messages::{CurvePointInfo, CurveReport};
use crate::units;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Left, right, top and bottom of the coordinate system.
const AREA: [f64; 4] = [64.0, 700.0, 44.0, 360.0];
/// Okabe and Ito's colours, which people with colour blindness can distinguish.
const LINES: [(&str, &str); 3] = [("all", "#0072b2"), ("metadata", "#009e73"), ("data", "#d55e00")];

type Ratio = fn(&CurvePointInfo) -> Option<f64>;

/// An SVG document of the report.
pub(super) fn document(report: &CurveReport) -> String {
    let [left, right, top, bottom] = AREA;
    let largest = report.points.iter().map(|p| p.capacity_bytes).max().unwrap_or(1).max(1);
    let x = |bytes: u64| left + (right - left) * bytes as f64 / largest as f64;
    let y = |ratio: f64| bottom - (bottom - top) * ratio.clamp(0.0, 1.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{left}\" y=\"22\" font-size=\"15\">Hit ratio over the size of the cache</text>\n"
    );
    for step in 0..=5 {
        let ratio = f64::from(step) / 5.0;
        let (at, percent) = (y(ratio), 100.0 * ratio);
        out += &format!(
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e1e1e1\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent:.0}%</text>\n",
            left - 8.0,
            at + 4.0
        );
    }
    for point in &report.points {
        let at = x(point.capacity_bytes);
        let today = point.percent == 100;
        let (stroke, dashes) = if today { ("#787878", "4 3") } else { ("#e1e1e1", "none") };
        let label = units::bytes(point.capacity_bytes);
        let label = if today { format!("today: {label}") } else { label };
        // Small sizes are close together.
        let below = if matches!(point.percent, 50 | 100) { 34.0 } else { 18.0 };
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"{stroke}\" stroke-dasharray=\"{dashes}\"/>"
        );
        if point.percent != 75 {
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + below
            );
        }
    }
    let ratios: [Ratio; 3] =
        [|p| Some(p.hit_ratio), |p| p.metadata_hit_ratio, |p| p.data_hit_ratio];
    for (at, ((name, colour), ratio)) in LINES.into_iter().zip(ratios).enumerate() {
        let points: Vec<String> = report
            .points
            .iter()
            .filter_map(|p| Some(format!("{:.1},{:.1}", x(p.capacity_bytes), y(ratio(p)?))))
            .collect();
        if points.is_empty() {
            continue;
        }
        let legend = right - 90.0 * (LINES.len() - at) as f64;
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n\
             <line x1=\"{legend}\" y1=\"18\" x2=\"{}\" y2=\"18\" stroke=\"{colour}\" stroke-width=\"3\"/>\n\
             <text x=\"{}\" y=\"22\">{name}</text>",
            points.join(" "),
            legend + 18.0,
            legend + 24.0
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_without_accesses_have_no_line() {
        let point = |percent| CurvePointInfo {
            percent,
            capacity_bytes: percent << 20,
            hit_ratio: 0.5,
            data_hit_ratio: Some(0.5),
            ..CurvePointInfo::default()
        };
        let points = [25, 100, 400].map(point).to_vec();
        let svg = document(&CurveReport { points, ..CurveReport::default() });
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        assert!(svg.contains("today: 100 MiB") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("points=\"103.8,202.0 "), "{svg}");
    }
}
