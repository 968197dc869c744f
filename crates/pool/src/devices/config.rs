//! The configuration of a pool, and its encoding in labels.
//!
//! A label with a correct checksum may still be invalid, so every field is checked before it is
//! used.

use forebay_base::rng::SmallRng;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::features::{self, Feature};
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{
    CLASS_DATA, CLASS_LOG, FEATURE_BYTES, LABEL_BYTES, LOG_VDEV, LabelPhys, MAX_FEATURES,
    MAX_LEAVES, MAX_NODES, MAX_VDEVS, MIN_DEVICE_BYTES, NAME_BYTES, NO_PARENT, NodeKind, NodePhys,
    SECTOR_BYTES, SLOT_BYTES, STATE_ACTIVE, STATE_EXPORTED, StoredState, TREE_BYTES, VERSION,
    tree_checksum,
};
use crate::open::HostId;

/// A range of txgs of which a device misses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    pub(crate) from: u64,
    /// The last one; `u64::MAX` if it still misses what is written.
    pub(crate) to: u64,
}

impl Missed {
    /// Whether the device may miss a block of this txg.
    pub(crate) fn contains(&self, txg: u64) -> bool {
        (self.from..=self.to).contains(&txg)
    }
}

/// Failures of a device since it joined the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeafErrors {
    /// Reads that failed.
    pub(crate) reads: u64,
    /// Writes and flushes that failed.
    pub(crate) writes: u64,
    /// Blocks with a wrong checksum.
    pub(crate) checksums: u64,
}

/// A device of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafConfig {
    pub(crate) guid: u64,
    /// Bytes that the pool uses, labels included.
    pub(crate) size_bytes: u64,
    /// The sector size of the device when it joined.
    pub(crate) sector_bytes: u32,
    pub(crate) state: StoredState,
    pub(crate) missed: Option<Missed>,
    /// The GUID of the device of the same vdev that leaves once this one has all blocks.
    pub(crate) replaces: Option<u64>,
    pub(crate) errors: LeafErrors,
}

/// What a top-level vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VdevKind {
    /// One device.
    Device,
    /// Several devices, each of which has all blocks.
    Mirror,
    /// A device that takes each address once. It is the only vdev of its pool.
    ObjectStore,
}

/// A top-level vdev of the configuration. Its number is its index in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VdevConfig {
    /// That of the device if it is one.
    pub(crate) guid: u64,
    pub(crate) kind: VdevKind,
    /// Its devices, at least one.
    pub(crate) leaves: Vec<LeafConfig>,
}

impl VdevConfig {
    /// The number of a log vdev: another one for each that a pool ever has, so that no address of
    /// an older one is taken for its own.
    pub(crate) fn log_number(&self) -> u16 {
        LOG_VDEV | self.guid as u16
    }

    /// Bytes that the pool uses of each device: the smallest size.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.size_bytes).min().unwrap_or(0)
    }
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
    pub(crate) features: Vec<Feature>,
    /// The vdevs that hold blocks, by number.
    pub(crate) vdevs: Vec<VdevConfig>,
    /// The log vdev.
    pub(crate) log: Option<VdevConfig>,
}

/// A configuration, and the place of the device that stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) config: Config,
    /// The number of the device's top-level vdev.
    pub(crate) number: u16,
    /// The index of the device in it.
    pub(crate) leaf: usize,
}

impl Label {
    /// The device that stores the label.
    pub(crate) fn own(&self) -> &LeafConfig {
        &self.config.vdev(self.number).expect("checked when decoded").leaves[self.leaf]
    }

    /// The first txg that the device may miss, if its newest uberblock is that of `newest`. A label
    /// that states no miss proves all blocks up to its txg, also before the first uberblock.
    pub(crate) fn missing_from(&self, newest: u64) -> u64 {
        match self.own().missed {
            Some(missed) => missed.from.min(newest + 1),
            None => newest.max(self.config.txg).saturating_add(1),
        }
    }
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
    /// The vdev with this number.
    pub(crate) fn vdev(&self, number: u16) -> Option<&VdevConfig> {
        match &self.log {
            Some(log) if log.log_number() == number => Some(log),
            _ => self.vdevs.get(usize::from(number)),
        }
    }

    /// As [`vdev`](Self::vdev), to change it.
    pub(crate) fn vdev_mut(&mut self, number: u16) -> Option<&mut VdevConfig> {
        match &mut self.log {
            Some(log) if log.log_number() == number => Some(log),
            _ => self.vdevs.get_mut(usize::from(number)),
        }
    }

