//! The pages: plots above, tables below.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::plot;
use super::{Theme, table};
use crate::top::history::Series;
use crate::top::state::{Page, PoolState, State, TableView};
use crate::top::tables::{self, Table};

/// Rows of the table that stay at least, with the heading.
const TABLE_MIN: u16 = 5;

/// The table of a page, sorted as the user wants it, and bounded by what it has.
pub(super) fn page_table(state: &mut State) -> Table {
    let Some(pool) = state.shown() else { return Table::default() };
    let mut table = match state.page {
        Page::Overview => tables::datasets(&pool.summary),
        Page::Cache => tables::causes(&pool.summary),
        Page::Txg => tables::txgs(&pool.summary),
        Page::Devices => tables::devices(&pool.summary),
        Page::Operations => tables::operations(&pool.summary),
        Page::Misses => tables::misses(&pool.summary),
    };
    state.bound_view(table.headings.len(), table.rows.len());
    let view = state.view();
    if let Some(column) = view.sort {
        table.sort(column, view.reverse);
    }
    table
}

/// The plots of a page, most important first.
fn plots(page: Page, pool: &PoolState) -> Vec<Series> {
    let has_l2 = pool.summary.devices.iter().any(|device| device.l2);
    match page {
        Page::Overview => vec![
            Series::MemoryHits,
            Series::Operations,
            Series::ReadBytes,
            Series::WriteBytes,
            Series::OperationP99,
            Series::DirtyBytes,
        ],
        Page::Cache => {
            let mut plots = vec![Series::MemoryHits, Series::MruBytes, Series::MfuBytes];
            if has_l2 {
                plots.extend([Series::L2Hits, Series::L2Bytes]);
            }
            plots.extend([Series::GhostBytes, Series::Evictions, Series::DirtyBytes]);
            plots
        }
        Page::Txg => vec![Series::DirtyBytes, Series::CommitTime],
        Page::Devices => vec![
            Series::DeviceReadBytes,
            Series::DeviceWriteBytes,
            Series::DeviceP99,
            Series::DeviceDepth,
        ],
        Page::Operations => vec![Series::Operations, Series::OperationP99],
        Page::Misses => vec![Series::MemoryHits, Series::Evictions],
    }
}

/// Draws the current page.
pub(super) fn draw(
    state: &State,
    table: &Table,
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) {
    let Some(pool) = state.shown() else { return };
    let plots = plots(state.page, pool);
    // The table gets what it needs, up to half; the plots get the rest.
    let wanted = (table.rows.len() as u16).saturating_add(1);
    let below = wanted.max(TABLE_MIN).min((area.height / 2).max(TABLE_MIN)).min(area.height);
    let (mut above, mut below) = split(area, area.height - below);
    if state.page == Page::Cache {
        above = draw_cache(pool, (buffer, above), theme);
    }
    let used = draw_plots((&plots, pool), state.span(), (buffer, above), theme);
    // What the plots leave goes to the table.
    if state.page != Page::Cache {
        below = Rect { y: above.y + used, height: area.bottom() - above.y - used, ..below };
    }
    match table.rows.is_empty() {
        true => {
            let text = match state.page {
                Page::Overview | Page::Operations => "no dataset of the pool is mounted",
                Page::Txg => "no transaction group was committed since the import",
                Page::Cache => "no block has left the cache yet",
                Page::Devices => "no requests yet",
                Page::Misses => "no misses of the last minute; the next sample may have some",
            };
            buffer.set_stringn(below.x, below.y, text, below.width.into(), theme.dim());
        }
        false => table::draw(table, state.view(), (buffer, below), theme),
    }
}

fn split(area: Rect, above: u16) -> (Rect, Rect) {
    let (top, bottom) = (area.y, area.y + above);
    (
        Rect { y: top, height: above, ..area },
        Rect { y: bottom, height: area.height - above, ..area },
    )
}

/// Draws hits and lists on the left. Returns what is left for plots.
fn draw_cache(pool: &PoolState, (buffer, area): (&mut Buffer, Rect), theme: Theme) -> Rect {
    let hits = tables::hits(&pool.summary);
    let lists = tables::lists(&pool.summary);
    let left = 42.min(area.width);
    let mut rest = Rect { width: left, ..area };
    for table in [hits, lists] {
        let height = (table.rows.len() as u16 + 1).min(rest.height);
        let place = Rect { height, ..rest };
        table::draw(&table, TableView::default(), (buffer, place), theme);
        // A blank line follows.
        let used = (height + 1).min(rest.height);
        rest = Rect { y: rest.y + used, height: rest.height - used, ..rest };
    }
    let gap = (left + 2).min(area.width);
    Rect { x: area.x + gap, width: area.width - gap, ..area }
}

/// Draws plots in columns, at least 36 wide. Leaves out those that do not fit. Returns the rows
/// used.
fn draw_plots(
    (plots, pool): (&[Series], &PoolState),
    span: (f64, f64),
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) -> u16 {
    let across = (area.width / 36).clamp(1, plots.len() as u16);
    let rows_max = (area.height / plot::HEIGHT_MIN).max(1);
    let rows = (plots.len() as u16).div_ceil(across).min(rows_max);
    let height = (area.height / rows).min(12);
    let width = area.width / across;
    for (at, series) in plots.iter().take(usize::from(rows * across)).enumerate() {
        let (row, column) = (at as u16 / across, at as u16 % across);
        let place = Rect {
            x: area.x + column * width,
            y: area.y + row * height,
            width: width - u16::from(column + 1 < across) * 2,
            height,
        };
        plot::draw((*series, &pool.history), span, (buffer, place), theme);
    }
    rows * height
}
