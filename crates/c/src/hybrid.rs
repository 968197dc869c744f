//! A cache of byte strings in memory and on a device: [`HybridByteCache`].
//!
//! Its hybrid cache wants keys of a fixed size. They are digests of the program's keys, and the key
//! itself is kept before the value, in the same block.
//!
//! Invariant: a lookup returns a value only if the key in its block equals the requested one. A
//! block of another key with the same digest is a miss. An insert replaces it; a removal of one key
//! removes the other's value, too.
//!
//! The digest is XXH3 of 128 bits, the same in every run. Somebody who chooses keys can make two of
//! them displace each other, and nothing worse.
//!
//! Locking: none; that of [`HybridCache`].

use std::fmt;
use std::ops::Deref;
use std::path::Path;
// tidy: std, because that is what the error has.
use std::sync::Arc;

use forebay::l2::{Error, ErrorKind, L2Stats};
use forebay::{HybridCache, InsertError, L2Value, LoadError, OwnedRef};
use xxhash_rust::xxh3::xxh3_128;

use crate::memory::CacheStats;

/// Says on the device how keys and blocks are encoded. A device of another encoding is refused.
const NAME: &str = "byte strings, version 1";
/// Bytes of a block before its key: the key's length.
const HEAD: usize = size_of::<u32>();

/// How to open a [`HybridByteCache`].
#[derive(Clone, Copy, Debug)]
pub struct HybridOptions<'a> {
    /// The file, which is created if there is none, or a block device.
    pub path: &'a Path,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of memory for keys and values.
    pub memory_bytes: u64,
}

/// A value with its key, encoded as on the device.
struct Block(Box<[u8]>);

/// A cache of byte strings in memory and on a device.
#[derive(Debug)]
pub struct HybridByteCache(HybridCache<u128, Block>);

/// A value, which stays valid and unchanged while this exists.
pub struct HybridValue(Source);

enum Source {
    Cached(OwnedRef<u128, Block>),
    /// It could not be cached.
    Own(Block),
}

impl Block {
    /// `None` if the key is longer than a length on the device can say.
    fn new(key: &[u8], value: &[u8]) -> Option<Self> {
        let len = u32::try_from(key.len()).ok()?;
        Some(Self([&len.to_le_bytes(), key, value].concat().into_boxed_slice()))
    }

    /// The key and the value.
    fn parts(&self) -> (&[u8], &[u8]) {
        let parts = split(&self.0);
        parts.expect("`new` and `decode` make no other blocks")
    }
}

/// The key and the value of an encoded block.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*head)).ok()?)
}

impl L2Value for Block {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        split(bytes).map(|_| Self(bytes.into()))
    }
}

impl HybridByteCache {
    /// Opens the cache. It serves at once; values of the device are found after a moment.
    ///
    /// # Errors
    ///
    /// As [`HybridCache::open`].
    pub fn open(options: &HybridOptions<'_>) -> Result<Self, Error> {
        let builder = HybridCache::builder_at(options.path, options.bytes);
        Ok(Self(builder.capacity(options.memory_bytes).name(NAME).build()?))
    }

    /// The value of the key. Reads the device if memory does not have it.
    pub fn get(&self, key: &[u8]) -> Option<HybridValue> {
        self.0.get(&xxh3_128(key)).filter(|block| block.parts().0 == key).map(HybridValue::cached)
    }

