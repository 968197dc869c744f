//! A fat directory: extendible hashing that uses the object's block tree as its pointer table.
//!
//! The leaf of the hashes that start with certain `depth` bits lies at the block whose number is
//! those bits in reverse order. In a split, the leaf of a following 0 stays in place, and the leaf
//! of a following 1 goes to a block that was a hole.
//!
//! A search for the leaf of a hash tries the block of the deepest possible leaf, then ever
//! shallower ones. The first that is not a hole is the leaf, because leaves cover every hash
//! exactly once. [`DepthTable`] remembers the result, so later searches take one step.
//!
//! A large directory is *aided*: leaves have filters ([`super::filter`]), and names can be buffered
//! ([`super::buffer`]).
//!
//! # Invariants
//!
//! - Leaves cover every hash exactly once: the sum over leaves of 2^-depth is 1.
//! - When the directory's lock is free, the depth in the header is that of the deepest leaf, and
//!   the counts in the header are right.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::access::{LeafAccess, filter_of};
use super::entry::{HashedName, Value, leaf_id};
use super::filter::{self, Answer};
use super::leaf::{Leaf, LeafDefect, LeafMut};
use super::presence::Presence;
use super::share::AidShare;
use super::store::{LeafLookup, LeafStore, ZapCounts};
use super::sweep::Sweep;
use super::table::DepthTable;
use super::{OpStep, ZapCounters, corrupt};
use crate::format::{
    ZAP_DEPTH_MAX, ZAP_FAT, ZAP_LEAF_BYTES, ZAP_PAGE_BYTES, ZAP_PAGE_DEPTH_MAX, ZapBlock,
    ZapFatPhys, ZapFilterSlotPhys, ZapHeadPhys,
};
use crate::{Error, ErrorKind, Result};

/// A leaf with so many used bytes may split soon.
const SPLIT_SOON_BYTES: usize = ZAP_LEAF_BYTES - 1024;

/// Result of a search.
pub(super) struct Found {
    pub(super) value: Option<Value>,
    /// Depth of the leaf, if it was looked at.
    pub(super) depth: Option<u8>,
    /// Whether the leaf has the name.
    pub(super) is_in_leaf: bool,
}

/// In-memory state of a fat directory.
pub(super) struct Fat {
    pub(super) header: ZapFatPhys,
    pub(super) table: DepthTable,
    /// Depths of the buffer pages.
    pub(super) pages: DepthTable,
    pub(super) sweep: Box<Sweep>,
    /// Memory for filters and pages. Without it, the directory uses neither, but for names that are
    /// buffered already.
    pub(super) share: Option<AidShare>,
    /// Whether names that are looked up are in their leaves.
    pub(super) presence: Presence,
    /// The filter blocks that are left to be made since the directory became large.
    pub(super) first_filters: Range<u8>,
}

impl Fat {
    /// A directory with one leaf, which is block 0.
    pub(super) fn new(seed: u64, entries: u64) -> Self {
        let mut header = ZapFatPhys {
            head: ZapHeadPhys { form: ZAP_FAT, reserved: [0; 3], seed: seed.into() },
            depth: 0,
            aided: 0,
            page_depth: 0,
            reserved: 0,
            entries: entries.into(),
            buffered: 0.into(),
            pages: 0.into(),
            leaves_at: [0.into(); ZAP_DEPTH_MAX as usize + 1],
        };
        header.leaves_at[0] = 1.into();
        Self::with(header)
    }

    fn with(header: ZapFatPhys) -> Self {
        let (table, pages) = (DepthTable::new(header.depth), DepthTable::new(header.page_depth));
        let presence = Presence::default();
        let (share, first_filters) = (None, 0..0);
        Self { header, table, pages, sweep: Box::default(), share, presence, first_filters }
    }

