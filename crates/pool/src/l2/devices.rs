//! The L2 devices of a pool: adds, removes, opens and closes them, and decides which to trust.
//!
//! The pool stores a list of the devices with their paths, see [`L2Host`]. An import opens the
//! devices that it finds. A missing, damaged or foreign device is reported and otherwise ignored. A
//! read-only import uses none.
//!
//! # Locking
//!
//! `pool-l2-watcher`: the thread that waits for rebuilds; joined after the L2s are closed.
//! `pool-l2-changing`: held while a device is added or removed, also during I/O and while waiting
//! for a txg; never taken in a transaction. `pool-l2-devices`: the list in memory. The state of
//! each L2 is read under it.

use std::mem;

use forebay_base::arena::Buffer;
use forebay_base::clock::Clock;
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::Cache;
use forebay_io::Device;
use forebay_io::metrics::Metrics;
use hashbrown::HashMap;

use super::device::{self, L2Context, L2DeviceStats, OpenL2Device};
use super::locked_device::{self, DeviceCloser, DeviceLock};
use super::pool_l2::PoolL2;
use super::router::L2Cache;
use super::warm_up::HostDatasetOpener;
use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::events::EventKind;
use crate::format::{L2_DEVICES_MAX, L2_PATH_BYTES, L2DevicePhys};
use crate::open::Opened;

/// Blocks per batch that an export offers to L2 devices.
const FILL_BATCH: usize = 64;

/// The operations of a pool that its L2 devices need.
pub(crate) trait L2Host: Send + Sync {
    /// The parts of the pool that each L2 uses.
    fn context(&self) -> L2Context<'_>;

    /// The L2 devices.
    fn l2_devices(&self) -> &L2Devices;

    /// Returns a random number from the pool's generator.
    fn random(&self) -> u64;

    /// Whether the pool is closed.
    fn is_closed(&self) -> bool;

    /// Checks that a device may become an L2 device of this pool. `listed` means that it already is
    /// one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a device of this pool; [`ErrorKind::Exists`] for a device of
    /// another pool, unless `force` is set.
    fn check_new_device(&self, device: &Arc<dyn Device>, listed: bool, force: bool) -> Result<()>;

    /// Replaces the stored list by `entries(txg)`, durably.
    fn store_list(&self, entries: &mut dyn FnMut(u64) -> Vec<L2DevicePhys>) -> Result<()>;

    /// Replaces the stored list in the open txg. Waits neither for the commit nor for free space.
    fn store_list_non_blocking(&self, entries: &[L2DevicePhys]) -> Result<()>;

    /// Omits the list from root blocks until it is stored again.
    fn omit_list(&self);

    /// Returns the names of all datasets by number.
    fn dataset_names(&self) -> Result<HashMap<u64, String>>;

    /// Opens a dataset, which registers its owner. Errors are ignored.
    fn open_dataset(&self, name: &str);
}

/// An L2 device of a pool.
#[derive(Clone, Debug)]
pub struct L2Device {
    /// The GUID of the L2.
    pub guid: u64,
    /// The path, or the last known one.
    pub path: String,
    /// Size of the device in bytes when it was added.
    pub size_bytes: u64,
    /// State of the device.
    pub state: L2DeviceState,
    /// Statistics of the L2, if it is in use.
    pub stats: Option<L2DeviceStats>,
    /// What was requested of it since it was opened, and how long that took, if it is in use.
    pub io: Option<Metrics>,
}

/// State of an L2 device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum L2DeviceState {
    /// In use.
    Active,
    /// In use; the index is being rebuilt.
    Rebuilding,
    /// The device has failed, with the reason. It serves no blocks and should be removed.
    Failed(String),
    /// Not in use, with the reason.
    Unavailable(String),
}

