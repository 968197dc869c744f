//! Tables of sharded counters.
//!
//! [`counters!`](crate::counters!) generates from a table a type that counts, a constant per row,
//! and the rows ([`CounterRow`]) for help and docs. A set of labels may split a row into one cell
//! per label.
//!
//! Each *shard* has all cells of a table, on pairs of cache lines of its own, because processors
//! prefetch pairs. A thread with an exclusive slot ([`thread_slot`](crate::sync::thread_slot)) owns
//! the shard of the slot, and adds with a plain load and a plain store. The other threads share a
//! few overflow shards and add atomically. A read sums over all shards.
//!
//! Invariants: only the thread with the slot stores to an exclusive shard; therefore [`Shard`] is
//! neither `Send` nor `Sync`. A slot passes from an exiting thread to a new thread with release and
//! acquire, so the new thread continues from the last value. Every cell only grows, modulo 2^64.
//!
//! Locking: none. All accesses are relaxed. A sum is a value between the counts at its start and at
//! its end. Two counters that are read together may disagree. After a thread is joined, reads
//! include its counts.
//!
//! It has no gauges (the owner stores values that can fall), no reset (readers subtract), no rates.

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

/// Number of shards for threads without an exclusive slot. Several shards reduce contention.
#[cfg(not(forebay_model))]
const OVERFLOW_SHARDS: usize = 8;

/// Number of shards of a table. The model build has one, because it does not measure contention.
#[cfg(not(forebay_model))]
const SHARDS: usize = sync::EXCLUSIVE_SLOTS + OVERFLOW_SHARDS;
#[cfg(forebay_model)]
const SHARDS: usize = 1;

/// The description of a counter: one row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Name, in snake case, unique in its table.
    pub name: &'static str,
    /// The meaning of the counter, in at least one sentence.
    pub help: &'static str,
    /// The name of the set of labels that splits the row; empty if it is not split.
    pub split: &'static str,
    /// The labels of the set, in the order of their numbers; empty if the row is not split.
    pub labels: &'static [&'static str],
}

impl CounterRow {
    /// Number of cells of the row: one per label, or one without labels.
    pub const fn width(&self) -> usize {
        if self.labels.is_empty() { 1 } else { self.labels.len() }
    }
}

/// A row of a table: the index of its first cell, and the number of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    start: usize,
    width: usize,
}

impl Counter {
    /// The index of the cell of `label`, for `add_at` and `sum`. `label` is 0 for a row without
    /// labels.
    ///
    /// # Panics
    ///
    /// If the row has no such label. In a constant this is a compile error.
    #[inline]
    pub const fn at(self, label: usize) -> usize {
        assert!(label < self.width, "the counter has no such label");
        self.start + label
    }

    /// The indices of the cells of all labels.
    pub const fn cells(self) -> Range<usize> {
        self.start..self.start + self.width
    }

    /// The row with this name. The macro calls it in constants.
    #[doc(hidden)]
    pub const fn find(rows: &[CounterRow], name: &str) -> Counter {
        let mut start = 0;
        let mut row = 0;
        while row < rows.len() {
            if str_eq(rows[row].name, name) {
                return Counter { start, width: rows[row].width() };
            }
            start += rows[row].width();
            row += 1;
        }
        panic!("no counter has this name");
    }
}

/// The value of a cell in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterValue {
    /// Name of the row.
    pub name: &'static str,
    /// Name of the set of labels that splits the row; empty if it is not split.
    pub split: &'static str,
    /// Label of the cell, if the row is split.
    pub label: Option<&'static str>,
    /// Help of the row.
    pub help: &'static str,
    /// The count.
    pub value: u64,
}

/// The cells of one shard, on pairs of cache lines of their own.
#[repr(align(128))]
struct Cells<const CELLS: usize>([AtomicU64; CELLS]);

