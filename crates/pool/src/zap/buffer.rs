//! The change buffer: new names wait in buffer pages until their leaf is in memory.
//!
//! A *buffer page* has the form of a leaf but is smaller, because each group that adds a name
//! writes it, and covers a shorter prefix of the hash: the leaves under it share it. A name whose
//! leaf is not resident goes to its page if the filter says that the leaf does not have it. Pages
//! are blocks of the directory's object, so a transaction group, a crash and an import treat
//! buffered names like any others. Only new names are buffered: a change of a name that a leaf has
//! needs its old value, and thus the leaf.
//!
//! Names move to their leaf together, in the transaction of a change that finds the leaf in memory,
//! also because a sweep ([`super::sweep`]) has read it in the background. If a page is full, a
//! change waits for its own leaf, as without a buffer.
//!
//! # Invariants
//!
//! - A name is in its leaf or in a page, never in both. No entry of a leaf has the position of an
//!   entry of a page. Therefore a leaf gets a name that it did not have only after the names that
//!   the page of its hash has for the leaf, and a page gets a name only at its home, and if that is
//!   free in both.
//! - Pages cover every hash exactly once, or there are none. A full page splits, pages that became
//!   deeper than their leaves need merge ([`super::merge`]), and all are freed when the directory
//!   is small again. Every step uses one page at a time.
//! - Page and leaf are both open in a transaction before a name moves, so no failure loses it.
//! - The removal of a name can be undone in its transaction without a read and without space, also
//!   if names move meanwhile.

use zerocopy::IntoBytes;

use super::access::LeafAccess;
use super::change::{ChangeRequest, Changed, NameChange, full};
use super::entry::{HashedName, Value, first_position, hash_at, leaf_id, prefix_mask};
use super::fat::{Fat, check_location, descend};
use super::filter::Answer;
use super::leaf::{Builder, Change, ENTRY_MAX, Leaf, LeafDefect, LeafMut, Record, put_leaf};
use super::store::{LeafLookup, LeafStore};
use super::sweep::Sweep;
use super::table::DepthTable;
use super::{OpStep, ZapCounters, corrupt};
use crate::format::{ZAP_DEPTH_MAX, ZAP_PAGE_BYTES, ZAP_PAGE_DEPTH_MAX, ZapBlock, ZapFatPhys};
use crate::{ErrorKind, Result};

/// A full page splits if it covers leaves that are deeper by more than this.
pub(super) const PAGE_SPAN: u8 = 3;
/// A leaf in memory that no unsynced txg has changed gets its names when so many wait for it: a
/// page is written at less cost. It gets them at once if all leaves seem to be in memory, or if its
/// filter is void: otherwise each name would read the leaf again.
const MERGE_NAMES: usize = 12;
/// Names that move to a leaf leave space for the longest entry: another transaction may have
/// removed a name from the leaf, and undo that.
const RESTORE_ROOM: usize = ENTRY_MAX;
const TOO_LARGE: LeafDefect = LeafDefect("it is larger than a buffer page");

/// An entry of a page.
pub(super) struct BufferedName {
    pub(super) position: u64,
    pub(super) name: Box<[u8]>,
    pub(super) value: Value,
}

/// Entries of one page.
pub(super) struct PageNames {
    pub(super) names: Vec<BufferedName>,
    /// The last hash whose entries they are.
    pub(super) last: u32,
}

/// Result of a change of a name in a page.
enum InPage {
    /// The page does not have the name.
    Missing,
    Done(Changed),
    /// The page has no space for the longer value.
    Full,
}

/// What a change needs to know of a leaf in memory.
struct LeafInfo {
    has_name: bool,
    has_hash: bool,
    is_open: bool,
    depth: u8,
}

/// Result of an attempt to add a name to a page.
pub(super) struct PageAttempt {
    change: Change,
    pub(super) depth: u8,
    /// Whether the page is split when it is full.
    pub(super) splits: bool,
    pub(super) len: usize,
    pub(super) used_bytes: usize,
}

