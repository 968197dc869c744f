//! Deletion of what published roots have released: after the grace period, and once no follower
//! needs an older root.
//!
//! What waits is a queue of *batches*. The newest are in memory. If they are many, and at a close,
//! they become a *list* in the store, so the memory has a bound, and a later import goes on. How
//! long an earlier import's list has waited is told by the store: from when the list was written to
//! when this import took the store over. So no clocks of hosts are compared.
//!
//! What a published root has released is named by no later one. So a list is true for ever, also
//! that of an owner which was fenced, and an object may be deleted twice.
//!
//! A crash loses what was in memory. The next import finds it by a search
//! ([`orphans`](crate::orphans)). An owner that has closed the store, and has a list for all that
//! nothing names, says so in the key of its last list. After it there is no search.
//!
//! One task deletes. It ends once the device is closed or fenced. What cannot be deleted is tried
//! again later, less and less often. The rest does not wait for it.

use std::time::Duration;

use forebay_base::sync::{Arc, Weak};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cleaner::now;
use crate::client::Persist;
use crate::counters::ObjectCounters;
use crate::engine::Engine;
use crate::format::envelope::{self, Identity, Kind};
use crate::format::freed::{self, Freed};
use crate::format::{FormatError, names};
use crate::store::{StoreError, StoreErrorKind};

/// Times of the store may be so much too far apart: they are in seconds, and its servers' clocks
/// differ.
const CLOCK_MARGIN: Duration = Duration::from_secs(5);

/// How long the task sleeps at most: something new may be due before what it has seen.
const IDLE: Duration = Duration::from_secs(1);

/// Times that a batch fails until the wait before the next attempt is the longest one.
const DOUBLINGS_MAX: u32 = 6;

/// Batches that wait, in no order.
#[derive(Default)]
pub(crate) struct Queue {
    batches: Vec<Batch>,
    next_id: u64,
    /// Everything that nothing names is in the queue, or will be, unless `lost`.
    pub(crate) is_complete: bool,
    /// A list could not be used. What it had may be in no batch.
    lost: bool,
}

/// Objects that are deleted together.
#[derive(Clone)]
struct Batch {
    id: u64,
    /// The newest root that has released some of them.
    root: u64,
    /// When it was known that this root is published.
    published: Instant,
    /// When the grace period ends.
    due: Instant,
    /// When it is tried next: when it is due, or later after a failure.
    next_try: Instant,
    /// Attempts that have left something.
    failures: u32,
    /// Number of objects, as far as it is known.
    count: u64,
    orphans: bool,
    objects: Objects,
}

#[derive(Clone)]
enum Objects {
    Here(Arc<Vec<Freed>>),
    /// The key of a list.
    Stored(String),
}

impl Queue {
    /// Adds a batch, and returns its id.
    fn push(&mut self, batch: Batch) -> u64 {
        self.next_id += 1;
        self.batches.push(Batch { id: self.next_id, ..batch });
        self.next_id
    }

    /// Notes that a batch is left, or these objects of it.
    fn postpone(&mut self, id: u64, left: Option<Vec<Freed>>, now: Instant, pause: Duration) {
        let Some(batch) = self.batches.iter_mut().find(|batch| batch.id == id) else { return };
        batch.next_try = now + pause * (1 << batch.failures.min(DOUBLINGS_MAX));
        batch.failures += 1;
        if let Some(left) = left {
            batch.count = left.len() as u64;
            batch.objects = Objects::Here(Arc::new(left));
        }
    }

    /// Whether no object is without a name and in no batch, as far as it is known here.
    pub(crate) fn has_all(&self) -> bool {
        self.is_complete && !self.lost
    }

    fn remove(&mut self, id: u64) {
        self.batches.retain(|batch| batch.id != id);
    }

    /// Entries in memory.
    pub(crate) fn len(&self) -> usize {
        let len = |batch: &Batch| match &batch.objects {
            Objects::Here(list) => list.len(),
            Objects::Stored(_) => 0,
        };
        self.batches.iter().map(len).sum()
    }

    /// Number of objects that wait, as far as it is known.
    pub(crate) fn count(&self) -> u64 {
        self.batches.iter().map(|batch| batch.count).sum()
    }

    /// The batch to look at next, or how long none is due.
    fn next(&self, now: Instant) -> Result<Batch, Option<Duration>> {
        let due = self.batches.iter().filter(|batch| batch.next_try <= now);
        let next = due.min_by_key(|batch| batch.root).cloned();
        next.ok_or_else(|| self.batches.iter().map(|batch| batch.next_try - now).min())
    }

