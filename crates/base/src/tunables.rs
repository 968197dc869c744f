//! Tunables: a table of them, from which parser, validation, help, docs and setter are made.
//!
//! [`tunables!`](crate::tunables!) turns one row a tunable into a type that holds the values,
//! a getter and a setter a row, and the rows themselves ([`TunableRow`]) for help and docs.
//!
//! # Invariants
//!
//! - A value is always within the range of its row; a default outside it does not compile.
//! - After `freeze` the rows settable at [`When::Build`] keep their values. Whoever builds
//!   freezes before it shares the table; a set that races with the freeze may still happen.
//!
//! # Locking
//!
//! None: each value is one atomic, read and written relaxed. Two tunables set one after the
//! other may be seen in the other order.
//!
//! # What it does not do
//!
//! It does not relate one tunable to another (their user clamps), tell anyone of a change
//! (users read at each use), or keep anything over a restart.

use std::fmt;
use std::ops::RangeInclusive;

use crate::counters::same;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub mod kind;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod text;

use text::ParseFailure;

/// How the value of a tunable is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A whole number below 2^32.
    U32,
    /// A whole number below 2^64.
    U64,
    /// `true` or `false`, also `on`, `off`, `1`, `0`.
    Bool,
    /// A number of bytes below 2^64: digits with an optional `K`, `M`, `G`, `T` (or `KiB` and
    /// so on), all powers of 1024.
    Bytes,
    /// A whole number of hundredths, with an optional `%`.
    Percent,
}

impl Type {
    /// The largest value that the type has, as kept.
    const fn max(self) -> u64 {
        match self {
            Self::U32 | Self::Percent => u32::MAX as u64,
            Self::U64 | Self::Bytes => u64::MAX,
            Self::Bool => 1,
        }
    }

    /// What to give for a value of the type, for messages.
    fn expected(self) -> &'static str {
        match self {
            Self::U32 | Self::U64 => "a whole number",
            Self::Bool => "true or false",
            Self::Bytes => "a number of bytes such as 4096, 64K or 1GiB",
            Self::Percent => "a whole number of percent such as 50 or 50%",
        }
    }
}

impl fmt::Display for Type {
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
pub enum When {
    /// Only before what it tunes is built.
    Build,
    /// At any time.
    Runtime,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Build => "build",
            Self::Runtime => "runtime",
        })
    }
}

/// What is known of a tunable beforehand: one row of a table. Values are kept as `u64`
/// (false is 0, true is 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunableRow {
    /// Name, in snake case, unique in its table.
    pub name: &'static str,
    /// How a value is written.
    pub ty: Type,
    /// The values that are allowed.
    pub range: RangeInclusive<u64>,
    /// The value until it is set.
    pub default: u64,
    /// When it can be set.
    pub when: When,
    /// Unit of the value.
    pub unit: &'static str,
    /// What it does, in a sentence or more.
    pub help: &'static str,
}

impl TunableRow {
    /// The row itself, if its default is in its range; the macro calls it while compiling.
    #[doc(hidden)]
    pub const fn checked(self) -> Self {
        assert!(*self.range.start() <= self.default, "the default is below the range");
        assert!(self.default <= *self.range.end(), "the default is above the range");
        self
    }

    /// The default as `set` would take it.
    pub fn default_text(&self) -> String {
        text::format(self.ty, self.default)
    }

    /// The range in words.
    pub fn range_text(&self) -> String {
        let (start, end) = (*self.range.start(), *self.range.end());
        let write = |raw| text::format(self.ty, raw);
        match self.ty {
            Type::Bool if start != end => "true or false".to_owned(),
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
            Err(ParseFailure::NotAValue) => Err(TunableError::NotAValue {
                name: self.name,
                text: text.to_owned(),
                expected: self.ty.expected(),
            }),
        }
    }
}

/// Why a tunable was not set or not found. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// The table has no such row.
    #[error("no tunable is called `{name}`{}", text::suggestion(*.nearest))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The name that was perhaps meant.
        nearest: Option<&'static str>,
    },
    /// The text cannot be read as a value of the row's type.
    #[error("`{text}` is no value for `{name}`: give {expected}")]
    NotAValue {
        /// The tunable.
        name: &'static str,
        /// What was given.
        text: String,
        /// What can be given.
        expected: &'static str,
    },
    /// The value is outside the row's range.
    #[error("`{name}` must be {range} (unit: {unit}), not {value}")]
    OutOfRange {
        /// The tunable.
        name: &'static str,
        /// What was given.
        value: String,
        /// The range, in words.
        range: String,
        /// Unit of the range.
        unit: &'static str,
    },
    /// What the row tunes is built already.
    #[error("`{name}` cannot be set at run time: give it when building")]
    NotAtRuntime {
        /// The tunable.
        name: &'static str,
    },
}

/// Index of the row called `name`; the macro calls it while compiling.
#[doc(hidden)]
pub const fn index_of(rows: &[TunableRow], name: &str) -> usize {
    let mut row = 0;
    while row < rows.len() {
        if same(rows[row].name, name) {
            return row;
        }
        row += 1;
    }
    panic!("no tunable of that name");
}

