//! A shadow cache: the policy under one rule, on the keys of sampled blocks, without values.
//!
//! What it does with a block is what the evictor does with one (`evict.rs`, `contest.rs`), one at a time and in
//! the order of one list. Keys are numbers of slots, which all shadows of a class share.

use super::Slots;
use crate::frequency::{Frequency, TICKS};
use crate::index::line::Slot;
use crate::policy::{FEWEST_GHOSTS, FLOW, Rule, flows, spare, ticks};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unknown,
    Mru,
    Mfu,
    Ghost,
}

#[derive(Clone, Copy, Default)]
struct Node {
    colder: u32,
    warmer: u32,
    frequency: Frequency,
    place: Place,
    marked: bool,
}

#[derive(Clone, Copy)]
struct Chain {
    coldest: u32,
    warmest: u32,
    bytes: u64,
    blocks: u64,
}

impl Chain {
    const EMPTY: Self = Self { coldest: NONE, warmest: NONE, bytes: 0, blocks: 0 };
}

/// What a ghost's slot keeps of a frequency.
pub(super) fn remembered(frequency: Frequency, now: u32) -> Frequency {
    Slot::EMPTY.with_uses(frequency, now).ghost_uses(now)
}

pub(super) struct Mini {
    rule: Rule,
    nodes: Vec<Node>,
    /// By `Place`, less one.
    chains: [Chain; 3],
    /// The tick of now.
    now: u32,
    /// Weight of uses in this tick, times `TICKS`.
    used: u64,
    /// Whether blocks go over from mru to mfu.
    flowing: bool,
    /// What it has forgotten since it was last asked.
    forgotten: Vec<u32>,
}

