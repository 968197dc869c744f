//! The state word of a header: its bits, and the changes from one state to the next.
//!
//! | bits | name | who changes it |
//! |---|---|---|
//! | 0–15 | pins | any thread that holds or takes a pin |
//! | 16 | `ORPHANED`: outlives the cache, see `CacheInner::hold` | the thread that drops the cache |
//! | 17 | `SAMPLED`: the simulations see its hits | its occupier |
//! | 18 | `VALID`: lookups may pin it | set by the publisher; cleared by the thread that retires it |
//! | 19 | `MARK`: hit since the evictor last examined it | set by a hit; cleared by the evictor |
//! | 19 | `UNLINKED`, if retired: its slot is gone | the thread that takes the slot, under its partition's lock |
//! | 20 | class | the publisher, before it is reachable |
//! | 21–22 | its list | the publisher, under the sublist's lock; then the evictor |
//! | 23 | `WRITING`: the secondary cache is writing it | the `Writing` guard, which holds a pin |
//! | 24 | `RETIRED`: on its way out | the thread that evicts, removes or replaces it; cleared by freeing only |
//! | 25 | `LOADING`: a load guard will publish or abandon it | the load guard |
//! | 26 | `WAITERS`: the load guard must wake waiters | a thread that joins, while `LOADING` |
//! | 27 | `SPILLED`: `spill` counts more pins | the thread that spills or refills, under the lock of `spill` |
//! | 28–30 | cause of retirement | with `RETIRED`; the load guard of a block without capacity |
//! | 31 | `FILLED`: the value is initialised | the publisher |
//! | 32–63 | position in its sublist's ring; generation if it is free or in no list | the publisher and the evictor, under the sublist's lock |
//!
//! Nothing here accesses memory. The head of [`super`] has the rules.

use crate::attributes::{Cause, Class};

const PIN_BITS: u32 = 16;
pub(crate) const PIN: u64 = 1;
const PINS: u64 = (1 << PIN_BITS) - 1;
/// With this many pins in the word, a thread that wants another spills first. Only the pin of
/// retirement is exempt. A single bit, so that one test finds it.
pub(super) const CROWDED: u64 = 1 << if cfg!(forebay_model) { 3 } else { PIN_BITS - 1 };
/// Pins moved at once, out of a crowded word or back into a sparse one.
const SPILL: u64 = CROWDED / 4;
/// With fewer pins in the word and others spilled, some are moved back. Far below what a spill
/// leaves, so that a pin that comes and goes does not move them each time.
const SPARSE: u64 = CROWDED / 2;
const ORPHANED: u64 = 1 << 16;
pub(crate) const SAMPLED: u64 = 1 << 17;
pub(crate) const VALID: u64 = 1 << 18;
pub(crate) const MARK: u64 = 1 << 19;
/// Has this meaning only with `RETIRED`.
const UNLINKED: u64 = MARK;
const CLASS_SHIFT: u32 = 20;
const CLASS: u64 = 1 << CLASS_SHIFT;
const LIST_SHIFT: u32 = 21;
const LIST: u64 = 3 << LIST_SHIFT;
pub(crate) const WRITING: u64 = 1 << 23;
pub(crate) const RETIRED: u64 = 1 << 24;
pub(crate) const LOADING: u64 = 1 << 25;
pub(crate) const WAITERS: u64 = 1 << 26;
pub(super) const SPILLED: u64 = 1 << 27;
const CAUSE_SHIFT: u32 = 28;
const CAUSE: u64 = 7 << CAUSE_SHIFT;
pub(crate) const FILLED: u64 = 1 << 31;
const POSITION_SHIFT: u32 = 32;

/// The resident lists, by their number in the state word. Zero means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum List {
    Mru = 1,
    Mfu = 2,
    /// Blocks hinted [`Hint::Once`](crate::Hint::Once).
    Once = 3,
}

impl List {
    pub(crate) const ALL: [Self; 3] = [Self::Mru, Self::Mfu, Self::Once];
}

/// A value of the state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeaderState(pub(crate) u64);

