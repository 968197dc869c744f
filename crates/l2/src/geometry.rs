//! The layout of a device: a label at each end, segments between them.

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BATCH_EXTENT_BYTES, FOOTER_HEADER_BYTES, LABEL_BYTES, PAGE_BYTES};
use crate::record::{MAX_BLOCK_UNITS, MAX_SEGMENT_UNITS, MAX_SEGMENTS, UNIT_BYTES};

/// Offset of the first segment. The space between the first label and this offset is unused.
const SEGMENTS_OFFSET: u64 = 64 << 10;
/// Minimum size of a device, in bytes.
pub(crate) const MIN_DEVICE_BYTES: u64 = 4 << 20;
/// Minimum number of segments.
const MIN_SEGMENTS: u64 = 4;
/// Default number of segments, unless they would be too small or too large.
const TARGET_SEGMENTS: u64 = 256;
/// Number of segments on a small device.
const TARGET_SEGMENTS_SMALL: u64 = 16;
const MIN_DEFAULT_SEGMENT_BYTES: u64 = 1 << 20;
const MIN_SEGMENT_BYTES: u64 = 64 << 10;
const MAX_SEGMENT_BYTES: u64 = 256 << 20;
/// Maximum number of batches in a segment.
const MAX_BATCHES: u64 = 4096;

/// The layout of an L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Size of a segment in bytes, a multiple of the page size.
    pub(crate) segment_bytes: u64,
    /// Number of segments.
    pub(crate) segments: u32,
    /// Offset of the second label.
    pub(crate) last_page: u64,
}

impl Geometry {
    /// Chooses the layout for a device of `device_bytes`. `segment_bytes` overrides the default
    /// segment size.
    ///
    /// # Errors
    /// [`ErrorKind::TooSmall`], or [`ErrorKind::Invalid`] if the segment size does not fit the
    /// device.
    pub(crate) fn choose(
        name: &str,
        device_bytes: u64,
        segment_bytes: Option<u64>,
    ) -> Result<Self> {
        if device_bytes < MIN_DEVICE_BYTES {
            return Err(Error::new(
                ErrorKind::TooSmall,
                format!(
                    "cannot create an L2 on {name}: it has {device_bytes} bytes, and at least {MIN_DEVICE_BYTES} are required; use a larger device"
                ),
            ));
        }
        let last_page = device_bytes / PAGE_BYTES * PAGE_BYTES - PAGE_BYTES;
        let space_bytes = last_page - SEGMENTS_OFFSET;
        let default_bytes =
            (space_bytes / TARGET_SEGMENTS).clamp(MIN_DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        let default_bytes = default_bytes.min(space_bytes / TARGET_SEGMENTS_SMALL);
        // As many segments as fit, as large as that number allows, so that little space is left
        // over.
        let bytes = segment_bytes.unwrap_or_else(|| {
            (space_bytes / (space_bytes / default_bytes)).min(MAX_SEGMENT_BYTES)
        });
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let segments = (space_bytes / bytes.max(1)).min(u64::from(MAX_SEGMENTS)) as u32;
        Self { segment_bytes: bytes, segments, last_page }.checked().map_err(|why| {
            let text =
                format!("cannot create an L2 on {name} with segments of {bytes} bytes: {why}");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Validates the layout. Also used for layouts read from a label.
    pub(crate) fn checked(self) -> std::result::Result<Self, &'static str> {
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes) {
            return Err("a segment must have 64 KiB to 256 MiB");
        }
        if !self.segment_bytes.is_multiple_of(PAGE_BYTES) {
            return Err("a segment must consist of whole pages");
        }
        if u64::from(self.segments) < MIN_SEGMENTS || self.segments > MAX_SEGMENTS {
            return Err("an L2 must have 4 to 262,144 segments");
        }
        let end = SEGMENTS_OFFSET + u64::from(self.segments) * self.segment_bytes;
        if end > self.last_page || !self.last_page.is_multiple_of(PAGE_BYTES) {
            return Err("the segments must end before the second label");
        }
        debug_assert!(self.footer_offset() / UNIT_BYTES <= u64::from(MAX_SEGMENT_UNITS));
        Ok(self)
    }

    /// Offset of a segment on the device.
    pub(crate) fn offset(&self, segment: u32) -> u64 {
        SEGMENTS_OFFSET + u64::from(segment) * self.segment_bytes
    }

    /// Offset of the first batch within a segment.
    pub(crate) fn first_batch_offset(&self) -> u64 {
        PAGE_BYTES
    }

    /// Maximum number of batches in a segment.
    pub(crate) fn max_batches(&self) -> usize {
        (self.segment_bytes / PAGE_BYTES).min(MAX_BATCHES) as usize
    }

    /// Size of a footer in bytes, a multiple of the page size.
    pub(crate) fn footer_bytes(&self) -> u64 {
        let bytes = FOOTER_HEADER_BYTES + self.max_batches() * BATCH_EXTENT_BYTES;
        (bytes as u64).next_multiple_of(PAGE_BYTES)
    }

    /// Offset of the footer within a segment, where its batches end.
    pub(crate) fn footer_offset(&self) -> u64 {
        self.segment_bytes - self.footer_bytes()
    }

    /// Bytes of a segment that are available to batches.
    pub(crate) fn batch_space_bytes(&self) -> u64 {
        self.footer_offset() - self.first_batch_offset()
    }

    /// Maximum size of a block with its header, in bytes.
    pub(crate) fn max_block_bytes(&self) -> u64 {
        // A log block of one page precedes it.
        (self.batch_space_bytes() - PAGE_BYTES).min(u64::from(MAX_BLOCK_UNITS) * UNIT_BYTES)
    }

    /// Units of a segment before its footer. No block address exceeds it.
    pub(crate) fn batch_units(&self) -> u32 {
        (self.footer_offset() / UNIT_BYTES) as u32
    }

    /// Estimated number of blocks that the device will hold.
    pub(crate) fn estimated_records(&self) -> u64 {
        const USUAL_BYTES: u64 = 256;
        u64::from(self.segments) * self.segment_bytes / USUAL_BYTES
    }

    /// Bytes of the device that the L2 uses.
    pub(crate) fn used_bytes(&self) -> u64 {
        // A label may contain any value.
        self.last_page.saturating_add(LABEL_BYTES as u64)
    }

    /// The segment with sequence number `seq`.
    pub(crate) fn segment_of(&self, seq: u64) -> u32 {
        (seq % u64::from(self.segments)) as u32
    }

    /// The sequence number of the ring's first segment. Smaller numbers are not valid.
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
            // More is left only where segments have the maximum size.
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
