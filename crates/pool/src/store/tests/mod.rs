//! The store over memory devices and devices that fail.

mod codec;
mod gangs;
mod l2;
mod readers;
mod reads;
mod worker_pool;
mod writes;

use std::collections::BTreeMap;

use forebay_base::arena::Buffer;
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_cache::{Attributes, OwnerCaching};
use forebay_io::fault::FaultDevice;
use forebay_io::{Device, MemoryDevice, MemoryOptions, Request};

use super::{Allocate, Store, WritePayload, WriteProps};
use crate::block_cache::{BlockCache, BlockCacheOptions};
use crate::devices::Devices;
use crate::devices::create::{CreateOptions, NewVdev, create};
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::LABEL_BYTES;
use crate::format::{BlockKind, BlockPtrPhys, Compression, Dva, DvaPhys};
use crate::open::Opened;

pub(super) const DEVICE_BYTES: u64 = 32 << 20;

/// Allocates on each device in rotation, at most `largest` bytes at a time, and remembers what is
/// allocated.
pub(super) struct TestSpace {
    next: Vec<u64>,
    pub(super) largest: u64,
    /// Bytes that may still be given out.
    pub(super) left: u64,
    next_device: usize,
    pub(super) out: BTreeMap<(u16, u64), u64>,
}

impl TestSpace {
    pub(super) fn new(devices: usize) -> Self {
        let (next, out) = (vec![LABEL_BYTES; devices], BTreeMap::new());
        Self { next, largest: u64::MAX, left: u64::MAX, next_device: 0, out }
    }

    pub(super) fn out_bytes(&self) -> u64 {
        self.out.values().sum()
    }
}

impl Allocate for TestSpace {
    fn allocate(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2]> {
        let needed = bytes * copies as u64;
        if bytes > self.largest || needed > self.left {
            return Err(Error::new(ErrorKind::NoSpace, "no space"));
        }
        self.left -= needed;
        let mut places = [DvaPhys::NONE; 2];
        for place in &mut places[..copies] {
            let device = self.next_device % self.next.len();
            self.next_device += 1;
            let offset = self.next[device];
            self.next[device] += bytes;
            assert!(self.next[device] <= DEVICE_BYTES - LABEL_BYTES, "the test's devices are full");
            self.out.insert((device as u16, offset), bytes);
            *place = DvaPhys::new(Dva { device: device as u16, offset });
        }
        Ok(places)
    }

    fn free(&mut self, dva: Dva, bytes: u64) {
        let was = self.out.remove(&(dva.device, dva.offset));
        assert_eq!(was, Some(bytes), "{dva}");
        self.left = self.left.saturating_add(bytes);
    }
}

pub(super) struct Fixture {
    pub(super) store: Store,
    pub(super) space: TestSpace,
    pub(super) faults: Vec<Arc<FaultDevice>>,
    pub(super) memory_devices: Vec<Arc<MemoryDevice>>,
    pub(super) rng: SmallRng,
}

pub(super) fn block_cache(bytes: u64) -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes, seed: Some(1), ..BlockCacheOptions::default() };
    BlockCache::new(options).unwrap()
}

/// A store over `count` devices of sectors of `sector_bytes`.
pub(super) fn fixture_over(cache: Arc<BlockCache>, count: usize, sector_bytes: u32) -> Fixture {
    fixture_with(cache, count, sector_bytes, OwnerCaching::All, 0)
}

pub(super) fn fixture_with(
    cache: Arc<BlockCache>,
    count: usize,
    sector_bytes: u32,
    caching: OwnerCaching,
    latency_ns: u64,
) -> Fixture {
    let stripe = |opened: Vec<Opened>| opened.into_iter().map(NewVdev::Device).collect();
    fixture_of(cache, (count, sector_bytes, latency_ns), caching, stripe)
}

/// A store over a mirror of two devices.
pub(super) fn mirror_fixture() -> Fixture {
    let mirror = |opened| vec![NewVdev::Mirror(opened)];
    fixture_of(block_cache(64 << 20), (2, 512, 0), OwnerCaching::All, mirror)
}

