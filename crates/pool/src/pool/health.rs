//! The health of a pool, in one word and with its reasons.

use std::fmt;

use crate::devices::config::VdevKind;
use crate::devices::status::STILL;
use crate::devices::vdev::LeafState;
use crate::l2::L2DeviceState;

use super::{Pool, PoolInner};

/// The health of an imported pool, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum HealthState {
    /// Nothing is wrong.
    #[default]
    Online,
    /// No data is known to be lost, but a device has errors, an L2 device cannot be used, or a
    /// block has a bad copy.
    Degraded,
    /// The error log names damage: data or metadata without a good copy. Or the pool is imported
    /// read-only without a device, or without structures that cannot be read.
    Damaged,
    /// Nothing is written any more.
    Suspended,
}

impl HealthState {
    /// The state as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Degraded => "degraded",
            Self::Damaged => "damaged",
            Self::Suspended => "suspended",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The health of an imported pool.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PoolHealth {
    /// The health, of the worst reason.
    pub state: HealthState,
    /// What is wrong, worst first.
    pub reasons: Vec<String>,
}

impl PoolHealth {
    fn add(&mut self, state: HealthState, reason: String) {
        self.state = self.state.max(state);
        self.reasons.push(reason);
    }
}

impl Pool {
    /// The health of the pool, as far as it is known in memory. Reads nothing from devices.
    pub fn health(&self) -> PoolHealth {
        self.inner.health()
    }
}

impl PoolInner {
    fn health(&self) -> PoolHealth {
        let mut health = PoolHealth::default();
        if let Some(suspension) = self.txgs.suspension() {
            health.add(HealthState::Suspended, suspension.to_string());
        }
        if self.read_only {
            self.import_notes
                .iter()
                .for_each(|note| health.add(HealthState::Damaged, note.clone()));
        }
        let errors = self.store.errors().counts();
        if errors.lost > 0 {
            let text = format!("{} without a good copy", counted(errors.lost, "range of blocks"));
            health.add(HealthState::Damaged, text);
        }
        if errors.unlisted > 0 {
            let text = format!("{} did not fit the error log", counted(errors.unlisted, "error"));
            health.add(HealthState::Damaged, text);
        }
        if errors.bad_copies > 0 {
            let text = format!("{} with a bad copy", counted(errors.bad_copies, "range of blocks"));
            health.add(HealthState::Degraded, text);
        }
        self.add_devices(&mut health);
        self.add_log(&mut health);
        self.add_l2_devices(&mut health);
        health
    }

    fn add_devices(&self, health: &mut PoolHealth) {
        let resilvers = self.resilver.is_active();
        for vdev in self.devices.iter() {
            let gets_all = |at| vdev.status().missed(at).is_some_and(|one| one.to != STILL);
            for (at, leaf) in vdev.leaves() {
                let state = vdev.leaf_state(at);
                if vdev.kind() == VdevKind::Mirror && state != LeafState::Online {
                    let (mirror, name) = (vdev.number(), leaf.name());
                    let text = match state {
                        LeafState::Degraded if resilvers && gets_all(at) => format!(
                            "device {name} of mirror {mirror} misses blocks; a resilver brings them back"
                        ),
                        LeafState::Degraded => format!(
                            "device {name} of mirror {mirror} misses blocks; `forebay online` brings them back"
                        ),
                        LeafState::Missing => format!("{name}; the mirror goes on without it"),
                        _ => format!(
                            "device {name} of mirror {mirror} is {state}; `forebay online` brings it back"
                        ),
                    };
                    health.add(HealthState::Degraded, text);
                } else if let Some(trouble) = leaf.trouble() {
                    health.add(HealthState::Degraded, trouble);
                }
            }
        }
    }

    /// A log vdev that fails takes nothing with it, but fsyncs are slower without it.
    fn add_log(&self, health: &mut PoolHealth) {
        let Some(log) = self.devices.log() else { return };
        for (at, leaf) in log.leaves() {
            let name = leaf.name();
            let text = match log.leaf_state(at) {
                LeafState::Online | LeafState::Degraded => match leaf.trouble() {
                    Some(trouble) => trouble,
                    None => continue,
                },
                LeafState::Missing => name.to_owned(),
                state => {
                    format!("log device {name} is {state}; `forebay clear` tries it again")
                }
            };
            health.add(HealthState::Degraded, text);
        }
        if !self.devices.has_usable_log() {
            let text = "the intent log is on the other devices of the pool, without its log device";
            health.add(HealthState::Degraded, text.to_owned());
        }
    }

    fn add_l2_devices(&self, health: &mut PoolHealth) {
        if let Some(why) = self.l2_devices.damage() {
            health.add(HealthState::Degraded, format!("no L2 device is used: {why}"));
        }
        let wanted = self.l2_devices.are_wanted();
        for device in self.l2_devices.info() {
            let why = match &device.state {
                L2DeviceState::Failed(why) => why,
                L2DeviceState::Unavailable(why) if wanted => why,
                _ => continue,
            };
            let (path, state) = (&device.path, device.state.name());
            health.add(HealthState::Degraded, format!("L2 device {path}: {state}: {why}"));
        }
    }
}

fn counted(count: u64, one: &str) -> String {
    match (count, one.split_once(' ')) {
        (1, _) => format!("1 {one}"),
        (_, Some((first, rest))) => format!("{count} {first}s {rest}"),
        (_, None) => format!("{count} {one}s"),
    }
}
