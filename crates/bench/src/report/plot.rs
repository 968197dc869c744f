//! SVG plots: one panel per combination of parameters, one line per subject.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

type PlotError = Box<dyn std::error::Error>;

/// One line of a panel.
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Points in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    fn xs(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|point| point.0)
    }

    fn ys(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|point| point.1)
    }
}

/// Bytes of a megabyte.
const MB: f64 = 1e6;

/// One axis of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// Its title, with the unit.
    title: String,
    /// The base of a logarithmic scale; a linear one otherwise.
    log_base: Option<f64>,
    /// What labels count, in units of the values.
    unit: f64,
}

impl Axis {
    /// A linear axis, for time, shares and rates.
    pub(crate) fn linear(title: &str) -> Self {
        Self { title: title.to_owned(), log_base: None, unit: 1.0 }
    }

    /// A logarithmic axis, for values that span decades.
    pub(crate) fn log(title: &str) -> Self {
        Self { log_base: Some(10.0), ..Self::linear(title) }
    }

    /// A logarithmic axis of base 2, for numbers of threads and queue depths.
    pub(crate) fn doubling(title: &str) -> Self {
        Self { log_base: Some(2.0), ..Self::linear(title) }
    }

    /// A linear axis for the figure of this name. Sizes are in MB.
    pub(crate) fn of(figure: &str) -> Self {
        let unit = if figure.ends_with("_bytes") { MB } else { 1.0 };
        Self { unit, ..Self::linear(&words(figure)) }
    }

    fn label(&self, value: f64) -> String {
        super::table::human(value / self.unit)
    }
}

/// The title of an axis for a figure, with the unit.
pub(crate) fn words(figure: &str) -> String {
    let known = match figure {
        "ops_per_s" => "operations per second",
        "creates_per_s" => "creates per second",
        "changes_per_s" => "creates and removes per second",
        "entries_per_s" => "entries per second",
        "iops" => "reads per second",
        "hit_ratio" => "hit ratio (share of requests)",
        "reads_waited_for_per_s" => "reads per second",
        "peak_rss_bytes" => "peak resident memory (MB)",
        "cpu_s_per_million" => "CPU time per million operations (s)",
        "ns_per_lookup" => "time per lookup (ns)",
        "worst_insert_ns" => "slowest insert (ns)",
        "bytes_per_entry" => "memory per entry (bytes)",
        "p99_ns" => "99th percentile of latency (ns)",
        "written_per_inserted_byte" => "bytes written per byte inserted",
        "second" => "time (s)",
        other => {
            let size = other.strip_suffix("_bytes").map(|name| format!("{name} (MB)"));
            return size.unwrap_or_else(|| other.to_owned()).replace('_', " ");
        }
    };
    known.to_owned()
}

/// A coordinate system with its lines.
pub(crate) struct Panel {
    /// Its title.
    pub(crate) title: String,
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axis.
    pub(crate) y: Axis,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

const PANEL_SIZE: (u32, u32) = (640, 400);
const COLUMNS: usize = 2;
/// Okabe and Ito's colours, which people with colour blindness can distinguish. Yellow is left out
/// because it is too light on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
const GRID: RGBColor = RGBColor(225, 225, 225);
const FRAME: RGBColor = RGBColor(120, 120, 120);
/// Lines with more points have no marks.
const MARKED_POINTS: usize = 24;

/// Writes the panels as one SVG file.
pub(crate) fn write(path: &Path, panels: &[Panel]) -> Result<(), PlotError> {
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

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel) -> Result<(), PlotError> {
    let x = Range::of(panel.x.log_base, panel.series.iter().flat_map(Series::xs));
    let y = Range::of(panel.y.log_base, panel.series.iter().flat_map(Series::ys));
    // Each combination of scales has its own type in plotters.
    match (panel.x.log_base, panel.y.log_base) {
        (None, None) => draw_on(area, panel, x.linear(), y.linear()),
        (Some(base), None) => draw_on(area, panel, x.log(base), y.linear()),
        (None, Some(base)) => draw_on(area, panel, x.linear(), y.log(base)),
        (Some(of_x), Some(of_y)) => draw_on(area, panel, x.log(of_x), y.log(of_y)),
    }
}

fn draw_on<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    x: X,
    y: Y,
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(FRAME)
        .x_desc(&panel.x.title)
        .y_desc(&panel.y.title)
        .x_label_formatter(&|x| panel.x.label(*x))
        .y_label_formatter(&|y| panel.y.label(*y))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (i, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points =
            || series.points.iter().copied().filter(|p| p.0 > 0.0 || panel.x.log_base.is_none());
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(series.name.as_str())
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2))
            });
        if series.points.len() <= MARKED_POINTS {
            chart.draw_series(points().map(|p| Circle::new(p, 3, colour.filled())))?;
        }
    }
    if panel.series.len() > 1 {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 13))
            .position(SeriesLabelPosition::UpperRight)
            .draw()?;
    }
    Ok(())
}

/// Smallest and largest value of an axis.
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    /// Covers the values with a margin, so that a single point is a range.
    fn of(log_base: Option<f64>, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.filter(|v| v.is_finite() && (*v > 0.0 || log_base.is_none())) {
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() || high <= 0.0 {
            return Self { low: 0.5, high: 1.0 };
        }
        Self { low: low * 0.9, high: high * 1.05 }
    }

    /// A linear axis from zero.
    fn linear(&self) -> RangedCoordf64 {
        (0.0..self.high).into()
    }

    fn log(&self, base: f64) -> LogCoord<f64> {
        (self.low..self.high).log_scale().base(base).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_scales_is_written() {
        let axes = [Axis::linear("time (s)"), Axis::log("latency (ns)"), Axis::doubling("threads")];
        let series = || {
            vec![Series { name: "a".into(), points: vec![(0.0, 1.0), (1.0, 10.0), (32.0, 1e6)] }]
        };
        let pairs = axes.iter().flat_map(|x| axes.iter().map(move |y| (x.clone(), y.clone())));
        let panels: Vec<Panel> =
            pairs.map(|(x, y)| Panel { title: "t".into(), x, y, series: series() }).collect();
        let path = std::env::temp_dir().join(format!("forebay-plot-{}.svg", std::process::id()));
        write(&path, &panels).expect("writes a plot");
        let text = std::fs::read_to_string(&path).expect("reads it back");
        let _ = std::fs::remove_file(&path);
        for title in ["<svg", "time (s)", "latency (ns)", "threads"] {
            assert!(text.contains(title), "{title}");
        }
    }

    #[test]
    fn sizes_are_labelled_in_megabytes() {
        let axis = Axis::of("written_bytes");
        assert_eq!((axis.title.as_str(), axis.label(67e6)), ("written (MB)", "67".to_owned()));
        assert_eq!(Axis::of("peak_rss_bytes").label(1.5e6), "1.500");
        assert_eq!(Axis::of("creates_per_s").label(20_000.0), "20.0k");
    }

    #[test]
    fn a_figure_without_words_of_its_own_has_its_name() {
        assert_eq!(words("ops_per_s"), "operations per second");
        assert_eq!(words("some_new_figure"), "some new figure");
    }
}
