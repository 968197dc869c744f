//! The key of a block in the cache: owner, address and birth txg.
//!
//! A key identifies content. An address is reused only several txgs after it was freed, so a key
//! never stands for two contents, and a cached block is never stale.

use forebay_cache::{Key, OwnerId};

use crate::format::BlockPtrPhys;

/// Number of bits of a key's birth txg; the owner takes the rest.
const BIRTH_BITS: u32 = 48;
/// Upper bound of birth txgs. Lasts 8,900 years at a thousand txgs per second.
pub(crate) const BIRTH_END: u64 = 1 << BIRTH_BITS;

/// Identifies the content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// Address of the first copy, in on-disk form.
    dva: u64,
    /// Owner in the upper bits, birth txg in the lower bits.
    owner_and_birth: u64,
}

const _: () = assert!(size_of::<BlockKey>() == 16);

impl BlockKey {
    /// Returns the key of the block that `bp` points to, for `owner`.
    #[inline]
    pub(crate) fn new(owner: OwnerId, bp: &BlockPtrPhys) -> Self {
        let birth = bp.birth_txg.get() & (BIRTH_END - 1);
        let owner_and_birth = u64::from(owner.get()) << BIRTH_BITS | birth;
        Self { dva: bp.copies[0].raw(), owner_and_birth }
    }

    /// Returns the key of the block at `dva`, born in txg `birth`, which is below [`BIRTH_END`].
    pub(crate) fn of_parts(owner: OwnerId, dva: u64, birth: u64) -> Self {
        debug_assert!(birth < BIRTH_END);
        Self { dva, owner_and_birth: u64::from(owner.get()) << BIRTH_BITS | birth }
    }

    /// Address of the first copy, in on-disk form.
    pub(crate) fn dva(&self) -> u64 {
        self.dva
    }

    /// The txg that wrote the block.
    pub(crate) fn birth(&self) -> u64 {
        self.owner_and_birth & (BIRTH_END - 1)
    }

    /// Returns a hash of the key.
    pub(crate) fn hash(&self) -> u64 {
        (self.dva ^ self.owner_and_birth.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

impl Key for BlockKey {
    #[inline]
    fn owner(&self) -> OwnerId {
        OwnerId::from_raw((self.owner_and_birth >> BIRTH_BITS) as u16)
    }
}
