//! Keys, and who owns them.

use std::hash::Hash;

/// Names the owner of a range of keys, a storage pool for instance. See
/// [`Cache::open_owner`](crate::Cache::open_owner).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub(crate) u16);

impl OwnerId {
    /// Keys that belong to nobody in particular; always cached.
    pub const NONE: Self = Self(0);

    /// The number to store in a key.
    pub fn get(self) -> u16 {
        self.0
    }

    /// The owner of that number, as stored in a key.
    pub fn from_raw(id: u16) -> Self {
        Self(id)
    }
}

/// What a cache can be looked up by: small, copied freely, never changing.
///
/// Integers, byte arrays and pairs of keys are keys already. A type of your own says who owns
/// it, if somebody does:
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
/// The cache relies on keys to find what it must not forget: `Hash` and `Eq` must depend on the key's value
/// alone and give the same answers at all times, agree with each other, and not panic; nor may
/// [`owner`](Self::owner). Derived implementations over plain data are right.
pub unsafe trait Key: Copy + Eq + Hash + Send + Sync + 'static {
    /// Whose key this is.
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

// SAFETY: by the parts' own promises.
unsafe impl<A: Key, B: Key> Key for (A, B) {
    fn owner(&self) -> OwnerId {
        self.0.owner()
    }
}
