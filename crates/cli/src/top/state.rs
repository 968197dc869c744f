//! The state of `forebay top`: pools with their figures and history, and what the user chose.
//!
//! Pure: samples, keys and the time come from the caller.
//!
//! # Invariants
//!
//! - The selected pool stays selected while it is gone, with what it last showed, until it comes
//!   back or the user picks another one.
//! - While paused, the shown figures and the end of the time axis stand still. History is recorded
//!   all the same.

use std::collections::HashMap;

use ratatui::crossterm::event::KeyCode;

use super::history::History;
use super::summary::{PoolSummary, Samples};
use crate::control::sample::ProcessSample;

/// Time spans of the plots, in seconds.
const SPANS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Page {
    Overview,
    Cache,
    Txg,
    Devices,
    Operations,
    Misses,
}

impl Page {
    pub(crate) const ALL: [Self; 6] =
        [Self::Overview, Self::Cache, Self::Txg, Self::Devices, Self::Operations, Self::Misses];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Cache => "Cache",
            Self::Txg => "Txg",
            Self::Devices => "Devices",
            Self::Operations => "Operations",
            Self::Misses => "Misses",
        }
    }

    fn step(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// How the table of a page is sorted, and how far it is scrolled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableView {
    /// None keeps the order of the daemon.
    pub(crate) sort: Option<usize>,
    pub(crate) reverse: bool,
    pub(crate) scroll: usize,
}

/// A pool that was seen.
#[derive(Clone, Debug)]
pub(crate) struct PoolState {
    guid: u64,
    pub(crate) summary: PoolSummary,
    pub(crate) history: History,
    /// When it was last seen.
    seen: f64,
    /// Whether the newest answers did not have it.
    pub(crate) gone: bool,
}

/// What a key asks of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    Quit,
}

/// Everything that a screen shows.
pub(crate) struct State {
    pools: Vec<PoolState>,
    selected: u64,
    pub(crate) page: Page,
    views: [TableView; Page::ALL.len()],
    span: usize,
    paused: Option<(f64, PoolState)>,
    pub(crate) help: bool,
    /// The highlighted row while a pool is being picked.
    pub(crate) picking: Option<usize>,
    /// The newest sample of each daemon.
    samples: HashMap<u32, ProcessSample>,
    /// Why a daemon does not answer.
    pub(crate) trouble: Option<String>,
    now: f64,
    /// When the daemons were asked last; none before the first answers.
    answered: Option<f64>,
    pub(crate) interval: f64,
}

impl State {
    /// Starts with the pool `selected`; 0 takes the first one.
    pub(crate) fn new(selected: u64, interval: f64) -> Self {
        Self {
            pools: Vec::new(),
            selected,
            page: Page::Overview,
            views: [TableView::default(); Page::ALL.len()],
            span: 0,
            paused: None,
            help: false,
            picking: None,
            samples: HashMap::new(),
            trouble: None,
            now: 0.0,
            answered: None,
            interval,
        }
    }

    /// Sets the time, in seconds since the start.
    pub(crate) fn tick(&mut self, now: f64) {
        self.now = self.now.max(now);
    }

    /// Takes the samples of all daemons that answer, and why others do not.
    pub(crate) fn take(&mut self, now: f64, samples: Vec<ProcessSample>, trouble: Option<String>) {
        self.tick(now);
        (self.answered, self.trouble) = (Some(now), trouble);
        let before = std::mem::take(&mut self.samples);
        for pool in &mut self.pools {
            pool.gone = true;
        }
        for sample in samples {
            // Rates need two samples: the first one has none.
            let is_first = !before.contains_key(&sample.pid);
            let earlier = before.get(&sample.pid).unwrap_or(&sample);
            for pool in &sample.pools {
                let summary = Samples { now: &sample, before: earlier }.summary(pool.guid);
                if let Some(summary) = summary {
                    self.put(pool.guid, summary, is_first);
                }
            }
            self.samples.insert(sample.pid, sample);
        }
        let selected = self.selected;
        self.pools.retain(|pool| !pool.gone || pool.guid == selected);
        if !self.pools.iter().any(|pool| pool.guid == selected)
            && let Some(first) = self.pools.first()
        {
            self.selected = first.guid;
        }
    }

    fn put(&mut self, guid: u64, summary: PoolSummary, is_first: bool) {
        let now = self.now;
        let at = self.pools.iter().position(|pool| pool.guid == guid).unwrap_or_else(|| {
            let (summary, history) = (PoolSummary::default(), History::default());
            self.pools.push(PoolState { guid, summary, history, seen: now, gone: false });
            self.pools.len() - 1
        });
        let pool = &mut self.pools[at];
        if !is_first {
            pool.history.push(now, &summary);
        }
        (pool.summary, pool.seen, pool.gone) = (summary, now, false);
    }

