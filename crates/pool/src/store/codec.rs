//! Compression and checksums of blocks, and validation of pointers.
//!
//! The compressed form is used only if it saves at least one sector. The checksum covers the bytes
//! on the device without the padding of the last sector, so corruption is found before
//! decompression.
//!
//! Data is often compressed already. So LZ4 is tried only if a sample of a data block has
//! repetitions, and its result is used only if it saves an eighth.
//!
//! Callers verify the checksum before they decompress. Still, nothing is trusted: both
//! decompressors write only into the given slice, and the resulting length must match the pointer.
//!
//! Compressors and their output buffers are per thread and reused, so the common path allocates
//! only the final buffer.

use std::cell::RefCell;

use forebay_base::arena::Buffer;
use forebay_base::sync::thread_local;
use xxhash_rust::xxh3::xxh3_128;
use zstd::bulk::{Compressor, Decompressor};

use super::repetition::has_repetitions;
use crate::block_key::BIRTH_END;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, Checksum, Compression};

/// Maximum logical size of a block.
pub(crate) const MAX_LOGICAL_BYTES: usize = 16 << 20;
/// Compression level of zstd.
const ZSTD_LEVEL: i32 = 3;
/// Maximum size of a thread's scratch buffer to keep. Larger blocks are rare.
const SCRATCH_KEPT_BYTES: usize = 2 << 20;
/// Data is kept compressed if that saves one part of so many, so that it is worth decompressing.
const DATA_SAVING: usize = 8;

/// A block in on-device form.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Its bytes, zero-padded to whole sectors; `None` if the content itself is written.
    pub(crate) packed: Option<Buffer>,
    pub(crate) logical_bytes: u32,
    /// Without the padding of the last sector.
    pub(crate) physical_bytes: u32,
    pub(crate) compression: Compression,
    pub(crate) checksum: [u8; 16],
}

impl Sealed {
    /// Returns the bytes for the device, whole sectors. `content` is the content that was sealed.
    pub(crate) fn bytes<'a>(&'a self, content: &'a [u8]) -> &'a [u8] {
        self.packed.as_deref().unwrap_or(content)
    }
}

/// Returns the checksum of bytes on a device.
#[inline]
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 16] {
    xxh3_128(bytes).to_le_bytes()
}

