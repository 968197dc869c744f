//! Destroying a store: its owner is fenced, then all objects with our names are deleted.
//!
//! `super` is deleted last, so that a destruction that was interrupted can be repeated. Keys of
//! others below the prefix are left alone.
//!
//! Without `super` there is no owner, and none of before can publish anything. Then what is left of
//! a creation that was interrupted, or came late, is deleted.
//!
//! Meanwhile another host may end the same destruction, and a new pool may be created there. Its
//! keys have the form of ours, and deletes have no conditions. So `super` is read *after* each page
//! of a list, before anything of that page is deleted. If it is still as this destruction has left
//! it, nothing of a later pool was there when the page was listed, and no later pool ever has these
//! keys: epochs and nonces are random.

use forebay_base::sync::Arc;
use tokio::task::JoinSet;

use crate::client::{Client, Persist};
use crate::error::{At, Error, in_time};
use crate::format::names;
use crate::load::Loader;
use crate::open::{take_over, taken_over};
use crate::options::Options;
use crate::store::ObjectStore;

/// Destroys the store, and returns the number of objects that it had.
pub(crate) async fn destroy(
    store: Arc<dyn ObjectStore>,
    name: &str,
    options: Options,
) -> Result<u64, Error> {
    // Nothing else uses the store. A large one has millions of objects.
    let background = options.puts + options.gets;
    let client = Arc::new(Client::new(store, &Options { background, ..options.clone() }));
    let persist = Persist::Budget(options.read_budget);
    let loader = Loader { client, store: name.into(), persist };
    // Only this has a limit: a large store takes as long as it takes.
    let session = in_time(name, options.open_budget, fence(&loader, &options)).await?;
    let mut deleted = 0;
    // A fenced owner may have had puts in flight: look until there is nothing.
    loop {
        let count = delete_all(&loader, session).await?;
        deleted += count;
        if count == 0 {
            break;
        }
    }
    if session.is_some() {
        check(&loader, session).await?;
        delete(&loader, names::SUPER.to_owned()).await?;
        deleted += 1;
    }
    Ok(deleted)
}

/// Takes the store over, so that its owner can write nothing any more. Returns the session of this
/// host; `None` if there is no owner, but objects of one.
async fn fence(loader: &Loader, options: &Options) -> Result<Option<u128>, Error> {
    match loader.known_super().await {
        Ok(known) => {
            let (known, _) = take_over(loader, known, options).await?;
            Ok(Some(known.content.session))
        }
        // A store that knows no `super` must not list it, either.
        Err(Error::NotFound { .. }) if leftovers(loader).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails if the store is not this host's any more, or has got an owner: what is listed from now on
/// may be a pool in use.
async fn check(loader: &Loader, session: Option<u128>) -> Result<(), Error> {
    match (loader.known_super().await, session) {
        (Ok(known), Some(session)) if known.content.session == session => Ok(()),
        (Ok(known), _) => Err(taken_over(loader, &known.content)),
        (Err(Error::NotFound { .. }), None) => Ok(()),
        (Err(error), _) => Err(error),
    }
}

/// Whether there are objects of ours, but no `super`.
async fn leftovers(loader: &Loader) -> Result<bool, Error> {
    let (mut after, mut found) = (String::new(), false);
    loop {
        let page = list(loader, &after).await?;
        let Some(last) = page.last() else { return Ok(found) };
        if page.iter().any(|key| key == names::SUPER) {
            return Ok(false);
        }
        found |= page.iter().any(|key| names::is_ours(key));
        after.clone_from(last);
    }
}

async fn list(loader: &Loader, after: &str) -> Result<Vec<String>, Error> {
    let listed = loader.client.list("", after, loader.persist).await;
    listed.map_err(|error| At(&loader.store).failed("", error))
}

/// Deletes all objects but `super`, and returns how many were no pins.
async fn delete_all(loader: &Loader, session: Option<u128>) -> Result<u64, Error> {
    let (mut after, mut deleted) = (String::new(), 0);
    loop {
        let page = list(loader, &after).await?;
        let Some(last) = page.last() else { return Ok(deleted) };
        after.clone_from(last);
        check(loader, session).await?;
        let mut tasks = JoinSet::new();
        for key in page {
            if names::is_ours(&key) && key != names::SUPER {
                let loader = loader.clone();
                // Followers put their pins again until `super` is gone.
                let counts = u64::from(!names::is_pin(&key));
                tasks.spawn(async move { delete(&loader, key).await.map(|()| counts) });
            }
        }
        while let Some(task) = tasks.join_next().await {
            match task {
                Ok(result) => deleted += result?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

async fn delete(loader: &Loader, key: String) -> Result<(), Error> {
    let deleted = loader.client.delete(&key).await;
    deleted.map_err(|error| At(&loader.store).failed(&key, error))
}
