//! The floors of the house: a crate stands only on crates below it.
//!
//! [`HOUSE`] is the table of ARCHITECTURE.md. Normal and build dependencies must point strictly
//! downwards; development dependencies may also point at crates of [`Floor::Dev`]. A crate that
//! is not in the table is refused, so that a new one gets its floor by decision.

use std::fmt;

use crate::tree::{Findings, Package, Tree};

const RULE: &str = "floors";

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Part of the product; the number counts upwards.
    At(u8),
    /// Helps tests and tools; no part of the product stands on it.
    Dev,
    /// A chore of the project itself: may use anything, and nothing may use it.
    Chore,
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Floor::At(number) => write!(f, "floor {number}"),
            Floor::Dev => f.write_str("for development"),
            Floor::Chore => f.write_str("a chore"),
        }
    }
}

/// One row of the table.
pub(crate) struct Resident {
    pub(crate) name: &'static str,
    pub(crate) floor: Floor,
    /// Whether the shim's rules hold: clock, randomness, threads and locks are injected.
    pub(crate) library: bool,
    /// Crates of others that would give it knowledge it must not have.
    never: &'static [&'static str],
}

const RUNTIMES: &[&str] = &["tokio", "async-std", "smol", "futures-executor"];
const RUNTIMES_AND_IO: &[&str] =
    &["tokio", "async-std", "smol", "futures-executor", "io-uring", "fuser", "rustix", "nix"];
const PROTOCOLS: &[&str] = &["fuser", "fuse3", "fuse-backend-rs"];

/// Every crate that may exist. A row does not mean that the crate exists already.
pub(crate) const HOUSE: &[Resident] = &[
    tool("xtask", Floor::Chore),
    tool("forebay-docs", Floor::Chore),
    tool("forebay-fuzz", Floor::Chore),
    tool("forebay-cli", Floor::At(6)),
    tool("forebay-bench", Floor::At(6)),
    library("forebay-fuse", Floor::At(5), &[]),
    library("forebay-nbd", Floor::At(5), &[]),
    library("forebay-fs", Floor::At(4), PROTOCOLS),
    library("forebay-pool", Floor::At(3), PROTOCOLS),
    library("forebay-l2", Floor::At(2), PROTOCOLS),
    library("forebay-cache", Floor::At(1), RUNTIMES_AND_IO),
    library("forebay-io", Floor::At(1), PROTOCOLS),
    library("forebay-base", Floor::At(0), RUNTIMES),
    tool("forebay-sim", Floor::Dev),
];

const fn library(name: &'static str, floor: Floor, never: &'static [&'static str]) -> Resident {
    Resident { name, floor, library: true, never }
}

const fn tool(name: &'static str, floor: Floor) -> Resident {
    Resident { name, floor, library: false, never: &[] }
}

/// The row of a crate, if it has one.
pub(crate) fn resident(name: &str) -> Option<&'static Resident> {
    HOUSE.iter().find(|resident| resident.name == name)
}

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for package in &tree.packages {
        let Some(from) = resident(&package.name) else {
            let message = format!("`{}` has no floor: add it to the table of floors", package.name);
            out.error(RULE, &package.path, 0, message);
            continue;
        };
        for (table, name) in dependencies(package) {
            if let Some(message) = objection(tree, from, &table, &name) {
                out.error(RULE, &package.path, 0, message);
            }
        }
        let lints = package.manifest.get("lints").and_then(|lints| lints.get("workspace"));
        if lints.and_then(toml::Value::as_bool) != Some(true) {
            let message = "has no `[lints] workspace = true`, so the lints pass it by".to_owned();
            out.error(RULE, &package.path, 0, message);
        }
    }
}

