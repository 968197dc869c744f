//! Lines and slots: the words of the index.
//!
//! A *line* is 64 bytes: seven slots and a meta word. A *slot* is one word:
//!
//! | bits | resident | ghost |
//! |---|---|---|
//! | 63 | 0 | 1 |
//! | 42–62 | tag: the low 21 bits of the hash | the same |
//! | 40–41 | address of the header / 64 | number of the ghost list |
//! | 30–39 | 〃 | hash bits for later splits |
//! | 27–29 | 〃 | number of uses, approximately; see `COUNTS` |
//! | 17–26 | 〃 | the low bits of the tick of the last use |
//! | 0–16 | 〃 | the low bits of the position in the ring |
//!
//! An entry whose home line is full lies in one of the next lines. The home line's meta word counts
//! such entries and stores the largest distance, so a lookup knows where to stop.
//!
//! Invariant: entries never move within a segment. A reader that runs against a writer misses an
//! entry only if it was absent at some instant, or if the segment was replaced, which the reader
//! checks.
//!
//! Locking: slots are stored under `index-partition` and read without a lock.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::vm::ZeroInit;

use crate::frequency::{Frequency, TICKS};

pub(crate) const SLOTS: usize = 7;
pub(crate) const TAG_BITS: u32 = 21;
const TAG_SHIFT: u32 = 42;
const GHOST: u64 = 1 << 63;
const ADDRESS: u64 = (1 << TAG_SHIFT) - 1;
/// Binary logarithm of the alignment of headers.
const ADDRESS_ALIGN_SHIFT: u32 = 6;
const GHOST_LIST_SHIFT: u32 = 40;
const GHOST_SPLIT_SHIFT: u32 = 30;
pub(crate) const GHOST_SPLIT_BITS: u32 = 10;
const GHOST_COUNT_SHIFT: u32 = 27;
const GHOST_COUNT: u64 = 7 << GHOST_COUNT_SHIFT;
/// The counts that a ghost's slot can store.
const COUNTS: [u32; 8] = [1, 2, 3, 4, 6, 8, 11, 15];
const GHOST_TICK_SHIFT: u32 = 17;
const GHOST_TICK_BITS: u32 = 10;
const GHOST_TICK: u64 = ((1 << GHOST_TICK_BITS) - 1) << GHOST_TICK_SHIFT;
/// An older last use is stored as this old, in ticks. Otherwise it would look recent while the
/// ghost stays.
const GHOST_OLDEST: u32 = 3 * TICKS;
/// Positions of ghosts wrap here. They tell entries of one hash apart, of which a ring has few. In
/// the rare case that two are equal, a ghost is removed when the older entry is popped.
const GHOST_POSITION: u64 = (1 << GHOST_TICK_SHIFT) - 1;

