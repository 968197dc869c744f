//! Requests to the store, with what every request needs: limits, timeouts, retries, counters.
//!
//! Two kinds of puts: [`Client::put`] repeats itself until it succeeds, because the object of its
//! key has only one content. [`Client::put_once`] is one attempt with a condition; its caller finds
//! out what an error meant.
//!
//! The store is *away* from its first request without an answer to its next answer. Refusals
//! (credentials, too many requests) count as no answer. Puts have a record of their own, which only
//! a put clears: a store may refuse what makes it larger, and answer all else.
//!
//! Locking: `object-client`, a leaf lock, held for a look.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::clock::{Clock, SystemClock};
use forebay_base::rng::{SmallRng, seed_from_system};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::Away;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::counters::ObjectCounters;
use crate::format::FormatError;
use crate::format::envelope::{self, Identity};
use crate::limiter::Limiter;
use crate::options::Options;
use crate::store::{Body, Condition, ObjectStore, Sink, StoreError, StoreErrorKind, Version};

/// The wait before the first repetition. It doubles each time.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest wait, so that a store that comes back is noticed.
const BACKOFF_MAX: Duration = Duration::from_secs(3);
/// The most repetitions of a request that is not important.
const BACKGROUND_ATTEMPTS: u32 = 6;

/// Times that a damaged body is fetched again.
const DAMAGED_ATTEMPTS: u32 = 4;

/// A body at this rate is slow, but no failure. On a link that is too slow for all bodies at this
/// rate, timeouts let the limiter send fewer at a time.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;
/// Bytes of a body whose size is not known, at most.
const BODY_MAX: u64 = 16 << 20;

/// The kind of a request, as counters have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    PutIf,
    Delete,
    List,
}

impl Kind {
    fn is_put(self) -> bool {
        matches!(self, Self::Put | Self::PutIf)
    }
}

/// How long a request is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Persist {
    /// Until the client is stopped.
    Forever,
    /// For this time.
    Budget(Duration),
    /// A few times, with a permit of the background.
    Background,
}

/// The client of a store.
pub(crate) struct Client {
    store: Arc<dyn ObjectStore>,
    pub(crate) counters: Arc<ObjectCounters>,
    request_timeout: Duration,
    puts: Limiter,
    gets: Limiter,
    background: Limiter,
    clock: SystemClock,
    state: Mutex<State>,
    stopped: watch::Sender<bool>,
}

struct State {
    rng: SmallRng,
    /// Of puts: [`Silence`] since the last answer to one.
    puts_away: Option<Silence>,
    /// Of other requests: since the last answer to any.
    others_away: Option<Silence>,
}

/// When the first request failed since an answer, and the newest error.
type Silence = (u64, String);

