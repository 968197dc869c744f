//! Directories (ZAP): names of up to 255 bytes, each with a short value.
//!
//! A *micro* directory stores its entries inline in the dnode ([`micro`]). A *fat* directory has
//! leaves ([`fat`], [`leaf`]), which are stored without their free space. A full leaf splits
//! ([`split`]), a mostly empty one merges with its buddy ([`merge`]), and a small last leaf becomes
//! a micro directory again. An insert checks for the name and adds it in one descent. A large
//! directory has filters ([`filter`]) and a change buffer ([`buffer`]), so that a new name needs no
//! leaf.
//!
//! # Invariants
//!
//! - The position of an entry in the order of the directory is the hash of its name (upper half)
//!   and a collision number. It never changes, whatever splits, merges or leaves the buffer. So a
//!   [`Cookie`] stays valid, and a walk returns each entry that exists throughout exactly once.
//! - When the lock is free, inline content, leaves and in-memory state agree, for each txg. Changes
//!   of a directory are made in the order of their txgs.
//! - Content from a device is not trusted: an impossible leaf or header is [`ErrorKind::Corrupt`].
//!
//! # Locking
//!
//! One lock per directory, `zap`, protects the in-memory state and changes of leaves. Most lookups
//! in a fat directory do without it ([`probe`]). No block is read from a device under it: an
//! operation whose leaf is not resident releases the lock, fetches the leaf, and starts over.
//!
//! Not done: files; block locations and caching, which are the work of the [`LeafStore`].

mod access;
mod ahead;
mod attempts;
mod buffer;
mod change;
mod cursor;
mod entry;
mod fat;
mod filter;
mod first_filters;
pub(crate) mod inspect;
mod leaf;
#[cfg(test)]
#[cfg_attr(forebay_model, expect(dead_code, reason = "model checks use a part of it"))]
mod memory;
mod merge;
mod micro;
#[cfg(all(test, forebay_model))]
mod model;
mod presence;
mod probe;
mod queue;
mod rounds;
mod share;
mod skips;
mod split;
mod stats;
mod store;
mod sweep;
mod table;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod tunables;

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zerocopy::FromBytes;

use crate::format::{
    ZAP_DEPTH_MAX, ZAP_FAT, ZAP_MICRO, ZAP_PAGE_DEPTH_MAX, ZapBlock, ZapFatPhys, ZapHeadPhys,
};
use crate::readahead::DirectoryReadahead;
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

pub(crate) use access::filter_of;
pub use entry::{Cookie, Entry, Value};
pub(crate) use fat::{counts_of, put_counts};
pub(crate) use filter::{
    SlotChange, add as add_filters, is_valid as has_filter, leaves_of as leaves_of_filter,
    open as open_filter, rebuild as rebuild_filter,
};
pub(crate) use leaf::pack;
pub(crate) use queue::{DRAIN_PAUSE_NS, MergeQueue, MergeTask, Pace};
pub(crate) use rounds::{DrainStep, MergeBatch};
pub(crate) use share::AidShare;
pub use stats::{LeavesByPointers, ZapStats};
pub(crate) use store::{FilterOpening, LeafLookup, LeafStore, Prefetched, ZapCounts};
pub(crate) use tunables::ZapShared;
pub use tunables::{ZapCounters, ZapTunables};

use access::LeafAccess;
use attempts::{FetchedKind, OpBlocks, OpStep};
use change::{ChangeRequest, Changed, NameChange};
use entry::{HashedName, check_name, check_value};
use fat::{Fat, Found};
use leaf::{Change, LeafDefect};
use micro::Micro;
use probe::{Hints, Operations};

/// Representation of a directory.
enum DirectoryForm {
    Micro(Micro),
    Fat(Fat),
}

struct DirectoryState {
    form: DirectoryForm,
    ahead: DirectoryReadahead,
}

