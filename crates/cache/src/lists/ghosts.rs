//! Ghosts: the memory of blocks that were evicted.
//!
//! A ghost is a slot in the index and an entry of 16 bytes in a ring, 24 to 29 bytes in all. The
//! slot names the list and the position in its ring; the entry has the hash, by which the slot is found
//! when the ghost's time is over. Only whoever holds the reclaim lock pushes and trims ghosts;
//! an insert that meets one (a *ghost hit*) kills it, in any thread.

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use super::ring::Ring;
use super::sublist_of;
use crate::attributes::Class;
use crate::index::line::GHOST_POSITION;
use crate::key::OwnerId;

/// The ghost lists, one a state and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GhostList {
    pub(crate) frequent: bool,
    pub(crate) class: Class,
}

impl GhostList {
    pub(crate) fn number(self) -> usize {
        usize::from(self.frequent) * 2 + self.class as usize
    }
    pub(crate) fn from_number(number: usize) -> Self {
        Self { frequent: number >= 2, class: Class::ALL[number % 2] }
    }
}

/// What is remembered of a block. A weight of zero marks an entry that was hit.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub(crate) struct Ghost {
    pub(crate) hash: u64,
    pub(crate) weight: u32,
    owner: u16,
    _unused: u16,
}

const _: () = assert!(size_of::<Ghost>() == 16);

impl Ghost {
    pub(crate) fn new(hash: u64, weight: u32, owner: OwnerId) -> Self {
        Self { hash, weight: weight.max(1), owner: owner.0, _unused: 0 }
    }
    pub(crate) fn is_live(&self) -> bool {
        self.weight > 0
    }
    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId(self.owner)
    }
}

/// The ghosts of one state and class.
pub(crate) struct Ghosts {
    sublists: Box<[CachePadded<Mutex<Ring<Ghost>>>]>,
    bytes: AtomicU64,
    live: AtomicU64,
}

impl Ghosts {
    pub(crate) fn new(sublists: usize) -> Self {
        let ring = || CachePadded::new(Mutex::named("ghost-sublist", Ring::new()));
        Self {
            sublists: (0..sublists).map(|_| ring()).collect(),
            bytes: AtomicU64::new(0),
            live: AtomicU64::new(0),
        }
    }

    fn ring_of(&self, hash: u64) -> &Mutex<Ring<Ghost>> {
        &self.sublists[sublist_of(hash, self.sublists.len())]
    }

    /// Remembers blocks of one sublist; their positions are appended to `positions`. The holder of
    /// the reclaim lock only.
    pub(crate) fn push_all(&self, ghosts: &[Ghost], positions: &mut Vec<u64>) {
        let Some(first) = ghosts.first() else { return };
        let bytes: u64 = ghosts.iter().map(|g| u64::from(g.weight)).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.live.fetch_add(ghosts.len() as u64, Ordering::Relaxed);
        let mut ring = self.ring_of(first.hash).lock();
        positions.extend(ghosts.iter().map(|ghost| ring.push(*ghost)));
    }

    /// Forgets a ghost that an insert has met, or whose slot was never made. Returns its weight, or
    /// `None` if its time was over already.
    pub(crate) fn kill(&self, hash: u64, short_position: u64) -> Option<u32> {
        let mut ring = self.ring_of(hash).lock();
        let position = ring.expand(short_position, GHOST_POSITION + 1);
        let ghost = ring.get_mut(position)?;
        if ghost.hash != hash || !ghost.is_live() {
            return None;
        }
        let weight = std::mem::take(&mut ghost.weight);
        self.bytes.fetch_sub(u64::from(weight), Ordering::Relaxed);
        self.live.fetch_sub(1, Ordering::Relaxed);
        Some(weight)
    }

    /// Takes up to `most` ghosts off the cold end of one sublist, live ones only, each with its
    /// position; they are no longer counted. The holder of the reclaim lock only.
    pub(crate) fn pop(&self, sublist: usize, most: usize, out: &mut Vec<(u64, Ghost)>) {
        let start = out.len();
        let mut ring = self.sublists[sublist].lock();
        while out.len() - start < most {
            match ring.pop() {
                Some((position, ghost)) if ghost.is_live() => out.push((position, ghost)),
                Some(_) => {}
                None => break,
            }
        }
        drop(ring);
        let bytes: u64 = out[start..].iter().map(|(_, g)| u64::from(g.weight)).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.live.fetch_sub((out.len() - start) as u64, Ordering::Relaxed);
    }

    /// Appends the ghosts for which `wanted` says yes, without taking them.
    pub(crate) fn collect(&self, wanted: impl Fn(&Ghost) -> bool, out: &mut Vec<(u64, Ghost)>) {
        for sublist in &self.sublists {
            let ring = sublist.lock();
            let all = (ring.tail()..ring.next_position()).filter_map(|p| Some((p, ring.get(p)?)));
            out.extend(all.filter(|(_, ghost)| ghost.is_live() && wanted(ghost)));
        }
    }

    pub(crate) fn sublists(&self) -> usize {
        self.sublists.len()
    }

    /// Weights of the blocks remembered.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Whether entries that were hit outnumber the live ones of a sublist, which bounds its memory.
    pub(crate) fn is_sparse(&self, sublist: usize) -> bool {
        let ring = self.sublists[sublist].lock();
        ring.len() > 1024 && ring.len() > 2 * self.count() / self.sublists.len() as u64 + 1024
    }

    /// Bytes of memory held by the rings.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.sublists.iter().map(|s| s.lock().bytes()).sum()
    }

    pub(crate) fn trim(&self) {
        self.sublists.iter().for_each(|s| s.lock().trim());
    }
}
