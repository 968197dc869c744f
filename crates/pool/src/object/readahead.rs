//! Issues the plans of read-ahead for an object.

use std::ops::Range;

use crate::readahead::Plan;
use crate::wait::{Wait, is_would_block};

use super::node::{Node, NodeState};
use super::tree::POINTERS;

impl Node {
    /// Reports a read of blocks, and returns the blocks to read ahead.
    pub(super) fn note_read(&self, state: &mut NodeState, blocks: &Range<u64>) -> Option<Plan> {
        let record_bytes = self.record_bytes() as u64;
        let end = (state.size + record_bytes - 1) >> self.record_shift;
        state.readahead.on_read(&self.io.ahead, blocks, end, record_bytes)
    }

    /// Starts to read the blocks of a plan. May wait for an indirect block.
    pub(super) fn read_ahead(&self, plan: Plan, wait: Wait) {
        let _reading = self.io.store.readers().enter();
        // The pointers for the next plans come from a device while this one is being read.
        for block in plan.pointers_ahead(POINTERS as u64) {
            if self.locate(block).is_none() {
                self.prefetch_pointers(block);
            }
        }
        // Wait for at most one missing indirect block per plan. The reader needs it soon in any
        // case. Others are used if they are in the cache.
        let mut wait = wait;
        for (done, block) in plan.blocks().enumerate() {
            let mut found = self.locate(block);
            if found.is_none() {
                let pinned = self.pin(block, std::mem::replace(&mut wait, Wait::Refused));
                if is_would_block(&pinned) {
                    // The read of the indirect block has started. The next read of the object
                    // issues the rest of the plan.
                    self.lock().readahead.postpone(plan.after(done));
                    return;
                }
                found = pinned.is_ok().then(|| self.locate(block)).flatten();
            }
            match found {
                Some(Some(ptr)) => {
                    self.prefetch(block, &ptr);
                }
                Some(None) => {}
                None => return,
            }
        }
    }
}
