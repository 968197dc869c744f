//! The objset as the owner of its open objects.

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::{Arc, thread_slot};

use crate::error::{Error, ErrorKind, Result};
use crate::object::{DataFields, Node, NodeOwner, ObjectIo};
use crate::tx::Tx;
use crate::wait::Wait;
use crate::zap;

use super::dnodes::NewestDnode;
use super::{Objset, SHARDS, shard_of};

impl NodeOwner for Objset {
    fn io(&self) -> &Arc<ObjectIo> {
        &self.io
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Closed, "the pool was exported; import it again")),
        }
    }

    fn copies_at_most(&self) -> (u8, u8) {
        self.settings.lock().copies_at_most()
    }

    fn list_dirty(&self, tx: &Tx, node: &Arc<Node>) -> Result<()> {
        self.charge_dnode(tx, node.number)?;
        let shard = thread_slot().index(SHARDS);
        let mut listed = self.dirty[(tx.txg() & 1) as usize][shard].lock();
        // `close` sets the flag before it empties the list.
        self.check_open()?;
        listed.push(Arc::clone(node));
        Ok(())
    }

    /// Removes a dropped node from the table, unless a new node has its place.
    fn forget(&self, number: u64) {
        let mut nodes = self.nodes[shard_of(number)].lock();
        if nodes.get(&number).is_some_and(|node| node.strong_count() == 0) {
            nodes.remove(&number);
        }
    }

    fn inline(&self, number: u64, wait: Wait) -> Result<Vec<u8>> {
        let newest = self.dnodes.newest(number);
        let stale = matches!(newest, NewestDnode::Dirty(_, false));
        let (mut dnode, _) = self.resolve(number, newest, wait)?;
        if dnode.kind == 0 {
            return Err(self.no_object(number));
        }
        if stale && zap::counts_of(dnode.inline()).is_some() {
            // The dirty dnode may be older than the entry count of the stored one.
            DataFields::copy_unchecked(&self.stored_dnode(number, wait)?, &mut dnode);
        }
        Ok(dnode.inline().to_vec())
    }

    fn inline_capacity(&self, number: u64, wait: Wait) -> Result<usize> {
        Ok(self.dnode(number, wait)?.inline_capacity())
    }

    fn set_inline(&self, tx: &Tx, number: u64, inline: &[u8]) -> Result<bool> {
        let fits = self.change_dnode(tx, number, |dnode, _| {
            (dnode.kind != 0).then(|| dnode.set_inline(inline))
        })?;
        fits.ok_or_else(|| self.no_object(number))
    }

    fn new_seed(&self) -> u64 {
        self.rng.lock().next_u64()
    }
}
