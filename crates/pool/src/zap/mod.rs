//! Directories: names of up to 255 bytes, and a short value for each.
//!
//! Purpose: hold a few names inside the dnode ([`micro`]), and millions in leaves of up to 16 KiB ([`fat`],
//! [`leaf`]) that stay packed as names come and go: leaves are stored without the room they have for
//! more, split when full, merge when emptied ([`merge`]), and go back into the dnode in the end. An insert finds
//! out whether the name is there and adds it in one descent.
//!
//! # Invariants
//!
//! - An entry's place in the order of the directory is its name's hash (upper half) and a collision number; it
//!   stays as long as the entry does, whatever splits or merges. So a [`Cookie`] stays valid, and a
//!   walk returns what was there all the time exactly once.
//! - Inline content, leaves and in-memory state agree whenever the lock is free, for each transaction group:
//!   changes to one directory come in the order of their txgs.
//! - Nothing that a device returns is trusted: an impossible leaf or header is [`ErrorKind::Corrupt`].
//!
//! # Locking
//!
//! One lock a directory, `zap`, for its in-memory state; leaves are changed under it, and looked at where
//! guessing does not do ([`probe`]): a lookup in a fat directory takes it hardly ever. It is not held while something is read: an operation whose leaf is not resident releases it, fetches, and starts over with
//! what it fetched in its hand, so that a cold leaf delays no other name.
//!
//! # What it does not do
//!
//! It knows nothing of files, of blocks' places, or of caching: that is the [`LeafStore`]'s.

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
use crate::{Error, ErrorKind, Result, blocking};

pub use entry::{Cookie, Entry, Value};
pub(crate) use fat::{entries_of, put_entries};
pub(crate) use leaf::pack;
pub use stats::ZapStats;
pub(crate) use store::{LeafLookup, LeafStore};

use entry::{check_name, check_value, hash_of};
use fat::{Changed, Fat, LeafAccess, Request};
use leaf::{Change, LeafDefect};
use micro::Micro;
use probe::{Hints, Operations};

/// How often an operation starts over with one more block fetched, at most.
const TRIES: usize = 200;
/// Leaves that one operation looks at to find some that are not resident, about.
const READAHEAD_LEAVES_MAX: usize = 1024;
/// Blocks that an operation keeps in its hand; the oldest go first. More than any operation looks at.
const FETCHED_MAX: usize = 8;

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameChange {
    Insert,
    Upsert,
    Replace,
    Remove,
}

/// How far an operation came.
enum OpStep<R, T> {
    Done(R),
    /// This has to be fetched first.
    NotResident(T),
}

/// How a directory is kept.
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
    // Apart from what lookups read.
    changing: CachePadded<WriteSide>,
}

/// What operations write.
struct WriteSide {
    state: Mutex<DirectoryState>,
    operations: Operations,
    /// Entries as of the last change, for who does not take the lock. Written under it.
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
    /// Opens a directory. An object without content is an empty one.
    ///
    /// # Errors
    /// `Corrupt` if the content is not a directory's; what reading it says.
    pub(crate) fn open(store: S) -> Result<Self> {
        let content = store.inline()?;
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
        let changing =
            CachePadded::new(WriteSide { state, operations: Operations::new(), entries });
        Self { store, seed, hints: Hints::new(), changing }
    }

    /// Where it is kept.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Entries.
    pub(crate) fn len(&self) -> u64 {
        self.changing.entries.load(Ordering::Acquire)
    }

