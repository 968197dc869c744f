//! A follower: it reads a store that another host writes, and takes up each new root.
//!
//! [`Follower::poll`] asks for `super` if it has changed, and loads what the new root adds. If the
//! labels have changed, there is a new *view*: a device of its own, which stays as it is. Otherwise
//! the owner has only moved blocks or published an fsync, and the newest view gets the new map.
//! Views share the client, its limits and threads. Log objects after the root are not read: they
//! hold an intent log that nobody replays here.
//!
//! A pin says which root the oldest view needs. It is put before the `super` is read whose root is
//! loaded first. A task puts it again a few times in a lease, whatever a poll waits for. A store
//! may refuse it: then what the owner has freed stays for the owner's grace period only.
//!
//! # Locking
//! The task locks `FollowerState` and `Pinning` are held across requests, never both.
//! `object-follower` is a leaf lock, held for a look.

use std::time::Duration;

use forebay_base::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::cleaner::now;
use crate::client::{Client, Persist};
use crate::conditional::KnownSuper;
use crate::device::{ObjectDevice, Threads, begin_follower};
use crate::directories::Directories;
use crate::engine::{Engine, Start};
use crate::error::{At, Error, in_time};
use crate::format::envelope::{self, Identity, Kind};
use crate::format::names;
use crate::format::pin::Pin;
use crate::format::root::Link;
use crate::history;
use crate::load::{Loaded, Loader};
use crate::open::is_not_found;
use crate::options::Options;
use crate::store::{ObjectStore, StoreErrorKind};

/// Times that a load starts again because the owner has deleted what it reads.
const LOAD_ATTEMPTS: u32 = 100;
/// Renewals of a pin in the time of its lease.
const RENEWALS_PER_LEASE: u32 = 3;
/// Looks for whether to renew, and tries after a failure, in the time of a lease.
const TRIES_PER_LEASE: u32 = 12;
/// A put of a pin may take this part of a lease, so that another try is in time.
const PUT_SHARE: u32 = 6;

/// Follows a store that another host writes.
pub struct Follower {
    engine: Arc<Following>,
    runtime: Handle,
    threads: Arc<Threads>,
}

/// What a follower knows, for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowState {
    /// The name of the owner of the store.
    pub owner: String,
    /// The epoch of the owner.
    pub epoch: u64,
    /// The number of the newest root that was loaded.
    pub root: u64,
    /// Since when there may be a newer root.
    pub unknown_for: Duration,
    /// Views that are in use.
    pub views: usize,
    /// Whether a pin keeps what the views need.
    pub pinned: bool,
    /// Why the last put of the pin failed.
    pub pin_error: Option<String>,
}

/// The engine of a follower, without threads.
pub(crate) struct Following {
    loader: Loader,
    options: Options,
    nonce: u128,
    state: tokio::sync::Mutex<FollowerState>,
    pinning: tokio::sync::Mutex<Pinning>,
    told: Mutex<Told>,
}

/// Protected by a task lock.
#[derive(Default)]
struct Pinning {
    beat: u64,
    /// When a put of the pin is tried again.
    due: Option<Instant>,
}

/// Protected by the task lock.
struct FollowerState {
    known: KnownSuper,
    loaded: Loaded,
    /// Counts the states of the labels.
    labels: u64,
    /// Of all views of one history of the store.
    directories: Arc<Directories>,
}

/// A state of the store that may be in use. It is in order of `labels`.
struct View {
    /// Counts the states of the labels.
    labels: u64,
    /// The root that its map is of.
    root: u64,
    engine: Weak<Engine>,
}

/// What [`FollowState`] tells, and what a pin needs. Neither must wait for requests.
struct Told {
    owner: String,
    epoch: u64,
    store_guid: u64,
    root: u64,
    known_at: Instant,
    views: Vec<View>,
    pinned_at: Option<Instant>,
    pin_error: Option<String>,
    /// No pin is put any more.
    closing: bool,
}

