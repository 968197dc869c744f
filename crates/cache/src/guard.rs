//! References to cached blocks. Each holds a pin.
//!
//! Locking: none; taking and dropping a reference update the block's header only.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::attributes::{Cause, Class};
use crate::header::{Header, RETIRED, VALID};
use crate::inner::CacheInner;
use crate::key::Key;

/// A pinned block, borrowed from its cache.
///
/// Taking and dropping it cost one atomic update each, of the block's header. The block lives as
/// long as the reference, even if it leaves the cache.
pub struct Ref<'a, K: Key, V: Send + Sync + 'static> {
    header: NonNull<Header<K, V>>,
    inner: NonNull<CacheInner<K, V>>,
    _cache: PhantomData<&'a CacheInner<K, V>>,
}

/// Where a cache had a block: saves an index lookup, see [`Cache::get_at`](crate::Cache::get_at).
///
/// It does not keep the block in the cache. An outdated hint is harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHint(pub(crate) u32);

impl SlotHint {
    /// No hint: the index is searched.
    pub const UNKNOWN: Self = Self(0);
}

/// A pinned block that borrows nothing, for replies that outlive the borrow. It holds the header's
/// pin and no shared reference count. [`Cache::close`](crate::Cache::close) waits for it.
pub struct OwnedRef<K: Key, V: Send + Sync + 'static> {
    header: NonNull<Header<K, V>>,
    inner: NonNull<CacheInner<K, V>>,
}

// SAFETY: a reference gives shared access to `K` and `V`, and its drop may drop a `V` here, so both
// bounds are needed; `Key` brings `K`'s.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for Ref<'_, K, V> {}
// SAFETY: a shared reference gives shared access to `K` and `V`, which both bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for Ref<'_, K, V> {}
// SAFETY: it gives shared access to `K` and `V`, and its drop may drop a `V` here; both bounds
// allow that. Its target lives while any pin does (`CacheInner::hold`).
unsafe impl<K: Key, V: Send + Sync + 'static> Send for OwnedRef<K, V> {}
// SAFETY: a shared reference gives shared access to `K` and `V`, which both bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for OwnedRef<K, V> {}

impl<'a, K: Key, V: Send + Sync + 'static> Ref<'a, K, V> {
    /// Takes over a pin.
    ///
    /// # Safety
    ///
    /// The caller holds a pin on a filled header of `inner`, and hands it over.
    #[inline]
    pub(crate) unsafe fn from_pin(
        inner: &'a CacheInner<K, V>,
        header: NonNull<Header<K, V>>,
    ) -> Self {
        Self { header, inner: NonNull::from(inner), _cache: PhantomData }
    }

    /// Key of the block.
    #[inline]
    pub fn key(&self) -> &K {
        // SAFETY: this reference holds a pin.
        unsafe { self.header.as_ref().key() }
    }

    /// Where the cache has the block now.
    #[inline]
    pub fn slot_hint(&self) -> SlotHint {
        // SAFETY: this reference holds a pin.
        SlotHint(unsafe { self.header.as_ref() }.id())
    }

    pub(crate) fn header(&self) -> NonNull<Header<K, V>> {
        self.header
    }

    pub(crate) fn class(&self) -> Class {
        // SAFETY: this reference holds a pin.
        unsafe { self.header.as_ref() }.state().class()
    }

    /// Removes this very block and returns it, unless it has left already.
    pub(crate) fn remove(&self, cause: Cause) -> Option<OwnedRef<K, V>> {
        // SAFETY: this reference borrows the cache.
        let inner = unsafe { self.inner.as_ref() };
        let hash = inner.hash(self.key());
        let removed = inner.remove(hash, self.key(), cause, Some(self.header))?;
        if cause != Cause::Replaced {
            inner.simulations.note_removal(hash);
        }
        Some(removed)
    }

    /// Converts it to a reference that borrows nothing, with the same pin.
    pub fn into_owned(self) -> OwnedRef<K, V> {
        let owned = OwnedRef { header: self.header, inner: self.inner };
        std::mem::forget(self);
        owned
    }

    /// Takes a second pin, for a reference that borrows nothing.
    pub fn to_owned_ref(&self) -> OwnedRef<K, V> {
        // SAFETY: this reference holds a pin, so the header is in use, and the cache lives.
        unsafe { self.inner.as_ref().pin_again(self.header) };
        OwnedRef { header: self.header, inner: self.inner }
    }
}