    /// Whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a name, if it is there.
    ///
    /// # Errors
    /// `Invalid` for an impossible name; `Corrupt`, or what fetching says.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        check_name(name)?;
        let hash = hash_of(self.seed, name);
        self.changing.operations.count(hash);
        if let Some(found) = self.probe(hash, name)? {
            return Ok(found);
        }
        self.run(None, |state, access| match &mut state.form {
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
    /// `Exists` if it is there; `NoSpace` if its leaf is full and cannot be split; otherwise as [`lookup`](Self::lookup).
    pub(crate) fn insert(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<()> {
        match self.change(tx, NameChange::Insert, name, value)? {
            Change::Exists(_) => Err(self.about(ErrorKind::Exists, name, "is there already")),
            _ => Ok(()),
        }
    }

    /// Gives a name a value, whether it is there or not; the value it had.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), but `Exists`.
    pub(crate) fn upsert(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<Option<Value>> {
        match self.change(tx, NameChange::Upsert, name, value)? {
            Change::Done(old) => Ok(old),
            _ => Ok(None),
        }
    }

    /// Gives a name that is there another value; the value it had.
    ///
    /// # Errors
    /// `NotFound` if it is not there; otherwise as [`insert`](Self::insert).
    pub(crate) fn replace(&self, tx: &S::Tx, name: &[u8], value: &[u8]) -> Result<Value> {
        match self.change(tx, NameChange::Replace, name, value)? {
            Change::Done(Some(old)) => Ok(old),
            _ => Err(self.about(ErrorKind::NotFound, name, "is not there")),
        }
    }

    /// Removes a name; the value it had.
    ///
    /// # Errors
    /// `NotFound` if it is not there; otherwise as [`lookup`](Self::lookup).
    pub(crate) fn remove(&self, tx: &S::Tx, name: &[u8]) -> Result<Value> {
        // Any value will do.
        match self.change(tx, NameChange::Remove, name, &[0])? {
            Change::Done(Some(old)) => Ok(old),
            _ => Err(self.about(ErrorKind::NotFound, name, "is not there")),
        }
    }

    /// Makes inline content at most `capacity` bytes long, which is at least the header of a fat directory, so that
    /// attributes can grow.
    pub(crate) fn limit_inline(&self, tx: &S::Tx, capacity: usize) -> Result<()> {
        let mut state = self.lock()?;
        match &state.form {
            DirectoryForm::Micro(micro) if micro.content().len() > capacity => {
                state.form = DirectoryForm::Fat(self.fatten(tx, micro)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn change(&self, tx: &S::Tx, wish: NameChange, name: &[u8], value: &[u8]) -> Result<Change> {
        check_name(name)?;
        check_value(value)?;
        let request = Request { wish, hash: hash_of(self.seed, name), name, value };
        self.changing.operations.count(request.hash);
        let changed = self.run(None, |state, access| {
            let changed = self.change_once(state, access, tx, &request);
            self.changing.entries.store(state.len(), Ordering::Release);
            changed
        })?;
        if changed.settle {
            // The name is gone, whether its leaf can merge or not. If its buddy cannot be read, who looks for a
            // name there is told.
            let _ = self.settle(tx, request.hash);
        }
        Ok(changed.change)
    }

    #[inline]
    fn change_once(
        &self,
        state: &mut DirectoryState,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &Request<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        if let DirectoryForm::Micro(micro) = &mut state.form {
            let capacity = self.store.inline_capacity()?;
            match micro.change(request.wish, request.name, request.value, capacity) {
                (Change::Full, _) => state.form = DirectoryForm::Fat(self.fatten(tx, micro)?),
                (change, new) => {
                    if let Some(new) = new {
                        self.store.set_inline(tx, new.content())?;
                        *micro = new;
                    }
                    return Ok(OpStep::Done(Changed { change, settle: false }));
                }
            }
        }
        match &mut state.form {
            DirectoryForm::Fat(fat) => fat.change(access, tx, request),
            DirectoryForm::Micro(_) => unreachable!("it was made fat"),
        }
    }

    /// Merges what a removal left.
    fn settle(&self, tx: &S::Tx, hash: u32) -> Result<()> {
        // Each round makes the leaf for this hash less deep.
        for _ in 0..ZAP_DEPTH_MAX {
            let merged = self.run(None, |state, access| {
                let merged = merge::settle(&mut state.form, access, tx, hash);
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
    fn fatten(&self, tx: &S::Tx, micro: &Micro) -> Result<Fat> {
        let fat = Fat::new(self.seed, micro.len() as u64);
        let filled = self.store.new_leaf(tx, 0, |bytes| micro.fill_leaf(bytes))?;
        let filled = filled.map_err(|defect| corrupt(&self.store, 0, defect));
        if let Err(error) = filled.and_then(|()| fat.put_header(&self.store, tx)) {
            self.store.free_leaf(tx, 0)?;
            return Err(error);
        }
        Ok(fat)
    }

    /// Takes steps until one gets by with what is in memory or in hand. `walk_at` is where a walk in order is.
    #[inline]
    fn run<R>(
        &self,
        walk_at: Option<u32>,
        mut step: impl FnMut(&mut DirectoryState, LeafAccess<'_, S>) -> Result<OpStep<R, S::Ticket>>,
    ) -> Result<R> {
        let mut fetched = Vec::new();
        for _ in 0..TRIES {
            let mut state = self.lock()?;
            match step(&mut state, LeafAccess { store: &self.store, fetched: &fetched })? {
                OpStep::Done(result) => {
                    if !fetched.is_empty() && walk_at.is_none() {
                        self.read_ahead(state, fetched.iter().any(S::has_leaf));
                    }
                    return Ok(result);
                }
                OpStep::NotResident(ticket) => self.fetch(state, walk_at, ticket, &mut fetched)?,
            }
        }
        Err(Error::new(
            ErrorKind::NoMemory,
            format!("{}: leaves leave memory faster than they can be used", self.store.describe()),
        ))
    }

    /// The lock; under it, dnodes and indirect blocks may be read.
    #[inline]
    fn lock(&self) -> Result<MutexGuard<'_, DirectoryState>> {
        blocking::lock(&self.changing.state, "another operation of the directory")
    }

    /// After an operation that had to fetch a leaf, or what says where it is: by now the store knows where leaves are.
    #[cold]
    fn read_ahead<'a>(&'a self, mut state: MutexGuard<'a, DirectoryState>, missed: bool) {
        let (mut not_resident, mut visited) = (0, 0);
        loop {
            let DirectoryState { form, ahead } = &mut *state;
            let DirectoryForm::Fat(fat) = form else { return };
            let (leaves, end) = (fat.leaves(), 1 << fat.header.depth);
            let ids: Vec<u64> = match visited {
                0 if missed => ahead.miss(self.changing.operations.get(), leaves, end).collect(),
                0 => ahead.check_residency(self.changing.operations.get(), leaves, end).collect(),
                _ => ahead.more(leaves, end).collect(),
            };
            drop(state);
            if ids.is_empty() {
                return;
            }
            visited += ids.len();
            not_resident += self.store.prefetch(&ids);
            let is_enough = not_resident as u64 >= LEAF_BATCH || visited >= READAHEAD_LEAVES_MAX;
            let Ok(again) = self.lock() else { return };
            state = again;
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
        fetched: &mut Vec<S::Fetched>,
    ) -> Result<()> {
        let ids = match (&state.form, walk_at) {
            (DirectoryForm::Fat(fat), Some(hash)) => cursor::leaves_behind(fat, hash),
            _ => Vec::new(),
        };
        drop(state);
        if !ids.is_empty() {
            self.store.prefetch(&ids);
        }
        let block = self.store.fetch(ticket)?;
        if fetched.len() == FETCHED_MAX {
            fetched.remove(0);
        }
        fetched.push(block);
        Ok(())
    }

    #[cold]
    fn about(&self, kind: ErrorKind, name: &[u8], what: &str) -> Error {
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