impl Follower {
    /// Opens a store to follow it. Returns the view of its newest root, too. `options.owner` is not
    /// needed.
    ///
    /// # Errors
    /// If there is no store, an object is damaged, or requests fail.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        name: &str,
        options: Options,
    ) -> Result<(Self, Arc<ObjectDevice>), Error> {
        let budget = options.open_budget;
        let opened = Following::open(store, name, options);
        let (threads, runtime, (engine, view)) = begin_follower(name, budget, opened)?;
        let view = ObjectDevice::new(Arc::clone(&threads), view);
        drop(runtime.spawn(keep_pinned(Arc::downgrade(&engine))));
        Ok((Self { engine, runtime, threads }, view))
    }

    /// Looks whether there is a newer root, and loads it. Returns its view if a label has changed.
    /// The one before stays as it is, as long as the owner keeps what it needs. The calling thread
    /// may block.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::Replaced`] if the store was destroyed; other errors if
    /// requests fail, which may succeed later.
    pub fn poll(&self) -> Result<Option<Arc<ObjectDevice>>, Error> {
        let (name, budget) = (&self.engine.loader.store, self.engine.options.open_budget);
        let polled = self.runtime.block_on(in_time(name, budget, self.engine.poll()));
        Ok(polled?.map(|view| ObjectDevice::new(Arc::clone(&self.threads), view)))
    }

    /// A mark of the newest root that was loaded, for somebody who keeps what was read: see
    /// [`descends_from`](Self::descends_from). It is never 0. Waits for a poll that runs.
    pub fn mark(&self) -> u64 {
        self.runtime.block_on(self.engine.mark())
    }

    /// Whether the newest root that was loaded is that of `mark`, or a later one of the same
    /// history, for sure. If not, the store may have been set back to a copy of before, and
    /// addresses may have other content now. Waits for a poll that runs.
    pub fn descends_from(&self, mark: u64) -> bool {
        self.runtime.block_on(self.engine.descends_from(mark))
    }

    /// What is known.
    pub fn state(&self) -> FollowState {
        // For its clock.
        let _entered = self.runtime.enter();
        self.engine.tell()
    }

    /// Ends the follower: removes its pin, if the store answers in time, and lets all requests
    /// fail, also those of its views and of a poll.
    pub fn close(&self) {
        self.runtime.block_on(self.engine.close());
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.engine.loader.store;
        f.debug_struct("Follower").field("name", name).finish_non_exhaustive()
    }
}

impl Told {
    fn forget_views(&mut self) {
        self.views.retain(|view| view.engine.strong_count() > 0);
    }
}

/// Renews the pin of a follower until it is closed.
pub(crate) async fn keep_pinned(following: Weak<Following>) {
    loop {
        let Some(following) = following.upgrade() else { return };
        if following.told.lock().closing {
            return;
        }
        following.renew().await;
        let wait = following.options.lease / TRIES_PER_LEASE;
        drop(following);
        sleep(wait).await;
    }
}

impl Following {
    /// Opens a store to follow it, and returns its first view.
    pub(crate) async fn open(
        store: Arc<dyn ObjectStore>,
        name: &str,
        options: Options,
    ) -> Result<(Arc<Self>, Arc<Engine>), Error> {
        let client = Arc::new(Client::new(store, &options));
        let nonce = client.nonce();
        let persist = Persist::Budget(options.read_budget);
        let loader = Loader { client, store: name.into(), persist };
        let begun = now();
        let known = loader.known_super().await?;
        let told = Told {
            owner: known.content.owner.clone(),
            epoch: known.content.epoch,
            store_guid: known.content.store_guid,
            root: known.content.root.number,
            known_at: begun,
            views: Vec::new(),
            pinned_at: None,
            pin_error: None,
            closing: false,
        };
        let state = FollowerState {
            known: known.clone(),
            loaded: Loaded::default(),
            labels: 0,
            directories: Directories::new(),
        };
        let following = Arc::new(Self {
            loader,
            options,
            nonce,
            state: tokio::sync::Mutex::new(state),
            pinning: tokio::sync::Mutex::default(),
            told: Mutex::named("object-follower", told),
        });
        following.renew().await;
        // The owner may have published others before the pin was there.
        let known = following.loader.super_after(&known).await?.unwrap_or(known);
        let mut state = following.state.lock().await;
        following.take_up(&mut state, known).await?;
        let view = following.new_view(&mut state);
        following.note_known(&state, begun);
        drop(state);
        Ok((following, view))
    }