/// One word of the index. Zero is an empty slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const EMPTY: Self = Self(0);

    /// A slot for the header at `address`, whose key has the hash `hash`.
    #[inline]
    pub(crate) fn resident(hash: u64, address: usize) -> Self {
        let address = address as u64;
        debug_assert_eq!(address & ((1 << ADDRESS_ALIGN_SHIFT) - 1), 0);
        debug_assert_eq!(address >> (TAG_SHIFT + ADDRESS_ALIGN_SHIFT), 0, "48 bits of address");
        Self((tag(hash) << TAG_SHIFT) | (address >> ADDRESS_ALIGN_SHIFT))
    }

    /// A slot for the ghost at `position` of `list`. Later splits use `split_bits`.
    pub(crate) fn ghost(hash: u64, split_bits: u64, list: usize, position: u64) -> Self {
        debug_assert!(list < 4 && split_bits < 1 << GHOST_SPLIT_BITS);
        Self(
            GHOST
                | (tag(hash) << TAG_SHIFT)
                | ((list as u64) << GHOST_LIST_SHIFT)
                | (split_bits << GHOST_SPLIT_SHIFT)
                | (position & GHOST_POSITION),
        )
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
    #[inline]
    pub(crate) fn is_ghost(self) -> bool {
        self.0 & GHOST != 0
    }
    #[inline]
    pub(crate) fn tag(self) -> u64 {
        (self.0 >> TAG_SHIFT) & ((1 << TAG_BITS) - 1)
    }
    /// The address, if this is a resident slot with this tag.
    #[inline]
    pub(crate) fn resident_at(self, tag: u64) -> Option<usize> {
        // Without its top bits, a resident slot is an address. A slot with other top bits is larger
        // than any address, and an empty slot is zero.
        let rest = self.0 ^ (resident_top(tag) << TAG_SHIFT);
        (rest.wrapping_sub(1) < ADDRESS).then_some((rest << ADDRESS_ALIGN_SHIFT) as usize)
    }
    /// Whether this is a resident slot with the tag of `hash`.
    #[inline]
    pub(crate) fn resident_matches(self, hash: u64) -> bool {
        // A ghost differs in the top bit, and an empty slot has no address.
        self.0 >> TAG_SHIFT == tag(hash) && self.0 != 0
    }
    #[inline]
    pub(crate) fn address(self) -> usize {
        ((self.0 & ADDRESS) << ADDRESS_ALIGN_SHIFT) as usize
    }
    pub(crate) fn ghost_matches(self, hash: u64, split_bits: u64) -> bool {
        self.is_ghost() && self.tag() == tag(hash) && self.ghost_split_bits() == split_bits
    }
    pub(crate) fn ghost_split_bits(self) -> u64 {
        (self.0 >> GHOST_SPLIT_SHIFT) & ((1 << GHOST_SPLIT_BITS) - 1)
    }
    /// The same ghost with the uses of its block.
    pub(crate) fn with_uses(self, frequency: Frequency, now: u32) -> Self {
        let age = frequency.age(now).min(GHOST_OLDEST);
        let last = now.wrapping_sub(age);
        let count = match age {
            // The count at that tick, from its decayed value now.
            GHOST_OLDEST => frequency.count(now) << (GHOST_OLDEST / TICKS),
            _ => frequency.count(last),
        };
        let step = COUNTS.iter().rposition(|kept| *kept <= count).unwrap_or(0) as u64;
        let tick = (u64::from(last) << GHOST_TICK_SHIFT) & GHOST_TICK;
        Self(self.without_uses().0 | (step << GHOST_COUNT_SHIFT) | tick)
    }
    /// The uses of a ghost's block. The count is rounded down to one that a slot can store. A ghost
    /// so old that its tick wraps would look recent; ghosts rarely get that old.
    pub(crate) fn ghost_uses(self, now: u32) -> Frequency {
        let then = ((self.0 & GHOST_TICK) >> GHOST_TICK_SHIFT) as u32;
        let age = now.wrapping_sub(then) & ((1 << GHOST_TICK_BITS) - 1);
        let count = COUNTS[((self.0 & GHOST_COUNT) >> GHOST_COUNT_SHIFT) as usize];
        Frequency::of(count, now.wrapping_sub(age))
    }
    /// The same ghost without the uses of its block.
    pub(crate) fn without_uses(self) -> Self {
        Self(self.0 & !GHOST_COUNT & !GHOST_TICK)
    }
    /// The number of the ghost's list.
    pub(crate) fn ghost_list(self) -> usize {
        ((self.0 >> GHOST_LIST_SHIFT) & 3) as usize
    }
}

#[inline]
pub(crate) fn tag(hash: u64) -> u64 {
    hash & ((1 << TAG_BITS) - 1)
}

/// The home line of a tag among `lines`.
#[inline]
pub(crate) fn home(tag: u64, lines: usize) -> usize {
    ((tag * lines as u64) >> TAG_BITS) as usize
}

/// The line at `distance` from a home line, with wrap-around. `distance` is below `lines`.
#[inline]
pub(crate) fn at(home: usize, distance: usize, lines: usize) -> usize {
    let at = home + distance;
    if at < lines { at } else { at - lines }
}

/// Seven slots and a meta word.
#[repr(C)]
// A granule's address has ten zero bits, see `Entry`. In model checks a granule is one line.
#[cfg_attr(not(forebay_model), repr(align(64)))]
#[cfg_attr(forebay_model, repr(align(1024)))]
pub(crate) struct Line {
    /// Bits 0–15: entries of this home line that lie elsewhere. 16–23: the largest distance of one.
    /// 32–63, in a segment's first line only: entries of the segment.
    pub(crate) meta: AtomicU64,
    pub(crate) slots: [AtomicU64; SLOTS],
}

