//! Screens as users see them, cell by cell.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;

use super::*;
use crate::top::state::Action;
use crate::top::testing::sample;

const TANK: (&str, u64) = ("tank", 1);

fn rendered(state: &mut State, (width, height): (u16, u16), colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        let area = frame.area();
        draw(state, (frame.buffer_mut(), area), Theme { colour });
    };
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn screen(state: &mut State, size: (u16, u16)) -> String {
    lines(&rendered(state, size, true)).join("\n")
}

/// Under load for some seconds.
fn under_load(pools: &[(&str, u64)]) -> State {
    let mut state = State::new(0, 1.0);
    for second in 1..=20 {
        state.take(second as f64, vec![sample(7, pools, second)], None);
    }
    state
}

#[track_caller]
fn shows(screen: &str, texts: &[&str]) {
    for text in texts {
        assert!(screen.contains(text), "{text:?} is not on the screen:\n{screen}");
    }
}

#[test]
fn the_overview_has_everything_on_80_by_24() {
    let shown = screen(&mut under_load(&[TANK]), (80, 24));
    shows(&shown, &["forebay top  tank  online  process 7", "every 1 s", " 1 Overview  "]);
    shows(&shown, &["space 400M of 1.00G, 600M available  memory 300M of 1.00G  cache 64.0M"]);
    // Figures of plots: 900 of 1000 blocks a second were in memory, 3000 reads a second of 4 KiB.
    shows(&shown, &["Blocks found in memory 90.0%", "Operations 3.0k/s", "Read 11.7M/s"]);
    shows(&shown, &["Operations, p99 2.0ms", "Dirty 5.00M", "100.0%", "-1 min", "-30 s", "now"]);
    shows(&shown, &["DATASET", "IN MEM", "main", "busy", "90.0%", "? help"]);
    let row = shown.lines().find(|line| line.starts_with("busy")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["busy", "2.0k", "7.81M", "0B", "90.0%", "10.2µs", "2.0ms", "2.0ms"]);
}

#[test]
fn every_page_shows_its_figures() {
    let mut state = under_load(&[TANK]);
    for (key, texts) in [
        ('2', &["memory", "metadata", "100.0%", "mru ghost", "from mru", "capacity"][..]),
        ('3', &["120", "QUIESCE", "UBERBLOCK", "28.0ms", "1.0ms", "7.0ms"][..]),
        ('4', &["tank.img", "read", "write", "400", "1.56M", "FAILED"][..]),
        ('5', &["OPERATION", "read", "main", "busy", "2.0k", "MAX EVER"][..]),
        ('6', &["MISSED", "directory /mail of tank/main", "75.0", "75.0%", "50.0%"][..]),
    ] {
        state.key(KeyCode::Char(key));
        shows(&screen(&mut state, (120, 40)), texts);
    }
    // A narrow screen leaves out what matters least.
    state.key(KeyCode::Char('3'));
    let narrow = screen(&mut state, (80, 24));
    shows(&narrow, &["QUIESCE", "OBJECTS", "WRITES", "FLUSH", "UBERBLOCK"]);
    assert!(!narrow.contains("SPACE"), "{narrow}");
}

#[test]
fn nothing_is_drawn_outside_of_any_screen() {
    let mut state = under_load(&[TANK]);
    for key in ['1', '2', '3', '4', '5', '6', '?', 'p'] {
        state.key(KeyCode::Char(key));
        for width in [1, 20, 39, 40, 41, 60, 79, 80, 121, 250] {
            for height in [1, 2, 7, 8, 9, 12, 23, 24, 41, 90] {
                screen(&mut state, (width, height));
            }
        }
    }
}

#[test]
fn without_colour_there_is_none() {
    let mut state = under_load(&[TANK]);
    let plain = |buffer: &Buffer| {
        let is_plain =
            |cell: &ratatui::buffer::Cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset);
        buffer.content().iter().all(is_plain)
    };
    for page in '1'..='6' {
        state.key(KeyCode::Char(page));
        let (without, with) =
            (rendered(&mut state, (80, 24), false), rendered(&mut state, (80, 24), true));
        assert!(plain(&without) && !plain(&with));
        assert_eq!(lines(&without), lines(&with));
    }
}

#[test]
fn a_paused_screen_stands_still_and_history_goes_on() {
    let mut state = under_load(&[TANK]);
    state.key(KeyCode::Char(' '));
    let before = screen(&mut state, (80, 24));
    shows(&before, &["PAUSED"]);
    // Idle for a minute.
    for second in 21..=80 {
        let idle = crate::control::sample::ProcessSample {
            at_ns: second * 1_000_000_000,
            ..sample(7, &[TANK], 20)
        };
        state.take(second as f64, vec![idle], None);
    }
    assert_eq!(screen(&mut state, (80, 24)), before);
    state.key(KeyCode::Char(' '));
    shows(&screen(&mut state, (80, 24)), &["Operations 0/s", "Blocks found in memory -"]);
}

