//! References to the values of a keyed cache. Each holds a pin, as those of a [`Cache`].
//!
//! [`Cache`]: crate::Cache

use std::fmt;
use std::ops::Deref;

use crate::guard::{OwnedRef, Ref};
use crate::keyed::stored::{Fingerprint, Stored};

/// A value of a [`KeyedCache`](crate::KeyedCache), pinned, that borrows the cache.
///
/// The value lives as long as the reference, even if it leaves the cache or expires.
pub struct KeyedRef<'a, K: Send + Sync + 'static, V: Send + Sync + 'static>(
    pub(super) Ref<'a, Fingerprint, Stored<K, V>>,
);

/// A value of a [`KeyedCache`](crate::KeyedCache), pinned, that borrows nothing.
/// [`close`](crate::KeyedCache::close) waits for it.
pub struct KeyedOwnedRef<K: Send + Sync + 'static, V: Send + Sync + 'static>(
    pub(super) OwnedRef<Fingerprint, Stored<K, V>>,
);

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> KeyedRef<'_, K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.0.key
    }

    /// Converts it to a reference that borrows nothing, with the same pin.
    pub fn into_owned(self) -> KeyedOwnedRef<K, V> {
        KeyedOwnedRef(self.0.into_owned())
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> KeyedOwnedRef<K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.0.key
    }

    /// Whether this value is in the cache now: it was cached, and has not left since.
    pub fn is_cached(&self) -> bool {
        self.0.is_cached()
    }

    /// Takes key and value out, if the entry has left the cache and this is its last pin. The
    /// listener does not get them then.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, Vec<u8>>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), vec![7])?;
    /// let removed = cache.remove("seven").expect("inserted just now");
    /// assert_eq!(removed.try_into_entry().ok(), Some(("seven".to_owned(), vec![7])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The reference, if the entry is cached, or if there are other pins.
    pub fn try_into_entry(self) -> Result<(K, V), Self> {
        self.0.try_into_value().map(|stored| (stored.key, stored.value)).map_err(Self)
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Clone for KeyedOwnedRef<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Deref for KeyedRef<'_, K, V> {
    type Target = V;
    #[inline]
    fn deref(&self) -> &V {
        &self.0.value
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Deref for KeyedOwnedRef<K, V> {
    type Target = V;
    #[inline]
    fn deref(&self) -> &V {
        &self.0.value
    }
}

impl<K, V> fmt::Debug for KeyedRef<'_, K, V>
where
    K: Send + Sync + fmt::Debug + 'static,
    V: Send + Sync + fmt::Debug + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRef").field("key", self.key()).field("value", &**self).finish()
    }
}

impl<K, V> fmt::Debug for KeyedOwnedRef<K, V>
where
    K: Send + Sync + fmt::Debug + 'static,
    V: Send + Sync + fmt::Debug + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedOwnedRef").field("key", self.key()).field("value", &**self).finish()
    }
}