    /// From a header that comes from a device.
    pub(super) fn read(header: ZapFatPhys) -> Result<Self, LeafDefect> {
        if header.depth > ZAP_DEPTH_MAX || header.leaves_at[usize::from(header.depth)].get() == 0 {
            return Err(LeafDefect("its depth is invalid"));
        }
        let covered = |(depth, leaves): (usize, &zerocopy::little_endian::U32)| {
            u64::from(leaves.get()) << (usize::from(ZAP_DEPTH_MAX) - depth)
        };
        let whole: u64 = header.leaves_at.iter().enumerate().map(covered).sum();
        if whole != 1 << ZAP_DEPTH_MAX {
            return Err(LeafDefect("its leaves do not cover every hash exactly once"));
        }
        let (entries, buffered) = (header.entries.get(), header.buffered.get());
        let is_plain = header.aided == 0 && header.pages.get() == 0 && header.page_depth == 0;
        if header.aided > 1
            || header.page_depth > ZAP_PAGE_DEPTH_MAX
            || header.aided == 0 && !is_plain
            || buffered > entries
            || buffered > 0 && header.pages.get() == 0
        {
            return Err(LeafDefect("its change buffer is invalid"));
        }
        Ok(Self::with(header))
    }

    /// Whether leaves have filters, and names can be buffered.
    #[inline]
    pub(super) fn is_aided(&self) -> bool {
        self.header.aided != 0
    }

    /// The seed, if filters are used.
    #[inline]
    pub(super) fn filter_seed(&self) -> Option<u64> {
        self.share.is_some().then(|| self.header.head.seed.get())
    }

    /// Whether filters and pages may be used. Takes a share of memory for them if it is the first
    /// time.
    #[inline]
    pub(super) fn takes_share<S: LeafStore>(&mut self, store: &S) -> bool {
        self.share.is_some() || self.is_aided() && self.take_share(store)
    }

    #[cold]
    fn take_share<S: LeafStore>(&mut self, store: &S) -> bool {
        self.share = store.take_share(self.aid_bytes());
        if self.share.is_none() {
            store.count(ZapCounters::DIRECTORY_SHARES_REFUSED, 1);
        }
        self.share.is_some()
    }

    /// Bytes of filters and pages.
    fn aid_bytes(&self) -> u64 {
        let slots = self.leaves().saturating_mul(size_of::<ZapFilterSlotPhys>() as u64);
        let pages = u64::from(self.header.pages.get()) * ZAP_PAGE_BYTES as u64;
        // Ten bits a name. A forged header counts any number of names.
        let names = self.header.entries.get() / 4;
        names.saturating_mul(5).saturating_add(slots).saturating_add(pages)
    }

    /// Follows a change of the number of leaves or pages.
    pub(super) fn resize_share(&mut self) {
        let bytes = self.aid_bytes();
        if let Some(share) = &mut self.share {
            share.resize(bytes);
        }
    }

