//! Flushes: they publish what has changed, so that an open finds it.
//!
//! A flush that changes no label creates one log object. Any other, and a flush after many log
//! objects, writes a root and then swaps `super`. Both are fenced: a takeover swaps `super`, and
//! creates the next log object of the old epoch.
//!
//! One task publishes; flushes that come meanwhile share the next publication. A publication is
//! repeated until it has succeeded, another host has taken over, or the device is closed.
//!
//! Once the chain of deltas is as large as a checkpoint would be, the root has a new checkpoint
//! instead. Objects that no root names any more are deleted later ([`deferred`](crate::deferred)).

use forebay_base::sync::Arc;
use forebay_io::{Error, ErrorKind, Request};

use crate::client::Persist;
use crate::conditional::{self, KnownSuper, Lost, read_super_at_last, swap_super};
use crate::counters::ObjectCounters;
use crate::engine::{Engine, Fenced};
use crate::format::SECTOR_BYTES;
use crate::format::delta::Delta;
use crate::format::envelope::{self, Identity, Kind};
use crate::format::freed::Freed;
use crate::format::names;
use crate::format::root::{Chain, Link, Super, encode_root};
use crate::store::StoreErrorKind;

/// The chain is at least as long before a checkpoint, in bytes.
const CHAIN_BYTES_MIN: u64 = 4 << 20;
/// Bytes of a part of a checkpoint, about.
const PART_BYTES: usize = 8 << 20;

/// What a publication must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Publish what has changed.
    Flush,
    /// Also write a root if nothing has changed.
    Root,
    /// Write the last root, and say that the owner has closed the store.
    Close,
}

/// Why nothing can be published any more.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    Fenced(Fenced),
    Closed(String),
}

/// What the publishing task owns.
pub(crate) struct Publisher {
    pub(crate) engine: Arc<Engine>,
    pub(crate) known: KnownSuper,
    pub(crate) chain: Chain,
    /// The session of the owner before.
    pub(crate) session_before: Option<u128>,
    /// Why the last publication failed. What it took is in no delta, so none may follow.
    pub(crate) stopped: Option<Stop>,
}

/// Publishes flushes until the device is closed.
pub(crate) async fn run(mut publisher: Publisher) {
    let engine = Arc::clone(&publisher.engine);
    loop {
        engine.flush_wanted.notified().await;
        let (flushes, released, closing, quiet) = {
            let mut state = engine.lock();
            let flushes = std::mem::take(&mut state.flushes);
            let quiet = state.in_flight == flushes.len();
            (flushes, !state.removed.is_empty(), state.closing, quiet)
        };
        if !flushes.is_empty() || released {
            let result = publisher.publish_unless_stopped(Want::Flush).await;
            engine.finish_flushes(flushes, &result);
        }
        if closing && quiet {
            if publisher.publish_unless_stopped(Want::Close).await.is_err() {
                let text = "closed without a last root: another host needs force to open it";
                tracing::warn!(store = %engine.name, text);
            } else {
                engine.leave_freed().await;
            }
            engine.set_closed();
            engine.client.stop();
            return;
        }
    }
}

impl Engine {
    /// Leaves what waits for its deletion to the next import.
    async fn leave_freed(&self) {
        let (complete, count) = {
            let state = self.lock();
            let unnamed = state.merging || !state.removed.is_empty();
            let complete = state.freed.has_all() && !unnamed && state.unpublished.is_empty();
            (complete, state.freed.count())
        };
        if let Err(error) = self.store_freed(complete).await {
            let text = "what waits for its deletion is not listed; the next import searches for it";
            tracing::info!(store = %self.name, %error, text);
        }
        if count > 0 {
            let retention_s = self.options.grace.as_secs();
            let text = "freed objects are left in the store; an import deletes them after the \
                        retention";
            tracing::info!(store = %self.name, count, retention_s, text);
        }
    }