/// The values of one table. Users meet it inside what [`tunables!`](crate::tunables!) makes.
pub struct Values<const ROWS: usize> {
    rows: &'static [TunableRow],
    raw: [AtomicU64; ROWS],
    frozen: AtomicBool,
}

impl<const ROWS: usize> Values<ROWS> {
    /// All rows at their defaults.
    pub fn new(rows: &'static [TunableRow]) -> Self {
        assert_eq!(rows.len(), ROWS, "rows of another table");
        let raw = std::array::from_fn(|row| AtomicU64::new(rows[row].default));
        Self { rows, raw, frozen: AtomicBool::new(false) }
    }

    /// The value of a row, as kept.
    #[inline]
    pub fn load(&self, row: usize) -> u64 {
        self.raw[row].load(Ordering::Relaxed)
    }

    /// Sets a row, if it can be set now and to that value.
    pub fn store(&self, row: usize, raw: u64) -> Result<(), TunableError> {
        self.check_settable(row)?;
        let raw = self.rows[row].check(raw)?;
        self.raw[row].store(raw, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the row called `name` to the value that `text` says.
    pub fn set(&self, name: &str, text: &str) -> Result<(), TunableError> {
        let row = self.find(name)?;
        self.check_settable(row)?;
        let raw = self.rows[row].parse(text)?;
        self.raw[row].store(raw, Ordering::Relaxed);
        Ok(())
    }

    /// The value of the row called `name`, written as `set` would take it.
    pub fn get(&self, name: &str) -> Result<String, TunableError> {
        let row = self.find(name)?;
        Ok(text::format(self.rows[row].ty, self.load(row)))
    }

    /// From now on refuses to set what can only be set when building.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// All rows with their values, written as `set` would take them.
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
        if row.when == When::Build && self.frozen.load(Ordering::Relaxed) {
            return Err(TunableError::NotAtRuntime { name: row.name });
        }
        Ok(())
    }
}

impl<const ROWS: usize> fmt::Debug for Values<ROWS> {
    /// Name and value of every row, as a map.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        f.debug_map().entries(entries.iter().map(|(row, value)| (row.name, value))).finish()
    }
}

/// The rows as a table of Markdown, for the docs.
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

/// Makes a table of tunables.
///
/// One row a tunable: its doc comment is its help, then follow name, type (`u32`, `u64`, `bool`,
/// `bytes`, `percent`, see [`Type`](crate::tunables::Type)), default, range, when it can be set
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
///     /// Water that may pass at once.
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
            values: $crate::tunables::Values<{ <$table>::ROWS.len() }>,
        }

        #[allow(dead_code, reason = "a private table need not use all of it")]
        impl $table {
            /// All rows.
            $vis const ROWS: &'static [$crate::tunables::TunableRow] = &[
                $( {
                    type Kind = $crate::tunables::kind::[<$ty:camel>];
                    type Value = <Kind as $crate::tunables::kind::Kind>::Value;
                    const DEFAULT: Value = $default;
                    const RANGE: ::std::ops::RangeInclusive<Value> = $range;
                    $crate::tunables::TunableRow {
                        name: stringify!($row),
                        ty: <Kind as $crate::tunables::kind::Kind>::TYPE,
                        range: (*RANGE.start() as u64)..=(*RANGE.end() as u64),
                        default: DEFAULT as u64,
                        when: $crate::tunables::When::[<$when:camel>],
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
                ) -> <$crate::tunables::kind::[<$ty:camel>] as $crate::tunables::kind::Kind>::Value
                {
                    const ROW: usize =
                        $crate::tunables::index_of(<$table>::ROWS, stringify!($row));
                    <$crate::tunables::kind::[<$ty:camel>] as $crate::tunables::kind::Kind>
                        ::from_raw(self.values.load(ROW))
                }

                #[doc = concat!("Sets [`", stringify!($row), "`](Self::", stringify!($row), ").")]
                ///
                /// # Errors
                ///
                /// If the value is out of range, or the row can no longer be set.
                $vis fn [<set_ $row>](
                    &self,
                    value: <$crate::tunables::kind::[<$ty:camel>]
                        as $crate::tunables::kind::Kind>::Value,
                ) -> ::std::result::Result<(), $crate::tunables::TunableError> {
                    const ROW: usize =
                        $crate::tunables::index_of(<$table>::ROWS, stringify!($row));
                    self.values.store(ROW, value as u64)
                }
            )+

            /// All rows at their defaults.
            $vis fn new() -> Self {
                Self { values: $crate::tunables::Values::new(Self::ROWS) }
            }

            /// Sets the row called `name` to the value that `text` says.
            ///
            /// # Errors
            ///
            /// If there is no such row, the text is no value for it or one out of range, or
            /// the row can no longer be set.
            $vis fn set(
                &self,
                name: &str,
                text: &str,
            ) -> ::std::result::Result<(), $crate::tunables::TunableError> {
                self.values.set(name, text)
            }

            /// The value of the row called `name`, written as `set` would take it.
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

            /// From now on refuses to set what can only be set when building.
            $vis fn freeze(&self) {
                self.values.freeze();
            }

            /// All rows with their values, written as `set` would take them.
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
