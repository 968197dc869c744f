//! Keys and their owners.

use std::hash::Hash;

/// Identifies the owner of a range of keys, such as a storage pool. See
/// [`Cache::open_owner`](crate::Cache::open_owner).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub(crate) u16);

impl OwnerId {
    /// The owner of keys that need none. Always cached.
    pub const NONE: Self = Self(0);

    /// The number to store in a key.
    pub fn get(self) -> u16 {
        self.0
    }

    /// The owner of that number.
    pub fn from_raw(id: u16) -> Self {
        Self(id)
    }
}

impl From<u16> for OwnerId {
    fn from(id: u16) -> Self {
        Self(id)
    }
}

/// A key of the cache: small, copied freely, immutable.
///
/// Integers, `&'static str`, and arrays and tuples of keys implement it, tuples of up to six. For
/// your own type [derive](macro@Key) it, or implement it by hand. It may have an owner:
///
/// ```
/// use forebay_cache::{Key, OwnerId};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct BlockKey { pool: u16, device: u16, birth: u64, offset: u64 }
///
/// impl Key for BlockKey {
///     fn owner(&self) -> OwnerId { OwnerId::from_raw(self.pool) }
/// }
/// ```
///
/// `Hash`, `Eq` and [`owner`](Self::owner) must depend only on the key's value, `Hash` and `Eq`
/// must agree, and none of the three may use the cache. A key that breaks this costs wrong misses
/// and time, for example a walk over the whole index when its block is evicted, but never memory
/// errors. If `Hash` or `Eq` panics in a lookup, so does the lookup; the cache may catch panics
/// elsewhere.
pub trait Key: Copy + Eq + Hash + Send + Sync + 'static {
    /// The owner of this key.
    #[inline]
    fn owner(&self) -> OwnerId {
        OwnerId::NONE
    }
}

/// Implements the trait [`Key`](trait@Key) for a struct or enum, with the feature `derive`.
///
/// `#[key(owner)]` marks the field that names the owner: an [`OwnerId`], or a type that converts
/// into one, such as its number, a `u16`.
///
/// ```
/// use forebay_cache::{Key, OwnerId};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash, Key)]
/// struct BlockKey {
///     #[key(owner)]
///     pool: u16,
///     device: u16,
///     offset: u64,
/// }
///
/// let key = BlockKey { pool: 7, device: 0, offset: 4096 };
/// assert_eq!(key.owner(), OwnerId::from_raw(7));
/// ```
///
/// A key has one owner:
///
/// ```compile_fail
/// # use forebay_cache::Key;
/// #[derive(Clone, Copy, PartialEq, Eq, Hash, Key)]
/// struct BlockKey(#[key(owner)] u16, #[key(owner)] u16);
/// ```
///
/// The owner is an owner's number:
///
/// ```compile_fail
/// # use forebay_cache::Key;
/// #[derive(Clone, Copy, PartialEq, Eq, Hash, Key)]
/// struct BlockKey(#[key(owner)] u64);
/// ```
///
/// Keys are copied and compared:
///
/// ```compile_fail
/// # use forebay_cache::Key;
/// #[derive(Clone, PartialEq, Eq, Hash, Key)]
/// struct NameKey(String);
/// ```
///
/// A program that uses this crate by another name says so before the type:
/// `#[key(crate = path::to::forebay_cache)]`.
#[cfg(feature = "derive")]
pub use forebay_derive::Key;

macro_rules! keys {
    ($($t:ty)*) => {$(
        impl Key for $t {}
    )*};
}
keys!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize char bool &'static str);

/// Its owner is that of its first part.
impl<T: Key, const N: usize> Key for [T; N] {
    #[inline]
    fn owner(&self) -> OwnerId {
        self.first().map_or(OwnerId::NONE, Key::owner)
    }
}

macro_rules! tuples {
    ($(($first:ident $(, $other:ident)*))*) => {$(
        /// Its owner is that of its first part.
        impl<$first: Key $(, $other: Key)*> Key for ($first, $($other,)*) {
            #[inline]
            fn owner(&self) -> OwnerId {
                self.0.owner()
            }
        }
    )*};
}
tuples!((A)(A, B)(A, B, C)(A, B, C, D)(A, B, C, D, E)(A, B, C, D, E, F));
