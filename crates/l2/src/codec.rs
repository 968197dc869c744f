//! The codec: how keys and values become bytes, and which blocks may be written.

use forebay_cache::{Class, Key};

/// Maximum length of an encoded key, in bytes.
pub const MAX_KEY_BYTES: usize = 32;
/// Maximum length of a note, in bytes.
pub const MAX_NOTE_BYTES: usize = 16;

/// The reason why a block is not written to the L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdmissionRefusal {
    /// The write rate is exhausted.
    Rate,
    /// The write queue is full because the device does not keep up.
    QueueFull,
    /// The block has no proven reuse, and the blocks that the ring would evict for it are loaded
    /// more often than blocks of its kind.
    NoProvenReuse,
    /// The block was reused, but the blocks that the ring would evict for it are loaded more often
    /// than blocks of its kind.
    LittleReuse,
    /// The block exceeds the maximum block size of the L2.
    TooLarge,
    /// The codec excludes blocks of this class.
    ClassExcluded,
    /// The codec excludes blocks of this owner.
    OwnerExcluded,
    /// The codec excludes the value: [`Codec::admit_value`].
    ValueExcluded,
    /// The object that the block belongs to is not durable yet. The block may be offered again.
    NotDurable,
    /// The rebuild has not finished, so the L2 does not know which blocks it holds.
    Rebuilding,
    /// The device has failed.
    Failed,
    /// The L2 was closed or removed.
    Removed,
    /// The user's codec panicked on the block.
    CodecPanicked,
}

impl AdmissionRefusal {
    /// All reasons, in the order of the counter's labels.
    pub const ALL: [Self; 13] = [
        Self::Rate,
        Self::QueueFull,
        Self::NoProvenReuse,
        Self::LittleReuse,
        Self::TooLarge,
        Self::ClassExcluded,
        Self::OwnerExcluded,
        Self::ValueExcluded,
        Self::NotDurable,
        Self::Rebuilding,
        Self::Failed,
        Self::Removed,
        Self::CodecPanicked,
    ];
}

/// Encodes and decodes the keys and values of a cache for the L2.
///
/// A key must have the same encoding each time the L2 is opened. The encoding must not contain
/// anything that differs between runs, such as an owner number that is assigned at start.
///
/// The L2 catches panics of these functions and counts them (`codec_panics`). A block on which the
/// codec panics is not written, or its load is a miss. A `forget` of its key returns an error.
/// Nothing else is affected.
pub trait Codec<K: Key, V>: Send + Sync + 'static {
    /// The length of every encoded key in bytes, from 1 to [`MAX_KEY_BYTES`].
    fn key_bytes(&self) -> usize;

    /// Writes the key into `out`, which has [`key_bytes`](Self::key_bytes) bytes. Different keys of
    /// one L2 must have different encodings.
    fn encode_key(&self, key: &K, out: &mut [u8]);

    /// The length of the note in bytes, up to [`MAX_NOTE_BYTES`]. The note is stored beside each
    /// key. It holds the parts that [`decode_key`](Self::decode_key) needs and that do not take
    /// part in lookups.
    fn note_bytes(&self) -> usize {
        0
    }

    /// Writes the note of a key into `out`, which has [`note_bytes`](Self::note_bytes) bytes.
    fn encode_note(&self, _key: &K, _out: &mut [u8]) {}

    /// Whether [`decode_key`](Self::decode_key) can restore keys. Without it, the warm-up does
    /// nothing.
    fn decodes_keys(&self) -> bool {
        false
    }

    /// Restores a key from its encoding and its note. The checksum has verified both, but another
    /// version of the program may have written them, so the note may be empty. Returns `None` if
    /// the key does not exist, or does not exist at present. May block, but must not wait for the
    /// L2.
    fn decode_key(&self, _key: &[u8], _note: &[u8]) -> Option<K> {
        None
    }

    /// The group of the key, if it has one; see
    /// [`HybridCache::remove_group`](crate::HybridCache::remove_group). Must be the same in every
    /// run. [`decode_key`](Self::decode_key) should restore keys: otherwise a block that cannot be
    /// told to be of a removed group is not kept when its place on the device is reused.
    fn group(&self, _key: &K) -> Option<u64> {
        None
    }

    /// The time of the key's creation in the user's own unit, such as the transaction group that
    /// wrote the block. If the L2 holds a key newer than
    /// [`max_stamp`](crate::L2Options::max_stamp), its user was rolled back, and opening empties
    /// the L2.
    fn stamp(&self, _key: &K) -> u64 {
        0
    }

    /// The number of bytes that [`encode`](Self::encode) writes.
    fn encoded_len(&self, value: &V) -> usize;

    /// Writes the value into `out`, which has [`encoded_len`](Self::encoded_len) bytes.
    fn encode(&self, value: &V, out: &mut [u8]);

    /// Decodes a value from `bytes`, which the checksum has verified. Returns `None` if the bytes
    /// are not a value or if memory is exhausted. The load is then a miss. After three in a row,
    /// the block is not read again.
    fn decode(&self, key: &K, bytes: &[u8]) -> Option<V>;

    /// Whether the time of a value that was just decoded is over. Then the load is a miss, and the
    /// block is not read again.
    fn has_expired(&self, _value: &V) -> bool {
        false
    }

    /// Decides whether a block may be written now.
    ///
    /// # Errors
    /// The reason to count.
    fn admit(&self, _key: &K, _class: Class) -> Result<(), AdmissionRefusal> {
        Ok(())
    }

    /// Decides whether a block may be written, by its value. Asked after [`admit`](Self::admit).
    fn admit_value(&self, _key: &K, _value: &V) -> bool {
        true
    }
}
