//! The types of tunables as the macro sees them: one marker a [`Type`], which says what
//! getters and setters use. Values are kept as `u64` whatever the type, so that one table of
//! rows can describe them all.

use super::Type;

/// A type of tunables.
pub trait Kind {
    /// What getters return and setters take.
    type Value: Copy;
    /// How it is written.
    const TYPE: Type;
    /// The value, from how it is kept. The kept value is in the row's range, hence fits.
    fn from_raw(raw: u64) -> Self::Value;
}

macro_rules! kind {
    ($name:ident, $value:ty, $from_raw:expr) => {
        #[doc = concat!("Marks tunables of [`Type::", stringify!($name), "`].")]
        pub struct $name;

        impl Kind for $name {
            type Value = $value;
            const TYPE: Type = Type::$name;

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
