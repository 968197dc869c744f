//! Reads, writes and voids labels, and detects other contents of a device.
//!
//! # Invariants
//!
//! - Without force, an L2 is created only on a device whose ends are zero, or that holds an L2 of
//!   the same owner or a removed L2.
//! - An L2 is void once neither copy of its label is on the device, durably. Nothing else has to be
//!   overwritten: a new L2 has another guid and rejects structures with the old one.
//!
//! # Not done
//!
//! If the first copy is lost, the second copy is expected in the device's last page and nowhere
//! else.

use forebay_base::rng::SmallRng;
use forebay_io::{Device, content_of};

use crate::device_io::{DeviceIo, IoError};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LABEL_BYTES, LabelPhys, MAX_FEATURES, PAGE_BYTES, VERSION, void_page};
use crate::geometry::Geometry;
use crate::options::L2Options;
use crate::{L2Tunables, MAX_KEY_BYTES};

/// Bytes that are checked and cleared at each end of a device.
const PROBE_BYTES: u64 = if cfg!(forebay_model) { 8 << 10 } else { 1 << 20 };

/// The contents of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LabelInfo {
    /// Identifies the L2.
    pub guid: u64,
    /// The owner's tag.
    pub owner: [u8; 16],
    /// Length of an encoded key, in bytes.
    pub key_bytes: usize,
    /// Size of a segment, in bytes.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u32,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// The user's mark, see [`L2::set_user_mark`](crate::L2::set_user_mark). Initially 0.
    pub user_mark: u64,
    pub(crate) hash_seed: u64,
    pub(crate) last_page: u64,
}

impl LabelInfo {
    pub(crate) fn geometry(&self) -> Geometry {
        let (segment_bytes, segments) = (self.segment_bytes, self.segments);
        Geometry { segment_bytes, segments, last_page: self.last_page }
    }

    fn phys(&self) -> LabelPhys {
        let mut label = LabelPhys::new();
        label.key_bytes = (self.key_bytes as u32).into();
        label.guid = self.guid.into();
        label.hash_seed = self.hash_seed.into();
        label.owner = self.owner;
        label.segment_bytes = self.segment_bytes.into();
        label.segments = self.segments.into();
        label.last_page = self.last_page.into();
        label.created = self.created.into();
        label.user_mark = self.user_mark.into();
        label
    }

    /// Decodes a label. Checks that this version supports it and that its values are consistent.
    fn from_phys(label: &LabelPhys, device: &str, device_bytes: u64) -> Result<Self> {
        let unsupported = |what: String| {
            let text = format!(
                "the L2 on {device} {what}; open it with the program that created it, or recreate it with force"
            );
            Error::new(ErrorKind::Unsupported, text)
        };
        let version = label.version.get();
        if version != VERSION {
            let age = if version < VERSION { "older" } else { "newer" };
            return Err(unsupported(format!(
                "has the {age} format version {version}, and this program reads only {VERSION}"
            )));
        }
        // This version defines no features, so each is unknown.
        if label.feature_count.get() > 0 {
            let count = (label.feature_count.get() as usize).min(MAX_FEATURES);
            let name = |feature: &[u8]| String::from_utf8_lossy(feature).replace('\0', "");
            let names: Vec<String> = label.features[..count].iter().map(|f| name(f)).collect();
            return Err(unsupported(format!(
                "has features unknown to this program: {}",
                names.join(", ")
            )));
        }
        let info = Self {
            guid: label.guid.get(),
            owner: label.owner,
            key_bytes: label.key_bytes.get() as usize,
            segment_bytes: label.segment_bytes.get(),
            segments: label.segments.get(),
            created: label.created.get(),
            user_mark: label.user_mark.get(),
            hash_seed: label.hash_seed.get(),
            last_page: label.last_page.get(),
        };
        let wrong = match info.geometry().checked() {
            Err(why) => Some(why),
            Ok(_) if !(1..=MAX_KEY_BYTES).contains(&info.key_bytes) => {
                Some("keys have 1 to 32 bytes")
            }
            Ok(geometry) if geometry.used_bytes() > device_bytes => {
                Some("the device was larger when the L2 was created")
            }
            Ok(_) => None,
        };
        match wrong {
            None => Ok(info),
            Some(why) => Err(Error::new(
                ErrorKind::NotAnL2,
                format!(
                    "the label of the L2 on {device} is invalid: {why}; recreate the L2 with force"
                ),
            )),
        }
    }
}

