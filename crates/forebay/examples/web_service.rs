//! A web service that caches the profiles of users for a minute.
//!
//! However many requests ask for a profile at once, the database is asked once. A change removes
//! the profile; errors are not cached. To serve real requests, pass the router to `axum::serve`.
//!
//! ```sh
//! cargo run -p forebay --example web_service
//! ```

#![allow(clippy::disallowed_types, reason = "a program: no model checker runs it")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use forebay::base::clock::{Clock, ManualClock};
use forebay::{KeyedCache, LoadError};
use tower::ServiceExt;

const FRESH: Duration = Duration::from_secs(60);

/// The database has no such user.
#[derive(Debug)]
struct Unknown(String);

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no user {}", self.0)
    }
}

struct Service {
    profiles: KeyedCache<String, String>,
    /// Stands for a database.
    database: Mutex<HashMap<String, String>>,
    queries: AtomicU64,
}

impl Service {
    fn new(clock: Arc<dyn Clock>) -> Result<Arc<Self>, Box<dyn Error>> {
        let profiles = KeyedCache::builder()
            .capacity(64 << 20)
            .weigher(|user: &String, profile: &String| (user.len() + profile.len()) as u64)
            .time_to_live(FRESH)
            .clock(clock)
            .build()?;
        let database = HashMap::from([("ada".to_owned(), "Ada Lovelace".to_owned())]);
        let (database, queries) = (Mutex::new(database), AtomicU64::new(0));
        Ok(Arc::new(Self { profiles, database, queries }))
    }

    fn router(self: &Arc<Self>) -> Router {
        let users = get(profile).put(change);
        Router::new().route("/users/{user}", users).with_state(Arc::clone(self))
    }

    async fn query(&self, user: &str) -> Result<String, Unknown> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await; // a real query takes a while
        let database = self.database.lock().expect("no request panics");
        database.get(user).cloned().ok_or_else(|| Unknown(user.to_owned()))
    }
}

async fn profile(
    State(service): State<Arc<Service>>,
    Path(user): Path<String>,
) -> Result<String, (StatusCode, String)> {
    let loaded = service.profiles.get_or_load_async(user.clone(), || service.query(&user)).await;
    match loaded {
        Ok(profile) => Ok(profile.clone()),
        Err(LoadError::Failed(unknown)) => Err((StatusCode::NOT_FOUND, unknown.to_string())),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn change(
    State(service): State<Arc<Service>>,
    Path(user): Path<String>,
    profile: String,
) -> StatusCode {
    service.database.lock().expect("no request panics").insert(user.clone(), profile);
    // After the change of the database, so that no load in progress caches the old profile.
    service.profiles.remove(&user);
    StatusCode::NO_CONTENT
}

async fn send(
    router: &Router,
    request: Request<Body>,
) -> Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
    let response = router.clone().oneshot(request).await?;
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await?;
    Ok((status, String::from_utf8(body.to_vec())?))
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = Arc::new(ManualClock::new());
    let service = Service::new(clock.clone()).map_err(|error| error.to_string())?;
    let router = service.router();
    let queries = || service.queries.load(Ordering::Relaxed);
    let ask = |user: &str| Request::get(format!("/users/{user}")).body(Body::empty());

    // A hundred requests at once, one query.
    let requests: Vec<_> = (0..100)
        .map(|_| {
            let (router, request) = (router.clone(), ask("ada"));
            tokio::spawn(async move { send(&router, request?).await })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await??, (StatusCode::OK, "Ada Lovelace".to_owned()));
    }
    assert_eq!(queries(), 1);

    // A change is visible at once.
    let change = Request::put("/users/ada").body(Body::from("Countess of Lovelace"))?;
    assert_eq!(send(&router, change).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(send(&router, ask("ada")?).await?.1, "Countess of Lovelace");
    assert_eq!(queries(), 2);

    // The profile expires.
    clock.advance(FRESH.as_nanos() as u64);
    assert_eq!(send(&router, ask("ada")?).await?.1, "Countess of Lovelace");
    assert_eq!(queries(), 3);

    // Errors are not cached.
    for asked in 4..6 {
        let missing = send(&router, ask("bob")?).await?;
        assert_eq!(missing, (StatusCode::NOT_FOUND, "there is no user bob".to_owned()));
        assert_eq!(queries(), asked);
    }
    println!("{} queries for 104 requests", queries());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(run()).map_err(|error| error.to_string().into())
}