    /// See [`Follower::poll`].
    pub(crate) async fn poll(&self) -> Result<Option<Arc<Engine>>, Error> {
        let begun = now();
        let mut state = self.state.lock().await;
        let mut found = None;
        if let Some(known) = self.loader.super_after(&state.known).await? {
            found = self.advance(&mut state, known).await?;
        }
        self.note_known(&state, begun);
        Ok(found)
    }

    /// See [`Follower::mark`].
    pub(crate) async fn mark(&self) -> u64 {
        history::mark(&self.state.lock().await.known.content)
    }

    /// See [`Follower::descends_from`].
    pub(crate) async fn descends_from(&self, mark: u64) -> bool {
        let state = self.state.lock().await;
        history::is_ancestor(mark, &state.known.content, &state.loaded.chain)
    }

    async fn advance(
        &self,
        state: &mut FollowerState,
        known: KnownSuper,
    ) -> Result<Option<Arc<Engine>>, Error> {
        let (before, after) = (&state.known.content, &known.content);
        let is_older = after.root.number < before.root.number;
        if after.store_guid != before.store_guid || is_older {
            return Err(Error::Replaced { store: self.loader.store.to_string() });
        }
        let labels = state.loaded.mutable.clone();
        let mark = history::mark(before);
        self.take_up(state, known).await?;
        let descends = history::is_ancestor(mark, &state.known.content, &state.loaded.chain);
        if !descends {
            // If the store was set back, other objects may have the keys of those before.
            state.directories = Directories::new();
        }
        if !descends || state.loaded.mutable.label_differs(&labels, self.options.label_bytes) {
            return Ok(Some(self.new_view(state)));
        }
        let newest = {
            let told = self.told.lock();
            // It may be gone, but not older ones.
            let view = told.views.last().filter(|view| view.labels == state.labels);
            view.and_then(|view| view.engine.upgrade())
        };
        let Some(engine) = newest else { return Ok(None) };
        {
            let mut shared = engine.lock();
            shared.map = state.loaded.map.clone();
            shared.fallback = Default::default();
        }
        // From now on it does not need the root of before.
        let mut told = self.told.lock();
        if let Some(view) = told.views.last_mut().filter(|view| view.labels == state.labels) {
            view.root = state.known.content.root.number;
        }
        Ok(None)
    }

    /// Loads the root that `known` names, or a newer one.
    async fn take_up(&self, state: &mut FollowerState, mut known: KnownSuper) -> Result<(), Error> {
        for attempt in 0.. {
            // There is a new owner, which has published nothing yet.
            let root = known.content.root;
            if root.number > 0 && state.loaded.chain.links.last() == Some(&Link::Root(root)) {
                state.known = known;
                return Ok(());
            }
            let loaded = match known.content.root.number {
                0 => self.loader.root(&known).await,
                _ => self.loader.root_after(&state.loaded, &known).await,
            };
            match loaded {
                Ok(loaded) => {
                    state.loaded = loaded;
                    state.known = known;
                    return Ok(());
                }
                // The owner may have deleted what this root named: there is a newer one.
                Err(error) if attempt == LOAD_ATTEMPTS || !is_not_found(&error) => {
                    return Err(error);
                }
                Err(_) => {}
            }
            let waited = self.loader.client.back_off(0).await;
            waited.map_err(|error| At(&self.loader.store).failed(names::SUPER, error))?;
            known = self.loader.known_super().await?;
        }
        unreachable!("the loop ends by a return")
    }

