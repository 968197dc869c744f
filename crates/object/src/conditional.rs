//! The two conditional puts: the swap of `super`, and the creation of a log object.
//!
//! After any error it is unknown whether the put took effect: the answer may be lost, and an
//! attempt may take effect later. So the object is read back:
//!
//! * our nonce: the put took effect;
//! * another writer's content: ours will never take effect, because its condition is false for ever
//!   (no version comes back, and the object that ends a log is never deleted);
//! * the old content: *not final*. The same bytes are sent again under the same condition, until
//!   one of the other cases is seen. Nothing else may be sent for this step meanwhile;
//! * a damaged body says nothing, and is as the old content.

use bytes::Bytes;

use crate::client::{Client, Persist};
use crate::format::FormatError;
use crate::format::envelope::{self, Identity, Kind};
use crate::format::names;
use crate::format::root::Super;
use crate::store::{Body, Condition, StoreError, StoreErrorKind, Version};

/// `super` as it was read or written.
#[derive(Clone, Debug)]
pub(crate) struct KnownSuper {
    pub(crate) content: Super,
    pub(crate) version: Version,
    /// Unique for each write.
    pub(crate) nonce: u128,
}

/// Why `super` could not be read.
#[derive(Debug)]
pub(crate) enum SuperError {
    Store(StoreError),
    Damaged(FormatError),
}

/// Reads `super`. A damaged body is fetched again.
pub(crate) async fn read_super(
    client: &Client,
    persist: Persist,
) -> Result<KnownSuper, SuperError> {
    let parse = |(bytes, version): (Bytes, Version)| {
        parse_super(&bytes).map(|(content, nonce)| KnownSuper { content, version, nonce })
    };
    let read = client.fetch_sound(|| client.get(names::SUPER, persist), parse).await;
    read.map_err(SuperError::Store)?.map_err(SuperError::Damaged)
}

/// Reads `super` unless it is still the one that is `known`. A damaged body is fetched again.
pub(crate) async fn read_super_after(
    client: &Client,
    known: &KnownSuper,
    persist: Persist,
) -> Result<Option<KnownSuper>, SuperError> {
    let got = client.get_if_changed(names::SUPER, &known.version, persist).await;
    let Some((bytes, version)) = got.map_err(SuperError::Store)? else { return Ok(None) };
    match parse_super(&bytes) {
        Ok((content, nonce)) => Ok(Some(KnownSuper { content, version, nonce })),
        Err(_) => read_super(client, persist).await.map(Some),
    }
}

/// Reads `super` until the answer is to be relied on: damaged bodies, and a single "not found", may
/// come from a bad network or a bad proxy.
pub(crate) async fn read_super_at_last(client: &Client) -> Result<KnownSuper, StoreError> {
    let mut missing = false;
    for attempt in 0.. {
        match read_super(client, Persist::Forever).await {
            Ok(known) => return Ok(known),
            Err(SuperError::Damaged(error)) => {
                tracing::warn!(%error, "super is damaged, and is read again");
                client.back_off(attempt).await?;
            }
            Err(SuperError::Store(error)) if error.kind() == StoreErrorKind::NotFound => {
                if missing {
                    return Err(error);
                }
                missing = true;
                // For the longest time, so that the two looks are not at the same fault.
                client.back_off(u32::MAX).await?;
            }
            Err(SuperError::Store(error)) => return Err(error),
        }
    }
    unreachable!("the loop ends by a return")
}

fn parse_super(bytes: &Bytes) -> Result<(Super, u128), FormatError> {
    let (kind, id, body) = envelope::open(bytes)?;
    if kind != Kind::Super {
        return Err(FormatError::Identity);
    }
    Ok((Super::decode(id.epoch, body)?, id.nonce))
}

/// Encodes `super` with a nonce.
pub(crate) fn seal_super(content: &Super, nonce: u128) -> Body {
    let id = Identity { epoch: content.epoch, number: content.root.number, nonce };
    envelope::seal(Kind::Super, id, &content.encode()).into()
}

/// Why a conditional put has no effect.
#[derive(Debug)]
pub(crate) enum Lost {
    /// `super` is another one now.
    Super(Box<Super>),
    /// There is no `super` any more.
    Destroyed,
    /// Another writer has created the object.
    Taken,
    /// The client was stopped.
    Failed(StoreError),
}

impl From<StoreError> for Lost {
    /// Of an error of [`read_super_at_last`].
    fn from(error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::NotFound => Self::Destroyed,
            _ => Self::Failed(error),
        }
    }
}

/// Replaces the `super` that is `known` by `content`.
pub(crate) async fn swap_super(
    client: &Client,
    known: &KnownSuper,
    content: &Super,
) -> Result<KnownSuper, Lost> {
    let nonce = client.nonce();
    let body = seal_super(content, nonce);
    let written = |version| KnownSuper { content: content.clone(), version, nonce };
    for attempt in 0.. {
        let condition = Condition::Matches(known.version.clone());
        match client.put_once(names::SUPER, &body, condition).await {
            Ok(version) => return Ok(written(version)),
            Err(error) if error.kind() == StoreErrorKind::Closed => {
                return Err(Lost::Failed(error));
            }
            Err(_) => {}
        }
        let found = read_super_at_last(client).await?;
        if found.nonce == nonce {
            return Ok(written(found.version));
        }
        if found.nonce != known.nonce {
            return Err(Lost::Super(Box::new(found.content)));
        }
        client.back_off(attempt).await.map_err(Lost::Failed)?;
    }
    unreachable!("the loop ends by a return")
}

/// Creates the object `key`, whose envelope has `nonce`.
pub(crate) async fn create(
    client: &Client,
    key: &str,
    body: &Body,
    nonce: u128,
) -> Result<Version, Lost> {
    for attempt in 0.. {
        match client.put_once(key, body, Condition::Absent).await {
            Ok(version) => return Ok(version),
            Err(error) if error.kind() == StoreErrorKind::Closed => {
                return Err(Lost::Failed(error));
            }
            Err(_) => {}
        }
        match client.get(key, Persist::Forever).await {
            Ok((bytes, version)) => match envelope::open(&bytes) {
                Ok((_, id, _)) if id.nonce == nonce => return Ok(version),
                Ok(_) => return Err(Lost::Taken),
                // A program that knows another version of the format.
                Err(FormatError::Version(_)) => return Err(Lost::Taken),
                // The body of the answer is damaged: whose object it is, is not known.
                Err(error) => tracing::warn!(key, %error, "damaged, and is read again"),
            },
            Err(error) if error.kind() == StoreErrorKind::NotFound => {}
            Err(error) => return Err(Lost::Failed(error)),
        }
        client.back_off(attempt).await.map_err(Lost::Failed)?;
    }
    unreachable!("the loop ends by a return")
}
