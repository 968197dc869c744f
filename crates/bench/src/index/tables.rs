//! R4's fixed table, and hashbrown under one lock or many.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::RwLock;

use forebay_base::sync::Mutex;

use hashbrown::HashMap;

use super::Table;
use crate::keys::scramble;

/// Memory per chain of R4's table, in bytes.
const BYTES_PER_CHAIN: u64 = 64 << 10;
const LOCKS: usize = 256;
const POINTER_BYTES: u64 = 8;

struct Node {
    key: u64,
    slot: u64,
    next: Option<Box<Node>>,
}

/// R4's table: one chain per 64 KiB of memory. Chains go through the headers, so a block costs the
/// index one pointer besides its share of the table.
pub(crate) struct FixedChains {
    groups: Vec<Mutex<Vec<Option<Box<Node>>>>>,
    chains: u64,
    entries: u64,
}

impl FixedChains {
    /// R4's table on a machine with this much memory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let chains = (memory_bytes / BYTES_PER_CHAIN).next_power_of_two().max(LOCKS as u64);
        let group = || (0..chains as usize / LOCKS).map(|_| None).collect();
        let groups = (0..LOCKS).map(|_| Mutex::named("bench fixed chains", group())).collect();
        Self { groups, chains, entries: 0 }
    }

    fn slot(&self, key: u64) -> (usize, usize) {
        let chain = scramble(key) & (self.chains - 1);
        (chain as usize % LOCKS, chain as usize / LOCKS)
    }
}

impl Table for FixedChains {
    fn insert(&mut self, key: u64, slot: u64) {
        let (group, chain) = self.slot(key);
        let mut chains = self.groups[group].lock();
        let next = chains[chain].take();
        chains[chain] = Some(Box::new(Node { key, slot, next }));
        self.entries += 1;
    }

    fn lookup(&self, key: u64) -> Option<u64> {
        let (group, chain) = self.slot(key);
        let chains = self.groups[group].lock();
        let mut at = chains[chain].as_deref();
        while let Some(node) = at {
            if node.key == key {
                return Some(node.slot);
            }
            at = node.next.as_deref();
        }
        None
    }

    fn bytes(&self) -> u64 {
        (self.chains + self.entries) * POINTER_BYTES
    }

    fn longest_chain(&self) -> Option<u64> {
        let mut longest = 0;
        for group in &self.groups {
            for chain in group.lock().iter() {
                let nodes = std::iter::successors(chain.as_deref(), |n| n.next.as_deref());
                longest = longest.max(nodes.count() as u64);
            }
        }
        Some(longest)
    }
}

impl Drop for FixedChains {
    fn drop(&mut self) {
        // Node by node, since dropping a chain at once would recurse.
        for group in &mut self.groups {
            for chain in group.get_mut() {
                let mut at = chain.take();
                while let Some(mut node) = at {
                    at = node.next.take();
                }
            }
        }
    }
}

/// A hash without a random seed, so that a table grows at the same insert in every repetition.
#[derive(Default)]
pub(crate) struct FixedHash(u64);

impl Hasher for FixedHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = scramble(self.0 ^ n);
    }
}

type Map = HashMap<u64, u64, BuildHasherDefault<FixedHash>>;

/// Sharded hashbrown maps under reader-writer locks. With one shard, growth is one stall.
pub(crate) struct HashTables(Vec<RwLock<Map>>);

impl HashTables {
    /// Empty maps.
    pub(crate) fn new(shards: usize) -> Self {
        let shard = || RwLock::new(Map::default());
        Self((0..shards).map(|_| shard()).collect())
    }

    fn shard(&self, key: u64) -> &RwLock<Map> {
        &self.0[(scramble(key) >> 40) as usize % self.0.len()]
    }
}

impl Table for HashTables {
    fn insert(&mut self, key: u64, slot: u64) {
        if let Ok(mut shard) = self.shard(key).write() {
            shard.insert(key, slot);
        }
    }

    fn lookup(&self, key: u64) -> Option<u64> {
        self.shard(key).read().ok()?.get(&key).copied()
    }

    fn bytes(&self) -> u64 {
        let bytes = |s: &RwLock<Map>| s.read().map_or(0, |m| m.allocation_size());
        self.0.iter().map(|shard| bytes(shard) as u64).sum()
    }

    fn longest_chain(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds_what_it_holds(table: &mut dyn Table) {
        for key in 0..5000 {
            table.insert(key * 3, key);
        }
        for key in 0..15_000 {
            let expected = (key % 3 == 0).then_some(key / 3);
            assert_eq!(table.lookup(key), expected, "key {key}");
        }
        assert!(table.bytes() >= 5000 * POINTER_BYTES);
    }

    #[test]
    fn tables_find_what_they_hold() {
        let mut chains = FixedChains::new(64 << 20);
        finds_what_it_holds(&mut chains);
        assert_eq!(chains.bytes(), (1024 + 5000) * 8);
        assert!(chains.longest_chain() >= Some(5));
        finds_what_it_holds(&mut HashTables::new(1));
        finds_what_it_holds(&mut HashTables::new(64));
    }
}
