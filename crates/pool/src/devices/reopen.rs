//! Opens devices again that were opened by a path: a side of a mirror that comes back may be
//! another file than before, at the same path or at another one.
//!
//! The device gets an index of its own in its vdev, and the former one is removed, as by a detach:
//! so nothing that an index names changes under a request. It has the guid of before, so labels and
//! missed txgs stay as they are. A device that was not opened by a path is used as it is.
//!
//! A pool that is suspended because a device is gone goes on with what is at its path then, if that
//! has the newest durable txg, and all that was fsynced since.
//!
//! What a path leads to is believed if its label names the pool and the side, and if it was not
//! written without the other sides.
//!
//! What passes by itself refuses no device at once: a batch of the log in flight, another process
//! that looks at the device, want of memory. It is waited for, for [`TRIES`] pauses.

#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::path::Path;
use std::time::Duration;

use forebay_io::{Device, OpenError};

use super::attach::invalid;
use super::config::Config;
use super::heartbeat::{self, Heartbeat, Pause};
use super::label::{self, Ring};
use super::lost_end::has_lost_end;
use super::sides::Side;
use super::{Devices, Leaf, Vdev, exported};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::label::{MAX_LEAVES, StoredState};
use crate::log::ReadDevice;
use crate::open::{Opened, OpenedPath};

/// How often a device is tried again that is refused for a reason that passes.
const TRIES: u32 = 20;
/// The pause before each of them.
const TRY_PAUSE: Duration = Duration::from_millis(100);

/// Whether a device that is refused for this reason may be accepted a little later.
fn passes(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::InUse | ErrorKind::NoMemory => true,
        // The log says so, and not a device.
        ErrorKind::Device => error.device_error().is_none(),
        _ => false,
    }
}

/// Opens what is at the path of a device now.
fn open_again(known: &OpenedPath, old: &Leaf) -> Result<Opened> {
    let at = known.path().display();
    let needs = old.size_bytes();
    let truncated = |has| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "{at}: has {has} bytes, but the device had {needs}: it was truncated; bring back what it held"
            ),
        )
    };
    let opened = known.open().map_err(|error| {
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
        match cause {
            Some(OpenError::TooSmall { size_bytes, .. }) => truncated(*size_bytes).because(error),
            Some(OpenError::Missing { .. } | OpenError::MissingFolder { .. }) => {
                let text = format!("{at}: no such file or device; bring it back");
                Error::new(ErrorKind::NotFound, text).because(error)
            }
            _ => error,
        }
    })?;
    match opened.device.info().size_bytes {
        has if has < needs => Err(truncated(has)),
        _ => Ok(opened),
    }
}

/// The devices of a vdev that are in use, and have all blocks.
fn whole_of(vdev: &Vdev) -> impl Iterator<Item = (u8, &Leaf)> {
    vdev.used().filter(|(at, _)| vdev.status().missed(*at).is_none())
}

/// Whether one of them is not gone.
fn has_stand_in(vdev: &Vdev) -> bool {
    whole_of(vdev).any(|(_, leaf)| !leaf.is_gone())
}

