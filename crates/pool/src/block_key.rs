//! The key of a block in the cache: owner, address and birth txg.
//!
//! A key identifies content. An address is reused only several txgs after it was freed, so a key
//! never stands for two contents, and a cached block is never stale.

use forebay_cache::{Key, OwnerId};

use crate::format::BlockPtrPhys;

/// Bits of the birth txg, beside the owner.
const BIRTH_BITS: u32 = 48;
/// Limit of birth txgs. At a thousand txgs per second it lasts for 8,900 years.
pub(crate) const BIRTH_END: u64 = 1 << BIRTH_BITS;

/// Identifies the content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// Address of the first copy, in its on-disk encoding.
    dva: u64,
    /// Owner in the upper bits, birth txg in the lower bits.
    owner_and_birth: u64,
}

const _: () = assert!(size_of::<BlockKey>() == 16);

impl BlockKey {
    /// The key of the block that `bp` points to and `owner` owns.
    #[inline]
    pub(crate) fn new(owner: OwnerId, bp: &BlockPtrPhys) -> Self {
        let birth = bp.birth_txg.get() & (BIRTH_END - 1);
        let owner_and_birth = u64::from(owner.get()) << BIRTH_BITS | birth;
        Self { dva: bp.copies[0].raw(), owner_and_birth }
    }

    /// The key of the block at this address with this birth txg, which is below [`BIRTH_END`].
    pub(crate) fn of_parts(owner: OwnerId, dva: u64, birth: u64) -> Self {
        debug_assert!(birth < BIRTH_END);
        Self { dva, owner_and_birth: u64::from(owner.get()) << BIRTH_BITS | birth }
    }

    /// Address of the first copy, in its on-disk encoding.
    pub(crate) fn dva(&self) -> u64 {
        self.dva
    }

    /// The txg that wrote the block.
    pub(crate) fn birth(&self) -> u64 {
        self.owner_and_birth & (BIRTH_END - 1)
    }

    /// A hash for choosing among L2 devices.
    pub(crate) fn hash(&self) -> u64 {
        (self.dva ^ self.owner_and_birth.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

// SAFETY: `Hash` and `Eq` are derived, from integers without interior mutability.
unsafe impl Key for BlockKey {
    #[inline]
    fn owner(&self) -> OwnerId {
        OwnerId::from_raw((self.owner_and_birth >> BIRTH_BITS) as u16)
    }
}