    /// Looks a name up.
    pub(super) fn lookup<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        name: HashedName<'_>,
    ) -> Result<OpStep<Found, S::Ticket>> {
        let found = self.with_leaf_of(access, name.hash(), |leaf| {
            let record = leaf.find(name.hash(), name.name)?;
            Ok((record.map(|record| record.value()).transpose()?, leaf.depth()))
        })?;
        match found {
            OpStep::NotResident(leaf) => self.lookup_absent(access, name, leaf),
            OpStep::Done((value @ Some(_), depth)) => {
                Ok(OpStep::Done(Found { value, depth: Some(depth), is_in_leaf: true }))
            }
            OpStep::Done((None, depth)) => Ok(match self.find_buffered(access, name)? {
                OpStep::NotResident(page) => OpStep::NotResident(page),
                OpStep::Done(value) => {
                    OpStep::Done(Found { value, depth: Some(depth), is_in_leaf: false })
                }
            }),
        }
    }

    /// Looks up a name whose leaf is not resident: `leaf` leads to it. Reads the leaf first if the
    /// filter cannot tell, or is not in memory and the name is likely to exist. The page is read
    /// only if the leaf does not have the name.
    fn lookup_absent<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        name: HashedName<'_>,
        leaf: S::Ticket,
    ) -> Result<OpStep<Found, S::Ticket>> {
        let without_leaf = |value| OpStep::Done(Found { value, depth: None, is_in_leaf: false });
        let page = match self.find_buffered(access, name) {
            Ok(OpStep::Done(value @ Some(_))) => return Ok(without_leaf(value)),
            Ok(OpStep::Done(None)) => None,
            // A damaged or lost page hides only its own names: the leaf may have this one.
            Ok(OpStep::NotResident(page)) if access.is_lost(S::block_of(&page)) => {
                return Ok(OpStep::NotResident(leaf));
            }
            Ok(OpStep::NotResident(page)) => Some(page),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(OpStep::NotResident(leaf));
            }
            Err(error) => return Err(error),
        };
        Ok(match (self.find_filter(access, &leaf, name)?, page) {
            (OpStep::NotResident(_), _) if self.presence.is_likely() => OpStep::NotResident(leaf),
            (OpStep::NotResident(filter), _) => OpStep::NotResident(filter),
            (OpStep::Done(Answer::Maybe), _) => OpStep::NotResident(leaf),
            (OpStep::Done(Answer::Absent(_)), Some(page)) => OpStep::NotResident(page),
            (OpStep::Done(Answer::Absent(_)), None) => {
                access.store.count(ZapCounters::DIRECTORY_FILTER_ABSENT, 1);
                without_leaf(None)
            }
        })
    }

    /// Whether everything is in memory that a change of a name needs.
    pub(super) fn warm<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        name: HashedName<'_>,
    ) -> Result<OpStep<(), S::Ticket>> {
        if !self.is_aided() {
            return Ok(OpStep::Done(()));
        }
        let may_buffer = self.takes_share(access.store) && access.store.may_buffer();
        // What cannot be read is left to the change.
        let has_pages = self.header.pages.get() > 0;
        if has_pages
            && let Ok(OpStep::NotResident(page)) =
                self.with_page_of(access, name.hash(), |_| Ok(()))
            && !access.is_lost(S::block_of(&page))
        {
            return Ok(OpStep::NotResident(page));
        }
        let found = self.with_leaf_of(access, name.hash(), |leaf| {
            Ok((leaf.depth(), leaf.is_open(), leaf.used_bytes()))
        })?;
        let (depth, is_open, used) = match found {
            OpStep::Done(found) => found,
            OpStep::NotResident(ticket) => {
                return Ok(match self.find_filter(access, &ticket, name)? {
                    OpStep::NotResident(block) => OpStep::NotResident(block),
                    OpStep::Done(Answer::Absent(_)) if may_buffer => OpStep::Done(()),
                    OpStep::Done(_) => OpStep::NotResident(ticket),
                });
            }
        };
        self.load_filters(
            access,
            leaf_id(name.hash(), depth),
            depth,
            [!is_open, used > SPLIT_SOON_BYTES],
        )
    }

    /// Whether the filter blocks are in memory that a change of a leaf of this depth opens: its
    /// own if it `opens` the leaf, and that of the new leaf if it `splits` it.
    pub(super) fn load_filters<S: LeafStore>(
        &self,
        access: LeafAccess<'_, S>,
        low: u64,
        depth: u8,
        [opens, splits]: [bool; 2],
    ) -> Result<OpStep<(), S::Ticket>> {
        let splits = splits && depth < ZAP_DEPTH_MAX;
        if self.share.is_none() {
            return Ok(OpStep::Done(()));
        }
        for id in [opens.then_some(low), splits.then(|| low | 1 << depth)] {
            let Some(block) = id.map(filter_of).filter(|block| !access.is_lost(*block)) else {
                continue;
            };
            if let LeafLookup::NotResident(ticket) =
                access.store.with_leaf(block, access.fetched, |_| ())?
            {
                return Ok(OpStep::NotResident(ticket));
            }
        }
        Ok(OpStep::Done(()))
    }

    /// Asks the filter of the leaf of a name, which is not resident: `ticket` leads to it. Does not
    /// count "absent", as the search may start over to read a page.
    pub(super) fn find_filter<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        ticket: &S::Ticket,
        name: HashedName<'_>,
    ) -> Result<OpStep<Answer, S::Ticket>> {
        let (ZapBlock::Leaf(id), Some(txg)) = (S::block_of(ticket), S::txg_of(ticket)) else {
            return Ok(OpStep::Done(Answer::Maybe));
        };
        self.sweep.note_missing_leaf();
        if !self.takes_share(access.store) || access.is_lost(filter_of(id)) {
            return Ok(OpStep::Done(Answer::Maybe));
        }
        let found = access.store.with_leaf(filter_of(id), access.fetched, |block| {
            filter::find(block, id, txg, name.home)
        })?;
        let answer = match found {
            LeafLookup::Resident(answer) => answer,
            LeafLookup::Hole => Answer::Maybe,
            LeafLookup::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        match answer {
            Answer::Absent(depth)
                if depth <= self.header.depth
                    && leaf_id(name.hash(), depth) == id
                    && self.header.leaves_at[usize::from(depth)].get() > 0 =>
            {
                self.table.set(name.hash(), depth);
                Ok(OpStep::Done(answer))
            }
            _ => {
                access.store.count(ZapCounters::DIRECTORY_FILTER_MAYBE, 1);
                Ok(OpStep::Done(Answer::Maybe))
            }
        }
    }

    /// Whether the filter of a leaf, which is in memory, is void, and the leaf gets another if this
    /// transaction opens it. False if the filter block is not in memory.
    pub(super) fn would_get_filter<S: LeafStore>(
        &self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        id: u64,
    ) -> Result<bool> {
        let block = filter_of(id);
        if self.share.is_none() || access.is_lost(block) || !access.store.may_open_filter(tx) {
            return Ok(false);
        }
        let Some(txg) = access.store.stored_txg(id) else { return Ok(false) };
        let is_valid = |block: &[u8]| filter::is_valid(block, id, txg);
        Ok(match access.store.with_leaf(block, access.fetched, is_valid)? {
            LeafLookup::Resident(is_valid) => !is_valid,
            LeafLookup::Hole => true,
            LeafLookup::NotResident(_) => false,
        })
    }

    /// Number of leaves.
    pub(super) fn leaves(&self) -> u64 {
        leaves_of(&self.header)
    }

    /// Calls `f` with the leaf of a hash.
    #[inline]
    pub(super) fn with_leaf_of<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
        mut f: impl FnMut(&Leaf<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.depth;
        self.descend(access.store, hash, |id| {
            access.store.with_leaf(ZapBlock::Leaf(id), access.fetched, |bytes| {
                let leaf = Leaf::read(bytes)?;
                check_location(&leaf, id, hash, deepest)?;
                Ok((leaf.depth(), f(&leaf)?))
            })
        })
    }

    /// Calls `f` with the leaf of a hash, open for changes.
    #[inline]
    pub(super) fn edit<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        mut f: impl FnMut(&mut LeafMut<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.depth;
        let seed = self.filter_seed().filter(|_| access.store.may_open_filter(tx));
        self.descend(access.store, hash, |id| {
            let filter = access.filter_opening(seed, id);
            access.store.with_leaf_mut(tx, ZapBlock::Leaf(id), filter, access.fetched, |bytes| {
                let mut leaf = LeafMut::open(bytes)?;
                let depth = {
                    let leaf = leaf.leaf()?;
                    check_location(&leaf, id, hash, deepest)?;
                    leaf.depth()
                };
                Ok((depth, f(&mut leaf)?))
            })
        })
    }

    /// Writes the header.
    pub(super) fn put_header<S: LeafStore>(&self, store: &S, tx: &S::Tx) -> Result<()> {
        store.set_inline(tx, self.header.as_bytes())
    }

    /// Finds the leaf of a hash, from the deepest possible one upwards.
    #[inline]
    fn descend<S: LeafStore, R>(
        &mut self,
        store: &S,
        hash: u32,
        visit: impl FnMut(u64) -> Result<LeafLookup<Result<(u8, R), LeafDefect>, S::Ticket>>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.depth;
        descend::<S, R>(&mut self.table, (hash, deepest), visit, |id, defect| {
            corrupt(store, ZapBlock::Leaf(id), defect)
        })
    }

    /// Sets the counts after a change of a leaf or buffer page.
    #[inline]
    pub(super) fn set_counts<S: LeafStore>(
        &mut self,
        store: &S,
        tx: &S::Tx,
        entries: u64,
        buffered: u64,
    ) {
        (self.header.entries, self.header.buffered) = (entries.into(), buffered.into());
        store.set_counts(tx, ZapCounts { entries, buffered });
    }
}

