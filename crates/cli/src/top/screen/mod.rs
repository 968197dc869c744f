//! Draws the state of `forebay top` into a buffer of cells.
//!
//! Pure: nothing here touches the terminal. The smallest screen that shows everything is 80 by 24.
//! A smaller one shows less, and nothing is drawn outside of it.

mod pages;
mod plot;
mod table;
#[cfg(test)]
mod tests;
mod theme;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget};

pub(crate) use theme::Theme;

use super::state::{Page, PoolState, State};
use crate::units;

const HELP: [(&str, &str); 11] = [
    ("1 to 6, Tab, arrows", "choose a page"),
    ("p", "pick a pool: arrows, Enter"),
    ("space", "pause; again to go on"),
    ("+ and -", "zoom in and out: 1 min, 5 min, 15 min, 1 h"),
    ("s", "sort the table by the next column"),
    ("r", "reverse the order"),
    ("S", "the order of the daemon"),
    ("up, down, j, k", "scroll the table"),
    ("? or h", "this help"),
    ("q, Esc, Ctrl-C", "quit"),
    ("", "P50, P99 and MAX are of the interval. See docs/insight.md for all."),
];

/// Draws everything.
pub(crate) fn draw(state: &mut State, (buffer, area): (&mut Buffer, Rect), theme: Theme) {
    let table = pages::page_table(state);
    let lines = |y: u16, height: u16| Rect { y: area.y + y, height, ..area };
    if area.height < 8 || area.width < 40 {
        let text = "the terminal is too small: 80 by 24 shows everything; q quits";
        buffer.set_stringn(area.x, area.y, text, area.width.into(), theme.alarm());
        return;
    }
    draw_header(state, (buffer, lines(0, 3)), theme);
    let middle = lines(3, area.height - 4);
    pages::draw(state, &table, (buffer, middle), theme);
    draw_footer(state, (buffer, lines(area.height - 1, 1)), theme);
    if state.help {
        draw_help((buffer, area), theme);
    } else if let Some(row) = state.picking {
        draw_pools(state.pools(), row, (buffer, area), theme);
    }
}

fn draw_header(state: &State, (buffer, area): (&mut Buffer, Rect), theme: Theme) {
    let width = usize::from(area.width);
    let mut title = "forebay top".to_owned();
    if let Some(pool) = state.shown() {
        let summary = &pool.summary;
        title = format!("{title}  {}  {}", summary.pool, summary.health);
        if state.pools().len() > 1 {
            title = format!("{title}  pool {} of {}", state.selected() + 1, state.pools().len());
        }
        title = format!("{title}  process {}", summary.pid);
        let suspended = if summary.suspended.is_some() { "SUSPENDED, " } else { "" };
        let bytes = |bytes: u64| plot::short(&units::bytes(bytes));
        let text = format!(
            "{suspended}space {} of {}, {} available  memory {} of {}  cache {} of {}",
            bytes(summary.allocated_bytes),
            bytes(summary.total_bytes),
            bytes(summary.available_bytes),
            bytes(summary.resident_bytes),
            bytes(summary.memory_bytes),
            bytes(summary.cache.metadata_bytes + summary.cache.data_bytes),
            bytes(summary.cache.bound_bytes)
        );
        let style = if summary.suspended.is_some() { theme.alarm() } else { theme.dim() };
        buffer.set_stringn(area.x, area.y + 2, text, width, style);
    }
    buffer.set_stringn(area.x, area.y, title, width, theme.title());
    let every =
        if state.is_paused() { "PAUSED".to_owned() } else { format!("every {} s", state.interval) };
    let at = area.right().saturating_sub(every.chars().count() as u16);
    let style = if state.is_paused() { theme.chosen() } else { theme.dim() };
    buffer.set_string(at, area.y, every, style);
    let mut x = area.x;
    for page in Page::ALL {
        let style = if page == state.page { theme.chosen() } else { theme.dim() };
        let text = format!(" {} {} ", page as usize + 1, page.name());
        buffer.set_stringn(x, area.y + 1, &text, usize::from(area.right() - x), style);
        x = (x + text.len() as u16 + 1).min(area.right());
    }
}

/// The keys, or what is wrong.
fn draw_footer(state: &State, (buffer, area): (&mut Buffer, Rect), theme: Theme) {
    let (text, style) = match state.message() {
        Some(message) => (format!("q quit  {message}"), theme.alarm()),
        None => {
            let keys =
                "? help  q quit  p pool  space pause  +/- zoom  s sort  r reverse  ↑↓ scroll";
            (keys.to_owned(), theme.dim())
        }
    };
    buffer.set_stringn(area.x, area.y, text, area.width.into(), style);
}

/// Clears a box in the middle, frames it, and returns its inside.
fn popup(
    title: &str,
    (width, height): (u16, u16),
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(place, buffer);
    let block = Block::bordered().title(title.to_owned()).title_style(theme.title());
    let inside = block.inner(place);
    block.render(place, buffer);
    inside
}

fn draw_help((buffer, area): (&mut Buffer, Rect), theme: Theme) {
    let size = (72, HELP.len() as u16 + 2);
    let inside = popup(" Keys ", size, (buffer, area), theme);
    for (row, (keys, what)) in HELP.iter().enumerate().take(inside.height.into()) {
        let y = inside.y + row as u16;
        let width = usize::from(inside.width);
        if keys.is_empty() {
            buffer.set_stringn(inside.x, y, what, width, theme.dim());
            continue;
        }
        buffer.set_stringn(inside.x, y, format!("{keys:<21}{what}"), width, Style::default());
    }
}

fn draw_pools(
    pools: &[PoolState],
    chosen: usize,
    (buffer, area): (&mut Buffer, Rect),
    theme: Theme,
) {
    let height = (pools.len() as u16).clamp(1, area.height.saturating_sub(4)) + 2;
    let inside = popup(" Pick a pool ", (60, height), (buffer, area), theme);
    let rows = usize::from(inside.height);
    let first = chosen.saturating_sub(rows.saturating_sub(1));
    for (row, pool) in pools.iter().enumerate().skip(first).take(rows) {
        let summary = &pool.summary;
        let gone = if pool.gone { "gone" } else { &summary.health };
        let text = format!(" {:<24} {:<10} process {}", summary.pool, gone, summary.pid);
        let style = if row == chosen { theme.chosen() } else { Style::default() };
        let y = inside.y + (row - first) as u16;
        let width = usize::from(inside.width);
        buffer.set_stringn(inside.x, y, format!("{text:<width$}"), width, style);
    }
}