impl Mini {
    pub(super) fn new(rule: Rule) -> Self {
        Self {
            rule,
            nodes: Vec::new(),
            chains: [Chain::EMPTY; 3],
            now: 0,
            used: 0,
            flowing: false,
            forgotten: Vec::new(),
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.chain(Place::Mru).blocks + self.chain(Place::Mfu).blocks
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.chain(Place::Mru).bytes + self.chain(Place::Mfu).bytes
    }

    pub(super) fn knows(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|node| node.place != Place::Unknown)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.nodes.capacity() * size_of::<Node>() + self.forgotten.capacity() * size_of::<u32>())
            as u64
    }

    /// What was forgotten since the last call, each slot once.
    pub(super) fn forgotten(&mut self) -> std::vec::Drain<'_, u32> {
        self.forgotten.drain(..)
    }

    /// An access to a block, in a cache of `room` bytes. True if it hits.
    pub(super) fn access(&mut self, slot: u32, room: u64, slots: &Slots) -> bool {
        let n = slot as usize;
        if n >= self.nodes.len() {
            self.nodes.resize(n + 1, Node::default());
        }
        if matches!(self.nodes[n].place, Place::Mru | Place::Mfu) {
            self.nodes[n].marked = true;
            return true;
        }
        let weight = u64::from(slots.weight(slot));
        if weight > room {
            return false;
        }
        let ghost = self.nodes[n].place == Place::Ghost;
        if ghost {
            self.unlink(slot, slots);
        }
        if !ghost {
            self.nodes[n].frequency = Frequency::default();
        }
        self.count_use(slot, room, slots);
        self.make_room(weight, room, slots);
        self.nodes[n].marked = false;
        self.push(slot, Place::Mru, slots);
        self.trim_ghosts(room, slots);
        false
    }

    /// Forgets a block, wherever it is.
    pub(super) fn forget(&mut self, slot: u32, slots: &Slots) {
        if self.knows(slot) {
            self.unlink(slot, slots);
            self.forgotten.push(slot);
        }
    }

    fn make_room(&mut self, weight: u64, room: u64, slots: &Slots) {
        let mut flowed = 0;
        while self.resident_bytes() + weight > room {
            let (mru, mfu) = (self.chain(Place::Mru), self.chain(Place::Mfu));
            let meant = self.rule.share(room);
            if mfu.blocks > 0 && !self.rule.takes_from_mru(mru.bytes, room) {
                self.evict_unmarked(Place::Mfu, room, slots);
                continue;
            }
            if !self.rule.contest {
                self.evict_unmarked(Place::Mru, room, slots);
                continue;
            }
            let newcomer = mru.coldest;
            self.unmark(newcomer, room, slots);
            self.flowing = flows(self.flowing, mru.bytes, meant, room);
            let fits = u64::from(slots.weight(newcomer)) <= spare(mru.bytes, meant);
            if flowed < FLOW && self.flowing && fits {
                flowed += 1;
                self.relink(newcomer, Place::Mfu, slots);
                continue;
            }
            flowed = 0;
            self.contest(newcomer, room, slots);
        }
    }

    /// One of the newcomer and a block of mfu goes.
    fn contest(&mut self, newcomer: u32, room: u64, slots: &Slots) {
        let uses = self.uses(newcomer);
        if uses.count(self.now) <= 1 || self.chain(Place::Mfu).blocks == 0 {
            return self.bury(newcomer, slots);
        }
        let mut rival = self.chain(Place::Mfu).coldest;
        if self.unmark(rival, room, slots) {
            self.relink(rival, Place::Mfu, slots);
            rival = self.chain(Place::Mfu).coldest;
            self.unmark(rival, room, slots);
        }
        if self.rule.prefers(uses, self.uses(rival), self.now) {
            self.bury(rival, slots);
            self.relink(newcomer, Place::Mfu, slots);
        } else {
            self.bury(newcomer, slots);
            self.relink(rival, Place::Mfu, slots);
        }
    }

    /// The coldest block that is not marked goes; those that are get a second chance.
    fn evict_unmarked(&mut self, place: Place, room: u64, slots: &Slots) {
        loop {
            let coldest = self.chain(place).coldest;
            if !self.unmark(coldest, room, slots) {
                return self.bury(coldest, slots);
            }
            self.relink(coldest, place, slots);
        }
    }

    /// Takes the mark off, and counts it. True if there was one.
    fn unmark(&mut self, slot: u32, room: u64, slots: &Slots) -> bool {
        let marked = std::mem::take(&mut self.nodes[slot as usize].marked);
        if marked {
            self.count_use(slot, room, slots);
        }
        marked
    }

    fn uses(&self, slot: u32) -> Frequency {
        self.nodes[slot as usize].frequency
    }

    fn count_use(&mut self, slot: u32, room: u64, slots: &Slots) {
        let (passed, left) =
            ticks(self.used + u64::from(slots.weight(slot)) * u64::from(TICKS), room);
        (self.used, self.now) = (left, self.now.wrapping_add(passed));
        let node = &mut self.nodes[slot as usize];
        node.frequency = node.frequency.used(self.now);
    }

    fn trim_ghosts(&mut self, room: u64, slots: &Slots) {
        loop {
            let ghosts = self.chain(Place::Ghost);
            if ghosts.blocks <= FEWEST_GHOSTS || ghosts.bytes <= 2 * room {
                return;
            }
            self.forget(ghosts.coldest, slots);
        }
    }

    fn chain(&self, place: Place) -> Chain {
        self.chains[place as usize - 1]
    }

    fn bury(&mut self, slot: u32, slots: &Slots) {
        self.relink(slot, Place::Ghost, slots);
        let node = &mut self.nodes[slot as usize];
        node.frequency = remembered(node.frequency, self.now);
    }

    fn relink(&mut self, slot: u32, place: Place, slots: &Slots) {
        self.unlink(slot, slots);
        self.push(slot, place, slots);
    }

    fn push(&mut self, slot: u32, place: Place, slots: &Slots) {
        let chain = &mut self.chains[place as usize - 1];
        let before = std::mem::replace(&mut chain.warmest, slot);
        chain.bytes += u64::from(slots.weight(slot));
        chain.blocks += 1;
        if before == NONE {
            chain.coldest = slot;
        } else {
            self.nodes[before as usize].warmer = slot;
        }
        let node = &mut self.nodes[slot as usize];
        (node.place, node.colder, node.warmer) = (place, before, NONE);
    }

    fn unlink(&mut self, slot: u32, slots: &Slots) {
        let Node { place, colder, warmer, .. } = self.nodes[slot as usize];
        let chain = &mut self.chains[place as usize - 1];
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
        self.nodes[slot as usize].place = Place::Unknown;
    }

    /// Panics if sums, links and places contradict each other. Returns how many blocks it knows.
    #[cfg(test)]
    pub(super) fn audit(&self, slots: &Slots) -> usize {
        let mut known = 0;
        for place in [Place::Mru, Place::Mfu, Place::Ghost] {
            let chain = self.chain(place);
            let (mut at, mut before, mut bytes, mut blocks) = (chain.coldest, NONE, 0, 0);
            while at != NONE {
                let node = &self.nodes[at as usize];
                assert_eq!((node.place, node.colder), (place, before));
                bytes += u64::from(slots.weight(at));
                blocks += 1;
                (before, at) = (at, node.warmer);
            }
            assert_eq!((before, bytes, blocks), (chain.warmest, chain.bytes, chain.blocks));
            known += blocks as usize;
        }
        assert_eq!(known, self.nodes.iter().filter(|n| n.place != Place::Unknown).count());
        known
    }
}
