//! Codec of pool blocks on L2 devices.
//!
//! A key is address and birth txg, a value the content in memory. Each block has a note with the
//! number of its dataset, from which a warm-up finds the block's owner.

use forebay_base::arena::{Arena, Buffer};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_cache::{Class, Key};
use forebay_l2::{AdmissionRefusal, Codec};

use super::pool_l2::{ClassAdmission, PoolL2};
use crate::block_key::{BIRTH_END, BlockKey};

/// Bytes of a block's key on an L2.
const KEY_BYTES: usize = 16;

/// Bytes of a block's note: its dataset number.
const NOTE_BYTES: usize = 8;
/// Note of a block with an unknown dataset number.
const UNKNOWN: u64 = u64::MAX;

/// The codec of a pool's L2 devices.
pub(crate) struct BlockCodec {
    l2: Arc<PoolL2>,
    arena: Arc<Arena>,
    /// Whether writes are admitted.
    open: AtomicBool,
}

impl BlockCodec {
    /// Creates a codec that does not admit writes yet.
    pub(crate) fn new(l2: Arc<PoolL2>, arena: Arc<Arena>) -> Self {
        Self { l2, arena, open: AtomicBool::new(false) }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Admits writes from now on.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

impl Codec<BlockKey, Buffer> for BlockCodec {
    fn key_bytes(&self) -> usize {
        KEY_BYTES
    }

    fn encode_key(&self, key: &BlockKey, out: &mut [u8]) {
        out[..8].copy_from_slice(&key.dva().to_le_bytes());
        out[8..].copy_from_slice(&key.birth().to_le_bytes());
    }

    fn note_bytes(&self) -> usize {
        NOTE_BYTES
    }

    fn encode_note(&self, key: &BlockKey, out: &mut [u8]) {
        let number = self.l2.dataset_of_owner(key.owner()).unwrap_or(UNKNOWN);
        out.copy_from_slice(&number.to_le_bytes());
    }

    fn decodes_keys(&self) -> bool {
        true
    }

    fn decode_key(&self, key: &[u8], note: &[u8]) -> Option<BlockKey> {
        // The bytes need no validation: a key of no block of the pool is never looked up.
        let (dva, birth) = key.split_first_chunk()?;
        let (dva, birth) = (u64::from_le_bytes(*dva), u64::from_le_bytes(birth.try_into().ok()?));
        let number = u64::from_le_bytes(note.try_into().ok()?);
        if birth >= BIRTH_END || number == UNKNOWN {
            return None;
        }
        Some(BlockKey::of_parts(self.l2.owner_of(number)?, dva, birth))
    }

    fn stamp(&self, key: &BlockKey) -> u64 {
        key.birth()
    }

    fn encoded_len(&self, block: &Buffer) -> usize {
        block.len()
    }

    fn encode(&self, block: &Buffer, out: &mut [u8]) {
        out.copy_from_slice(block);
    }

    fn decode(&self, _key: &BlockKey, bytes: &[u8]) -> Option<Buffer> {
        // Runs in an I/O callback, so it must not wait for memory. On failure, the reader uses the
        // pool's devices, and L2 keeps the block: keys are immutable, so it is still right. If L2
        // gave it up after a few such reads, a short lack of memory would cost the hottest blocks.
        let mut block = self.arena.alloc(bytes.len()).ok()?;
        block.copy_from_slice(bytes);
        Some(block)
    }

    fn admit(&self, key: &BlockKey, class: Class) -> Result<(), AdmissionRefusal> {
        match self.l2.admission(key.owner(), class) {
            ClassAdmission::Admitted => {}
            ClassAdmission::ClassExcluded => return Err(AdmissionRefusal::ClassExcluded),
            ClassAdmission::OwnerExcluded => return Err(AdmissionRefusal::OwnerExcluded),
        }
        if !self.open.load(Ordering::Relaxed) {
            return Err(AdmissionRefusal::Rebuilding);
        }
        match key.birth() <= self.l2.durable() {
            true => Ok(()),
            false => Err(AdmissionRefusal::NotDurable),
        }
    }
}
