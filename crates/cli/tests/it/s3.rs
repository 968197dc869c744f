//! A server of the part of S3 that pools use, in memory: for tests of the command line.
//!
//! Objects are replaced at once, conditions hold, and signatures are not checked. The user
//! [`READER`] may only read. It can be taken away and brought back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The access key of a user whose changes are refused.
pub(crate) const READER: &str = "reader";

/// An object: its bytes, and its tag.
pub(crate) type Objects = BTreeMap<String, (Arc<Vec<u8>>, String)>;

#[derive(Default)]
struct State {
    objects: Mutex<Objects>,
    /// Tags so far.
    tags: AtomicU64,
    is_away: AtomicBool,
    /// Its clock differs from that of who asks, too much.
    is_skewed: AtomicBool,
    /// The key whose put is the last request before it goes away.
    last_key: Mutex<Option<String>>,
    ends: AtomicBool,
}

/// A running server.
pub(crate) struct S3Server {
    address: SocketAddr,
    state: Arc<State>,
}

struct Asked {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl S3Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    /// The environment of a process that uses it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_REGION", "here".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "not-a-secret".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// The keys of a bucket that begin with a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let objects = self.state.objects.lock().unwrap();
        objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// All objects as they are now.
    pub(crate) fn copy(&self) -> Objects {
        self.state.objects.lock().unwrap().clone()
    }

    /// Sets all objects back to a copy.
    pub(crate) fn set_back(&self, copy: &Objects) {
        self.state.objects.lock().unwrap().clone_from(copy);
    }

    /// Stores an object that is not of a pool.
    pub(crate) fn put(&self, key: &str) {
        let object = (Arc::new(b"theirs".to_vec()), "\"theirs\"".to_owned());
        self.state.objects.lock().unwrap().insert(key.to_owned(), object);
    }

    /// Removes an object.
    pub(crate) fn remove(&self, key: &str) {
        self.state.objects.lock().unwrap().remove(key);
    }

    /// From now on each request fails, or works again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::SeqCst);
    }

    /// From now on each request is refused because of its time, or is answered again.
    pub(crate) fn set_skewed(&self, is_skewed: bool) {
        self.state.is_skewed.store(is_skewed, Ordering::SeqCst);
    }

    /// Once this object was put, each request fails.
    pub(crate) fn go_away_after(&self, key: &str) {
        *self.state.last_key.lock().unwrap() = Some(key.to_owned());
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

/// Serves the requests of a connection.
fn serve(stream: &TcpStream, state: &State) {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader) {
        if state.is_away.load(Ordering::SeqCst) {
            return;
        }
        let (status, headers, body) = answer(&asked, state);
        if asked.method == "PUT"
            && state.last_key.lock().unwrap().take_if(|key| **key == asked.path).is_some()
        {
            state.is_away.store(true, Ordering::SeqCst);
        }
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        head.extend(headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        let mut out = stream;
        let body: &[u8] = if asked.method == "HEAD" { &[] } else { &body };
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = (decode(path.trim_start_matches('/')), query.to_owned());
    Some(Asked { method, path, query, headers, body })
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten();
        let code =
            code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = &after[if code.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

type Answer = (&'static str, Vec<(&'static str, String)>, Vec<u8>);

fn answer(asked: &Asked, state: &State) -> Answer {
    let user = asked.headers.get("authorization").map_or("", String::as_str);
    let may_change = !user.contains(&format!("Credential={READER}/"));
    match &*asked.method {
        _ if state.is_skewed.load(Ordering::SeqCst) => {
            ("403 Forbidden", Vec::new(), error("RequestTimeTooSkewed"))
        }
        "PUT" | "DELETE" if !may_change => ("403 Forbidden", Vec::new(), error("AccessDenied")),
        "PUT" => put(asked, state),
        "GET" if !asked.path.contains('/') || asked.path.ends_with('/') => list(asked, state),
        "GET" | "HEAD" => get(asked, state),
        "DELETE" => {
            state.objects.lock().unwrap().remove(&asked.path);
            ("204 No Content", Vec::new(), Vec::new())
        }
        _ => ("501 Not Implemented", Vec::new(), Vec::new()),
    }
}

fn put(asked: &Asked, state: &State) -> Answer {
    let mut objects = state.objects.lock().unwrap();
    let tag = objects.get(&asked.path).map(|(_, tag)| tag.clone());
    let holds = match (asked.headers.get("if-match"), asked.headers.get("if-none-match")) {
        (Some(wanted), _) if tag.is_none() => {
            assert!(!wanted.is_empty());
            return ("404 Not Found", Vec::new(), error("NoSuchKey"));
        }
        (Some(wanted), _) => tag.as_ref() == Some(wanted),
        (None, Some(_)) => tag.is_none(),
        (None, None) => true,
    };
    if !holds {
        return ("412 Precondition Failed", Vec::new(), error("PreconditionFailed"));
    }
    let tag = format!("\"{:x}\"", state.tags.fetch_add(1, Ordering::SeqCst));
    objects.insert(asked.path.clone(), (Arc::new(asked.body.clone()), tag.clone()));
    ("200 OK", vec![("ETag", tag)], Vec::new())
}

fn get(asked: &Asked, state: &State) -> Answer {
    let found = state.objects.lock().unwrap().get(&asked.path).cloned();
    let Some((bytes, tag)) = found else {
        return ("404 Not Found", Vec::new(), error("NoSuchKey"));
    };
    if asked.headers.get("if-none-match") == Some(&tag) {
        return ("304 Not Modified", vec![("ETag", tag)], Vec::new());
    }
    let date = "Wed, 25 Nov 2026 12:00:00 GMT".to_owned();
    let mut headers = vec![("ETag", tag), ("Last-Modified", date)];
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
        return ("200 OK", headers, bytes.to_vec());
    };
    let from: usize = from.parse().unwrap_or(0);
    let end = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
    if from >= end {
        return ("416 Range Not Satisfiable", Vec::new(), error("InvalidRange"));
    }
    headers.push(("Content-Range", format!("bytes {from}-{}/{}", end - 1, bytes.len())));
    ("206 Partial Content", headers, bytes[from..end].to_vec())
}

fn list(asked: &Asked, state: &State) -> Answer {
    let bucket = asked.path.trim_end_matches('/');
    let value = |name: &str| {
        let pairs = asked.query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.filter(|(is, _)| *is == name).map(|(_, value)| decode(value)).next();
        found.unwrap_or_default()
    };
    let prefix = format!("{bucket}/{}", value("prefix"));
    let after = format!("{bucket}/{}", value("start-after").max(value("continuation-token")));
    let objects = state.objects.lock().unwrap();
    let keys: Vec<_> =
        objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).collect();
    let shown = &keys[..keys.len().min(1000)];
    let contents: String = shown
        .iter()
        .map(|(key, (bytes, tag))| {
            let (key, tag) = (&key[bucket.len() + 1..], tag.replace('"', "&quot;"));
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-25T12:00:00.000Z</LastModified><ETag>{tag}</ETag><Size>{}</Size></Contents>",
                bytes.len()
            )
        })
        .collect();
    let more = match shown.last() {
        Some((last, _)) if shown.len() < keys.len() => format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
            &last[bucket.len() + 1..]
        ),
        _ => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    let text =
        format!("<ListBucketResult><Name>{bucket}</Name>{more}{contents}</ListBucketResult>");
    ("200 OK", vec![("Content-Type", "application/xml".to_owned())], text.into_bytes())
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>{code}</Message></Error>").into_bytes()
}