impl Devices {
    /// The side of a mirror that is called so; or the one whose label is at that path, with the
    /// path. Asks the system whether the file of a side in use is still at its path.
    ///
    /// # Errors
    /// As [`side`](Self::side). [`ErrorKind::Invalid`] if the side is in use, with another file.
    pub(crate) fn side_or_path<'a, 'b>(
        &'a self,
        name: &'b str,
        pool_guid: u64,
        memory: &BlockCache,
    ) -> Result<(Side<'a>, Option<&'b Path>)> {
        let path = Path::new(name);
        let side = match self.side(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let guid = self.labelled_guid(path, pool_guid, memory).ok_or(error)?;
                self.side(&format!("{guid:x}"))?
            }
            side => {
                let side = side?;
                let leaf = side.leaf();
                if side.is_used() && leaf.is_elsewhere() {
                    return invalid(format!(
                        "{0}: is in use, but its file was moved or removed, and another one is at its path now; to use that one, take the side out of use first: `forebay offline`",
                        leaf.name()
                    ));
                }
                return Ok((side, None));
            }
        };
        if side.is_used() && side.leaf().is_at(path) != Some(true) {
            return invalid(format!(
                "{name}: has the label of {}, which is in use; to use it instead, take that out of use first: `forebay offline`",
                side.leaf().name()
            ));
        }
        Ok((side, Some(path)))
    }

    /// How devices of the pool are opened, for another path.
    fn path_at(&self, path: &Path) -> Option<OpenedPath> {
        self.leaves().find_map(Leaf::opened_path).map(|known| known.at(path))
    }

    /// The guid in the label at a path, if it is one of this pool.
    fn labelled_guid(&self, path: &Path, pool_guid: u64, memory: &BlockCache) -> Option<u64> {
        let opened = self.path_at(path)?.open_to_look().ok()?;
        let label = label::read(&*opened.device, memory).ok()??;
        (label.config.pool_guid == pool_guid).then(|| label.own().guid)
    }

    /// Opens the device of a side that is not in use again, at another path if one is given, and
    /// checks that it is the side. Returns the side of then.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device is missing and no path is given, or is too small, or
    /// has sectors that are too large; [`ErrorKind::NotAPool`] if it is not the side, or was
    /// written apart from the others; those of opening it and of reading its labels. Then the side
    /// is out of use as before, and its device is closed.
    pub(crate) fn reopen<'a>(
        &'a self,
        side: Side<'a>,
        path: Option<&Path>,
        (config, synced): (&Config, u64),
        memory: &BlockCache,
    ) -> Result<(Side<'a>, u64)> {
        let old = side.leaf();
        let known = match path {
            Some(path) => self.path_at(path),
            None => old.opened_path().cloned(),
        };
        let Some(known) = known else {
            if old.is_missing() {
                let (pool, name) = (&config.pool_name, old.name());
                return invalid(format!(
                    "{name}; give the path where it is now: `forebay online {pool} PATH`"
                ));
            }
            let lacks_from =
                side.check_label(&**old.device(), (config, synced), self.events(), memory)?;
            return Ok((side, lacks_from));
        };
        // It may be the same file: it cannot be locked, or opened exclusively, twice.
        old.close_to_reopen();
        let opened = open_again(&known, old).map_err(|error| {
            let (pool, guid) = (&config.pool_name, old.guid());
            let instead = match error.kind() {
                ErrorKind::NotFound => {
                    format!(", or give the path where it is now: `forebay online {pool} PATH`")
                }
                ErrorKind::Invalid => {
                    format!(", or replace it: `forebay replace {pool} {guid:x} NEW-DEVICE`")
                }
                _ => String::new(),
            };
            let text = format!("cannot bring the side back (guid {guid:#x}): {error}{instead}");
            Error::new(error.kind(), text).because(error)
        })?;
        let lacks_from =
            side.check_label(&*opened.device, (config, synced), self.events(), memory)?;
        Ok((self.exchange(side, opened)?, lacks_from))
    }

    /// A device that was opened again takes the place of a side.
    fn exchange<'a>(&'a self, side: Side<'a>, opened: Opened) -> Result<Side<'a>> {
        let old = side.leaf();
        let leaf = Leaf::new(old.guid(), old.size_bytes(), opened)?;
        self.check_sectors(&leaf)?;
        let is_closed = self.adding.lock();
        if *is_closed {
            return Err(exported());
        }
        match side.vdev.exchange(side.at, leaf) {
            Ok(at) => {
                let side = Side { vdev: side.vdev, at };
                side.leaf().inherit(old);
                Ok(side)
            }
            Err(_) => invalid(format!(
                "{} has had {MAX_LEAVES} devices since the import; export the pool, and import it again",
                side.vdev.title()
            )),
        }
    }

    /// Whether all devices of a vdev that have all blocks are gone, and may be opened again.
    pub(crate) fn has_gone_vdev(&self) -> bool {
        self.iter().any(|vdev| whole_of(vdev).next().is_some() && !has_stand_in(vdev))
    }

    /// Opens devices again that are gone, and for which no other device stands in. The txg that
    /// could not be written goes on there: they must have the newest durable one. Of a mirror one
    /// suffices: those that are refused are faulted then. One that has lost its end suffices if all
    /// have. For a pool that is suspended, so that nothing is written meanwhile. Returns whether
    /// any was opened.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`], with the first device of a vdev that is not back, or not yet, and
    /// the cause, if none of them is back. They are gone as before, also if they were closed to be
    /// opened again.
    pub(crate) fn reopen_gone(&self, resumed: &Resumed<'_>, memory: &BlockCache) -> Result<bool> {
        let mut reopened = false;
        for vdev in self.iter().filter(|vdev| !has_stand_in(vdev)) {
            let mut refused = self.reopen_whole(vdev, resumed, memory);
            let is_cut = |(_, error): &(Side<'_>, Error)| error.kind() == ErrorKind::Corrupt;
            // One that is refused for another reason may have all, and be back later.
            let mut late = refused.iter().position(|one| !is_cut(one));
            if !has_stand_in(vdev) && late.is_none() && !refused.is_empty() {
                // No other side is better. A scrub finds what is lost.
                let resumed = Resumed { takes_lost_end: true, ..*resumed };
                refused = self.reopen_whole(vdev, &resumed, memory);
                late = Some(0).filter(|_| !refused.is_empty());
            }
            if has_stand_in(vdev) {
                reopened = true;
                self.fault_refused(&refused);
            } else if let Some(late) = late {
                let (side, error) = refused.swap_remove(late);
                let name = side.leaf().name();
                let text = format!("the pool stays suspended, because {name} is not back: {error}");
                return Err(Error::new(ErrorKind::Suspended, text).because(error));
            }
        }
        Ok(reopened)
    }

    /// Opens the devices of a vdev again that have all blocks. Returns those that are refused.
    fn reopen_whole<'a>(
        &'a self,
        vdev: &'a Vdev,
        resumed: &Resumed<'_>,
        memory: &BlockCache,
    ) -> Vec<(Side<'a>, Error)> {
        let sides: Vec<_> = whole_of(vdev).map(|(at, _)| Side { vdev, at }).collect();
        let reopen = |side: Side<'a>| {
            let mut tries = 0;
            loop {
                match self.reopen_to_resume(side, resumed, memory) {
                    Err(error) if passes(&error) && tries < TRIES => {
                        tries += 1;
                        (resumed.pause)(TRY_PAUSE);
                    }
                    ended => return ended.err().map(|error| (side, error)),
                }
            }
        };
        sides.into_iter().filter_map(reopen).collect()
    }

    /// Sides of a mirror that are not back get nothing any more: another one stands in for them.
    /// Their devices may be closed.
    fn fault_refused(&self, refused: &[(Side<'_>, Error)]) {
        for (side, error) in refused {
            side.set_state(StoredState::Faulted);
            let name = side.leaf().name();
            tracing::warn!(device = name, %error, "the pool goes on without a device");
            let event = Event { detail: Some(error.to_string()), ..Event::of_device(name) };
            self.events().note(EventKind::DeviceFaulted, event);
        }
    }

    fn reopen_to_resume(
        &self,
        side: Side<'_>,
        resumed: &Resumed<'_>,
        memory: &BlockCache,
    ) -> Result<()> {
        let old = side.leaf();
        let Some(known) = old.opened_path() else { return Ok(()) };
        old.drain();
        old.unlock_file();
        let opened = match open_again(known, old) {
            // A block device cannot be opened exclusively twice.
            Err(error) if error.kind() == ErrorKind::InUse => {
                old.close_to_reopen();
                open_again(known, old)?
            }
            opened => opened?,
        };
        let has_lost_end = resumed.check(side, &*opened.device, memory)?;
        let new = self.exchange(side, opened)?;
        old.close_to_reopen();
        let name = new.leaf().name();
        tracing::info!(device = name, "opened a device again that was gone");
        if has_lost_end {
            let then = "is used, because no other device has its blocks; `forebay scrub` finds what is lost";
            let event = Event { detail: Some(then.to_owned()), ..Event::of_device(name) };
            self.events().note(EventKind::DeviceLostEnd, event);
        }
        Ok(())
    }
}

/// As [`IntentLog::is_on`](crate::log::IntentLog::is_on).
type LogIsOn<'a> = &'a dyn Fn(u16, ReadDevice<'_>) -> Result<bool>;

/// What a device must have on which a txg goes on that could not be written.
#[derive(Clone, Copy)]
pub(crate) struct Resumed<'a> {
    pub(crate) config: &'a Config,
    /// The newest durable txg.
    pub(crate) synced: u64,
    /// The newest heartbeat of this process.
    pub(crate) beats: Option<&'a Heartbeat>,
    /// Whether the devices had blocks of the txg, durably, that are not in memory any more.
    pub(crate) relies_on_devices: bool,
    /// Whether a device of a vdev has all that was fsynced there since `synced`.
    pub(crate) log_is_on: LogIsOn<'a>,
    /// Whether a device does that has lost its end.
    pub(crate) takes_lost_end: bool,
    /// Waits for what passes by itself.
    pub(crate) pause: Pause<'a>,
}

impl Resumed<'_> {
    /// Checks that the txg can go on on a device. Returns whether it has lost its end.
    fn check(&self, side: Side<'_>, device: &dyn Device, memory: &BlockCache) -> Result<bool> {
        let (name, synced) = (&device.info().name, self.synced);
        let refused = |why: String| {
            let text = format!(
                "{name}: {why}; export the pool with `forebay export --force {0}`, and import it, to go on with what the device has",
                self.config.pool_name
            );
            Err(Error::new(ErrorKind::NotAPool, text))
        };
        let label = side.own_label(device, self.config, memory)?;
        let size_bytes = label.own().size_bytes;
        let ring = Ring { device, size_bytes, missed: None };
        let uberblocks = label::best_uberblocks(&[ring], self.config.pool_guid, memory)?;
        let newest = uberblocks.first().map_or(0, |newest| newest.txg);
        let is_foreign = match self.beats.filter(|_| side.vdev.number() == 0) {
            Some(own) => {
                let seen = heartbeat::read(&[device], self.config.pool_guid, memory)?;
                seen.heartbeats.iter().any(|seen| seen.session != own.session)
            }
            None => false,
        };
        // A failed commit may have written its uberblock.
        if is_foreign || label.config.generation > self.config.generation || newest > synced + 1 {
            return refused("was used by another import meanwhile".to_owned());
        }
        if newest < synced {
            return refused(format!(
                "has nothing after transaction group {newest}, but {synced} was durable: it is an older copy"
            ));
        }
        let lacks_from = label.missing_from(newest);
        if lacks_from <= synced {
            return refused(format!(
                "lacks blocks from transaction group {lacks_from} on, as its label says: it is an older copy"
            ));
        }
        let has_lost_end = has_lost_end(device, &label, memory)?;
        if has_lost_end && !self.takes_lost_end {
            let text = format!("{name}: has lost its end: it was truncated, or overwritten there");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        if self.relies_on_devices {
            return refused(format!(
                "may be an older copy, without the blocks of transaction group {} that were written already",
                synced + 1
            ));
        }
        let read = |offset, bytes| label::read_at(device, offset, bytes, memory);
        if !(self.log_is_on)(side.vdev.number(), &read)? {
            return refused(format!(
                "is an older copy, without what was fsynced after transaction group {synced}"
            ));
        }
        Ok(has_lost_end)
    }
}
