//! Draws tables. Columns that do not fit are left out, from the end of the list of optional ones.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::Theme;
use super::plot::short;
use crate::top::state::TableView;
use crate::top::tables::Table;

/// Widest first column where there is not enough room, so that long names do not displace figures.
const NAME_MAX: usize = 24;

/// Widths of the columns that fit into `width`, with their numbers.
fn fitting(table: &Table, width: usize) -> Vec<(usize, usize)> {
    let wide = |at: usize| {
        let cells = table.rows.iter().map(|row| short_cell(&row[at].text, at).chars().count());
        let heading = table.headings[at].trim_start_matches('>').len();
        let widest = cells.chain([heading + 1]).max().unwrap_or(0);
        if at == 0 { widest.min(NAME_MAX) } else { widest }
    };
    let mut columns: Vec<(usize, usize)> =
        (0..table.headings.len()).map(|at| (at, wide(at))).collect();
    let needed = |columns: &[(usize, usize)]| {
        columns.iter().map(|(_, width)| width + 1).sum::<usize>().saturating_sub(1)
    };
    let mut optional = table.optional.clone();
    while needed(&columns) > width {
        match optional.pop() {
            Some(left_out) => columns.retain(|(at, _)| *at != left_out),
            None if columns.len() > 1 => {
                columns.pop();
            }
            None => break,
        }
    }
    let free = width.saturating_sub(needed(&columns));
    if let Some((0, name)) = columns.first_mut() {
        let widest = table.rows.iter().map(|row| row[0].text.chars().count()).max();
        *name = widest.unwrap_or(0).min(*name + free).max(*name);
    }
    columns
}

/// The text of a cell. Names keep their spaces.
fn short_cell(text: &str, column: usize) -> String {
    let is_figure = text.starts_with(|first: char| first.is_ascii_digit());
    if column > 0 && is_figure { short(text) } else { text.to_owned() }
}

/// Draws the headings and as many rows as fit, from the scroll position. Marks the sorted column.
pub(super) fn draw(
    table: &Table,
    view: TableView,
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) {
    if area.height == 0 || table.headings.is_empty() {
        return;
    }
    let columns = fitting(table, area.width.into());
    let rows = usize::from(area.height) - 1;
    // The last rows fill the area: nobody scrolls past them.
    let first = view.scroll.min(table.rows.len().saturating_sub(rows));
    let mut x = area.x;
    for (at, width) in columns {
        let heading = table.headings[at];
        let right = heading.starts_with('>');
        let mark = match (view.sort == Some(at), view.reverse) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        let heading = format!("{}{mark}", heading.trim_start_matches('>'));
        let mut put = |y: u16, text: &str, style| {
            let text = if right { format!("{text:>width$}") } else { text.to_owned() };
            let left = usize::from(area.right().saturating_sub(x));
            buffer.set_stringn(x, y, text, width.min(left), style);
        };
        put(area.y, &heading, theme.heading());
        for (row, cells) in table.rows.iter().skip(first).take(rows).enumerate() {
            put(area.y + 1 + row as u16, &short_cell(&cells[at].text, at), Style::default());
        }
        x = x.saturating_add(width as u16 + 1);
        if x >= area.right() {
            return;
        }
    }
}
