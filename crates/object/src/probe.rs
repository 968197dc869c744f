//! Whether a store honours conditions: without them two owners could commit at once.
//!
//! Each condition is tried when it is true and when it is false, on an object of its own. A lost
//! response makes an attempt say nothing, so the whole probe is repeated with another key.

use crate::client::{Client, Persist};
use crate::error::{At, Error, StoreFault};
use crate::format::names;
use crate::store::{Body, Condition, StoreError, StoreErrorKind, Version};

/// Times that the probe is repeated because a request failed.
const ATTEMPTS: u32 = 8;

enum Failure {
    Fault(StoreFault),
    Request(StoreError),
}

/// Probes the conditions of the store.
pub(crate) async fn probe(client: &Client, store: &str) -> Result<(), Error> {
    let mut attempt = 0;
    loop {
        let key = names::probe(client.nonce());
        let result = conditions(client, &key).await;
        // Whatever it found: the probe leaves nothing behind.
        let _ = client.delete(&key).await;
        match result {
            Ok(()) => return Ok(()),
            Err(Failure::Fault(fault)) => {
                return Err(Error::Unfit { store: store.to_owned(), fault });
            }
            Err(Failure::Request(error)) if attempt == ATTEMPTS || !error.is_transient() => {
                return Err(At(store).failed(&key, error));
            }
            Err(Failure::Request(_)) => {}
        }
        client.back_off(attempt).await.map_err(|error| At(store).failed(&key, error))?;
        attempt += 1;
    }
}

async fn conditions(client: &Client, key: &str) -> Result<(), Failure> {
    use StoreFault::{
        IgnoresAbsent, IgnoresMatch, MatchCreates, RefusesAbsent, RefusesMatch, Stale,
    };
    let body = |text: &str| Body::from(text.as_bytes().to_vec());
    let (one, two, three) = (body("one"), body("two"), body("three"));
    let stranger = Condition::Matches(Version("\"0\"".to_owned()));

    refused(client.put_once(key, &one, stranger).await, MatchCreates)?;
    let first = done(client.put_once(key, &one, Condition::Absent).await, RefusesAbsent)?;
    refused(client.put_once(key, &two, Condition::Absent).await, IgnoresAbsent)?;
    let matches = |version: &Version| Condition::Matches(version.clone());
    let second = done(client.put_once(key, &two, matches(&first)).await, RefusesMatch)?;
    refused(client.put_once(key, &three, matches(&first)).await, IgnoresMatch)?;
    // The body of an answer may be cut.
    for _ in 0..ATTEMPTS {
        let found = client.get(key, Persist::Background).await.map_err(Failure::Request)?;
        if &found.0[..] == b"two" && found.1 == second {
            return Ok(());
        }
    }
    Err(Failure::Fault(Stale))
}

fn done(result: Result<Version, StoreError>, fault: StoreFault) -> Result<Version, Failure> {
    result.map_err(|error| match error.is_transient() {
        true => Failure::Request(error),
        false => Failure::Fault(fault),
    })
}

fn refused(result: Result<Version, StoreError>, fault: StoreFault) -> Result<(), Failure> {
    match result {
        Ok(_) => Err(Failure::Fault(fault)),
        Err(error)
            if matches!(error.kind(), StoreErrorKind::Condition | StoreErrorKind::NotFound) =>
        {
            Ok(())
        }
        Err(error) => Err(Failure::Request(error)),
    }
}