impl L2DeviceState {
    /// The state as a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Rebuilding => "rebuilding",
            Self::Failed(_) => "failed",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// The L2 devices of a pool.
///
/// # Trust
///
/// A key identifies content only while the pool has a single history. If the pool's devices are
/// reset to an older txg, or to an older copy of themselves, txgs and addresses are used a second
/// time. An L2 with blocks of the first use must not serve them. So an L2 is opened with the newest
/// txg that the pool knows, and is emptied if it holds younger blocks. The pool records that txg
/// (`trusted_txg`) in its first commit after the import. It stays recorded until the L2 has rebuilt
/// its index; only then is anything written to the device. If it cannot be recorded, root blocks
/// omit the list until it can be written.
///
/// Two copies of a pool that share an L2 device also have two histories. So each import writes a
/// fresh mark into its list, and then to the device before anything else is written there. A device
/// whose mark is not one of the list's two newest is emptied.
pub(crate) struct L2Devices {
    /// Held while the list changes.
    changing: Mutex<()>,
    state: Mutex<L2DevicesState>,
    /// The thread that waits for index rebuilds.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct L2DevicesState {
    slots: Vec<L2Slot>,
    /// Why the list is unreadable, or `None`.
    damage: Option<String>,
    /// Whether the pool is to be used without L2 devices.
    unwanted: bool,
}

/// A device of the list.
struct L2Slot {
    phys: L2DevicePhys,
    used: L2Availability,
}

enum L2Availability {
    /// With its lock, which requests in flight hold too.
    Open(Arc<OpenL2Device>, Arc<DeviceLock>),
    Unavailable(String),
}

impl L2Devices {
    pub(crate) fn new() -> Self {
        Self {
            changing: Mutex::named("pool-l2-changing", ()),
            state: Mutex::named("pool-l2-devices", L2DevicesState::default()),
            watcher: Mutex::named("pool-l2-watcher", None),
        }
    }

    /// Returns the devices in the order in which they were added.
    pub(crate) fn info(&self) -> Vec<L2Device> {
        self.state.lock().slots.iter().map(L2Slot::info).collect()
    }

    /// Why the list is unreadable, or `None`.
    pub(crate) fn damage(&self) -> Option<String> {
        self.state.lock().damage.clone()
    }

    /// Records that the stored list is unreadable. The pool uses no L2 devices.
    pub(crate) fn set_damage(&self, why: String) {
        self.state.lock().damage = Some(why);
    }

    /// Records that the pool is to be used without the L2 devices that were not passed to the
    /// import.
    pub(crate) fn set_unwanted(&self) {
        self.state.lock().unwanted = true;
    }

    /// Whether a device that is not in use is missed.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.state.lock().unwanted
    }

    /// Records the devices of the list as not in use.
    pub(crate) fn set_unused(&self, entries: Vec<L2DevicePhys>, why: &str) {
        let slot = |phys| L2Slot { phys, used: L2Availability::Unavailable(why.to_owned()) };
        self.state.lock().slots = entries.into_iter().map(slot).collect();
    }

    /// Returns the list in its stored form.
    pub(crate) fn entries(&self) -> Vec<L2DevicePhys> {
        self.state.lock().slots.iter().map(|slot| slot.phys).collect()
    }

    /// Returns the L2 devices in use.
    pub(crate) fn in_use(&self) -> Vec<Arc<OpenL2Device>> {
        let state = self.state.lock();
        let open = |slot: &L2Slot| match &slot.used {
            L2Availability::Open(l2, _) => Some(Arc::clone(l2)),
            L2Availability::Unavailable(_) => None,
        };
        state.slots.iter().filter_map(open).collect()
    }

    /// Returns what closes the devices in use once their L2s are closed.
    pub(crate) fn closers(&self) -> Vec<DeviceCloser> {
        let state = self.state.lock();
        let closer = |slot: &L2Slot| match &slot.used {
            L2Availability::Open(_, lock) => Some(lock.closer()),
            L2Availability::Unavailable(_) => None,
        };
        state.slots.iter().filter_map(closer).collect()
    }

