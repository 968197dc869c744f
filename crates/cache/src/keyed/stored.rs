//! What the block cache holds for a keyed cache: the fingerprint as key; key, value and times as
//! value.

use crate::key::Key;
use crate::keyed::times::Times;

/// The hash of a key by the user's hasher. The block cache's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(pub(crate) u64);

impl Key for Fingerprint {}

/// A key with its value.
pub(crate) struct Stored<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) times: Times,
}