    fn finish_flushes(&self, flushes: Vec<Request>, result: &Result<(), Stop>) {
        self.count(ObjectCounters::SHARED_FLUSHES, (flushes.len() as u64).saturating_sub(1));
        let ended = flushes.into_iter().map(|request| {
            let result = match result {
                Ok(()) => Ok(()),
                Err(stop) => Err(self.stop_error(&request, stop)),
            };
            (request, result)
        });
        self.finish(ended.collect());
    }

    fn stop_error(&self, request: &Request, stop: &Stop) -> Error {
        match stop {
            Stop::Fenced(fenced) => self.fenced_error(request, fenced),
            Stop::Closed(text) => self.error(request, ErrorKind::Closed, text),
        }
    }
}

impl Publisher {
    async fn publish_unless_stopped(&mut self, want: Want) -> Result<(), Stop> {
        if let Some(stop) = self.stopped.clone() {
            return Err(stop);
        }
        let result = self.publish(want).await;
        self.stopped = result.as_ref().err().cloned();
        result
    }

    /// Publishes what has changed until now.
    pub(crate) async fn publish(&mut self, want: Want) -> Result<(), Stop> {
        let long = self.chain.objects() >= self.engine.options.chain_objects
            || self.chain.chain_bytes >= CHAIN_BYTES_MIN.max(self.chain.checkpoint_bytes);
        let (delta, removed, as_root, label) = {
            let mut state = self.engine.lock();
            let label = state.mutable.label_is_dirty(self.engine.options.label_bytes);
            let as_root = want != Want::Flush || label || long || !state.removed.is_empty();
            let removed = std::mem::take(&mut state.removed);
            let delta = Delta {
                next_unused: state.next_unused,
                blocks: state.mutable.take_dirty(),
                removed: removed.iter().map(|object| object.first).collect(),
                added: std::mem::take(&mut state.unpublished),
            };
            (delta, removed, as_root, label)
        };
        let next_unused = delta.next_unused;
        if !as_root && delta.is_empty() {
            return Ok(());
        }
        let result = if as_root {
            self.publish_root(delta, long, want == Want::Close).await
        } else {
            self.publish_log(&delta).await
        };
        if let Err(Stop::Fenced(fenced)) = &result {
            let Fenced { owner, epoch } = fenced;
            tracing::error!(store = %self.engine.name, owner, epoch, "another host has taken over");
            self.engine.lock().fenced = Some(fenced.clone());
        }
        result?;
        if label {
            self.engine.lock().written.label_published(next_unused);
        }
        let freed = removed.iter().map(Freed::from).collect();
        // What is removed makes it a root.
        self.engine.free(self.known.content.root.number, freed, false).await;
        Ok(())
    }

    async fn publish_log(&mut self, delta: &Delta) -> Result<(), Stop> {
        let client = &self.engine.client;
        let (epoch, sequence) = self.chain.log;
        let id = Identity { epoch, number: sequence, nonce: client.nonce() };
        let mut body = Vec::new();
        delta.encode(&mut body);
        let body = envelope::seal(Kind::Log, id, &body);
        let bytes = body.len() as u64;
        let created =
            conditional::create(client, &names::log(epoch, sequence), &body.into(), id.nonce).await;
        if let Err(lost) = created {
            return Err(self.stop_of(lost).await);
        }
        self.engine.count(ObjectCounters::LOG_FLUSHES, 1);
        self.chain.push_log(epoch, sequence);
        self.chain.chain_bytes += bytes;
        Ok(())
    }

