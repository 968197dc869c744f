//! Pins, seen from the owner: before it deletes what a root has released, it looks whether a
//! follower still needs an older root.
//!
//! A pin is a lease by the owner's own clock: it lasts until its object has not changed for the
//! time that it says, whatever clock its follower has. A pin that is seen for the first time is
//! as one that has just changed, so a new owner waits for all of them. A pin that cannot be read
//! holds everything, for the longest lease. If the pins cannot be listed, nothing is deleted.
//!
//! A look is one LIST and a get for each pin, and there is none while nothing is to be deleted. All
//! that wait share its outcome, also if it has failed, until the next one is due. What a root has
//! released may be deleted after a look that *began after that root was published*, however old it
//! is: a follower reads `super` after it has put its pin, so one that comes after the look needs
//! nothing that was released before, and no pin goes back to an older root.
//!
//! # Locking
//! The task lock `Pins` is held across requests, and `object-state` may be taken under it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;
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
    look: Option<Look>,
}

/// The newest look.
struct Look {
    began: Instant,
    ended: Instant,
    /// The oldest root that a live pin needs.
    oldest: Result<Option<u64>, StoreError>,
}

impl Look {
    /// Whether no live pin needs a root before `root`, which was published before `published`.
    fn permits(&self, root: u64, published: Instant) -> Result<bool, StoreError> {
        let oldest = self.oldest.clone()?;
        Ok(self.began > published && oldest.is_none_or(|oldest| oldest >= root))
    }
}

/// A pin as it was seen last.
struct Seen {
    /// The oldest root that is needed.
    root: u64,
    /// Of the content, which changes with each renewal. `None` if the store does not give it.
    hash: Option<u64>,
    lease: Duration,
    /// Since when it has not changed.
    since: Instant,
    /// When the newest look asked for it.
    asked: Instant,
}

impl Seen {
    fn is_live(&self) -> bool {
        self.asked - self.since < self.lease
    }
}

impl PinTable {
    /// Notes the content of a pin's object, or that the store does not give it.
    fn note(&mut self, key: String, asked: Instant, bytes: Option<&[u8]>, store_guid: u64) {
        let parse = |bytes: &[u8]| {
            let (kind, id, body) = envelope::open(bytes)?;
            match kind {
                Kind::Pin => Ok((id.number, Pin::decode(body)?)),
                _ => Err(FormatError::Identity),
            }
        };
        let (root, lease) = match bytes.map(parse) {
            Some(Ok((_, pin))) if pin.store_guid != store_guid => (u64::MAX, pin.lease),
            Some(Ok((root, pin))) => (root, pin.lease),
            // Whatever it needs is kept.
            Some(Err(_)) | None => (0, LEASE_MAX),
        };
        let hash = bytes.map(xxh3_64);
        // What is not given may have changed while nobody has looked.
        let is_known = |seen: &&Seen| hash.is_some() || asked - seen.asked < LEASE_MAX / 2;
        let since = match self.seen.get(&key).filter(is_known) {
            Some(seen) if seen.hash == hash => seen.since,
            _ => now(),
        };
        self.seen.insert(key, Seen { root, hash, lease, since, asked });
    }
}

impl Engine {
    /// Whether no live pin needs a root before `root`, which was published before `published`.
    ///
    /// # Errors
    /// If the pins cannot be listed. Then nothing may be deleted.
    pub(crate) async fn pins_permit(
        &self,
        root: u64,
        published: Instant,
    ) -> Result<bool, StoreError> {
        let mut table = self.pins.0.lock().await;
        if let Some(look) = &table.look {
            let permitted = look.permits(root, published);
            if permitted == Ok(true) || now() - look.ended < self.options.pin_check {
                return permitted;
            }
        }
        let began = now();
        let oldest = self.look_at_pins(&mut table).await;
        let failed_before = table.look.as_ref().is_some_and(|look| look.oldest.is_err());
        if let (Err(error), false) = (&oldest, failed_before) {
            let text = "nothing is deleted while the pins of followers cannot be read";
            tracing::warn!(store = %self.name, %error, text);
        }
        let look = table.look.insert(Look { began, ended: now(), oldest });
        look.permits(root, published)
    }

    /// Returns the oldest root that a live pin needs.
    async fn look_at_pins(&self, table: &mut PinTable) -> Result<Option<u64>, StoreError> {
        let (mut keys, mut after) = (HashSet::new(), String::new());
        loop {
            let page = self.client.list(names::PINS, &after, Persist::Background).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(last);
            keys.extend(page.into_iter().filter(|key| names::is_pin(key)));
        }
        table.seen.retain(|key, _| keys.contains(key));
        for key in keys {
            let asked = now();
            match self.client.get(&key, Persist::Background).await {
                Ok((bytes, _)) => table.note(key, asked, Some(&bytes), self.store_guid),
                Err(error) => match error.kind() {
                    // Its follower has ended.
                    StoreErrorKind::NotFound => drop(table.seen.remove(&key)),
                    StoreErrorKind::Closed => return Err(error),
                    _ => table.note(key, asked, None, self.store_guid),
                },
            }
        }
        let mut gone = Vec::new();
        for (key, seen) in &table.seen {
            if seen.asked - seen.since >= seen.lease * LEASES_TO_DELETE {
                gone.push(key.clone());
            }
        }
        let live = table.seen.values().filter(|seen| seen.is_live());
        let oldest = live.map(|seen| seen.root).min();
        for key in gone {
            // If it fails, the next look tries again.
            if self.client.delete(&key).await.is_ok() {
                table.seen.remove(&key);
            }
        }
        Ok(oldest)
    }

    /// Whether this owner may still delete anything.
    pub(crate) fn may_delete(&self) -> bool {
        let state = self.lock();
        !state.closing && state.fenced.is_none()
    }
}