    /// See [`Pool::add_l2_device`](crate::Pool::add_l2_device).
    pub(crate) fn add(&self, host: &dyn L2Host, device: Opened, force: bool) -> Result<u64> {
        let _changing = self.changing.lock();
        if host.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the pool is closed; import it again"));
        }
        let name = device.device.info().name.to_string();
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        // A device listed with the same path is gone; it is replaced.
        let others = |slot: &&L2Slot| slot.phys.path() != name;
        if self.state.lock().slots.iter().filter(others).count() == L2_DEVICES_MAX {
            return invalid(format!("a pool has at most {L2_DEVICES_MAX} L2 devices"));
        }
        if let Some(why) = &self.state.lock().damage {
            return invalid(format!(
                "cannot add an L2 device: the pool's list of them is unreadable: {why}"
            ));
        }
        if name.len() > L2_PATH_BYTES {
            return invalid(format!(
                "{name}: the path of an L2 device has at most {L2_PATH_BYTES} bytes"
            ));
        }
        let listed = self.is_listed(&device.device, &name);
        host.check_new_device(&device.device, listed, force)?;
        let (device, lock) = locked_device::lock(device);
        let size_bytes = device.info().size_bytes;
        let l2 = OpenL2Device::create(device, (&host.context(), host.random()), force)?;
        let guid = l2.guid();
        let recorded = self.change_list(host, |txg, entries| {
            entries.retain(|entry| entry.path() != name);
            // The length of the path was checked above.
            entries.extend(L2DevicePhys::new(guid, size_bytes, txg, &name));
        });
        let entries = match recorded {
            Ok(entries) => entries,
            Err(error) => {
                // The device is in no list, so no import will open it.
                let _ = l2.remove();
                return Err(error);
            }
        };
        if let Some(phys) = entries.last() {
            let used = L2Availability::Open(Arc::clone(&l2), lock);
            let mut state = self.state.lock();
            state.slots.retain(|slot| slot.phys.path() != name);
            state.slots.push(L2Slot { phys: *phys, used });
        }
        l2.admit();
        host.context().l2.attach(l2 as Arc<dyn L2Cache>);
        Ok(guid)
    }

    fn is_listed(&self, device: &Arc<dyn Device>, name: &str) -> bool {
        let holds = device::guid_of(device);
        self.in_use().iter().any(|l2| l2.name() == name)
            || self.entries().iter().any(|entry| Some(entry.guid.get()) == holds)
    }

    /// See [`Pool::remove_l2_device`](crate::Pool::remove_l2_device).
    pub(crate) fn remove(&self, host: &dyn L2Host, name: &str) -> Result<()> {
        let _changing = self.changing.lock();
        let named = |slot: &L2Slot| {
            slot.phys.path() == name || format!("{:016x}", slot.phys.guid.get()) == name
        };
        let guid = {
            let state = self.state.lock();
            state.slots.iter().find(|slot| named(slot)).map(|slot| slot.phys.guid.get())
        };
        let Some(guid) = guid else {
            let text = format!("pool {} has no L2 device {name}", host.context().pool_name);
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        self.change_list(host, |_, entries| entries.retain(|entry| entry.guid.get() != guid))?;
        let slot = {
            let mut state = self.state.lock();
            let at = state.slots.iter().position(|slot| slot.phys.guid.get() == guid);
            at.map(|at| state.slots.remove(at))
        };
        let Some(L2Slot { used: L2Availability::Open(l2, _lock), .. }) = slot else {
            return Ok(());
        };
        detach(host, &l2);
        let removed = l2.remove();
        removed.map_err(|error| {
            error.doing(format_args!(
                "{name} was removed from the pool, but its label could not be erased"
            ))
        })
    }

    /// Changes the list, durably, and returns it.
    fn change_list(
        &self,
        host: &dyn L2Host,
        change: impl Fn(u64, &mut Vec<L2DevicePhys>),
    ) -> Result<Vec<L2DevicePhys>> {
        let mut entries = self.entries();
        host.store_list(&mut |txg| {
            change(txg, &mut entries);
            entries.clone()
        })?;
        Ok(entries)
    }

    /// Opens the devices of the list. Some may be `given`; with `search` the others are opened at
    /// their stored paths.
    pub(crate) fn open(
        &self,
        host: &Arc<dyn L2Host>,
        entries: Vec<L2DevicePhys>,
        mut given: Vec<Opened>,
        search: bool,
        root_txg: u64,
    ) {
        if entries.is_empty() {
            return;
        }
        let guids: Vec<u64> = entries.iter().map(|entry| entry.guid.get()).collect();
        let open = |mut phys: L2DevicePhys| {
            let trusted = match phys.trusted_txg.get() {
                0 => root_txg,
                txg => txg.min(root_txg),
            };
            phys.trusted_txg = trusted.into();
            let used = match open_device(&**host, &phys, &guids, &mut given, search) {
                Ok((l2, lock)) => L2Availability::Open(l2, lock),
                Err(why) => {
                    let path = phys.path();
                    let lost = device::lost_device(&path, &why);
                    host.context().events.note(EventKind::L2Lost, lost);
                    L2Availability::Unavailable(why)
                }
            };
            L2Slot { phys, used }
        };
        let slots: Vec<L2Slot> = entries.into_iter().map(open).collect();
        self.state.lock().slots = slots;
        let recorded =
            host.store_list_non_blocking(&self.entries()).and_then(|()| self.watch(host));
        if let Err(error) = recorded {
            // Without the recorded txg, the next import would trust these devices up to its own
            // txg. So root blocks must not name them.
            host.omit_list();
            self.close(&**host, &format!("their trusted txg cannot be noted: {error}"));
            return;
        }
        for l2 in self.in_use() {
            host.context().l2.attach(l2 as Arc<dyn L2Cache>);
        }
    }

    /// Starts a thread that waits for the index rebuilds and then records that the L2 devices are
    /// trusted.
    fn watch(&self, host: &Arc<dyn L2Host>) -> Result<()> {
        let host = Arc::clone(host);
        let watcher = thread::spawn_named("forebay-cache-list", move || {
            let l2 = host.l2_devices().in_use().into_iter().filter(|l2| l2.wait_rebuilt());
            let rebuilt: Vec<_> = l2.collect();
            // On failure nothing is written to the devices, and the next import finds them as this
            // one did.
            let _ = host.l2_devices().record_rebuilt(&*host, &rebuilt);
        });
        let watcher = watcher.map_err(|error| Error::no_thread("L2 devices", error))?;
        *self.watcher.lock() = Some(watcher);
        Ok(())
    }

    /// Records the rebuilt devices as trusted, and then allows writes to them.
    fn record_rebuilt(&self, host: &dyn L2Host, rebuilt: &[Arc<OpenL2Device>]) -> Result<()> {
        if rebuilt.is_empty() {
            return Ok(());
        }
        let _changing = self.changing.lock();
        for slot in &mut self.state.lock().slots {
            if let L2Availability::Open(l2, _) = &slot.used
                && rebuilt.iter().any(|other| Arc::ptr_eq(other, l2))
            {
                // An emptied L2 has a new GUID.
                slot.phys.guid = l2.guid().into();
                slot.phys.trusted_txg = 0.into();
                // The list is written first, then the device. A crash in between leaves the
                // previous mark on the device.
                let before = l2.mark();
                let fresh = host.random() ^ before.rotate_left(23);
                (slot.phys.mark_before, slot.phys.mark) = (before.into(), fresh.into());
            }
        }
        let entries = self.change_list(host, |_, _| {})?;
        for l2 in rebuilt {
            let entry = entries.iter().find(|entry| entry.guid.get() == l2.guid());
            // An L2 whose mark cannot be written is only read.
            if entry.is_some_and(|entry| l2.set_mark(entry.mark.get()).is_ok()) {
                l2.admit();
            }
        }
        Ok(())
    }

    /// Writes blocks that are in memory only to the L2 devices, for at most `allowed_ns`, so that
    /// the next import starts warm. Returns whether nothing was left for lack of time or room.
    pub(crate) fn fill(&self, host: &dyn L2Host, allowed_ns: u64) -> bool {
        if allowed_ns == 0 || !self.in_use().iter().any(|l2| l2.admits()) {
            return true;
        }
        let L2Context { clock, l2, cache, .. } = host.context();
        fill(cache, (&**clock, allowed_ns), l2)
    }

    /// Starts the warm-up of all L2 devices, in the background.
    pub(crate) fn warm_up(&self, host: &Arc<dyn L2Host>) {
        let opener = Arc::new(HostDatasetOpener::new(host));
        let context = host.context();
        context.l2.set_dataset_opener(opener);
        for l2 in self.in_use() {
            l2.warm_up(context.cache.warm_up());
        }
    }

    /// Closes all L2 devices. Their content stays.
    pub(crate) fn close(&self, host: &dyn L2Host, why: &str) {
        {
            // A concurrent `add` finishes first and attaches its device. A later one finds the pool
            // closed.
            let _changing = self.changing.lock();
            for l2 in self.in_use() {
                detach(host, &l2);
                l2.close();
            }
        }
        let watcher = self.watcher.lock().take();
        // The panic hook has already reported a panic of the thread.
        watcher.map(JoinHandle::join);
        let closed: Vec<_> = {
            let mut state = self.state.lock();
            let unused = || L2Availability::Unavailable(why.to_owned());
            state.slots.iter_mut().map(|slot| mem::replace(&mut slot.used, unused())).collect()
        };
        // Closes the devices, but for those with requests that hang.
        drop(closed);
    }
}

