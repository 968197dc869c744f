//! The gatekeeper of a web service: sessions, roles, rate limits, tickets and pages in five caches.
//!
//! Sessions of browsers live as long as requests come, API tokens for a fixed time. A listener
//! sends each session that ends to an audit log. Requests are counted and tickets are used in
//! atomic steps. It was ported from moka, with the guide `from_moka`.
//!
//! ```sh
//! cargo run --release -p forebay --example sessions 1000000
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay::base::clock::{Clock, ManualClock, SystemClock};
use forebay::{
    BuildError, Cause, Computed, Delivery, KeyedCache, KeyedOwnedRef, KeyedRef, LoadError, Op,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TenantId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UserId(u128);

type User = (TenantId, UserId);

#[derive(Clone, Debug)]
struct Session {
    user: User,
    agent: String,
    is_token: bool,
    is_elevated: bool,
}

/// The database has no such user.
#[derive(Debug, PartialEq)]
struct Unknown(UserId);

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no user {:x}", self.0.0)
    }
}

/// Stands for a database and a renderer, and counts what they were asked.
#[derive(Default)]
struct Backend {
    queries: AtomicU64,
    renders: AtomicU64,
}

impl Backend {
    async fn roles(&self, (tenant, user): User) -> Result<Vec<String>, Unknown> {
        self.queries.fetch_add(1, Relaxed);
        tokio::task::yield_now().await; // a real query takes a while
        if user == UserId(0) {
            return Err(Unknown(user));
        }
        Ok(vec!["reader".to_owned(), format!("tenant-{}", tenant.0)])
    }

    fn render(&self, page: &str) -> Result<Arc<str>, std::io::Error> {
        self.renders.fetch_add(1, Relaxed);
        match page.strip_prefix('/') {
            Some(name) => Ok(format!("<h1>{name}</h1>").repeat(20).into()),
            None => Err(std::io::Error::other(format!("there is no page {page:?}"))),
        }
    }
}

const BROWSER_IDLE: Duration = Duration::from_secs(900);
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const SESSION_BYTES: u64 = 2 << 20;

/// A session that has ended, for the audit log.
struct Ended {
    token: String,
    session: Session,
}

/// The requests of a user since a time, for a minute.
#[derive(Clone, Copy)]
struct Window {
    since_ns: u64,
    requests: u32,
}

struct Gatekeeper {
    backend: Backend,
    clock: Arc<dyn Clock>,
    most_per_minute: u32,
    sessions: KeyedCache<String, Session>,
    /// Sessions that another login took the place of. The listener counts them.
    replaced: Arc<AtomicU64>,
    roles: KeyedCache<User, Vec<String>>,
    requests: KeyedCache<UserId, Window>,
    tickets: KeyedCache<String, u32>,
    /// Pages outlive the request that reads them, so they are shared, and not pinned for long.
    pages: KeyedCache<String, Arc<str>>,
}

