//! Looking at what lies on a device, and damaging it.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::record::Image;
use forebay_io::{Device, Request};

/// Bytes of buffers.
const SCRATCH_BYTES: u64 = 16 << 20;

/// A device under a pool, to be looked at while no one writes to it.
pub struct Medium {
    device: Arc<dyn Device>,
    arena: Arc<Arena>,
}

impl Medium {
    /// What lies under a pool.
    ///
    /// # Panics
    /// If the system gives no memory.
    pub fn new(device: &Arc<dyn Device>) -> Self {
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("memory for buffers");
        Self { device: Arc::clone(device), arena }
    }

    /// All of it.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn image(&self) -> Image {
        Image::of(&*self.device, &self.arena).expect("the medium can be read")
    }

    /// Makes it hold `image`; what that does not mention stays.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn restore(&self, image: &Image) {
        image.write_to(&*self.device, &self.arena).expect("the medium can be written");
    }

    /// Where these bytes are, at the beginning of a sector.
    pub fn find(&self, bytes: &[u8]) -> Vec<u64> {
        let image = self.image();
        let len = bytes.len().min(image.sector_bytes() as usize);
        let found = image.sectors().filter(|(_, sector)| sector[..len] == bytes[..len]);
        found.map(|(offset, _)| offset).collect()
    }

    /// Overwrites sectors.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut buffer = self.arena.alloc(bytes.len()).expect("memory for a buffer");
        buffer.copy_from_slice(bytes);
        self.device.run(Request::write(offset, buffer)).result.expect("a write");
    }

    /// Reads sectors.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let buffer = self.arena.alloc(len).expect("memory for a buffer");
        let buffer = self.device.run(Request::read(offset, buffer)).into_buffer();
        buffer.expect("a read").to_vec()
    }

    /// Flips one bit.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn flip(&self, offset: u64, bit: u32) {
        let sector = u64::from(self.device.info().sector_bytes);
        let start = offset / sector * sector;
        let mut bytes = self.read(start, sector as usize);
        bytes[(offset - start) as usize] ^= 1 << bit;
        self.write(start, &bytes);
    }

    /// Makes whatever was written in a range something else.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn scramble(&self, range: Range<u64>, rng: &mut SmallRng) {
        for (offset, old) in self.image().sectors() {
            if range.contains(&offset) {
                let mut bytes = old.to_vec();
                rng.fill(&mut bytes);
                self.write(offset, &bytes);
            }
        }
    }
}