    /// The pools, for a list.
    pub(crate) fn pools(&self) -> &[PoolState] {
        &self.pools
    }

    /// The number of the selected pool in the list.
    pub(crate) fn selected(&self) -> usize {
        self.pools.iter().position(|pool| pool.guid == self.selected).unwrap_or(0)
    }

    /// The pool to show: as it is, or as it was when the user paused.
    pub(crate) fn shown(&self) -> Option<&PoolState> {
        match &self.paused {
            Some((_, pool)) => Some(pool),
            None => self.pools.get(self.selected()),
        }
    }

    /// Time span of the plots: its end and its length.
    pub(crate) fn span(&self) -> (f64, f64) {
        let end = self.paused.as_ref().map_or(self.now, |(at, _)| *at);
        (end, SPANS[self.span])
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The view of the table on the current page.
    pub(crate) fn view(&self) -> TableView {
        self.views[self.page as usize]
    }

    /// What is wrong, for the user.
    pub(crate) fn message(&self) -> Option<String> {
        let silent = self.now - self.answered.unwrap_or(0.0);
        let late = silent > 3.0 * self.interval + 2.0;
        match self.pools.get(self.selected()) {
            _ if late => Some(format!("the daemon has not answered for {silent:.0} s")),
            None if self.answered.is_none() => Some("asking the daemons".into()),
            None if self.trouble.is_none() => {
                Some("no pools are in use; waiting for `forebay mount` or `forebay import`".into())
            }
            Some(pool) if pool.gone && self.trouble.is_none() => Some(format!(
                "pool {} is gone for {:.0} s: process {} ended or exported it; waiting",
                pool.summary.pool,
                self.now - pool.seen,
                pool.summary.pid
            )),
            _ => self.trouble.clone(),
        }
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyCode) -> Action {
        if self.picking.is_some() {
            self.pick(key);
            return Action::Continue;
        }
        if self.help {
            self.help = false;
            return if key == KeyCode::Char('q') { Action::Quit } else { Action::Continue };
        }
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char(digit @ '1'..='6') => {
                self.page = Page::ALL[digit as usize - '1' as usize];
            }
            KeyCode::Tab | KeyCode::Right => self.page = self.page.step(1),
            KeyCode::BackTab | KeyCode::Left => self.page = self.page.step(Page::ALL.len() - 1),
            KeyCode::Char(' ') => self.pause(),
            KeyCode::Char('+' | '=') => self.span = self.span.saturating_sub(1),
            KeyCode::Char('-') => self.span = (self.span + 1).min(SPANS.len() - 1),
            KeyCode::Char('p') => self.picking = Some(self.selected()),
            _ => self.change_view(key),
        }
        Action::Continue
    }

    fn change_view(&mut self, key: KeyCode) {
        let view = &mut self.views[self.page as usize];
        match key {
            // The screen bounds both by what the table has.
            KeyCode::Char('s') => view.sort = Some(view.sort.map_or(0, |column| column + 1)),
            KeyCode::Char('S') => view.sort = None,
            KeyCode::Char('r') => view.reverse = !view.reverse,
            KeyCode::Down | KeyCode::Char('j') => view.scroll = view.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => view.scroll = view.scroll.saturating_sub(1),
            KeyCode::Home => view.scroll = 0,
            _ => {}
        }
    }

    /// Bounds the view of the current page by its table: after the last column the order is that of
    /// the daemon again.
    pub(crate) fn bound_view(&mut self, columns: usize, rows: usize) {
        let view = &mut self.views[self.page as usize];
        view.sort = view.sort.filter(|column| *column < columns);
        view.scroll = view.scroll.min(rows.saturating_sub(1));
    }

    fn pause(&mut self) {
        self.paused = match self.paused {
            Some(_) => None,
            None => self.pools.get(self.selected()).map(|pool| (self.now, pool.clone())),
        };
    }

    fn pick(&mut self, key: KeyCode) {
        let Some(row) = self.picking else { return };
        let last = self.pools.len().saturating_sub(1);
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.picking = Some((row + 1).min(last)),
            KeyCode::Up | KeyCode::Char('k') => self.picking = Some(row.saturating_sub(1)),
            KeyCode::Enter => {
                if let Some(pool) = self.pools.get(row) {
                    self.selected = pool.guid;
                }
                (self.picking, self.paused) = (None, None);
            }
            _ => self.picking = None,
        }
    }
}
