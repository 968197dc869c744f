//! Directories (ZAP): names of up to 255 bytes, each with a short value.
//!
//! A *micro* directory stores its entries inline in the dnode ([`micro`]). A *fat* directory has
//! leaves ([`fat`], [`leaf`]), which are stored without their free space. A full leaf splits, a
//! mostly empty one merges with its buddy ([`merge`]), and a small last leaf becomes a micro
//! directory again. An insert checks for the name and adds it in one descent.
//!
//! # Invariants
//!
//! - The position of an entry in the order of the directory is the hash of its name (upper half)
//!   and a collision number. It never changes, whatever splits or merges. So a [`Cookie`] stays
//!   valid, and a walk returns each entry that exists throughout exactly once.
//! - When the lock is free, inline content, leaves and in-memory state agree, for each txg. Changes
//!   of a directory are made in the order of their txgs.
//! - Content from a device is not trusted: an impossible leaf or header is [`ErrorKind::Corrupt`].
//!
//! # Locking
//!
//! One lock per directory, `zap`, protects the in-memory state and changes of leaves. Most lookups
//! in a fat directory do without it ([`probe`]). No leaf is read from a device under the lock: an
//! operation whose leaf is not resident releases the lock, fetches the leaf, and starts over with
//! the fetched leaf, so a cold leaf delays no other name.
//!
//! # What it does not do
//!
//! It knows nothing of files, block locations and caching: that is the work of the [`LeafStore`].

mod cursor;
mod entry;
mod fat;
pub(crate) mod inspect;
mod leaf;
#[cfg(all(test, not(forebay_model)))]
mod memory;
mod merge;
mod micro;
mod probe;
mod stats;
mod store;
mod table;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, MutexGuard};
use zerocopy::FromBytes;

use crate::format::{ZAP_DEPTH_MAX, ZAP_FAT, ZAP_MICRO, ZapFatPhys, ZapHeadPhys};
use crate::readahead::{DirectoryReadahead, LEAF_BATCH};
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

pub use entry::{Cookie, Entry, Value};
pub(crate) use fat::{entries_of, put_entries};
pub(crate) use leaf::pack;
pub use stats::{LeavesByPointers, ZapStats};
pub(crate) use store::{LeafLookup, LeafStore};

use entry::{check_name, check_value, hash_of};
use fat::{ChangeRequest, Changed, Fat, LeafAccess};
use leaf::{Change, LeafDefect};
use micro::Micro;
use probe::{Hints, Operations};

/// How often an operation starts over with one more fetched block.
const RETRIES_MAX: usize = 200;
/// Approximate limit of leaves that one operation examines to find some that are not resident.
const READAHEAD_LEAVES_MAX: usize = 1024;
/// Fetched blocks that an operation keeps; the oldest are dropped. More than any operation uses at
/// once.
const FETCHED_MAX: usize = 8;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameChange {
    Insert,
    Upsert,
    Replace,
    Remove,
}

/// Result of one attempt of an operation.
enum OpStep<R, T> {
    Done(R),
    /// This must be fetched first.
    NotResident(T),
}

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
    // Kept off the cache lines that lookups read.
    write_state: CachePadded<WriteState>,
}

/// State that operations write.
struct WriteState {
    state: Mutex<DirectoryState>,
    operations: Operations,
    /// Entry count after the newest change, for readers without the lock. Written under the lock.
    entries: AtomicU64,
}

impl DirectoryState {
    fn len(&self) -> u64 {
        match &self.form {
            DirectoryForm::Micro(micro) => micro.len() as u64,
            DirectoryForm::Fat(fat) => fat.header.entries.get(),
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
        let entries = AtomicU64::new(state.len());
        let state = Mutex::named("zap", state);
        let write_state =
            CachePadded::new(WriteState { state, operations: Operations::new(), entries });
        Self { store, seed, hints: Hints::new(), write_state }
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
        let hash = hash_of(self.seed, name);
        self.write_state.operations.count(hash);
        if let Some(found) = self.probe(hash, name)? {
            return Ok(found);
        }
        self.run(None, wait, |state, access| match &mut state.form {
            DirectoryForm::Micro(micro) => Ok(OpStep::Done(micro.find(name))),
            DirectoryForm::Fat(fat) => fat.with_leaf_of(access, hash, |leaf| {
                self.hints.set(hash, leaf.depth());
                leaf.find(hash, name)?.map(|record| record.value()).transpose()
            }),
        })
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
        let request = ChangeRequest { kind, hash: hash_of(self.seed, name), name, value };
        self.write_state.operations.count(request.hash);
        let changed = self.run(None, S::wait_of(tx), |state, access| {
            let changed = self.change_once(state, access, tx, &request);
            self.write_state.entries.store(state.len(), Ordering::Release);
            changed
        })?;
        if changed.merge_due {
            // The removal itself has succeeded. If the buddy leaf cannot be read, a later lookup of
            // a name in it reports the error.
            let _ = self.merge_leaves(tx, request.hash);
        }
        Ok(changed.change)
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
            match micro.change(request.kind, request.name, request.value, capacity) {
                (Change::Full, _) => {
                    state.form = DirectoryForm::Fat(self.convert_to_fat(tx, micro)?)
                }
                (change, new) => {
                    if let Some(new) = new {
                        self.store.set_inline(tx, new.content())?;
                        *micro = new;
                    }
                    return Ok(OpStep::Done(Changed { change, merge_due: false }));
                }
            }
        }
        match &mut state.form {
            DirectoryForm::Fat(fat) => fat.change(access, tx, request),
            DirectoryForm::Micro(_) => unreachable!("a full micro directory was converted to fat"),
        }
    }

