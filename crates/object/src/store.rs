//! What Forebay needs of an object store: the transport below everything else.
//!
//! An implementation makes one attempt per call. It must not repeat a conditional put by itself:
//! after a lost response a repeated one fails for its own success. Retries, limits, timeouts and
//! counters are in [`client`](crate::client).

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::sync::Arc;

/// The result of a request, later.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// An object store, or a prefix of one. Keys are relative to the prefix.
pub trait ObjectStore: Send + Sync + 'static {
    /// Reads an object and its version.
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)>;

    /// Reads an object, unless its version is still `known`: then the result is `None`.
    fn get_if_changed<'a>(
        &'a self,
        key: &'a str,
        known: &'a Version,
    ) -> StoreFuture<'a, Option<(Bytes, Version)>> {
        Box::pin(async move {
            let found = self.get(key).await?;
            Ok(Some(found).filter(|(_, version)| version != known))
        })
    }

    /// Returns when an object was written last, since a fixed time, by the clock of the store.
    /// `None` if the store does not tell.
    fn modified<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Duration>> {
        let _ = key;
        Box::pin(async { Ok(None) })
    }

    /// Reads a range of an object. The result may be shorter if the connection was cut.
    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> StoreFuture<'a, Bytes>;

    /// Reads a range of an object into `sink`, in order and as it arrives. The bytes that came
    /// before an error, or before a connection was cut, are those of the object.
    fn read_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        sink: &'a dyn Sink,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            sink.write(&self.get_range(key, range).await?);
            Ok(())
        })
    }

    /// Writes an object as a whole if `condition` is true, and returns its version.
    fn put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version>;

    /// Deletes an object. Succeeds if there is none.
    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()>;

    /// Returns the first keys that start with `prefix` and are after `after`, in order. An empty
    /// page is the end.
    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>>;
}

/// Takes the bytes of a body.
pub trait Sink: Send + Sync {
    /// Takes the next bytes. Those behind the range that was asked for are ignored.
    fn write(&self, bytes: &[u8]);
}

/// The version of an object, which conditions refer to: its `ETag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// When a put takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// If there is no such object (`If-None-Match: *`).
    Absent,
    /// If the object has this version (`If-Match`).
    Matches(Version),
}

/// The bytes of an object in parts, which are not copied.
#[derive(Clone, Debug)]
pub struct Body {
    parts: Arc<Vec<Bytes>>,
    len: u64,
}

impl Body {
    /// Joins the parts.
    pub fn new(parts: Vec<Bytes>) -> Self {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts: Arc::new(parts), len }
    }

    /// The parts.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no object is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(vec![bytes.into()])
    }
}

/// The kind of a failure, and so the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no such object. A definite answer.
    NotFound,
    /// The condition is false. Definite, unless it was true when the request was sent.
    Condition,
    /// Too many requests: send fewer.
    SlowDown,
    /// No answer in time. The request may have succeeded.
    Timeout,
    /// The body is shorter than it should be, or its checksum is wrong.
    Damaged,
    /// The store does not accept the credentials, or they do not permit this.
    Denied,
    /// The clocks of this machine and of the store differ too much for signed requests. It says
    /// nothing of the credentials.
    ClockSkew,
    /// Any other error. The request may have succeeded.
    Other,
    /// The device was closed meanwhile.
    Closed,
}

/// The failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: StoreErrorKind,
    detail: String,
}

impl StoreError {
    /// Creates an error. `detail` tells people the cause, and no secret. It becomes part of a
    /// sentence, so its last full stop is left out.
    pub fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        detail.truncate(detail.trim_end_matches(['.', ' ', '\n']).len());
        Self { kind, detail }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        use StoreErrorKind::{Closed, Condition, NotFound};
        !matches!(self.kind, NotFound | Condition | Closed)
    }

    /// Whether fewer requests at a time may succeed.
    pub(crate) fn asks_for_fewer(&self) -> bool {
        matches!(self.kind, StoreErrorKind::SlowDown | StoreErrorKind::Timeout)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for StoreError {}
