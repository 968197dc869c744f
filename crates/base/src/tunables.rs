//! Tables of tunables.
//!
//! [`tunables!`](crate::tunables!) generates from a table a type with the values, a getter and a
//! setter per row, and the rows ([`TunableRow`]) for parsing, validation, help and docs.
//!
//! Invariants: a value is always within the range of its row; a default outside the range is a
//! compile error. After `freeze` the rows that are settable at [`SettableAt::Build`] keep their
//! values. A builder freezes the table before it shares it, because a concurrent set may still take
//! effect.
//!
//! Locking: none. Each value is an atomic with relaxed accesses. Another thread may see two sets in
//! the other order.
//!
//! It does not relate tunables to each other (their user clamps values), does not notify of changes
//! (users read a tunable at each use), and does not store values over a restart.

use std::fmt;
use std::ops::RangeInclusive;

use crate::counters::str_eq;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub mod kind;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod text;

use text::ParseFailure;

/// The type of a tunable, which defines the text form of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A whole number below 2^32.
    U32,
    /// A whole number below 2^64.
    U64,
    /// `true` or `false`; also `on`, `off`, `1`, `0`.
    Bool,
    /// A number of bytes below 2^64: digits with an optional suffix `K`, `M`, `G`, `T`, `P`, `E`
    /// (or `KiB` and so on), powers of 1024.
    Bytes,
    /// A whole number of percent, with an optional `%`.
    Percent,
}

impl ValueType {
    /// The largest raw value of the type.
    const fn max(self) -> u64 {
        match self {
            Self::U32 | Self::Percent => u32::MAX as u64,
            Self::U64 | Self::Bytes => u64::MAX,
            Self::Bool => 1,
        }
    }

    /// The expected text of a value, for messages.
    fn expected(self) -> &'static str {
        match self {
            Self::U32 | Self::U64 => "a whole number",
            Self::Bool => "true or false",
            Self::Bytes => "a number of bytes such as 4096, 64K or 1GiB",
            Self::Percent => "a whole number of percent such as 50 or 50%",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "bool",
            Self::Bytes => "bytes",
            Self::Percent => "percent",
        })
    }
}

/// When a tunable can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettableAt {
    /// Only before the owner of the table is built.
    Build,
    /// At any time.
    Runtime,
}

impl fmt::Display for SettableAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Build => "build",
            Self::Runtime => "runtime",
        })
    }
}

/// The description of a tunable: one row of a table. Values are stored as raw `u64` (false is 0,
/// true is 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunableRow {
    /// Name, in snake case, unique in its table.
    pub name: &'static str,
    /// Type of the value.
    pub ty: ValueType,
    /// Allowed raw values.
    pub range: RangeInclusive<u64>,
    /// Default raw value.
    pub default: u64,
    /// When it can be set.
    pub when: SettableAt,
    /// Unit of the value.
    pub unit: &'static str,
    /// Effect of the tunable, in at least one sentence.
    pub help: &'static str,
}

impl TunableRow {
    /// Returns the row after it has checked that the default is in the range. The macro calls it in
    /// constants.
    #[doc(hidden)]
    pub const fn checked(self) -> Self {
        assert!(*self.range.start() <= self.default, "the default is below the range");
        assert!(self.default <= *self.range.end(), "the default is above the range");
        self
    }

    /// The default as text that `set` accepts.
    pub fn default_text(&self) -> String {
        text::format(self.ty, self.default)
    }

    /// The range as text.
    pub fn range_text(&self) -> String {
        let (start, end) = (*self.range.start(), *self.range.end());
        let write = |raw| text::format(self.ty, raw);
        match self.ty {
            ValueType::Bool if start != end => "true or false".to_owned(),
            ty if end == ty.max() && end != start => format!("at least {}", write(start)),
            _ => format!("{} to {}", write(start), write(end)),
        }
    }

    fn check(&self, raw: u64) -> Result<u64, TunableError> {
        if self.range.contains(&raw) {
            return Ok(raw);
        }
        Err(self.out_of_range(text::format(self.ty, raw)))
    }

    fn out_of_range(&self, value: String) -> TunableError {
        let range = self.range_text();
        TunableError::OutOfRange { name: self.name, value, range, unit: self.unit }
    }

    fn parse(&self, text: &str) -> Result<u64, TunableError> {
        match text::parse(self.ty, text) {
            Ok(raw) => self.check(raw),
            Err(ParseFailure::TooLarge) => Err(self.out_of_range(text.to_owned())),
            Err(ParseFailure::Invalid) => Err(TunableError::Invalid {
                name: self.name,
                text: text.to_owned(),
                expected: self.ty.expected(),
            }),
        }
    }
}

