//! Creating a store, taking it over, and opening it read-only.
//!
//! A takeover, in this order:
//! 1. Probe the conditions of the store.
//! 2. Swap `super`: the next epoch, a new session, our name. From now on the old owner cannot
//!    publish a root.
//! 3. Load the newest root, and replay the log of each epoch since. Where the log of an epoch ends,
//!    create a fence: from now on the old owner cannot flush. If it was faster, its log object is
//!    replayed, too. Fences stay for ever, because a deleted name could be created again.
//! 4. List what was written at and after the next unused address: no address is used twice, not
//!    even those of objects that nobody names.
//! 5. Publish a root of our own.
//!
//! Of two hosts that take over at once, one swaps `super`; the other one sees that and gives up.

use forebay_base::sync::Arc;

use crate::client::{Client, Persist};
use crate::conditional::{
    self, KnownSuper, Lost, SuperError, read_super, read_super_after, seal_super, swap_super,
};
use crate::directories::Directories;
use crate::engine::{Engine, Start};
use crate::error::{At, Error};
use crate::format::envelope::{self, Identity, Kind};
use crate::format::root::Super;
use crate::format::{MUTABLE_BYTES, WINDOW_BYTES, names};
use crate::load::{Loaded, Loader};
use crate::map::Map;
use crate::options::Options;
use crate::publish::{Publisher, Stop, Want};
use crate::store::{ObjectStore, StoreError, StoreErrorKind};
use crate::{deferred, orphans, probe};

/// Times that a takeover starts again because the old owner has published a root meanwhile.
const TAKEOVER_ATTEMPTS: u32 = 100;

/// Creates a store in an empty prefix.
pub(crate) async fn create(
    store: Arc<dyn ObjectStore>,
    name: &str,
    options: Options,
) -> Result<Publisher, Error> {
    let client = Arc::new(Client::new(store, &options));
    let persist = Persist::Budget(options.read_budget);
    let at = At(name);
    if let Some(key) = first_stranger(&client, persist).await.map_err(|e| at.failed("", e))? {
        return Err(Error::NotEmpty { store: name.to_owned(), key });
    }
    probe::probe(&client, name).await?;
    let content = Super {
        store_guid: client.nonce() as u64,
        epoch: first_epoch(&client),
        session: client.nonce(),
        root: Identity::default(),
        closed: false,
        owner: options.owner.clone(),
    };
    let nonce = client.nonce();
    let created =
        conditional::create(&client, names::SUPER, &seal_super(&content, nonce), nonce).await;
    let known = match created {
        Ok(version) => KnownSuper { content, version, nonce },
        Err(Lost::Failed(error)) => return Err(at.failed(names::SUPER, error)),
        Err(_) => {
            let key = names::SUPER.to_owned();
            return Err(Error::NotEmpty { store: name.to_owned(), key });
        }
    };
    let loader = Loader { client, store: name.into(), persist };
    let loaded = loader.root(&known).await?;
    let publisher = start(loader, known, loaded, options).await?;
    {
        let mut state = publisher.engine.lock();
        state.searched = true;
        state.freed.is_complete = true;
    }
    Ok(publisher)
}

/// The first epoch of a pool. It is part of the keys of data and log objects, and is random: a host
/// that was cut off while its pool was destroyed shares no key with the next pool of the prefix.
fn first_epoch(client: &Client) -> u64 {
    // A quarter of the epochs that a key has room for. The rest is for takeovers.
    1 + u64::from(client.nonce() as u32 >> 2)
}

/// The first key that is neither a probe's nor a pin's: a creation that was interrupted, or a
/// follower of a pool that was destroyed, may leave one behind.
async fn first_stranger(client: &Client, persist: Persist) -> Result<Option<String>, StoreError> {
    let mut page = client.list("", "", persist).await?;
    while let Some(last) = page.last().cloned() {
        let is_left = |key: &String| names::is_probe(key) || names::is_pin(key);
        if let Some(key) = page.into_iter().find(|key| !is_left(key)) {
            return Ok(Some(key));
        }
        page = client.list("", &last, persist).await?;
    }
    Ok(None)
}

