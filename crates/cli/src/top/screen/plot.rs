//! Plots over time: bars of eighths of a cell, a linear time axis, and labels with units.
//!
//! A column without values is empty; one with the value zero has a line at the bottom. So a gap
//! and zero look different.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Theme;
use crate::top::history::{History, Series, Unit};
use crate::units;

/// Width of the labels of the value axis.
const LABEL: u16 = 7;
/// Smallest plot that can be read.
pub(super) const HEIGHT_MIN: u16 = 4;

const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// A value with its unit, as short as possible.
pub(crate) fn value_text(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ratio => format!("{:.1}%", 100.0 * value),
        Unit::PerSecond => format!("{}/s", units::count(value)),
        Unit::Bytes => short(&units::bytes(value as u64)),
        Unit::BytesPerSecond => format!("{}/s", short(&units::bytes(value as u64))),
        Unit::Nanoseconds => short(&units::nanoseconds(value as u64)),
        Unit::Number => format!("{value:.1}"),
    }
}

/// Removes the space before a unit, and `iB` after its prefix.
pub(super) fn short(text: &str) -> String {
    text.replace("iB", "").replace(' ', "")
}

/// The end of the value axis: the smallest of 1, 2 and 5 times a power of ten (bytes: a power of
/// two) that is not less than `max`.
fn axis_end(max: f64, unit: Unit) -> f64 {
    match unit {
        Unit::Ratio => 1.0,
        Unit::Bytes | Unit::BytesPerSecond => max.max(1024.0).log2().ceil().exp2(),
        _ => {
            let decade = 10f64.powf(max.max(1.0).log10().floor());
            let steps = [1.0, 2.0, 5.0, 10.0];
            let fits = steps.iter().find(|step| max <= *step * decade);
            fits.unwrap_or(&10.0) * decade
        }
    }
}

/// The filled eighths of a cell, `row` cells above the bottom, of a bar that is `share` high.
fn eighths(share: f64, height: u16, row: u16) -> usize {
    let filled = (share * f64::from(height) * 8.0).round() as i64;
    // The value zero has a line, unlike no value.
    let filled = filled.max(1);
    (filled - i64::from(row) * 8).clamp(0, 8) as usize
}

/// A length of time.
fn time_text(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds:.0} s")
    } else if seconds < 3600.0 {
        format!("{} min", seconds / 60.0)
    } else {
        format!("{} h", seconds / 3600.0)
    }
}

/// Draws a plot: its title with the newest value, the bars, and the time axis.
pub(super) fn draw(
    (series, history): (Series, &History),
    span: (f64, f64),
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) {
    if area.height < HEIGHT_MIN || area.width < LABEL + 12 {
        return;
    }
    let (name, unit) = series.about();
    let newest = history.newest(series, span.0).map(|value| value_text(value, unit));
    let newest = newest.unwrap_or_else(|| "-".to_owned());
    let title = format!("{name} {newest}");
    buffer.set_stringn(area.x, area.y, title, area.width.into(), theme.title());
    let bars = Rect {
        x: area.x + LABEL,
        y: area.y + 1,
        width: area.width - LABEL,
        height: area.height - 2,
    };
    let columns = history.columns(series, span, bars.width.into());
    let max = columns.iter().flatten().copied().fold(0.0, f64::max);
    let end = axis_end(max, unit);
    // The last label of the axis needs no "/s": the title has it.
    let label = value_text(end, unit).trim_end_matches("/s").to_owned();
    draw_label(buffer, (area.x, bars.y), &label, theme);
    draw_label(buffer, (area.x, bars.bottom() - 1), "0", theme);
    for (at, value) in columns.iter().enumerate() {
        let Some(value) = value else { continue };
        for row in 0..bars.height {
            let filled = eighths(value / end, bars.height, row);
            let place = (bars.x + at as u16, bars.bottom() - 1 - row);
            buffer.set_string(place.0, place.1, EIGHTHS[filled], theme.bar());
        }
    }
    draw_time_axis(buffer, (bars, area.bottom() - 1), span.1, theme);
}

fn draw_label(buffer: &mut Buffer, (x, y): (u16, u16), text: &str, theme: Theme) {
    let width = usize::from(LABEL) - 1;
    buffer.set_stringn(x, y, format!("{text:>width$}"), width, theme.dim());
}

/// Writes the times of the left end, the middle and the right end of the axis.
fn draw_time_axis(buffer: &mut Buffer, (bars, y): (Rect, u16), span: f64, theme: Theme) {
    let width = usize::from(bars.width);
    buffer.set_stringn(bars.x, y, format!("-{}", time_text(span)), width, theme.dim());
    let middle = format!("-{}", time_text(span / 2.0));
    if width >= 24 {
        // The text begins at its time.
        buffer.set_stringn(bars.x + bars.width / 2, y, middle, width / 2, theme.dim());
    }
    buffer.set_stringn(bars.right() - 3, y, "now", 3, theme.dim());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_value() {
        assert_eq!(axis_end(0.3, Unit::Ratio), 1.0);
        assert_eq!(axis_end(0.0, Unit::PerSecond), 1.0);
        assert_eq!(axis_end(1234.0, Unit::PerSecond), 2000.0);
        assert_eq!(axis_end(2000.0, Unit::PerSecond), 2000.0);
        assert_eq!(axis_end(5001.0, Unit::PerSecond), 10_000.0);
        assert_eq!(axis_end(3e6, Unit::Bytes), f64::from(4 << 20));
    }

    #[test]
    fn bars_are_as_high_as_their_value() {
        assert_eq!([0, 1, 2].map(|row| eighths(1.0, 3, row)), [8, 8, 8]);
        assert_eq!([0, 1, 2].map(|row| eighths(0.5, 3, row)), [8, 4, 0]);
        // Zero is a line; no value is nothing.
        assert_eq!([0, 1, 2].map(|row| eighths(0.0, 3, row)), [1, 0, 0]);
    }

    #[test]
    fn values_are_short_and_have_units() {
        assert_eq!(value_text(0.5, Unit::Ratio), "50.0%");
        assert_eq!(value_text(1536.0, Unit::BytesPerSecond), "1.50K/s");
        assert_eq!(value_text(1.5e6, Unit::Nanoseconds), "1.5ms");
    }
}
