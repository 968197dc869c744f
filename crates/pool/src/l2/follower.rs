//! The L2 device of a follower: of a host that reads a pool which another host writes.
//!
//! It keeps what this host has read. All imports of the pool share it, and the pool knows nothing
//! of it: it is not in the pool's list, and its label has another tag than those of the pool's own
//! devices. So neither is ever taken for the other.
//!
//! # Trust
//!
//! The pool is on an object store, so an address is written once, and a key names the same content
//! in all imports, also once the writer has freed it. That ends if the store is set back to a copy
//! of before and is written again. The store tells by a mark whether that happened
//! ([`note_state`](FollowerL2::note_state)). The label has the mark of the newest state whose
//! blocks may be on the device:
//!
//! - It is durable before that state is imported. No block is written that is younger than the
//!   newest imported transaction group.
//! - If the newest state does not descend from it, an open empties the device. A device in use is
//!   given up.
//!
//! # Locking
//! `pool-l2-follower` protects the lock of the device, and why it was given up: a look.
//! `pool-l2-follower-mark` is held while the label is written.

use forebay_base::clock::Clock;
use forebay_base::sync::{Arc, Mutex};

use super::device::{L2Context, OpenL2Device, lost_device};
use super::devices::{L2Device, L2DeviceState, fill, state_of};
use super::locked_device::{self, DeviceLock};
use super::pool_l2::PoolL2;
use super::router::L2Cache;
use crate::block_cache::BlockCache;
use crate::error::Result;
use crate::events::{EventKind, PoolEvents};
use crate::open::Opened;

/// The L2 device of a follower.
pub(crate) struct FollowerL2 {
    l2: Arc<OpenL2Device>,
    size_bytes: u64,
    pool: Arc<PoolL2>,
    cache: Arc<BlockCache>,
    clock: Arc<dyn Clock>,
    events: Arc<PoolEvents>,
    state: Mutex<Use>,
    /// The thread that fills the device notes the mark, too.
    marking: Mutex<()>,
}

/// Whether the device is in use.
enum Use {
    /// With its lock. The newest mark that was noted.
    Open(Arc<DeviceLock>, u64),
    /// Not any more, with the reason.
    Ended(String),
}

impl FollowerL2 {
    /// Opens or creates the L2 on a device, for a pool whose newest state has `mark`. `is_ancestor`
    /// says of the mark of an earlier state whether the newest one descends from it.
    ///
    /// # Errors
    /// As [`OpenL2Device::open_to_follow`].
    pub(crate) fn open(
        (context, seed): (L2Context<'_>, u64),
        cache: &Arc<BlockCache>,
        device: Opened,
        mark: u64,
        is_ancestor: impl FnOnce(u64) -> bool,
    ) -> Result<Arc<Self>> {
        let context = L2Context { follows: true, ..context };
        let (device, lock) = locked_device::lock(device);
        let size_bytes = device.info().size_bytes;
        let newest = context.l2.durable();
        let l2 = OpenL2Device::open_to_follow(device, (&context, seed), newest, is_ancestor)?;
        let follower = Arc::new(Self {
            size_bytes,
            pool: Arc::clone(context.l2),
            cache: Arc::clone(cache),
            clock: Arc::clone(context.clock),
            events: Arc::clone(context.events),
            state: Mutex::named("pool-l2-follower", Use::Open(lock, mark)),
            marking: Mutex::named("pool-l2-follower-mark", ()),
            l2,
        });
        follower.pool.attach(Arc::clone(&follower.l2) as Arc<dyn L2Cache>);
        follower.mark_if_rebuilt();
        Ok(follower)
    }

    /// Notes that the state with `mark` is imported next, or is still the newest one. Once the
    /// index is rebuilt, the mark is on the device when this returns.
    pub(crate) fn note_state(&self, mark: u64) {
        if let Use::Open(_, newest) = &mut *self.state.lock() {
            *newest = mark;
        }
        self.mark_if_rebuilt();
    }

    /// Notes that the newest state may not descend from the one before.
    pub(crate) fn note_set_back(&self) {
        let why =
            "the pool may have been set back to an earlier state; export it, and mount it again";
        self.give_up(why.to_owned());
    }

    /// Once the index is rebuilt, writes the newest mark to the device, and then allows blocks.
    fn mark_if_rebuilt(&self) {
        let marked = {
            let _marking = self.marking.lock();
            let mark = match &*self.state.lock() {
                Use::Open(_, newest) => *newest,
                Use::Ended(_) => return,
            };
            if !self.l2.is_rebuilt() {
                return;
            }
            if self.l2.mark() == mark { Ok(()) } else { self.l2.set_mark(mark) }
        };
        match marked {
            Ok(()) => self.l2.admit(),
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Ends the use of the device before the pool is exported.
    fn give_up(&self, why: String) {
        self.events.note(EventKind::L2Lost, lost_device(self.l2.name(), &why));
        self.end(why);
    }

    /// Writes blocks that only memory has, for at most this time. Returns whether nothing was left.
    pub(crate) fn fill(&self, allowed_ns: u64) -> bool {
        if !self.l2.admits() {
            self.mark_if_rebuilt();
        }
        self.l2.admits() && fill(self.cache.cache(), (&*self.clock, allowed_ns), &self.pool)
    }

    /// Loads blocks into memory, in the background; once.
    pub(crate) fn warm_up(&self) {
        self.l2.warm_up(self.cache.cache().warm_up());
    }

    /// Closes the device. Its content stays.
    pub(crate) fn close(&self) {
        self.end("the pool is not followed any more".to_owned());
    }

    fn end(&self, why: String) {
        let l2 = Arc::clone(&self.l2) as Arc<dyn L2Cache>;
        self.pool.detach(&l2);
        self.l2.close();
        let mut state = self.state.lock();
        if let Use::Open(..) = *state {
            let open = std::mem::replace(&mut *state, Use::Ended(why));
            drop(state);
            // Closes and unlocks the device, unless a request hangs.
            drop(open);
        }
    }

    /// Waits until the index is rebuilt.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wait_rebuilt(&self) {
        self.l2.wait_rebuilt();
    }

    /// Waits until the warm-up has ended.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wait_warm_up(&self) {
        self.l2.wait_warm_up();
    }

    /// The device and its state.
    pub(crate) fn info(&self) -> L2Device {
        let lock = match &*self.state.lock() {
            Use::Open(lock, _) => Ok(Arc::clone(lock)),
            Use::Ended(why) => Err(why.clone()),
        };
        let (state, stats, io) = match lock {
            Err(why) => (L2DeviceState::Unavailable(why), None, None),
            Ok(lock) => {
                let (state, stats) = state_of(&self.l2);
                (state, Some(stats), Some(lock.metrics()))
            }
        };
        L2Device {
            guid: self.l2.guid(),
            path: self.l2.name().to_owned(),
            size_bytes: self.size_bytes,
            state,
            stats,
            io,
        }
    }
}
