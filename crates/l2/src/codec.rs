//! How keys and values become bytes, and what may be written: what the user of a level says of its blocks.

use forebay_cache::{Class, Key};

/// Bytes of an encoded key, at most.
pub const MAX_KEY_BYTES: usize = 32;
/// Bytes of a note, at most.
pub const MAX_NOTE_BYTES: usize = 16;

/// Why a block is not written to the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdmissionRefusal {
    /// More is offered than may be written a second.
    Rate,
    /// The device does not keep up: too much waits to be written.
    QueueFull,
    /// Nothing says that it will be asked for again, and what the ring would drop for it is asked for more often than such blocks are.
    NoProvenReuse,
    /// It was asked for again, but what the ring would drop for it is asked for more often than such blocks are.
    LittleReuse,
    /// It is larger than a block of the level may be.
    TooLarge,
    /// Blocks of its class are not wanted there.
    ClassExcluded,
    /// Blocks of its owner are not wanted there.
    OwnerExcluded,
    /// What it belongs to is not durable yet; it may be offered again.
    NotDurable,
    /// The level does not know yet what it has.
    Rebuilding,
    /// The device has failed.
    Failed,
    /// The level was closed or removed.
    Removed,
    /// The user's codec panicked on it.
    CodecPanicked,
}

impl AdmissionRefusal {
    /// All reasons, in the order of counter labels.
    pub const ALL: [Self; 12] = [
        Self::Rate,
        Self::QueueFull,
        Self::NoProvenReuse,
        Self::LittleReuse,
        Self::TooLarge,
        Self::ClassExcluded,
        Self::OwnerExcluded,
        Self::NotDurable,
        Self::Rebuilding,
        Self::Failed,
        Self::Removed,
        Self::CodecPanicked,
    ];
}

/// What a level has to know of the keys and values of a cache.
///
/// The same key must give the same bytes in every life of the level: nothing that differs from run to run belongs
/// into them, such as the number of an owner that is given out anew each time.
///
/// A panic in one of these is caught and counted (`codec_panics`). What it panicked on is not written, or is a miss, or could not be
/// forgotten, of which whoever asked for that is told; nothing else comes of it.
pub trait Codec<K: Key, V>: Send + Sync + 'static {
    /// Bytes of every encoded key, from 1 to [`MAX_KEY_BYTES`].
    fn key_bytes(&self) -> usize;

    /// Writes the key into `out`, which has [`key_bytes`](Self::key_bytes) bytes. Different keys of one level
    /// give different bytes.
    fn encode_key(&self, key: &K, out: &mut [u8]);

    /// Bytes of the note that lies beside each key, up to [`MAX_NOTE_BYTES`]: what a key is made from again, and blocks are not looked up
    /// by.
    fn note_bytes(&self) -> usize {
        0
    }

    /// Writes the note of a key into `out`, which has [`note_bytes`](Self::note_bytes) bytes.
    fn encode_note(&self, _key: &K, _out: &mut [u8]) {}

    /// Whether [`decode_key`](Self::decode_key) can make keys: else nothing is put into memory before it is asked for.
    fn decodes_keys(&self) -> bool {
        false
    }

    /// The key that was encoded so, with what its note says. They are what was written, by their checksum, but perhaps not by this
    /// program: the note may be empty. `None` if there is no such key, or none as of now. It may wait, but not for the level.
    fn decode_key(&self, _key: &[u8], _note: &[u8]) -> Option<K> {
        None
    }

    /// When the key came to be, in the user's own count, such as the transaction group that wrote the
    /// block. A level that holds younger keys than its user knows of, because that was set back, is emptied when it is opened.
    fn stamp(&self, _key: &K) -> u64 {
        0
    }

    /// Bytes that [`encode`](Self::encode) will write.
    fn encoded_len(&self, value: &V) -> usize;

    /// Writes the value into `out`, which has [`encoded_len`](Self::encoded_len) bytes.
    fn encode(&self, value: &V, out: &mut [u8]);

    /// The value that was encoded as `bytes`; they are what was written, by their checksum. `None` if
    /// that cannot be, or if there is no memory for it: then the load is a miss.
    fn decode(&self, key: &K, bytes: &[u8]) -> Option<V>;

    /// Whether a block may be written now.
    ///
    /// # Errors
    /// The reason that is counted.
    fn admit(&self, _key: &K, _class: Class) -> Result<(), AdmissionRefusal> {
        Ok(())
    }
}
