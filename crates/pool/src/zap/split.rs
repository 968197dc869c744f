//! Splits of full leaves.

use forebay_base::probe;
use zerocopy::IntoBytes;

use super::access::LeafAccess;
use super::entry::{leaf_id, prefix_mask};
use super::fat::{Fat, leaves_of};
use super::leaf::{LeafDefect, put_leaf};
use super::store::{LeafLookup, LeafStore};
use super::{OpStep, corrupt};
use crate::Result;
use crate::format::{ZAP_LEAF_BYTES, ZapBlock};

impl Fat {
    /// Splits the leaf of a hash. The leaf is open in this transaction.
    #[cold]
    #[inline(never)]
    pub(super) fn split<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        depth: u8,
    ) -> Result<OpStep<(), S::Ticket>> {
        let store = access.store;
        // On the stack: an allocation would fault in fresh pages under the directory's lock.
        let mut both = [0; 2 * ZAP_LEAF_BYTES];
        let (low, high) = both.split_at_mut(ZAP_LEAF_BYTES);
        let halves = self.edit(access, tx, hash, |leaf| leaf.halves(low, high))?;
        if let OpStep::NotResident(ticket) = halves {
            return Ok(OpStep::NotResident(ticket));
        }
        let low_id = leaf_id(hash, depth);
        let high_id = low_id | 1 << depth;
        if let Some(filter) = access.filter_opening(self.filter_seed(), high_id)
            && let LeafLookup::NotResident(ticket) =
                store.open_filter(tx, high_id, filter, access.fetched)?
        {
            return Ok(OpStep::NotResident(ticket));
        }
        self.move_leaves(store, tx, depth, depth + 1)?;
        let high_leaf = ZapBlock::Leaf(high_id);
        let created =
            store.new_leaf(tx, high_leaf, |bytes| put_leaf(bytes, high)).and_then(|put| {
                let put = put.map_err(|defect| corrupt(store, high_leaf, defect));
                let both = put.and_then(|()| self.rewrite(access, tx, low_id, low));
                both.or_else(|error| store.free_leaf(tx, high_leaf).and(Err(error)))
            });
        if let Err(error) = created {
            self.move_leaves(store, tx, depth + 1, depth)?;
            return Err(error);
        }
        probe!(leaf_split, low_id, depth);
        let prefix = hash & prefix_mask(depth);
        self.table.set(prefix, depth + 1);
        self.table.set(prefix | 1 << (31 - u32::from(depth)), depth + 1);
        Ok(OpStep::Done(()))
    }

    /// Replaces the content of a leaf that is open in this transaction.
    pub(super) fn rewrite<S: LeafStore>(
        &self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        id: u64,
        leaf: &[u8],
    ) -> Result<()> {
        let store = access.store;
        let id = ZapBlock::Leaf(id);
        // The leaf is open, and its filter block too, or its filter is void.
        match store.with_leaf_mut(tx, id, None, access.fetched, |bytes| put_leaf(bytes, leaf))? {
            LeafLookup::Resident(Ok(())) => Ok(()),
            LeafLookup::Resident(Err(defect)) => Err(corrupt(store, id, defect)),
            LeafLookup::Hole | LeafLookup::NotResident(_) => {
                Err(corrupt(store, id, LeafDefect("it disappeared during a change")))
            }
        }
    }

    /// Replaces one leaf of depth `from` by two of depth `to` in the counts, or two by one, and
    /// updates the depth of the directory.
    pub(super) fn move_leaves<S: LeafStore>(
        &mut self,
        store: &S,
        tx: &S::Tx,
        from: u8,
        to: u8,
    ) -> Result<()> {
        let (less, more) = if from < to { (1, 2) } else { (2, 1) };
        let mut header = self.header;
        let leaves_at = &mut header.leaves_at;
        let left = leaves_at[usize::from(from)].get().saturating_sub(less);
        leaves_at[usize::from(from)] = left.into();
        leaves_at[usize::from(to)] += more;
        header.depth = leaves_at.iter().rposition(|leaves| leaves.get() > 0).unwrap_or(0) as u8;
        if leaves_of(&header) >= store.aided_leaves() {
            header.aided = 1;
        }
        store.set_inline(tx, header.as_bytes())?;
        if header.depth != self.header.depth {
            self.table.resize(header.depth);
        }
        let becomes_large = header.aided > self.header.aided;
        self.header = header;
        if becomes_large {
            self.begin_first_filters();
        }
        self.resize_share();
        Ok(())
    }
}
