//! Corrupts images of pools, which must then be imported or refused without harm.
//!
//! [`Corrupter::corrupt_block`] walks from an uberblock down to a block, changes it, and corrects
//! all checksums on the way up. It finds pointers by testing every position of a block for a
//! pointer whose checksum verifies, so it needs no knowledge of the formats.
//!
//! [`Choices`] decides what is changed: a seeded generator, or a [`Script`] of bytes from a fuzzer.

use forebay_base::rng::SmallRng;
use forebay_io::record::Image;
use forebay_pool::format::label::{LABEL_BYTES, SLOT_BYTES, UBERBLOCK_MAGIC, UberblockPhys};
use forebay_pool::format::{
    BlockPtrPhys, Compression, Dva, DvaPhys, LOG_BLOCK_MAGIC, LogBlockPhys, SECTOR_UNIT,
};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::{FromBytes, IntoBytes};

/// Larger blocks are not read.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Greatest depth of a corrupted block below the uberblock.
const DEPTH_MAX: usize = 12;
const SUM_BYTES: usize = 16;

/// Decides what is changed, where and how.
pub trait Choices {
    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64;

    /// Any number.
    fn next_u64(&mut self) -> u64;

    /// Any bytes.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl Choices for SmallRng {
    fn below(&mut self, n: u64) -> u64 {
        SmallRng::below(self, n)
    }

    fn next_u64(&mut self) -> u64 {
        SmallRng::next_u64(self)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        SmallRng::fill(self, bytes);
    }
}

/// Choices read from bytes. Each takes as many bytes as it needs, so a small change of the script
/// is a small change of the corruption. Past the end, all choices are 0.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Choices from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, len: usize) -> u64 {
        let mut number = [0; 8];
        self.fill(&mut number[..len]);
        u64::from_le_bytes(number)
    }
}

impl Choices for Script<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let bits = u64::BITS - (n - 1).leading_zeros();
        self.take(bits.div_ceil(8) as usize) % n
    }

    fn next_u64(&mut self) -> u64 {
        self.take(size_of::<u64>())
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (now, later) = self.0.split_at(bytes.len().min(self.0.len()));
        bytes[..now.len()].copy_from_slice(now);
        bytes[now.len()..].fill(0);
        self.0 = later;
    }
}

/// The content of a one-device pool, to be corrupted.
#[derive(Clone)]
pub struct Corrupter {
    /// The bytes of the device.
    pub bytes: Vec<u8>,
    /// Start of the longest unwritten range, where corrupted blocks are placed.
    free: usize,
}

impl Corrupter {
    /// Copies the image of a device.
    ///
    /// # Panics
    /// If the image has no free range for corrupted blocks.
    pub fn new(image: &Image) -> Self {
        let mut bytes = vec![0; image.size_bytes() as usize];
        let (mut free, mut longest, mut last) = (0, 0, 0);
        for (offset, sector) in image.sectors() {
            bytes[offset as usize..offset as usize + sector.len()].copy_from_slice(sector);
            if offset as usize - last > longest {
                (free, longest) = (last, offset as usize - last);
            }
            last = offset as usize + sector.len();
        }
        assert!(longest > 4 * BLOCK_BYTES_MAX, "the longest free stretch has {longest} bytes");
        Self { bytes, free: free.next_multiple_of(SECTOR_UNIT as usize) }
    }

    /// Makes one to three of the changes below. Sometimes truncates the device at last.
    pub fn any(&mut self, choices: &mut impl Choices) {
        for _ in 0..choices.below(3) + 1 {
            match choices.below(6) {
                0 => self.corrupt_block(choices),
                1 => self.corrupt_slot(choices),
                2 => self.corrupt_log(choices),
                3 => self.flip(choices),
                4 => self.swap(choices),
                _ => self.wipe(choices),
            }
        }
        if choices.below(8) == 7 {
            self.truncate(choices);
        }
    }

    /// Flips bits of written sectors, anywhere or in the labels.
    pub fn flip(&mut self, choices: &mut impl Choices) {
        let labels = choices.below(2) == 0;
        for _ in 0..choices.below(30) + 1 {
            let at = self.written(labels, choices);
            self.bytes[at] ^= 1 << choices.below(8);
        }
    }

    /// Copies sectors to wrong offsets.
    pub fn swap(&mut self, choices: &mut impl Choices) {
        for _ in 0..choices.below(8) + 1 {
            let len = 512 << choices.below(6);
            let labels = choices.below(4) == 0;
            let (from, to) = (
                self.written(labels, choices) / 512 * 512,
                self.written(false, choices) / 512 * 512,
            );
            let end = (from + len).min(self.bytes.len());
            let len = (end - from).min(self.bytes.len() - to);
            self.bytes.copy_within(from..from + len, to);
        }
    }

