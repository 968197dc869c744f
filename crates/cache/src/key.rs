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

/// A key of the cache: small, copied freely, immutable.
///
/// Integers, byte arrays and pairs of keys implement it. Your own type may return its owner:
///
/// ```
/// use forebay_cache::{Key, OwnerId};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct BlockKey { pool: u16, device: u16, birth: u64, offset: u64 }
///
/// // SAFETY: `Hash` and `Eq` are derived, over integers that never change.
/// unsafe impl Key for BlockKey {
///     fn owner(&self) -> OwnerId { OwnerId::from_raw(self.pool) }
/// }
/// ```
///
/// # Safety
///
/// `Hash`, `Eq` and [`owner`](Self::owner) must depend only on the key's value, always give the
/// same result, and not panic. `Hash` and `Eq` must agree. Derived implementations over plain data
/// satisfy this.
pub unsafe trait Key: Copy + Eq + Hash + Send + Sync + 'static {
    /// The owner of this key.
    #[inline]
    fn owner(&self) -> OwnerId {
        OwnerId::NONE
    }
}

macro_rules! keys {
    ($($t:ty)*) => {$(
        // SAFETY: plain data, whose `Hash` and `Eq` are std's.
        unsafe impl Key for $t {}
    )*};
}
keys!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize char bool);

// SAFETY: plain data, whose `Hash` and `Eq` are std's.
unsafe impl<const N: usize> Key for [u8; N] {}

// SAFETY: by the contracts of the parts.
unsafe impl<A: Key, B: Key> Key for (A, B) {
    fn owner(&self) -> OwnerId {
        self.0.owner()
    }
}
