//! The device of an L2, locked until its last request has ended.
//!
//! An L2 gives up on a device that hangs: its close and its removal return although requests are
//! pending. The kernel may still execute them. So the file lock must not be released with the L2.
//!
//! # Invariants
//!
//! - Each request in flight holds the [`DeviceLock`], and so does the pool's list while it uses the
//!   device. The last of them releases the lock.
//! - No request is submitted after that.
//! - If a pending request is last, it closes the device in its completion. So nobody waits for a
//!   hanging device.
//!
//! Locking: none.

use forebay_base::sync::{Arc, Weak};
use forebay_io::{Device, DeviceInfo, DeviceStats, Error, ErrorKind, Health, Request, Waiter};

use crate::open::{Locks, Opened};

/// Keeps a device open and locked.
pub(crate) struct DeviceLock {
    // Dropped in this order: closed, then unlocked.
    _device: Arc<dyn Device>,
    _locks: Option<Locks>,
}

/// A device that keeps its lock until its last request has ended.
struct LockedDevice {
    device: Arc<dyn Device>,
    lock: Weak<DeviceLock>,
}

/// Returns the device with its lock. Once the lock is dropped, the device refuses requests.
pub(crate) fn lock(opened: Opened) -> (Arc<dyn Device>, Arc<DeviceLock>) {
    let Opened { device, lock } = opened;
    let lock = Arc::new(DeviceLock { _device: Arc::clone(&device), _locks: lock });
    let locked = LockedDevice { device, lock: Arc::downgrade(&lock) };
    (Arc::new(locked), lock)
}

impl LockedDevice {
    /// Lets a request hold the lock. Finishes the request if the lock was released.
    fn hold(&self, request: Request) -> Option<Request> {
        match self.lock.upgrade() {
            // Dropped before the completion is delivered: its recipient may end the use of the
            // device, and expects it to be unlocked then.
            Some(lock) => Some(request.layered(move |_| drop(lock))),
            None => {
                let range = (request.offset(), request.len());
                let text = "the L2 device is no longer in use; add it to the pool again";
                let (name, op) = (&self.device.info().name, request.op());
                request.finish(Err(Error::new(ErrorKind::Closed, op, name, range, text)));
                None
            }
        }
    }
}

impl Device for LockedDevice {
    fn submit(&self, request: Request) {
        if let Some(request) = self.hold(request) {
            self.device.submit(request);
        }
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        *requests = requests.drain(..).filter_map(|request| self.hold(request)).collect();
        self.device.submit_all(requests);
    }

    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn health(&self) -> Health {
        self.device.health()
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.device.help(waiter);
    }

    fn close(&self) {
        self.device.close();
    }
}
