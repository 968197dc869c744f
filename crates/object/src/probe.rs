//! Whether a store honours conditions: without them two owners could commit at once.
//!
//! Each condition is tried when it is true and when it is false, on an object of its own. A put
//! whose condition is false is repeated until there is an answer: it has no effect. So is one whose
//! condition is true, if the store asked for fewer requests. Any other failure may have lost the
//! response, which makes the attempt say nothing. Then the whole probe is repeated with another
//! key.

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

    refused(client, key, &one, stranger, MatchCreates).await?;
    let first = done(client, key, &one, Condition::Absent, RefusesAbsent).await?;
    refused(client, key, &two, Condition::Absent, IgnoresAbsent).await?;
    let matches = |version: &Version| Condition::Matches(version.clone());
    let second = done(client, key, &two, matches(&first), RefusesMatch).await?;
    refused(client, key, &three, matches(&first), IgnoresMatch).await?;
    // The body of an answer may be cut.
    for _ in 0..ATTEMPTS {
        let found = client.get(key, Persist::Background).await.map_err(Failure::Request)?;
        if &found.0[..] == b"two" && found.1 == second {
            return Ok(());
        }
    }
    Err(Failure::Fault(Stale))
}

/// Puts under a condition that is true.
async fn done(
    client: &Client,
    key: &str,
    body: &Body,
    condition: Condition,
    fault: StoreFault,
) -> Result<Version, Failure> {
    for attempt in 0.. {
        match client.put_once(key, body, condition.clone()).await {
            Ok(version) => return Ok(version),
            Err(error) if error.kind() == StoreErrorKind::SlowDown && attempt < ATTEMPTS => {}
            Err(error) if error.is_transient() => return Err(Failure::Request(error)),
            Err(_) if attempt == 0 => return Err(Failure::Fault(fault)),
            Err(_) => {
                // A put that the store has refused may have been done all the same.
                let text = "a put that the store had refused made its repetition fail";
                let error = StoreError::new(StoreErrorKind::Other, text);
                return Err(Failure::Request(error));
            }
        }
        client.back_off(attempt).await.map_err(Failure::Request)?;
    }
    unreachable!("the loop ends by a return")
}

/// Puts under a condition that is false.
async fn refused(
    client: &Client,
    key: &str,
    body: &Body,
    condition: Condition,
    fault: StoreFault,
) -> Result<(), Failure> {
    for attempt in 0.. {
        match client.put_once(key, body, condition.clone()).await {
            Ok(_) => return Err(Failure::Fault(fault)),
            Err(error) if error.is_transient() && attempt < ATTEMPTS => {}
            Err(error) if error.is_transient() => return Err(Failure::Request(error)),
            Err(error) if error.kind() == StoreErrorKind::Closed => {
                return Err(Failure::Request(error));
            }
            // Not found, or false.
            Err(_) => return Ok(()),
        }
        client.back_off(attempt).await.map_err(Failure::Request)?;
    }
    unreachable!("the loop ends by a return")
}