impl Client {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, options: &Options) -> Self {
        let rng = SmallRng::from_seed(options.seed.unwrap_or_else(seed_from_system));
        Self {
            store,
            counters: Arc::new(ObjectCounters::new()),
            request_timeout: options.request_timeout,
            puts: Limiter::new(options.puts),
            gets: Limiter::new(options.gets),
            background: Limiter::new(options.background),
            clock: SystemClock::new(),
            state: Mutex::named("object-client", State { rng, puts_away: None, others_away: None }),
            stopped: watch::Sender::new(false),
        }
    }

    /// Draws a number that no other session draws.
    pub(crate) fn nonce(&self) -> u128 {
        let mut state = self.state.lock();
        (u128::from(state.rng.next_u64()) << 64) | u128::from(state.rng.next_u64())
    }

    /// Lets all requests fail that wait for a repetition, and new ones.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Since when the store has not answered, or has not for puts.
    pub(crate) fn away(&self) -> Option<Away> {
        let state = self.state.lock();
        let records = [&state.puts_away, &state.others_away];
        let (since, error) = records.into_iter().flatten().min_by_key(|(since, _)| *since)?;
        let since_ms = self.clock.now_ns().saturating_sub(*since) / 1_000_000;
        Some(Away { since_ms, error: error.clone() })
    }

    /// Which silence of the store about puts lasts, by the time at which it began.
    pub(crate) fn puts_away_since(&self) -> Option<u64> {
        self.state.lock().puts_away.as_ref().map(|(since, _)| *since)
    }

    pub(crate) fn count(&self, counter: forebay_base::counters::Counter, n: u64) {
        self.counters.add(counter, 0, n);
    }

    /// Reads an object.
    pub(crate) async fn get(
        &self,
        key: &str,
        persist: Persist,
    ) -> Result<(Bytes, Version), StoreError> {
        let get = || async {
            let found = self.store.get(key).await?;
            self.counters.add(
                ObjectCounters::REQUEST_BYTES,
                Kind::Get as usize,
                found.0.len() as u64,
            );
            Ok(found)
        };
        self.repeat(Kind::Get, BODY_MAX, persist, get).await
    }

    /// Reads an object and parses it. A damaged body is fetched again, some times: it may have been
    /// cut on its way. Returns the size of the object, too.
    pub(crate) async fn get_parsed<T>(
        &self,
        key: &str,
        persist: Persist,
        parse: impl Fn(envelope::Kind, Identity, &[u8]) -> Result<T, FormatError>,
    ) -> Result<Result<(T, u64), FormatError>, StoreError> {
        let open = |(bytes, _): (Bytes, Version)| {
            let parsed = envelope::open(&bytes).and_then(|(kind, id, body)| parse(kind, id, body));
            parsed.map(|value| (value, bytes.len() as u64))
        };
        self.fetch_sound(|| self.get(key, persist), open).await
    }

    /// Fetches a body until `parse` accepts it, some times: at once again, and then with pauses.
    pub(crate) async fn fetch_sound<B, T, E, F>(
        &self,
        fetch: impl Fn() -> F,
        parse: impl Fn(B) -> Result<T, E>,
    ) -> Result<Result<T, E>, StoreError>
    where
        F: Future<Output = Result<B, StoreError>>,
    {
        let mut attempt = 0;
        loop {
            match parse(fetch().await?) {
                Ok(value) => return Ok(Ok(value)),
                Err(error) if attempt == DAMAGED_ATTEMPTS => return Ok(Err(error)),
                Err(_) => {}
            }
            self.count(ObjectCounters::DAMAGED_BODIES, 1);
            if attempt > 0 {
                self.back_off(attempt).await?;
            }
            attempt += 1;
        }
    }

    /// Reads an object, unless its version is still `known`.
    pub(crate) async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
        persist: Persist,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let get = || async {
            let found = self.store.get_if_changed(key, known).await?;
            let bytes = found.as_ref().map_or(0, |(body, _)| body.len() as u64);
            self.counters.add(ObjectCounters::REQUEST_BYTES, Kind::Get as usize, bytes);
            Ok(found)
        };
        self.repeat(Kind::Get, BODY_MAX, persist, get).await
    }

    /// Reads a range of an object, all of it.
    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        persist: Persist,
    ) -> Result<Bytes, StoreError> {
        let get = || async {
            let bytes = self.store.get_range(key, range.clone()).await?;
            self.counters.add(
                ObjectCounters::REQUEST_BYTES,
                Kind::Get as usize,
                bytes.len() as u64,
            );
            let (found, wanted) = (bytes.len() as u64, range.end - range.start);
            if found == wanted {
                return Ok(bytes);
            }
            self.count(ObjectCounters::DAMAGED_BODIES, 1);
            let detail = format!("a get of {wanted} bytes returned {found}");
            Err(StoreError::new(StoreErrorKind::Damaged, detail))
        };
        self.repeat(Kind::Get, range.end - range.start, persist, get).await
    }

    /// Reads the range `rest` of an object into `sink`, which makes the rest smaller. A repetition
    /// reads only what is left.
    pub(crate) async fn read_range(
        &self,
        key: &str,
        rest: impl Fn() -> Range<u64>,
        sink: &dyn Sink,
        persist: Persist,
    ) -> Result<(), StoreError> {
        let len = |range: Range<u64>| range.end - range.start;
        let get = || async {
            let wanted = rest();
            let result = self.store.read_range(key, wanted.clone(), sink).await;
            let left = len(rest());
            let wanted = len(wanted);
            let found = wanted - left;
            self.counters.add(ObjectCounters::REQUEST_BYTES, Kind::Get as usize, found);
            // Nothing is left to repeat, even if the body's end was not seen.
            if left == 0 {
                return Ok(());
            }
            result?;
            self.count(ObjectCounters::DAMAGED_BODIES, 1);
            let detail = format!("a get of {wanted} bytes returned {found}");
            Err(StoreError::new(StoreErrorKind::Damaged, detail))
        };
        self.repeat(Kind::Get, len(rest()), persist, get).await
    }

    /// Returns when an object was written last, by the store's clock, if it tells.
    pub(crate) async fn modified(&self, key: &str) -> Result<Option<Duration>, StoreError> {
        self.repeat(Kind::Get, 0, Persist::Background, || self.store.modified(key)).await
    }

    /// Writes an object whose key has no other content, until it succeeds.
    pub(crate) async fn put(
        &self,
        key: &str,
        body: &Body,
        persist: Persist,
    ) -> Result<Version, StoreError> {
        let put = || async {
            let put = self.store.put(key, body.clone(), Condition::Always).await;
            let version = put.map_err(unconditional)?;
            self.counters.add(ObjectCounters::REQUEST_BYTES, Kind::Put as usize, body.len());
            Ok(version)
        };
        self.repeat(Kind::Put, body.len(), persist, put).await
    }

    /// Tries once to write an object if `condition` is true. After any error the object may have
    /// been written.
    pub(crate) async fn put_once(
        &self,
        key: &str,
        body: &Body,
        condition: Condition,
    ) -> Result<Version, StoreError> {
        let version = self
            .attempt(Kind::PutIf, body.len(), self.store.put(key, body.clone(), condition))
            .await?;
        self.counters.add(ObjectCounters::REQUEST_BYTES, Kind::PutIf as usize, body.len());
        Ok(version)
    }

    /// Tries once to write an object. A failure says nothing of the store: it may refuse the puts
    /// of a reader.
    pub(crate) async fn try_put(&self, key: &str, body: &Body) -> Result<(), StoreError> {
        self.counters.add(ObjectCounters::REQUESTS, Kind::Put as usize, 1);
        let put = self.store.put(key, body.clone(), Condition::Always);
        let put = timeout(self.request_timeout, put).await;
        put.unwrap_or_else(|_| Err(no_answer())).map_err(unconditional)?;
        self.counters.add(ObjectCounters::REQUEST_BYTES, Kind::Put as usize, body.len());
        Ok(())
    }

    /// Deletes an object, or gives up after some attempts.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.repeat(Kind::Delete, 0, Persist::Background, || async {
            self.store.delete(key).await.map_err(unconditional)
        })
        .await
    }

    /// Lists a page of keys after `after`.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: &str,
        persist: Persist,
    ) -> Result<Vec<String>, StoreError> {
        self.repeat(Kind::List, 0, persist, || async {
            self.store.list(prefix, after).await.map_err(unconditional)
        })
        .await
    }

    /// Waits before repetition `attempt`, for half to all of the doubled time. Fails if the client
    /// is stopped meanwhile.
    pub(crate) async fn back_off(&self, attempt: u32) -> Result<(), StoreError> {
        let full = BACKOFF_MAX.min(BACKOFF_MIN.saturating_mul(1 << attempt.min(10)));
        let half_us = full.as_micros() as u64 / 2;
        let wait_us = half_us + self.state.lock().rng.below(half_us + 1);
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            () = sleep(Duration::from_micros(wait_us)) => Ok(()),
            _ = stopped.wait_for(|stopped| *stopped) => Err(closed()),
        }
    }

    async fn repeat<T, F>(
        &self,
        kind: Kind,
        bytes: u64,
        persist: Persist,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        match persist {
            Persist::Budget(budget) => {
                let mut last = None;
                let repeated = self.repeat_noting(kind, bytes, persist, request, &mut last);
                match timeout(budget, repeated).await {
                    Ok(result) => result,
                    Err(_) => Err(last.unwrap_or_else(no_answer)),
                }
            }
            _ => self.repeat_noting(kind, bytes, persist, request, &mut None).await,
        }
    }

    async fn repeat_noting<T, F>(
        &self,
        kind: Kind,
        bytes: u64,
        persist: Persist,
        request: impl Fn() -> F,
        last: &mut Option<StoreError>,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let limiter = match (persist, kind) {
            (Persist::Background, _) | (_, Kind::Delete | Kind::List) => &self.background,
            (_, Kind::Put | Kind::PutIf) => &self.puts,
            (_, Kind::Get) => &self.gets,
        };
        for attempt in 0.. {
            let permit = limiter.acquire().await;
            let result = self.attempt(kind, bytes, request()).await;
            let fewer = matches!(&result, Err(error) if error.asks_for_fewer());
            limiter.release(permit, fewer);
            match result {
                Err(error) if error.is_transient() => {
                    if matches!(persist, Persist::Background) && attempt >= BACKGROUND_ATTEMPTS {
                        return Err(error);
                    }
                    *last = Some(error);
                }
                definite => return definite,
            }
            self.counters.add(ObjectCounters::RETRIES, kind as usize, 1);
            self.back_off(attempt).await?;
        }
        unreachable!("the loop ends by a return")
    }

    /// Makes one attempt, and notes whether the store is there.
    async fn attempt<T>(
        &self,
        kind: Kind,
        bytes: u64,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut stopped = self.stopped.subscribe();
        self.counters.add(ObjectCounters::REQUESTS, kind as usize, 1);
        let limit = self.request_timeout + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        let result = tokio::select! {
            result = timeout(limit, request) => {
                result.unwrap_or_else(|_| Err(no_answer()))
            }
            _ = stopped.wait_for(|stopped| *stopped) => return Err(closed()),
        };
        self.note(kind, result.as_ref().err());
        result
    }

    fn note(&self, kind: Kind, error: Option<&StoreError>) {
        use StoreErrorKind::{Condition, Damaged, NotFound, SlowDown};
        let is_answer = |error: &StoreError| match error.kind() {
            // A put without a condition cannot be answered by that.
            Condition | NotFound => kind != Kind::Put,
            found => found == Damaged,
        };
        let mut state = self.state.lock();
        match error {
            Some(error) if !is_answer(error) => {
                if error.kind() == SlowDown {
                    self.count(ObjectCounters::SLOW_DOWNS, 1);
                }
                let now = self.clock.now_ns();
                let record =
                    if kind.is_put() { &mut state.puts_away } else { &mut state.others_away };
                let since = record.as_ref().map_or(now, |(since, _)| *since);
                *record = Some((since, error.to_string()));
            }
            _ => {
                state.others_away = None;
                if kind.is_put() {
                    state.puts_away = None;
                }
            }
        }
    }
}

/// The error of a request that succeeds whatever the store holds. "Not found" then comes from
/// something else that answers for the store, like a proxy, and is no definite answer.
fn unconditional(error: StoreError) -> StoreError {
    match error.kind() {
        StoreErrorKind::NotFound | StoreErrorKind::Condition => {
            StoreError::new(StoreErrorKind::Other, error.to_string())
        }
        _ => error,
    }
}

fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the device was closed")
}

fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "the store does not answer in time")
}