/// Number of leaves that a header counts.
pub(super) fn leaves_of(header: &ZapFatPhys) -> u64 {
    header.leaves_at.iter().map(|leaves| u64::from(leaves.get())).sum()
}

/// Finds the leaf or buffer page of a hash, from the deepest possible one, `deepest`, upwards.
#[inline]
pub(super) fn descend<S: LeafStore, R>(
    table: &mut DepthTable,
    (hash, deepest): (u32, u8),
    mut visit: impl FnMut(u64) -> Result<LeafLookup<Result<(u8, R), LeafDefect>, S::Ticket>>,
    corrupt: impl Fn(u64, LeafDefect) -> Error,
) -> Result<OpStep<R, S::Ticket>> {
    let mut known = table.get(hash);
    let mut id = leaf_id(hash, known.unwrap_or(deepest));
    loop {
        match visit(id)? {
            LeafLookup::Resident(Ok((depth, result))) => {
                if known != Some(depth) {
                    table.set(hash, depth);
                }
                return Ok(OpStep::Done(result));
            }
            LeafLookup::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            // A filter says how deep a leaf is, and may be forged.
            LeafLookup::Resident(Err(_)) | LeafLookup::Hole if known.is_some() => {
                known = None;
                id = leaf_id(hash, deepest);
            }
            LeafLookup::Resident(Err(defect)) => return Err(corrupt(id, defect)),
            LeafLookup::Hole if id == 0 => {
                return Err(corrupt(id, LeafDefect("it is missing")));
            }
            // The next shallower leaf at another block: clear the highest bit.
            LeafLookup::Hole => id &= !(1 << id.ilog2()),
        }
    }
}

/// The counts in inline content, if it is a fat directory's.
pub(crate) fn counts_of(inline: &[u8]) -> Option<ZapCounts> {
    let header = ZapFatPhys::ref_from_bytes(inline).ok()?;
    let counts = ZapCounts { entries: header.entries.get(), buffered: header.buffered.get() };
    (header.head.form == ZAP_FAT).then_some(counts)
}

/// Sets the counts in inline content, if it is a fat directory's.
pub(crate) fn put_counts(inline: &mut [u8], counts: ZapCounts) {
    if let Ok(header) = ZapFatPhys::mut_from_bytes(inline)
        && header.head.form == ZAP_FAT
    {
        (header.entries, header.buffered) = (counts.entries.into(), counts.buffered.into());
    }
}

#[inline]
pub(super) fn check_location(
    leaf: &Leaf<'_>,
    id: u64,
    hash: u32,
    deepest: u8,
) -> Result<(), LeafDefect> {
    if !leaf.covers(hash) || leaf_id(hash, leaf.depth()) != id || leaf.depth() > deepest {
        return Err(LeafDefect("it belongs to another block"));
    }
    Ok(())
}
