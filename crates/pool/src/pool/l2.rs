//! The pool's side of its L2 devices: the public calls, and the list of devices in one of the
//! pool's own objects.
//!
//! The root block names the list's object. It names none while the stored list is wrong, see
//! [`L2DeviceList::omit`].
//!
//! Locking: `pool-l2-list`, a leaf lock around the object's number.

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::{Arc, Mutex};
use forebay_io::Device;
use hashbrown::HashMap;
use zerocopy::{FromBytes, IntoBytes};

use crate::devices::label;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::{L2_DEVICES_MAX, L2DevicePhys, ObjectKind};
use crate::l2::{L2Context, L2Device, L2DeviceState, L2Devices, L2Host};
use crate::objset::Objset;
use crate::open::Opened;
use crate::reservation::Intent;
use crate::tx::{Transaction, Tx};
use crate::wait::Wait;

use super::{FollowedPool, Pool, PoolInner};

/// Log2 of the size of records of the list's object.
const LIST_SHIFT: u8 = 12;
/// Bytes of an entry of the list.
const ENTRY_BYTES: usize = size_of::<L2DevicePhys>();

/// The stored list of L2 devices.
pub(super) struct L2DeviceList(Mutex<ListObject>);

/// The object that stores the list.
#[derive(Clone, Copy)]
struct ListObject {
    /// 0 if there is no such object.
    number: u64,
    /// The first txg whose root block names it; `u64::MAX` while none does, because the stored list
    /// is wrong.
    since: u64,
}

impl L2DeviceList {
    /// Returns the list stored in object `number`, 0 if there is none yet.
    pub(super) fn new(number: u64) -> Self {
        Self(Mutex::named("pool-l2-list", ListObject { number, since: 0 }))
    }

    /// Object number of the list for the root block of a txg; 0 leaves the list out.
    pub(super) fn number_for(&self, txg: u64) -> u64 {
        let list = *self.0.lock();
        if list.since <= txg { list.number } else { 0 }
    }

    /// Leaves the list out of root blocks until it is written again.
    fn omit(&self) {
        self.0.lock().since = u64::MAX;
    }

    fn write(&self, mos: &Arc<Objset>, tx: &Tx, entries: &[L2DevicePhys]) -> Result<()> {
        let number = self.0.lock().number;
        let number = match number {
            0 => {
                let number = mos.create(tx, ObjectKind::Data, LIST_SHIFT, &[])?;
                *self.0.lock() = ListObject { number, since: tx.txg() };
                number
            }
            number => number,
        };
        let node = mos.open(number, tx.wait())?;
        let _lock = node.lock_object(tx.wait())?;
        node.write(tx, 0, entries.as_bytes())?;
        node.truncate(tx, size_of_val(entries) as u64)?;
        let mut list = self.0.lock();
        if list.since == u64::MAX {
            list.since = tx.txg();
        }
        Ok(())
    }

    fn read(&self, mos: &Arc<Objset>) -> Result<Vec<L2DevicePhys>> {
        let number = self.0.lock().number;
        if number == 0 {
            return Ok(Vec::new());
        }
        let node = mos.open(number, Wait::Allowed)?;
        let corrupt =
            |what: &str| Error::new(ErrorKind::Corrupt, format!("the list of L2 devices {what}"));
        let size = node.size();
        if node.kind != ObjectKind::Data || size % ENTRY_BYTES as u64 != 0 {
            return Err(corrupt("is not a list: object kind or size is wrong"));
        }
        if size > (L2_DEVICES_MAX * ENTRY_BYTES) as u64 {
            return Err(corrupt("is too long"));
        }
        let mut bytes = vec![0; size as usize];
        if node.read(0, &mut bytes, Wait::Allowed)? != bytes.len() {
            return Err(corrupt("is truncated"));
        }
        let read = |bytes: &[u8]| L2DevicePhys::read_from_bytes(bytes).ok();
        bytes
            .chunks_exact(ENTRY_BYTES)
            .map(read)
            .collect::<Option<_>>()
            .ok_or_else(|| corrupt("has an invalid entry"))
    }
}

impl Pool {
    /// Creates an L2 on a device and uses it from now on, durably: blocks that memory evicts are
    /// kept there, and later imports find them. Returns the GUID of the L2 device. `force`
    /// overwrites the content of the device, but never a device of this pool.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the device holds a pool, [`ErrorKind::Invalid`] if the device is
    /// too small, belongs to this pool, or exceeds the maximum number; [`ErrorKind::Device`]; the
    /// errors of [`begin`](Self::begin).
    pub fn add_l2_device(&self, device: Opened, force: bool) -> Result<u64> {
        self.inner.check_writable()?;
        let name = device.device.info().name.to_string();
        let guid = self.inner.l2_devices.add(&*self.inner, device, force)?;
        self.inner.events().note(EventKind::L2Added, Event::of_device(&name));
        Ok(guid)
    }

