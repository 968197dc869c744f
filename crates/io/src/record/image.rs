//! The content of a medium, stored sparsely: missing sectors are zero.
//!
//! Sectors of recorded writes are shared with the recording, so an image costs little more than a
//! map of the sectors ever written.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::arena::{Arena, Buffer};
use forebay_base::sync::Arc;

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::request::{Op, Request};

/// Bytes per read or write.
const PIECE_BYTES: u64 = 1 << 20;

/// The content of a medium.
#[derive(Clone)]
pub struct Image {
    size_bytes: u64,
    sector_bytes: u32,
    // By sector number.
    sectors: BTreeMap<u64, Sector>,
}

/// One sector: a part of a longer array.
#[derive(Clone)]
struct Sector {
    bytes: Arc<Vec<u8>>,
    at: usize,
}

impl Image {
    /// Creates an image of zeros.
    pub fn zero(size_bytes: u64, sector_bytes: u32) -> Self {
        Self { size_bytes, sector_bytes, sectors: BTreeMap::new() }
    }

    /// Reads the content of `device`.
    ///
    /// # Errors
    /// An error of the device, or that `arena` has no memory for a buffer.
    pub fn of(device: &dyn Device, arena: &Arena) -> Result<Self, Error> {
        let info = device.info();
        let mut image = Self::zero(info.size_bytes, info.sector_bytes);
        let mut offset = 0;
        while offset < info.size_bytes {
            let len = PIECE_BYTES.min(info.size_bytes - offset);
            let buffer = buffer(device, arena, Op::Read, (offset, len))?;
            let buffer = device.run(Request::read(offset, buffer)).into_buffer()?;
            for (index, sector) in buffer.chunks(info.sector_bytes as usize).enumerate() {
                if sector.iter().any(|&byte| byte != 0) {
                    let at = offset / u64::from(info.sector_bytes) + index as u64;
                    image.set(at, Arc::new(sector.to_vec()), 0);
                }
            }
            offset += len;
        }
        Ok(image)
    }

    /// Returns the size of the medium in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the sector size in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Iterates over the stored sectors in order: offset in bytes, and content. All others are
    /// zero.
    pub fn sectors(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let len = self.sector_bytes as usize;
        self.sectors.iter().map(move |(number, sector)| {
            (number * len as u64, &sector.bytes[sector.at..sector.at + len])
        })
    }

    /// Fills `out` from the bytes at `offset`.
    ///
    /// # Panics
    /// If the range ends after the medium.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        assert!(end <= self.size_bytes, "{end} is past the end, {}", self.size_bytes);
        out.fill(0);
        let sector_bytes = u64::from(self.sector_bytes);
        for (&number, sector) in
            self.sectors.range(offset / sector_bytes..end.div_ceil(sector_bytes))
        {
            let start = number * sector_bytes;
            let (low, high) = (start.max(offset), (start + sector_bytes).min(end));
            let from = sector.at + (low - start) as usize;
            let bytes = &sector.bytes[from..from + (high - low) as usize];
            out[(low - offset) as usize..(high - offset) as usize].copy_from_slice(bytes);
        }
    }

    /// Writes this image to `device`, which must read as zero, and flushes it.
    ///
    /// # Errors
    /// An error of the device, or that `arena` has no memory for a buffer.
    ///
    /// # Panics
    /// If the device is smaller than the image.
    pub fn write_to(&self, device: &dyn Device, arena: &Arena) -> Result<(), Error> {
        assert!(device.info().size_bytes >= self.size_bytes, "the device is too small");
        let sector_bytes = u64::from(self.sector_bytes);
        let mut numbers = self.sectors.keys().copied().peekable();
        while let Some(first) = numbers.next() {
            let mut next = first + 1;
            while (next - first) * sector_bytes < PIECE_BYTES && numbers.next_if_eq(&next).is_some()
            {
                next += 1;
            }
            let (offset, len) = (first * sector_bytes, (next - first) * sector_bytes);
            let mut buffer = buffer(device, arena, Op::Write, (offset, len))?;
            self.read(offset, &mut buffer);
            device.run(Request::write(offset, buffer)).result?;
        }
        device.run(Request::flush()).result
    }

    /// Returns the content of sector `number`.
    pub(super) fn sector(&self, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.sector_bytes as usize];
        self.read(number * u64::from(self.sector_bytes), &mut bytes);
        bytes
    }

    /// Sets sector `number` to the part of `bytes` from `at` on.
    pub(super) fn set(&mut self, number: u64, bytes: Arc<Vec<u8>>, at: usize) {
        debug_assert!(at + self.sector_bytes as usize <= bytes.len(), "a whole sector");
        self.sectors.insert(number, Sector { bytes, at });
    }

    /// Sets sector `number` to zero.
    pub(super) fn clear(&mut self, number: u64) {
        self.sectors.remove(&number);
    }
}

fn buffer(
    device: &dyn Device,
    arena: &Arena,
    op: Op,
    (offset, len): (u64, u64),
) -> Result<Buffer, Error> {
    arena.alloc(len as usize).map_err(|error| {
        let text = format!("no memory for a buffer: {error}");
        Error::new(ErrorKind::Device, op, &device.info().name, (offset, len), &text)
    })
}

impl PartialEq for Image {
    /// Compares what both images read.
    fn eq(&self, other: &Self) -> bool {
        let zero = |sector: &&[u8]| sector.iter().all(|&byte| byte == 0);
        let content = |image: &Self| -> Vec<(u64, Vec<u8>)> {
            let sectors = image.sectors().filter(|(_, sector)| !zero(sector));
            sectors.map(|(offset, sector)| (offset, sector.to_vec())).collect()
        };
        (self.size_bytes, self.sector_bytes) == (other.size_bytes, other.sector_bytes)
            && content(self) == content(other)
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("size_bytes", &self.size_bytes)
            .field("sector_bytes", &self.sector_bytes)
            .field("sectors", &self.sectors.len())
            .finish()
    }
}
