//! Clearing set-user-id, set-group-id and file capabilities on changes of content.
//!
//! The [`Client`] tells a kernel that caches attributes, because the reply to a write has none.

use forebay_base::sync::Arc;
use forebay_pool::{Transaction, Wait};

use crate::attrs::{SGID, SUID};
use crate::error::Result;
use crate::extras::{self, Extras, Item};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::types::{Caller, Ino};

/// The extended attribute with file capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// The privileges that a change of content clears.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KillPriv {
    /// Set-user-id and set-group-id, on behalf of this caller.
    pub(crate) set_id: Option<Caller>,
    /// File capabilities.
    pub(crate) capability: bool,
}

/// Serves the file system to others, as a mount does.
pub trait Client: Send + Sync {
    /// An operation changed the inode's mode without returning its attributes: a write,
    /// `fallocate`, `copy_range`, or an open that truncates. Called under the inode lock. It must
    /// not call the file system.
    fn mode_changed(&self, ino: Ino);

    /// Whether the caller is in the group, including its supplementary groups.
    fn is_member(&self, caller: Caller, gid: u32) -> bool;

    /// Whether a process of user 0 has the capability `CAP_FSETID`. It may have dropped it.
    fn has_fsetid(&self, caller: Caller) -> bool;

    /// Whether a process was killed, and ends as soon as its request has an answer.
    fn is_killed(&self, process: u32) -> bool;
}

impl FileSystem {
    /// Sets the client, or removes it.
    pub fn set_client(&self, client: Option<Arc<dyn Client>>) {
        *self.shared.client.lock() = client;
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client>> {
        self.shared.client.lock().clone()
    }

    /// Tells the client that an inode's mode has changed.
    pub(super) fn mode_changed(&self, inode: &Inode) {
        if let Some(client) = self.client() {
            client.mode_changed(self.ino(inode.number));
        }
    }

    /// Whether the caller's changes leave set-user-id and set-group-id bits alone.
    pub(super) fn keeps_set_id(&self, caller: Caller) -> bool {
        caller.uid == 0 && self.client().is_none_or(|client| client.has_fsetid(caller))
    }

    /// As [`keeps_set_id`](Self::keeps_set_id), for an inode. Most inodes have no such bits; then
    /// the caller is not examined.
    pub(super) fn keeps_set_id_of(&self, inode: &Inode, caller: Caller) -> bool {
        let has_set_id = inode.state().meta.mode & (SUID | SGID) != 0;
        !has_set_id || self.keeps_set_id(caller)
    }

    /// The privileges that a change of content by `caller` clears.
    pub(super) fn kill_priv_by(&self, inode: &Inode, caller: Caller) -> KillPriv {
        let keeps = self.keeps_set_id_of(inode, caller);
        KillPriv { set_id: (!keeps).then_some(caller), capability: true }
    }

    /// Whether the caller may keep a set-group-id bit without group execute permission; see
    /// `Meta::clear_set_id`.
    pub(super) fn may_keep_sgid(&self, inode: &Inode, caller: Caller) -> bool {
        let (marked, gid) = {
            let meta = &inode.state().meta;
            (meta.has_sgid_without_exec(), meta.gid)
        };
        let is_member = || match self.client() {
            Some(client) => client.is_member(caller, gid),
            None => caller.gid == gid,
        };
        marked && (self.keeps_set_id(caller) || is_member())
    }

    /// Sets the times of a content change and clears privileges. The caller holds the inode lock.
    pub(super) fn content_changed(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        kill_priv: KillPriv,
    ) -> Result<()> {
        let now = self.now();
        if kill_priv.capability && self.has_capability(inode, tx.wait())? {
            self.replace_extras(tx, inode, |items| {
                items.retain(|item| !is_capability(item));
                Ok(())
            })?;
        }
        let has_set_id = inode.state().meta.mode & (SUID | SGID) != 0;
        let Some(caller) = kill_priv.set_id.filter(|_| has_set_id) else {
            return self.touch(tx, inode, |meta| meta.changed(now));
        };
        let member = self.may_keep_sgid(inode, caller);
        self.change(tx, inode, |meta| {
            meta.clear_set_id(member);
            meta.changed(now);
        })?;
        self.mode_changed(inode);
        Ok(())
    }

    /// Whether the inode has file capabilities. Most inodes have no extended attributes at all.
    fn has_capability(&self, inode: &Inode, wait: Wait) -> Result<bool> {
        let before = {
            let state = inode.state();
            match (&state.meta.extras, state.capability) {
                (Extras::Inline(bytes), _) if bytes.is_empty() => return Ok(false),
                (_, Some(has)) => return Ok(has),
                (extras, None) => extras.clone(),
            }
        };
        let has = extras::read(self.dataset(), &before, wait)?.iter().any(is_capability);
        let mut state = inode.state();
        if state.meta.extras == before {
            state.capability = Some(has);
        }
        Ok(has)
    }
}

fn is_capability(item: &Item) -> bool {
    item.is_xattr() && item.name == CAPABILITY
}
