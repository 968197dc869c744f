//! A device that keeps every block ever written, and a pool that is only its space.

use std::collections::BTreeMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U32, U64};

use crate::format::{BlockKind, BlockPtrPhys, Dva, DvaPhys, SpaceRootPhys};
use crate::space::{DeviceSpan, Space, SpaceRead, SpaceWrite};
use crate::store::Allocate;
use crate::{Error, ErrorKind, Result};

/// Blocks by place: what was written there last.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<BTreeMap<Dva, Vec<u8>>>>);

impl Disk {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::named("test-disk", BTreeMap::new())))
    }

    pub(super) fn places(&self) -> Vec<(Dva, usize)> {
        self.0.lock().iter().map(|(dva, bytes)| (*dva, bytes.len())).collect()
    }

    /// Loses what lies in a range.
    pub(super) fn discard(&self, dva: Dva, bytes: u64) {
        let end = Dva { offset: dva.offset + bytes, ..dva };
        self.0.lock().retain(|at, content| {
            at.device != dva.device || *at >= end || at.offset + content.len() as u64 <= dva.offset
        });
    }

    /// A disk with the same content.
    pub(super) fn fork(&self) -> Self {
        let copy = self.0.lock().clone();
        Self(Arc::new(Mutex::named("test-disk", copy)))
    }

    pub(super) fn change(&self, dva: Dva, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.0.lock().get_mut(&dva).expect("a block is there"));
    }
}

/// Reads, and says whether checksums matter.
pub(super) struct Reader(pub(super) Disk, pub(super) bool);

impl SpaceRead for Reader {
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
        let bad = || Error::new(ErrorKind::Corrupt, format!("cannot read {pointer:?}"));
        let dva = pointer.dvas().next().ok_or_else(bad)?;
        let blocks = self.0.0.lock();
        let content = blocks.get(&dva).ok_or_else(bad)?;
        let sum = xxh3_128(content).to_le_bytes();
        if content.len() != pointer.logical_bytes.get() as usize
            || (self.1 && sum != pointer.checksum)
        {
            return Err(bad());
        }
        Ok(content.clone())
    }
}

pub(super) struct Writer(pub(super) Disk);

impl SpaceWrite for Writer {
    fn write_at(&mut self, places: [DvaPhys; 2], content: &[u8], txg: u64) -> Result<BlockPtrPhys> {
        let pointer = BlockPtrPhys {
            copies: places,
            checksum: xxh3_128(content).to_le_bytes(),
            birth_txg: U64::new(txg),
            logical_bytes: U32::new(content.len() as u32),
            physical_bytes: U32::new(content.len() as u32),
            kind: BlockKind::Space as u8,
            fill: U64::new(1),
            ..BlockPtrPhys::HOLE
        };
        for dva in pointer.dvas() {
            self.0.0.lock().insert(dva, content.to_vec());
        }
        Ok(pointer)
    }
}

/// What the pool used at the end of a txg.
#[derive(Clone)]
pub(super) struct Root {
    pub(super) txg: u64,
    pub(super) phys: SpaceRootPhys,
    pub(super) places: Vec<Dva>,
    pub(super) used: BTreeMap<Dva, u64>,
}

/// A pool whose blocks have no content.
pub(super) struct World {
    pub(super) disk: Disk,
    pub(super) spans: Vec<DeviceSpan>,
    pub(super) sector: u64,
    pub(super) space: Space,
    pub(super) rng: SmallRng,
    pub(super) txg: u64,
    /// Allocated and not freed.
    pub(super) used: BTreeMap<Dva, u64>,
    pub(super) live: Vec<([DvaPhys; 2], u64)>,
    pub(super) roots: Vec<Root>,
}

