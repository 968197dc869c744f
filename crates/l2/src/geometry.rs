//! How a device is laid out: labels at both ends, segments between them.

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BATCH_EXTENT_BYTES, FOOTER_HEADER_BYTES, LABEL_BYTES, PAGE_BYTES};
use crate::record::{MAX_BLOCK_UNITS, MAX_SEGMENT_UNITS, MAX_SEGMENTS, UNIT_BYTES};

/// Where segments begin: what lies between the first label and this is kept free.
const SEGMENTS_OFFSET: u64 = 64 << 10;
/// The smallest device.
pub(crate) const MIN_DEVICE_BYTES: u64 = 4 << 20;
/// Segments of a device at least.
const MIN_SEGMENTS: u64 = 4;
/// Segments that a device is cut into, unless they would be too small or too large.
const TARGET_SEGMENTS: u64 = 256;
/// Segments of a small device.
const TARGET_SEGMENTS_SMALL: u64 = 16;
const MIN_DEFAULT_SEGMENT_BYTES: u64 = 1 << 20;
const MIN_SEGMENT_BYTES: u64 = 64 << 10;
const MAX_SEGMENT_BYTES: u64 = 256 << 20;
/// Batches of a segment at most.
const MAX_BATCHES: u64 = 4096;

/// The layout of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a segment: whole pages.
    pub(crate) segment_bytes: u64,
    /// Segments.
    pub(crate) segments: u32,
    /// Where the second label lies.
    pub(crate) last_page: u64,
}