    /// Removes an L2 device, durably, even while it is in use. `name` is its path or its GUID in
    /// hexadecimal digits. The content of the L2 is lost.
    ///
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Device`] if it was removed from the pool but its label
    /// could not be erased; the errors of [`begin`](Self::begin).
    pub fn remove_l2_device(&self, name: &str) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.l2_devices.remove(&*self.inner, name)?;
        self.inner.events().note(EventKind::L2Removed, Event::of_device(name));
        Ok(())
    }

    /// Returns the L2 devices in the order in which they were added. Of a pool that is followed,
    /// that of this host comes first.
    pub fn l2_devices(&self) -> Vec<L2Device> {
        let own = self.inner.followed.as_ref().and_then(FollowedPool::l2_device);
        own.into_iter().chain(self.inner.l2_devices.info()).collect()
    }

    /// Returns the state that an unused L2 device would have if the pool were imported with it.
    /// Opens the device at its stored path and only reads it.
    pub fn probe_l2_device(&self, device: &L2Device) -> L2DeviceState {
        let why = crate::l2::device::check_path(&device.path, device.guid, self.inner.guid);
        L2DeviceState::Unavailable(why.err().unwrap_or_else(|| "the pool is not in use".to_owned()))
    }

    /// Returns why the list of L2 devices is unreadable, or `None`. With an unreadable list the
    /// pool uses no L2 device.
    pub fn l2_devices_damage(&self) -> Option<String> {
        self.inner.l2_devices.damage()
    }

    /// Writes blocks that are durable in the pool but cached in memory only to the L2 devices, and
    /// flushes those. The cache is then warm after a crash. An export does the same. Ends after
    /// `l2_export_ms` at the latest.
    pub fn fill_l2_devices(&self) {
        self.inner.fill_l2_devices();
        self.inner.l2_devices.in_use().iter().for_each(|l2| l2.flush());
    }

    /// Waits until all L2 devices have rebuilt their indexes.
    #[cfg(any(test, feature = "testing"))]
    pub fn wait_for_l2_rebuild(&self) {
        for l2 in self.inner.l2_devices.in_use() {
            l2.wait_rebuilt();
        }
    }

    /// Waits until no L2 device warms up the cache any more.
    #[cfg(any(test, feature = "testing"))]
    pub fn wait_for_l2_warm_up(&self) {
        for l2 in self.inner.l2_devices.in_use() {
            l2.wait_warm_up();
        }
    }

    /// Opens the L2 devices of the list. Some may be `given`; with `search` the others are opened
    /// at their stored paths. A failure of an L2 device does not fail the import.
    pub(super) fn attach_l2_devices(&self, given: Vec<Opened>, search: bool, root_txg: u64) {
        let inner = &self.inner;
        let devices = &inner.l2_devices;
        if inner.read_only || !search {
            devices.set_unwanted();
        }
        match inner.l2_list.read(&inner.mos) {
            Ok(entries) if inner.read_only => {
                devices.set_unused(entries, "the pool is imported for reading only");
            }
            Ok(entries) => devices.open(&inner.host(), entries, given, search, root_txg),
            Err(error) => devices.set_damage(error.to_string()),
        }
    }

    /// Starts the warm-up: L2 devices load their blocks back into memory.
    pub(super) fn warm_up(&self) {
        let inner = &self.inner;
        let devices = &inner.l2_devices;
        if !devices.in_use().is_empty() && inner.tunables.l2_devices().l2_warm_up() {
            devices.warm_up(&inner.host());
        }
    }
}

impl PoolInner {
    fn host(self: &Arc<Self>) -> Arc<dyn L2Host> {
        Arc::clone(self) as Arc<dyn L2Host>
    }

    /// Writes blocks of the pool that are in memory only to the L2 devices, for at most
    /// `l2_export_ms`, so that the next import starts warm.
    pub(super) fn fill_l2_devices(&self) {
        let allowed_ms = u64::from(self.tunables.l2_devices().l2_export_ms());
        self.l2_devices.fill(self, allowed_ms * 1_000_000);
    }

    /// Closes all L2 devices. Their content stays.
    pub(super) fn close_l2_devices(&self, why: &str) {
        self.l2_devices.close(self, why);
    }
}

impl L2Host for PoolInner {
    fn context(&self) -> L2Context<'_> {
        L2Context {
            pool_name: &self.name,
            pool_guid: self.guid,
            l2: self.store.l2(),
            cache: self.store.cache().cache(),
            arena: self.store.cache().arena(),
            clock: &self.clock,
            events: self.events(),
            follows: false,
        }
    }

    fn l2_devices(&self) -> &L2Devices {
        &self.l2_devices
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check_new_device(&self, device: &Arc<dyn Device>, listed: bool, force: bool) -> Result<()> {
        let name = &device.info().name;
        let own = self.devices.leaves().any(|leaf| leaf.name() == &**name);
        let found = label::read(&**device, self.store.cache());
        let holds = found.as_ref().ok().and_then(Option::as_ref);
        if own || holds.is_some_and(|label| label.config.pool_guid == self.guid) {
            let text = format!("{name} is a device of this pool; choose another device");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if listed {
            let text = format!(
                "{name} is already an L2 device of this pool; remove it first to recreate it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        match found {
            _ if force => Ok(()),
            Ok(None) => Ok(()),
            Ok(Some(label)) => Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "{name} holds pool {:?}; destroy that pool first, or use --force",
                    label.config.pool_name
                ),
            )),
            Err(error) => Err(error),
        }
    }

    fn store_list(&self, entries: &mut dyn FnMut(u64) -> Vec<L2DevicePhys>) -> Result<()> {
        let txg = {
            let tx = self.begin(Intent::Free, Wait::Allowed)?;
            self.l2_list.write(&self.mos, tx.tx(), &entries(tx.txg()))?;
            tx.txg()
        };
        self.txgs.wait_synced(txg)?;
        Ok(())
    }

    fn store_list_non_blocking(&self, entries: &[L2DevicePhys]) -> Result<()> {
        // Begun without a reservation: during an import, waiting for free space could mean waiting
        // for the sync thread, which has not started yet.
        let tx = Transaction::new(self.txgs.begin()?, None, Wait::Allowed);
        self.l2_list.write(&self.mos, tx.tx(), entries)
    }

    fn omit_list(&self) {
        self.l2_list.omit();
    }

    fn dataset_names(&self) -> Result<HashMap<u64, String>> {
        self.names_by_number()
    }

    fn open_dataset(&self, name: &str) {
        let _ = self.dataset(name);
    }
}
