//! Destroying a store: its owner is fenced, then all objects with our names are deleted.
//!
//! `super` is deleted last, so that a destruction that was interrupted can be repeated. Keys of
//! others below the prefix are left alone.

use forebay_base::sync::Arc;
use tokio::task::JoinSet;

use crate::client::{Client, Persist};
use crate::error::{At, Error};
use crate::format::names;
use crate::load::Loader;
use crate::open::take_over;
use crate::options::Options;
use crate::store::ObjectStore;

/// Destroys the store, and returns the number of objects that it had.
pub(crate) async fn destroy(
    store: Arc<dyn ObjectStore>,
    name: &str,
    options: Options,
) -> Result<u64, Error> {
    let client = Arc::new(Client::new(store, &options));
    let persist = Persist::Budget(options.read_budget);
    let loader = Loader { client, store: name.into(), persist };
    let known = loader.known_super().await?;
    take_over(&loader, known, &options).await?;
    let mut deleted = 0;
    // A fenced owner may have had puts in flight: look until there is nothing.
    loop {
        let count = delete_all(&loader).await?;
        deleted += count;
        if count == 0 {
            break;
        }
    }
    delete(&loader, names::SUPER.to_owned()).await?;
    Ok(deleted + 1)
}

/// Deletes all objects but `super`.
async fn delete_all(loader: &Loader) -> Result<u64, Error> {
    let (mut after, mut deleted) = (String::new(), 0);
    loop {
        let listed = loader.client.list("", &after, loader.persist).await;
        let page = listed.map_err(|error| At(&loader.store).failed("", error))?;
        let Some(last) = page.last() else { return Ok(deleted) };
        after.clone_from(last);
        let mut tasks = JoinSet::new();
        for key in page {
            if names::is_ours(&key) && key != names::SUPER {
                let loader = loader.clone();
                tasks.spawn(async move { delete(&loader, key).await });
            }
        }
        while let Some(task) = tasks.join_next().await {
            match task {
                Ok(result) => result?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
            deleted += 1;
        }
    }
}

async fn delete(loader: &Loader, key: String) -> Result<(), Error> {
    let deleted = loader.client.delete(&key).await;
    deleted.map_err(|error| At(&loader.store).failed(&key, error))
}