    /// Merges leaves after a removal.
    fn merge_leaves(&self, tx: &S::Tx, hash: u32) -> Result<()> {
        // Each round makes the leaf of this hash shallower.
        for _ in 0..ZAP_DEPTH_MAX {
            let merged = self.run(None, S::wait_of(tx), |state, access| {
                let merged = merge::try_merge(&mut state.form, access, tx, hash);
                if let DirectoryForm::Micro(_) = state.form {
                    self.hints.clear();
                }
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
        let filled = self.store.new_leaf(tx, 0, |bytes| micro.fill_leaf(bytes))?;
        let filled = filled.map_err(|defect| corrupt(&self.store, 0, defect));
        if let Err(error) = filled.and_then(|()| fat.put_header(&self.store, tx)) {
            self.store.free_leaf(tx, 0)?;
            return Err(error);
        }
        Ok(fat)
    }

    /// Repeats `step` until it needs only leaves that are in memory or fetched. `walk_at` is the
    /// position of an ordered walk.
    #[inline]
    fn run<R>(
        &self,
        walk_at: Option<u32>,
        wait: Wait,
        mut step: impl FnMut(&mut DirectoryState, LeafAccess<'_, S>) -> Result<OpStep<R, S::Ticket>>,
    ) -> Result<R> {
        let mut fetched = Vec::new();
        for _ in 0..RETRIES_MAX {
            let mut state = self.lock(wait)?;
            match step(&mut state, LeafAccess { store: &self.store, fetched: &fetched })? {
                OpStep::Done(result) => {
                    if !fetched.is_empty() && walk_at.is_none() {
                        self.read_ahead(state, fetched.iter().any(S::has_leaf), wait);
                    }
                    return Ok(result);
                }
                OpStep::NotResident(ticket) => {
                    self.fetch(state, walk_at, ticket, wait, &mut fetched)?
                }
            }
        }
        Err(Error::new(
            ErrorKind::NoMemory,
            format!(
                "{}: leaves are evicted faster than they can be used; give the cache more memory",
                self.store.describe()
            ),
        ))
    }

    /// Takes the lock. Dnodes and indirect blocks may be read under it.
    #[inline]
    fn lock(&self, wait: Wait) -> Result<MutexGuard<'_, DirectoryState>> {
        wait.lock(&self.write_state.state, "another operation of the directory")
    }

    /// Runs after an operation that had to fetch a leaf or an indirect block. By now the store
    /// knows where the leaves are.
    #[cold]
    fn read_ahead<'a>(
        &'a self,
        mut state: MutexGuard<'a, DirectoryState>,
        missed: bool,
        wait: Wait,
    ) {
        let (mut not_resident, mut visited) = (0, 0);
        loop {
            let DirectoryState { form, ahead } = &mut *state;
            let DirectoryForm::Fat(fat) = form else { return };
            let (leaves, end) = (fat.leaves(), 1 << fat.header.depth);
            let ids: Vec<u64> = match visited {
                0 if missed => ahead.miss(self.write_state.operations.get(), leaves, end).collect(),
                0 => {
                    ahead.check_residency(self.write_state.operations.get(), leaves, end).collect()
                }
                _ => ahead.more(leaves, end).collect(),
            };
            drop(state);
            if ids.is_empty() {
                return;
            }
            visited += ids.len();
            not_resident += self.store.prefetch(&ids);
            let is_enough = not_resident as u64 >= LEAF_BATCH || visited >= READAHEAD_LEAVES_MAX;
            let Ok(relocked) = self.lock(wait) else { return };
            state = relocked;
            if not_resident > 0 {
                state.ahead.on_prefetched();
            }
            if is_enough {
                return;
            }
        }
    }

    #[cold]
    fn fetch(
        &self,
        state: MutexGuard<'_, DirectoryState>,
        walk_at: Option<u32>,
        ticket: S::Ticket,
        wait: Wait,
        fetched: &mut Vec<S::Fetched>,
    ) -> Result<()> {
        let ids = match (&state.form, walk_at) {
            (DirectoryForm::Fat(fat), Some(hash)) => cursor::leaves_after(fat, hash),
            _ => Vec::new(),
        };
        drop(state);
        if !ids.is_empty() {
            self.store.prefetch(&ids);
        }
        let block = self.store.fetch(ticket, wait)?;
        if fetched.len() == FETCHED_MAX {
            fetched.remove(0);
        }
        fetched.push(block);
        Ok(())
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
fn corrupt<S: LeafStore>(store: &S, id: u64, LeafDefect(defect): LeafDefect) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: leaf {id}: {defect}", store.describe()))
}
