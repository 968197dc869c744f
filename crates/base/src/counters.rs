//! Counters: a table of them, counted where it is cheap, summed when somebody looks.
//!
//! [`counters!`](crate::counters!) turns one row a counter into a type that counts, a constant a
//! row to count with, and the rows themselves ([`CounterRow`]) for help and docs. A row may be
//! split by a set of labels (one cell a label).
//!
//! # How it counts
//!
//! The cells of a table exist once a *shard*, and no two shards share a cache line (nor a
//! pair of lines, since processors prefetch pairs). A thread with an exclusive slot
//! ([`thread_slot`](crate::sync::thread_slot)) owns the shard of that slot, and an add is
//! a plain load and a plain store. All other threads spread over a few overflow shards, with
//! atomic adds. Reading sums over all shards.
//!
//! # Invariants
//!
//! - An exclusive shard is stored to only by the thread that holds its slot. A slot that passes
//!   from an ended thread to a new one does so with release and acquire, so the new thread
//!   continues from the last value. This is why [`Shard`] is neither `Send` nor `Sync`.
//! - Every cell only grows (modulo 2^64).
//!
//! # Locking
//!
//! None. All accesses are relaxed: a sum is some value between the truth when it began and the
//! truth when it ended, and two counters read together need not agree with each other. What is
//! counted before a thread is joined is seen after the join.
//!
//! # What it does not do
//!
//! No gauges (what can fall is kept by its owner), no reset (readers subtract), no rates.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

#[cfg(not(forebay_model))]
use crate::sync;
use crate::sync::atomic::{AtomicU64, Ordering};

#[doc(hidden)]
pub use pastey::paste;

#[cfg(all(test, not(forebay_model)))]
mod tests;

/// Shards for threads that own none: more than one, so that a crowd does not meet on one line.
#[cfg(not(forebay_model))]
const OVERFLOW_SHARDS: usize = 8;

/// All shards of a table. The model checker explores orders of accesses, not costs, so it gets
/// one shard.
#[cfg(not(forebay_model))]
const SHARDS: usize = sync::EXCLUSIVE_SLOTS + OVERFLOW_SHARDS;
#[cfg(forebay_model)]
const SHARDS: usize = 1;

/// What is known of a counter beforehand: one row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Name, in snake case, unique in its table.
    pub name: &'static str,
    /// What is counted, in a sentence or more.
    pub help: &'static str,
    /// The labels that split the row, in the order of their numbers; none if it is not split.
    pub labels: &'static [&'static str],
}

impl CounterRow {
    /// Number of cells of the row: one a label, and one if there are no labels.
    pub const fn width(&self) -> usize {
        if self.labels.is_empty() { 1 } else { self.labels.len() }
    }
}

/// Names one row of a table: where its cells begin, and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    start: usize,
    width: usize,
}

impl Counter {
    /// The cell of `label`, for `add_at` and `sum`; `label` is 0 for a row without labels.
    ///
    /// # Panics
    ///
    /// If the row has no such label (while compiling, if it is evaluated there).
    #[inline]
    pub const fn at(self, label: usize) -> usize {
        assert!(label < self.width, "the counter has no such label");
        self.start + label
    }

    /// The cells of all labels.
    pub const fn cells(self) -> Range<usize> {
        self.start..self.start + self.width
    }

    /// Finds the row called `name`; the macro calls it while compiling.
    #[doc(hidden)]
    pub const fn find(rows: &[CounterRow], name: &str) -> Counter {
        let mut start = 0;
        let mut row = 0;
        while row < rows.len() {
            if same(rows[row].name, name) {
                return Counter { start, width: rows[row].width() };
            }
            start += rows[row].width();
            row += 1;
        }
        panic!("no counter of that name");
    }
}

/// One cell as [`Sharded::snapshot`] saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterValue {
    /// Name of the row.
    pub name: &'static str,
    /// Label of the cell, if the row is split.
    pub label: Option<&'static str>,
    /// What the row counts.
    pub help: &'static str,
    /// The count.
    pub value: u64,
}

/// Cells of one shard, alone on its pair of cache lines.
#[repr(align(128))]
struct Cells<const CELLS: usize>([AtomicU64; CELLS]);

impl<const CELLS: usize> Cells<CELLS> {
    fn zero() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The cells of one table, once a shard. Users meet it inside what
/// [`counters!`](crate::counters!) makes.
pub struct Sharded<const CELLS: usize> {
    shards: Box<[Cells<CELLS>; SHARDS]>,
}

impl<const CELLS: usize> Sharded<CELLS> {
    /// All counters at zero.
    pub fn new() -> Self {
        // Made in place on the heap: a table can be larger than a thread's stack.
        let shards: Vec<Cells<CELLS>> = (0..SHARDS).map(|_| Cells::zero()).collect();
        match shards.into_boxed_slice().try_into() {
            Ok(shards) => Self { shards },
            Err(_) => unreachable!("as many shards as were asked for"),
        }
    }

