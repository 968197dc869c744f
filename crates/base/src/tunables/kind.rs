//! Marker types for the macro, one per [`ValueType`]. They define the Rust type of getters and
//! setters. All values are stored as raw `u64`, so that one table of rows can describe them.

use super::ValueType;

/// A type of tunables.
pub trait ValueKind {
    /// The type that getters return and setters take.
    type Value: Copy;
    /// The type of the row.
    const TYPE: ValueType;
    /// Converts a raw value. It is in the range of the row, so it fits.
    fn from_raw(raw: u64) -> Self::Value;
}

macro_rules! kind {
    ($name:ident, $value:ty, $from_raw:expr) => {
        #[doc = concat!("Marks tunables of [`ValueType::", stringify!($name), "`].")]
        pub struct $name;

        impl ValueKind for $name {
            type Value = $value;
            const TYPE: ValueType = ValueType::$name;

            #[inline]
            fn from_raw(raw: u64) -> $value {
                $from_raw(raw)
            }
        }
    };
}

kind!(U32, u32, |raw| raw as u32);
kind!(U64, u64, |raw| raw);
kind!(Bool, bool, |raw| raw != 0);
kind!(Bytes, u64, |raw| raw);
kind!(Percent, u32, |raw| raw as u32);