/// See [`L2Devices::fill`].
pub(super) fn fill(
    cache: &Cache<BlockKey, Buffer>,
    (clock, allowed_ns): (&dyn Clock, u64),
    l2: &PoolL2,
) -> bool {
    let begun = clock.now_ns();
    let mut continues = true;
    cache.offer_all(FILL_BATCH, |blocks| {
        continues =
            continues && clock.now_ns().saturating_sub(begun) < allowed_ns && l2.write_all(blocks);
    });
    continues
}

fn open_device(
    host: &dyn L2Host,
    phys: &L2DevicePhys,
    listed: &[u64],
    given: &mut Vec<Opened>,
    search: bool,
) -> Result<(Arc<OpenL2Device>, Arc<DeviceLock>), String> {
    let (device, lock) = locked_device::lock(find(phys, given, search)?);
    let (guid, trusted) = (phys.guid.get(), phys.trusted_txg.get());
    let holds = device::guid_of(&device);
    if let Some(other) = holds.filter(|holds| *holds != guid && listed.contains(holds)) {
        return Err(format!(
            "{}: is another L2 device of this pool, {other:016x}; remove {guid:016x}, which is gone",
            device.info().name
        ));
    }
    let marks = [phys.mark.get(), phys.mark_before.get()];
    let l2 = OpenL2Device::open(device, (&host.context(), host.random()), guid, marks, trusted);
    l2.map(|l2| (l2, lock)).map_err(|error| error.to_string())
}

