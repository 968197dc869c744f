//! By which names a request may call this server.
//!
//! A web site can have its own name resolve to a loopback address, and its scripts can then read
//! answers as if they came from the site (DNS rebinding). Such a request carries the name of the
//! site. So only names are answered that no site can have: addresses, `localhost`, and, for remote
//! clients, the name of this host.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Where Linux tells the name of the host.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The names that are answered, beside addresses and `localhost`.
pub(super) struct Hosts {
    /// The name of this host; empty if it is not answered.
    name: String,
}

impl Hosts {
    pub(super) fn new(allow_remote: bool) -> Self {
        let name = match allow_remote {
            true => std::fs::read_to_string(HOST_NAME).unwrap_or_default(),
            false => String::new(),
        };
        Self { name: name.trim().to_owned() }
    }

    /// Whether a request with this header `Host`, or with this authority in its target, is
    /// answered.
    pub(super) fn allow(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok()
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        let name = match host.split_once(':') {
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
            None => host,
        };
        name.parse::<Ipv4Addr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || (!self.name.is_empty() && name.eq_ignore_ascii_case(&self.name))
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_answered() {
        let hosts = Hosts { name: String::new() };
        for good in [
            "127.0.0.1",
            "127.0.0.1:9469",
            "192.0.2.7:80",
            "localhost",
            "LocalHost:1",
            "[::1]",
            "[::1]:9469",
            "[2001:db8::1]:9469",
        ] {
            assert!(hosts.allow(good), "{good}");
        }
    }

    #[test]
    fn names_of_sites_are_not() {
        let hosts = Hosts { name: "nas".to_owned() };
        for bad in [
            "",
            ":9469",
            "evil.example",
            "evil.example:9469",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:9469.evil.example",
            "nas.evil.example",
            "127.0.0.1:",
            "localhost:x",
            "[::1",
            "[::1]evil",
            "[evil]:80",
            "::1",
            "2130706433",
            "0x7f.1",
        ] {
            assert!(!hosts.allow(bad), "{bad}");
        }
        assert!(hosts.allow("nas:9469") && hosts.allow("NAS"));
        assert!(!Hosts::new(false).allow("nas"));
    }
}
