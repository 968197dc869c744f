//! The terminal: raw mode, the alternate screen, keys, and the loop that draws.
//!
//! # Invariants
//!
//! - The terminal is restored however the loop ends: by a key, a signal, an error or a panic.
//! - The loop waits for keys only as long as [`TICK`], so it sees signals, new samples and a new
//!   size soon.
//! - No thread takes `SIGWINCH`. Crossterm waits for keys and for that signal with an epoll that is
//!   edge-triggered, and returns at the first of two events: it would leave a key unread that came
//!   together with the signal, until the next key. So the loop compares sizes.

use std::io::Stdout;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::poll::Round;
use super::screen::{self, Theme};
use super::state::{Action, Page, State};
use crate::error::{Failure, Result};
use crate::output;

/// Longest wait for a key.
const TICK: Duration = Duration::from_millis(100);
/// How often the screen is drawn without news: a message counts seconds.
const REDRAW: Duration = Duration::from_secs(1);

fn failed(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot use the terminal: {error}; use --once"))
}

/// Restores the terminal when it is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn open() -> Result<Self> {
        let (before, drawer) = (panic::take_hook(), std::thread::current().id());
        panic::set_hook(Box::new(move |info| {
            // Before the message is printed. A panic of another thread does not end the screen.
            if std::thread::current().id() == drawer {
                restore();
            }
            before(info);
        }));
        terminal::enable_raw_mode().map_err(failed)?;
        let opened = execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(std::io::stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(failed(error))
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Does no harm if it was restored before.
fn restore() {
    // Nothing can be done if the terminal is gone.
    let _ = execute!(std::io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}

/// Blocks the signal of a new size in this thread and in those that it starts.
pub(super) fn block_resize_signal() {
    // SAFETY: all zeros are a valid set, and the calls only read and change this one.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGWINCH);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
    }
}

fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    }
    Ok(flag)
}

/// Shows the state until the user quits or a signal comes. Keeps `shows_misses` up to date.
/// [`block_resize_signal`] has to be called before, and before any thread is started.
///
/// # Errors
/// If the terminal cannot be used.
pub(super) fn run(
    mut state: State,
    rounds: &Receiver<Round>,
    shows_misses: &AtomicBool,
) -> Result<()> {
    let stop = stop_flag()?;
    let theme = Theme { colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let mut screen = Screen::open()?;
    let began = Instant::now();
    let mut drawn: Option<Instant> = None;
    let mut drawn_size = None;
    while !output::is_raised(&stop) {
        let mut news = drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW);
        loop {
            match rounds.try_recv() {
                Ok(round) => {
                    let at = round.at.saturating_duration_since(began).as_secs_f64();
                    state.take(at, round.samples, round.trouble);
                    news = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::new("the thread that asks the daemons has ended"));
                }
            }
        }
        let size = screen.terminal.size().ok();
        if news || (size.is_some() && size != drawn_size) {
            state.tick(began.elapsed().as_secs_f64());
            let draw = |frame: &mut ratatui::Frame<'_>| {
                let area = frame.area();
                screen::draw(&mut state, (frame.buffer_mut(), area), theme);
            };
            screen.terminal.draw(draw).map_err(failed)?;
            (drawn, drawn_size) = (Some(Instant::now()), size);
        }
        if !wait_for_input() {
            return Ok(());
        }
        if !event::poll(Duration::ZERO).map_err(failed)? {
            continue;
        }
        if let Event::Key(key) = event::read().map_err(failed)?
            && key.kind == KeyEventKind::Press
        {
            if handle(&mut state, key) == Action::Quit {
                return Ok(());
            }
            shows_misses.store(state.page == Page::Misses, Ordering::Relaxed);
            drawn = None;
        }
    }
    Ok(())
}

/// Waits for a key or a signal, at most a tick. False if the terminal is gone: `event::poll` would
/// then read its end again and again.
fn wait_for_input() -> bool {
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: `input` is one valid entry, which the call changes.
    let ready = unsafe { libc::poll(&raw mut input, 1, TICK.as_millis() as libc::c_int) };
    ready <= 0 || input.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

fn handle(state: &mut State, key: KeyEvent) -> Action {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if control => Action::Quit,
        _ if control => Action::Continue,
        code => state.key(code),
    }
}