    /// All vdevs with their numbers, that of the log last.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u16, &VdevConfig)> {
        (0..).zip(&self.vdevs).chain(self.log.iter().map(|log| (log.log_number(), log)))
    }

    /// All devices, ordered by vdev, those of the log last.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &LeafConfig> {
        self.numbered().flat_map(|(_, vdev)| &vdev.leaves)
    }

    /// Returns the device with this GUID.
    pub(crate) fn leaf_mut(&mut self, guid: u64) -> Option<&mut LeafConfig> {
        let mut leaves =
            self.vdevs.iter_mut().chain(&mut self.log).flat_map(|vdev| &mut vdev.leaves);
        leaves.find(|leaf| leaf.guid == guid)
    }

    /// Counts what uses each feature.
    pub(crate) fn count_uses(&mut self) {
        let count = |kind| self.numbered().filter(|(_, vdev)| vdev.kind == kind).count() as u64;
        let (mirrors, stores) = (count(VdevKind::Mirror), count(VdevKind::ObjectStore));
        features::set_uses(&mut self.features, features::MIRRORS, mirrors);
        features::set_uses(&mut self.features, features::OBJECT_STORE, stores);
        let logs = u64::from(self.log.is_some());
        features::set_uses(&mut self.features, features::LOG_DEVICE, logs);
        let replacing = self.leaves().filter(|leaf| leaf.replaces.is_some()).count();
        features::set_uses(&mut self.features, features::REPLACING, replacing as u64);
    }

    /// Encodes the configuration block and the tree of a device, in whole slots.
    pub(crate) fn encode(&self, number: u16, leaf: usize) -> Vec<u8> {
        let (head, nodes) = self.encode_parts(number, leaf);
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(nodes.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(SLOT_BYTES), 0);
        bytes
    }

    /// Encodes the configuration block of a device, and the tree that belongs to it.
    pub(crate) fn encode_parts(&self, number: u16, leaf: usize) -> (LabelPhys, Vec<NodePhys>) {
        let nodes = self.encode_nodes();
        let mut label = LabelPhys::empty();
        label.sector_bytes = U32::new(self.sector_bytes);
        label.pool_guid = U64::new(self.pool_guid);
        let own = self.vdev(number).expect("a vdev of the pool");
        label.device_guid = U64::new(own.leaves[leaf].guid);
        label.generation = U64::new(self.generation);
        label.txg = U64::new(self.txg);
        label.host_id = U64::new(self.host.id);
        label.vdev_number = U16::new(number);
        label.vdev_count = U16::new(self.vdevs.len() as u16);
        label.node_count = U16::new(nodes.len() as u16);
        label.state = if self.active { STATE_ACTIVE } else { STATE_EXPORTED };
        put_text(&mut label.pool_name, &self.pool_name);
        put_text(&mut label.host_name, &self.host.name);
        features::encode(&self.features, &mut label);
        label.tree_checksum = tree_checksum(&nodes);
        label.seal();
        (label, nodes)
    }

    fn encode_nodes(&self) -> Vec<NodePhys> {
        assert!(self.leaves().count() <= MAX_LEAVES, "more devices than a pool can have");
        let mut nodes = vec![NodePhys {
            guid: U64::new(self.pool_guid),
            parent: U16::new(NO_PARENT),
            kind: NodeKind::Root as u8,
            ..NodePhys::default()
        }];
        for (number, vdev) in self.numbered() {
            let class = if number & LOG_VDEV == 0 { CLASS_DATA } else { CLASS_LOG };
            let number = U16::new(number);
            let mut parent = 0;
            if vdev.kind == VdevKind::Mirror {
                parent = nodes.len() as u16;
                let (guid, kind) = (U64::new(vdev.guid), NodeKind::Mirror as u8);
                nodes.push(NodePhys { guid, number, kind, class, ..NodePhys::default() });
            }
            let kind = match vdev.kind {
                VdevKind::ObjectStore => NodeKind::ObjectStore as u8,
                VdevKind::Device | VdevKind::Mirror => NodeKind::Device as u8,
            };
            let first = nodes.len();
            for (at, leaf) in vdev.leaves.iter().enumerate() {
                let is_old = |old: &LeafConfig| Some(old.guid) == leaf.replaces;
                let old = vdev.leaves[..at].iter().position(is_old);
                let parent = U16::new(old.map_or(parent, |old| (first + old) as u16));
                nodes.push(NodePhys { parent, number, kind, class, ..encode_leaf(leaf) });
            }
        }
        assert!(nodes.len() <= MAX_NODES, "more nodes than a label can hold");
        nodes
    }
}