/// Reads the label of the L2 on `device`.
///
/// # Errors
/// [`ErrorKind::NotAnL2`] if there is none; [`ErrorKind::Unsupported`] if another version wrote it;
/// and errors of the device.
pub fn read_label(device: &forebay_base::sync::Arc<dyn Device>) -> Result<LabelInfo> {
    use forebay_base::arena::{Arena, ArenaConfig, HugePages};
    let config = ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never };
    let arena = Arena::new(config).map_err(|error| {
        Error::new(ErrorKind::NoMemory, "no memory to read the label of an L2; free some")
            .because(error)
    })?;
    let io = DeviceIo {
        device: device.clone(),
        arena,
        clock: forebay_base::sync::Arc::new(forebay_base::clock::SystemClock::new()),
        tunables: forebay_base::sync::Arc::new(L2Tunables::default()),
        writes_in_flight: forebay_base::sync::Arc::default(),
    };
    read(&io).map(|(info, _)| info)
}

/// Reads the label. The flag says whether both copies are intact.
pub(crate) fn read(io: &DeviceIo) -> Result<(LabelInfo, bool)> {
    let info = io.device.info();
    let (name, device_bytes) = (&*info.name, info.size_bytes);
    let back = last_page(device_bytes).ok_or_else(|| not_an_l2(name))?;
    let copy = |at: u64| -> Result<Option<Result<LabelInfo>>> {
        let page = io.read(at, PAGE_BYTES).map_err(|t| io_failure(io, "read the label", t))?;
        let label = LabelPhys::parse(&page).ok();
        Ok(label.map(|label| LabelInfo::from_phys(&label, name, device_bytes)))
    };
    // An unreadable copy must not hide the other.
    match copy(0) {
        Ok(Some(first)) => {
            let first = first?;
            let second = copy(first.last_page).unwrap_or_default();
            let complete = matches!(second, Some(Ok(second)) if second == first);
            Ok((first, complete))
        }
        first => match copy(back) {
            Ok(Some(second)) => Ok((second?, false)),
            Ok(None) => Err(first.err().unwrap_or_else(|| not_an_l2(name))),
            Err(error) => Err(error),
        },
    }
}

fn not_an_l2(name: &str) -> Error {
    Error::new(ErrorKind::NotAnL2, format!("{name} holds no L2; create one on it"))
}

/// Offset of the last page of a device.
fn last_page(device_bytes: u64) -> Option<u64> {
    (device_bytes / PAGE_BYTES).checked_sub(1).map(|pages| pages * PAGE_BYTES)
}

pub(crate) fn io_failure(io: &DeviceIo, doing: &str, error: IoError) -> Error {
    let name = &io.device.info().name;
    let text = format!("cannot {doing} of the L2 on {name}: {error}");
    match error {
        IoError::Device(error) => Error::new(ErrorKind::Device, text).because(error),
        IoError::Stalled(_) => Error::new(ErrorKind::Device, text),
        IoError::NoMemory(_) => Error::new(ErrorKind::NoMemory, text),
    }
}

