//! The tables of `forebay top`, for the screen and for text.
//!
//! Pure: from figures to cells. A cell has a number if it is sorted by one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::summary::{Amount, Durations, Hits, MissedSummary, PoolSummary, TxgSummary};
use crate::units;

/// A table. A heading that begins with `>` is right-aligned, as in [`units::table`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) headings: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Columns that a narrow screen leaves out, the last one first.
    pub(crate) optional: Vec<usize>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    number: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    fn number(number: f64, text: String) -> Self {
        Self { text, number: Some(number) }
    }

    fn count(number: f64) -> Self {
        Self::number(number, units::count(number))
    }

    fn bytes(bytes: f64) -> Self {
        Self::number(bytes, units::bytes(bytes as u64))
    }

    fn ns(ns: u64) -> Self {
        let text = if ns == 0 { "-".to_owned() } else { units::nanoseconds(ns) };
        Self::number(ns as f64, text)
    }

    fn ratio(ratio: Option<f64>) -> Self {
        // Nothing sorts below 0 %.
        Self::number(ratio.unwrap_or(-1.0), percent(ratio))
    }

    /// Numbers before texts, greater numbers first; texts in alphabetical order.
    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(two)) => two.total_cmp(&one),
            (one, two) => two.is_some().cmp(&one.is_some()).then(self.text.cmp(&other.text)),
        }
    }
}

/// A ratio as a percentage; a dash if there is none.
pub(crate) fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1}%", 100.0 * ratio))
}

impl Table {
    /// Sorts by a column; equal rows keep their order.
    pub(crate) fn sort(&mut self, column: usize, reverse: bool) {
        if column >= self.headings.len() {
            return;
        }
        self.rows.sort_by(|one, two| {
            let order = one[column].compare(&two[column]);
            if reverse { order.reverse() } else { order }
        });
    }

    /// As text.
    pub(crate) fn to_text(&self) -> String {
        let text = |row: &Vec<Cell>| row.iter().map(|cell| cell.text.clone()).collect();
        units::table(&self.headings, &self.rows.iter().map(text).collect::<Vec<_>>())
    }
}

fn latency_cells(latency: &Durations) -> [Cell; 3] {
    let interval = &latency.interval;
    [Cell::ns(interval.p50_ns), Cell::ns(interval.p99_ns), Cell::ns(interval.max_ns)]
}

/// Mounted datasets.
pub(crate) fn datasets(summary: &PoolSummary) -> Table {
    let row = |dataset: &super::summary::DatasetSummary| {
        let mut cells = vec![
            Cell::text(dataset.dataset.clone()),
            Cell::count(dataset.operations_total.per_second),
            Cell::bytes(dataset.read_bytes.per_second),
            Cell::bytes(dataset.write_bytes.per_second),
            Cell::ratio(dataset.in_memory_ratio),
        ];
        cells.extend(latency_cells(&dataset.latency));
        cells
    };
    Table {
        headings: vec![
            "DATASET", ">OP/S", ">READ/S", ">WRITE/S", ">IN MEM", ">P50", ">P99", ">MAX",
        ],
        rows: summary.datasets.iter().map(row).collect(),
        optional: Vec::new(),
    }
}

/// What was missed most often: files, directories, and other blocks.
pub(crate) fn misses(summary: &PoolSummary) -> Table {
    let row = |missed: &MissedSummary| {
        vec![
            Cell::text(missed.name.clone()),
            Cell::text(missed.class.clone()),
            Cell::count(missed.misses_per_second),
            Cell::ratio(Some(missed.share)),
            Cell::ratio(Some(missed.used_once)),
        ]
    };
    Table {
        headings: vec!["MISSED", "CLASS", ">MISSES/S", ">SHARE", ">USED ONCE"],
        rows: summary.misses.iter().map(row).collect(),
        optional: vec![4, 1],
    }
}

/// Operations that have occurred, by dataset and type.
pub(crate) fn operations(summary: &PoolSummary) -> Table {
    let rows = summary.operations().map(|(dataset, operation)| {
        let mut cells = vec![
            Cell::text(operation.operation.clone()),
            Cell::text(dataset.dataset.clone()),
            Cell::count(operation.latency.per_second),
            Cell::count(operation.waited.per_second),
        ];
        cells.extend(latency_cells(&operation.latency));
        cells.push(Cell::count(operation.latency.total.count as f64));
        cells.push(Cell::ns(operation.latency.total.max_ns));
        cells
    });
    Table {
        headings: vec![
            "OPERATION",
            "DATASET",
            ">PER S",
            ">WAIT/S",
            ">P50",
            ">P99",
            ">MAX",
            ">TOTAL",
            ">MAX EVER",
        ],
        rows: rows.collect(),
        optional: vec![7, 8],
    }
}

/// Devices and what was requested of them.
pub(crate) fn devices(summary: &PoolSummary) -> Table {
    let mut rows = Vec::new();
    for device in &summary.devices {
        let name = device.path.rsplit('/').next().unwrap_or(&device.path);
        let name = if device.l2 { format!("{name} (L2)") } else { name.to_owned() };
        for kind in &device.requests {
            let depth = kind.latency.per_second * kind.latency.interval.mean_ns as f64 / 1e9;
            let mut cells = vec![
                Cell::text(name.clone()),
                Cell::text(kind.request.clone()),
                Cell::count(kind.latency.per_second),
                Cell::bytes(kind.bytes.per_second),
            ];
            cells.extend(latency_cells(&kind.latency));
            cells.push(Cell::number(depth, format!("{depth:.1}")));
            cells.push(Cell::count(kind.in_flight as f64));
            cells.push(Cell::count(kind.failed.total as f64));
            rows.push(cells);
        }
    }
    Table {
        headings: vec![
            "DEVICE", "REQUEST", ">PER S", ">BYTES/S", ">P50", ">P99", ">MAX", ">DEPTH", ">NOW",
            ">FAILED",
        ],
        rows,
        optional: vec![9, 8],
    }
}