fn detach(host: &dyn L2Host, l2: &Arc<OpenL2Device>) {
    let l2 = Arc::clone(l2) as Arc<dyn L2Cache>;
    host.context().l2.detach(&l2);
}

/// Finds the device of an entry: among `given`, or at its stored path.
fn find(phys: &L2DevicePhys, given: &mut Vec<Opened>, search: bool) -> Result<Opened, String> {
    let guid = phys.guid.get();
    let wanted = |one: &Opened| device::guid_of(&one.device) == Some(guid);
    if let Some(at) = given.iter().position(wanted) {
        return Ok(given.swap_remove(at));
    }
    if !search {
        return Err("this import does without L2 devices".to_owned());
    }
    device::open_path(&phys.path()).map_err(|error| error.to_string())
}

/// The state of an L2 device in use, and its statistics.
pub(super) fn state_of(l2: &OpenL2Device) -> (L2DeviceState, L2DeviceStats) {
    let stats = l2.stats();
    let state = match (l2.failure(), stats.rebuild.done) {
        (Some(why), _) => L2DeviceState::Failed(why),
        (None, true) => L2DeviceState::Active,
        (None, false) => L2DeviceState::Rebuilding,
    };
    (state, stats)
}

impl L2Slot {
    fn info(&self) -> L2Device {
        let (state, stats, io) = match &self.used {
            L2Availability::Unavailable(why) => {
                (L2DeviceState::Unavailable(why.clone()), None, None)
            }
            L2Availability::Open(l2, lock) => {
                let (state, stats) = state_of(l2);
                (state, Some(stats), Some(lock.metrics()))
            }
        };
        L2Device {
            guid: self.phys.guid.get(),
            path: self.phys.path(),
            size_bytes: self.phys.size_bytes.get(),
            state,
            stats,
            io,
        }
    }
}