/// A directory.
pub(crate) struct Zap<S: LeafStore> {
    store: S,
    seed: u64,
    hints: Hints,
    /// Whether names may be buffered. Set before the first one is, under the lock. Cleared when
    /// none is.
    buffers: AtomicBool,
    /// Whether leaves have filters, and there may be buffer pages. Written under the lock.
    aided: AtomicBool,
    // Kept off the cache lines that lookups read.
    write_state: CachePadded<WriteState>,
}

/// State that operations write.
struct WriteState {
    state: Mutex<DirectoryState>,
    operations: Operations,
    /// Entry count after the newest change, for readers without the lock. Written under the lock.
    entries: AtomicU64,
    /// Whether the store was asked to move buffered names. Cleared under the lock.
    merge_requested: AtomicBool,
    /// Whether it was asked to move all of them when no more come. Cleared under the lock.
    drain_requested: AtomicBool,
    /// How much creates are slowed down. Its pressure is written under the lock.
    pace: Pace,
}

impl DirectoryState {
    fn len(&self) -> u64 {
        match &self.form {
            DirectoryForm::Micro(micro) => micro.len() as u64,
            DirectoryForm::Fat(fat) => fat.header.entries.get(),
        }
    }

    fn is_aided(&self) -> bool {
        matches!(&self.form, DirectoryForm::Fat(fat) if fat.is_aided())
    }

    fn buffered(&self) -> u64 {
        match &self.form {
            DirectoryForm::Micro(_) => 0,
            DirectoryForm::Fat(fat) => fat.header.buffered.get(),
        }
    }
}

impl<S: LeafStore> Zap<S> {
    /// Opens a directory. An object without content is an empty directory.
    ///
    /// # Errors
    /// `Corrupt` if the content is not a directory's; otherwise as the read of the content.
    pub(crate) fn open(store: S, wait: Wait) -> Result<Self> {
        let content = store.inline(wait)?;
        if content.is_empty() {
            let seed = store.seed();
            return Ok(Self::with(store, seed, DirectoryForm::Micro(Micro::new(seed))));
        }
        match read_form(content) {
            Ok((seed, form)) => Ok(Self::with(store, seed, form)),
            Err(LeafDefect(defect)) => Err(Error::new(
                ErrorKind::Corrupt,
                format!("{}: its header is damaged: {defect}", store.describe()),
            )),
        }
    }

    fn with(store: S, seed: u64, form: DirectoryForm) -> Self {
        let state = DirectoryState { form, ahead: DirectoryReadahead::default() };
        let buffers = AtomicBool::new(state.buffered() > 0);
        let aided = AtomicBool::new(state.is_aided());
        let entries = AtomicU64::new(state.len());
        let state = Mutex::named("zap", state);
        let write_state = CachePadded::new(WriteState {
            state,
            operations: Operations::new(),
            entries,
            merge_requested: AtomicBool::new(false),
            drain_requested: AtomicBool::new(false),
            pace: Pace::new(),
        });
        Self { store, seed, hints: Hints::new(), buffers, aided, write_state }
    }

