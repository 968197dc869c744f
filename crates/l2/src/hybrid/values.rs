//! Keys and values that encode themselves, so that most users need no codec.

use forebay_base::sync::Arc;
use forebay_cache::Key;

use super::expiry::{Expiries, Lifetime};
use crate::codec::Codec;

/// A key that can be written to a device.
///
/// The encoding must be the same in every run of the program, because values are found by it after
/// a restart. Different keys must have different encodings.
///
/// Integers, byte arrays and pairs of keys implement it. A struct does it like this:
///
/// ```
/// use forebay_l2::{Key, L2Key};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct BlockKey {
///     file: u64,
///     number: u32,
/// }
///
/// impl Key for BlockKey {}
///
/// impl L2Key for BlockKey {
///     const BYTES: usize = 12;
///     const DECODES: bool = true;
///
///     fn encode(&self, out: &mut [u8]) {
///         (self.file, self.number).encode(out);
///     }
///
///     fn group(&self) -> Option<u64> {
///         Some(self.file)
///     }
///
///     fn from_encoded(bytes: &[u8]) -> Option<Self> {
///         let (file, number) = L2Key::from_encoded(bytes)?;
///         Some(Self { file, number })
///     }
/// }
/// ```
pub trait L2Key: Key {
    /// Length of every encoded key in bytes, from 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    const BYTES: usize;

    /// Writes the key into `out`, which has [`BYTES`](Self::BYTES) bytes.
    fn encode(&self, out: &mut [u8]);

    /// Whether [`from_encoded`](Self::from_encoded) restores keys. The warm-up requires it.
    const DECODES: bool = false;

    /// The group of the key, such as the number of the file that the block belongs to:
    /// [`HybridCache::remove_group`](crate::HybridCache::remove_group) removes all keys of one. It
    /// must be the same in every run. A pair has that of its first part, if this has at most eight
    /// bytes: for an unsigned integer it is its value.
    fn group(&self) -> Option<u64> {
        None
    }

    /// Restores a key from its encoding. The checksum has verified the bytes, but an older program
    /// may have written them.
    fn from_encoded(_bytes: &[u8]) -> Option<Self> {
        None
    }
}

