//! Attempts of an operation: a step runs under the directory's lock, and is repeated until all
//! blocks that it needs are in memory or fetched.
//!
//! No block is fetched under the lock. The blocks that an operation has fetched are kept until it
//! ends, so each attempt gets further, even if the cache evicts them at once.
//!
//! Locking: `zap`, released for each fetch.

use std::collections::HashSet;

use forebay_base::sync::MutexGuard;

use super::access::{LeafAccess, LostBlock};
use super::{DirectoryForm, DirectoryState, LeafStore, Zap, cursor};
use crate::format::ZapBlock;
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

/// How often an operation fetches a block again that was evicted before its use. A block that the
/// operation has not fetched before is progress, and does not count.
const RETRIES_MAX: usize = 200;
/// Fetched blocks that an operation keeps; the oldest are dropped. More than any operation uses at
/// once.
const FETCHED_MAX: usize = 16;
/// With a filter block or page that is waited for, so many of the directory are read at a time even
/// if reads queue in the device. Each is used sooner than a leaf, and would be waited for alone.
const ASIDE_READS_MIN: usize = 8;

/// Result of one attempt of an operation.
pub(super) enum OpStep<R, T> {
    Done(R),
    /// This must be fetched first.
    NotResident(T),
}

/// Blocks that an operation has read, and those that it could not read.
pub(super) struct OpBlocks<S: LeafStore> {
    pub(super) fetched: Vec<S::Fetched>,
    /// So many are kept; the oldest are dropped.
    pub(super) fetched_max: usize,
    pub(super) lost: Vec<LostBlock>,
}

impl<S: LeafStore> OpBlocks<S> {
    /// For a thread that nobody waits for. It keeps all blocks.
    pub(super) fn in_background() -> Self {
        Self { fetched_max: usize::MAX, ..Self::default() }
    }

    fn is_in_background(&self) -> bool {
        self.fetched_max == usize::MAX
    }
}

impl<S: LeafStore> Default for OpBlocks<S> {
    fn default() -> Self {
        Self { fetched: Vec::new(), fetched_max: FETCHED_MAX, lost: Vec::new() }
    }
}

/// What an operation had to fetch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FetchedKind {
    Nothing,
    /// No leaf, but another block.
    Other,
    Leaf,
}

impl<S: LeafStore> Zap<S> {
    /// Repeats `step` until it needs only leaves that are in memory or fetched. `walk_at` is the
    /// position of an ordered walk. Other operations may start a read-ahead.
    #[inline]
    pub(super) fn run<R>(
        &self,
        walk_at: Option<u32>,
        wait: Wait,
        step: impl FnMut(&mut DirectoryState, LeafAccess<'_, S>) -> Result<OpStep<R, S::Ticket>>,
    ) -> Result<R> {
        let (result, fetched) = self.run_alone(walk_at, wait, step)?;
        if walk_at.is_none() {
            self.read_ahead(fetched, wait);
        }
        Ok(result)
    }

    /// As [`run`](Self::run), without read-ahead. Returns what had to be fetched, too.
    #[inline]
    pub(super) fn run_alone<R>(
        &self,
        walk_at: Option<u32>,
        wait: Wait,
        step: impl FnMut(&mut DirectoryState, LeafAccess<'_, S>) -> Result<OpStep<R, S::Ticket>>,
    ) -> Result<(R, FetchedKind)> {
        self.run_on(&mut OpBlocks::default(), walk_at, wait, step)
    }

    /// As [`run_alone`](Self::run_alone), with blocks of earlier steps. Keeps those that it
    /// fetches.
    #[inline]
    pub(super) fn run_on<R>(
        &self,
        blocks: &mut OpBlocks<S>,
        walk_at: Option<u32>,
        wait: Wait,
        mut step: impl FnMut(&mut DirectoryState, LeafAccess<'_, S>) -> Result<OpStep<R, S::Ticket>>,
    ) -> Result<(R, FetchedKind)> {
        let mut kind = FetchedKind::Nothing;
        let (mut known, mut again) = (HashSet::new(), 0);
        while again < RETRIES_MAX {
            let mut state = self.lock(wait)?;
            let access = LeafAccess {
                store: &self.store,
                fetched: &blocks.fetched,
                lost: &blocks.lost,
                reads_filters: true,
            };
            match step(&mut state, access)? {
                OpStep::Done(result) => return Ok((result, kind)),
                OpStep::NotResident(ticket) => {
                    let block = S::block_of(&ticket);
                    let is_pointer = S::txg_of(&ticket).is_none();
                    let is_leaf = matches!(block, ZapBlock::Leaf(_)) && !is_pointer;
                    if let Some(at) = blocks.lost.iter().position(|lost| lost.block == block) {
                        return Err(blocks.lost.swap_remove(at).error);
                    }
                    again += usize::from(!known.insert((block, S::txg_of(&ticket))));
                    kind = if is_leaf { FetchedKind::Leaf } else { kind.max(FetchedKind::Other) };
                    match self.fetch(state, walk_at, ticket, wait, blocks) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                        // Without its filter, a leaf must be read. Without its page, too: the leaf
                        // may have the name.
                        Err(error) if !matches!(block, ZapBlock::Leaf(_)) => {
                            blocks.lost.push(LostBlock::new(block, is_pointer, error));
                        }
                        fetched => fetched?,
                    }
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
    pub(super) fn lock(&self, wait: Wait) -> Result<MutexGuard<'_, DirectoryState>> {
        wait.lock(&self.write_state.state, "another operation of the directory")
    }

    #[cold]
    fn fetch(
        &self,
        mut state: MutexGuard<'_, DirectoryState>,
        walk_at: Option<u32>,
        ticket: S::Ticket,
        wait: Wait,
        blocks: &mut OpBlocks<S>,
    ) -> Result<()> {
        // A pointer is mostly in memory, and only looked up.
        let known = S::txg_of(&ticket).map(|_| S::block_of(&ticket));
        let ids = match (&mut state.form, walk_at, known) {
            (DirectoryForm::Fat(fat), _, Some(ZapBlock::Filter(at) | ZapBlock::Page(at))) => {
                fat.aside_ahead(at, self.write_state.operations.get())
            }
            (DirectoryForm::Fat(fat), Some(hash), _) => cursor::leaves_after(fat, hash),
            _ => Vec::new(),
        };
        drop(state);
        let aside = match known {
            Some(ZapBlock::Filter(at) | ZapBlock::Page(at)) => Some(at),
            _ => None,
        };
        let least = if aside.is_some() && !blocks.is_in_background() { ASIDE_READS_MIN } else { 0 };
        let left = ids.len() - self.store.prefetch(&ids, least).taken;
        if left > 0
            && let Some(at) = aside
            && let Ok(mut state) = self.lock(wait)
            && let DirectoryForm::Fat(fat) = &mut state.form
        {
            fat.leave_aside(at, left);
        }
        let begun_ns = self.store.now_ns();
        let block = self.store.fetch(ticket, wait)?;
        if let Some(id) = known.filter(|_| !blocks.is_in_background()) {
            self.store.count_wait(id, self.store.now_ns().saturating_sub(begun_ns));
        }
        if blocks.fetched.len() == blocks.fetched_max {
            blocks.fetched.remove(0);
        }
        blocks.fetched.push(block);
        Ok(())
    }
}
