//! Errors of creating, opening and destroying a store.

use std::time::Duration;

use tokio::time::timeout;

use crate::format::{FormatError, names};
use crate::store::{StoreError, StoreErrorKind};

/// Why a store could not be created, opened or destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no store of Forebay.
    #[error(
        "{store} holds no pool: it has no object `super`. Check bucket and prefix, or create a pool"
    )]
    NotFound {
        /// The store.
        store: String,
    },
    /// The prefix is not empty.
    #[error("{store} is not empty: it holds {key}. Choose another prefix, or destroy its pool")]
    NotEmpty {
        /// The store.
        store: String,
        /// One of its keys.
        key: String,
    },
    /// Another host may use it.
    #[error(
        "{store} is in use by {owner} (epoch {epoch}). Export it there, or use force if that host is dead"
    )]
    InUse {
        /// The store.
        store: String,
        /// The host.
        owner: String,
        /// Its epoch.
        epoch: u64,
    },
    /// Another host was faster.
    #[error("{store} was taken over by {owner} (epoch {epoch}) meanwhile. Export it there first")]
    TakenOver {
        /// The store.
        store: String,
        /// The host.
        owner: String,
        /// Its epoch.
        epoch: u64,
    },
    /// A follower has found another store in the place of its own.
    #[error("{store} is another pool now: the one that was followed was destroyed. Mount it again")]
    Replaced {
        /// The store.
        store: String,
    },
    /// The store does not honour conditions.
    #[error("{store} cannot hold a pool: {fault}. Update its server, or use another one")]
    Unfit {
        /// The store.
        store: String,
        /// What it did.
        fault: StoreFault,
    },
    /// An object is damaged.
    #[error("object {key} of {store} is damaged: {reason}. Restore it from a version or a copy")]
    Damaged {
        /// The store.
        store: String,
        /// The key.
        key: String,
        /// The defect.
        reason: String,
    },
    /// A request failed, for longer than it is retried.
    #[error("{store} fails at object {key}: {source}. {}", way_out(.source))]
    Store {
        /// The store.
        store: String,
        /// The key.
        key: String,
        /// The last failure.
        source: StoreError,
    },
    /// The URL or the environment is wrong.
    #[error("cannot connect to {store}: {reason}")]
    Connect {
        /// The URL.
        store: String,
        /// The defect and the remedy.
        reason: String,
    },
    /// The system has no more threads.
    #[error("cannot start the threads of {store}: {source}. Raise the limit of processes")]
    Threads {
        /// The store.
        store: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether `super`, or an object that it names, is not there.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::Store { source, .. } => source.kind() == StoreErrorKind::NotFound,
            _ => false,
        }
    }
}

/// What to do about a request that keeps failing.
fn way_out(source: &StoreError) -> &'static str {
    match source.kind() {
        // The failure itself says what to set.
        StoreErrorKind::ClockSkew => "Then try again",
        _ => "Check endpoint, network and credentials",
    }
}

/// What a store did against the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFault {
    /// `If-None-Match: *` was ignored.
    #[error("it replaced an object that exists although the put was conditional (If-None-Match)")]
    IgnoresAbsent,
    /// `If-None-Match: *` failed for a new key.
    #[error("it refused to create an object that does not exist (If-None-Match)")]
    RefusesAbsent,
    /// `If-Match` was ignored.
    #[error("it replaced an object although its version is another one (If-Match)")]
    IgnoresMatch,
    /// `If-Match` failed for the current version.
    #[error("it refused to replace an object whose version is the one that it told (If-Match)")]
    RefusesMatch,
    /// `If-Match` created an object.
    #[error("it created an object although the put was for an existing one (If-Match)")]
    MatchCreates,
    /// A get does not return what was put.
    #[error("a get returned other bytes than those of the last put")]
    Stale,
}

/// Context of errors: the name of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a>(pub(crate) &'a str);

impl At<'_> {
    pub(crate) fn damaged(self, key: &str, reason: FormatError) -> Error {
        Error::Damaged { store: self.0.into(), key: key.into(), reason: reason.to_string() }
    }

    pub(crate) fn failed(self, key: &str, source: StoreError) -> Error {
        Error::Store { store: self.0.into(), key: key.into(), source }
    }
}

/// Runs a task that repeats requests, but not for ever.
pub(crate) async fn in_time<T>(
    store: &str,
    budget: Duration,
    task: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(budget, task).await.unwrap_or_else(|_| {
        let text = "the store does not answer in time";
        let error = StoreError::new(StoreErrorKind::Timeout, text);
        Err(At(store).failed(names::SUPER, error))
    })
}