/// Takes a store over.
pub(crate) async fn open(
    store: Arc<dyn ObjectStore>,
    name: &str,
    options: Options,
) -> Result<Publisher, Error> {
    let client = Arc::new(Client::new(store, &options));
    let loader =
        Loader { client, store: name.into(), persist: Persist::Budget(options.read_budget) };
    let known = loader.known_super().await?;
    probe::probe(&loader.client, name).await?;
    let (known, before) = take_over(&loader, known, &options).await?;
    let mut loaded = loader.root(&known).await?;
    let (first, mut sequence) = loaded.chain.log;
    for epoch in first..known.content.epoch {
        end_epoch(&loader, &mut loaded, epoch, sequence, known.content.epoch).await?;
        sequence = 0;
    }
    loaded.chain.log = (known.content.epoch, 0);
    loaded.next_unused = loaded.next_unused.max(first_unused(&loader, &loaded).await?);
    let chain = loaded.chain.clone();
    let mut publisher = start(loader, known, loaded, options).await?;
    publisher.session_before = Some(before.session);
    let (engine, root) = (publisher.engine.downgrade(), publisher.known.content.root.number);
    publisher.engine.spawn(|_| orphans::resume(engine, chain, root, before.closed));
    Ok(publisher)
}

/// Opens a store without writing to it.
pub(crate) async fn open_read_only(
    store: Arc<dyn ObjectStore>,
    name: &str,
    options: Options,
) -> Result<Arc<Engine>, Error> {
    let client = Arc::new(Client::new(store, &options));
    let loader =
        Loader { client, store: name.into(), persist: Persist::Budget(options.read_budget) };
    let mut attempt = 0;
    let (known, loaded) = loop {
        let known = loader.known_super().await?;
        match load_all(&loader, &known).await {
            Ok(loaded) => break (known, loaded),
            // The owner may have deleted what this root named: there is a newer one.
            Err(error) if attempt == TAKEOVER_ATTEMPTS || !is_not_found(&error) => {
                return Err(error);
            }
            Err(_) => attempt += 1,
        }
        let waited = loader.client.back_off(0).await;
        waited.map_err(|error| At(name).failed(names::SUPER, error))?;
    };
    Ok(engine_of(loader, &known, loaded, options, true).0)
}