/// A tunable does not exist or cannot be set. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// The table has no row with this name.
    #[error("unknown tunable `{name}`{}", text::suggestion(*.nearest))]
    Unknown {
        /// The unknown name.
        name: String,
        /// The most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// The text is not a value of the type of the row.
    #[error("cannot set `{name}`: `{text}` is not {expected}")]
    Invalid {
        /// The tunable.
        name: &'static str,
        /// The invalid text.
        text: String,
        /// The expected form of a value.
        expected: &'static str,
    },
    /// The value is outside the range of the row.
    #[error("cannot set `{name}` to {value}: it must be {range} (unit: {unit})")]
    OutOfRange {
        /// The tunable.
        name: &'static str,
        /// The value, as text.
        value: String,
        /// The range, as text.
        range: String,
        /// Unit of the range.
        unit: &'static str,
    },
    /// The tunable is settable at build only, and its owner is built.
    #[error("cannot set `{name}` at run time: set it when its owner is built")]
    NotAtRuntime {
        /// The tunable.
        name: &'static str,
    },
}

/// The index of the row with this name. The macro calls it in constants.
#[doc(hidden)]
pub const fn index_of(rows: &[TunableRow], name: &str) -> usize {
    let mut row = 0;
    while row < rows.len() {
        if str_eq(rows[row].name, name) {
            return row;
        }
        row += 1;
    }
    panic!("no tunable has this name");
}

/// The values of a table, part of the type that [`tunables!`](crate::tunables!) generates.
pub struct TunableValues<const ROWS: usize> {
    rows: &'static [TunableRow],
    raw: [AtomicU64; ROWS],
    frozen: AtomicBool,
}

impl<const ROWS: usize> TunableValues<ROWS> {
    /// Creates a table with all rows at their defaults.
    pub fn new(rows: &'static [TunableRow]) -> Self {
        assert_eq!(rows.len(), ROWS, "the rows belong to another table");
        let raw = std::array::from_fn(|row| AtomicU64::new(rows[row].default));
        Self { rows, raw, frozen: AtomicBool::new(false) }
    }

    /// The raw value of a row.
    #[inline]
    pub fn load(&self, row: usize) -> u64 {
        self.raw[row].load(Ordering::Relaxed)
    }

    /// Sets a row to a raw value.
    ///
    /// # Errors
    /// If the value is out of range, or the row is not settable any more.
    pub fn store(&self, row: usize, raw: u64) -> Result<(), TunableError> {
        self.check_settable(row)?;
        let raw = self.rows[row].check(raw)?;
        self.raw[row].store(raw, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the row `name` to the value of `text`.
    ///
    /// # Errors
    /// If there is no such row, the text is not a valid value, or the row is not settable any more.
    pub fn set(&self, name: &str, text: &str) -> Result<(), TunableError> {
        let row = self.find(name)?;
        self.check_settable(row)?;
        let raw = self.rows[row].parse(text)?;
        self.raw[row].store(raw, Ordering::Relaxed);
        Ok(())
    }

    /// The value of the row `name`, as text that `set` accepts.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn get(&self, name: &str) -> Result<String, TunableError> {
        let row = self.find(name)?;
        Ok(text::format(self.rows[row].ty, self.load(row)))
    }

    /// From now on refuses to set rows that are settable at build only.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// All rows with their values, as text that `set` accepts.
    pub fn entries(&self) -> Vec<(&'static TunableRow, String)> {
        let write = |(row, raw): (&'static TunableRow, &AtomicU64)| {
            (row, text::format(row.ty, raw.load(Ordering::Relaxed)))
        };
        self.rows.iter().zip(&self.raw).map(write).collect()
    }

    fn find(&self, name: &str) -> Result<usize, TunableError> {
        let found = self.rows.iter().position(|row| row.name == name);
        found.ok_or_else(|| TunableError::Unknown {
            name: name.to_owned(),
            nearest: text::nearest(name, self.rows.iter().map(|row| row.name)),
        })
    }

    fn check_settable(&self, row: usize) -> Result<(), TunableError> {
        let row = &self.rows[row];
        if row.when == SettableAt::Build && self.frozen.load(Ordering::Relaxed) {
            return Err(TunableError::NotAtRuntime { name: row.name });
        }
        Ok(())
    }
}

impl<const ROWS: usize> fmt::Debug for TunableValues<ROWS> {
    /// Formats the names and values of all rows as a map.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        f.debug_map().entries(entries.iter().map(|(row, value)| (row.name, value))).finish()
    }
}

/// The rows as a Markdown table, for the docs.
pub fn markdown(rows: &[TunableRow]) -> String {
    let mut text = String::from(
        "| tunable | type | range | default | unit | settable | meaning |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} | {} |\n",
            row.name,
            row.ty,
            row.range_text(),
            row.default_text(),
            row.unit.replace('|', "\\|"),
            row.when,
            row.help.replace('|', "\\|"),
        ));
    }
    text
}