fn encode_leaf(leaf: &LeafConfig) -> NodePhys {
    let (from, to) = leaf.missed.map_or((0, 0), |missed| (missed.from, missed.to));
    NodePhys {
        guid: U64::new(leaf.guid),
        size_bytes: U64::new(leaf.size_bytes),
        kind: NodeKind::Device as u8,
        state: leaf.state as u8,
        sector_shift: leaf.sector_bytes.trailing_zeros() as u8,
        missed_from: U64::new(from),
        missed_to: U64::new(to),
        read_errors: U64::new(leaf.errors.reads),
        write_errors: U64::new(leaf.errors.writes),
        checksum_errors: U64::new(leaf.errors.checksums),
        ..NodePhys::default()
    }
}

/// The bytes of a label up to the heartbeat, undecoded.
pub(crate) struct LabelBytes<'a> {
    pub(crate) head: &'a LabelPhys,
    /// The space of the tree.
    pub(crate) tree: &'a [NodePhys],
}

impl<'a> LabelBytes<'a> {
    /// Of bytes that were read from the start of a label.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let (head, tree) = bytes.split_at_checked(SLOT_BYTES)?;
        let tree = <[NodePhys]>::ref_from_bytes(tree.get(..TREE_BYTES)?).ok()?;
        Some(Self { head: LabelPhys::ref_from_bytes(head).ok()?, tree })
    }

    /// The nodes of the tree; `None` if they do not match the configuration block.
    pub(crate) fn nodes(&self) -> Option<&[NodePhys]> {
        let nodes = self.tree.get(..usize::from(self.head.node_count.get()))?;
        (tree_checksum(nodes) == self.head.tree_checksum).then_some(nodes)
    }
}

