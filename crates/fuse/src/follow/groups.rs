//! The transaction groups that are in use.

use std::fmt;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_fs::{Error, ErrorKind, FileSystem};

use super::NAMES_VALID;
use super::files::Files;

/// Groups of a mount at most. Each has its own pool and file system.
const GROUPS_MAX: usize = 16;
/// How long the group before the newest is kept at least: some times as long as a name is valid.
const BEFORE_KEPT_NS: u64 = 5 * NAMES_VALID.as_nanos() as u64;

/// The file system as of one transaction group.
pub struct Group {
    pub(super) fs: FileSystem,
    /// The same file system in non-blocking mode.
    pub(super) non_blocking: FileSystem,
    txg: u64,
    /// Its position in the order in which groups were taken up. Not the txg: a store that was set
    /// back to a copy has the same numbers again.
    order: u64,
    outdated: Box<dyn Fn() -> bool + Send + Sync>,
    told: AtomicBool,
}

/// The transaction groups of a followed pool that are in use.
pub struct Groups {
    state: Mutex<GroupsState>,
    clock: SystemClock,
    pub(super) files: Files,
}

struct GroupsState {
    current: Arc<Group>,
    /// The one before is kept for a time, for requests that came just before: a name that was
    /// found is opened. Since when it is not the newest.
    before: Option<(Arc<Group>, u64)>,
    /// Older ones, which open files use, the oldest first.
    older: Vec<Arc<Group>>,
}

impl Group {
    /// A group of `fs`, which is read-only and of this txg. `outdated` says whether its reads fail
    /// because the writer has freed what it needs.
    pub fn new(
        fs: FileSystem,
        txg: u64,
        outdated: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let non_blocking = fs.non_blocking();
        let (order, told) = (0, AtomicBool::new(false));
        Self { fs, non_blocking, txg, order, outdated: Box::new(outdated), told }
    }

    /// The transaction group.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// The file system.
    pub fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// Whether this group was taken up before `other`.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.order < other.order
    }

    /// Whether an error is due to the writer, which has freed what this group needs.
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        let may_be = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if !may_be || !(self.outdated)() {
            return false;
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            let txg = self.txg;
            tracing::warn!(
                txg,
                %error,
                "the writer of the pool has freed what an open file of this transaction group needs: \
                 it fails with ESTALE; open it again"
            );
        }
        true
    }
}

impl Groups {
    /// Begins with one group.
    pub fn new(group: Group) -> Arc<Self> {
        let state = GroupsState { current: Arc::new(group), before: None, older: Vec::new() };
        let state = Mutex::named("follow-groups", state);
        Arc::new(Self { state, clock: SystemClock::new(), files: Files::new() })
    }

    /// Takes up a newer group: operations that begin from now on see it. Open files that have not
    /// changed move there. Ends groups that nothing uses any more. May block.
    pub fn advance(&self, group: Group) {
        let group = {
            let mut state = self.state.lock();
            let group = Arc::new(Group { order: state.current.order + 1, ..group });
            let before = std::mem::replace(&mut state.current, Arc::clone(&group));
            let older = state.before.replace((before, self.clock.now_ns()));
            state.older.extend(older.map(|(group, _)| group));
            group
        };
        self.files.move_to(&group);
        self.end_unused();
        self.bound();
    }

    /// Ends groups that nothing uses any more, also the one before if its names are valid no more.
    /// May block.
    pub fn drop_unused(&self) {
        {
            let mut state = self.state.lock();
            let now = self.clock.now_ns();
            let before = state.before.take_if(|(_, since)| now - *since >= BEFORE_KEPT_NS);
            state.older.extend(before.map(|(group, _)| group));
        }
        self.end_unused();
    }

    fn end_unused(&self) {
        let mut unused = Vec::new();
        {
            let mut state = self.state.lock();
            for group in std::mem::take(&mut state.older) {
                // From here on, no node finds it.
                match Arc::try_unwrap(group) {
                    Ok(group) => unused.push(group),
                    Err(group) => state.older.push(group),
                }
            }
        }
        for group in unused {
            // The error of closing what nobody writes.
            let _ = group.fs.close();
        }
    }

    /// Gives up what is open in the oldest groups, if there are too many.
    fn bound(&self) {
        let oldest: Vec<_> = {
            let state = self.state.lock();
            let excess = (state.older.len() + 2).saturating_sub(GROUPS_MAX);
            state.older[..excess].to_vec()
        };
        for group in oldest {
            let count = self.files.give_up(&group);
            let txg = group.txg;
            let text = "too many transaction groups are in use: files and directories that are open in \
                        the oldest one fail with ESTALE";
            tracing::info!(txg, count, text);
        }
        self.end_unused();
    }

    /// The newest group.
    pub fn current(&self) -> Arc<Group> {
        Arc::clone(&self.state.lock().current)
    }

    /// The number of groups that are in use.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        1 + usize::from(state.before.is_some()) + state.older.len()
    }

    /// Whether no group is in use, which is never so.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Closes all file systems. Operations fail from then on. May block.
    pub fn close(&self) {
        let all: Vec<_> = {
            let state = self.state.lock();
            let before = state.before.as_ref().map(|(group, _)| group);
            let kept = [&state.current].into_iter().chain(before);
            kept.chain(&state.older).cloned().collect()
        };
        for group in all {
            let _ = group.fs.close();
        }
    }

    /// A group, if it is still in use.
    pub(super) fn still_used(group: &Weak<Group>) -> Option<Arc<Group>> {
        group.upgrade()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(txg {})", self.txg)
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Groups({} in use, newest {:?})", self.len(), self.current())
    }
}