    fn new_view(&self, state: &mut FollowerState) -> Arc<Engine> {
        let content = &state.known.content;
        let start = Start {
            map: state.loaded.map.clone(),
            mutable: state.loaded.mutable.clone(),
            next_unused: state.loaded.next_unused,
            epoch: content.epoch,
            store_guid: content.store_guid,
            read_only: true,
            follows: true,
            directories: Arc::clone(&state.directories),
        };
        let client = Arc::clone(&self.loader.client);
        let engine = Engine::new(&self.loader.store, client, self.options.clone(), start);
        state.labels += 1;
        let (labels, root) = (state.labels, content.root.number);
        self.told.lock().views.push(View { labels, root, engine: engine.downgrade() });
        engine
    }

    /// Puts the pin, which names the root of the oldest view, if it is time to do so.
    pub(crate) async fn renew(&self) {
        let mut pinning = self.pinning.lock().await;
        if pinning.due.is_some_and(|due| now() < due) {
            return;
        }
        let (id, store_guid) = {
            let mut told = self.told.lock();
            if told.closing {
                return;
            }
            told.forget_views();
            let root = told.views.iter().map(|view| view.root).min().unwrap_or(told.root);
            (Identity { epoch: told.epoch, number: root, nonce: self.nonce }, told.store_guid)
        };
        pinning.beat += 1;
        let (begun, lease) = (now(), self.options.lease);
        let pin = Pin { store_guid, beat: pinning.beat, lease };
        let body = envelope::seal(Kind::Pin, id, &pin.encode()).into();
        let key = names::pin(self.nonce);
        let put = timeout(lease / PUT_SHARE, self.loader.client.try_put(&key, &body)).await;
        let error = match put {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((error.kind(), error.to_string())),
            Err(_) => {
                let text = "the store does not answer in time".to_owned();
                Some((StoreErrorKind::Timeout, text))
            }
        };
        let wait = match &error {
            // It will be denied again.
            None | Some((StoreErrorKind::Denied, _)) => lease / RENEWALS_PER_LEASE,
            Some(_) => lease / TRIES_PER_LEASE,
        };
        pinning.due = Some(begun + wait);
        let mut told = self.told.lock();
        if error.is_none() {
            told.pinned_at = Some(begun);
        }
        told.pin_error = error.map(|(_, text)| text);
    }

    /// Notes that the newest root at `since` is loaded.
    fn note_known(&self, state: &FollowerState, since: Instant) {
        let content = &state.known.content;
        let mut told = self.told.lock();
        told.owner.clone_from(&content.owner);
        (told.epoch, told.root) = (content.epoch, content.root.number);
        told.known_at = since;
    }

    fn tell(&self) -> FollowState {
        let mut told = self.told.lock();
        told.forget_views();
        let now = now();
        FollowState {
            owner: told.owner.clone(),
            epoch: told.epoch,
            root: told.root,
            unknown_for: now - told.known_at,
            views: told.views.len(),
            pinned: told.pinned_at.is_some_and(|pinned| now - pinned < self.options.lease),
            pin_error: told.pin_error.clone(),
        }
    }

    pub(crate) async fn close(&self) {
        let client = &self.loader.client;
        let was_pinned = {
            let mut told = self.told.lock();
            told.closing = true;
            told.pinned_at.is_some()
        };
        let remove = async {
            // After a put that is on its way.
            let _pinning = self.pinning.lock().await;
            client.delete(&names::pin(self.nonce)).await
        };
        if was_pinned {
            // If it stays, it expires.
            let _ = timeout(self.options.close_budget, remove).await;
        }
        client.stop();
    }
}