impl Geometry {
    /// The layout of a device of that size. `segment_bytes` is what its user wishes.
    ///
    /// # Errors
    /// [`ErrorKind::TooSmall`], or [`ErrorKind::Invalid`] if the wish cannot be.
    pub(crate) fn choose(
        name: &str,
        device_bytes: u64,
        segment_bytes: Option<u64>,
    ) -> Result<Self> {
        if device_bytes < MIN_DEVICE_BYTES {
            return Err(Error::new(
                ErrorKind::TooSmall,
                format!(
                    "{name} has {device_bytes} bytes: a second level needs {MIN_DEVICE_BYTES} at least; use a larger one"
                ),
            ));
        }
        let last_page = device_bytes / PAGE_BYTES * PAGE_BYTES - PAGE_BYTES;
        let space_bytes = last_page - SEGMENTS_OFFSET;
        let default_bytes =
            (space_bytes / TARGET_SEGMENTS).clamp(MIN_DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        let default_bytes = default_bytes.min(space_bytes / TARGET_SEGMENTS_SMALL);
        // As many as fit, and as large as so many can be: what is left over would be of no use to anybody.
        let bytes = segment_bytes.unwrap_or_else(|| {
            (space_bytes / (space_bytes / default_bytes)).min(MAX_SEGMENT_BYTES)
        });
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let segments = (space_bytes / bytes.max(1)).min(u64::from(MAX_SEGMENTS)) as u32;
        Self { segment_bytes: bytes, segments, last_page }.checked().map_err(|why| {
            let text = format!("{name} cannot be cut into segments of {bytes} bytes: {why}");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// The same, if it can be the layout of anything. Also said of what a label says.
    pub(crate) fn checked(self) -> std::result::Result<Self, &'static str> {
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes) {
            return Err("segments have 64 KiB to 256 MiB");
        }
        if !self.segment_bytes.is_multiple_of(PAGE_BYTES) {
            return Err("segments are whole pages");
        }
        if u64::from(self.segments) < MIN_SEGMENTS || self.segments > MAX_SEGMENTS {
            return Err("a level has 4 to 262,144 segments");
        }
        let end = SEGMENTS_OFFSET + u64::from(self.segments) * self.segment_bytes;
        if end > self.last_page || !self.last_page.is_multiple_of(PAGE_BYTES) {
            return Err("segments end before the second label");
        }
        debug_assert!(self.footer_offset() / UNIT_BYTES <= u64::from(MAX_SEGMENT_UNITS));
        Ok(self)
    }

    /// Where a segment begins.
    pub(crate) fn offset(&self, segment: u32) -> u64 {
        SEGMENTS_OFFSET + u64::from(segment) * self.segment_bytes
    }

    /// Where, in a segment, its first batch begins.
    pub(crate) fn first_batch_offset(&self) -> u64 {
        PAGE_BYTES
    }

    /// Batches of a segment, at most.
    pub(crate) fn max_batches(&self) -> usize {
        (self.segment_bytes / PAGE_BYTES).min(MAX_BATCHES) as usize
    }

    /// Bytes of a footer: whole pages.
    pub(crate) fn footer_bytes(&self) -> u64 {
        let bytes = FOOTER_HEADER_BYTES + self.max_batches() * BATCH_EXTENT_BYTES;
        (bytes as u64).next_multiple_of(PAGE_BYTES)
    }

    /// Where, in a segment, its footer begins, and so its batches end.
    pub(crate) fn footer_offset(&self) -> u64 {
        self.segment_bytes - self.footer_bytes()
    }

    /// Bytes that batches of a segment can take.
    pub(crate) fn batch_space_bytes(&self) -> u64 {
        self.footer_offset() - self.first_batch_offset()
    }

    /// Bytes of a block with its header, at most.
    pub(crate) fn max_block_bytes(&self) -> u64 {
        // A log block of one page goes before it.
        (self.batch_space_bytes() - PAGE_BYTES).min(u64::from(MAX_BLOCK_UNITS) * UNIT_BYTES)
    }

    /// Units of a segment before its footer: no place is past them.
    pub(crate) fn batch_units(&self) -> u32 {
        (self.footer_offset() / UNIT_BYTES) as u32
    }

    /// A guess of how many blocks the device will hold.
    pub(crate) fn estimated_records(&self) -> u64 {
        const USUAL_BYTES: u64 = 256;
        u64::from(self.segments) * self.segment_bytes / USUAL_BYTES
    }

    /// Bytes that the level uses of the device.
    pub(crate) fn used_bytes(&self) -> u64 {
        // A label may say anything.
        self.last_page.saturating_add(LABEL_BYTES as u64)
    }

    /// The segment that is used as number `seq`.
    pub(crate) fn segment_of(&self, seq: u64) -> u32 {
        (seq % u64::from(self.segments)) as u32
    }

    /// The sequence number of a ring's first use: smaller ones name nothing.
    pub(crate) fn first_seq(&self) -> u64 {
        u64::from(self.segments)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_nearly_the_whole_device() {
        let sizes =
            (22..46).flat_map(|shift| [0, 1 << 12, 12_345_678].map(|more| (1u64 << shift) + more));
        for device_bytes in sizes {
            let geometry = Geometry::choose("device", device_bytes, None).unwrap();
            assert_eq!(geometry.checked(), Ok(geometry));
            assert!(geometry.used_bytes() <= device_bytes, "{geometry:?}");
            let segments = u64::from(geometry.segments);
            let left = device_bytes - segments * geometry.segment_bytes;
            let most = (segments + 2) * PAGE_BYTES + SEGMENTS_OFFSET + LABEL_BYTES as u64;
            // More only where segments are as large as they get.
            let largest = geometry.segment_bytes == MAX_SEGMENT_BYTES;
            let most = if largest { 2 * MAX_SEGMENT_BYTES } else { most };
            assert!(left <= most, "{left} bytes of {device_bytes} are left: {geometry:?}");
        }
    }

    #[test]
    fn used_bytes_saturates() {
        let last_page = u64::MAX / PAGE_BYTES * PAGE_BYTES;
        let geometry = Geometry { segment_bytes: 1 << 20, segments: 16, last_page };
        assert_eq!(geometry.checked(), Ok(geometry));
        assert_eq!(geometry.used_bytes(), u64::MAX);
    }
}
