//! The baselines as subjects: an ARC under one list lock or many (R1), and textbook policies.

use std::sync::Mutex;

use forebay_sim::cache::policies::Policy;
use forebay_sim::cache::policies::arc::Arc;
use forebay_sim::cache::policies::lru::Lru;

use super::{EvictPlan, EvictSubject, Inserter, Loaded, ReadBlocks, ReadSubject, Reader, touch};
use crate::baseline::LockedArc;
use crate::blocks::Handle;

/// R1's default: one sublist per CPU, and at least this many.
const MIN_SUBLISTS: usize = 4;

/// Number of sublists of the baseline "after".
pub(crate) fn sublists(cpus: usize) -> usize {
    cpus.max(MIN_SUBLISTS)
}

impl<H: Handle> Reader for LockedArc<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let handle = self.get(key)?;
        Some(touch(&handle))
    }
}

/// An ARC baseline that holds all of `handles`.
pub(crate) fn filled<H: Handle>(handles: &[H], sublists: usize) -> LockedArc<H> {
    let arc = LockedArc::new(handles.len() as u64, sublists);
    for (key, handle) in handles.iter().enumerate() {
        arc.insert(key as u64, handle.clone());
    }
    arc
}

pub(super) fn readers(blocks: &ReadBlocks, cpus: usize) -> Vec<ReadSubject> {
    let many = sublists(cpus);
    let after = format!("{many} sublists, huge pages");
    vec![
        ReadSubject::new("arc-1-lock", "1 sublist, huge pages", filled(&blocks.spans, 1)),
        ReadSubject::new("arc-n-locks", after, filled(&blocks.spans, many)),
    ]
}

impl<V: Loaded> Inserter for LockedArc<V> {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        let found = self.get(key);
        match &found {
            Some(value) => touch(value),
            None => self.insert(key, V::load(key)),
        }
        found.is_some()
    }

    fn resident(&self) -> u64 {
        LockedArc::resident(self)
    }
}

/// A textbook policy of the simulator. It caches keys only and runs on one thread.
struct Textbook<P>(Mutex<P>);

impl<P: Policy + Send + 'static> Inserter for Textbook<P> {
    fn get_or_insert(&self, key: u64) -> bool {
        self.0.lock().is_ok_and(|mut policy| policy.access(key as u32))
    }

    fn resident(&self) -> u64 {
        self.0.lock().map_or(0, |policy| policy.resident() as u64)
    }
}

/// A textbook policy as a subject. A `KeySpace` has fewer than 2^32 keys, as the simulator
/// requires.
fn textbook<P: Policy + Send + 'static>(name: &'static str) -> EvictSubject {
    let build = |plan: &EvictPlan| {
        let keys = plan.keys.key_count() as usize;
        Textbook(Mutex::new(P::new(plan.capacity as usize, keys)))
    };
    EvictSubject::single_threaded(name, build)
}

pub(super) fn inserters<V: Loaded>(cpus: usize) -> Vec<EvictSubject> {
    let many = sublists(cpus);
    let after = format!("{many} sublists");
    vec![
        EvictSubject::new("arc-1-lock", "1 sublist", |c| LockedArc::<V>::new(c, 1)),
        EvictSubject::new("arc-n-locks", after, move |c| LockedArc::<V>::new(c, many)),
        textbook::<Arc>("textbook-arc"),
        textbook::<Lru>("textbook-lru"),
    ]
}