    /// Adds `n` to a cell that [`Counter::at`] named.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn add_at(&self, flat: usize, n: u64) {
        if !self.add_at_own(flat, n) {
            self.other_shard().add_at(flat, n);
        }
    }

    /// As [`add_at`](Self::add_at), if the calling thread has counted before and has a shard of its own; else it says no, and nothing
    /// is counted: for who would rather call something else than be interrupted by a call.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn add_at_own(&self, flat: usize, n: u64) -> bool {
        #[cfg(not(forebay_model))]
        if let Some(own) = sync::own_slot() {
            add_alone(&self.shards[own].0[flat], n);
            return true;
        }
        let _ = (flat, n);
        false
    }

    /// The shard on which the calling thread counts, to be resolved once for several adds.
    #[inline]
    pub fn shard(&self) -> Shard<'_> {
        #[cfg(not(forebay_model))]
        if let Some(own) = sync::own_slot() {
            return Shard { cells: &self.shards[own].0, exclusive: true, not_send: PhantomData };
        }
        self.other_shard()
    }

    /// As `shard`, for a thread's first count, and for those that share.
    #[cold]
    fn other_shard(&self) -> Shard<'_> {
        #[cfg(forebay_model)]
        let (index, exclusive) = (0, false);
        #[cfg(not(forebay_model))]
        let (index, exclusive) = {
            let slot = sync::thread_slot();
            match slot.exclusive() {
                Some(own) => (own, true),
                None => (sync::EXCLUSIVE_SLOTS + slot.index(OVERFLOW_SHARDS), false),
            }
        };
        Shard { cells: &self.shards[index].0, exclusive, not_send: PhantomData }
    }

    /// The count of one cell, summed over all shards.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    pub fn sum(&self, flat: usize) -> u64 {
        let add = |sum: u64, shard: &Cells<CELLS>| {
            sum.wrapping_add(shard.0[flat].load(Ordering::Relaxed))
        };
        self.shards.iter().fold(0, add)
    }

    /// The count of a row, summed over its labels.
    pub fn total(&self, counter: Counter) -> u64 {
        counter.cells().fold(0, |sum, flat| sum.wrapping_add(self.sum(flat)))
    }

    /// Every cell of `rows`, which must be the rows that this table was made of.
    pub fn snapshot(&self, rows: &'static [CounterRow]) -> Vec<CounterValue> {
        assert_eq!(cells(rows), CELLS, "rows of another table");
        // Shard by shard, so that memory is read in order.
        let mut sums = [0u64; CELLS];
        for shard in self.shards.iter() {
            for (sum, cell) in sums.iter_mut().zip(&shard.0) {
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
            }
        }
        let labelled = rows.iter().flat_map(|row| {
            (0..row.width()).map(move |label| (row, row.labels.get(label).copied()))
        });
        labelled
            .zip(sums)
            .map(|((row, label), value)| CounterValue {
                name: row.name,
                label,
                help: row.help,
                value,
            })
            .collect()
    }

    /// Prints the counters that are not zero, as a map.
    #[doc(hidden)]
    pub fn fmt_rows(&self, rows: &'static [CounterRow], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.snapshot(rows).into_iter().filter(|cell| cell.value != 0);
        f.debug_map()
            .entries(counted.map(|cell| {
                let name = match cell.label {
                    Some(label) => format!("{}{{{label}}}", cell.name),
                    None => cell.name.to_owned(),
                };
                (name, cell.value)
            }))
            .finish()
    }
}

impl<const CELLS: usize> Default for Sharded<CELLS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds to a cell that nobody else stores to: no read-modify-write.
#[inline]
fn add_alone(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Where the calling thread counts; valid for this thread only.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    cells: &'a [AtomicU64],
    exclusive: bool,
    /// A shard belongs to the thread that resolved it.
    not_send: PhantomData<*const ()>,
}

impl Shard<'_> {
    /// Adds `n` to the cell of `label` of `counter`.
    ///
    /// # Panics
    ///
    /// If the row has no such label.
    #[inline]
    pub fn add(self, counter: Counter, label: usize, n: u64) {
        self.add_at(counter.at(label), n);
    }

    /// Adds `n` to a cell that [`Counter::at`] named.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn add_at(self, flat: usize, n: u64) {
        let cell = &self.cells[flat];
        if self.exclusive {
            add_alone(cell, n);
        } else {
            cell.fetch_add(n, Ordering::Relaxed);
        }
    }
}

/// Number of cells of a whole table.
pub const fn cells(rows: &[CounterRow]) -> usize {
    let mut cells = 0;
    let mut row = 0;
    while row < rows.len() {
        cells += rows[row].width();
        row += 1;
    }
    cells
}

