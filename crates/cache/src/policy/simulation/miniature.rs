//! A miniature: the policy under one rule, applied to the keys of sampled blocks, without values.
//!
//! It handles a block as the evictor does (`evict`), one block at a time and in the order of a
//! single list. Keys are slot numbers that all miniatures of a class share.
//!
//! Locking: `simulations`.

use super::slots::{SlotNumber, Slots};
use crate::frequency::{Frequency, TICKS};
use crate::index::line::Slot;
use crate::policy::admission::{MOVES_PER_CANDIDATE, Rule, rebalances, surplus};
use crate::policy::ticks;

const NONE: SlotNumber = SlotNumber::MAX;
/// Forgotten slots for which a miniature keeps memory.
const FORGOTTEN_KEPT: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListId {
    #[default]
    Unknown,
    Mru,
    Mfu,
    Ghost,
}

#[derive(Clone, Copy, Default)]
struct Node {
    colder: SlotNumber,
    warmer: SlotNumber,
    frequency: Frequency,
    list: ListId,
    marked: bool,
}

#[derive(Clone, Copy)]
struct Chain {
    coldest: SlotNumber,
    warmest: SlotNumber,
    bytes: u64,
    blocks: u64,
}

impl Chain {
    const EMPTY: Self = Self { coldest: NONE, warmest: NONE, bytes: 0, blocks: 0 };
}

/// The frequency as a ghost's slot would store it.
pub(super) fn remembered(frequency: Frequency, now: u32) -> Frequency {
    Slot::EMPTY.with_uses(frequency, now).ghost_uses(now)
}

pub(super) struct Miniature {
    rule: Rule,
    /// Ghosts that may always stay.
    min_ghosts: u64,
    nodes: Vec<Node>,
    /// By `ListId`, minus one.
    chains: [Chain; 3],
    /// The current tick.
    now: u32,
    /// Weight of uses in this tick, times `TICKS`.
    used: u64,
    /// Whether blocks move from MRU to MFU without admission.
    rebalancing: bool,
    /// Slots forgotten since the last call of `forgotten`.
    forgotten: Vec<SlotNumber>,
}

impl Miniature {
    pub(super) fn new(rule: Rule, min_ghosts: u64) -> Self {
        Self {
            rule,
            min_ghosts,
            nodes: Vec::new(),
            chains: [Chain::EMPTY; 3],
            now: 0,
            used: 0,
            rebalancing: false,
            forgotten: Vec::new(),
        }
    }

    #[cfg(feature = "insight")]
    pub(super) fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    pub(super) fn blocks(&self) -> u64 {
        self.chain(ListId::Mru).blocks + self.chain(ListId::Mfu).blocks
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.chain(ListId::Mru).bytes + self.chain(ListId::Mfu).bytes
    }

