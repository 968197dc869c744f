//! Credits: numbers of permits of all kinds, packed in one word.

use crate::priority::Priority;

const RESERVED_BITS: u32 = 5;
const HEADROOM_BITS: u32 = 6;
const SHARED_BITS: u32 = 8;
const HEADROOM_AT: u32 = RESERVED_BITS * Priority::COUNT as u32;
const SHARED_AT: u32 = HEADROOM_AT + HEADROOM_BITS * Priority::COUNT as u32;
const _: () = assert!(SHARED_AT + SHARED_BITS <= u64::BITS);

/// Most permits of one kind that a queue keeps as spares. For an instant there may be one more per
/// class. The narrowest field must hold that.
pub(super) const MAX_SPARE: u32 = (1 << RESERVED_BITS) - 2;

/// A kind of permit. An operation needs either a reserved permit of its class, or a shared permit
/// and one of its class's headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitKind {
    Reserved(usize),
    Headroom(usize),
    Shared,
}

impl PermitKind {
    const fn field(self) -> (u32, u32) {
        match self {
            Self::Reserved(class) => (class as u32 * RESERVED_BITS, RESERVED_BITS),
            Self::Headroom(class) => (HEADROOM_AT + class as u32 * HEADROOM_BITS, HEADROOM_BITS),
            Self::Shared => (SHARED_AT, SHARED_BITS),
        }
    }

    /// Returns all kinds.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let classes = 0..Priority::COUNT;
        let reserved = classes.clone().map(Self::Reserved);
        reserved.chain(classes.map(Self::Headroom)).chain([Self::Shared])
    }
}

/// Numbers of permits by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credits(pub(super) u64);

impl Credits {
    pub(super) const NONE: Self = Self(0);

    /// `n` permits of `kind`.
    pub(super) fn of(kind: PermitKind, n: u32) -> Self {
        let (at, bits) = kind.field();
        debug_assert!(n < 1 << bits, "{n} of {kind:?} do not fit");
        Self(u64::from(n) << at)
    }

    /// One shared permit and one of `class`'s headroom.
    pub(super) fn extra(class: usize) -> Self {
        Self::of(PermitKind::Shared, 1).plus(Self::of(PermitKind::Headroom(class), 1))
    }

    /// Returns the number of permits of `kind`.
    pub(super) fn count(self, kind: PermitKind) -> u32 {
        let (at, bits) = kind.field();
        (self.0 >> at) as u32 & ((1 << bits) - 1)
    }

    /// Returns the sum, which must fit.
    pub(super) fn plus(self, other: Self) -> Self {
        debug_assert!(PermitKind::all().all(|kind| {
            let (_, bits) = kind.field();
            self.count(kind) + other.count(kind) < 1 << bits
        }));
        Self(self.0 + other.0)
    }

    /// Returns the rest without one reserved permit of `class`, if there is one.
    pub(super) fn without_reserved(self, class: usize) -> Option<Self> {
        let kind = PermitKind::Reserved(class);
        (self.count(kind) > 0).then(|| Self(self.0 - Self::of(kind, 1).0))
    }

    /// Returns the rest without one shared permit and one of `class`'s headroom, if it has both.
    pub(super) fn without_extra(self, class: usize) -> Option<Self> {
        let both =
            self.count(PermitKind::Shared) > 0 && self.count(PermitKind::Headroom(class)) > 0;
        both.then(|| Self(self.0 - Self::extra(class).0))
    }
}
