//! The transaction groups that are in use.

use std::fmt;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_fs::{Error, ErrorKind, FileSystem};

use super::files::Files;

/// The file system as of one transaction group.
pub struct Group {
    pub(super) fs: FileSystem,
    /// The same file system in non-blocking mode.
    pub(super) non_blocking: FileSystem,
    txg: u64,
    outdated: Box<dyn Fn() -> bool + Send + Sync>,
    told: AtomicBool,
}

/// The transaction groups of a followed pool that are in use.
pub struct Groups {
    state: Mutex<GroupsState>,
    pub(super) files: Files,
}

struct GroupsState {
    current: Arc<Group>,
    /// The one before is kept, for requests that came just before: a name that was found is
    /// opened.
    before: Option<Arc<Group>>,
    /// Older ones, which open files use.
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
        Self { fs, non_blocking, txg, outdated: Box::new(outdated), told: AtomicBool::new(false) }
    }

    /// The transaction group.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// The file system.
    pub fn fs(&self) -> &FileSystem {
        &self.fs
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
        Arc::new(Self { state: Mutex::named("follow-groups", state), files: Files::new() })
    }

    /// Takes up a newer group: operations that begin from now on see it. Open files that have not
    /// changed move there. Ends groups that nothing uses any more. May block.
    pub fn advance(&self, group: Group) {
        let group = Arc::new(group);
        {
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.current, Arc::clone(&group));
            let older = state.before.replace(before);
            state.older.extend(older);
        }
        self.files.move_to(&group);
        self.drop_unused();
    }

    /// Ends groups that nothing uses any more. May block.
    pub fn drop_unused(&self) {
        let unused: Vec<_> = {
            let mut state = self.state.lock();
            state.older.extract_if(.., |group| Arc::strong_count(group) == 1).collect()
        };
        for group in unused {
            // The error of closing what nobody writes.
            let _ = group.fs.close();
        }
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
            let kept = [&state.current].into_iter().chain(&state.before);
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