impl Gatekeeper {
    fn new(
        most_per_minute: u32,
        clock: &Arc<dyn Clock>,
        audit: UnboundedSender<Ended>,
    ) -> Result<Arc<Self>, BuildError> {
        let replaced = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&replaced);
        let sessions = KeyedCache::<String, Session>::builder()
            .capacity(SESSION_BYTES)
            .weigher(|token, s| (token.len() + s.agent.len() + size_of::<Session>()) as u64)
            .idle_with(|_, s| (!s.is_token).then_some(BROWSER_IDLE))
            .expire_with(|_, s| s.is_token.then_some(TOKEN_LIFE))
            .clock(clock.clone())
            .on_evicted(Delivery::Lossless, move |gone| {
                if gone.cause == Cause::Replaced {
                    count.fetch_add(1, Relaxed);
                    return;
                }
                // It never waits, so nor does a request that needs the capacity.
                let _ = audit.send(Ended { token: gone.key, session: gone.value });
            });
        let roles = KeyedCache::builder().max_entries(50_000).time_to_live(MINUTE);
        let requests = KeyedCache::builder().max_entries(100_000).time_to_live(MINUTE);
        let pages = KeyedCache::<String, Arc<str>>::builder()
            .capacity(1 << 20)
            .weigher(|name, page| (name.len() + page.len()) as u64);
        Ok(Arc::new(Self {
            backend: Backend::default(),
            clock: clock.clone(),
            most_per_minute,
            sessions: sessions.build()?,
            replaced,
            roles: roles.clock(clock.clone()).build()?,
            requests: requests.clock(clock.clone()).build()?,
            tickets: KeyedCache::builder().max_entries(1000).build()?,
            pages: pages.build()?,
        }))
    }

    /// Begins a session. If it is refused, the user logs in again.
    fn login(&self, token: &str, user: User, is_token: bool) -> bool {
        let agent = format!("agent/{}", user.1.0 % 7);
        let session = Session { user, agent, is_token, is_elevated: false };
        self.sessions.insert(token.to_owned(), session).is_ok()
    }

    fn logout(&self, token: &str) -> Option<KeyedOwnedRef<String, Session>> {
        self.sessions.remove(token)
    }

    /// Elevates a session, if there is one that is not elevated. Says whether it did.
    fn elevate(&self, token: &str) -> bool {
        let entry = self.sessions.entry(token.to_owned());
        let elevated = entry.and_compute_with(|session| match session {
            Some(s) if !s.is_elevated => Op::Put(Session { is_elevated: true, ..s.clone() }),
            _ => Op::Nop,
        });
        matches!(elevated, Ok(Computed::ReplacedWith(_)))
    }

    async fn roles(
        &self,
        user: User,
    ) -> Result<KeyedRef<'_, User, Vec<String>>, LoadError<Unknown>> {
        self.roles.get_or_load_async(user, || self.backend.roles(user)).await
    }

    fn page(&self, name: &str) -> Result<Arc<str>, LoadError<std::io::Error>> {
        let page = self.pages.get_or_load_by_ref(name, || self.backend.render(name))?;
        Ok(Arc::clone(&page))
    }

    /// Counts a request. Says whether the user makes too many. The value knows when its minute
    /// began, because each upsert begins a new time to live.
    fn is_over_limit(&self, user: UserId) -> bool {
        let now_ns = self.clock.now_ns();
        let is_over = |w: &Window| now_ns.saturating_sub(w.since_ns) >= MINUTE.as_nanos() as u64;
        let window = self.requests.entry(user).and_upsert_with(|window| match window {
            Some(w) if !is_over(w) => Window { requests: w.requests + 1, ..*w },
            _ => Window { since_ns: now_ns, requests: 1 },
        });
        window.is_ok_and(|window| window.requests > self.most_per_minute)
    }

    /// Uses a ticket. Its last use removes it.
    fn use_ticket(&self, ticket: &str) -> bool {
        let entry = self.tickets.entry(ticket.to_owned());
        let used = entry.and_compute_with(|uses| match uses {
            None => Op::Nop,
            Some(1) => Op::Remove,
            Some(uses) => Op::Put(uses - 1),
        });
        matches!(used, Ok(Computed::ReplacedWith(_) | Computed::Removed(_)))
    }

    fn close_tenant(&self, tenant: TenantId) {
        self.sessions.retain(|_, session, _| session.user.0 != tenant);
        self.roles.retain(|user, _, _| user.0 != tenant);
    }

    fn tokens_of(&self, tenant: TenantId) -> Vec<String> {
        let sessions = self.sessions.iter().filter(|session| session.user.0 == tenant);
        let mut tokens: Vec<_> = sessions.map(|session| session.key().clone()).collect();
        tokens.sort();
        tokens
    }

    /// Answers a request: a status and the page.
    async fn request(&self, token: &str, page: &str) -> (u16, Option<Arc<str>>) {
        let Some(user) = self.sessions.get(token).map(|s| s.user) else { return (401, None) };
        if self.is_over_limit(user.1) {
            return (429, None);
        }
        match self.roles(user).await {
            Ok(roles) if roles.iter().any(|role| role == "reader") => {}
            _ => return (403, None),
        }
        self.page(page).map_or((404, None), |page| (200, Some(page)))
    }
}