/// Hits by level and by class.
pub(crate) fn hits(summary: &PoolSummary) -> Table {
    let cache = &summary.cache;
    let row = |name: &str, hits: &Hits| {
        let missed = hits.requests.per_second - hits.hits.per_second;
        vec![
            Cell::text(name),
            Cell::count(hits.requests.per_second),
            Cell::count(missed.max(0.0)),
            Cell::ratio(hits.ratio),
            Cell::ratio(hits.total_ratio),
        ]
    };
    let mut rows = vec![row("memory", &cache.memory)];
    if summary.devices.iter().any(|device| device.l2) {
        rows.push(row("L2", &cache.l2));
    }
    rows.push(row("metadata", &cache.metadata));
    rows.push(row("data", &cache.data));
    Table {
        headings: vec!["HITS", ">BLOCKS/S", ">MISSED/S", ">RATIO", ">EVER"],
        rows,
        optional: vec![2],
    }
}

/// Bytes by list and class.
pub(crate) fn lists(summary: &PoolSummary) -> Table {
    let cache = &summary.cache;
    let mut lists: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for state in &cache.states {
        let list = lists.entry(&state.state).or_default();
        list[usize::from(state.class == "data")] += state.bytes;
        list[2] += state.blocks;
    }
    let row = |name: &str, [metadata, data, blocks]: [u64; 3]| {
        vec![
            Cell::text(name.replace('_', " ")),
            Cell::bytes(metadata as f64),
            Cell::bytes(data as f64),
            Cell::count(blocks as f64),
        ]
    };
    let order = ["mru", "mfu", "once", "mru_ghost", "mfu_ghost"];
    let found = order.iter().filter_map(|name| Some(row(name, *lists.get(name)?)));
    let mut rows: Vec<_> = found.collect();
    let single = |name: &str, bytes: u64| {
        vec![Cell::text(name), Cell::text("-"), Cell::bytes(bytes as f64), Cell::text("-")]
    };
    rows.push(single("dirty", cache.dirty_bytes));
    if summary.devices.iter().any(|device| device.l2) {
        rows.push(single("L2", cache.l2_bytes));
    }
    Table { headings: vec!["LIST", ">METADATA", ">DATA", ">BLOCKS"], rows, optional: vec![3] }
}

/// Blocks that left the cache or were not cached, by cause. Causes that never occurred are left
/// out.
pub(crate) fn causes(summary: &PoolSummary) -> Table {
    let cache = &summary.cache;
    let groups = [
        ("evicted", "from ", &cache.evicted),
        ("left", "", &cache.left),
        ("not cached", "", &cache.refused),
        ("back", "", &cache.ghost_hits),
    ];
    let mut rows = Vec::new();
    for (what, prefix, amounts) in groups {
        for (cause, amount) in amounts.iter().filter(|(_, amount)| amount.total > 0) {
            let suffix = if what == "back" { " ghost" } else { "" };
            rows.push(cause_row(
                what,
                format!("{prefix}{}{suffix}", cause.replace('_', " ")),
                amount,
            ));
        }
    }
    Table { headings: vec!["BLOCKS", "CAUSE", ">PER S", ">TOTAL"], rows, optional: Vec::new() }
}

fn cause_row(what: &str, cause: String, amount: &Amount) -> Vec<Cell> {
    vec![
        Cell::text(what),
        Cell::text(cause),
        Cell::count(amount.per_second),
        Cell::count(amount.total as f64),
    ]
}

/// The newest transaction groups with their phases, newest first.
pub(crate) fn txgs(summary: &PoolSummary) -> Table {
    let mut headings = vec![">TXG", ">OPEN", ">DIRTY", ">WRITTEN", ">TOOK"];
    // The names of the phases are short, and known here to be static.
    headings.extend(PHASES.map(|(_, heading)| heading));
    let at = |name: &str| summary.txg.phases.iter().position(|phase| phase.phase == name);
    let row = |txg: &crate::control::sample::TxgInfo| {
        let mut cells = vec![
            Cell::number(txg.txg as f64, txg.txg.to_string()),
            Cell::ns(txg.open_ns),
            Cell::bytes(txg.dirty_bytes as f64),
            Cell::bytes(txg.written_bytes as f64),
            Cell::ns(TxgSummary::took_ns(txg)),
        ];
        cells.extend(PHASES.map(|(name, _)| {
            Cell::ns(at(name).and_then(|at| txg.phase_ns.get(at)).copied().unwrap_or(0))
        }));
        cells
    };
    // Open, readers, space.
    let optional = vec![1, 9, 6];
    Table { headings, rows: summary.txg.newest.iter().map(row).collect(), optional }
}

/// Phases of a commit and their headings.
const PHASES: [(&str, &str); 7] = [
    ("quiesce", ">QUIESCE"),
    ("readers", ">READERS"),
    ("objects", ">OBJECTS"),
    ("writes", ">WRITES"),
    ("space", ">SPACE"),
    ("flush", ">FLUSH"),
    ("uberblock", ">UBERBLOCK"),
];