impl<const CELLS: usize> Cells<CELLS> {
    fn zero() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The cells of a table in all shards, part of the type that [`counters!`](crate::counters!)
/// generates.
pub struct Sharded<const CELLS: usize> {
    shards: Box<[Cells<CELLS>; SHARDS]>,
}

impl<const CELLS: usize> Sharded<CELLS> {
    /// Creates a table with all counters at zero.
    pub fn new() -> Self {
        // Built on the heap, because a table can be larger than the stack of a thread.
        let shards: Vec<Cells<CELLS>> = (0..SHARDS).map(|_| Cells::zero()).collect();
        match shards.into_boxed_slice().try_into() {
            Ok(shards) => Self { shards },
            Err(_) => unreachable!("the iterator has `SHARDS` items"),
        }
    }

    /// Adds `n` to the cell with an index from [`Counter::at`].
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn add_at(&self, cell: usize, n: u64) {
        if !self.try_add_at_exclusive(cell, n) {
            self.resolve_shard().add_at(cell, n);
        }
    }

    /// As [`add_at`](Self::add_at), but only if the calling thread has counted before and has an
    /// exclusive shard. Returns false otherwise, and counts nothing.
    ///
    /// It is inlined and calls no function, for fast paths that leave the slow case to a tail call.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn try_add_at_exclusive(&self, cell: usize, n: u64) -> bool {
        #[cfg(not(forebay_model))]
        if let Some(slot) = sync::cached_exclusive_slot() {
            add_exclusive(&self.shards[slot].0[cell], n);
            return true;
        }
        let _ = (cell, n);
        false
    }

    /// The shard of the calling thread, to resolve it once for several adds.
    #[inline]
    pub fn shard(&self) -> Shard<'_> {
        #[cfg(not(forebay_model))]
        if let Some(slot) = sync::cached_exclusive_slot() {
            return Shard { cells: &self.shards[slot].0, exclusive: true, not_send: PhantomData };
        }
        self.resolve_shard()
    }

    /// As [`shard`](Self::shard), for the first count of a thread and for threads that share a
    /// shard.
    #[cold]
    fn resolve_shard(&self) -> Shard<'_> {
        #[cfg(forebay_model)]
        let (index, exclusive) = (0, false);
        #[cfg(not(forebay_model))]
        let (index, exclusive) = {
            let slot = sync::thread_slot();
            match slot.exclusive() {
                Some(slot) => (slot, true),
                None => (sync::EXCLUSIVE_SLOTS + slot.index(OVERFLOW_SHARDS), false),
            }
        };
        Shard { cells: &self.shards[index].0, exclusive, not_send: PhantomData }
    }

    /// The value of a cell, summed over all shards.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    pub fn sum(&self, cell: usize) -> u64 {
        let add = |sum: u64, shard: &Cells<CELLS>| {
            sum.wrapping_add(shard.0[cell].load(Ordering::Relaxed))
        };
        self.shards.iter().fold(0, add)
    }

    /// The value of a row, summed over its labels.
    pub fn total(&self, counter: Counter) -> u64 {
        counter.cells().fold(0, |sum, cell| sum.wrapping_add(self.sum(cell)))
    }

    /// The values of all cells. `rows` must be the rows of this table.
    pub fn snapshot(&self, rows: &'static [CounterRow]) -> Vec<CounterValue> {
        assert_eq!(cells(rows), CELLS, "the rows belong to another table");
        // Read shard by shard, in the order of memory.
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
                split: row.split,
                label,
                help: row.help,
                value,
            })
            .collect()
    }

    /// Formats the counters that are not zero as a map.
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

/// Adds to a cell without a read-modify-write. No other thread may store to it.
#[inline]
fn add_exclusive(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The shard of the calling thread.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    cells: &'a [AtomicU64],
    exclusive: bool,
    /// Only the thread that resolved a shard may use it.
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

    /// Adds `n` to the cell with an index from [`Counter::at`].
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    #[inline]
    pub fn add_at(self, cell: usize, n: u64) {
        let cell = &self.cells[cell];
        if self.exclusive {
            add_exclusive(cell, n);
        } else {
            cell.fetch_add(n, Ordering::Relaxed);
        }
    }
}

/// Number of cells of a table.
pub const fn cells(rows: &[CounterRow]) -> usize {
    let mut cells = 0;
    let mut row = 0;
    while row < rows.len() {
        cells += rows[row].width();
        row += 1;
    }
    cells
}