fn objection(tree: &Tree, from: &Resident, table: &str, name: &str) -> Option<String> {
    let development = table == "dev-dependencies";
    if from.never.contains(&name) && !development {
        return Some(format!("`{}` must never know of `{name}`", from.name));
    }
    let ours = tree.packages.iter().any(|package| package.name == name);
    let Some(to) = resident(name) else {
        return ours.then(|| format!("`{}` depends on `{name}`, which has no floor", from.name));
    };
    let allowed = match (from.floor, to.floor) {
        (_, Floor::Chore) => false,
        (Floor::Chore, _) => true,
        // Itself, with the features of its own tests.
        _ if from.name == to.name => development,
        (Floor::At(from), Floor::At(to)) => to < from,
        (Floor::At(_), Floor::Dev) => development || !from.library,
        (Floor::Dev, Floor::At(to)) => to < 6,
        (Floor::Dev, Floor::Dev) => true,
    };
    (!allowed).then(|| {
        let (from_name, from, to) = (from.name, from.floor, to.floor);
        format!("`{from_name}` ({from}) must not stand on `{name}` ({to})")
    })
}

/// Pairs of the table's kind and the name of the package depended on.
fn dependencies(package: &Package) -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(&package.manifest, &mut found);
    if let Some(targets) = package.manifest.get("target").and_then(toml::Value::as_table) {
        for target in targets.values().filter_map(toml::Value::as_table) {
            collect(target, &mut found);
        }
    }
    found
}

fn collect(table: &toml::Table, found: &mut Vec<(String, String)>) {
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (key, value) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            found.push((kind.to_owned(), renamed.unwrap_or(key).to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}")
    }

    fn found(name: &str, rest: &str) -> usize {
        places(check, &[("crates/x/Cargo.toml", &manifest(name, rest))]).len()
    }

    #[test]
    fn down_is_allowed() {
        assert_eq!(found("forebay-cache", "[dependencies]\nforebay-base = \"1\"\nlibc = \"1\""), 0);
        assert_eq!(found("forebay-bench", "[dependencies]\nforebay-cache.path = \"../c\""), 0);
        assert_eq!(found("xtask", "[dependencies]\nforebay-cache.workspace = true"), 0);
    }

    #[test]
    fn up_and_sideways_are_refused() {
        assert_eq!(found("forebay-base", "[dependencies]\nforebay-cache = \"1\""), 1);
        assert_eq!(found("forebay-cache", "[dependencies]\nforebay-io = \"1\""), 1);
        assert_eq!(found("forebay-cache", "[dev-dependencies]\nforebay-io = \"1\""), 1);
        assert_eq!(found("forebay-bench", "[dependencies]\nxtask = \"1\""), 1);
        let target = "[target.'cfg(unix)'.dependencies]\nforebay-fs = \"1\"";
        assert_eq!(found("forebay-pool", target), 1);
        let renamed = "[dependencies]\nharmless = { package = \"forebay-pool\", version = \"1\" }";
        assert_eq!(found("forebay-cache", renamed), 1);
    }

    #[test]
    fn a_crate_stands_on_itself_in_its_tests_only() {
        let itself = "forebay-pool = { path = \".\", features = [\"testing\"] }";
        assert_eq!(found("forebay-pool", &format!("[dev-dependencies]\n{itself}")), 0);
        assert_eq!(found("forebay-pool", &format!("[dependencies]\n{itself}")), 1);
        assert_eq!(found("forebay-sim", "[dependencies]\nforebay-sim = \"1\""), 1);
    }

    #[test]
    fn dev_crates_are_for_tests_and_tools() {
        assert_eq!(found("forebay-cache", "[dev-dependencies]\nforebay-sim = \"1\""), 0);
        assert_eq!(found("forebay-cache", "[dependencies]\nforebay-sim = \"1\""), 1);
        assert_eq!(found("forebay-bench", "[dependencies]\nforebay-sim = \"1\""), 0);
    }

    #[test]
    fn forbidden_knowledge_strangers_and_missing_lints_are_refused() {
        assert_eq!(found("forebay-cache", "[dependencies]\ntokio = \"1\""), 1);
        assert_eq!(found("forebay-cache", "[dev-dependencies]\ntokio = \"1\""), 0);
        assert_eq!(found("forebay-attic", ""), 1);
        let bare = "[package]\nname = \"forebay-base\"\n";
        assert_eq!(places(check, &[("crates/base/Cargo.toml", bare)]).len(), 1);
    }
}