/// Compresses `content`, of a block of this kind, and computes its checksum. `alloc` allocates the
/// result.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the content is empty or too long; errors of `alloc`.
pub(crate) fn seal(
    content: &[u8],
    (compression, kind): (Compression, BlockKind),
    sector_bytes: usize,
    alloc: impl Fn(usize) -> Result<Buffer>,
) -> Result<Sealed> {
    if content.is_empty() || content.len() > MAX_LOGICAL_BYTES {
        let text = format!("block has {} bytes; use 1 to {MAX_LOGICAL_BYTES}", content.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let sealed = |bytes: &[u8], compression| Sealed {
        packed: None,
        logical_bytes: content.len() as u32,
        physical_bytes: bytes.len() as u32,
        compression,
        checksum: checksum(bytes),
    };
    // A longer result would not save a sector.
    let mut most = content.len().next_multiple_of(sector_bytes) - sector_bytes;
    let mut is_worth_it = compression != Compression::Off && most > 0;
    if compression == Compression::Lz4 && kind == BlockKind::Data {
        most = most.min(content.len() - content.len() / DATA_SAVING);
        is_worth_it = is_worth_it && has_repetitions(content);
    }
    if is_worth_it {
        let packed = with_compressed(content, compression, most, |bytes| {
            let packed = padded(bytes, sector_bytes, &alloc)?;
            Ok::<_, Error>(Sealed { packed: Some(packed), ..sealed(bytes, compression) })
        });
        if let Some(packed) = packed {
            return packed;
        }
    }
    let packed = match content.len().is_multiple_of(sector_bytes) {
        true => None,
        false => Some(padded(content, sector_bytes, &alloc)?),
    };
    Ok(Sealed { packed, ..sealed(content, Compression::Off) })
}

/// Copies `bytes`, zero-padded to whole sectors.
fn padded(
    bytes: &[u8],
    sector_bytes: usize,
    alloc: impl Fn(usize) -> Result<Buffer>,
) -> Result<Buffer> {
    let mut buffer = alloc(bytes.len().next_multiple_of(sector_bytes))?;
    let (front, rest) = buffer.split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    rest.fill(0);
    Ok(buffer)
}

/// A thread's compressors and scratch buffer.
#[derive(Default)]
struct CompressScratch {
    scratch: Vec<u8>,
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

thread_local! {
    static SCRATCH: RefCell<CompressScratch> = RefCell::new(CompressScratch::default());
}

/// Compresses `content`, and calls `use_it` with the result if it has at most `most` bytes.
fn with_compressed<T>(
    content: &[u8],
    compression: Compression,
    most: usize,
    use_it: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    SCRATCH.with(|thread_scratch| {
        let mut thread_scratch = thread_scratch.borrow_mut();
        let used = thread_scratch.compress(content, compression, most).map(|len| {
            let compressed = &thread_scratch.scratch[..len];
            use_it(compressed)
        });
        if thread_scratch.scratch.len() > SCRATCH_KEPT_BYTES {
            thread_scratch.scratch = Vec::new();
        }
        used
    })
}

impl CompressScratch {
    /// Compresses into `scratch`. Returns the length of the result if it is at most `most`.
    fn compress(&mut self, content: &[u8], compression: Compression, most: usize) -> Option<usize> {
        // LZ4 needs a buffer for the worst case. Zstandard stops when the buffer is full.
        let capacity = match compression {
            Compression::Off => return None,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(content.len()),
            Compression::Zstd => most,
        };
        if self.scratch.len() < capacity {
            self.scratch.resize(capacity, 0);
        }
        let out = &mut self.scratch[..capacity];
        let len = match compression {
            Compression::Lz4 => lz4_flex::block::compress_into(content, out).ok()?,
            _ => {
                if self.compressor.is_none() {
                    self.compressor = Compressor::new(ZSTD_LEVEL).ok();
                }
                self.compressor.as_mut()?.compress_to_buffer(content, out).ok()?
            }
        };
        (len <= most).then_some(len)
    }

    /// Decompresses into `out`. Returns whether the result fills it.
    fn decompress(&mut self, packed: &[u8], compression: Compression, out: &mut [u8]) -> bool {
        let wanted = out.len();
        let len = match compression {
            Compression::Off => return false,
            Compression::Lz4 => lz4_flex::block::decompress_into(packed, out).ok(),
            Compression::Zstd => {
                if self.decompressor.is_none() {
                    self.decompressor = Decompressor::new().ok();
                }
                let decompressor = self.decompressor.as_mut();
                decompressor.and_then(|one| one.decompress_to_buffer(packed, out).ok())
            }
        };
        len == Some(wanted)
    }
}

/// Returns why a pointer is invalid, or `None`.
pub(crate) fn pointer_defect(bp: &BlockPtrPhys) -> Option<&'static str> {
    let (logical, physical) = (bp.logical_bytes.get() as usize, bp.physical_bytes.get() as usize);
    if bp.is_hole() {
        return Some("it is a hole");
    }
    if bp.block_kind().is_none() {
        return Some("unknown block kind");
    }
    if Checksum::from_raw(bp.checksum_kind).is_none() {
        return Some("unknown checksum");
    }
    if logical == 0 || logical > MAX_LOGICAL_BYTES || physical == 0 {
        return Some("invalid size");
    }
    match Compression::from_raw(bp.compression) {
        None => return Some("unknown compression"),
        Some(Compression::Off) if physical != logical => {
            return Some("its sizes contradict each other");
        }
        Some(_) if physical > logical => return Some("its sizes contradict each other"),
        Some(_) => {}
    }
    if bp.birth_txg.get() >= BIRTH_END {
        return Some("its birth txg is too large");
    }
    (bp.flags & !BlockPtrPhys::GANG != 0).then_some("unknown flags")
}

/// Whether the checksum of `physical`, whole sectors from a device, is correct.
pub(crate) fn verify(bp: &BlockPtrPhys, physical: &[u8]) -> bool {
    physical
        .get(..bp.physical_bytes.get() as usize)
        .is_some_and(|bytes| checksum(bytes) == bp.checksum)
}

/// Whether the verified bytes of a block are its content, without decompression or truncation.
pub(crate) fn is_plain(bp: &BlockPtrPhys, physical: &[u8]) -> bool {
    bp.compression == Compression::Off as u8 && physical.len() == bp.logical_bytes.get() as usize
}

/// Decompresses verified bytes into `out`, which has the block's logical size.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the result has another length.
pub(crate) fn open(bp: &BlockPtrPhys, physical: &[u8], out: &mut [u8]) -> Result<()> {
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("{bp:?}: cannot be decompressed"));
    let packed = physical.get(..bp.physical_bytes.get() as usize).ok_or_else(corrupt)?;
    if out.len() != bp.logical_bytes.get() as usize {
        return Err(corrupt());
    }
    let opened = match Compression::from_raw(bp.compression) {
        None => false,
        Some(Compression::Off) => {
            let fits = packed.len() == out.len();
            if fits {
                out.copy_from_slice(packed);
            }
            fits
        }
        Some(compression) => SCRATCH.with(|thread_scratch| {
            thread_scratch.borrow_mut().decompress(packed, compression, out)
        }),
    };
    if opened { Ok(()) } else { Err(corrupt()) }
}