    /// Overwrites ranges with zeros or noise.
    pub fn wipe(&mut self, choices: &mut impl Choices) {
        for _ in 0..choices.below(4) + 1 {
            let at = self.written(false, choices);
            let end = (at + choices.below(100_000) as usize).min(self.bytes.len());
            match choices.below(2) {
                0 => self.bytes[at..end].fill(0),
                _ => choices.fill(&mut self.bytes[at..end]),
            }
        }
    }

    /// Truncates the device.
    pub fn truncate(&mut self, choices: &mut impl Choices) {
        let sectors = choices.below(self.bytes.len() as u64 / 512) + 1;
        self.bytes.truncate(sectors as usize * 512);
    }

    /// Changes a label or an uberblock and corrects its checksum, sometimes in all its copies.
    pub fn corrupt_slot(&mut self, choices: &mut impl Choices) {
        let slots = self.slots();
        let Some(&at) = pick(&slots, choices) else { return };
        let old = self.bytes[at..at + SLOT_BYTES].to_vec();
        let mut new = old.clone();
        // The rest is zeros in all slots.
        let used = if choices.below(3) == 0 { SLOT_BYTES - SUM_BYTES } else { 200 };
        mutate(&mut new[8..used], choices);
        self.replace(&old, &mut new, choices.below(2) == 0);
    }

    /// Changes a block of the intent log and corrects its checksum.
    pub fn corrupt_log(&mut self, choices: &mut impl Choices) {
        let is_log = |at: &usize| {
            LogBlockPhys::read_from_prefix(&self.bytes[*at..])
                .is_ok_and(|(head, _)| head.magic.get() == LOG_BLOCK_MAGIC)
        };
        let blocks: Vec<usize> = (0..self.bytes.len() - 512).step_by(512).filter(is_log).collect();
        let Some(&at) = pick(&blocks, choices) else { return };
        let payload = |bytes: &[u8]| {
            let head = LogBlockPhys::read_from_prefix(bytes).expect("it was read before").0;
            (size_of::<LogBlockPhys>() + head.payload_bytes.get() as usize).min(bytes.len())
        };
        let end = payload(&self.bytes[at..]);
        let block = &mut self.bytes[at..];
        let first = if choices.below(3) == 0 { SUM_BYTES + 8 } else { size_of::<LogBlockPhys>() };
        mutate(&mut block[first..end], choices);
        let end = payload(block);
        let sum = xxh3_128(&block[SUM_BYTES..end]).to_le_bytes();
        block[..SUM_BYTES].copy_from_slice(&sum);
    }

    /// Changes a block reachable from the newest uberblock, and corrects all checksums on the path.
    pub fn corrupt_block(&mut self, choices: &mut impl Choices) {
        let newest = |at: &usize| {
            let found = UberblockPhys::read_from_prefix(&self.bytes[*at..]).ok();
            found.filter(|(found, _)| found.magic.get() == UBERBLOCK_MAGIC).map(|(found, _)| found)
        };
        let slots = self.slots();
        let Some(old) = slots.iter().filter_map(newest).max_by_key(|found| found.txg.get()) else {
            return;
        };
        let mut new = old;
        let depth = choices.below(DEPTH_MAX as u64) as usize;
        self.corrupt_path(&mut new.root, depth, choices);
        let mut bytes = new.as_bytes().to_vec();
        self.replace(old.as_bytes(), &mut bytes, true);
    }

    fn corrupt_path(&mut self, ptr: &mut BlockPtrPhys, depth: usize, choices: &mut impl Choices) {
        let Some(mut content) = self.content(ptr) else { return };
        let children = self.pointers(&content);
        match pick(&children, choices) {
            Some(&at) if depth > 0 => {
                let field = &mut content[at..at + size_of::<BlockPtrPhys>()];
                let Ok(mut child) = BlockPtrPhys::read_from_bytes(field) else { return };
                self.corrupt_path(&mut child, depth - 1, choices);
                content[at..at + size_of::<BlockPtrPhys>()].copy_from_slice(child.as_bytes());
            }
            // A field of a pointer that still leads somewhere.
            Some(&at) if choices.below(3) == 0 => {
                mutate(&mut content[at + 24..at + size_of::<BlockPtrPhys>()], choices);
            }
            _ => mutate(&mut content, choices),
        }
        let end = self.free + content.len().next_multiple_of(SECTOR_UNIT as usize);
        if end > self.bytes.len() {
            return;
        }
        self.bytes[self.free..self.free + content.len()].copy_from_slice(&content);
        let dva = DvaPhys::new(Dva { device: 0, offset: self.free as u64 });
        self.free = end;
        ptr.copies = [dva, DvaPhys::NONE];
        ptr.checksum = xxh3_128(&content).to_le_bytes();
        ptr.compression = Compression::Off as u8;
        ptr.logical_bytes = (content.len() as u32).into();
        ptr.physical_bytes = ptr.logical_bytes;
    }