#[cfg(not(forebay_model))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: atomics only, of which zero is a valid value: an empty line.
unsafe impl ZeroInit for Line {
    fn zero() -> Self {
        Self { meta: AtomicU64::new(0), slots: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
    fn wipe(&self) {
        self.meta.store(0, Ordering::Relaxed);
        self.slots.iter().for_each(|s| s.store(0, Ordering::Relaxed));
    }
}

const DISPLACED: u64 = 0xffff;
const DISTANCE_SHIFT: u32 = 16;
const DISTANCE: u64 = 0xff << DISTANCE_SHIFT;
pub(crate) const COUNT_SHIFT: u32 = 32;

/// The top bits of a resident slot with this tag.
#[inline]
pub(crate) fn resident_top(tag: u64) -> u64 {
    tag
}

/// The top bits of a ghost slot with this tag.
#[inline]
pub(crate) fn ghost_top(tag: u64) -> u64 {
    tag | (1 << TAG_BITS)
}

/// A set of slot numbers. Bit `n + 1` stands for slot `n`, because the meta word comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots(u32);

impl Iterator for Slots {
    type Item = usize;
    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros() as usize;
        let some = self.0 != 0;
        self.0 &= self.0.wrapping_sub(1);
        some.then(|| first - 1)
    }
}

impl Line {
    /// The slots for which `holds` is true.
    #[inline]
    fn slots_where(&self, holds: impl Fn(&AtomicU64) -> bool) -> Slots {
        Slots(self.slots.iter().zip(1..).fold(0, |all, (s, bit)| all | u32::from(holds(s)) << bit))
    }

    /// The slots with these top bits (see [`resident_top`]). Approximate: for tag zero it includes
    /// empty slots, and slots may change meanwhile. Examines all slots without a branch that
    /// depends on an entry's place.
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, forebay_model)))))]
    #[inline]
    pub(crate) fn with_top(&self, top: u64) -> Slots {
        self.slots_where(|slot| slot.load(Ordering::Acquire) >> TAG_SHIFT == top)
    }

    /// The same in a third of the instructions: compares the upper halves of all eight words at
    /// once, without their address bits.
    #[cfg(all(target_arch = "x86_64", not(any(miri, forebay_model))))]
    #[inline(always)]
    pub(crate) fn with_top(&self, top: u64) -> Slots {
        let mask: u32;
        // SAFETY: reads this line, which is aligned to 64 bytes, with instructions that every
        // x86-64 has, and writes nothing. Other threads may write meanwhile: the processor reads
        // aligned words of eight bytes whole, and none later than what comes after.
        unsafe {
            std::arch::asm!(
                "movd {top_x}, {top:e}",
                "pshufd {top_x}, {top_x}, 0",
                "movaps {low}, [{line}]",
                "movaps {high}, [{line} + 32]",
                "shufps {low}, [{line} + 16], 0xdd",
                "shufps {high}, [{line} + 48], 0xdd",
                "psrld {low}, {shift}",
                "psrld {high}, {shift}",
                "pcmpeqd {low}, {top_x}",
                "pcmpeqd {high}, {top_x}",
                "packssdw {low}, {high}",
                "packsswb {low}, {low}",
                "pmovmskb {mask:e}, {low}",
                top = in(reg) top,
                line = in(reg) self,
                shift = const TAG_SHIFT - u32::BITS,
                top_x = out(xmm_reg) _,
                low = out(xmm_reg) _,
                high = out(xmm_reg) _,
                mask = lateout(reg) mask,
                options(readonly, nostack, preserves_flags),
            );
        }
        // The first word is the meta word.
        Slots(mask & 0xfe)
    }

    /// The empty slots.
    #[inline]
    pub(crate) fn empty(&self) -> Slots {
        self.slots_where(|slot| slot.load(Ordering::Relaxed) == 0)
    }

    /// The number of lines after this one that a lookup must visit.
    #[inline]
    pub(crate) fn farthest(&self) -> usize {
        ((self.meta.load(Ordering::Acquire) & DISTANCE) >> DISTANCE_SHIFT) as usize
    }

    /// Counts an entry of this home line that lies `distance` lines on. For writers only, one at a
    /// time.
    pub(crate) fn displace(&self, distance: usize) {
        let meta = self.meta.load(Ordering::Relaxed);
        let farthest = ((meta & DISTANCE) >> DISTANCE_SHIFT).max(distance as u64);
        let meta = (meta & !DISTANCE) | (farthest << DISTANCE_SHIFT);
        self.meta.store(meta + 1, Ordering::Release);
    }

    /// Counts that such an entry was removed.
    pub(crate) fn undisplace(&self) {
        let meta = self.meta.load(Ordering::Relaxed);
        debug_assert!(meta & DISPLACED > 0);
        let meta = meta - 1;
        let meta = if meta & DISPLACED == 0 { meta & !DISTANCE } else { meta };
        self.meta.store(meta, Ordering::Release);
    }
}
