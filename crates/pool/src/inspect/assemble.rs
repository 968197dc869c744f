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
use crate::devices::config::Label;
use crate::devices::import::newest_config;
use crate::devices::label::{self, Uberblock};
use crate::devices::{Devices, Member, usable_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{LABEL_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES, UberblockPhys};
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

/// A device that the pool should have.
struct WantedDevice {
    guid: u64,
    size_bytes: u64,
    device: Option<Arc<dyn Device>>,
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
        let mut wanted: Vec<WantedDevice> = config
            .devices
            .iter()
            .map(|known| WantedDevice {
                guid: known.guid,
                size_bytes: known.size_bytes,
                device: None,
            })
            .collect();
        for (opened, label) in labelled {
            let guid = label.config.devices[usize::from(label.number)].guid;
            match wanted.iter_mut().find(|one| one.guid == guid && one.device.is_none()) {
                Some(one) => one.device = Some(Arc::clone(&opened.device)),
                None => {
                    let name = &opened.device.info().name;
                    notices.push(format!(
                        "{name} is ignored: it is not a device of the pool, or is given twice"
                    ));
                }
            }
        }
        let missing: Vec<usize> =
            (0..wanted.len()).filter(|number| wanted[*number].device.is_none()).collect();
        if let ([number], 1) = (&*missing, others.len()) {
            notices.push(format!("{}: is taken for device {number}", others[0].info().name));
            wanted[*number].device = others.pop();
        }
        let sized: Vec<(&dyn Device, u64)> = wanted
            .iter()
            .filter_map(|one| {
                let device = &**one.device.as_ref()?;
                Some((device, one.size_bytes.min(usable_bytes(device))))
            })
            .collect();
        let uberblocks = label::best_uberblocks(&sized, config.pool_guid, &self.cache)?;
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
        let sized: Vec<(&dyn Device, u64)> =
            self.devices.iter().map(|device| (&**device, usable_bytes(&**device))).collect();
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
        let uberblocks = label::best_uberblocks(&sized, pool_guid, &self.cache)?;
        notices.push("no label is left: the devices are numbered as they were given".to_owned());
        let largest = self.devices.iter().map(|one| u64::from(one.info().sector_bytes)).max();
        let sector = sector_bytes.unwrap_or(0).max(largest.unwrap_or(512));
        let wanted = self.devices.iter().map(|device| WantedDevice {
            guid: 0,
            // A shorter device has no space for blocks.
            size_bytes: usable_bytes(&**device).max(2 * LABEL_BYTES),
            device: Some(Arc::clone(device)),
        });
        let devices = Arc::new(build_devices(wanted.collect(), sector, &mut notices)?);
        Ok(AssembledPool { devices, uberblocks, notices, sectors_guessed: sector_bytes.is_none() })
    }
}

fn build_devices(
    wanted: Vec<WantedDevice>,
    sector_bytes: u64,
    notices: &mut Vec<String>,
) -> Result<Devices> {
    let members = wanted.into_iter().enumerate().map(|(number, one)| {
        let of = (number as u16, one.guid);
        let Some(device) = one.device else {
            notices.push(format!("device {number} ({:016x}) is missing", one.guid));
            return Member::missing(of, one.size_bytes);
        };
        let info = device.info();
        if info.size_bytes < one.size_bytes {
            let (name, has, had) = (&info.name, info.size_bytes, one.size_bytes);
            notices.push(format!("{name}: has {has} bytes, and had {had}: it was cut short"));
        }
        Ok(Member::to_read(of, one.size_bytes, device.into()))
    });
    Devices::new(members.collect::<Result<_>>()?, sector_bytes)
}
