//! Reports accesses to the trace of the pool, if one is open.
//!
//! Callers check [`Store::is_traced`] first, which costs a relaxed load.

use forebay_base::sync::Arc;
use forebay_cache::{Attributes, Class};

use super::Store;
use crate::block_cache::BlockRef;
use crate::block_label::BlockLabel;
use crate::error::{ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::trace::recorder::BlockTrace;
use crate::trace::{TraceOutcome, TraceRecord};
use crate::wait::Wait;

impl Store {
    /// The trace of the pool.
    pub(crate) fn trace(&self) -> &Arc<BlockTrace> {
        &self.trace
    }

    /// Whether accesses are to be reported.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_on()
    }

    /// Reports an access to a block of `bytes` bytes. `attributes` has its label.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_access(
        &self,
        attributes: Attributes,
        (block, bytes): (u64, usize),
        outcome: TraceOutcome,
    ) {
        self.trace.record(self.trace_record(attributes, (block, bytes), outcome), false);
    }

    /// Reports a miss whose caller does not wait, but will ask again.
    #[cold]
    pub(crate) fn trace_pending(&self, attributes: Attributes, block: u64, bp: &BlockPtrPhys) {
        let bytes = bp.logical_bytes.get() as usize;
        let record = self.trace_record(attributes, (block, bytes), TraceOutcome::Miss);
        self.trace.record(record, true);
    }

    /// Reports that an access, which was reported, will be repeated.
    #[cold]
    pub(crate) fn trace_repeat(&self, attributes: Attributes, block: u64) {
        self.trace.will_repeat(&self.trace_record(attributes, (block, 0), TraceOutcome::Hit));
    }

    /// Reports the end of a read of a block that was not in memory.
    #[cold]
    pub(crate) fn trace_miss(
        &self,
        attributes: Attributes,
        (block, bp): (u64, &BlockPtrPhys),
        read: &Result<BlockRef>,
    ) {
        match read {
            Ok(content) => {
                self.trace_access(attributes, (block, content.len()), TraceOutcome::Miss);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.trace_pending(attributes, block, bp);
            }
            Err(_) => {}
        }
    }

    /// As [`read_with`](Self::read_with), and reports the access to the block with number `block`.
    pub(crate) fn read_traced(
        &self,
        bp: &BlockPtrPhys,
        attributes: Attributes,
        block: u64,
        wait: Wait,
    ) -> Result<BlockRef> {
        if !self.is_traced() {
            return self.read_with(bp, attributes, wait);
        }
        let is_hit = self.cache.cache().contains(&self.key(bp));
        let read = self.read_with(bp, attributes, wait);
        match &read {
            Ok(content) if is_hit => {
                self.trace_access(attributes, (block, content.len()), TraceOutcome::Hit);
            }
            _ => self.trace_miss(attributes, (block, bp), &read),
        }
        read
    }

    fn trace_record(
        &self,
        attributes: Attributes,
        (block, bytes): (u64, usize),
        outcome: TraceOutcome,
    ) -> TraceRecord {
        let label = BlockLabel::of(attributes.label);
        let is_metadata = attributes.class == Class::Metadata;
        TraceRecord::new(self.owner.get(), label, block, (bytes, is_metadata), outcome)
    }
}