#[test]
fn tables_are_sorted_by_any_column() {
    let mut state = under_load(&[TANK]);
    let order = |state: &mut State| {
        let shown = screen(state, (80, 24));
        let at = |name: &str| shown.lines().position(|line| line.starts_with(name)).unwrap();
        if at("busy") < at("main") { "busy first" } else { "main first" }
    };
    assert_eq!(order(&mut state), "main first");
    state.key(KeyCode::Char('s'));
    // By name.
    assert_eq!(order(&mut state), "busy first");
    state.key(KeyCode::Char('r'));
    assert_eq!(order(&mut state), "main first");
    shows(&screen(&mut state, (80, 24)), &["DATASET▲"]);
    state.key(KeyCode::Char('r'));
    state.key(KeyCode::Char('s'));
    // By operations, the most first.
    assert_eq!(order(&mut state), "busy first");
    shows(&screen(&mut state, (80, 24)), &["OP/S▼"]);
    // After the last column: as it came.
    for _ in 0..7 {
        state.key(KeyCode::Char('s'));
    }
    assert_eq!(order(&mut state), "main first");
}

#[test]
fn zoom_changes_the_time_axis() {
    let mut state = under_load(&[TANK]);
    for wanted in ["-5 min", "-15 min", "-1 h", "-1 h"] {
        state.key(KeyCode::Char('-'));
        shows(&screen(&mut state, (80, 24)), &[wanted]);
    }
    for _ in 0..4 {
        state.key(KeyCode::Char('+'));
    }
    shows(&screen(&mut state, (80, 24)), &["-1 min"]);
}

/// Twenty seconds of load are the right third of a plot of a minute, and nothing is left of it.
#[test]
fn a_plot_has_bars_where_there_was_load() {
    let buffer = rendered(&mut under_load(&[TANK]), (80, 24), true);
    // The bottom row of the first plot, right of its labels.
    let bars: Vec<bool> = (7..38).map(|x| buffer[(x, 6)].symbol() != " ").collect();
    let first = bars.iter().position(|bar| *bar).unwrap();
    assert!(bars[first..].iter().all(|bar| *bar), "{bars:?}");
    // 19 of 60 seconds: the first sample has no rate.
    assert!((20..=22).contains(&first), "{first}: {bars:?}");
}

#[test]
fn a_pool_is_picked_from_several() {
    let mut state = under_load(&[TANK, ("lake", 2), ("sea", 3)]);
    shows(&screen(&mut state, (80, 24)), &["tank  online  pool 1 of 3"]);
    state.key(KeyCode::Char('p'));
    shows(&screen(&mut state, (80, 24)), &["Pick a pool", " lake", " sea"]);
    state.key(KeyCode::Down);
    state.key(KeyCode::Down);
    state.key(KeyCode::Down);
    state.key(KeyCode::Enter);
    let shown = screen(&mut state, (80, 24));
    shows(&shown, &["sea  online  pool 3 of 3"]);
    assert!(!shown.contains("Pick a pool"), "{shown}");
}

#[test]
fn a_pool_that_goes_is_waited_for_and_shown_again() {
    let mut state = under_load(&[TANK]);
    let bars = |state: &mut State| {
        let buffer = rendered(state, (80, 24), true);
        (7..38).filter(|x| buffer[(*x, 6)].symbol() != " ").count()
    };
    let before = bars(&mut state);
    state.take(21.0, Vec::new(), None);
    state.tick(25.0);
    let shown = screen(&mut state, (80, 24));
    shows(
        &shown,
        &["pool tank is gone for 5 s: process 7 ended or exported it; waiting", "q quit"],
    );
    // Its last figures stay, and the time without samples is a gap.
    shows(&shown, &["main", "busy"]);
    // Another daemon imports it: rates begin with its second sample.
    state.take(30.0, vec![sample(8, &[TANK], 1)], None);
    assert!(bars(&mut state).abs_diff(before) <= 1);
    state.take(31.0, vec![sample(8, &[TANK], 2)], None);
    let shown = screen(&mut state, (80, 24));
    shows(&shown, &["process 8", "Operations 3.0k/s", "? help"]);
}

#[test]
fn what_is_wrong_is_said() {
    let mut state = State::new(0, 1.0);
    shows(&screen(&mut state, (80, 24)), &["asking the daemons"]);
    state.take(0.0, Vec::new(), None);
    shows(&screen(&mut state, (80, 24)), &["no pools are in use; waiting"]);
    state.take(1.0, Vec::new(), Some("daemon 9: does not answer in time".to_owned()));
    shows(&screen(&mut state, (80, 24)), &["daemon 9: does not answer in time"]);
    state.take(2.0, vec![sample(7, &[TANK], 1)], None);
    state.tick(20.0);
    shows(&screen(&mut state, (80, 24)), &["the daemon has not answered for 18 s"]);
}

#[test]
fn help_names_the_keys_and_q_quits() {
    let mut state = under_load(&[TANK]);
    assert_eq!(state.key(KeyCode::Char('?')), Action::Continue);
    shows(&screen(&mut state, (80, 24)), &["Keys", "pick a pool", "zoom in and out", "quit"]);
    assert_eq!(state.key(KeyCode::Char('x')), Action::Continue);
    assert!(!screen(&mut state, (80, 24)).contains("zoom in and out"));
    assert_eq!(state.key(KeyCode::Char('q')), Action::Quit);
}