    #[inline]
    pub(super) fn tracks(&self, slot: SlotNumber) -> bool {
        self.nodes.get(slot as usize).is_some_and(|node| node.list != ListId::Unknown)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.nodes.capacity() * size_of::<Node>()
            + self.forgotten.capacity() * size_of::<SlotNumber>()) as u64
    }

    /// Bytes of a miniature with so many slots, at most.
    #[cfg(feature = "insight")]
    pub(super) const fn most_bytes(slots: usize) -> u64 {
        let nodes = slots.next_power_of_two() * size_of::<Node>();
        (nodes + FORGOTTEN_KEPT * size_of::<SlotNumber>()) as u64
    }

    #[inline]
    pub(super) fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// The slots forgotten since the last call, each once.
    pub(super) fn forgotten(&mut self) -> std::vec::Drain<'_, SlotNumber> {
        self.forgotten.drain(..)
    }

    /// Returns the memory of many forgotten slots.
    pub(super) fn shrink_forgotten(&mut self) {
        if self.forgotten.capacity() > FORGOTTEN_KEPT {
            self.forgotten.shrink_to(FORGOTTEN_KEPT);
        }
    }

    /// An access to a block, in a cache of `capacity` bytes. True if it hits.
    pub(super) fn access(&mut self, slot: SlotNumber, capacity: u64, slots: &Slots) -> bool {
        let n = slot as usize;
        if n >= self.nodes.len() {
            // Not as a vector grows, which depends on where it began.
            let slots = (n + 1).next_power_of_two();
            self.nodes.reserve_exact(slots - self.nodes.len());
            self.nodes.resize(slots, Node::default());
        }
        if matches!(self.nodes[n].list, ListId::Mru | ListId::Mfu) {
            self.nodes[n].marked = true;
            return true;
        }
        let weight = u64::from(slots.weight(slot));
        if weight > capacity {
            return false;
        }
        let ghost = self.nodes[n].list == ListId::Ghost;
        if ghost {
            self.unlink(slot, slots);
        }
        if !ghost {
            self.nodes[n].frequency = Frequency::default();
        }
        self.count_use(slot, capacity, slots);
        self.free_capacity(weight, capacity, slots);
        self.nodes[n].marked = false;
        self.push(slot, ListId::Mru, slots);
        self.trim_ghosts(capacity, slots);
        false
    }

    /// Removes a block from its list.
    pub(super) fn forget(&mut self, slot: SlotNumber, slots: &Slots) {
        if self.tracks(slot) {
            self.unlink(slot, slots);
            self.forgotten.push(slot);
        }
    }

    fn free_capacity(&mut self, weight: u64, capacity: u64, slots: &Slots) {
        let mut rebalanced = 0;
        while self.resident_bytes() + weight > capacity {
            let (mru, mfu) = (self.chain(ListId::Mru), self.chain(ListId::Mfu));
            let mru_target = self.rule.share(capacity);
            if mfu.blocks > 0 && !self.rule.takes_from_mru(mru.bytes, capacity) {
                self.evict_unmarked(ListId::Mfu, capacity, slots);
                continue;
            }
            if !self.rule.admission {
                self.evict_unmarked(ListId::Mru, capacity, slots);
                continue;
            }
            let candidate = mru.coldest;
            self.unmark(candidate, capacity, slots);
            self.rebalancing = rebalances(self.rebalancing, mru.bytes, mru_target, capacity);
            let fits = u64::from(slots.weight(candidate)) <= surplus(mru.bytes, mru_target);
            if rebalanced < MOVES_PER_CANDIDATE && self.rebalancing && fits {
                rebalanced += 1;
                self.relink(candidate, ListId::Mfu, slots);
                continue;
            }
            rebalanced = 0;
            self.admit(candidate, capacity, slots);
        }
    }

    /// Compares the candidate with a victim of MFU and demotes one of them.
    fn admit(&mut self, candidate: SlotNumber, capacity: u64, slots: &Slots) {
        let uses = self.uses(candidate);
        if uses.count(self.now) <= 1 || self.chain(ListId::Mfu).blocks == 0 {
            return self.demote(candidate, slots);
        }
        let mut victim = self.chain(ListId::Mfu).coldest;
        if self.unmark(victim, capacity, slots) {
            self.relink(victim, ListId::Mfu, slots);
            victim = self.chain(ListId::Mfu).coldest;
            self.unmark(victim, capacity, slots);
        }
        if self.rule.prefers(uses, self.uses(victim), self.now) {
            self.demote(victim, slots);
            self.relink(candidate, ListId::Mfu, slots);
        } else {
            self.demote(candidate, slots);
            self.relink(victim, ListId::Mfu, slots);
        }
    }

    /// Demotes the coldest unmarked block. Marked ones are requeued.
    fn evict_unmarked(&mut self, list: ListId, capacity: u64, slots: &Slots) {
        loop {
            let coldest = self.chain(list).coldest;
            if !self.unmark(coldest, capacity, slots) {
                return self.demote(coldest, slots);
            }
            self.relink(coldest, list, slots);
        }
    }

    /// Clears the mark and counts it. True if there was one.
    fn unmark(&mut self, slot: SlotNumber, capacity: u64, slots: &Slots) -> bool {
        let marked = std::mem::take(&mut self.nodes[slot as usize].marked);
        if marked {
            slots.note_unmarked(slot);
            self.count_use(slot, capacity, slots);
        }
        marked
    }

    fn uses(&self, slot: SlotNumber) -> Frequency {
        self.nodes[slot as usize].frequency
    }

    fn count_use(&mut self, slot: SlotNumber, capacity: u64, slots: &Slots) {
        let (passed, leftover) =
            ticks(self.used + u64::from(slots.weight(slot)) * u64::from(TICKS), capacity);
        (self.used, self.now) = (leftover, self.now.wrapping_add(passed));
        let node = &mut self.nodes[slot as usize];
        node.frequency = node.frequency.used(self.now);
    }

    fn trim_ghosts(&mut self, capacity: u64, slots: &Slots) {
        loop {
            let ghosts = self.chain(ListId::Ghost);
            if ghosts.blocks <= self.min_ghosts || ghosts.bytes <= 2 * capacity {
                return;
            }
            self.forget(ghosts.coldest, slots);
        }
    }

    fn chain(&self, list: ListId) -> Chain {
        self.chains[list as usize - 1]
    }

    fn demote(&mut self, slot: SlotNumber, slots: &Slots) {
        self.relink(slot, ListId::Ghost, slots);
        let node = &mut self.nodes[slot as usize];
        node.frequency = remembered(node.frequency, self.now);
    }

    fn relink(&mut self, slot: SlotNumber, list: ListId, slots: &Slots) {
        self.unlink(slot, slots);
        self.push(slot, list, slots);
    }

    fn push(&mut self, slot: SlotNumber, list: ListId, slots: &Slots) {
        let chain = &mut self.chains[list as usize - 1];
        let before = std::mem::replace(&mut chain.warmest, slot);
        chain.bytes += u64::from(slots.weight(slot));
        chain.blocks += 1;
        if before == NONE {
            chain.coldest = slot;
        } else {
            self.nodes[before as usize].warmer = slot;
        }
        let node = &mut self.nodes[slot as usize];
        (node.list, node.colder, node.warmer) = (list, before, NONE);
    }

    fn unlink(&mut self, slot: SlotNumber, slots: &Slots) {
        let Node { list, colder, warmer, .. } = self.nodes[slot as usize];
        let chain = &mut self.chains[list as usize - 1];
        chain.bytes -= u64::from(slots.weight(slot));
        chain.blocks -= 1;
        match colder {
            NONE => chain.coldest = warmer,
            colder => self.nodes[colder as usize].warmer = warmer,
        }
        match warmer {
            NONE => chain.warmest = colder,
            warmer => self.nodes[warmer as usize].colder = colder,
        }
        self.nodes[slot as usize].list = ListId::Unknown;
    }

    /// Panics if sums, links and list ids contradict each other. Returns the number of blocks
    /// tracked.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn audit(&self, slots: &Slots) -> usize {
        let mut known = 0;
        for list in [ListId::Mru, ListId::Mfu, ListId::Ghost] {
            let chain = self.chain(list);
            let (mut at, mut before, mut bytes, mut blocks) = (chain.coldest, NONE, 0, 0);
            while at != NONE {
                let node = &self.nodes[at as usize];
                assert_eq!((node.list, node.colder), (list, before));
                bytes += u64::from(slots.weight(at));
                blocks += 1;
                (before, at) = (at, node.warmer);
            }
            assert_eq!((before, bytes, blocks), (chain.warmest, chain.bytes, chain.blocks));
            known += blocks as usize;
        }
        assert_eq!(known, self.nodes.iter().filter(|n| n.list != ListId::Unknown).count());
        known
    }
}