fn fixture_of(
    cache: Arc<BlockCache>,
    (count, sector_bytes, latency_ns): (usize, u32, u64),
    caching: OwnerCaching,
    vdevs: impl FnOnce(Vec<Opened>) -> Vec<NewVdev>,
) -> Fixture {
    let options = MemoryOptions {
        sector_bytes,
        latency_ns,
        submission_queues: 1,
        ..MemoryOptions::default()
    };
    let new = |n| MemoryDevice::new(&format!("memory{n}"), DEVICE_BYTES, &options).unwrap();
    let memory_devices: Vec<_> = (0..count).map(|n| Arc::new(new(n))).collect();
    let over = |device: &Arc<MemoryDevice>| {
        Arc::new(FaultDevice::new(Arc::clone(device) as Arc<dyn Device>, 7))
    };
    let faults: Vec<_> = memory_devices.iter().map(over).collect();
    let opened = faults.iter().map(|device| (Arc::clone(device) as Arc<dyn Device>).into());
    let vdevs = vdevs(opened.collect());
    let vdev_count = vdevs.len();
    let options = CreateOptions {
        name: "tank".to_owned(),
        host: Default::default(),
        seed: 3,
        force: false,
        heartbeat_ms: 0,
        sector_bytes: None,
    };
    let devices: Devices = create(vdevs, &options, &cache).unwrap().devices;
    let owner = cache.cache().open_owner(caching).unwrap().into_id();
    let store = Store::new(Arc::new(devices), cache, owner, false, 8 << 20);
    let (space, rng) = (TestSpace::new(vdev_count), SmallRng::from_seed(11));
    Fixture { store, space, faults, memory_devices, rng }
}

pub(super) fn fixture(count: usize) -> Fixture {
    fixture_over(block_cache(64 << 20), count, 512)
}

pub(super) fn props(copies: usize, compression: Compression) -> WriteProps {
    WriteProps {
        kind: BlockKind::Data,
        level: 0,
        compression,
        copies,
        txg: 5,
        fill: 1,
        cache: Some(Attributes::DATA),
    }
}

impl Fixture {
    /// Seals, places, holds and submits a new block.
    pub(super) fn write_new(
        &mut self,
        content: Buffer,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let sealed = self.store.seal(&content, props)?;
        let placed = self.store.place(&sealed, &content, props, &mut self.space)?;
        let bp = placed.bp;
        let held = self.store.hold(&bp, content, props.cache);
        self.store.submit(placed, WritePayload::new(sealed, held));
        Ok(bp)
    }

    /// Bytes that compress to about a third.
    pub(super) fn content(&mut self, len: usize) -> Buffer {
        let mut buffer = self.store.cache().alloc(len).unwrap();
        for chunk in buffer.chunks_mut(24) {
            chunk.fill(b'.');
            let word = self.rng.next_u64().to_le_bytes();
            let len = chunk.len().min(8);
            chunk[..len].copy_from_slice(&word[..len]);
        }
        buffer
    }

    /// Writes a new block and returns its pointer and content.
    pub(super) fn write(&mut self, len: usize, props: &WriteProps) -> (BlockPtrPhys, Vec<u8>) {
        let content = self.content(len);
        let copy = content.to_vec();
        let bp = self.write_new(content, props).unwrap();
        (bp, copy)
    }

    pub(super) fn forget(&self, bp: &BlockPtrPhys) {
        self.store.cache().cache().remove(&self.store.key(bp));
    }

    /// What lies at an address, past all faults.
    pub(super) fn raw(&self, dva: Dva, bytes: u64) -> Buffer {
        let device: &dyn Device = &*self.memory_devices[usize::from(dva.device)];
        let buffer = self.store.cache().alloc(bytes as usize).unwrap();
        device.run(Request::read(dva.offset, buffer)).into_buffer().unwrap()
    }

    /// Damages what lies at an address.
    pub(super) fn rot(&self, dva: Dva, bytes: u64) {
        let device: &dyn Device = &*self.memory_devices[usize::from(dva.device)];
        let mut buffer = self.raw(dva, bytes);
        buffer[bytes as usize / 3] ^= 0x10;
        device.run(Request::write(dva.offset, buffer)).result.unwrap();
    }

    /// All places of a block, and their bytes.
    pub(super) fn pieces(&self, bp: &BlockPtrPhys) -> Vec<(Dva, u64)> {
        let mut pieces = Vec::new();
        self.store.for_each_piece(bp, &mut |dva, bytes| pieces.push((dva, bytes))).unwrap();
        pieces
    }

    pub(super) fn counted(&self, counter: forebay_base::counters::Counter) -> u64 {
        self.store.counters().total(counter)
    }

    /// Nothing is on its way, pinned or held any more; the cache's structures agree.
    pub(super) fn audit(self) {
        self.store.wait_and_flush().unwrap();
        assert_eq!(self.store.shared.writing.len(), 0);
        assert_eq!(self.store.in_flight_bytes(), 0);
        let (cache, owner) = (Arc::clone(self.store.cache()), self.store.owner());
        self.store.devices().drain();
        drop(self.store);
        // It was the last one, so the owner is closed.
        assert!(!cache.cache().set_owner_caching(owner, OwnerCaching::All));
        cache.cache().audit();
    }
}
