//! Reading a store: the checkpoint, the chain of deltas, the log.
//!
//! All objects of a chain are fetched at the same time and applied in order.

use forebay_base::sync::Arc;

use crate::client::{Client, Persist};
use crate::conditional::KnownSuper;
use crate::error::{At, Error};
use crate::format::delta::Delta;
use crate::format::envelope::{Identity, Kind};
use crate::format::root::{Chain, Link, decode_root};
use crate::format::{FormatError, MUTABLE_BYTES, names};
use crate::map::Map;
use crate::mutable::Mutable;
use crate::store::StoreErrorKind;

/// The fewest and the most log objects that are asked for at a time.
const LOGS_AHEAD: (u64, u64) = (4, 128);

/// The state of a store.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) chain: Chain,
    pub(crate) map: Map,
    pub(crate) mutable: Mutable,
    pub(crate) next_unused: u64,
}

impl Default for Loaded {
    /// That of an empty store.
    fn default() -> Self {
        Self {
            chain: Chain::default(),
            map: Map::default(),
            mutable: Mutable::default(),
            next_unused: MUTABLE_BYTES,
        }
    }
}

/// What a log object is.
#[derive(Debug)]
pub(crate) enum LogObject {
    Delta(Delta, u64),
    /// The end of its epoch.
    Fence,
}

/// What reads a store.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) client: Arc<Client>,
    pub(crate) store: Arc<str>,
    pub(crate) persist: Persist,
}

