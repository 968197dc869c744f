//! What requests get.

use std::net::TcpStream;
use std::sync::Arc;

use forebay_metrics::{Limits, Server, ServerError, ServerOptions};

use crate::client::{TestSource, connect, exchange, get, options, server, wait_until};

fn start(options: &ServerOptions) -> Result<Server, ServerError> {
    Server::start(options, Arc::new(TestSource { stats_bytes: 1 }))
}

#[track_caller]
fn assert_status(answer: &str, status: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
}

#[test]
fn metrics_have_the_format_that_the_client_asks_for() {
    let server = server(Limits::default());
    let address = server.address();
    let text = get(address, "/metrics", "");
    assert_status(&text, "200");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    assert!(
        text.ends_with(
            "# TYPE forebay_reads_total counter\nforebay_reads_total{pool=\"tank\"} 7\n"
        ),
        "{text}"
    );
    let open =
        get(address, "/metrics?x=1", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("forebay_reads_total{pool=\"tank\"} 7\n# EOF\n"), "{open}");
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_no_site_may_read_it() {
    let server = server(Limits::default());
    for (path, content_type) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/stats.json", "application/json"),
        ("/metrics", "text/plain"),
    ] {
        let answer = get(server.address(), path, "Origin: http://evil.example\r\n");
        assert_status(&answer, "200");
        let (head, content) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-type: {content_type}")), "{head}");
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "cross-origin-resource-policy: same-origin",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "connection: close",
        ] {
            assert!(head.contains(line), "{path}: {line}\n{head}");
        }
        assert!(!head.contains("access-control"), "{head}");
        for elsewhere in ["http://", "https://", "//cdn", "@import", "innerHTML", "eval("] {
            assert!(!content.contains(elsewhere), "{path}: {elsewhere}");
        }
        assert!(!content.contains(" style=") && !content.contains(" onclick="), "{path}");
    }
}

#[test]
fn only_reads_of_known_paths_are_answered() {
    let server = server(Limits::default());
    let address = server.address();
    assert_status(&get(address, "/etc/passwd", ""), "404");
    assert_status(&get(address, "/../stats.json", ""), "404");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "EVIL"] {
        let request = format!("{method} /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let answer = exchange(address, request.as_bytes());
        assert_status(&answer, "405");
        assert!(answer.contains("allow: GET, HEAD"), "{answer}");
    }
    let head = format!("HEAD /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let head = exchange(address, head.as_bytes());
    assert_status(&head, "200");
    let length = |answer: &str| {
        let line = answer.lines().find(|line| line.starts_with("content-length: "));
        line.map(str::to_owned).expect("a length")
    };
    assert_eq!(length(&head), length(&get(address, "/metrics", "")));
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn requests_under_the_name_of_a_site_are_refused() {
    let server = server(Limits::default());
    let address = server.address();
    for request in [
        "GET /stats.json HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
        format!("GET /stats.json HTTP/1.1\r\nHost: evil.example:{}\r\n\r\n", address.port()),
        format!("GET /stats.json HTTP/1.1\r\nHost: {address}.evil.example\r\n\r\n"),
        format!("GET /stats.json HTTP/1.1\r\nHost: {address}\r\nHost: evil.example\r\n\r\n"),
        format!("GET http://evil.example/stats.json HTTP/1.1\r\nHost: {address}\r\n\r\n"),
        "GET /stats.json HTTP/1.1\r\n\r\n".to_owned(),
        "GET /stats.json HTTP/1.1\r\nHost:\r\n\r\n".to_owned(),
        "GET /stats.json HTTP/1.0\r\n\r\n".to_owned(),
    ] {
        let answer = exchange(address, request.as_bytes());
        assert!(answer.contains(" 421 Misdirected Request\r\n"), "{request}{answer}");
        assert!(!answer.contains("xxx"), "{request}{answer}");
    }
    let localhost = format!("GET / HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", address.port());
    assert_status(&exchange(address, localhost.as_bytes()), "200");
}

#[test]
fn an_address_is_refused_with_the_reason() {
    let first = server(Limits::default());
    let in_use = start(&options(&first.address().to_string(), Limits::default()));
    let said = in_use.expect_err("it is in use").to_string();
    assert!(said.contains(&first.address().to_string()) && said.contains("port 0"), "{said}");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let refused = start(&options(address, Limits::default()));
        assert!(matches!(refused, Err(ServerError::NotLoopback(_))), "{address}: {refused:?}");
    }
    let everywhere =
        ServerOptions { allow_remote: true, ..options("0.0.0.0:0", Limits::default()) };
    assert!(start(&everywhere).is_ok());
    let nowhere = ServerOptions { allow_remote: true, ..options("192.0.2.1:0", Limits::default()) };
    assert!(matches!(start(&nowhere), Err(ServerError::Refused(..))));
}

#[test]
fn ipv6_is_served() {
    match start(&options("[::1]:0", Limits::default())) {
        Ok(server) => assert_status(&get(server.address(), "/metrics", ""), "200"),
        Err(error) => forebay_base::testing::skip("ipv6", error),
    }
}

#[test]
fn a_dropped_server_closes_its_address_and_its_connections() {
    let server = server(Limits::default());
    let address = server.address();
    let mut idle = connect(address);
    assert_status(&get(address, "/metrics", ""), "200");
    drop(server);
    assert_eq!(crate::client::read_all(&mut idle), b"");
    wait_until("it is closed", || TcpStream::connect(address).is_err());
}
