//! The S3 API, by the crate `object_store` with its own retries switched off.
//!
//! Endpoint, region and credentials come from `AWS_*` variables, a [`profile`](crate::profile), a
//! web identity token, or the roles of the instance or the task. They are held by the client of
//! that crate, and appear in no name, error or log of this one: errors carry status, code and
//! message of the server only.

use std::ops::Range;
use std::path::Path as FilePath;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::sync::Arc;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::client::HttpError;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, ObjectStore as _, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};

use crate::credentials::ProfileCredentials;
use crate::error::Error;
use crate::profile::{self, Profile};
use crate::store::{
    Body, Condition, ObjectStore, Sink, StoreError, StoreErrorKind, StoreFuture, Version,
};

/// Keys of one page of a list.
const PAGE_KEYS: usize = 1000;
/// Connections that stay open: as many as requests of one kind may be in flight.
const IDLE_CONNECTIONS: usize = 192;

/// What the text of an error has if the server asks for fewer requests. A key has no such text.
const SLOW_DOWN: [&str; 3] = ["503 Service Unavailable", "429 Too Many Requests", "SlowDown"];

/// The code of S3's answer if there is no such object.
const NO_SUCH_KEY: &str = "<Code>NoSuchKey</Code>";

/// The code of S3's answer if the time of a request differs from the store's by 15 minutes or more.
const CLOCK_SKEW: &str = "<Code>RequestTimeTooSkewed</Code>";
/// What to do about it. The store's own clock may be the wrong one.
const SET_CLOCK: &str = "set the clock of this machine, or of the server if that one is wrong";

/// Variables of the endpoint, and of the region.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// The most characters of a cause that are shown.
const DETAIL_CHARS: usize = 300;

/// A prefix of a bucket.
struct S3 {
    bucket: AmazonS3,
    /// Before all keys. It ends with a slash.
    prefix: String,
}

/// Connects to the store of a URL, `s3://bucket/prefix`. No request is sent.
///
/// # Errors
/// If the URL is not of this form, or the environment lacks what a client needs.
pub fn connect(url: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let failed =
        |reason: String| Error::Connect { store: url.to_owned(), reason: reason.to_owned() };
    let rest = url.strip_prefix("s3://").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    if bucket.is_empty() || prefix.is_empty() || prefix.contains("//") {
        let form = "the URL must be s3://BUCKET/PREFIX; a pool needs a prefix of its own";
        return Err(failed(form.to_owned()));
    }
    let profile = find_profile().map_err(failed)?;
    let endpoint_url = profile.endpoint_url.clone();
    let mut builder = with_profile(builder(bucket), profile, &variable);
    // Plain HTTP is for servers of this host only, unless the environment allows more.
    let endpoint = ENDPOINTS.iter().find_map(|name| variable(name));
    let endpoint = endpoint.or(endpoint_url).unwrap_or_default();
    let is_local = ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().any(|local| {
        endpoint
            .strip_prefix(local)
            .is_some_and(|rest| rest.starts_with([':', '/']) || rest.is_empty())
    });
    let allowed =
        std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true" || value == "1");
    builder = builder.with_allow_http(is_local || allowed);
    let bucket =
        builder.build().map_err(|error| failed(format!("{error}; set AWS_* variables")))?;
    Ok(Arc::new(S3 { bucket, prefix: format!("{prefix}/") }))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn find_profile() -> Result<Profile, String> {
    profile::find(&variable, &read_if_there)
}

/// The content of a file; `None` if there is none.
fn read_if_there(path: &FilePath) -> std::io::Result<Option<String>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::read_to_string(path) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        read => read.map(Some),
    }
}

/// Takes from a profile what no variable says.
fn with_profile(
    mut builder: AmazonS3Builder,
    profile: Profile,
    variable: &dyn Fn(&str) -> Option<String>,
) -> AmazonS3Builder {
    if let Some(found) = profile.credentials {
        // As a whole: a variable may hold the token of another key.
        let again = || find_profile().ok()?.credentials;
        builder = builder.with_credentials(Arc::new(ProfileCredentials::new(found, again)));
    }
    let is_set = |names: &[&str]| names.iter().any(|name| variable(name).is_some());
    if let (Some(region), false) = (&profile.region, is_set(&REGIONS)) {
        builder = builder.with_region(region);
    }
    if let (Some(endpoint), false) = (&profile.endpoint_url, is_set(&ENDPOINTS)) {
        builder = builder.with_endpoint(endpoint);
    }
    builder
}

