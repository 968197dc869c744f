//! Pins, seen from the owner: before it deletes what a root has released, it looks whether a
//! follower still needs an older root.
//!
//! A pin is a lease by the owner's own clock: it lasts until its object has not changed for the
//! time that it says, whatever clock its follower has. A pin that is seen for the first time is
//! as one that has just changed, so a new owner waits for all of them. A pin that cannot be read
//! holds everything, for the longest lease.
//!
//! A look is one LIST and a get for each pin, and there is none while nothing is to be deleted. It
//! may be old: a root that a follower takes up is the newest one, so a follower that comes after
//! the look needs nothing that was released before.
//!
//! # Locking
//! The task lock `Pins` is held across requests, and `object-state` may be taken under it.

use std::collections::HashMap;
use std::time::Duration;

use forebay_base::sync::Weak;
use tokio::time::{Instant, sleep};
use xxhash_rust::xxh3::xxh3_64;

use crate::cleaner::now;
use crate::client::Persist;
use crate::engine::Engine;
use crate::format::envelope::{self, Kind};
use crate::format::pin::{LEASE_MAX, Pin};
use crate::format::{FormatError, names};
use crate::store::{StoreError, StoreErrorKind};

/// Leases after which a pin that was not renewed is deleted: its follower is gone.
const LEASES_TO_DELETE: u32 = 10;

/// The pins of followers.
#[derive(Default)]
pub(crate) struct Pins(tokio::sync::Mutex<PinTable>);

#[derive(Default)]
struct PinTable {
    /// By key.
    seen: HashMap<String, Seen>,
    looked: Option<Instant>,
    /// The oldest root that a live pin needs.
    oldest: Option<u64>,
}

/// A pin as it was seen last.
struct Seen {
    /// The oldest root that is needed.
    root: u64,
    /// Of the content, which changes with each renewal.
    hash: u64,
    lease: Duration,
    since: Instant,
}

impl PinTable {
    /// Notes the content of a pin's object. `None` is one of another store.
    fn note(&mut self, key: String, bytes: &[u8], store_guid: u64) {
        let parsed = envelope::open(bytes).and_then(|(kind, id, body)| match kind {
            Kind::Pin => Ok((id.number, Pin::decode(body)?)),
            _ => Err(FormatError::Identity),
        });
        let (root, lease) = match parsed {
            Ok((_, pin)) if pin.store_guid != store_guid => (u64::MAX, pin.lease),
            Ok((root, pin)) => (root, pin.lease),
            // Whatever it needs is kept.
            Err(_) => (0, LEASE_MAX),
        };
        let hash = xxh3_64(bytes);
        let since = match self.seen.get(&key) {
            Some(seen) if seen.hash == hash => seen.since,
            _ => now(),
        };
        self.seen.insert(key, Seen { root, hash, lease, since });
    }
}

impl Engine {
    /// Whether no live pin needs a root before `root`.
    ///
    /// # Errors
    /// If the pins cannot be read. Then nothing may be deleted.
    async fn pins_permit(&self, root: u64) -> Result<bool, StoreError> {
        let mut table = self.pins.0.lock().await;
        let is_fresh = |looked: Instant| now() - looked < self.options.pin_check;
        if !table.looked.is_some_and(is_fresh) {
            self.look_at_pins(&mut table).await?;
            table.looked = Some(now());
        }
        Ok(table.oldest.is_none_or(|oldest| oldest >= root))
    }

    async fn look_at_pins(&self, table: &mut PinTable) -> Result<(), StoreError> {
        let (mut keys, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.client.list(names::PINS, &after, Persist::Background).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(last);
            keys.extend(page.into_iter().filter(|key| names::is_pin(key)));
        }
        table.seen.retain(|key, _| keys.contains(key));
        for key in keys {
            match self.client.get(&key, Persist::Background).await {
                Ok((bytes, _)) => table.note(key, &bytes, self.store_guid),
                // Its follower has ended.
                Err(error) if error.kind() == StoreErrorKind::NotFound => {
                    table.seen.remove(&key);
                }
                Err(error) => return Err(error),
            }
        }
        let (now, mut gone) = (now(), Vec::new());
        for (key, seen) in &table.seen {
            if now - seen.since >= seen.lease * LEASES_TO_DELETE {
                gone.push(key.clone());
            }
        }
        let live = table.seen.values().filter(|seen| now - seen.since < seen.lease);
        table.oldest = live.map(|seen| seen.root).min();
        for key in gone {
            // If it fails, the next look tries again.
            if self.client.delete(&key).await.is_ok() {
                table.seen.remove(&key);
            }
        }
        Ok(())
    }

    fn may_delete(&self) -> bool {
        let state = self.lock();
        !state.closing && state.fenced.is_none()
    }
}

/// Waits until objects may be deleted that `root` has released: for the grace period, and then
/// while followers need an older root, but not for ever. Returns false if the device is closed or
/// fenced before. Does not keep it.
pub(crate) async fn wait_for_release(engine: &Weak<Engine>, root: u64) -> bool {
    let Some(grace) = engine.upgrade().map(|engine| engine.options.grace) else { return false };
    sleep(grace).await;
    let mut held = Duration::ZERO;
    loop {
        let Some(engine) = engine.upgrade().filter(|engine| engine.may_delete()) else {
            return false;
        };
        match engine.pins_permit(root).await {
            Ok(true) => return true,
            Ok(false) if held >= engine.options.pin_hold => {
                let text = "a follower needs what was freed long ago: it is deleted now";
                tracing::warn!(store = %engine.name, root, text);
                return true;
            }
            Ok(false) => {}
            Err(error) => {
                let text = "nothing is deleted, because the pins of followers cannot be read";
                tracing::info!(store = %engine.name, %error, text);
            }
        }
        let wait = engine.options.pin_check;
        drop(engine);
        sleep(wait).await;
        held += wait;
    }
}
