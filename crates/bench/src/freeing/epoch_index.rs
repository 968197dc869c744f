//! A hash table with lock-free lookups, whose blocks are freed when no reader can use them any more
//! (epochs, like RCU in user space): R3's third row.
//!
//! A bucket is a chain of nodes. A lock per group of buckets protects changes. Lookups walk the
//! chain and use the block under an epoch guard. An unlinked node keeps its `next`, so readers on
//! it can continue, and is retired with its block.
//!
//! The number of buckets is fixed at one per expected block, which favours this index.

use crossbeam_epoch::{self as epoch, Atomic, Guard, Owned, Shared};
use forebay_base::sync::{Mutex, MutexGuard};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Block, Index, Verdict, judge};
use crate::keys::scramble;

const LOCKS: usize = 256;

struct Node {
    key: u64,
    block: Block,
    next: Atomic<Node>,
}

#[repr(align(128))]
struct Lock(Mutex<()>);

/// The table.
pub(crate) struct EpochIndex {
    buckets: Box<[Atomic<Node>]>,
    locks: Box<[Lock]>,
}

impl EpochIndex {
    fn bucket(&self, key: u64) -> usize {
        scramble(key) as usize & (self.buckets.len() - 1)
    }

    fn lock(&self, bucket: usize) -> MutexGuard<'_, ()> {
        self.locks[bucket % LOCKS].0.lock()
    }

    /// The link that points to a key's node, and the node.
    fn find<'g>(
        &'g self,
        key: u64,
        guard: &'g Guard,
    ) -> Option<(&'g Atomic<Node>, Shared<'g, Node>)> {
        let mut link = &self.buckets[self.bucket(key)];
        loop {
            let shared = link.load(Acquire, guard);
            // SAFETY: nodes are freed through `defer_destroy` only after they were unlinked,
            // and the guard was pinned before the link was read: the node outlives it.
            let node = unsafe { shared.as_ref() }?;
            if node.key == key {
                return Some((link, shared));
            }
            link = &node.next;
        }
    }
}

impl Index for EpochIndex {
    fn with_capacity(blocks: usize) -> Self {
        let buckets = blocks.max(LOCKS).next_power_of_two();
        Self {
            buckets: (0..buckets).map(|_| Atomic::null()).collect(),
            locks: (0..LOCKS).map(|_| Lock(Mutex::named("freeing epoch", ()))).collect(),
        }
    }

    fn touch(&self, key: u64) -> Option<u64> {
        let guard = epoch::pin();
        let (_, node) = self.find(key, &guard)?;
        // SAFETY: the guard was pinned before the node was found, and is held until the block was
        // used.
        Some(unsafe { node.deref() }.block.touch())
    }

    fn insert(&self, key: u64, block: Block) -> bool {
        let guard = epoch::pin();
        let bucket = self.bucket(key);
        let _lock = self.lock(bucket);
        if self.find(key, &guard).is_some() {
            return false;
        }
        let head = self.buckets[bucket].load(Relaxed, &guard);
        let node = Owned::new(Node { key, block, next: Atomic::from(head) });
        self.buckets[bucket].store(node, Release);
        true
    }

    fn evict(&self, key: u64) -> Verdict {
        let guard = epoch::pin();
        let _lock = self.lock(self.bucket(key));
        let Some((link, shared)) = self.find(key, &guard) else { return Verdict::Gone };
        // SAFETY: the guard was pinned before the node was found, and is held to the end.
        let node = unsafe { shared.deref() };
        let verdict = judge(&node.block);
        if verdict != Verdict::Used {
            link.store(node.next.load(Relaxed, &guard), Release);
            // SAFETY: the lock excludes other unlinks, the node was just unlinked from its only
            // link, and it is destroyed once. Earlier readers hold guards.
            unsafe { guard.defer_destroy(shared) };
        }
        verdict
    }
}

impl Drop for EpochIndex {
    fn drop(&mut self) {
        // SAFETY: `&mut self` excludes readers.
        let guard = unsafe { epoch::unprotected() };
        for bucket in &self.buckets {
            let mut shared = bucket.swap(Shared::null(), Relaxed, guard);
            while !shared.is_null() {
                // SAFETY: no other reference to the chain exists, and each node on it is owned
                // once.
                let node = unsafe { shared.into_owned() };
                shared = node.next.load(Relaxed, guard);
            }
        }
    }
}