/// Each operation once, with a clock that is set forward.
async fn check() -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = Arc::new(ManualClock::new());
    let (audit, mut ended) = unbounded_channel();
    let gate = Gatekeeper::new(10, &(clock.clone() as Arc<dyn Clock>), audit)?;
    for user in 0..5 {
        assert!(gate.login(&format!("a{user}"), (TenantId(1), UserId(user)), user == 4));
        assert!(gate.login(&format!("b{user}"), (TenantId(2), UserId(user + 10)), false));
    }

    assert_eq!(gate.request("nobody", "/").await, (401, None));
    assert_eq!(gate.request("a0", "/").await, (403, None));
    let unknown = gate.roles((TenantId(1), UserId(0))).await;
    assert!(matches!(unknown, Err(LoadError::Failed(why)) if *why == Unknown(UserId(0))));
    assert_eq!(gate.request("a1", "missing").await, (404, None));
    for request in 2..12 {
        let (status, page) = gate.request("a1", "/index").await;
        assert_eq!(status, if request <= 10 { 200 } else { 429 });
        assert!(page.is_none_or(|page| page.starts_with("<h1>index")));
    }
    let asked = [&gate.backend.queries, &gate.backend.renders].map(|count| count.load(Relaxed));
    assert_eq!(asked, [3, 2], "errors are not cached, all else is");
    clock.advance(MINUTE.as_nanos() as u64);
    for _ in 0..11 {
        assert_eq!(gate.request("a1", "/index").await.0, 200, "a request in half a minute");
        clock.advance(MINUTE.as_nanos() as u64 / 2);
    }

    gate.tickets.insert("drink".to_owned(), 2)?;
    assert_eq!([(); 3].map(|()| gate.use_ticket("drink")), [true, true, false]);
    assert_eq!(["a2", "a2", "nobody"].map(|token| gate.elevate(token)), [true, false, false]);

    assert_eq!(gate.tokens_of(TenantId(1)), ["a0", "a1", "a2", "a3", "a4"]);
    assert!(gate.logout("a3").is_some_and(|session| session.user.1 == UserId(3)));
    gate.close_tenant(TenantId(2));
    assert!(gate.tokens_of(TenantId(2)).is_empty());
    gate.pages.clear();
    assert!(!gate.pages.contains("/index"));

    // Requests renew the session of a browser, but not a token.
    for _ in 0..4 {
        clock.advance(TOKEN_LIFE.as_nanos() as u64 / 5);
        for token in ["a2", "a4"] {
            assert_eq!(gate.request(token, "/index").await.0, 200);
        }
    }
    clock.advance(TOKEN_LIFE.as_nanos() as u64 / 5);
    assert_eq!(gate.request("a4", "/index").await.0, 401);
    assert_eq!(gate.tokens_of(TenantId(1)), ["a2"]);
    assert!(gate.sessions.get("a2").is_some_and(|session| session.is_elevated));

    gate.sessions.remove_expired();
    gate.sessions.drain_listener();
    let usage = gate.sessions.usage();
    let causes = [Cause::Removed, Cause::Replaced, Cause::Cleared, Cause::Expired];
    assert_eq!(causes.map(|cause| usage.left(cause)), [1, 1, 5, 3]);
    let mut tokens: Vec<_> = std::iter::from_fn(|| ended.try_recv().ok()).collect();
    tokens.sort_by(|a, b| a.token.cmp(&b.token));
    let want = ["a0", "a1", "a3", "a4", "b0", "b1", "b2", "b3", "b4"];
    assert!(tokens.iter().map(|ended| ended.token.as_str()).eq(want));
    assert!(tokens.iter().all(|ended| !ended.session.is_elevated));
    Ok(())
}

/// Serves `requests` requests of 100,000 users from `tasks` tasks.
async fn load(tasks: u64, requests: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (audit, mut ended) = unbounded_channel();
    let gate = Gatekeeper::new(u32::MAX, &clock, audit)?;
    let start_ns = clock.now_ns();
    let serve = |task: u64| {
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            let (mut random, mut logins) = (task * 2 + 1, 0);
            for _ in 0..requests / tasks {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
                let user = (uniform.powi(4) * 100_000.0) as u32; // few users make most requests
                let (token, page) = (format!("token-{user}"), format!("/{}", user % 500));
                if gate.request(&token, &page).await.0 == 401 {
                    let user_id = (TenantId(user % 100), UserId(u128::from(user) + 1));
                    logins += u64::from(gate.login(&token, user_id, user.is_multiple_of(4)));
                }
            }
            logins
        })
    };
    let mut logins = 0;
    for task in (0..tasks).map(serve).collect::<Vec<_>>() {
        logins += task.await?;
    }
    let seconds = (clock.now_ns() - start_ns) as f64 / 1e9;
    println!("{tasks} tasks: {:.0} requests a second", requests as f64 / seconds);

    // Each session that began has ended, and was told of, unless another took its place.
    gate.sessions.close();
    let replaced = gate.replaced.load(Relaxed);
    let audited = std::iter::from_fn(|| ended.try_recv().ok()).count() as u64;
    assert_eq!(audited + replaced, logins);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // The tests give it other arguments, or none.
    let requests = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let run = async {
        check().await?;
        for tasks in [1, 2, 8] {
            load(tasks, requests).await?;
        }
        Ok(())
    };
    runtime.block_on(run).map_err(|error: Box<dyn Error + Send + Sync>| error.to_string().into())
}
