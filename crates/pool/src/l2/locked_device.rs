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
//! - If a pending request is last, it closes the device in its completion. So no drop waits for a
//!   hanging device. Nor does a [`DeviceCloser`].
//!
//! Locking: none.

use forebay_base::sync::{Arc, Weak};
use forebay_io::metrics::{Metrics, MetricsDevice};
use forebay_io::{Decorator, Device, Error, ErrorKind, Request};

use crate::open::{Locks, Opened};

/// Keeps a device open and locked.
pub(crate) struct DeviceLock {
    // Dropped in this order: closed, then unlocked.
    device: Arc<MetricsDevice>,
    _locks: Option<Locks>,
}

/// Closes the device of an L2 after the L2.
pub(crate) struct DeviceCloser {
    device: Arc<dyn Device>,
    lock: Weak<DeviceLock>,
}

impl DeviceLock {
    pub(crate) fn closer(self: &Arc<Self>) -> DeviceCloser {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        DeviceCloser { device, lock: Arc::downgrade(self) }
    }

    /// What was requested of the device, and how long it took.
    pub(crate) fn metrics(&self) -> Metrics {
        self.device.snapshot()
    }
}

impl DeviceCloser {
    /// Closes the device, even while it is referenced. If a request is pending, this returns
    /// without closing it: the device may hang, and the last request closes it.
    pub(crate) fn close(self) {
        if self.lock.upgrade().is_none() {
            self.device.close();
        }
    }
}

/// A device that keeps its lock until its last request has ended.
struct LockedDevice {
    device: Arc<dyn Device>,
    lock: Weak<DeviceLock>,
}

/// Returns the device with its lock. Once the lock is dropped, the device refuses requests.
pub(crate) fn lock(opened: Opened) -> (Arc<dyn Device>, Arc<DeviceLock>) {
    let Opened { device, lock, .. } = opened;
    let device = Arc::new(MetricsDevice::new(device));
    let lock = Arc::new(DeviceLock { device: Arc::clone(&device), _locks: lock });
    let locked = LockedDevice { device, lock: Arc::downgrade(&lock) };
    (Arc::new(locked), lock)
}

impl Decorator for LockedDevice {
    fn inner(&self) -> &dyn Device {
        &*self.device
    }

    /// Lets a request hold the lock. Finishes the request if the lock was released.
    fn decorate(&self, request: Request) -> Option<Request> {
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