    async fn publish_root(&mut self, delta: Delta, long: bool, close: bool) -> Result<(), Stop> {
        let engine = Arc::clone(&self.engine);
        let number = self.known.content.root.number + 1;
        let id = Identity { epoch: engine.epoch, number, nonce: engine.client.nonce() };
        let next_unused = delta.next_unused;
        let (mut chain, delta) = match long {
            true => (self.write_checkpoint(id).await?, Delta { next_unused, ..Delta::default() }),
            false => (self.chain.clone(), delta),
        };
        let body = envelope::seal(Kind::Root, id, &encode_root(&chain, &delta));
        let bytes = body.len() as u64;
        let put = engine.client.put(&names::root(id), &body.into(), Persist::Forever).await;
        put.map_err(|error| Stop::Closed(error.to_string()))?;
        let content = Super { root: id, closed: close, ..self.known.content.clone() };
        match swap_super(&engine.client, &self.known, &content).await {
            Ok(known) => self.known = known,
            Err(lost) => return Err(self.stop_of(lost).await),
        }
        engine.count(ObjectCounters::ROOT_FLUSHES, 1);
        chain.links.push(Link::Root(id));
        chain.chain_bytes += bytes;
        let before = std::mem::replace(&mut self.chain, chain);
        if long {
            engine.count(ObjectCounters::CHECKPOINTS, 1);
            engine.free(id.number, Freed::of_chain(&before), false).await;
        }
        Ok(())
    }

    /// Writes all of the map and of the mutable area. What the delta of this publication has is
    /// part of it.
    async fn write_checkpoint(&self, id: Identity) -> Result<Chain, Stop> {
        let engine = &self.engine;
        let (objects, blocks, next_unused) = {
            let state = engine.lock();
            // Objects that were added since the delta was taken are named again by the next one.
            let objects: Vec<_> = state.map.iter().copied().collect();
            (objects, state.mutable.all(), state.next_unused)
        };
        let mut parts = Vec::new();
        for added in objects.chunks(PART_BYTES / size_of::<crate::map::Object>()) {
            parts.push(Delta { next_unused, added: added.to_vec(), ..Delta::default() });
        }
        for blocks in blocks.chunks(PART_BYTES / SECTOR_BYTES as usize) {
            parts.push(Delta { next_unused, blocks: blocks.to_vec(), ..Delta::default() });
        }
        let mut tasks = tokio::task::JoinSet::new();
        let count = parts.len() as u32;
        let mut checkpoint_bytes = 0;
        for (part, delta) in (0..).zip(parts) {
            let mut body = Vec::new();
            delta.encode(&mut body);
            let part_id = Identity { number: part.into(), ..id };
            let body = envelope::seal(Kind::Checkpoint, part_id, &body);
            checkpoint_bytes += body.len() as u64;
            let (client, key) = (Arc::clone(&engine.client), names::checkpoint(id, part));
            tasks.spawn(async move { client.put(&key, &body.into(), Persist::Forever).await });
        }
        while let Some(put) = tasks.join_next().await {
            let put = put.map_err(|error| Stop::Closed(error.to_string()))?;
            put.map_err(|error| Stop::Closed(error.to_string()))?;
        }
        let log = self.chain.log;
        Ok(Chain { log, checkpoint: id, parts: count, checkpoint_bytes, ..Chain::default() })
    }

    /// Finds out who has taken over.
    async fn stop_of(&self, lost: Lost) -> Stop {
        let found = match lost {
            Lost::Super(content) => Ok(*content),
            Lost::Failed(error) => Err(error),
            Lost::Taken | Lost::Destroyed => {
                read_super_at_last(&self.engine.client).await.map(|known| known.content)
            }
        };
        let is_ours = |content: &Super| content.session == self.known.content.session;
        let (owner, epoch) = match found {
            Ok(content) if !is_ours(&content) => (content.owner, content.epoch),
            // It has written to our log without a takeover.
            Ok(_) => ("another program".to_owned(), self.engine.epoch),
            Err(error) if error.kind() == StoreErrorKind::NotFound => {
                return Stop::Fenced(Fenced::destroyed(self.engine.epoch));
            }
            Err(error) => return Stop::Closed(error.to_string()),
        };
        Stop::Fenced(Fenced { owner, epoch })
    }
}