impl World {
    pub(super) fn new(spans: &[DeviceSpan], sector: u64, seed: u64) -> Self {
        let disk = Disk::new();
        let space = Space::create(spans, sector, Box::new(Reader(disk.clone(), true)));
        Self {
            space: space.expect("the spans are sound"),
            disk,
            spans: spans.to_vec(),
            sector,
            rng: SmallRng::from_seed(seed),
            txg: 0,
            used: BTreeMap::new(),
            live: Vec::new(),
            roots: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self) {
        self.txg += 1 + u64::from(self.rng.below(20) == 0);
        self.space.begin(self.txg).expect("no held range is free");
    }

    pub(super) fn allocate(&mut self, bytes: u64, copies: usize) -> Result<()> {
        let places = self.space.allocate(bytes, copies)?;
        assert_eq!(places.iter().filter(|place| place.get().is_some()).count(), copies);
        for dva in places.iter().filter_map(|place| place.get()) {
            self.claim(dva, bytes);
        }
        self.live.push((places, bytes));
        Ok(())
    }

    /// Notes that a range is used, which must not be used by anything, now or by the last two
    /// roots.
    fn claim(&mut self, dva: Dva, bytes: u64) {
        let span = self.spans.iter().find(|span| span.device == dva.device).expect("a device");
        assert!(dva.offset >= span.start && dva.offset + bytes <= span.end, "{dva} is outside");
        assert!((dva.offset - span.start).is_multiple_of(self.sector), "{dva} is not aligned");
        let last = self.roots.iter().rev().take(3).map(|root| &root.used);
        for used in last.chain([&self.used]) {
            let end = Dva { offset: dva.offset + bytes, ..dva };
            let before = used.range(..end).next_back();
            let clear = before.is_none_or(|(other, length)| {
                other.device != dva.device || other.offset + length <= dva.offset
            });
            assert!(clear, "{bytes} bytes at {dva} meet {before:?}, txg {}", self.txg);
        }
        self.used.insert(dva, bytes);
    }

    pub(super) fn free_one(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.rng.below(self.live.len() as u64) as usize;
        let (places, bytes) = self.live.swap_remove(at);
        self.release(places, bytes);
    }

    pub(super) fn release(&mut self, places: [DvaPhys; 2], bytes: u64) {
        for dva in places.iter().filter_map(|place| place.get()) {
            assert_eq!(self.used.remove(&dva), Some(bytes));
            self.space.free(dva, bytes);
        }
    }

    /// Syncs and commits the txg, with a root block as a pool has it.
    pub(super) fn end(&mut self) {
        let places = self.space.place_root(8192).expect("space for the root block");
        assert_eq!(self.space.place_root(8192).ok(), Some(places), "one place a txg");
        for dva in places.iter().filter_map(|place| place.get()) {
            let holds = |root: &&Root| root.places.contains(&dva);
            let kept = self.roots.iter().rev().take(3).find(holds);
            assert!(kept.is_none(), "{dva} is of a root that must stay");
        }
        // The four places are used for ever, like any block that nobody frees.
        let mut all = Vec::new();
        self.space.root_slots(|dva, bytes| all.push((dva, bytes)));
        let copies = if self.spans[0].append_only.is_some() { 1 } else { 2 };
        assert_eq!(all.len(), 4 * copies);
        for (dva, bytes) in all {
            if !self.used.contains_key(&dva) {
                self.claim(dva, bytes);
            }
        }
        let places = places.iter().filter_map(|place| place.get()).collect();
        let mut writer = Writer(self.disk.clone());
        let phys = self.space.sync(self.txg, &mut writer).expect("the txg syncs");
        self.roots.push(Root { txg: self.txg, phys, places, used: self.used.clone() });
        self.space.committed(self.txg).expect("the txg commits");
    }

    /// The space as a root has it.
    pub(super) fn load(&self, root: &Root) -> Space {
        let reader = Box::new(Reader(self.disk.clone(), true));
        Space::load(&root.phys, &self.spans, reader)
            .unwrap_or_else(|error| panic!("txg {}: {error}", root.txg))
    }

    /// Loads a root, and compares all of it with what was used then.
    pub(super) fn check(&self, root: &Root) -> Space {
        let mut space = self.load(root);
        check_used(&mut space, &root.used);
        space
    }
}

/// Whether what is used and the space's own blocks, and nothing else, is allocated.
pub(super) fn check_used(space: &mut Space, used: &BTreeMap<Dva, u64>) {
    let mut walked = crate::space::WalkedRanges::new(space);
    used.iter().for_each(|(dva, bytes)| walked.mark(*dva, *bytes));
    space.own_blocks(|pointer| walked.mark_block(pointer)).expect("all bases are sound");
    let report = space.verify(&walked).expect("all bases are sound");
    assert!(report.is_clean(), "{report:?}");
}

/// A device with space from `start` on.
pub(super) fn span(device: u16, start: u64, bytes: u64) -> DeviceSpan {
    DeviceSpan { device, start, end: start + bytes, append_only: None }
}
