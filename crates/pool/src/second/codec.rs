//! Blocks as levels write them: by address and birth, the content as it is in memory.

use forebay_base::arena::{Arena, Buffer};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_cache::{Class, Key};
use forebay_l2::{Codec, Refusal};

use super::{Levels, Wanted};
use crate::block_cache::BlockKey;

/// Bytes of a block's key on a level.
const KEY_BYTES: usize = 16;

/// The codec of a pool's level.
pub(crate) struct BlockCodec {
    levels: Arc<Levels>,
    arena: Arc<Arena>,
    /// Whether anything may be written.
    open: AtomicBool,
}

impl BlockCodec {
    /// Admits nothing yet.
    pub(crate) fn new(levels: Arc<Levels>, arena: Arc<Arena>) -> Self {
        Self { levels, arena, open: AtomicBool::new(false) }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Admits what may be admitted from now on.
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
        // In a request's callback: what has no memory at once is read from the pool's devices, by who may wait.
        let mut block = self.arena.alloc(bytes.len()).ok()?;
        block.copy_from_slice(bytes);
        Some(block)
    }

    fn admit(&self, key: &BlockKey, class: Class) -> Result<(), Refusal> {
        match self.levels.wants(key.owner(), class) {
            Wanted::Yes => {}
            Wanted::NotThisClass => return Err(Refusal::ClassExcluded),
            Wanted::Nothing => return Err(Refusal::OwnerExcluded),
        }
        if !self.open.load(Ordering::Relaxed) {
            return Err(Refusal::Rebuilding);
        }
        match key.birth() <= self.levels.durable() {
            true => Ok(()),
            false => Err(Refusal::NotDurable),
        }
    }
}