    /// All that is in memory as one batch, and the batches that it is of.
    fn here(&self) -> Option<(Batch, Vec<Freed>, Vec<u64>)> {
        let (mut all, mut list, mut ids) = (None::<Batch>, Vec::new(), Vec::new());
        for batch in &self.batches {
            let Objects::Here(objects) = &batch.objects else { continue };
            list.extend_from_slice(objects);
            ids.push(batch.id);
            let all = all.get_or_insert_with(|| Batch { count: 0, ..batch.clone() });
            all.root = all.root.max(batch.root);
            all.published = all.published.max(batch.published);
            all.due = all.due.max(batch.due);
            all.next_try = all.next_try.max(batch.next_try);
            all.failures = all.failures.min(batch.failures);
            all.count += batch.count;
            all.orphans &= batch.orphans;
        }
        Some((all?, list, ids))
    }
}

impl Engine {
    /// Notes what `root`, which is published, has released.
    pub(crate) async fn free(&self, root: u64, list: Vec<Freed>, orphans: bool) {
        if list.is_empty() {
            return;
        }
        let published = now();
        let due = published + self.options.grace;
        let is_much = {
            let mut state = self.lock();
            state.freed.push(Batch {
                id: 0,
                root,
                published,
                due,
                next_try: due,
                failures: 0,
                count: list.iter().map(Freed::count).sum(),
                orphans,
                objects: Objects::Here(Arc::new(list)),
            });
            state.freed.len() > self.options.freed_max
        };
        if is_much && let Err(error) = self.store_freed(false).await {
            // The device was closed.
            tracing::debug!(store = %self.name, %error, "a list of freed objects is not written");
        }
    }

    /// Moves what waits in memory to a list in the store. `last` says that nothing else is unnamed.
    pub(crate) async fn store_freed(&self, last: bool) -> Result<(), StoreError> {
        let here = self.lock().freed.here();
        if here.is_none() && !last {
            return Ok(());
        }
        let (list, number) = here.as_ref().map_or((&[][..], 0), |(all, list, _)| (list, all.root));
        let id = Identity { epoch: self.epoch, number, nonce: self.client.nonce() };
        let body = envelope::seal(Kind::Freed, id, &freed::encode(list));
        let key = names::freed(id, last);
        self.client.put(&key, &body.into(), Persist::Forever).await?;
        self.count(ObjectCounters::FREED_LISTS, 1);
        if let Some((all, _, ids)) = here {
            let mut state = self.lock();
            ids.into_iter().for_each(|id| state.freed.remove(id));
            state.freed.push(Batch { objects: Objects::Stored(key), ..all });
        }
        Ok(())
    }

    /// Finds the lists of earlier imports. Returns whether the owner of `epoch` has listed
    /// everything that nothing named.
    pub(crate) async fn find_lists(&self, epoch: u64) -> Result<bool, StoreError> {
        let (mut page, mut complete) = (self.list_at_last(names::FREED, "").await?, false);
        if page.is_empty() {
            return Ok(false);
        }
        // This owner has written `super`. A list without a known age waits as if it were new.
        let store_now = self.client.modified(names::SUPER).await.ok().flatten();
        while let Some(last_key) = page.last().cloned() {
            for key in page {
                let Some((id, last)) = names::parse_freed(&key) else { continue };
                if id.epoch >= self.epoch {
                    continue;
                }
                let written = match self.client.modified(&key).await {
                    Err(error) if error.kind() == StoreErrorKind::NotFound => continue,
                    written => written.ok().flatten(),
                };
                let age = store_now.zip(written).and_then(|(now, then)| now.checked_sub(then));
                let age = age.unwrap_or_default().saturating_sub(CLOCK_MARGIN);
                let published = now();
                let due = published + self.options.grace.saturating_sub(age);
                self.lock().freed.push(Batch {
                    id: 0,
                    root: id.number,
                    published,
                    due,
                    next_try: due,
                    failures: 0,
                    count: 0,
                    orphans: false,
                    objects: Objects::Stored(key),
                });
                complete |= last && id.epoch == epoch;
            }
            page = self.list_at_last(names::FREED, &last_key).await?;
        }
        Ok(complete)
    }

