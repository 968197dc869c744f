//! Crash tests on a device that takes each address once.

use std::sync::Arc;

use forebay_io::Device;
use forebay_io::append_only::{AppendOnlyDevice, AppendedSector, AppendedSectors, hash_of};
use forebay_io::record::{Event, Image, Recording};

/// Bytes at the start of the device that take rewrites.
const MUTABLE_BYTES: u64 = 4 << 20;

/// A device that fails whatever breaks the rules.
pub(super) fn new(below: Arc<dyn Device>) -> Arc<AppendOnlyDevice> {
    Arc::new(AppendOnlyDevice::new(below, MUTABLE_BYTES, AppendedSectors::new()))
}

/// The device after a crash: `below` holds `image`, and these events had begun.
pub(super) fn after_crash(
    below: Arc<dyn Device>,
    image: &Image,
    recording: &Recording,
    position: usize,
) -> Arc<AppendOnlyDevice> {
    let info = below.info();
    let (sector, size) = (u64::from(info.sector_bytes), info.size_bytes);
    let mut sectors = AppendedSectors::new();
    for event in &recording.events()[..position] {
        let (offset, len, what) = match event {
            Event::Write { offset, bytes } => (*offset, bytes.len() as u64, AppendedSector::Lost),
            Event::Discard { offset, len } => (*offset, *len, AppendedSector::Discarded),
            Event::Flush | Event::Ended { .. } => continue,
        };
        let offsets = (offset..offset + len).step_by(sector as usize);
        let appended = offsets.filter(|at| AppendOnlyDevice::appends(MUTABLE_BYTES, size, *at));
        sectors.extend(appended.map(|at| (at, what)));
    }
    for (offset, bytes) in image.sectors() {
        if let Some(sector @ AppendedSector::Lost) = sectors.get_mut(&offset) {
            *sector = AppendedSector::Written(hash_of(bytes));
        }
    }
    Arc::new(AppendOnlyDevice::new(below, MUTABLE_BYTES, sectors))
}

/// Panics if a request has broken a rule.
pub(super) fn assert_sound(device: &AppendOnlyDevice) {
    let violations = device.violations();
    assert!(violations.is_empty(), "{violations:#?}");
}
