//! Raw access to the device under a pool: reads, damages and restores its content.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::record::Image;
use forebay_io::{Device, Request};

/// Capacity of the buffer arena, in bytes.
const SCRATCH_BYTES: u64 = 16 << 20;

/// The device under a pool. Only valid while the pool does not write to it.
pub struct RawDevice {
    device: Arc<dyn Device>,
    arena: Arc<Arena>,
}

impl RawDevice {
    /// Raw access to `device`.
    ///
    /// # Panics
    /// If the system has no memory.
    pub fn new(device: &Arc<dyn Device>) -> Self {
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("memory for buffers");
        Self { device: Arc::clone(device), arena }
    }

    /// A copy of the whole device.
    ///
    /// # Panics
    /// If the device cannot be read.
    pub fn image(&self) -> Image {
        Image::of(&*self.device, &self.arena).expect("the medium can be read")
    }

    /// Writes an image to the device. Sectors that `image` does not contain stay unchanged.
    ///
    /// # Panics
    /// If the device cannot be written.
    pub fn restore(&self, image: &Image) {
        image.write_to(&*self.device, &self.arena).expect("the medium can be written");
    }

    /// Offsets of the sectors that start with `bytes`.
    pub fn find(&self, bytes: &[u8]) -> Vec<u64> {
        let image = self.image();
        let len = bytes.len().min(image.sector_bytes() as usize);
        let found = image.sectors().filter(|(_, sector)| sector[..len] == bytes[..len]);
        found.map(|(offset, _)| offset).collect()
    }

    /// Writes whole sectors at `offset`.
    ///
    /// # Panics
    /// If the device cannot be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut buffer = self.arena.alloc(bytes.len()).expect("memory for a buffer");
        buffer.copy_from_slice(bytes);
        self.device.run(Request::write(offset, buffer)).result.expect("a write");
    }

    /// Reads `len` bytes of whole sectors at `offset`.
    ///
    /// # Panics
    /// If the device cannot be read.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let buffer = self.arena.alloc(len).expect("memory for a buffer");
        let buffer = self.device.run(Request::read(offset, buffer)).into_buffer();
        buffer.expect("a read").to_vec()
    }

    /// Flips one bit of the byte at `offset`.
    ///
    /// # Panics
    /// If the device cannot be read or written.
    pub fn flip(&self, offset: u64, bit: u32) {
        let sector = u64::from(self.device.info().sector_bytes);
        let start = offset / sector * sector;
        let mut bytes = self.read(start, sector as usize);
        bytes[(offset - start) as usize] ^= 1 << bit;
        self.write(start, &bytes);
    }

    /// Overwrites the written sectors of a range with noise.
    ///
    /// # Panics
    /// If the device cannot be read or written.
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