    /// Lists a page of keys. Repeats it until the store answers, or the device is closed or fenced.
    pub(crate) async fn list_at_last(
        &self,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<String>, StoreError> {
        let mut failed_before = false;
        loop {
            if !self.may_delete() {
                return Err(StoreError::new(StoreErrorKind::Closed, "the device was closed"));
            }
            match self.client.list(prefix, after, Persist::Background).await {
                Err(error) if error.kind() != StoreErrorKind::Closed => {
                    if !std::mem::replace(&mut failed_before, true) {
                        let text = "cannot look for objects to delete; it is tried again";
                        tracing::info!(store = %self.name, prefix, %error, text);
                    }
                    sleep(self.options.pin_check).await;
                }
                definite => return definite,
            }
        }
    }

    /// Deletes the batch that has waited the longest. Returns how long to wait then.
    async fn delete_due(self: &Arc<Self>) -> Duration {
        let pause = self.options.pin_check;
        let next = self.lock().freed.next(now());
        let batch = match next {
            Ok(batch) => batch,
            Err(until_due) => return until_due.unwrap_or(IDLE).min(IDLE).min(pause),
        };
        match self.pins_permit(batch.root, batch.published).await {
            Ok(true) => {}
            Ok(false) if now() - batch.due >= self.options.pin_hold => {
                let text = "a follower needs what was freed long ago: it is deleted now";
                tracing::warn!(store = %self.name, root = batch.root, text);
            }
            Ok(false) | Err(_) => return pause,
        }
        match &batch.objects {
            Objects::Here(list) => self.delete_here(&batch, list).await,
            Objects::Stored(key) => self.delete_stored(&batch, key).await,
        }
        // Others may be due.
        Duration::ZERO
    }

    /// Deletes a batch of memory, or a part of it.
    async fn delete_here(self: &Arc<Self>, batch: &Batch, list: &[Freed]) {
        let failed = self.delete_all(list, batch.orphans).await;
        let mut state = self.lock();
        match failed {
            Some(failed) if failed.is_empty() => state.freed.remove(batch.id),
            failed => state.freed.postpone(batch.id, failed, now(), self.options.pin_check),
        }
    }

    /// Deletes what a list names, and then the list. What is left of it waits in memory.
    async fn delete_stored(self: &Arc<Self>, batch: &Batch, key: &str) {
        let pause = self.options.pin_check;
        let failed = match self.read_list(key).await {
            Ok(Some(list)) => self.delete_all(&list, batch.orphans).await,
            Ok(None) => {
                // The next import searches for what it had.
                self.lock().freed.lost = true;
                Some(Vec::new())
            }
            Err(_) => None,
        };
        let Some(failed) = failed else {
            return self.lock().freed.postpone(batch.id, None, now(), pause);
        };
        // It must be in the queue before the list is gone: a close lists what the queue has.
        let rest = (!failed.is_empty()).then(|| {
            let mut state = self.lock();
            let rest = state.freed.push(batch.clone());
            state.freed.postpone(rest, Some(failed), now(), pause);
            rest
        });
        let deleted = self.client.delete(key).await;
        let mut state = self.lock();
        match deleted {
            Ok(()) => state.freed.remove(batch.id),
            Err(_) => {
                // It still names the rest.
                rest.into_iter().for_each(|id| state.freed.remove(id));
                state.freed.postpone(batch.id, None, now(), pause);
            }
        }
    }

    /// Reads a list; `None` if it is gone, or damaged.
    async fn read_list(&self, key: &str) -> Result<Option<Vec<Freed>>, StoreError> {
        let parse = |kind, id, body: &[u8]| match kind {
            Kind::Freed if names::parse_freed(key).is_some_and(|(named, _)| named == id) => {
                freed::decode(body)
            }
            _ => Err(FormatError::Identity),
        };
        match self.client.get_parsed(key, Persist::Background, parse).await {
            Ok(Ok((list, _))) => Ok(Some(list)),
            Ok(Err(error)) => {
                let text = "a list of freed objects is damaged; the next import searches";
                tracing::warn!(store = %self.name, key, %error, text);
                Ok(None)
            }
            Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes objects, several at a time. Returns those that could not be deleted; `None` if the
    /// device was closed or fenced before the end.
    async fn delete_all(self: &Arc<Self>, list: &[Freed], orphans: bool) -> Option<Vec<Freed>> {
        let (mut tasks, mut failed) = (JoinSet::new(), Vec::new());
        for one in list.iter().flat_map(|freed| freed.each()) {
            if !self.may_delete() {
                return None;
            }
            if self.is_named(&one) {
                continue;
            }
            if tasks.len() >= self.options.background {
                failed.extend(tasks.join_next().await.and_then(Result::ok).flatten());
            }
            let client = Arc::clone(&self.client);
            tasks.spawn(async move {
                let deleted = client.delete(&one.key()).await;
                let counter = match (&deleted, orphans) {
                    (Ok(()), false) => ObjectCounters::DELETED_OBJECTS,
                    (Ok(()), true) => ObjectCounters::DELETED_ORPHANS,
                    (Err(_), _) => ObjectCounters::DELETES_FAILED,
                };
                client.count(counter, 1);
                deleted.err().map(|_| one)
            });
        }
        while let Some(ended) = tasks.join_next().await {
            failed.extend(ended.ok().flatten());
        }
        Some(failed)
    }

    /// Whether the map has a data object. It never has, unless a list is wrong.
    fn is_named(&self, freed: &Freed) -> bool {
        let Freed::Data { first, epoch, generation } = *freed else { return false };
        let state = self.lock();
        let named = state.map.get(first);
        named.is_some_and(|object| (object.epoch, object.generation) == (epoch, generation))
    }
}

/// Deletes what is due until the device is closed or fenced. Does not keep it.
pub(crate) async fn run(engine: Weak<Engine>) {
    loop {
        let wait = match engine.upgrade().filter(|engine| engine.may_delete()) {
            Some(engine) => engine.delete_due().await,
            None => return,
        };
        sleep(wait).await;
    }
}
