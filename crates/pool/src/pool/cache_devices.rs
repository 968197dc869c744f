//! Cache devices: second levels of a pool, each on a device of its own.
//!
//! The pool lists them in one of its own objects, with the path of each. An import opens those that it finds; one that is
//! missing, damaged or another's is told of, and nothing else: the pool never needs it. An import for reading only uses none.
//!
//! # What a device may be believed
//!
//! Keys name content for good as long as the pool's history is one. It is not when the pool's devices are set back, to an older group or
//! to an older copy of themselves: transaction groups, and places, are then given out a second time, and a cache device that has seen
//! the first ones must not answer for the second. So a level is opened with the newest group that the pool knows of, and one that holds
//! younger blocks is emptied. Which group that is (`trusted_txg`) is noted with the first group that goes on from there, and stays
//! until the device is there and knows what it has; only then is anything written to it. If it cannot be noted, the pool's next groups
//! do not say where the list is, until it can be written.
//!
//! Nor is it one if there are copies of the pool that share a device. So each use of the pool puts a mark of its own into its list, and
//! then on the device, before anything is written there; a device with another mark than the list's newest two is emptied.
//!
//! # Locking
//!
//! `cache-devices-watcher`: the thread that waits for that, to be joined once levels are closed.
//! `cache-devices-changing`: held by who adds or removes one, over I/O and while waiting for groups; nobody takes it in a
//! transaction. `pool-cache-devices`: the list; what levels say of themselves is asked under it.

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::Device;
use zerocopy::{FromBytes, IntoBytes};

use crate::devices::label;
use crate::devices::open::{Locks, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CACHE_DEVICES_MAX, CACHE_PATH_BYTES, CacheDevicePhys, ObjectKind};
use crate::second::CacheLevel;
use crate::second::level::{DeviceLevel, Place};
use crate::tx::{Transaction, Tx};
use crate::waiting;

use super::{Inner, Intent, Pool};

pub use crate::second::level::{CacheDeviceFigures, Rebuild};

/// Log2 of the size of records of the list's object.
const LIST_SHIFT: u8 = 12;
/// Blocks of a pool that are written to cache devices at once when it is exported.
const FILL_LOT: usize = 64;
/// Bytes of an entry of the list.
const ENTRY_BYTES: usize = size_of::<CacheDevicePhys>();

/// A cache device, as the pool knows it.
#[derive(Clone, Debug)]
pub struct CacheDevice {
    /// Names the level on it.
    pub guid: u64,
    /// Where it is, or was last.
    pub path: String,
    /// Bytes that it had when it was added.
    pub size_bytes: u64,
    /// How it is.
    pub state: CacheDeviceState,
    /// What its level says of itself, if it is in use.
    pub figures: Option<CacheDeviceFigures>,
}

/// How a cache device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheDeviceState {
    /// In use.
    Active,
    /// In use, and still finding out what it has.
    Rebuilding,
    /// Its device has failed: it answers nothing any more, and is to be removed. Why.
    Failed(String),
    /// Not in use, and why.
    Away(String),
}

impl CacheDeviceState {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Rebuilding => "rebuilding",
            Self::Failed(_) => "failed",
            Self::Away(_) => "away",
        }
    }
}

/// The cache devices of a pool.
pub(super) struct CacheDevices {
    /// Held over a change.
    changing: Mutex<()>,
    state: Mutex<State>,
    /// Waits until levels know what they have.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    list: List,
    slots: Vec<Slot>,
    /// Why the list cannot be read, if so.
    damage: Option<String>,
}

/// The object of the list.
#[derive(Clone, Copy, Default)]
struct List {
    /// 0 if there is none.
    number: u64,
    /// The group that made it; no group says where it is as long as this is `u64::MAX`, because what it says is not true.
    since: u64,
}

/// A device of the list.
struct Slot {
    phys: CacheDevicePhys,
    used: Used,
}

enum Used {
    /// With the lock on its file.
    Open(Arc<DeviceLevel>, Option<Locks>),
    Away(String),
}

impl CacheDevices {
    /// None yet; the list is in the object of that number, if it is not 0.
    pub(super) fn new(number: u64) -> Self {
        let state = State { list: List { number, since: 0 }, ..State::default() };
        Self {
            changing: Mutex::named("cache-devices-changing", ()),
            state: Mutex::named("pool-cache-devices", state),
            watcher: Mutex::named("cache-devices-watcher", None),
        }
    }

    /// Number of the list's object for the root block of a group.
    pub(super) fn number_for(&self, txg: u64) -> u64 {
        let list = self.state.lock().list;
        if list.since <= txg { list.number } else { 0 }
    }