impl Fat {
    /// Looks a name up in the buffer pages.
    pub(super) fn find_buffered<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        name: HashedName<'_>,
    ) -> Result<OpStep<Option<Value>, S::Ticket>> {
        if self.header.buffered.get() == 0 {
            return Ok(OpStep::Done(None));
        }
        self.with_page_of(access, name.hash(), |page| {
            page.find(name.hash(), name.name)?.map(|record| record.value()).transpose()
        })
    }

    /// Applies a change while names are buffered. `None`: the change belongs to the leaf, which is
    /// in memory, and no name is buffered that the leaf must get first.
    pub(super) fn change_buffered<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<Option<OpStep<Changed, S::Ticket>>> {
        let hash = request.name.hash();
        let leaf = self.with_leaf_of(access, hash, |leaf| {
            Ok(LeafInfo {
                has_name: leaf.find(hash, request.name.name)?.is_some(),
                has_hash: leaf.has_hash(hash),
                is_open: leaf.is_open(),
                depth: leaf.depth(),
            })
        })?;
        let leaf = match leaf {
            OpStep::Done(leaf) => leaf,
            OpStep::NotResident(ticket) => {
                return self.change_absent(access, tx, request, ticket).map(Some);
            }
        };
        if leaf.has_name {
            return Ok(None);
        }
        match self.change_in_page(access, tx, request)? {
            OpStep::NotResident(ticket) => return Ok(Some(OpStep::NotResident(ticket))),
            OpStep::Done(InPage::Done(changed)) => return Ok(Some(OpStep::Done(changed))),
            OpStep::Done(InPage::Missing) if !request.adds() => {
                return Ok(Some(OpStep::Done(Changed::new(Change::Missing, false))));
            }
            OpStep::Done(InPage::Missing) => {
                let has_all = self.sweep.note_found_leaf(self.leaves());
                if !leaf.is_open
                    && !leaf.has_hash
                    && !has_all
                    && self.may_buffer(access.store)
                    && !self.would_get_filter(access, tx, leaf_id(hash, leaf.depth))?
                    && self.count_buffered(access, hash, leaf.depth)?.unwrap_or(0) < MERGE_NAMES
                {
                    match self.buffer(access, tx, request, leaf.depth)? {
                        OpStep::NotResident(ticket) => {
                            return Ok(Some(OpStep::NotResident(ticket)));
                        }
                        OpStep::Done(Some(changed)) => return Ok(Some(OpStep::Done(changed))),
                        OpStep::Done(None) => {}
                    }
                }
            }
            OpStep::Done(InPage::Full) => {}
        }
        Ok(match self.merge_names(access, tx, hash)? {
            OpStep::NotResident(ticket) => Some(OpStep::NotResident(ticket)),
            OpStep::Done(_) => None,
        })
    }

    fn may_buffer<S: LeafStore>(&self, store: &S) -> bool {
        self.share.is_some() && store.may_buffer()
    }

    /// Applies a change whose leaf is not resident, if that is possible without the leaf. `ticket`
    /// leads to the leaf.
    pub(super) fn change_absent<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
        ticket: S::Ticket,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        if self.header.buffered.get() > 0 {
            match self.change_in_page(access, tx, request) {
                // A name that is removed exists, and is more likely to be in its leaf.
                Ok(OpStep::NotResident(_)) if request.kind == NameChange::Remove => {
                    return Ok(OpStep::NotResident(ticket));
                }
                // The leaf may have the name.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    return Ok(OpStep::NotResident(ticket));
                }
                Err(error) => return Err(error),
                Ok(OpStep::NotResident(page)) if access.is_lost(S::block_of(&page)) => {
                    return Ok(OpStep::NotResident(ticket));
                }
                Ok(OpStep::NotResident(page)) => return Ok(OpStep::NotResident(page)),
                Ok(OpStep::Done(InPage::Done(changed))) => return Ok(OpStep::Done(changed)),
                Ok(OpStep::Done(InPage::Full)) => return Ok(OpStep::NotResident(ticket)),
                Ok(OpStep::Done(InPage::Missing)) => {}
            }
        }
        if request.kind == NameChange::Remove {
            return Ok(OpStep::NotResident(ticket));
        }
        let depth = match self.find_filter(access, &ticket, request.name)? {
            OpStep::NotResident(block) => return Ok(OpStep::NotResident(block)),
            OpStep::Done(Answer::Maybe) => return Ok(OpStep::NotResident(ticket)),
            OpStep::Done(Answer::Absent(depth)) => depth,
        };
        let count = || access.store.count(ZapCounters::DIRECTORY_FILTER_ABSENT, 1);
        if !request.adds() {
            count();
            return Ok(OpStep::Done(Changed::new(Change::Missing, false)));
        }
        if !self.may_buffer(access.store) {
            return Ok(OpStep::NotResident(ticket));
        }
        Ok(match self.buffer(access, tx, request, depth)? {
            OpStep::NotResident(page) if access.is_lost(S::block_of(&page)) => {
                OpStep::NotResident(ticket)
            }
            OpStep::NotResident(page) => OpStep::NotResident(page),
            OpStep::Done(Some(changed)) => {
                count();
                OpStep::Done(Changed { lacks_leaf: true, ..changed })
            }
            OpStep::Done(None) => OpStep::NotResident(ticket),
        })
    }

    /// Moves the names that the page of a hash has for the leaf of that hash. The leaf may split.
    /// Other pages may have names for the leaf too, if leaves have merged. Returns whether names
    /// moved.
    pub(super) fn merge_names<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
    ) -> Result<OpStep<bool, S::Ticket>> {
        self.takes_share(access.store);
        let leaf = self.with_leaf_of(access, hash, |leaf| Ok((leaf.depth(), leaf.is_open())))?;
        let (depth, was_open) = match leaf {
            OpStep::Done(leaf) => leaf,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        if self.header.buffered.get() == 0 {
            return Ok(OpStep::Done(false));
        }
        let page_depth = match self.with_page_of(access, hash, |page| Ok(page.depth()))? {
            OpStep::Done(depth) => depth,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        let mask = prefix_mask(depth.max(page_depth));
        let (low, last) = (first_position(hash & mask), hash | !mask);
        let names = match self.names_of_page(access, low, last, usize::MAX)? {
            OpStep::Done(page) => page.names,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        if names.is_empty() {
            return Ok(OpStep::Done(false));
        }
        if let OpStep::NotResident(ticket) = self.open_page(access, tx, hash)? {
            return Ok(OpStep::NotResident(ticket));
        }
        let mut moved = 0;
        let mut step = Ok(OpStep::Done(()));
        for name in &names {
            step = self.put_merged(access, tx, name);
            if !matches!(step, Ok(OpStep::Done(()))) {
                break;
            }
            moved += 1;
        }
        self.drop_moved(access, tx, &names[..moved])?;
        match step? {
            OpStep::NotResident(ticket) => Ok(OpStep::NotResident(ticket)),
            OpStep::Done(()) => {
                if !was_open {
                    self.note_moved(access.store, tx, &names);
                }
                access.store.count(ZapCounters::DIRECTORY_LEAVES_MERGED, 1);
                Ok(OpStep::Done(true))
            }
        }
    }

    /// Notes that the leaves of some names, which are in order, were changed only for these.
    fn note_moved<S: LeafStore>(&self, store: &S, tx: &S::Tx, names: &[BufferedName]) {
        let mut noted = None;
        for hash in names.iter().map(|name| hash_at(name.position)) {
            let id = self.table.get(hash).map(|depth| leaf_id(hash, depth));
            if let Some(id) = id.filter(|_| id != noted) {
                store.note_moved(tx, id);
                noted = Some(id);
            }
        }
    }

    /// Names of the page at a position, from there on and up to a hash: the first `max` of them.
    pub(super) fn names_of_page<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        from: u64,
        last: u32,
        max: usize,
    ) -> Result<OpStep<PageNames, S::Ticket>> {
        if self.header.buffered.get() == 0 {
            return Ok(OpStep::Done(PageNames { names: Vec::new(), last }));
        }
        self.with_page_of(access, hash_at(from), |page| {
            let last = last.min(hash_at(from) | !prefix_mask(page.depth()));
            let mut names = Vec::new();
            for entry in page.entries_from(from) {
                let (position, record) = entry?;
                if position < from {
                    return Err(LeafDefect("its slots are out of order"));
                }
                if hash_at(position) > last || names.len() >= max {
                    break;
                }
                let (name, value) = (record.name.into(), record.value()?);
                names.push(BufferedName { position, name, value });
            }
            Ok(PageNames { names, last })
        })
    }

    /// Whether the directory has become small, and has filters that it need not have any more.
    pub(super) fn may_stop_aid<S: LeafStore>(&self, store: &S) -> bool {
        let is_small = self.leaves() <= store.aided_leaves() / 4;
        self.is_aided() && is_small && self.header.buffered.get() == 0
    }

    /// Frees filters and pages of a directory that has become small.
    pub(super) fn stop_aid<S: LeafStore>(&mut self, store: &S, tx: &S::Tx) -> Result<()> {
        let old = self.header;
        let header = ZapFatPhys { aided: 0, page_depth: 0, pages: 0.into(), ..old };
        self.put_aid(store, tx, header)?;
        self.header = header;
        if let Err(error) = store.free_aside(tx) {
            self.put_aid(store, tx, old)?;
            self.header = old;
            return Err(error);
        }
        self.pages = DepthTable::new(0);
        *self.sweep = Sweep::default();
        (self.share, self.first_filters) = (None, 0..0);
        Ok(())
    }

    /// Calls `f` with the page of a hash. There must be pages.
    pub(super) fn with_page_of<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
        mut f: impl FnMut(&Leaf<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.page_depth;
        let visit = |id| {
            access.store.with_leaf(ZapBlock::Page(id), access.fetched, |bytes| {
                if bytes.len() > ZAP_PAGE_BYTES {
                    return Err(TOO_LARGE);
                }
                let page = Leaf::read(bytes)?;
                check_location(&page, id, hash, deepest)?;
                Ok((page.depth(), f(&page)?))
            })
        };
        descend::<S, R>(&mut self.pages, (hash, deepest), visit, |id, defect| {
            corrupt(access.store, ZapBlock::Page(id), defect)
        })
    }

    /// Calls `f` with the page of a hash, open for changes.
    pub(super) fn edit_page<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        mut f: impl FnMut(&mut LeafMut<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.page_depth;
        let visit = |id| {
            let block = ZapBlock::Page(id);
            access.store.with_leaf_mut(tx, block, None, access.fetched, |bytes| {
                if bytes.len() > ZAP_PAGE_BYTES {
                    return Err(TOO_LARGE);
                }
                let mut page = LeafMut::open(bytes)?;
                let depth = {
                    let page = page.leaf()?;
                    check_location(&page, id, hash, deepest)?;
                    page.depth()
                };
                Ok((depth, f(&mut page)?))
            })
        };
        descend::<S, R>(&mut self.pages, (hash, deepest), visit, |id, defect| {
            corrupt(access.store, ZapBlock::Page(id), defect)
        })
    }

    /// Opens the page of a hash for changes.
    fn open_page<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
    ) -> Result<OpStep<(), S::Ticket>> {
        self.edit_page(access, tx, hash, |_| Ok(()))
    }

    /// Applies a change to a name that a page has.
    fn change_in_page<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<InPage, S::Ticket>> {
        let value = match self.find_buffered(access, request.name)? {
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            OpStep::Done(None) => return Ok(OpStep::Done(InPage::Missing)),
            OpStep::Done(Some(value)) => value,
        };
        let (hash, name) = (request.name.hash(), request.name.name);
        let change = match request.kind {
            NameChange::Insert | NameChange::Restore => OpStep::Done(Change::Exists(value)),
            NameChange::Upsert | NameChange::Replace => {
                self.edit_page(access, tx, hash, |page| page.replace(hash, name, request.value))?
            }
            NameChange::Remove => {
                self.edit_page(access, tx, hash, |page| page.remove(hash, name))?
            }
        };
        let change = match change {
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            OpStep::Done(Change::Full) => return Ok(OpStep::Done(InPage::Full)),
            OpStep::Done(change) => change,
        };
        let mut merge_due = false;
        if request.kind == NameChange::Remove {
            let (entries, buffered) = self.counts();
            let (entries, left) = (entries.saturating_sub(1), buffered.saturating_sub(1));
            self.set_counts(access.store, tx, entries, left);
            // The last buffered name may have kept the directory from becoming small.
            merge_due = left == 0;
        }
        Ok(OpStep::Done(InPage::Done(Changed::new(change, merge_due))))
    }

    /// Adds a name to its page. The name is not in its leaf, which has this depth, and its home is
    /// free there. `None` if the page has no space, or another name at that position.
    fn buffer<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
        leaf_depth: u8,
    ) -> Result<OpStep<Option<Changed>, S::Ticket>> {
        let HashedName { name, home } = request.name;
        if self.header.pages.get() == 0 {
            self.add_first_page(access.store, tx)?;
        }
        // Every round but the last splits the page.
        for _ in 0..=ZAP_PAGE_DEPTH_MAX {
            let attempt = self.edit_page(access, tx, hash_at(home), |page| {
                if page.leaf()?.has_position(home) {
                    return Ok(None);
                }
                let change = page.insert_at(home, Record { name, value: request.value })?;
                let page = page.leaf()?;
                let (depth, len, used_bytes) = (page.depth(), page.len(), page.used_bytes());
                let splits =
                    depth.saturating_add(PAGE_SPAN) < leaf_depth && depth < ZAP_PAGE_DEPTH_MAX;
                Ok(Some(PageAttempt { change, depth, splits, len, used_bytes }))
            })?;
            let attempt = match attempt {
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                OpStep::Done(None) => return Ok(OpStep::Done(None)),
                OpStep::Done(Some(attempt)) => attempt,
            };
            if attempt.change != Change::Full {
                let (entries, buffered) = self.counts();
                self.set_counts(
                    access.store,
                    tx,
                    entries.saturating_add(1),
                    buffered.saturating_add(1),
                );
                access.store.count(ZapCounters::DIRECTORY_NAMES_BUFFERED, 1);
                let mut changed = Changed::new(attempt.change, false);
                self.note_buffered(hash_at(home), &attempt);
                changed.wants_merge = self.wants_merge();
                return Ok(OpStep::Done(Some(changed)));
            }
            if !attempt.splits {
                break;
            }
            self.split_page(access, tx, hash_at(home), attempt.depth)?;
        }
        Ok(OpStep::Done(None))
    }

    /// Entries, and buffered ones of them.
    fn counts(&self) -> (u64, u64) {
        (self.header.entries.get(), self.header.buffered.get())
    }

    /// Adds a name to its leaf, which splits if it is full.
    fn put_merged<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        name: &BufferedName,
    ) -> Result<OpStep<(), S::Ticket>> {
        let hash = hash_at(name.position);
        let record = Record { name: &name.name, value: &name.value };
        // Every round but the last splits the leaf.
        for _ in 0..=ZAP_DEPTH_MAX {
            let attempt = self.edit(access, tx, hash, |leaf| {
                let (depth, can_split) = (leaf.leaf()?.depth(), leaf.can_split(hash)?);
                let room = if can_split { RESTORE_ROOM } else { 0 };
                Ok((leaf.insert_beside(name.position, record, room)?, depth, can_split))
            })?;
            let depth = match attempt {
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                OpStep::Done((Change::Full, depth, true)) => depth,
                OpStep::Done((Change::Full, _, false)) => break,
                OpStep::Done(_) => return Ok(OpStep::Done(())),
            };
            if let OpStep::NotResident(ticket) = self.split(access, tx, hash, depth)? {
                return Ok(OpStep::NotResident(ticket));
            }
        }
        Err(full(access.store))
    }

    /// Removes names that leaves have got from their page, which is open in this transaction.
    fn drop_moved<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        moved: &[BufferedName],
    ) -> Result<()> {
        let Some(first) = moved.first() else { return Ok(()) };
        let removed = self.edit_page(access, tx, hash_at(first.position), |page| {
            for name in moved {
                page.remove(hash_at(name.position), &name.name)?;
            }
            Ok(())
        })?;
        match removed {
            OpStep::Done(()) => {}
            OpStep::NotResident(_) => unreachable!("the page is open in this transaction"),
        }
        let (entries, buffered) = self.counts();
        let moved = moved.len() as u64;
        self.set_counts(access.store, tx, entries, buffered.saturating_sub(moved));
        access.store.count(ZapCounters::DIRECTORY_NAMES_MERGED, moved);
        Ok(())
    }

    pub(super) fn put_aid<S: LeafStore>(
        &self,
        store: &S,
        tx: &S::Tx,
        header: ZapFatPhys,
    ) -> Result<()> {
        store.set_inline(tx, header.as_bytes())
    }

    fn add_first_page<S: LeafStore>(&mut self, store: &S, tx: &S::Tx) -> Result<()> {
        let root = ZapBlock::Page(0);
        let header = ZapFatPhys { pages: 1.into(), ..self.header };
        self.put_aid(store, tx, header)?;
        let filled = store.new_leaf(tx, root, |bytes| {
            Builder::new(bytes, 0, 0, 0)?.finish();
            Ok(())
        });
        let filled = filled.and_then(|filled| filled.map_err(|d| corrupt(store, root, d)));
        if let Err(error) = filled {
            self.put_aid(store, tx, self.header)?;
            return Err(error);
        }
        self.header = header;
        self.pages = DepthTable::new(0);
        Ok(())
    }

    /// Splits the page of a hash, which is open in this transaction.
    fn split_page<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        depth: u8,
    ) -> Result<()> {
        let store = access.store;
        let mut both = [0; 2 * ZAP_PAGE_BYTES];
        let (low, high) = both.split_at_mut(ZAP_PAGE_BYTES);
        let halves = self.edit_page(access, tx, hash, |page| page.halves(low, high))?;
        assert!(matches!(halves, OpStep::Done(())), "the page is open in this transaction");
        let low_id = ZapBlock::Page(leaf_id(hash, depth));
        let high_id = ZapBlock::Page(leaf_id(hash, depth) | 1 << depth);
        let pages = self.header.pages.get().saturating_add(1);
        let page_depth = self.header.page_depth.max(depth + 1);
        let header = ZapFatPhys { pages: pages.into(), page_depth, ..self.header };
        self.put_aid(store, tx, header)?;
        let created = store.new_leaf(tx, high_id, |bytes| put_leaf(bytes, high));
        let created = created.and_then(|put| put.map_err(|d| corrupt(store, high_id, d)));
        if let Err(error) = created {
            self.put_aid(store, tx, self.header)?;
            return Err(error);
        }
        let put =
            store.with_leaf_mut(tx, low_id, None, access.fetched, |bytes| put_leaf(bytes, low))?;
        assert!(matches!(put, LeafLookup::Resident(Ok(()))), "the page is open and whole");
        self.header = header;
        self.resize_share();
        self.pages.resize(page_depth);
        let prefix = hash & prefix_mask(depth);
        self.pages.set(prefix, depth + 1);
        self.pages.set(prefix | 1 << (31 - u32::from(depth)), depth + 1);
        Ok(())
    }

    /// Number of names buffered for a leaf of this depth, in the page of a hash; `None` if that is
    /// not in memory.
    pub(super) fn count_buffered<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
        depth: u8,
    ) -> Result<Option<usize>> {
        if self.header.buffered.get() == 0 {
            return Ok(Some(0));
        }
        let (low, high) = (hash & prefix_mask(depth), hash | !prefix_mask(depth));
        Ok(match self.with_page_of(access, hash, |page| Ok(page.count_hashes(low, high)))? {
            OpStep::Done(count) => Some(count),
            OpStep::NotResident(_) => None,
        })
    }

    /// Adds a name that this transaction has removed. Reads nothing: the leaf or page that had the
    /// name is open, and has the space that the removal has freed. Names that have moved to the
    /// leaf since have left it [`RESTORE_ROOM`].
    pub(super) fn restore<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        let HashedName { name, home } = request.name;
        let hash = hash_at(home);
        if self.header.pages.get() == 0 {
            return self.change_leaf(access, tx, request);
        }
        // A leaf that is not in memory did not have the name, so the home is free there.
        let found = self.with_leaf_of(access, hash, |leaf| Ok(leaf.has_position(home)))?;
        let is_taken = matches!(found, OpStep::Done(true));
        let usable = |page: &Leaf<'_>| Ok(page.is_open() && !page.has_position(home));
        // Another block cannot be the one that had the name.
        let page = self.with_page_of(access, hash, usable);
        if is_taken || !matches!(page, Ok(OpStep::Done(true))) {
            return self.change_leaf(access, tx, request);
        }
        let record = Record { name, value: request.value };
        match self.edit_page(access, tx, hash, |page| page.insert_at(home, record)) {
            Ok(OpStep::Done(change @ Change::Done(_))) => {
                let (entries, buffered) = self.counts();
                let (entries, buffered) = (entries.saturating_add(1), buffered.saturating_add(1));
                self.set_counts(access.store, tx, entries, buffered);
                Ok(OpStep::Done(Changed::new(change, false)))
            }
            // Full; or only a group that is being synced has the page open, and it cannot be opened
            // in this one. Then the leaf had the name.
            _ => self.change_leaf(access, tx, request),
        }
    }
}