impl HeaderState {
    /// *Anonymous*: its load guard or inserter has the only pin. No other thread may pin or retire
    /// it before it is announced. In no list, the position is the header's generation, so that
    /// [`life`](Self::life) tells its uses apart.
    pub(crate) fn anonymous(class: Class, sampled: bool, generation: u32) -> Self {
        let generation = u64::from(generation) << POSITION_SHIFT;
        let sampled = if sampled { SAMPLED } else { 0 };
        Self(PIN | sampled | ((class as u64) << CLASS_SHIFT) | generation)
    }
    /// A free header. It keeps its generation, so that a lookup that finds it free twice knows
    /// whether it was used in between.
    pub(super) fn free(generation: u32) -> Self {
        Self(u64::from(generation) << POSITION_SHIFT)
    }
    /// Whether the header is free.
    pub(crate) fn is_free(self) -> bool {
        self.0 & ((1 << POSITION_SHIFT) - 1) == 0
    }
    /// The part of the state that changes only with the use of the header, or when its block moves.
    /// If it is equal twice, it was equal in between.
    #[inline]
    pub(crate) fn life(self) -> u64 {
        self.0 & !(PINS | MARK | WRITING | WAITERS | SPILLED | FILLED)
    }
    #[inline]
    pub(crate) fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }
    /// The pins in the word. Zero if there are none at all; fewer than all if `SPILLED`.
    #[inline]
    pub(crate) fn pins(self) -> u64 {
        self.0 & PINS
    }
    /// Whether the header was announced and not freed: valid, or kept by a pin while loading or
    /// retired. False for headers retired by the evictor, which it owns.
    pub(crate) fn is_in_use(self) -> bool {
        let victim = self.has(RETIRED) && self.cause() == Cause::Capacity;
        let kept = self.pins() > 0 && (self.has(LOADING) || self.has(RETIRED)) && !victim;
        self.has(VALID) || kept
    }
    /// Whether pins must be spilled before another one is taken.
    #[inline]
    pub(crate) fn is_crowded(self) -> bool {
        self.pins() >= CROWDED
    }
    /// With a batch of pins moved out of the word.
    pub(crate) fn spilled(self) -> Self {
        debug_assert!(self.is_crowded());
        Self((self.0 - SPILL) | SPILLED)
    }
    #[inline]
    pub(crate) fn is_spilled(self) -> bool {
        self.0 & SPILLED != 0
    }
    /// Whether spilled pins must be moved back.
    #[inline]
    pub(crate) fn is_sparse(self) -> bool {
        self.is_spilled() && self.pins() < SPARSE
    }
    /// With a batch of pins moved back into the word. `all`: no others are spilled.
    pub(crate) fn refilled(self, all: bool) -> Self {
        debug_assert!(self.is_sparse());
        Self(if all { (self.0 & !SPILLED) + SPILL } else { self.0 + SPILL })
    }
    #[inline]
    pub(crate) fn class(self) -> Class {
        if self.0 & CLASS == 0 { Class::Metadata } else { Class::Data }
    }
    #[inline]
    pub(crate) fn list(self) -> Option<List> {
        match (self.0 & LIST) >> LIST_SHIFT {
            1 => Some(List::Mru),
            2 => Some(List::Mfu),
            3 => Some(List::Once),
            _ => None,
        }
    }
    #[inline]
    pub(crate) fn class_index(self) -> usize {
        ((self.0 >> CLASS_SHIFT) & 1) as usize
    }
    /// Twice the number of the list (0 for none), plus the number of the class.
    #[inline]
    pub(crate) fn list_and_class(self) -> usize {
        ((self.0 & (LIST | CLASS)) >> CLASS_SHIFT) as usize
    }
    #[inline]
    pub(crate) fn position(self) -> u32 {
        (self.0 >> POSITION_SHIFT) as u32
    }
    pub(crate) fn cause(self) -> Cause {
        Cause::from_bits(self.0 >> CAUSE_SHIFT)
    }
    pub(crate) fn at(self, list: List, position: u32) -> Self {
        let kept = self.0 & !LIST & u64::from(u32::MAX);
        Self(kept | ((list as u64) << LIST_SHIFT) | (u64::from(position) << POSITION_SHIFT))
    }
    /// In no list. The position stays, so that [`life`](Self::life) still tells uses apart.
    pub(crate) fn in_no_list(self) -> Self {
        Self(self.0 & !LIST)
    }
    pub(crate) fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }
    pub(crate) fn without(self, bits: u64) -> Self {
        Self(self.0 & !bits)
    }
    /// With one more pin.
    #[inline]
    pub(crate) fn pinned(self) -> Self {
        Self(self.0 + PIN)
    }
    /// With one pin less.
    #[inline]
    pub(crate) fn unpinned(self) -> Self {
        debug_assert!(self.pins() > 0);
        Self(self.0 - PIN)
    }
    /// Retired, and counted as a hold on a cache that was dropped.
    pub(crate) fn orphaned(self) -> Self {
        debug_assert!(self.has(RETIRED));
        self.with(ORPHANED)
    }
    pub(crate) fn is_orphaned(self) -> bool {
        self.has(ORPHANED)
    }
    /// Retired for `cause` by the holder of a pin, which keeps it.
    pub(crate) fn retired_by_holder(self, cause: Cause) -> Self {
        Self(self.retired(cause).0 - PIN)
    }
    /// Retired by the holder of a pin, as never cached, whether it was retired before or not.
    pub(crate) fn uncached_by_holder(self) -> Self {
        if !self.has(RETIRED) {
            return self.retired_by_holder(Cause::Uncached);
        }
        Self((self.0 & !CAUSE) | ((Cause::Uncached as u64) << CAUSE_SHIFT))
    }
    /// Whether it is known that a retired header's slot is gone.
    pub(crate) fn is_unlinked(self) -> bool {
        self.has(RETIRED) && self.has(UNLINKED)
    }
    /// A retired header whose slot is gone.
    pub(super) fn unlinked(self) -> Self {
        debug_assert!(self.has(RETIRED));
        self.with(UNLINKED)
    }
    /// Retired for `cause`, with one more pin.
    pub(crate) fn retired(self, cause: Cause) -> Self {
        let kept = self.0 & !(VALID | UNLINKED | CAUSE);
        Self((kept | RETIRED | ((cause as u64) << CAUSE_SHIFT)) + PIN)
    }
}

impl std::fmt::Debug for HeaderState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_free() {
            return f.write_str("free");
        }
        write!(
            f,
            "{:?} {:?} at {}, {} pins",
            self.list(),
            self.class(),
            self.position(),
            self.pins()
        )?;
        let bits = [
            (VALID, "valid"),
            (SAMPLED, "sampled"),
            (WRITING, "being written"),
            (LOADING, "loading"),
            (WAITERS, "awaited"),
            (SPILLED, "more pins spilled"),
            (FILLED, "filled"),
            (ORPHANED, "orphaned"),
        ];
        let marked = if self.has(RETIRED) { (UNLINKED, "unlinked") } else { (MARK, "marked") };
        for (bit, name) in bits.into_iter().chain([marked]) {
            if self.has(bit) {
                write!(f, ", {name}")?;
            }
        }
        if self.has(RETIRED) {
            write!(f, ", retired ({:?})", self.cause())?;
        }
        Ok(())
    }
}