impl Label {
    /// Decodes a label found on device `name`; `None` if a checksum is wrong.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for another version or an unknown feature that forbids to read,
    /// [`ErrorKind::Corrupt`] if the content is invalid.
    pub(crate) fn decode(label: &LabelBytes<'_>, name: &str) -> Result<Option<Self>> {
        let head = label.head;
        if !head.is_sound() {
            return Ok(None);
        }
        let (pool, version) = (text_of(&head.pool_name), head.version.get());
        if version != VERSION {
            let text = format!(
                "{name}: pool {pool:?} has version {version}, this build supports {VERSION}; use another build"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let features = features::decode(head);
        features::check(&features, &format!("{name}: pool {pool:?}"), true)?;
        let Some(nodes) = label.nodes() else { return Ok(None) };
        match Self::decode_checked(head, nodes, features) {
            Ok(label) => Ok(Some(label)),
            Err(error) => Err(error.doing(format_args!("{name}: its label"))),
        }
    }

    fn decode_checked(
        label: &LabelPhys,
        nodes: &[NodePhys],
        features: Vec<Feature>,
    ) -> Result<Self> {
        let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
        let sector_bytes = label.sector_bytes.get();
        if !sector_bytes.is_power_of_two() || !SECTOR_BYTES.contains(&sector_bytes) {
            return corrupt(format!("invalid sector size of {sector_bytes} bytes"));
        }
        if usize::from(label.feature_count.get()) > MAX_FEATURES {
            return corrupt(format!("invalid count of {} features", label.feature_count));
        }
        let (vdevs, log) = decode_nodes(label, nodes)?;
        let (number, guid) = (label.vdev_number.get(), label.device_guid.get());
        let active = match label.state {
            STATE_EXPORTED => false,
            STATE_ACTIVE => true,
            other => return corrupt(format!("unknown state {other}")),
        };
        let host = HostId { id: label.host_id.get(), name: text_of(&label.host_name) };
        let config = Config {
            pool_guid: label.pool_guid.get(),
            pool_name: text_of(&label.pool_name),
            generation: label.generation.get(),
            txg: label.txg.get(),
            active,
            host,
            sector_bytes,
            features,
            vdevs,
            log,
        };
        let own = config.vdev(number);
        let leaf = own.and_then(|own| own.leaves.iter().position(|leaf| leaf.guid == guid));
        let Some(leaf) = leaf else {
            return corrupt(format!("does not list its own device in vdev {number}"));
        };
        Ok(Self { config, number, leaf })
    }
}

/// Decodes the top-level vdevs, ordered by number, and the log vdev.
fn decode_nodes(
    label: &LabelPhys,
    nodes: &[NodePhys],
) -> Result<(Vec<VdevConfig>, Option<VdevConfig>)> {
    let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
    let count = usize::from(label.vdev_count.get());
    if count == 0 || count > MAX_VDEVS {
        return corrupt(format!("invalid count of {count} vdevs"));
    }
    let mut vdevs: Vec<Option<VdevConfig>> = vec![None; count];
    let mut log: Option<VdevConfig> = None;
    let mut guids = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let is_known = matches!(node.class, CLASS_DATA | CLASS_LOG);
        let kind = NodeKind::from_raw(node.kind).filter(|_| is_known);
        let Some(kind) = kind else {
            let (kind, class) = (node.kind, node.class);
            let text = format!("node {at} has the unknown kind {kind} or class {class}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let misplaced = || corrupt(format!("node {at} ({node:?}) is misplaced"));
        if (kind == NodeKind::Root) != (at == 0) {
            return misplaced();
        }
        if kind == NodeKind::Root {
            continue;
        }
        let guid = node.guid.get();
        if guids.contains(&guid) {
            return corrupt(format!("two nodes have the guid {guid:#x}"));
        }
        guids.push(guid);
        let is_log = node.class == CLASS_LOG;
        let slot = match is_log {
            true => Some(&mut log),
            false => vdevs.get_mut(usize::from(node.number.get())),
        };
        let Some(slot) = slot else { return misplaced() };
        let parent = nodes.get(usize::from(node.parent.get()));
        match (kind, slot, usize::from(node.parent.get())) {
            (NodeKind::Mirror, slot @ None, 0) => {
                *slot = Some(VdevConfig { guid, kind: VdevKind::Mirror, leaves: Vec::new() });
            }
            (NodeKind::Device, slot @ None, 0) => {
                let leaves = vec![decode_leaf(node)?];
                *slot = Some(VdevConfig { guid, kind: VdevKind::Device, leaves });
            }
            (NodeKind::ObjectStore, slot @ None, 0) if count == 1 && !is_log => {
                let leaves = vec![decode_leaf(node)?];
                *slot = Some(VdevConfig { guid, kind: VdevKind::ObjectStore, leaves });
            }
            (NodeKind::Device, Some(vdev), _) if vdev.kind == VdevKind::Mirror => {
                let parent = parent.map_or(0, |parent| parent.guid.get());
                let replaces = Some(parent).filter(|parent| *parent != vdev.guid);
                let is_old = |old: &LeafConfig| old.guid == parent && old.replaces.is_none();
                let is_taken = vdev.leaves.iter().any(|other| other.replaces == replaces);
                if replaces.is_some() && (is_taken || !vdev.leaves.iter().any(is_old)) {
                    return misplaced();
                }
                vdev.leaves.push(LeafConfig { replaces, ..decode_leaf(node)? });
            }
            _ => return misplaced(),
        }
        if is_log && log.as_ref().map(VdevConfig::log_number) != Some(node.number.get()) {
            return misplaced();
        }
    }
    let found: Vec<_> = vdevs.into_iter().flatten().collect();
    check_counts(count, &found, log.as_ref())?;
    Ok((found, log))
}

/// Checks that all vdevs are described, and how many devices there are.
fn check_counts(count: usize, found: &[VdevConfig], log: Option<&VdevConfig>) -> Result<()> {
    let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
    let leaves: usize = found.iter().chain(log).map(|vdev| vdev.leaves.len()).sum();
    if found.len() != count || found.iter().chain(log).any(|vdev| vdev.leaves.is_empty()) {
        return corrupt(format!("has {count} vdevs but describes {}", found.len()));
    }
    match leaves > MAX_LEAVES {
        true => corrupt(format!("has {leaves} devices")),
        false => Ok(()),
    }
}

fn decode_leaf(node: &NodePhys) -> Result<LeafConfig> {
    let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
    let (guid, size_bytes) = (node.guid.get(), node.size_bytes.get());
    // Limit of block addresses.
    let most = 1 << 57;
    if size_bytes % LABEL_BYTES != 0 || !(MIN_DEVICE_BYTES..most).contains(&size_bytes) {
        return corrupt(format!("invalid device size of {size_bytes} bytes"));
    }
    let sector_bytes = 1_u32.checked_shl(node.sector_shift.into()).unwrap_or(0);
    if sector_bytes == 0 {
        return corrupt(format!("invalid sector size of 2^{} bytes", node.sector_shift));
    }
    let Some(state) = StoredState::from_raw(node.state) else {
        let text = format!("device {guid:#x} has the unknown state {}", node.state);
        return Err(Error::new(ErrorKind::Unsupported, text));
    };
    let (from, to) = (node.missed_from.get(), node.missed_to.get());
    if from > to {
        return corrupt(format!("invalid missed txgs {from} to {to}"));
    }
    let missed = (from > 0).then_some(Missed { from, to });
    let errors = LeafErrors {
        reads: node.read_errors.get(),
        writes: node.write_errors.get(),
        checksums: node.checksum_errors.get(),
    };
    Ok(LeafConfig { guid, size_bytes, sector_bytes, state, missed, replaces: None, errors })
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