    /// The store of the directory.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.write_state.entries.load(Ordering::Acquire)
    }

    /// Whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a name; `None` if the name does not exist.
    ///
    /// # Errors
    /// `Invalid` for an impossible name; `Corrupt`; otherwise as the fetch of a leaf.
    pub(crate) fn lookup(&self, name: &[u8], wait: Wait) -> Result<Option<Value>> {
        check_name(name)?;
        let name = HashedName::new(self.seed, name);
        self.write_state.operations.count(name.hash());
        // Read before the leaf: a name never moves from a leaf to the buffer.
        let buffers = self.buffers.load(Ordering::Acquire);
        match self.probe(name.hash(), name.name)? {
            Some(None) if buffers => self.request_drain(),
            Some(found) => return Ok(found),
            None => {}
        }
        let (found, fetched) =
            self.run_alone(None, wait, |state, access| match &mut state.form {
                DirectoryForm::Micro(micro) => Ok(OpStep::Done(micro.find(name.name))),
                DirectoryForm::Fat(fat) => Ok(match fat.lookup(access, name)? {
                    OpStep::NotResident(ticket) => OpStep::NotResident(ticket),
                    OpStep::Done(Found { value, depth, is_in_leaf }) => {
                        if !access.fetched.is_empty() {
                            fat.presence.note(is_in_leaf);
                        }
                        depth.into_iter().for_each(|depth| self.hints.set(name.hash(), depth));
                        OpStep::Done(value)
                    }
                }),
            })?;
        self.count_answer(fetched, found.is_none());
        if found.is_some() {
            self.read_ahead(fetched, wait);
        } else {
            self.read_ahead_for_absent(fetched, wait);
        }
        Ok(found)
    }

    /// Adds a name.
    ///
    /// # Errors
    /// `Exists` if the name exists; `NoSpace` if its leaf is full and cannot be split; otherwise as
    /// [`lookup`](Self::lookup).
    pub(crate) fn insert(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<()> {
        match self.change(tx, NameChange::Insert, name, value)? {
            Change::Exists(_) => Err(self.name_error(ErrorKind::Exists, name, "exists already")),
            _ => Ok(()),
        }
    }

    /// Adds a name or replaces its value. Returns the old value, if any.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), except `Exists`.
    pub(crate) fn upsert(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<Option<Value>> {
        match self.change(tx, NameChange::Upsert, name, value)? {
            Change::Done(old) => Ok(old),
            _ => Ok(None),
        }
    }

    /// Replaces the value of a name. Returns the old value.
    ///
    /// # Errors
    /// `NotFound` if the name does not exist; otherwise as [`insert`](Self::insert).
    pub(crate) fn replace(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<Value> {
        match self.change(tx, NameChange::Replace, name, value)? {
            Change::Done(Some(old)) => Ok(old),
            _ => Err(self.name_error(ErrorKind::NotFound, name, "does not exist")),
        }
    }

    /// Removes a name. Returns its value.
    ///
    /// # Errors
    /// `NotFound` if the name does not exist; otherwise as [`lookup`](Self::lookup).
    pub(crate) fn remove(&self, tx: &S::Tx, name: &[u8]) -> Result<Value> {
        // The value is ignored, but must be valid.
        match self.change(tx, NameChange::Remove, name, &[0])? {
            Change::Done(Some(old)) => Ok(old),
            _ => Err(self.name_error(ErrorKind::NotFound, name, "does not exist")),
        }
    }

    /// Adds a name that [`remove`](Self::remove) has removed in the same transaction, to undo that.
    /// Reads no block and needs no space, so it does not fail for lack of either. One exception:
    /// the return of a long name to a directory that it left empty needs a leaf.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub(crate) fn restore(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<()> {
        match self.change(tx, NameChange::Restore, name, value)? {
            Change::Exists(_) => Err(self.name_error(ErrorKind::Exists, name, "exists already")),
            _ => Ok(()),
        }
    }

    /// Loads what a change of a name needs, so that the change itself reads nothing while its
    /// transaction is open: the filter block and the buffer page of the name, and its leaf unless
    /// the filter says that it does not have the name. A directory without filters needs its leaf
    /// only, which the lookup before the change has loaded.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub(crate) fn warm(&self, name: &[u8], wait: Wait) -> Result<()> {
        check_name(name)?;
        if !self.aided.load(Ordering::Relaxed) {
            return Ok(());
        }
        let name = HashedName::new(self.seed, name);
        let ((), fetched) = self.run_alone(None, wait, |state, access| match &mut state.form {
            DirectoryForm::Micro(_) => Ok(OpStep::Done(())),
            DirectoryForm::Fat(fat) => fat.warm(access, name),
        })?;
        // The change finds its leaf in memory, and will not know that it was not.
        if fetched == FetchedKind::Leaf {
            self.read_ahead_for_absent(fetched, wait);
        }
        Ok(())
    }

    /// Slows the caller down if creates fill the change buffer faster than names move to their
    /// leaves. Called before a transaction that adds a name begins.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if it would wait and must not.
    pub(crate) fn pace(&self, wait: Wait) -> Result<()> {
        let pace = &self.write_state.pace;
        if pace.is_slow() { self.store.slow_down(pace, wait) } else { Ok(()) }
    }

    /// Limits inline content to `capacity` bytes, so that the attributes can grow. `capacity` is at
    /// least the size of the header of a fat directory.
    pub(crate) fn limit_inline(&self, tx: &S::Tx, capacity: usize) -> Result<()> {
        let mut state = self.lock(S::wait_of(tx))?;
        match &state.form {
            DirectoryForm::Micro(micro) if micro.content().len() > capacity => {
                state.form = DirectoryForm::Fat(self.convert_to_fat(tx, micro)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn change(&self, tx: &S::Tx, kind: NameChange, name: &[u8], value: &[u8]) -> Result<Change> {
        check_name(name)?;
        check_value(value)?;
        let request = ChangeRequest { kind, name: HashedName::new(self.seed, name), value };
        let hash = request.name.hash();
        self.write_state.operations.count(hash);
        let (changed, fetched) = self.run_alone(None, S::wait_of(tx), |state, access| {
            let changed = self.change_once(state, access, tx, &request);
            self.publish(state);
            changed
        })?;
        self.count_answer(fetched, request.adds() && changed.change == Change::Done(None));
        if request.adds() {
            self.read_ahead_for_new(fetched, changed.lacks_leaf, S::wait_of(tx));
        } else {
            self.read_ahead(fetched, S::wait_of(tx));
        }
        let requested = &self.write_state.merge_requested;
        if changed.wants_merge && !requested.swap(true, Ordering::Relaxed) {
            self.store.request_merge();
        }
        if changed.lacks_filters {
            self.make_first_filters(tx);
        }
        if changed.merge_due {
            // The removal itself has succeeded. If the buddy leaf cannot be read, a later lookup of
            // a name in it reports the error.
            let old = if let Change::Done(Some(old)) = changed.change { old.len() } else { 0 };
            let _ = self.merge_leaves(tx, hash, micro::entry_bytes(name.len(), old));
        }
        Ok(changed.change)
    }

    /// Counts filters that made an operation read a leaf although the name is `absent` from it.
    #[inline]
    fn count_answer(&self, fetched: FetchedKind, absent: bool) {
        if fetched == FetchedKind::Leaf && absent && self.aided.load(Ordering::Relaxed) {
            self.store.count(ZapCounters::DIRECTORY_FILTER_FALSE, 1);
        }
    }

    /// Shows the counts after a change to readers without the lock.
    #[inline]
    fn publish(&self, state: &DirectoryState) {
        self.write_state.entries.store(state.len(), Ordering::Release);
        let buffers = state.buffered() > 0;
        if buffers != self.buffers.load(Ordering::Relaxed) {
            self.buffers.store(buffers, Ordering::Release);
        }
        self.write_state.pace.set_pressure(match &state.form {
            DirectoryForm::Fat(fat) if buffers => fat.pressure(),
            _ => 0,
        });
        let aided = state.is_aided();
        if aided != self.aided.load(Ordering::Relaxed) {
            self.aided.store(aided, Ordering::Relaxed);
        }
    }

    #[inline]
    fn change_once(
        &self,
        state: &mut DirectoryState,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        if let DirectoryForm::Micro(micro) = &mut state.form {
            let capacity = self.store.inline_capacity(tx)?;
            match micro.change(request.kind, request.name.name, request.value, capacity) {
                (Change::Full, _) => {
                    state.form = DirectoryForm::Fat(self.convert_to_fat(tx, micro)?)
                }
                (change, new) => {
                    if let Some(new) = new {
                        self.store.set_inline(tx, new.content())?;
                        *micro = new;
                    }
                    return Ok(OpStep::Done(Changed::new(change, false)));
                }
            }
        }
        match &mut state.form {
            DirectoryForm::Fat(fat) => {
                let mut step = fat.change(access, tx, request);
                if let Ok(OpStep::Done(changed)) = &mut step {
                    changed.lacks_filters = fat.lacks_filters();
                }
                step
            }
            DirectoryForm::Micro(_) => unreachable!("a full micro directory was converted to fat"),
        }
    }

    /// Merges leaves after a removal, as far as the transaction has space for that beside the
    /// changes that may follow. The removed name can come back: `removed` are the bytes that it
    /// needs in a micro directory.
    fn merge_leaves(&self, tx: &S::Tx, hash: u32, removed: usize) -> Result<()> {
        // Each round makes the leaf of this hash shallower.
        for _ in 0..ZAP_DEPTH_MAX {
            if !self.store.may_merge(tx) {
                break;
            }
            let merged = self.run(None, S::wait_of(tx), |state, access| {
                let merged = merge::try_merge(&mut state.form, access, tx, (hash, removed));
                if let DirectoryForm::Micro(_) = state.form {
                    self.hints.clear();
                }
                merged
            })?;
            // Leaves do not need their pages to merge.
            let _ = self.merge_pages(tx, hash);
            if !merged {
                break;
            }
        }
        Ok(())
    }

    /// Merges the buffer page of a hash with its neighbours after its leaf has merged.
    fn merge_pages(&self, tx: &S::Tx, hash: u32) -> Result<()> {
        // A round makes the page shallower, or moves its names to the leaf.
        for _ in 0..2 * ZAP_PAGE_DEPTH_MAX {
            if !self.store.may_merge(tx) {
                break;
            }
            let merged = self.run(None, S::wait_of(tx), |state, access| {
                let DirectoryForm::Fat(fat) = &mut state.form else {
                    return Ok(OpStep::Done(false));
                };
                let merged = merge::try_merge_pages(fat, access, tx, hash);
                self.publish(state);
                merged
            })?;
            if !merged {
                break;
            }
        }
        Ok(())
    }

    /// Moves the entries of a micro directory into a leaf.
    fn convert_to_fat(&self, tx: &S::Tx, micro: &Micro) -> Result<Fat> {
        let fat = Fat::new(self.seed, micro.len() as u64);
        let filled = self.store.new_leaf(tx, ZapBlock::Leaf(0), |bytes| micro.fill_leaf(bytes))?;
        let filled = filled.map_err(|defect| corrupt(&self.store, ZapBlock::Leaf(0), defect));
        if let Err(error) = filled.and_then(|()| fat.put_header(&self.store, tx)) {
            self.store.free_leaf(tx, ZapBlock::Leaf(0))?;
            return Err(error);
        }
        Ok(fat)
    }

    #[cold]
    fn name_error(&self, kind: ErrorKind, name: &[u8], what: &str) -> Error {
        let name = String::from_utf8_lossy(name);
        Error::new(kind, format!("{}: the name {name:?} {what}", self.store.describe()))
    }
}

fn read_form(content: Vec<u8>) -> Result<(u64, DirectoryForm), LeafDefect> {
    let Ok((head, _)) = ZapHeadPhys::read_from_prefix(&content) else {
        return Err(LeafDefect("it is too short"));
    };
    let seed = head.seed.get();
    match head.form {
        ZAP_MICRO => Ok((seed, DirectoryForm::Micro(Micro::read(content, seed)?))),
        ZAP_FAT => match ZapFatPhys::read_from_bytes(&content) {
            Ok(header) => Ok((seed, DirectoryForm::Fat(Fat::read(header)?))),
            Err(_) => Err(LeafDefect("its length is wrong")),
        },
        _ => Err(LeafDefect("its form is unknown")),
    }
}

#[cold]
fn corrupt<S: LeafStore>(store: &S, block: ZapBlock, LeafDefect(defect): LeafDefect) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: {block}: {defect}", store.describe()))
}