/// Generates a table of tunables.
///
/// The doc comment of a row is its help. The row has name, type (`u32`, `u64`, `bool`, `bytes`,
/// `percent`, see `tunables::ValueType`), default, range, when it can be set
/// (`build` or `runtime`) and unit. The getters and setters use `u64` for `bytes` and `u32`
/// for `percent`.
///
/// ```
/// use forebay_base::tunables::TunableError;
///
/// forebay_base::tunables! {
///     /// Tunables of the gate.
///     pub table GateTunables;
///     /// Wings of the gate.
///     wings: u32 = 2, 1..=4, build, "count";
///     /// Amount that may pass at once.
///     flow: bytes = 64 << 10, 0..=1 << 30, runtime, "bytes";
/// }
///
/// let tunables = GateTunables::default();
/// tunables.set("wings", "3")?;
/// tunables.freeze();
/// assert_eq!(tunables.wings(), 3);
/// assert!(matches!(tunables.set_wings(4), Err(TunableError::NotAtRuntime { .. })));
/// tunables.set("flow", "1M")?;
/// assert_eq!(tunables.flow(), 1 << 20);
/// assert_eq!(tunables.get("flow")?, "1MiB");
/// # Ok::<(), TunableError>(())
/// ```
#[macro_export]
macro_rules! tunables {
    (
        $(#[doc = $doc:expr])+
        $vis:vis table $table:ident;
        $(
            $(#[doc = $help:literal])+
            $row:ident: $ty:ident = $default:expr, $range:expr, $when:ident, $unit:literal;
        )+
    ) => { $crate::counters::paste! {
        $(#[doc = $doc])+
        $vis struct $table {
            values: $crate::tunables::TunableValues<{ <$table>::ROWS.len() }>,
        }

        #[allow(dead_code, reason = "a private table may not use all items")]
        impl $table {
            /// All rows.
            $vis const ROWS: &'static [$crate::tunables::TunableRow] = &[
                $( {
                    type ValueKind = $crate::tunables::kind::[<$ty:camel>];
                    type Value = <ValueKind as $crate::tunables::kind::ValueKind>::Value;
                    const DEFAULT: Value = $default;
                    const RANGE: ::std::ops::RangeInclusive<Value> = $range;
                    $crate::tunables::TunableRow {
                        name: stringify!($row),
                        ty: <ValueKind as $crate::tunables::kind::ValueKind>::TYPE,
                        range: (*RANGE.start() as u64)..=(*RANGE.end() as u64),
                        default: DEFAULT as u64,
                        when: $crate::tunables::SettableAt::[<$when:camel>],
                        unit: $unit,
                        help: concat!($($help),+).trim_ascii(),
                    }
                    .checked()
                } ),+
            ];

            $(
                $(#[doc = $help])+
                #[inline]
                $vis fn $row(
                    &self,
                ) -> <$crate::tunables::kind::[<$ty:camel>] as $crate::tunables::kind::ValueKind>::Value
                {
                    const ROW: usize =
                        $crate::tunables::index_of(<$table>::ROWS, stringify!($row));
                    <$crate::tunables::kind::[<$ty:camel>] as $crate::tunables::kind::ValueKind>
                        ::from_raw(self.values.load(ROW))
                }

                #[doc = concat!("Sets [`", stringify!($row), "`](Self::", stringify!($row), ").")]
                ///
                /// # Errors
                ///
                /// If the value is out of range, or the row is not settable any more.
                $vis fn [<set_ $row>](
                    &self,
                    value: <$crate::tunables::kind::[<$ty:camel>]
                        as $crate::tunables::kind::ValueKind>::Value,
                ) -> ::std::result::Result<(), $crate::tunables::TunableError> {
                    const ROW: usize =
                        $crate::tunables::index_of(<$table>::ROWS, stringify!($row));
                    self.values.store(ROW, value as u64)
                }
            )+

            /// Creates a table with all rows at their defaults.
            $vis fn new() -> Self {
                Self { values: $crate::tunables::TunableValues::new(Self::ROWS) }
            }

            /// Sets the row `name` to the value of `text`.
            ///
            /// # Errors
            ///
            /// If there is no such row, the text is not a valid value, or the row is not settable
            /// any more.
            $vis fn set(
                &self,
                name: &str,
                text: &str,
            ) -> ::std::result::Result<(), $crate::tunables::TunableError> {
                self.values.set(name, text)
            }

            /// The value of the row `name`, as text that `set` accepts.
            ///
            /// # Errors
            ///
            /// If there is no such row.
            $vis fn get(
                &self,
                name: &str,
            ) -> ::std::result::Result<::std::string::String, $crate::tunables::TunableError> {
                self.values.get(name)
            }

            /// From now on refuses to set rows that are settable at build only.
            $vis fn freeze(&self) {
                self.values.freeze();
            }

            /// All rows with their values, as text that `set` accepts.
            $vis fn entries(
                &self,
            ) -> ::std::vec::Vec<(&'static $crate::tunables::TunableRow, ::std::string::String)>
            {
                self.values.entries()
            }
        }

        impl ::std::default::Default for $table {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::std::fmt::Debug for $table {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Debug::fmt(&self.values, f)
            }
        }
    } };
}