impl Loader {
    fn at(&self) -> At<'_> {
        At(&self.store)
    }

    /// Loads the newest root, without the log after it.
    pub(crate) async fn root(&self, known: &KnownSuper) -> Result<Loaded, Error> {
        let mut loaded = Loaded::default();
        // No owner flushes before its first root: without a root there is no log.
        loaded.chain.log = (known.content.epoch, 0);
        if known.content.root.number > 0 {
            self.apply_root(known.content.root, &mut loaded).await?;
        }
        Ok(loaded)
    }

    /// The newest root, from a root of before: without what that one had already.
    pub(crate) async fn root_after(
        &self,
        before: &Loaded,
        known: &KnownSuper,
    ) -> Result<Loaded, Error> {
        let mut loaded = before.clone();
        self.apply_root(known.content.root, &mut loaded).await?;
        Ok(loaded)
    }

    /// Brings `loaded` to the state of `root`.
    async fn apply_root(&self, root: Identity, loaded: &mut Loaded) -> Result<(), Error> {
        let key = names::root(root);
        let ((chain, own), bytes) = self
            .fetch(&key, move |kind, id, body| {
                check(kind == Kind::Root && id == root)?;
                decode_root(body)
            })
            .await?;
        let mut links = &chain.links[..];
        let mut wanted = Vec::new();
        let known = &loaded.chain;
        let is_same = (known.checkpoint, known.parts) == (chain.checkpoint, chain.parts);
        if let (true, Some(rest)) = (is_same, links.strip_prefix(&known.links[..])) {
            links = rest;
        } else {
            // There is a checkpoint of later.
            *loaded = Loaded::default();
            for part in 0..chain.parts {
                let id = Identity { number: part.into(), ..chain.checkpoint };
                wanted.push((names::checkpoint(chain.checkpoint, part), Kind::Checkpoint, id));
            }
        }
        for link in links {
            match *link {
                Link::Root(id) => wanted.push((names::root(id), Kind::Root, id)),
                Link::Logs { epoch, start, end } => {
                    for number in start..end {
                        let id = Identity { epoch, number, nonce: 0 };
                        wanted.push((names::log(epoch, number), Kind::Log, id));
                    }
                }
            }
        }
        for delta in self.deltas(wanted).await? {
            loaded.apply(delta);
        }
        loaded.apply(own);
        loaded.chain = chain;
        loaded.chain.links.push(Link::Root(root));
        loaded.chain.chain_bytes += bytes;
        Ok(())
    }

    /// Fetches deltas at the same time, and returns them in order.
    async fn deltas(&self, wanted: Vec<(String, Kind, Identity)>) -> Result<Vec<Delta>, Error> {
        let tasks: Vec<_> = wanted
            .into_iter()
            .map(|(key, kind, id)| {
                let loader = self.clone();
                tokio::spawn(async move { loader.delta(&key, kind, id).await })
            })
            .collect();
        let mut deltas = Vec::with_capacity(tasks.len());
        for task in tasks {
            deltas.push(joined(task).await?);
        }
        Ok(deltas)
    }

    async fn delta(&self, key: &str, kind: Kind, wanted: Identity) -> Result<Delta, Error> {
        let parse = move |found: Kind, mut id: Identity, body: &[u8]| {
            if kind == Kind::Log {
                id.nonce = 0;
            }
            check(found == kind && id == wanted)?;
            match kind {
                Kind::Root => decode_root(body).map(|(_, delta)| delta),
                _ => Delta::decode(body),
            }
        };
        self.fetch(key, parse).await.map(|(delta, _)| delta)
    }

    /// Fetches an object and parses it. Returns the size of the object, too.
    async fn fetch<T>(
        &self,
        key: &str,
        parse: impl Fn(Kind, Identity, &[u8]) -> Result<T, FormatError>,
    ) -> Result<(T, u64), Error> {
        let got = self.client.get_parsed(key, self.persist, parse).await;
        let parsed = got.map_err(|error| self.at().failed(key, error))?;
        parsed.map_err(|error| self.at().damaged(key, error))
    }

    /// Fetches a log object; `None` if there is none.
    pub(crate) async fn log(&self, epoch: u64, sequence: u64) -> Result<Option<LogObject>, Error> {
        let key = names::log(epoch, sequence);
        let parse = |kind: Kind, id: Identity, body: &[u8]| match kind {
            Kind::Fence => Ok(None),
            _ => {
                check(kind == Kind::Log && (id.epoch, id.number) == (epoch, sequence))?;
                Delta::decode(body).map(Some)
            }
        };
        match self.fetch(&key, parse).await {
            Ok((Some(delta), bytes)) => Ok(Some(LogObject::Delta(delta, bytes))),
            Ok((None, _)) => Ok(Some(LogObject::Fence)),
            Err(Error::Store { source, .. }) if source.kind() == StoreErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Replays the log of an epoch from `sequence` on. Returns the sequence after the last object,
    /// and whether a fence is there.
    pub(crate) async fn replay(
        &self,
        loaded: &mut Loaded,
        epoch: u64,
        mut sequence: u64,
    ) -> Result<(u64, bool), Error> {
        let mut ahead = LOGS_AHEAD.0;
        loop {
            let fetch = |sequence| {
                let loader = self.clone();
                tokio::spawn(async move { loader.log(epoch, sequence).await })
            };
            let tasks: Vec<_> = (sequence..sequence + ahead).map(fetch).collect();
            for task in tasks {
                match joined(task).await? {
                    Some(LogObject::Delta(delta, bytes)) => {
                        loaded.apply_log(epoch, sequence, delta, bytes);
                        sequence += 1;
                    }
                    Some(LogObject::Fence) => return Ok((sequence, true)),
                    None => return Ok((sequence, false)),
                }
            }
            ahead = (ahead * 2).min(LOGS_AHEAD.1);
        }
    }
}

async fn joined<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn check(is_so: bool) -> Result<(), FormatError> {
    if is_so { Ok(()) } else { Err(FormatError::Identity) }
}

impl Loaded {
    fn apply(&mut self, delta: Delta) {
        let Delta { next_unused, blocks, removed, added } = delta;
        self.next_unused = self.next_unused.max(next_unused);
        for (index, content) in blocks {
            self.mutable.set(index, content);
        }
        for first in removed {
            self.map.remove(first);
        }
        for object in added {
            self.map.insert(object);
        }
    }

    /// Applies the log object, which becomes part of the chain.
    pub(crate) fn apply_log(&mut self, epoch: u64, sequence: u64, delta: Delta, bytes: u64) {
        self.apply(delta);
        self.chain.push_log(epoch, sequence);
        self.chain.chain_bytes += bytes;
    }
}