/// A client without retries of its own.
fn builder(bucket: &str) -> AmazonS3Builder {
    // It fails if the process has chosen one already. Then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let client = ClientOptions::new()
        .with_pool_max_idle_per_host(IDLE_CONNECTIONS)
        // The device has timeouts of its own.
        .with_timeout_disabled()
        .with_http1_only();
    AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_retry(retry)
        .with_client_options(client)
}

impl S3 {
    fn path(&self, key: &str) -> Result<Path, StoreError> {
        let parsed = Path::parse(format!("{}{key}", self.prefix));
        parsed.map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))
    }
}

fn failure(error: object_store::Error) -> StoreError {
    use object_store::Error::{
        AlreadyExists, NotFound, PermissionDenied, Precondition, Unauthenticated,
    };
    let text = error.to_string();
    let kind = match &error {
        // Any other 404 is of a proxy, or of a missing bucket. It says nothing of the key.
        NotFound { .. } if text.contains(NO_SUCH_KEY) => StoreErrorKind::NotFound,
        AlreadyExists { .. } | Precondition { .. } => StoreErrorKind::Condition,
        _ if text.contains(CLOCK_SKEW) => StoreErrorKind::ClockSkew,
        PermissionDenied { .. } | Unauthenticated { .. } => StoreErrorKind::Denied,
        _ if SLOW_DOWN.iter().any(|sign| text.contains(sign)) => StoreErrorKind::SlowDown,
        _ => StoreErrorKind::Other,
    };
    let mut told = detail(&text);
    if kind == StoreErrorKind::ClockSkew {
        told = format!("{}: {SET_CLOCK}", told.trim_end_matches('.'));
    }
    // That of a connection says only at its root what has failed.
    if let Some(root) = root(&error).filter(|root| !text.contains(root)) {
        told.push_str(": ");
        told.extend(root.chars().take(DETAIL_CHARS));
    }
    StoreError::new(kind, told)
}

/// What people need of an error: status, code and message of the store. The rest of its answer may
/// be long, and name the key of the credentials.
fn detail(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        // Ceph has an empty message.
        Some(rest.split_once('<')?.0).filter(|text| !text.trim().is_empty())
    };
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.split(": ").next());
    let told = match (status, element("Code")) {
        (Some(status), Some(code)) => {
            let parts = [Some(status), Some(code), element("Message")];
            let mut told = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
            if let (Some(request), Some(store)) = (element("RequestTime"), element("ServerTime")) {
                told = format!("{} ({request} here, {store} there)", told.trim_end_matches('.'));
            }
            told
        }
        // No answer, or none of S3.
        _ => text.to_owned(),
    };
    told.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(DETAIL_CHARS).collect()
}

/// What a connection failed with, if one did. It knows nothing of the request.
fn root(error: &object_store::Error) -> Option<String> {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    let mut is_below_http = false;
    while let Some(next) = cause.source() {
        is_below_http |= cause.is::<HttpError>();
        cause = next;
    }
    is_below_http.then(|| cause.to_string())
}

fn version(e_tag: Option<String>) -> Result<Version, StoreError> {
    let text = "the store returns no ETag";
    e_tag.map(Version).ok_or_else(|| StoreError::new(StoreErrorKind::Other, text))
}