impl<K: Key, V: Send + Sync + 'static> OwnedRef<K, V> {
    /// Takes over a pin.
    ///
    /// # Safety
    ///
    /// The caller holds a pin on a filled header of `inner`, and hands it over.
    pub(crate) unsafe fn from_pin(inner: &CacheInner<K, V>, header: NonNull<Header<K, V>>) -> Self {
        Self { header, inner: NonNull::from(inner) }
    }

    /// Key of the block.
    pub fn key(&self) -> &K {
        // SAFETY: this reference holds a pin.
        unsafe { self.header.as_ref().key() }
    }

    /// Whether this block is in the cache now: it was cached when it was filled, and has not left
    /// since.
    pub fn is_cached(&self) -> bool {
        let state = self.header().state();
        state.has(VALID) && !state.has(RETIRED)
    }

    /// Takes the value out, if the block has left the cache and this is its last pin. The listener
    /// ([`on_evicted`](crate::Builder::on_evicted)) is not told of it then: the caller has it.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, String>::builder().max_entries(1000).build()?;
    /// cache.insert(7, "seven".to_owned())?;
    /// let removed = cache.remove(&7).expect("inserted just now");
    /// assert_eq!(removed.try_into_value().as_deref().ok(), Some("seven"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The reference, if the block is cached, or if there are other pins.
    pub fn try_into_value(self) -> Result<V, Self> {
        if !self.header().claim_value() {
            return Err(self);
        }
        // SAFETY: claimed just now.
        let (value, weight) = unsafe { self.header().take_claimed() };
        // SAFETY: the pin keeps the cache alive.
        unsafe { self.inner.as_ref() }.capacity.release(u64::from(weight));
        Ok(value)
    }

    /// Converts it to a reference that borrows its cache, with the same pin.
    pub(crate) fn lend(self, inner: &CacheInner<K, V>) -> Ref<'_, K, V> {
        debug_assert_eq!(self.inner, NonNull::from(inner));
        let block = Ref { header: self.header, inner: self.inner, _cache: PhantomData };
        std::mem::forget(self);
        block
    }

    pub(crate) fn pinned_header(&self) -> NonNull<Header<K, V>> {
        self.header
    }

    pub(crate) fn header(&self) -> &Header<K, V> {
        // SAFETY: this reference holds a pin, so the header is in use and its slab lives.
        unsafe { self.header.as_ref() }
    }
}

impl<K: Key, V: Send + Sync + 'static> Clone for OwnedRef<K, V> {
    fn clone(&self) -> Self {
        // SAFETY: this reference holds a pin, so the header is in use, and the cache lives.
        unsafe { self.inner.as_ref().pin_again(self.header) };
        Self { header: self.header, inner: self.inner }
    }
}

impl<K: Key, V: Send + Sync + 'static> Deref for Ref<'_, K, V> {
    type Target = V;
    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: references are made from pins on filled headers.
        unsafe { self.header.as_ref().value() }
    }
}

impl<K: Key, V: Send + Sync + 'static> Deref for OwnedRef<K, V> {
    type Target = V;
    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: references are made from pins on filled headers.
        unsafe { self.header().value() }
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Ref<'_, K, V> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference holds a pin, which keeps both alive, and gives it up here.
        unsafe { CacheInner::unpin(self.inner, self.header) };
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for OwnedRef<K, V> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference holds a pin, which keeps both alive, and gives it up here.
        unsafe { CacheInner::unpin_owned(self.inner, self.header) };
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + fmt::Debug + 'static> fmt::Debug for Ref<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ref").field("key", self.key()).field("value", &**self).finish()
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + fmt::Debug + 'static> fmt::Debug for OwnedRef<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRef").field("key", self.key()).field("value", &**self).finish()
    }
}
