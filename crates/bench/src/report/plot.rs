//! Plots as SVG: one panel a combination of parameters, one line a subject.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

type Fault = Box<dyn std::error::Error>;

/// One line of a panel.
pub(crate) struct Series {
    /// What the legend calls it.
    pub(crate) name: String,
    /// Points by rising x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// One coordinate system with its lines.
pub(crate) struct Panel {
    /// Above the panel.
    pub(crate) title: String,
    /// Under the x axis, which is logarithmic.
    pub(crate) x_label: String,
    /// Beside the y axis.
    pub(crate) y_label: String,
    /// True if y spans decades.
    pub(crate) log_y: bool,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

const PANEL_SIZE: (u32, u32) = (640, 420);
const COLUMNS: usize = 2;

/// Writes the panels as one SVG file.
pub(crate) fn write(path: &Path, panels: &[Panel]) -> Result<(), Fault> {
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns).max(1);
    let size = (PANEL_SIZE.0 * columns as u32, PANEL_SIZE.1 * rows as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        draw(area, panel)?;
    }
    root.present()?;
    Ok(())
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel) -> Result<(), Fault> {
    let points = || panel.series.iter().flat_map(|s| s.points.iter().copied());
    let (x_min, x_max) = bounds(points().map(|p| p.0).filter(|x| *x > 0.0));
    let (y_min, y_max) = bounds(points().map(|p| p.1));
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(&panel.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(72);
    // The two axes are different types in plotters, so the drawing is written once as a macro.
    macro_rules! body {
        ($y:expr) => {{
            let mut chart = builder.build_cartesian_2d((x_min..x_max).log_scale(), $y)?;
            chart
                .configure_mesh()
                .x_desc(&panel.x_label)
                .y_desc(&panel.y_label)
                .x_label_formatter(&|x| super::table::human(*x))
                .y_label_formatter(&|y| super::table::human(*y))
                .draw()?;
            for (i, series) in panel.series.iter().enumerate() {
                let color = Palette99::pick(i).to_rgba();
                let positive = || series.points.iter().copied().filter(|p| p.0 > 0.0);
                chart
                    .draw_series(LineSeries::new(positive(), color.stroke_width(2)))?
                    .label(series.name.as_str())
                    .legend(move |(x, y)| {
                        PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2))
                    });
                chart.draw_series(positive().map(|p| Circle::new(p, 3, color.filled())))?;
            }
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.8))
                .position(SeriesLabelPosition::UpperLeft)
                .draw()?;
        }};
    }
    if panel.log_y {
        body!((y_min.max(y_max * 1e-9).max(1e-9)..y_max).log_scale());
    } else {
        body!(0.0..y_max);
    }
    Ok(())
}

/// Smallest and largest value, with room so that a single point is still a range.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, 0.0f64);
    for value in values.filter(|v| v.is_finite()) {
        low = low.min(value);
        high = high.max(value);
    }
    if !low.is_finite() || high <= 0.0 {
        return (0.5, 1.0);
    }
    (if low > 0.0 { low * 0.9 } else { 0.0 }, high * 1.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_scales_are_written() {
        let panel = |log_y| Panel {
            title: "t".into(),
            x_label: "threads".into(),
            y_label: "ops_per_s".into(),
            log_y,
            series: vec![Series { name: "a".into(), points: vec![(1.0, 10.0), (32.0, 1e6)] }],
        };
        let path = std::env::temp_dir().join(format!("forebay-plot-{}.svg", std::process::id()));
        write(&path, &[panel(false), panel(true), panel(false)]).expect("writes a plot");
        let text = std::fs::read_to_string(&path).expect("reads it back");
        let _ = std::fs::remove_file(&path);
        assert!(text.contains("<svg") && text.contains("threads"));
    }
}
