//! The configuration of a pool, and its encoding in labels.
//!
//! A label with a correct checksum may still be invalid, so every field is checked before it is
//! used.

use forebay_base::rng::SmallRng;
use zerocopy::little_endian::{U16, U32, U64};

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{
    FEATURE_BYTES, LABEL_BYTES, LabelPhys, MAX_DEVICES, MAX_FEATURES, MAX_NODES, MIN_DEVICE_BYTES,
    NAME_BYTES, NO_PARENT, NodeKind, NodePhys, SECTOR_BYTES, STATE_ACTIVE, STATE_EXPORTED, VERSION,
};
use crate::open::HostId;

/// Features that this version supports. Labels with other features are rejected.
pub(crate) const FEATURES: [&str; 0] = [];

/// A device of the configuration. Its number is its index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceConfig {
    pub(crate) guid: u64,
    /// Bytes that the pool uses, labels included.
    pub(crate) size_bytes: u64,
}

/// The configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) pool_guid: u64,
    pub(crate) pool_name: String,
    /// Incremented with each change.
    pub(crate) generation: u64,
    /// The newest durable txg when the configuration was written.
    pub(crate) txg: u64,
    /// Whether a host has the pool imported.
    pub(crate) active: bool,
    /// The host that has the pool imported, or had it last.
    pub(crate) host: HostId,
    pub(crate) sector_bytes: u32,
    pub(crate) features: Vec<String>,
    pub(crate) devices: Vec<DeviceConfig>,
}

/// A configuration, and the number of the device that stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) config: Config,
    /// The number of the device.
    pub(crate) number: u16,
}

/// Returns a new GUID.
pub(crate) fn new_guid(rng: &mut SmallRng) -> u64 {
    rng.next_u64().max(1)
}

/// Checks the name of a pool.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the reason.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let wrong = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_BYTES {
        "is longer than 64 bytes"
    } else if name.chars().any(|c| c.is_control() || c == '/') {
        "has a slash or a control character"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, format!("invalid pool name {name:?}: it {wrong}")))
}

impl Config {
    /// Encodes the label of device `number`.
    pub(crate) fn encode(&self, number: u16) -> LabelPhys {
        assert!(self.devices.len() <= MAX_DEVICES, "more devices than a pool can have");
        assert!(self.features.len() <= MAX_FEATURES, "more features than a label can name");
        let mut label = LabelPhys::empty();
        label.sector_bytes = U32::new(self.sector_bytes);
        label.pool_guid = U64::new(self.pool_guid);
        label.device_guid = U64::new(self.devices[usize::from(number)].guid);
        label.generation = U64::new(self.generation);
        label.txg = U64::new(self.txg);
        label.host_id = U64::new(self.host.id);
        label.device_number = U16::new(number);
        label.device_count = U16::new(self.devices.len() as u16);
        label.node_count = U16::new(self.devices.len() as u16 + 1);
        label.feature_count = U16::new(self.features.len() as u16);
        label.state = if self.active { STATE_ACTIVE } else { STATE_EXPORTED };
        put_text(&mut label.pool_name, &self.pool_name);
        put_text(&mut label.host_name, &self.host.name);
        for (feature, name) in label.features.iter_mut().zip(&self.features) {
            put_text(feature, name);
        }
        label.nodes[0].guid = U64::new(self.pool_guid);
        label.nodes[0].parent = U16::new(NO_PARENT);
        label.nodes[0].kind = NodeKind::Stripe as u8;
        for (number, device) in self.devices.iter().enumerate() {
            let node = &mut label.nodes[number + 1];
            node.guid = U64::new(device.guid);
            node.size_bytes = U64::new(device.size_bytes);
            node.number = U16::new(number as u16);
            node.kind = NodeKind::Disk as u8;
        }
        label.seal();
        label
    }
}

impl Label {
    /// Decodes a label found on device `name`; `None` if its checksum is wrong.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a newer version or unknown feature, [`ErrorKind::Corrupt`] if
    /// the content is invalid.
    pub(crate) fn decode(label: &LabelPhys, name: &str) -> Result<Option<Self>> {
        if !label.is_sound() {
            return Ok(None);
        }
        check_versions(label, name)?;
        match Self::decode_checked(label) {
            Ok(label) => Ok(Some(label)),
            Err(error) => Err(error.doing(format_args!("{name}: its label"))),
        }
    }

