//! Answers to requests.

use std::cell::RefCell;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};

use super::host::Hosts;
use super::samples::{Kind, Samples};
use crate::{Format, page};

/// The page loads its own files, asks this server, and nothing else. No site may frame it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const PLAIN: &str = "text/plain; charset=utf-8";

/// What is served, and to whom.
pub(super) struct Site {
    pub(super) hosts: Hosts,
    pub(super) samples: RefCell<Samples>,
}

type Answer = Response<Full<Bytes>>;

impl Site {
    /// Answers a request. The body of the request is never read.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Answer {
        if !self.is_called_by_its_name(request) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "This server answers requests for its address or localhost only.\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "Use GET or HEAD.\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let path = request.uri().path();
        match path {
            "/metrics" => {
                let accept = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
                let format = Format::of_accept(accept);
                self.sample(Kind::Metrics(format), format.content_type())
            }
            "/stats.json" => self.sample(Kind::Stats, "application/json"),
            "/insight.json" => self.sample(Kind::Insight, "application/json"),
            _ => match page::file(path) {
                Some(file) => answer(StatusCode::OK, file.content_type, file.content.into()),
                None => text(
                    StatusCode::NOT_FOUND,
                    "There are /, /metrics, /stats.json and /insight.json here.\n",
                ),
            },
        }
    }

    fn sample(&self, kind: Kind, content_type: &'static str) -> Answer {
        match self.samples.borrow_mut().get(kind) {
            Some(content) => answer(StatusCode::OK, content_type, content),
            None => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The answer is too long. This process has too many pools, devices or mounts.\n",
            ),
        }
    }

    /// Whether each name by which the request calls the server is one of its names.
    fn is_called_by_its_name<B>(&self, request: &Request<B>) -> bool {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let target = request.uri().authority().map(|authority| authority.as_str());
        host.to_str().is_ok_and(|host| self.hosts.allow(host))
            && target.is_none_or(|target| self.hosts.allow(target))
    }
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    answer(status, PLAIN, Bytes::from_static(text.as_bytes()))
}

fn answer(status: StatusCode, content_type: &'static str, content: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(content));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Other sites may not load the answers as scripts or images either.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    answer
}