    fn entries(&self) -> Vec<CacheDevicePhys> {
        self.state.lock().slots.iter().map(|slot| slot.phys).collect()
    }
}

impl Pool {
    /// Makes a level on a device, and uses it from now on, durably: what RAM lets go of is kept there, and is found there by later
    /// imports. Returns the number that names it. `force` overwrites what the device holds, but never a device of this pool.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if it holds something, [`ErrorKind::Invalid`] if it is too small, this pool's own, or one too many,
    /// [`ErrorKind::Device`], and as [`begin`](Self::begin).
    pub fn add_cache_device(&self, device: Opened, force: bool) -> Result<u64> {
        self.inner.check_writable()?;
        waiting::check("a device")?;
        self.inner.add_cache_device(device, force)
    }

    /// Does without a cache device from now on, durably, also while it is in use. It is named by its path or its number in
    /// hexadecimal digits. Its content is gone.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Device`] if it is removed but could not be told so; as [`begin`](Self::begin).
    pub fn remove_cache_device(&self, name: &str) -> Result<()> {
        self.inner.check_writable()?;
        waiting::check("a device")?;
        self.inner.remove_cache_device(name)
    }

    /// The cache devices, in the order in which they were added.
    pub fn cache_devices(&self) -> Vec<CacheDevice> {
        let state = self.inner.cache_devices.state.lock();
        state.slots.iter().map(Slot::tell).collect()
    }

    /// How a cache device would be if the pool were taken into use with it: for one that is not in use. It is looked for at its
    /// path, and only read.
    pub fn look_at_cache_device(&self, device: &CacheDevice) -> CacheDeviceState {
        let why = crate::second::level::look(&device.path, device.guid, self.inner.guid);
        CacheDeviceState::Away(why.err().unwrap_or_else(|| "the pool is not in use".to_owned()))
    }

    /// Why the list of cache devices cannot be read, if so: the pool uses none then.
    pub fn cache_devices_damage(&self) -> Option<String> {
        self.inner.cache_devices.state.lock().damage.clone()
    }

    /// Writes to the cache devices what of the pool is in memory only and durable, and makes it durable there: what a crash leaves
    /// is warm then. An export does the same. Ends after the time that the tunable `cache_export_ms` says.
    pub fn fill_cache_devices(&self) {
        self.inner.fill_cache_devices();
        self.inner.open_levels().iter().for_each(|level| level.flush());
    }

    /// Waits until all cache devices know what they have. For tests and measurements: nothing needs it.
    pub fn wait_for_cache_devices(&self) {
        for level in self.inner.open_levels() {
            level.wait_rebuilt();
        }
    }

    /// Opens the cache devices of the list, of which some may be `given`; others are looked for at their paths, if `looks`.
    /// Nothing that is wrong with them keeps the pool from being used.
    pub(super) fn attach_cache_devices(&self, given: Vec<Opened>, looks: bool, root_txg: u64) {
        let inner = &self.inner;
        match inner.read_cache_list() {
            Ok(entries) if inner.read_only => {
                let away = || Used::Away("the pool is imported for reading only".to_owned());
                let slot = |phys| Slot { phys, used: away() };
                inner.cache_devices.state.lock().slots = entries.into_iter().map(slot).collect();
            }
            Ok(entries) => inner.open_cache_devices(entries, given, looks, root_txg),
            Err(error) => inner.cache_devices.state.lock().damage = Some(error.to_string()),
        }
    }
}

impl Inner {
    pub(super) fn open_levels(&self) -> Vec<Arc<DeviceLevel>> {
        let state = self.cache_devices.state.lock();
        let open = |slot: &Slot| match &slot.used {
            Used::Open(level, _) => Some(Arc::clone(level)),
            Used::Away(_) => None,
        };
        state.slots.iter().filter_map(open).collect()
    }