    fn decode_checked(label: &LabelPhys) -> Result<Self> {
        let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
        let sector_bytes = label.sector_bytes.get();
        if !sector_bytes.is_power_of_two() || !SECTOR_BYTES.contains(&sector_bytes) {
            return corrupt(format!("invalid sector size of {sector_bytes} bytes"));
        }
        let devices = decode_nodes(label)?;
        let number = label.device_number.get();
        match devices.get(usize::from(number)) {
            Some(device) if device.guid == label.device_guid.get() => {}
            _ => return corrupt(format!("does not list its own device {number}")),
        }
        let active = match label.state {
            STATE_EXPORTED => false,
            STATE_ACTIVE => true,
            other => return corrupt(format!("unknown state {other}")),
        };
        let host = HostId { id: label.host_id.get(), name: text_of(&label.host_name) };
        let named = label.features.iter().take(usize::from(label.feature_count.get()));
        let config = Config {
            pool_guid: label.pool_guid.get(),
            pool_name: text_of(&label.pool_name),
            generation: label.generation.get(),
            txg: label.txg.get(),
            active,
            host,
            sector_bytes,
            features: named.map(|name| text_of(name)).collect(),
            devices,
        };
        Ok(Self { config, number })
    }
}

fn check_versions(label: &LabelPhys, name: &str) -> Result<()> {
    let unsupported = |text| Err(Error::new(ErrorKind::Unsupported, text));
    let (pool, version) = (text_of(&label.pool_name), label.version.get());
    if version != VERSION {
        return unsupported(format!(
            "{name}: pool {pool:?} has version {version}, this build supports {VERSION}; use another build"
        ));
    }
    let count = usize::from(label.feature_count.get()).min(MAX_FEATURES);
    let names = label.features[..count].iter().map(|name| text_of(name));
    let unknown: Vec<_> = names.filter(|name| !FEATURES.contains(&name.as_str())).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let unknown = unknown.join(", ");
    unsupported(format!(
        "{name}: pool {pool:?} has features this build does not support ({unknown}); use a newer build"
    ))
}

/// Decodes the devices, ordered by number.
fn decode_nodes(label: &LabelPhys) -> Result<Vec<DeviceConfig>> {
    let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
    let (count, nodes) = (usize::from(label.device_count.get()), label.node_count.get());
    if count == 0 || count > MAX_DEVICES || usize::from(nodes) > MAX_NODES {
        return corrupt(format!("invalid counts: {count} devices in {nodes} nodes"));
    }
    let mut devices: Vec<Option<DeviceConfig>> = vec![None; count];
    for (at, node) in label.nodes[..usize::from(nodes)].iter().enumerate() {
        let Some(kind) = NodeKind::from_raw(node.kind) else {
            let text = format!("node {at} has the unknown kind {}", node.kind);
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        // This version writes only one stripe with disks under it.
        let fits = match kind {
            NodeKind::Stripe => at == 0 && node.parent.get() == NO_PARENT,
            NodeKind::Disk => at > 0 && node.parent.get() == 0,
        };
        if !fits {
            return corrupt(format!("node {at} ({node:?}) is misplaced"));
        }
        if kind == NodeKind::Disk {
            place_device(&mut devices, node)?;
        }
    }
    let devices: Vec<_> = devices.into_iter().flatten().collect();
    if devices.len() != count {
        return corrupt(format!("has {count} devices but describes {}", devices.len()));
    }
    Ok(devices)
}

fn place_device(devices: &mut [Option<DeviceConfig>], node: &NodePhys) -> Result<()> {
    let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
    let (guid, size_bytes) = (node.guid.get(), node.size_bytes.get());
    // Limit of block addresses.
    let most = 1 << 57;
    if size_bytes % LABEL_BYTES != 0 || !(MIN_DEVICE_BYTES..most).contains(&size_bytes) {
        return corrupt(format!("invalid device size of {size_bytes} bytes"));
    }
    if devices.iter().flatten().any(|other| other.guid == guid) {
        return corrupt(format!("two devices have the guid {guid:#x}"));
    }
    match devices.get_mut(usize::from(node.number.get())) {
        Some(slot @ None) => *slot = Some(DeviceConfig { guid, size_bytes }),
        _ => return corrupt(format!("device number {} is invalid or used twice", node.number)),
    }
    Ok(())
}

/// Stores a text, truncated at a character boundary and zero-padded.
pub(super) fn put_text(to: &mut [u8], text: &str) {
    let mut len = text.len().min(to.len());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    to.fill(0);
    to[..len].copy_from_slice(&text.as_bytes()[..len]);
}

/// Returns the text up to the first zero. Replaces invalid UTF-8.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

const _: () = assert!(FEATURE_BYTES <= NAME_BYTES);