/// The map of the store as it is now, for a reader that writes nothing. `None` if it has changed
/// while it was read.
pub(crate) async fn current_map(engine: &Engine) -> Result<Option<Map>, Error> {
    let persist = Persist::Budget(engine.options.read_budget);
    let (client, store) = (Arc::clone(&engine.client), Arc::clone(&engine.name));
    let loader = Loader { client, store, persist };
    let known = loader.known_super().await?;
    match load_all(&loader, &known).await {
        Ok(loaded) => Ok(Some(loaded.map)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn load_all(loader: &Loader, known: &KnownSuper) -> Result<Loaded, Error> {
    let mut loaded = loader.root(known).await?;
    let (first, mut sequence) = loaded.chain.log;
    for epoch in first..=known.content.epoch {
        loader.replay(&mut loaded, epoch, sequence).await?;
        sequence = 0;
    }
    Ok(loaded)
}

pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Store { source, .. } if source.kind() == StoreErrorKind::NotFound)
}

impl Loader {
    pub(crate) async fn known_super(&self) -> Result<KnownSuper, Error> {
        read_super(&self.client, self.persist).await.map_err(|error| self.super_error(error))
    }

    /// Reads `super` unless it is still the one that is `known`.
    pub(crate) async fn super_after(
        &self,
        known: &KnownSuper,
    ) -> Result<Option<KnownSuper>, Error> {
        let read = read_super_after(&self.client, known, self.persist).await;
        read.map_err(|error| self.super_error(error))
    }

    fn super_error(&self, error: SuperError) -> Error {
        match error {
            SuperError::Store(error) if error.kind() == StoreErrorKind::NotFound => {
                Error::NotFound { store: self.store.to_string() }
            }
            SuperError::Store(error) => At(&self.store).failed(names::SUPER, error),
            SuperError::Damaged(error) => At(&self.store).damaged(names::SUPER, error),
        }
    }
}

/// Makes this host the owner. Returns also what `super` was before.
pub(crate) async fn take_over(
    loader: &Loader,
    mut known: KnownSuper,
    options: &Options,
) -> Result<(KnownSuper, Super), Error> {
    let session = loader.client.nonce();
    for _ in 0..TAKEOVER_ATTEMPTS {
        let before = &known.content;
        if !before.closed && !options.force && before.owner != options.owner {
            let (store, owner) = (loader.store.to_string(), before.owner.clone());
            return Err(Error::InUse { store, owner, epoch: before.epoch });
        }
        let content = Super {
            epoch: before.epoch + 1,
            session,
            closed: false,
            owner: options.owner.clone(),
            ..before.clone()
        };
        let session_before = before.session;
        match swap_super(&loader.client, &known, &content).await {
            Ok(swapped) => return Ok((swapped, known.content)),
            Err(Lost::Failed(error)) => return Err(At(&loader.store).failed(names::SUPER, error)),
            // The old owner has published a root.
            Err(Lost::Super(found)) if found.session == session_before => {
                known = loader.known_super().await?;
                if known.content.session == session_before {
                    continue;
                }
                return Err(taken_over(loader, &known.content));
            }
            Err(Lost::Super(found)) => return Err(taken_over(loader, &found)),
            Err(_) => return Err(Error::NotFound { store: loader.store.to_string() }),
        }
    }
    Err(taken_over(loader, &known.content))
}

pub(crate) fn taken_over(loader: &Loader, by: &Super) -> Error {
    let store = loader.store.to_string();
    Error::TakenOver { store, owner: by.owner.clone(), epoch: by.epoch }
}

/// Replays the rest of the log of an epoch, and ends it with a fence.
async fn end_epoch(
    loader: &Loader,
    loaded: &mut Loaded,
    epoch: u64,
    mut sequence: u64,
    new_epoch: u64,
) -> Result<(), Error> {
    loop {
        let (end, fenced) = loader.replay(loaded, epoch, sequence).await?;
        if fenced {
            return Ok(());
        }
        let id = Identity { epoch: new_epoch, number: end, nonce: loader.client.nonce() };
        let body = envelope::seal(Kind::Fence, id, &[]).into();
        let key = names::log(epoch, end);
        match conditional::create(&loader.client, &key, &body, id.nonce).await {
            Ok(_) => return Ok(()),
            // The old owner was faster, or another one that takes over: look again.
            Err(Lost::Taken) => sequence = end,
            Err(lost) => {
                let error = match lost {
                    Lost::Failed(error) => error,
                    _ => StoreError::new(StoreErrorKind::NotFound, "the pool was destroyed"),
                };
                return Err(At(&loader.store).failed(&key, error));
            }
        }
    }
}

/// The first address that is after all objects, also those that nobody names.
async fn first_unused(loader: &Loader, loaded: &Loaded) -> Result<u64, Error> {
    // An object starts at most a window before the first unused address.
    let from = (loaded.next_unused / WINDOW_BYTES * WINDOW_BYTES).max(MUTABLE_BYTES);
    let mut tasks = tokio::task::JoinSet::new();
    for shard in 0..names::SHARDS {
        let loader = loader.clone();
        tasks.spawn(async move {
            let prefix = names::shard_prefix(shard);
            let mut after = names::shard_start(shard, from);
            let mut unused = 0;
            loop {
                let listed = loader.client.list(&prefix, &after, loader.persist).await;
                let page = listed.map_err(|error| At(&loader.store).failed(&prefix, error))?;
                let Some(last) = page.last() else { return Ok(unused) };
                after.clone_from(last);
                for (first, ..) in page.iter().filter_map(|key| names::parse_data(key)) {
                    unused = unused.max((first / WINDOW_BYTES + 1) * WINDOW_BYTES);
                }
            }
        });
    }
    let mut unused = 0;
    while let Some(task) = tasks.join_next().await {
        let found: Result<u64, Error> = task.unwrap_or_else(|error| {
            std::panic::resume_unwind(error.into_panic());
        });
        unused = unused.max(found?);
    }
    Ok(unused)
}

/// Starts the engine, and publishes its first root.
async fn start(
    loader: Loader,
    known: KnownSuper,
    loaded: Loaded,
    options: Options,
) -> Result<Publisher, Error> {
    let (client, store) = (Arc::clone(&loader.client), Arc::clone(&loader.store));
    let (engine, chain) = engine_of(loader, &known, loaded, options, false);
    let mut publisher = Publisher { engine, known, chain, session_before: None, stopped: None };
    match publisher.publish(Want::Root).await {
        Ok(()) => {
            let engine = publisher.engine.downgrade();
            publisher.engine.spawn(|_| deferred::run(engine));
            Ok(publisher)
        }
        Err(Stop::Fenced(fenced)) => {
            let store = store.to_string();
            Err(Error::TakenOver { store, owner: fenced.owner, epoch: fenced.epoch })
        }
        Err(Stop::Closed(text)) => {
            client.stop();
            let error = StoreError::new(StoreErrorKind::Closed, text);
            Err(At(&store).failed(names::SUPER, error))
        }
    }
}

fn engine_of(
    loader: Loader,
    known: &KnownSuper,
    loaded: Loaded,
    options: Options,
    read_only: bool,
) -> (Arc<Engine>, crate::format::root::Chain) {
    let Loaded { chain, map, mutable, next_unused } = loaded;
    let Super { epoch, store_guid, .. } = known.content;
    let directories = Directories::new();
    let start = Start {
        map,
        mutable,
        next_unused,
        epoch,
        store_guid,
        read_only,
        follows: false,
        directories,
    };
    (Engine::new(&loader.store, loader.client, options, start), chain)
}