impl ObjectStore for S3 {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)> {
        Box::pin(async move {
            let found = self.bucket.get(&self.path(key)?).await.map_err(failure)?;
            let version = version(found.meta.e_tag.clone())?;
            Ok((found.bytes().await.map_err(failure)?, version))
        })
    }

    fn get_if_changed<'a>(
        &'a self,
        key: &'a str,
        known: &'a Version,
    ) -> StoreFuture<'a, Option<(Bytes, Version)>> {
        Box::pin(async move {
            let options = GetOptions::new().with_if_none_match(Some(known.0.clone()));
            let found = match self.bucket.get_opts(&self.path(key)?, options).await {
                Err(object_store::Error::NotModified { .. }) => return Ok(None),
                found => found.map_err(failure)?,
            };
            let version = version(found.meta.e_tag.clone())?;
            Ok(Some((found.bytes().await.map_err(failure)?, version)))
        })
    }

    fn modified<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Duration>> {
        Box::pin(async move {
            let meta = self.bucket.head(&self.path(key)?).await.map_err(failure)?;
            Ok(u64::try_from(meta.last_modified.timestamp()).ok().map(Duration::from_secs))
        })
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        Box::pin(
            async move { self.bucket.get_range(&self.path(key)?, range).await.map_err(failure) },
        )
    }

    fn read_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        sink: &'a dyn Sink,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let options = GetOptions::new().with_range(Some(range));
            let found = self.bucket.get_opts(&self.path(key)?, options).await.map_err(failure)?;
            // Each part is in a buffer of the connection, which is used again once it is dropped.
            let mut parts = found.into_stream();
            while let Some(part) = parts.try_next().await.map_err(failure)? {
                sink.write(&part);
            }
            Ok(())
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let mode = match condition {
                Condition::Always => PutMode::Overwrite,
                Condition::Absent => PutMode::Create,
                Condition::Matches(Version(e_tag)) => {
                    PutMode::Update(UpdateVersion { e_tag: Some(e_tag), version: None })
                }
            };
            let payload: PutPayload = body.parts().iter().cloned().collect();
            let options = PutOptions { mode, ..PutOptions::default() };
            let put = self.bucket.put_opts(&self.path(key)?, payload, options).await;
            version(put.map_err(failure)?.e_tag)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            match self.bucket.delete(&self.path(key)?).await.map_err(failure) {
                Err(error) if error.kind() != StoreErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        Box::pin(async move {
            let within = self.path(prefix.trim_end_matches('/'))?;
            // Without `after`, all keys of the prefix are after the prefix itself.
            let offset =
                self.path(if after > prefix { after } else { prefix.trim_end_matches('/') })?;
            let mut listed = self.bucket.list_with_offset(Some(&within), &offset);
            let mut keys = Vec::new();
            while keys.len() < PAGE_KEYS
                && let Some(meta) = listed.try_next().await.map_err(failure)?
            {
                let key = meta.location.as_ref().strip_prefix(&self.prefix);
                keys.extend(key.map(str::to_owned));
            }
            Ok(keys)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::At;

    /// A store at this endpoint, for somebody whom no server knows.
    fn s3_at(endpoint: &str, prefix: String) -> S3 {
        let bucket = builder("bucket")
            .with_endpoint(endpoint)
            .with_allow_http(endpoint.starts_with("http:"))
            .with_access_key_id("nobody")
            .with_secret_access_key("nothing-secret")
            .build()
            .unwrap();
        S3 { bucket, prefix }
    }

    #[tokio::test]
    async fn a_server_without_tls_is_an_error_and_no_panic() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::task::spawn_blocking(move || {
            use std::io::Write;
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        });
        let store = s3_at(&format!("https://{address}"), "prefix/".to_owned());
        let error = store.get("super").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(!error.to_string().contains("nothing-secret"), "{error}");
        server.await.unwrap();
    }

    /// What a get says when a server answers 404 with `body`.
    async fn kind_of_404(body: &'static str) -> StoreErrorKind {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::task::spawn_blocking(move || {
            use std::io::{BufRead, BufReader, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            assert!(lines.map(Result::unwrap).any(|line| line.is_empty()));
            let len = body.len();
            write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: {len}\r\n\r\n{body}")
                .unwrap();
        });
        let store = s3_at(&format!("http://{address}"), "prefix/".to_owned());
        let error = store.get("super").await.unwrap_err();
        server.await.unwrap();
        error.kind()
    }

    #[tokio::test]
    async fn only_s3_itself_knows_that_an_object_is_not_there() {
        let s3 = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Key>super</Key></Error>";
        assert_eq!(kind_of_404(s3).await, StoreErrorKind::NotFound);
        assert_eq!(kind_of_404("404 page not found").await, StoreErrorKind::Other);
        let bucket = "<Error><Code>NoSuchBucket</Code></Error>";
        assert_eq!(kind_of_404(bucket).await, StoreErrorKind::Other);
    }

    /// What a put says when a server answers 403 with `answer`.
    async fn refusal(answer: &'static str) -> StoreError {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::task::spawn_blocking(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            // The request must have been read, or the answer may be lost with the connection.
            let mut request = Vec::new();
            while !request.ends_with(b"body") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let length = answer.len();
            let head = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all((head + answer).as_bytes()).unwrap();
        });
        let store = s3_at(&format!("http://{address}"), format!("{}/", "long".repeat(80)));
        let body = Body::from(b"body".to_vec());
        let error = store.put("data", body, Condition::Always).await.unwrap_err();
        server.await.unwrap();
        error
    }

    #[tokio::test]
    async fn a_refusal_tells_the_code_and_no_credentials() {
        let body = "<?xml version=\"1.0\"?>\n<Error><AWSAccessKeyId>nobody</AWSAccessKeyId>\
                    <Code>QuotaExceeded</Code>\n<Message>The quota\n is used up.</Message>\
                    <CanonicalRequest>x-amz-security-token:secret</CanonicalRequest></Error>";
        let error = refusal(body).await;
        assert_eq!(error.kind(), StoreErrorKind::Denied);
        assert_eq!(error.to_string(), "403 Forbidden: QuotaExceeded: The quota is used up");
    }

    /// Three servers' answers: only AWS tells the times, and Ceph has no message.
    #[tokio::test]
    async fn a_wrong_clock_is_no_lost_permission_and_is_to_be_set() {
        let told = "403 Forbidden: RequestTimeTooSkewed: The difference is too large";
        let plain = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too \
                     large.</Message></Error>";
        let timed = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too \
                     large.</Message><RequestTime>20261127T030000Z</RequestTime>\
                     <ServerTime>2026-11-27T03:40:00Z</ServerTime></Error>";
        let bare = "<Error><Code>RequestTimeTooSkewed</Code><Message></Message></Error>";
        let error = refusal(bare).await;
        let code = "403 Forbidden: RequestTimeTooSkewed";
        assert_eq!(error.to_string(), format!("{code}: {SET_CLOCK}"));
        let times = " (20261127T030000Z here, 2026-11-27T03:40:00Z there)";
        for (body, times) in [(plain, ""), (timed, times)] {
            let error = refusal(body).await;
            assert_eq!(error.kind(), StoreErrorKind::ClockSkew);
            assert!(error.is_transient(), "it is retried");
            assert_eq!(error.to_string(), format!("{told}{times}: {SET_CLOCK}"));
            let failed = At("s3://bucket/tank").failed("super", error).to_string();
            assert!(!failed.contains("credentials"), "{failed}");
            assert!(failed.ends_with(&format!("{SET_CLOCK}. Then try again")), "{failed}");
        }
    }

    #[tokio::test]
    async fn an_error_of_a_connection_names_its_cause() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = unused.local_addr().unwrap();
        drop(unused);
        let store = s3_at(&format!("http://{address}"), "prefix/".to_owned());
        let error = store.get("super").await.unwrap_err().to_string();
        assert!(error.contains("Connection refused"), "{error}");
        assert!(!error.contains("nothing-secret"), "{error}");
    }

    #[tokio::test]
    async fn keys_of_a_profile_are_not_used_with_a_token_of_a_variable() {
        let credentials = profile::Credentials {
            access_key_id: "ONE".to_owned(),
            secret_access_key: "one".to_owned(),
            session_token: None,
        };
        let profile = Profile { credentials: Some(credentials), ..Profile::default() };
        // As the variables have set it.
        let builder = builder("bucket").with_token("stale");
        let bucket = with_profile(builder, profile, &|_| None).build().unwrap();
        let used = bucket.credentials().get_credential().await.unwrap();
        assert_eq!((used.key_id.as_str(), &used.token), ("ONE", &None));
    }

    #[test]
    fn a_file_below_a_file_is_not_there() {
        let file = std::env::current_exe().unwrap();
        assert!(read_if_there(&file.join(".aws/config")).unwrap().is_none());
    }

    #[test]
    fn a_pool_needs_a_bucket_and_a_prefix() {
        for url in ["", "s3://", "s3://bucket", "s3://bucket/", "http://bucket/x", "s3:///x"] {
            let error = connect(url).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("s3://BUCKET/PREFIX"), "{url}: {error}");
        }
    }
}
