//! Objects that an earlier owner has left behind: written but never named, or no longer named but
//! not deleted yet. They are found by one pass over all keys after a takeover, in the background,
//! once no follower needs a root of before.
//!
//! Only objects of older epochs are deleted: their owners can name nothing any more. An object is
//! kept if the map has it, if its deletion waits for the grace period, if the chain as of the open
//! names it, or if it is the last log object of its epoch, which may be a fence. Any error ends the
//! pass, and keeps the rest.

use std::collections::HashSet;

use forebay_base::sync::{Arc, Weak};

use crate::client::Persist;
use crate::counters::ObjectCounters;
use crate::engine::Engine;
use crate::format::names;
use crate::format::root::Chain;
use crate::pins::wait_for_release;
use crate::publish::keys_of;
use crate::store::StoreError;

/// Deletes orphans. `chain` is what the newest root named when the store was opened; `root` is the
/// first one of this owner.
pub(crate) async fn collect(engine: Weak<Engine>, chain: Chain, root: u64) {
    if !wait_for_release(&engine, root).await {
        return;
    }
    let Some(engine) = engine.upgrade() else { return };
    let pass = Pass { kept: keys_of(&chain).into_iter().collect(), engine };
    if let Err(error) = pass.run().await {
        tracing::info!(store = %pass.engine.name, %error, "the search for orphans ends early");
    }
}

struct Pass {
    engine: Arc<Engine>,
    /// Keys that the chain names.
    kept: HashSet<String>,
}

impl Pass {
    async fn run(&self) -> Result<(), StoreError> {
        for shard in 0..names::SHARDS {
            self.walk(&names::shard_prefix(shard), |key, _| self.is_orphaned_data(key)).await?;
        }
        for prefix in [names::ROOTS, names::CHECKPOINTS] {
            self.walk(prefix, |key, _| {
                let id = names::parse_root(key);
                let id = id.or_else(|| names::parse_checkpoint(key).map(|(id, _)| id));
                id.is_some_and(|id| id.epoch < self.engine.epoch) && !self.kept.contains(key)
            })
            .await?;
        }
        self.walk(names::LOGS, |key, next| {
            let Some((epoch, _)) = names::parse_log(key) else { return false };
            let next = next.and_then(names::parse_log);
            let is_last = next.is_none_or(|(next, _)| next != epoch);
            epoch < self.engine.epoch && !is_last && !self.kept.contains(key)
        })
        .await
    }

    /// Deletes the keys below `prefix` of which `is_orphan` is true. It is told the key after, too.
    async fn walk(
        &self,
        prefix: &str,
        is_orphan: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<(), StoreError> {
        let client = &self.engine.client;
        let mut page = client.list(prefix, "", Persist::Background).await?;
        while let Some(last) = page.last() {
            let next_page = client.list(prefix, last, Persist::Background).await?;
            let after = page.iter().skip(1).chain(next_page.first()).map(String::as_str);
            let pairs = page.iter().zip(after.map(Some).chain([None]));
            let orphans: Vec<&String> =
                pairs.filter(|(key, next)| is_orphan(key, *next)).map(|(key, _)| key).collect();
            for key in orphans {
                self.delete(key).await?;
            }
            page = next_page;
        }
        Ok(())
    }

    fn is_orphaned_data(&self, key: &str) -> bool {
        let Some((first_byte, epoch, generation)) = names::parse_data(key) else { return false };
        if u64::from(epoch) >= self.engine.epoch {
            return false;
        }
        let state = self.engine.lock();
        let named = state.map.get(first_byte / crate::format::SECTOR_BYTES);
        let is_named =
            named.is_some_and(|object| (object.epoch, object.generation) == (epoch, generation));
        !is_named && !state.released.contains(key)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        {
            let state = self.engine.lock();
            if state.closing || state.fenced.is_some() {
                return Ok(());
            }
        }
        self.engine.client.delete(key).await?;
        self.engine.count(ObjectCounters::DELETED_ORPHANS, 1);
        Ok(())
    }
}