    /// The decompressed block behind a pointer, if its checksum verifies.
    fn content(&self, ptr: &BlockPtrPhys) -> Option<Vec<u8>> {
        let (logical, physical) =
            (ptr.logical_bytes.get() as usize, ptr.physical_bytes.get() as usize);
        let plausible = (1..=BLOCK_BYTES_MAX).contains(&physical)
            && (1..=BLOCK_BYTES_MAX).contains(&logical)
            && ptr.block_kind().is_some()
            && ptr.flags <= BlockPtrPhys::GANG;
        let dva = ptr.copies[0].get().filter(|dva| plausible && dva.device == 0)?;
        let start = usize::try_from(dva.offset).ok()?;
        let packed = self.bytes.get(start..start.checked_add(physical)?)?;
        if xxh3_128(packed).to_le_bytes() != ptr.checksum {
            return None;
        }
        match Compression::from_raw(ptr.compression)? {
            Compression::Off => Some(packed.to_vec()),
            Compression::Lz4 => lz4_flex::block::decompress(packed, logical).ok(),
            Compression::Zstd => None,
        }
    }

    /// Offsets of valid pointers in a block.
    fn pointers(&self, content: &[u8]) -> Vec<usize> {
        let last = content.len().saturating_sub(size_of::<BlockPtrPhys>() - 1);
        let is_pointer = |at: &usize| {
            let read = BlockPtrPhys::read_from_prefix(&content[*at..]);
            read.is_ok_and(|(ptr, _)| self.content(&ptr).is_some())
        };
        (0..last).step_by(4).filter(is_pointer).collect()
    }

    /// Offsets of labels and uberblocks whose checksum verifies.
    fn slots(&self) -> Vec<usize> {
        let label = LABEL_BYTES as usize;
        let back = self.bytes.len().saturating_sub(label);
        let places = (0..label).chain(back..self.bytes.len()).step_by(SLOT_BYTES);
        let is_slot = |at: &usize| {
            let slot = self.bytes.get(*at..*at + SLOT_BYTES);
            slot.is_some_and(|slot| {
                let (content, sum) = slot.split_at(SLOT_BYTES - SUM_BYTES);
                slot[0] != 0 && xxh3_128(content).to_le_bytes() == *sum
            })
        };
        places.filter(is_slot).collect()
    }

    /// Replaces a slot and corrects its checksum: the first copy, or all equal ones.
    fn replace(&mut self, old: &[u8], new: &mut [u8], all: bool) {
        let sum = xxh3_128(&new[..SLOT_BYTES - SUM_BYTES]).to_le_bytes();
        new[SLOT_BYTES - SUM_BYTES..].copy_from_slice(&sum);
        let same: Vec<usize> = self
            .slots()
            .into_iter()
            .filter(|at| self.bytes[*at..*at + SLOT_BYTES] == *old)
            .collect();
        for at in same.into_iter().take(if all { usize::MAX } else { 1 }) {
            self.bytes[at..at + SLOT_BYTES].copy_from_slice(new);
        }
    }

    /// Offset of a byte in a nonzero sector.
    fn written(&self, labels: bool, choices: &mut impl Choices) -> usize {
        let label = LABEL_BYTES;
        let len = self.bytes.len() as u64;
        for _ in 0..10_000 {
            let at = match labels {
                true if choices.below(2) == 0 => choices.below(label),
                true => len - 1 - choices.below(label),
                false => choices.below(len),
            } as usize;
            let sector = at / 512 * 512;
            if self.bytes[sector..sector + 512].iter().any(|byte| *byte != 0) {
                return at;
            }
        }
        0
    }
}

fn pick<'a, T>(all: &'a [T], choices: &mut impl Choices) -> Option<&'a T> {
    (!all.is_empty()).then(|| &all[choices.below(all.len() as u64) as usize])
}

/// Changes some bytes: flips bits, writes boundary values, copies others.
fn mutate(bytes: &mut [u8], choices: &mut impl Choices) {
    if bytes.len() < 16 {
        return bytes.fill(choices.below(256) as u8);
    }
    for _ in 0..choices.below(3) + 1 {
        let at = choices.below(bytes.len() as u64 - 8) as usize;
        let aligned = at / 4 * 4;
        let edge = [
            0,
            1,
            u64::MAX,
            u64::MAX / 2,
            1 << choices.below(64),
            (1 << choices.below(64)) - 1,
            choices.below(256),
            choices.next_u64(),
        ][choices.below(8) as usize];
        match choices.below(6) {
            0 => bytes[at] ^= 1 << choices.below(8),
            1 => bytes[at] = edge as u8,
            2 => bytes[aligned..aligned + 2].copy_from_slice(&edge.to_le_bytes()[..2]),
            3 => bytes[aligned..aligned + 4].copy_from_slice(&edge.to_le_bytes()[..4]),
            4 => bytes[aligned..aligned + 8].copy_from_slice(&edge.to_le_bytes()),
            _ => {
                let from = choices.below(bytes.len() as u64 - 8) as usize;
                let len = (choices.below(64) as usize + 1).min(bytes.len() - at.max(from));
                bytes.copy_within(from..from + len, at);
            }
        }
    }
}