/// A value that can be written to a device.
pub trait L2Value: Sized + Send + Sync + 'static {
    /// The number of bytes that [`encode`](Self::encode) writes.
    fn encoded_len(&self) -> usize;

    /// Writes the value into `out`, which has [`encoded_len`](Self::encoded_len) bytes.
    fn encode(&self, out: &mut [u8]);

    /// Decodes a value. The checksum has verified the bytes, but an older program may have written
    /// them. `None` is a miss.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Whether values of this type have a [`lifetime`](Self::lifetime).
    const EXPIRES: bool = false;

    /// The times of the value, if it can expire; see [`Expiring`](crate::Expiring).
    fn lifetime(&self) -> Option<&Lifetime> {
        None
    }

    /// Bytes of memory that the value takes, itself included. This is its weight in the cache.
    fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.encoded_len()) as u64
    }
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl L2Key for $t {
            const BYTES: usize = size_of::<$t>();
            const DECODES: bool = true;
            fn encode(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn from_encoded(bytes: &[u8]) -> Option<Self> {
                Some(<$t>::from_le_bytes(bytes.try_into().ok()?))
            }
        }

        impl L2Value for $t {
            fn encoded_len(&self) -> usize {
                size_of::<$t>()
            }
            fn encode(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(<$t>::from_le_bytes(bytes.try_into().ok()?))
            }
            fn memory_bytes(&self) -> u64 {
                size_of::<$t>() as u64
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

impl<const N: usize> L2Key for [u8; N] {
    const BYTES: usize = N;
    const DECODES: bool = true;
    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn from_encoded(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

impl<A: L2Key, B: L2Key> L2Key for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;
    fn encode(&self, out: &mut [u8]) {
        let (first, second) = out.split_at_mut(A::BYTES);
        self.0.encode(first);
        self.1.encode(second);
    }
    const DECODES: bool = A::DECODES && B::DECODES;
    fn group(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.encode(bytes.get_mut(..A::BYTES)?);
        Some(u64::from_le_bytes(bytes))
    }
    fn from_encoded(bytes: &[u8]) -> Option<Self> {
        let (first, second) = bytes.split_at_checked(A::BYTES)?;
        Some((A::from_encoded(first)?, B::from_encoded(second)?))
    }
}

impl<const N: usize> L2Value for [u8; N] {
    fn encoded_len(&self) -> usize {
        N
    }
    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
    fn memory_bytes(&self) -> u64 {
        N as u64
    }
}

macro_rules! bytes {
    ($($t:ty)*) => {$(
        impl L2Value for $t {
            fn encoded_len(&self) -> usize {
                self.len()
            }
            fn encode(&self, out: &mut [u8]) {
                out.copy_from_slice(self);
            }
            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(bytes.into())
            }
        }
    )*};
}
bytes!(Vec<u8> Box<[u8]> Arc<[u8]>);

/// Weighs its length, although it may keep a larger buffer alive: cache a copy of a small part.
#[cfg(feature = "bytes")]
impl L2Value for bytes::Bytes {
    fn encoded_len(&self) -> usize {
        self.len()
    }
    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self::copy_from_slice(bytes))
    }
}

impl L2Value for String {
    fn encoded_len(&self) -> usize {
        self.len()
    }
    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self.as_bytes());
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

/// Decides which values may be written.
pub(super) type WriteIf<K, V> = Arc<dyn Fn(&K, &V) -> bool + Send + Sync>;

/// The codec of self-encoding keys and values.
pub(super) struct ValueCodec<K, V> {
    expiries: Option<Arc<Expiries<V>>>,
    write_if: Option<WriteIf<K, V>>,
}

impl<K, V> ValueCodec<K, V> {
    pub(super) fn new(expiries: Option<Arc<Expiries<V>>>, write_if: Option<WriteIf<K, V>>) -> Self {
        Self { expiries, write_if }
    }
}

impl<K: L2Key, V: L2Value> Codec<K, V> for ValueCodec<K, V> {
    fn key_bytes(&self) -> usize {
        K::BYTES
    }
    fn encode_key(&self, key: &K, out: &mut [u8]) {
        key.encode(out);
    }
    fn decodes_keys(&self) -> bool {
        K::DECODES
    }
    fn decode_key(&self, key: &[u8], _note: &[u8]) -> Option<K> {
        K::from_encoded(key)
    }
    fn group(&self, key: &K) -> Option<u64> {
        key.group()
    }
    fn encoded_len(&self, value: &V) -> usize {
        value.encoded_len()
    }
    fn encode(&self, value: &V, out: &mut [u8]) {
        value.encode(out);
    }
    fn decode(&self, _key: &K, bytes: &[u8]) -> Option<V> {
        V::decode(bytes)
    }
    fn has_expired(&self, value: &V) -> bool {
        self.expiries.as_ref().is_some_and(|expiries| expiries.has_expired(value))
    }
    fn admit_value(&self, key: &K, value: &V) -> bool {
        self.write_if.as_ref().is_none_or(|condition| condition(key, value))
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    fn round<V: L2Value + PartialEq + std::fmt::Debug>(value: V) {
        let mut bytes = vec![0; value.encoded_len()];
        value.encode(&mut bytes);
        assert_eq!(V::decode(&bytes), Some(value));
    }

    #[test]
    fn values_survive_encoding() {
        round(0x0123_4567_89ab_cdef_u64);
        round(-5_i32);
        round([1u8, 2, 3]);
        round(vec![7u8; 1000]);
        round(Vec::<u8>::new());
        round(String::from("Füllung"));
        round(vec![1u8, 2].into_boxed_slice());
        round(Arc::<[u8]>::from([1u8, 2, 3]));
        #[cfg(feature = "bytes")]
        round(bytes::Bytes::from_static(b"forebay").slice(4..));
    }

    #[test]
    fn invalid_bytes_do_not_decode() {
        assert_eq!(u64::decode(&[1, 2, 3]), None);
        assert_eq!(<[u8; 4]>::decode(&[1, 2, 3]), None);
        assert_eq!(String::decode(&[0xff, 0xfe]), None);
    }

    #[test]
    fn different_keys_give_different_bytes() {
        let encoded = |key: (u32, u64)| {
            let mut bytes = [0; <(u32, u64)>::BYTES];
            key.encode(&mut bytes);
            bytes
        };
        assert_eq!(encoded((1, 2)), [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_ne!(encoded((1, 2)), encoded((2, 1)));
        assert_eq!(<(u32, u64)>::from_encoded(&encoded((1, 2))), Some((1, 2)));
        assert_eq!(<(u32, u64)>::from_encoded(&[1, 2, 3]), None);
    }
}