/// The rows as a table of Markdown, for the docs.
pub fn markdown(rows: &[CounterRow]) -> String {
    let mut text = String::from("| counter | split by | counts |\n|---|---|---|\n");
    for row in rows {
        let help = row.help.replace('|', "\\|");
        let labels = row.labels.join(", ");
        text.push_str(&format!("| `{}` | {labels} | {help} |\n", row.name));
    }
    text
}

/// The labels of a row that is split by the set of that name, or by none; the macro calls it
/// while compiling.
#[doc(hidden)]
pub const fn labels_of(
    sets: &[(&str, &'static [&'static str])],
    split: &[&str],
) -> &'static [&'static str] {
    if split.is_empty() {
        return &[];
    }
    let mut at = 0;
    while at < sets.len() {
        if same(sets[at].0, split[0]) {
            return sets[at].1;
        }
        at += 1;
    }
    panic!("no set of labels of that name");
}

/// Equality of strings, which `==` cannot yet tell while compiling.
pub(crate) const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Makes a table of counters.
///
/// One row a counter: its doc comment is its help; after the colon stands the set of labels that
/// splits it, if any.
///
/// ```
/// forebay_base::counters! {
///     /// What the gate counts.
///     pub table GateCounters;
///     labels side = ["north", "south"];
///     /// People who went through.
///     passed: side;
///     /// Times the gate was stuck.
///     stuck;
/// }
///
/// let counters = GateCounters::new();
/// counters.add(GateCounters::PASSED, 1, 3);
/// counters.add(GateCounters::STUCK, 0, 1);
/// assert_eq!(counters.sum(GateCounters::PASSED.at(1)), 3);
/// assert_eq!(counters.total(GateCounters::PASSED), 3);
/// let south = counters.snapshot()[1];
/// assert_eq!((south.name, south.label, south.value), ("passed", Some("south"), 3));
/// assert_eq!(south.help, "People who went through.");
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[doc = $doc:expr])+
        $vis:vis table $table:ident;
        $( labels $set:ident = [ $($label:literal),+ $(,)? ]; )*
        $( $(#[doc = $help:literal])+ $row:ident $(: $split:ident)?; )+
    ) => { $crate::counters::paste! {
        $(#[doc = $doc])+
        $vis struct $table {
            sharded: $crate::counters::Sharded<{ $crate::counters::cells(<$table>::ROWS) }>,
        }

        #[allow(dead_code, reason = "a private table need not use all of it")]
        impl $table {
            const LABEL_SETS: &'static [(&'static str, &'static [&'static str])] =
                &[ $( (stringify!($set), &[$($label),+]) ),* ];

            /// All rows, in the order of their cells.
            $vis const ROWS: &'static [$crate::counters::CounterRow] = &[
                $( $crate::counters::CounterRow {
                    name: stringify!($row),
                    help: concat!($($help),+).trim_ascii(),
                    labels: $crate::counters::labels_of(
                        Self::LABEL_SETS,
                        &[ $( stringify!($split) )? ],
                    ),
                } ),+
            ];

            $(
                $(#[doc = $help])+
                $vis const [<$row:upper>]: $crate::counters::Counter =
                    $crate::counters::Counter::find(Self::ROWS, stringify!($row));
            )+

            /// All counters at zero.
            $vis fn new() -> Self {
                Self { sharded: $crate::counters::Sharded::new() }
            }

            /// Adds `n` to the cell of `label` (0 for a row without labels) of `counter`.
            ///
            /// # Panics
            ///
            /// If the row has no such label.
            #[inline]
            $vis fn add(&self, counter: $crate::counters::Counter, label: usize, n: u64) {
                self.sharded.add_at(counter.at(label), n);
            }

            /// Adds `n` to a cell that `Counter::at` named.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            #[inline]
            $vis fn add_at(&self, flat: usize, n: u64) {
                self.sharded.add_at(flat, n);
            }

            /// Adds `n` to a cell that `Counter::at` named, if the calling thread has counted before and shares with nobody;
            /// else it says no, and nothing is counted.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            #[inline]
            $vis fn add_at_own(&self, flat: usize, n: u64) -> bool {
                self.sharded.add_at_own(flat, n)
            }

            /// Where the calling thread counts, resolved once for several adds.
            #[inline]
            $vis fn shard(&self) -> $crate::counters::Shard<'_> {
                self.sharded.shard()
            }

            /// The count of one cell.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            $vis fn sum(&self, flat: usize) -> u64 {
                self.sharded.sum(flat)
            }

            /// The count of a row, over all its labels.
            $vis fn total(&self, counter: $crate::counters::Counter) -> u64 {
                self.sharded.total(counter)
            }

            /// All counts, in the order of the cells.
            $vis fn snapshot(&self) -> ::std::vec::Vec<$crate::counters::CounterValue> {
                self.sharded.snapshot(Self::ROWS)
            }
        }

        impl ::std::default::Default for $table {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::std::fmt::Debug for $table {
            /// The counters that are not zero.
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.sharded.fmt_rows(Self::ROWS, f)
            }
        }
    } };
}