    /// What a level has to know of the pool.
    fn place(&self) -> Place<'_> {
        Place {
            guid: self.guid,
            levels: self.store.levels(),
            cache: self.store.cache(),
            clock: &self.clock,
            seed: self.rng.lock().next_u64(),
        }
    }

    fn add_cache_device(&self, device: Opened, force: bool) -> Result<u64> {
        let devices = &self.cache_devices;
        let _changing = devices.changing.lock();
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the pool is closed; import it again"));
        }
        let Opened { device, lock } = device;
        let name = device.info().name.to_string();
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        // What is listed there is not there any more: it is replaced.
        let others = |slot: &&Slot| slot.phys.path() != name;
        if devices.state.lock().slots.iter().filter(others).count() == CACHE_DEVICES_MAX {
            return invalid(format!("a pool has at most {CACHE_DEVICES_MAX} cache devices"));
        }
        if let Some(why) = &devices.state.lock().damage {
            return invalid(format!("the pool's list of cache devices cannot be read: {why}"));
        }
        if name.len() > CACHE_PATH_BYTES {
            return invalid(format!(
                "{name}: a cache device's path has at most {CACHE_PATH_BYTES} bytes"
            ));
        }
        self.refuse_pools(&device, &name, force)?;
        let size_bytes = device.info().size_bytes;
        let level = DeviceLevel::create(device, &self.place(), force)?;
        let guid = level.guid();
        let recorded = self.change_cache_list(|txg, entries| {
            entries.retain(|entry| entry.path() != name);
            // Its path was looked at.
            entries.extend(CacheDevicePhys::new(guid, size_bytes, txg, &name));
        });
        let entries = match recorded {
            Ok((entries, _)) => entries,
            Err(error) => {
                // It is in no list: nobody will look for it.
                let _ = level.remove();
                return Err(error);
            }
        };
        if let Some(phys) = entries.last() {
            let used = Used::Open(Arc::clone(&level), lock);
            let mut state = devices.state.lock();
            state.slots.retain(|slot| slot.phys.path() != name);
            state.slots.push(Slot { phys: *phys, used });
        }
        level.admit();
        self.store.levels().attach(level as Arc<dyn CacheLevel>);
        Ok(guid)
    }

    /// Refuses a device of this pool, and one of another unless it is forced.
    fn refuse_pools(&self, device: &Arc<dyn Device>, name: &str, force: bool) -> Result<()> {
        let own = self.devices.iter().any(|member| member.name() == name);
        let holds = crate::second::level::guid_of(device);
        let listed = self.open_levels().iter().any(|level| level.name() == name)
            || self.cache_devices.entries().iter().any(|entry| Some(entry.guid.get()) == holds);
        let found = label::read(&**device, self.store.cache());
        let holds = found.as_ref().ok().and_then(Option::as_ref);
        if own || holds.is_some_and(|label| label.config.pool_guid == self.guid) {
            let text = format!("{name}: is a device of this pool; name another one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if listed {
            let text = format!(
                "{name}: is a cache device of this pool already; remove it first to make it anew"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        match found {
            _ if force => Ok(()),
            Ok(None) => Ok(()),
            Ok(Some(label)) => Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "{name}: holds pool {:?}; destroy that, or force it",
                    label.config.pool_name
                ),
            )),
            Err(error) => Err(error),
        }
    }

    fn remove_cache_device(&self, name: &str) -> Result<()> {
        let devices = &self.cache_devices;
        let _changing = devices.changing.lock();
        let named = |slot: &Slot| {
            slot.phys.path() == name || format!("{:016x}", slot.phys.guid.get()) == name
        };
        let guid = {
            let state = devices.state.lock();
            state.slots.iter().find(|slot| named(slot)).map(|slot| slot.phys.guid.get())
        };
        let Some(guid) = guid else {
            let text = format!("pool {} has no cache device {name}", self.name);
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        self.change_cache_list(|_, entries| entries.retain(|entry| entry.guid.get() != guid))?;
        let slot = {
            let mut state = devices.state.lock();
            let at = state.slots.iter().position(|slot| slot.phys.guid.get() == guid);
            at.map(|at| state.slots.remove(at))
        };
        let Some(Slot { used: Used::Open(level, _lock), .. }) = slot else { return Ok(()) };
        self.detach(&level);
        let removed = level.remove();
        removed.map_err(|error| {
            error.doing(format_args!("{name} is removed from the pool, but not let go of in order"))
        })
    }

    fn detach(&self, level: &Arc<DeviceLevel>) {
        let level = Arc::clone(level) as Arc<dyn CacheLevel>;
        self.store.levels().detach(&level);
    }

    /// Changes the list, durably; returns it, and the group.
    fn change_cache_list(
        &self,
        change: impl FnOnce(u64, &mut Vec<CacheDevicePhys>),
    ) -> Result<(Vec<CacheDevicePhys>, u64)> {
        let mut entries = self.cache_devices.entries();
        let txg = {
            let tx = self.begin(Intent::Free)?;
            change(tx.txg(), &mut entries);
            self.write_cache_list(tx.tx(), &entries)?;
            tx.txg()
        };
        self.txgs.wait_synced(txg)?;
        Ok((entries, txg))
    }

    fn write_cache_list(&self, tx: &Tx, entries: &[CacheDevicePhys]) -> Result<()> {
        let number = self.cache_devices.state.lock().list.number;
        let number = match number {
            0 => {
                let number = self.mos.create(tx, ObjectKind::Data, LIST_SHIFT, &[])?;
                let list = List { number, since: tx.txg() };
                self.cache_devices.state.lock().list = list;
                number
            }
            number => number,
        };
        let node = self.mos.open(number)?;
        let _turn = node.lock_turn()?;
        node.write(tx, 0, entries.as_bytes())?;
        node.truncate(tx, size_of_val(entries) as u64)?;
        let list = &mut self.cache_devices.state.lock().list;
        if list.since == u64::MAX {
            list.since = tx.txg();
        }
        Ok(())
    }

    /// The list as it lies on the pool's devices.
    fn read_cache_list(&self) -> Result<Vec<CacheDevicePhys>> {
        let number = self.cache_devices.state.lock().list.number;
        if number == 0 {
            return Ok(Vec::new());
        }
        let node = self.mos.open(number)?;
        let corrupt = |what: &str| {
            Error::new(ErrorKind::Corrupt, format!("the list of cache devices {what}"))
        };
        let size = node.size();
        if node.kind != ObjectKind::Data || size % ENTRY_BYTES as u64 != 0 {
            return Err(corrupt("is another object"));
        }
        if size > (CACHE_DEVICES_MAX * ENTRY_BYTES) as u64 {
            return Err(corrupt("is too long"));
        }
        let mut bytes = vec![0; size as usize];
        if node.read(0, &mut bytes)? != bytes.len() {
            return Err(corrupt("is cut off"));
        }
        let read = |bytes: &[u8]| CacheDevicePhys::read_from_bytes(bytes).ok();
        bytes.chunks_exact(ENTRY_BYTES).map(read).collect::<Option<_>>().ok_or_else(|| corrupt("?"))
    }

    fn open_cache_devices(
        self: &Arc<Self>,
        entries: Vec<CacheDevicePhys>,
        mut given: Vec<Opened>,
        looks: bool,
        root_txg: u64,
    ) {
        if entries.is_empty() {
            return;
        }
        let guids: Vec<u64> = entries.iter().map(|entry| entry.guid.get()).collect();
        let open = |mut phys: CacheDevicePhys| {
            let trusted = match phys.trusted_txg.get() {
                0 => root_txg,
                txg => txg.min(root_txg),
            };
            phys.trusted_txg = trusted.into();
            let used = match self.open_cache_device(&phys, &guids, &mut given, looks) {
                Ok((level, lock)) => Used::Open(level, lock),
                Err(why) => Used::Away(why),
            };
            Slot { phys, used }
        };
        let slots: Vec<Slot> = entries.into_iter().map(open).collect();
        self.cache_devices.state.lock().slots = slots;
        let noted = self.note_trust().and_then(|()| self.watch_cache_devices());
        if let Err(error) = noted {
            // The next import would believe them as far as this use of the pool has come: so it is not to know of them.
            self.cache_devices.state.lock().list.since = u64::MAX;
            self.close_cache_devices(&format!("what is to be noted of them cannot be: {error}"));
            return;
        }
        for level in self.open_levels() {
            self.store.levels().attach(level as Arc<dyn CacheLevel>);
        }
    }

    fn open_cache_device(
        &self,
        phys: &CacheDevicePhys,
        listed: &[u64],
        given: &mut Vec<Opened>,
        looks: bool,
    ) -> Result<(Arc<DeviceLevel>, Option<Locks>), String> {
        let Opened { device, lock } = find(phys, given, looks)?;
        let (guid, trusted) = (phys.guid.get(), phys.trusted_txg.get());
        let holds = crate::second::level::guid_of(&device);
        if let Some(other) = holds.filter(|holds| *holds != guid && listed.contains(holds)) {
            return Err(format!(
                "{}: is another cache device of this pool, {other:016x}; remove {guid:016x}, which is not there any more",
                device.info().name
            ));
        }
        let marks = [phys.mark.get(), phys.mark_before.get()];
        let level = DeviceLevel::open(device, &self.place(), guid, marks, trusted);
        level.map(|level| (level, lock)).map_err(|error| error.to_string())
    }

    /// Notes in the list up to which group each device may be believed, in the first group after the import, whose
    /// thread has not begun yet. Nobody waits for it.
    fn note_trust(&self) -> Result<()> {
        // Without asking for room, which might have to wait for that thread.
        let tx = Transaction::new(self.txgs.begin()?, None);
        self.write_cache_list(tx.tx(), &self.cache_devices.entries())
    }

    /// Has a thread wait until the levels know what they have, and note that they may be believed again.
    fn watch_cache_devices(self: &Arc<Self>) -> Result<()> {
        let inner = Arc::clone(self);
        let watcher = thread::spawn_named("forebay-cache-list", move || {
            let levels = inner.open_levels().into_iter().filter(|level| level.wait_rebuilt());
            let rebuilt: Vec<_> = levels.collect();
            // If it cannot be noted, nothing is written to them, and the next import finds them as this one did.
            let _ = inner.note_rebuilt(&rebuilt);
        });
        let watcher = watcher.map_err(|error| {
            Error::new(ErrorKind::NoMemory, "the system gives no thread for cache devices")
                .because(error)
        })?;
        *self.cache_devices.watcher.lock() = Some(watcher);
        Ok(())
    }

    /// Notes that devices which have been emptied, or need not be, may be believed; then they may be written to.
    fn note_rebuilt(&self, rebuilt: &[Arc<DeviceLevel>]) -> Result<()> {
        if rebuilt.is_empty() {
            return Ok(());
        }
        let _changing = self.cache_devices.changing.lock();
        for slot in &mut self.cache_devices.state.lock().slots {
            if let Used::Open(level, _) = &slot.used
                && rebuilt.iter().any(|other| Arc::ptr_eq(other, level))
            {
                // One that was emptied has another name.
                slot.phys.guid = level.guid().into();
                slot.phys.trusted_txg = 0.into();
                // First here, then on the device: a crash in between leaves the one before there.
                let before = level.mark();
                let fresh = self.rng.lock().next_u64() ^ before.rotate_left(23);
                (slot.phys.mark_before, slot.phys.mark) = (before.into(), fresh.into());
            }
        }
        let (entries, _) = self.change_cache_list(|_, _| {})?;
        for level in rebuilt {
            let entry = entries.iter().find(|entry| entry.guid.get() == level.guid());
            // What cannot be marked is read, and not written to.
            if entry.is_some_and(|entry| level.set_mark(entry.mark.get()).is_ok()) {
                level.admit();
            }
        }
        Ok(())
    }

    /// Writes what of the pool is in memory only, as long as the tunable says, so that it is warm when it is used again.
    pub(super) fn fill_cache_devices(&self) {
        let allowed_ns = u64::from(self.tunables.cache_devices().cache_export_ms()) * 1_000_000;
        if allowed_ns == 0 || !self.open_levels().iter().any(|level| level.admits()) {
            return;
        }
        let begun = self.clock.now_ns();
        let levels = self.store.levels();
        let mut goes_on = true;
        self.store.cache().cache().offer_all(FILL_LOT, |blocks| {
            goes_on = goes_on
                && self.clock.now_ns().saturating_sub(begun) < allowed_ns
                && levels.write_all(blocks);
        });
    }

    /// Lets go of all cache devices, which keep what they have.
    pub(super) fn close_cache_devices(&self, why: &str) {
        {
            // Who is adding one ends first, and attaches it; who comes later finds the pool closed.
            let _changing = self.cache_devices.changing.lock();
            for level in self.open_levels() {
                self.detach(&level);
                level.close();
            }
        }
        let watcher = self.cache_devices.watcher.lock().take();
        // A panic of it has been told already.
        watcher.map(JoinHandle::join);
        let mut state = self.cache_devices.state.lock();
        for slot in &mut state.slots {
            slot.used = Used::Away(why.to_owned());
        }
    }
}