/// Describes nonzero contents at either end of the device.
fn find_content(io: &DeviceIo) -> Result<Option<String>> {
    let device_bytes = io.device.info().size_bytes;
    let sector = u64::from(io.device.info().sector_bytes);
    let bytes = PROBE_BYTES.min(device_bytes / sector * sector);
    for start in [0, (device_bytes - bytes) / sector * sector] {
        let found = io.read(start, bytes).map_err(|t| io_failure(io, "probe the device", t))?;
        if start == 0 && found.starts_with(&void_page()) {
            // An L2 was removed here. The rest of the device holds no valid data.
            return Ok(None);
        }
        if let Some(what) = content_of(start, &found) {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Creates an L2 on the device. The label is durable, or the call fails.
pub(crate) fn create(io: &DeviceIo, key_bytes: usize, options: &L2Options) -> Result<LabelInfo> {
    let info = io.device.info();
    let name = &*info.name;
    if info.read_only {
        let text =
            format!("cannot create an L2 on {name}: it was opened read-only; open it for writing");
        return Err(Error::new(ErrorKind::ReadOnly, text));
    }
    let geometry = Geometry::choose(name, info.size_bytes, options.segment_bytes)?;
    let ours = |label: &LabelInfo| label.owner == options.owner;
    match read(io) {
        _ if options.force => {}
        Ok((label, _)) if ours(&label) => {}
        Ok(_) => return Err(foreign(name, "the L2 of another owner")),
        Err(error) if error.kind() == ErrorKind::NotAnL2 => {
            if let Some(what) = find_content(io)? {
                return Err(foreign(name, &what));
            }
        }
        Err(error) => return Err(error),
    }
    let mut rng = SmallRng::from_seed(options.seed);
    let label = LabelInfo {
        guid: rng.next_u64(),
        owner: options.owner,
        key_bytes,
        segment_bytes: geometry.segment_bytes,
        segments: geometry.segments,
        created: options.wall_clock.unix_time().seconds.max(0) as u64,
        user_mark: 0,
        hash_seed: rng.next_u64(),
        last_page: geometry.last_page,
    };
    clear(io).map_err(|t| io_failure(io, "clear the device", t))?;
    write(io, &label)?;
    Ok(label)
}

fn foreign(name: &str, what: &str) -> Error {
    let text = format!(
        "{name} holds {what}, which would be lost; name another device, clear its first and last MiB, or use force"
    );
    Error::new(ErrorKind::Foreign, text)
}

/// Refuses the label of another owner.
pub(crate) fn check_owner(name: &str, label: &LabelInfo, owner: [u8; 16]) -> Result<()> {
    if label.owner == owner {
        return Ok(());
    }
    let text = format!(
        "{name} holds the L2 of another owner; name another device, or recreate it with force"
    );
    Err(Error::new(ErrorKind::Foreign, text))
}

/// Writes zeros to both ends, so that no probe finds the old contents.
fn clear(io: &DeviceIo) -> Result<(), IoError> {
    let device_bytes = io.device.info().size_bytes;
    let sector = u64::from(io.device.info().sector_bytes);
    let bytes = PROBE_BYTES.min(device_bytes / sector * sector);
    for start in [0, (device_bytes - bytes) / sector * sector] {
        let mut zeros = io.alloc(bytes)?;
        zeros.zero();
        io.write(start, zeros)?;
    }
    io.flush()
}

/// Writes both copies of the label, durably.
pub(crate) fn write(io: &DeviceIo, label: &LabelInfo) -> Result<()> {
    let bytes = label.phys().seal();
    write_copies(io, label, &bytes).map_err(|t| io_failure(io, "write the label", t))
}

/// Voids both copies of the label, durably.
pub(crate) fn void(io: &DeviceIo, label: &LabelInfo) -> Result<()> {
    write_copies(io, label, &void_page()).map_err(|t| io_failure(io, "void the label", t))
}

fn write_copies(
    io: &DeviceIo,
    label: &LabelInfo,
    bytes: &[u8; LABEL_BYTES],
) -> Result<(), IoError> {
    // Both writes are attempted even if the first fails.
    let copies = [0, label.last_page].map(|at| {
        let mut page = io.alloc(PAGE_BYTES)?;
        page.copy_from_slice(bytes);
        io.write(at, page).map(drop)
    });
    copies.into_iter().collect::<Result<(), IoError>>()?;
    io.flush()
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::arena::{Arena, ArenaConfig, HugePages};
    use forebay_base::sync::Arc;
    use forebay_io::{MemoryDevice, MemoryOptions};

    use super::*;

    #[test]
    fn other_versions_are_refused_by_name() {
        let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Never };
        let options = L2Options::new([3; 16], Arena::new(config).unwrap());
        let io = DeviceIo {
            device: Arc::new(
                MemoryDevice::new("memory", 8 << 20, &MemoryOptions::default()).unwrap(),
            ),
            arena: Arc::clone(&options.arena),
            clock: Arc::clone(&options.clock),
            tunables: Arc::clone(&options.tunables),
            writes_in_flight: Arc::default(),
        };
        let label = create(&io, 8, &options).unwrap();
        let put_version = |version: u32| {
            let mut old = label.phys();
            old.version = version.into();
            write_copies(&io, &label, &old.seal()).unwrap();
        };
        assert_eq!(read(&io).unwrap(), (label, true));
        for (version, age) in [(0, "older"), (3, "older"), (VERSION + 1, "newer")] {
            put_version(version);
            let error = read(&io).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let named = format!(
                "the {age} format version {version}, and this program reads only {VERSION}"
            );
            assert!(error.to_string().contains(&named), "{error}");
            // Without force, it is not recreated either.
            assert_eq!(create(&io, 8, &options).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        write(&io, &label).unwrap();
        assert_eq!(read(&io).unwrap(), (label, true));
    }
}