/// The rows as a Markdown table, for the docs.
pub fn markdown(rows: &[CounterRow]) -> String {
    let mut text = String::from("| counter | split by | counts |\n|---|---|---|\n");
    for row in rows {
        let help = row.help.replace('|', "\\|");
        let labels = row.labels.join(", ");
        text.push_str(&format!("| `{}` | {labels} | {help} |\n", row.name));
    }
    text
}

/// The labels of the set that `split` names; empty if `split` is. The macro calls it in constants.
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
        if str_eq(sets[at].0, split[0]) {
            return sets[at].1;
        }
        at += 1;
    }
    panic!("no set of labels has this name");
}

/// Whether two strings are equal, for constants, where `==` is not available.
pub(crate) const fn str_eq(a: &str, b: &str) -> bool {
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

/// Generates a table of counters.
///
/// The doc comment of a row is its help. After a colon follows the set of labels that splits the
/// row, if any.
///
/// ```
/// forebay_base::counters! {
///     /// Counters of the gate.
///     pub table GateCounters;
///     labels side = ["north", "south"];
///     /// Passages.
///     passed: side;
///     /// Times that the gate was stuck.
///     stuck;
/// }
///
/// let counters = GateCounters::new();
/// counters.add(GateCounters::PASSED, 1, 3);
/// counters.add(GateCounters::STUCK, 0, 1);
/// assert_eq!(counters.sum(GateCounters::PASSED.at(1)), 3);
/// assert_eq!(counters.total(GateCounters::PASSED), 3);
/// let south = counters.snapshot()[1];
/// assert_eq!((south.name, south.split, south.label), ("passed", "side", Some("south")));
/// assert_eq!(south.value, 3);
/// assert_eq!(south.help, "Passages.");
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

        #[allow(dead_code, reason = "a private table may not use all items")]
        impl $table {
            const LABEL_SETS: &'static [(&'static str, &'static [&'static str])] =
                &[ $( (stringify!($set), &[$($label),+]) ),* ];

            /// All rows, in the order of their cells.
            $vis const ROWS: &'static [$crate::counters::CounterRow] = &[
                $( $crate::counters::CounterRow {
                    name: stringify!($row),
                    help: concat!($($help),+).trim_ascii(),
                    split: concat!($( stringify!($split) )?),
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

            /// Creates a table with all counters at zero.
            $vis fn new() -> Self {
                Self { sharded: $crate::counters::Sharded::new() }
            }

            /// Adds `n` to the cell of `label` of `counter`; `label` is 0 for a row without labels.
            ///
            /// # Panics
            ///
            /// If the row has no such label.
            #[inline]
            $vis fn add(&self, counter: $crate::counters::Counter, label: usize, n: u64) {
                self.sharded.add_at(counter.at(label), n);
            }

            /// Adds `n` to the cell with an index from `Counter::at`.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            #[inline]
            $vis fn add_at(&self, cell: usize, n: u64) {
                self.sharded.add_at(cell, n);
            }

            /// As `add_at`, but only if the calling thread has counted before and has an exclusive
            /// shard. Returns false otherwise, and counts nothing.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            #[inline]
            $vis fn try_add_at_exclusive(&self, cell: usize, n: u64) -> bool {
                self.sharded.try_add_at_exclusive(cell, n)
            }

            /// The shard of the calling thread, to resolve it once for several adds.
            #[inline]
            $vis fn shard(&self) -> $crate::counters::Shard<'_> {
                self.sharded.shard()
            }

            /// The value of a cell.
            ///
            /// # Panics
            ///
            /// If there is no such cell.
            $vis fn sum(&self, cell: usize) -> u64 {
                self.sharded.sum(cell)
            }

            /// The value of a row, summed over its labels.
            $vis fn total(&self, counter: $crate::counters::Counter) -> u64 {
                self.sharded.total(counter)
            }

            /// The values of all cells, in the order of the cells.
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
            /// Formats the counters that are not zero.
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.sharded.fmt_rows(Self::ROWS, f)
            }
        }
    } };
}