    /// Caches a value and replaces any other of the key, also on the device, before it returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoMemory`] if the value was not cached; an older one is removed all the same.
    /// [`ErrorKind::Closed`] once the cache is closed. Another kind if the device could not forget
    /// an older value, which may then return when the device is opened again.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let block = Block::new(key, value).ok_or_else(key_too_long)?;
        self.0.insert(xxh3_128(key), block).map_err(|error| match error {
            InsertError::ForgetFailed { error, .. } => error,
            InsertError::Refused(refused) => {
                let kind = match refused.reason {
                    forebay::Refusal::Closed => ErrorKind::Closed,
                    _ => ErrorKind::NoMemory,
                };
                Error::new(kind, refused.to_string())
            }
            other => Error::new(ErrorKind::Device, other.to_string()),
        })
    }

    /// Removes the value of the key from memory and from the device. The removal is durable when
    /// the call returns.
    ///
    /// # Errors
    ///
    /// As [`HybridCache::remove`].
    pub fn remove(&self, key: &[u8]) -> Result<(), Error> {
        self.0.remove(&xxh3_128(key)).map(|_| ())
    }

    /// The value of the key. If neither memory nor the device has it, `load` provides it, once,
    /// however many threads ask.
    ///
    /// # Errors
    ///
    /// As [`HybridCache::get_or_load`].
    pub fn get_or_load<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: &[u8],
        load: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<HybridValue, LoadError<E>> {
        if u32::try_from(key.len()).is_err() {
            return Err(LoadError::NoMemory(key_too_long().to_string()));
        }
        let block = |value: Vec<u8>| Block::new(key, &value).expect("its length was checked");
        let mut load = Some(load);
        let first = self.0.get_or_load(xxh3_128(key), || {
            let load = load.take().expect("a load runs once");
            load().map(block)
        })?;
        match load {
            // Another key has this digest. Its value stays, and this one is not cached.
            Some(load) if first.parts().0 != key => {
                let value = load().map_err(|error| LoadError::Failed(Arc::new(error)))?;
                Ok(HybridValue(Source::Own(block(value))))
            }
            _ => Ok(HybridValue::cached(first)),
        }
    }

    /// Writes all values that only memory has to the device.
    ///
    /// # Errors
    ///
    /// If the device fails or the cache is closed.
    pub fn flush(&self) -> Result<(), Error> {
        self.0.flush_to_device()
    }

    /// Waits until the index of the device is complete.
    ///
    /// # Errors
    ///
    /// If the device failed, or the cache was closed meanwhile.
    pub fn wait_ready(&self) -> Result<(), Error> {
        if self.0.l2().wait_rebuilt() {
            return Ok(());
        }
        let text = "the index of the device is not complete: the device failed, or the cache was closed; open it again";
        Err(Error::new(ErrorKind::Device, text))
    }

    /// Sizes and counts of the memory.
    pub fn memory_stats(&self) -> CacheStats {
        CacheStats::of(&self.0.memory().stats())
    }

    /// Sizes and counts of the device.
    pub fn device_stats(&self) -> L2Stats {
        self.0.l2().stats()
    }

    /// Writes all values that only memory has to the device, and closes it. Waits until nobody
    /// holds a value. Afterwards lookups find nothing and changes fail.
    ///
    /// # Errors
    ///
    /// If not all values could be written. The cache is closed anyway.
    pub fn close(&self) -> Result<(), Error> {
        self.0.close()
    }
}

fn key_too_long() -> Error {
    Error::new(ErrorKind::Invalid, "a key has 4 GiB or more; use a shorter one, such as a hash")
}

impl HybridValue {
    fn cached(block: OwnedRef<u128, Block>) -> Self {
        Self(Source::Cached(block))
    }
}

impl Deref for HybridValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Cached(block) => block.parts().1,
            Source::Own(block) => block.parts().1,
        }
    }
}

impl fmt::Debug for HybridValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridValue").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &tempfile::TempDir) -> HybridByteCache {
        let path = folder.path().join("cache");
        let options = HybridOptions { path: &path, bytes: 16 << 20, memory_bytes: 1 << 20 };
        HybridByteCache::open(&options).unwrap()
    }

    /// Puts a block of `other` where `key` is looked for.
    fn collide(cache: &HybridByteCache, key: &[u8], other: &[u8]) {
        cache.0.insert(xxh3_128(key), Block::new(other, b"of the other").unwrap()).unwrap();
    }

    #[test]
    fn a_key_with_the_same_digest_is_never_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(&folder);
        collide(&cache, b"key", b"other");
        assert!(cache.get(b"key").is_none());
        let loaded = cache.get_or_load(b"key", || Ok::<_, String>(b"loaded".to_vec())).unwrap();
        assert_eq!(&*loaded, b"loaded");
        let failed = cache.get_or_load(b"key", || Err("gone".to_owned())).unwrap_err();
        assert_eq!(failed.to_string(), "cannot load the block: gone");
        // An insert displaces it.
        cache.insert(b"key", b"inserted").unwrap();
        assert_eq!(&*cache.get(b"key").unwrap(), b"inserted");
    }

    #[test]
    fn blocks_of_the_device_are_checked() {
        let block = Block::new(b"key", b"value").unwrap();
        assert_eq!(block.parts(), (&b"key"[..], &b"value"[..]));
        assert!(Block::decode(&block.0[..HEAD + 2]).is_none(), "the key is cut");
        assert!(Block::decode(&[0, 0]).is_none());
        assert_eq!(Block::decode(&block.0[..HEAD + 3]).unwrap().parts(), (&b"key"[..], &b""[..]));
    }
}