/// The device of an entry, among those that are `given`, or at its path.
fn find(phys: &CacheDevicePhys, given: &mut Vec<Opened>, looks: bool) -> Result<Opened, String> {
    let guid = phys.guid.get();
    let wanted = |one: &Opened| crate::second::level::guid_of(&one.device) == Some(guid);
    if let Some(at) = given.iter().position(wanted) {
        return Ok(given.swap_remove(at));
    }
    if !looks {
        return Err("this use of the pool does without cache devices".to_owned());
    }
    crate::second::level::open_path(&phys.path()).map_err(|error| error.to_string())
}

impl Slot {
    fn tell(&self) -> CacheDevice {
        let (state, figures) = match &self.used {
            Used::Away(why) => (CacheDeviceState::Away(why.clone()), None),
            Used::Open(level, _) => {
                let figures = level.figures();
                let state = match (level.failure(), figures.rebuild.done) {
                    (Some(why), _) => CacheDeviceState::Failed(why),
                    (None, true) => CacheDeviceState::Active,
                    (None, false) => CacheDeviceState::Rebuilding,
                };
                (state, Some(figures))
            }
        };
        CacheDevice {
            guid: self.phys.guid.get(),
            path: self.phys.path(),
            size_bytes: self.phys.size_bytes.get(),
            state,
            figures,
        }
    }
}
