//! Objects that an earlier owner has left behind: written but never named, or no longer named and
//! in no list of what waits for its deletion. A crash leaves them. They are found by one pass over
//! all keys after a takeover, in the background, and then wait as what was freed does.
//!
//! Only objects of older epochs are orphans: their owners can name nothing any more. An object is
//! kept if the map has it, if the chain as of the open names it, or if it is the last log object of
//! its epoch, which may be a fence. The cleaner rests meanwhile. The pass waits for a store that is
//! away.
//!
//! An owner that was fenced or has crashed may still put objects after that pass: it asks nobody
//! before, and requests may be on their way. So the next import searches as well.

use std::collections::HashSet;

use forebay_base::sync::{Arc, Weak};

use crate::engine::Engine;
use crate::format::freed::Freed;
use crate::format::names;
use crate::format::root::Chain;
use crate::store::StoreError;

/// Finds the lists of earlier imports, and orphans if the owner before has not said that there are
/// none. `chain` is what the newest root named when the store was opened; `root` is the first one
/// of this owner. `was_closed` tells whether the owner before had closed the store.
pub(crate) async fn resume(engine: Weak<Engine>, chain: Chain, root: u64, was_closed: bool) {
    let Some(engine) = engine.upgrade() else { return };
    let found = match engine.find_lists(engine.epoch - 1).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let kept = Freed::of_chain(&chain).into_iter().flat_map(Freed::each);
            let kept = kept.map(|freed| freed.key()).collect();
            Pass { kept, root, engine: Arc::clone(&engine) }.run().await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &found {
        tracing::info!(store = %engine.name, %error, "the search for orphans ends early");
    }
    let mut state = engine.lock();
    state.searched = true;
    state.freed.is_complete = found.is_ok() && was_closed;
}

struct Pass {
    engine: Arc<Engine>,
    root: u64,
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

    /// Frees the keys below `prefix` of which `is_orphan` is true. It is told the key after, too.
    async fn walk(
        &self,
        prefix: &str,
        is_orphan: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<(), StoreError> {
        let mut page = self.engine.list_at_last(prefix, "").await?;
        while let Some(last) = page.last() {
            let next_page = self.engine.list_at_last(prefix, last).await?;
            let after = page.iter().skip(1).chain(next_page.first()).map(String::as_str);
            let pairs = page.iter().zip(after.map(Some).chain([None]));
            let orphans = pairs.filter(|(key, next)| is_orphan(key, *next));
            let orphans = orphans.filter_map(|(key, _)| Freed::of_key(key)).collect();
            self.engine.free(self.root, orphans, true).await;
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
        named.is_none_or(|object| (object.epoch, object.generation) != (epoch, generation))
    }
}
