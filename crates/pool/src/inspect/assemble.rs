//! Assembles a pool from opened devices: by their labels, as an import does, but with missing
//! devices.
//!
//! A missing device is replaced by an empty one, so that blocks on the other devices can be read. A
//! single device without a valid label replaces a single missing one. Without any label, the
//! devices are numbered in the given order, and the uberblocks supply the rest.

use forebay_base::sync::Arc;
use forebay_io::Device;
use zerocopy::FromBytes;

use super::Inspector;
use super::labels::{label_places, read_at};
use crate::devices::config::{Label, LeafConfig, LeafErrors, VdevConfig, VdevKind};
use crate::devices::import::newest_config;
use crate::devices::label::{self, Ring, Uberblock};
use crate::devices::{Devices, Leaf, Vdev, usable_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{
    LABEL_BYTES, LOG_VDEV, RING_OFFSET, RING_SLOTS, SLOT_BYTES, StoredState, UberblockPhys,
};
use crate::open::Opened;

/// The devices of a pool, as far as they are present.
pub(super) struct AssembledPool {
    pub(super) devices: Arc<Devices>,
    /// Newest first.
    pub(super) uberblocks: Vec<Uberblock>,
    pub(super) notices: Vec<String>,
    /// Whether the sector size is a guess.
    pub(super) sectors_guessed: bool,
}

/// A vdev that the pool should have, and the devices of it that are there.
struct WantedVdev {
    config: VdevConfig,
    devices: Vec<Option<Arc<dyn Device>>>,
}

impl Inspector {
    /// Assembles the pool. Without labels it uses sectors of `sector_bytes`.
    pub(super) fn assemble(&self, sector_bytes: Option<u64>) -> Result<AssembledPool> {
        let mut notices = Vec::new();
        let (mut labelled, mut others) = (Vec::new(), Vec::new());
        for device in &self.devices {
            let name = &device.info().name;
            let why = match label::read(&**device, &self.cache) {
                Ok(Some(label)) => {
                    labelled.push((Opened::from(Arc::clone(device)), label));
                    continue;
                }
                Ok(None) => "it has no valid label".to_owned(),
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
                Err(error) => error.to_string(),
            };
            notices.push(format!("{name}: {why}"));
            others.push(Arc::clone(device));
        }
        match labelled.is_empty() {
            true => self.by_uberblocks(sector_bytes, notices),
            false => self.by_labels(&labelled, others, notices),
        }
    }

    fn by_labels(
        &self,
        labelled: &[(Opened, Label)],
        mut others: Vec<Arc<dyn Device>>,
        mut notices: Vec<String>,
    ) -> Result<AssembledPool> {
        let config = newest_config(labelled)?;
        let want = |config: &VdevConfig| WantedVdev {
            devices: vec![None; config.leaves.len()],
            config: config.clone(),
        };
        let mut wanted: Vec<WantedVdev> = config.vdevs.iter().map(want).collect();
        // The ring of the log is described by the root block, and not looked at.
        for (opened, label) in labelled.iter().filter(|(_, one)| one.number & LOG_VDEV == 0) {
            let guid = label.own().guid;
            let slot = wanted.iter_mut().find_map(|one| {
                let at = one.config.leaves.iter().position(|leaf| leaf.guid == guid)?;
                one.devices.get_mut(at).filter(|slot| slot.is_none())
            });
            match slot {
                Some(slot) => *slot = Some(Arc::clone(&opened.device)),
                None => {
                    let name = &opened.device.info().name;
                    notices.push(format!(
                        "{name} is ignored: it is not a device of the pool, or is given twice"
                    ));
                }
            }
        }
        let numbered = wanted.iter_mut().enumerate();
        let slots = numbered
            .flat_map(|(number, one)| one.devices.iter_mut().map(move |slot| (number, slot)));
        let mut missing: Vec<_> = slots.filter(|(_, slot)| slot.is_none()).collect();
        if let ([(number, slot)], 1) = (&mut *missing, others.len()) {
            notices.push(format!("{}: is taken for device {number}", others[0].info().name));
            **slot = others.pop();
        }
        let rings: Vec<Ring<'_>> = wanted
            .iter()
            .flat_map(|one| one.devices.iter().zip(&one.config.leaves))
            .filter_map(|(device, leaf)| {
                let device = &**device.as_ref()?;
                let size_bytes = leaf.size_bytes.min(usable_bytes(device));
                Some(Ring { device, size_bytes, missed: leaf.missed })
            })
            .collect();
        let uberblocks = label::best_uberblocks(&rings, config.pool_guid, &self.cache)?;
        let sector_bytes = u64::from(config.sector_bytes);
        let devices = Arc::new(build_devices(wanted, sector_bytes, &mut notices)?);
        Ok(AssembledPool { devices, uberblocks, notices, sectors_guessed: false })
    }

    /// Assembles a pool without labels: the newest uberblock identifies the pool.
    fn by_uberblocks(
        &self,
        sector_bytes: Option<u64>,
        mut notices: Vec<String>,
    ) -> Result<AssembledPool> {
        let rings: Vec<Ring<'_>> = self
            .devices
            .iter()
            .map(|one| Ring { device: &**one, size_bytes: usable_bytes(&**one), missed: None })
            .collect();
        let mut newest: Option<(u64, u64)> = None;
        for device in &self.devices {
            for place in label_places(&**device, &self.cache) {
                let bytes = RING_SLOTS as usize * SLOT_BYTES;
                let Ok(ring) = read_at(&**device, place + RING_OFFSET, bytes, &self.cache) else {
                    continue;
                };
                let slots = ring.chunks_exact(SLOT_BYTES).filter_map(|slot| {
                    let phys = UberblockPhys::ref_from_bytes(slot).ok()?;
                    phys.is_sound().then(|| (phys.txg.get(), phys.pool_guid.get()))
                });
                newest = newest.max(slots.max());
            }
        }
        let Some((_, pool_guid)) = newest else {
            let text = format!("neither label nor uberblock is left: {}", notices.join("; "));
            return Err(Error::new(ErrorKind::NotAPool, text));
        };
        let uberblocks = label::best_uberblocks(&rings, pool_guid, &self.cache)?;
        notices.push("no label is left: the devices are numbered as they were given".to_owned());
        let largest = self.devices.iter().map(|one| u64::from(one.info().sector_bytes)).max();
        let sector = sector_bytes.unwrap_or(0).max(largest.unwrap_or(512));
        let wanted = self.devices.iter().map(|device| {
            let leaf = LeafConfig {
                guid: 0,
                // A shorter device has no space for blocks.
                size_bytes: usable_bytes(&**device).max(2 * LABEL_BYTES),
                sector_bytes: device.info().sector_bytes,
                state: StoredState::Online,
                missed: None,
                replaces: None,
                errors: LeafErrors::default(),
            };
            let config = VdevConfig { guid: 0, kind: VdevKind::Device, leaves: vec![leaf] };
            WantedVdev { config, devices: vec![Some(Arc::clone(device))] }
        });
        let devices = Arc::new(build_devices(wanted.collect(), sector, &mut notices)?);
        Ok(AssembledPool { devices, uberblocks, notices, sectors_guessed: sector_bytes.is_none() })
    }
}

fn build_devices(
    wanted: Vec<WantedVdev>,
    sector_bytes: u64,
    notices: &mut Vec<String>,
) -> Result<Devices> {
    let mut vdevs = Vec::with_capacity(wanted.len());
    for (number, WantedVdev { mut config, devices }) in wanted.into_iter().enumerate() {
        let mut leaves = Vec::with_capacity(devices.len());
        for (device, known) in devices.into_iter().zip(&mut config.leaves) {
            let (guid, size_bytes) = (known.guid, known.size_bytes);
            let Some(device) = device else {
                notices.push(format!("device {number} ({guid:016x}) is missing"));
                known.state = StoredState::Missing;
                leaves.push(Leaf::missing(&format!("device {number}"), guid, size_bytes)?);
                continue;
            };
            let info = device.info();
            if info.size_bytes < size_bytes {
                let (name, has) = (&info.name, info.size_bytes);
                notices.push(format!(
                    "{name}: has {has} bytes, and had {size_bytes}: it was cut short"
                ));
            }
            // Whatever it misses, it is looked at.
            known.state = StoredState::Online;
            leaves.push(Leaf::to_read(guid, size_bytes, device.into()));
        }
        vdevs.push(Vdev::new(number as u16, &config, leaves, 1));
    }
    Devices::new(vdevs, sector_bytes)
}
