//! A crate depends only on crates of lower layers.
//!
//! [`CRATES`] is the table of ARCHITECTURE.md. Normal and build dependencies must point to a lower
//! layer. Development dependencies may also point to crates of [`Layer::Dev`]. A crate that is not
//! in the table is an error, so that the layer of a new crate is a decision.

use std::fmt;

use crate::tree::{Findings, Package, Tree};

const RULE: &str = "layers";

/// The layer of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Part of the product; 0 is the lowest layer.
    At(u8),
    /// Used by tests and tools; the product does not depend on it.
    Dev,
    /// A task of the project itself: may depend on all crates, and no crate may depend on it.
    Task,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::At(number) => write!(f, "layer {number}"),
            Layer::Dev => f.write_str("for development"),
            Layer::Task => f.write_str("a task"),
        }
    }
}

/// One row of the table.
pub(crate) struct CrateRow {
    pub(crate) name: &'static str,
    pub(crate) layer: Layer,
    /// Whether the rule `shim` applies: clock, randomness, threads and locks are injected.
    pub(crate) library: bool,
    /// Third-party crates that it must not depend on.
    forbidden: &'static [&'static str],
}

const ASYNC_RUNTIMES: &[&str] = &["tokio", "async-std", "smol", "futures-executor"];
const ASYNC_RUNTIMES_AND_IO: &[&str] =
    &["tokio", "async-std", "smol", "futures-executor", "io-uring", "fuser", "rustix", "nix"];
const PROTOCOLS: &[&str] = &["fuser", "fuse3", "fuse-backend-rs"];

/// Every crate that may exist. A planned crate may have a row.
pub(crate) const CRATES: &[CrateRow] = &[
    tool("xtask", Layer::Task),
    tool("forebay-docs", Layer::Task),
    tool("forebay-fuzz", Layer::Task),
    tool("forebay-cli", Layer::At(6)),
    tool("forebay-bench", Layer::At(6)),
    library("forebay-fuse", Layer::At(5), &[]),
    library("forebay-nbd", Layer::At(5), &[]),
    library("forebay-metrics", Layer::At(5), PROTOCOLS),
    library("forebay-fs", Layer::At(4), PROTOCOLS),
    library("forebay-c", Layer::At(4), PROTOCOLS),
    tool("forebay-python", Layer::At(5)),
    library("forebay", Layer::At(3), PROTOCOLS),
    library("forebay-pool", Layer::At(3), PROTOCOLS),
    library("forebay-l2", Layer::At(2), PROTOCOLS),
    library("forebay-object", Layer::At(2), PROTOCOLS),
    library("forebay-cache", Layer::At(1), ASYNC_RUNTIMES_AND_IO),
    library("forebay-io", Layer::At(1), PROTOCOLS),
    library("forebay-base", Layer::At(0), ASYNC_RUNTIMES),
    tool("forebay-derive", Layer::At(0)),
    tool("forebay-sim", Layer::Dev),
];

const fn library(name: &'static str, layer: Layer, forbidden: &'static [&'static str]) -> CrateRow {
    CrateRow { name, layer, library: true, forbidden }
}

const fn tool(name: &'static str, layer: Layer) -> CrateRow {
    CrateRow { name, layer, library: false, forbidden: &[] }
}

/// The row of a crate, if it has one.
pub(crate) fn crate_row(name: &str) -> Option<&'static CrateRow> {
    CRATES.iter().find(|row| row.name == name)
}

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for package in &tree.packages {
        let Some(from) = crate_row(&package.name) else {
            let message =
                format!("`{}` has no layer: add it to the table in tidy/layers.rs", package.name);
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
            let message =
                "has no `[lints] workspace = true`: workspace lints do not apply".to_owned();
            out.error(RULE, &package.path, 0, message);
        }
    }
}

fn objection(tree: &Tree, from: &CrateRow, table: &str, name: &str) -> Option<String> {
    let development = table == "dev-dependencies";
    if from.forbidden.contains(&name) && !development {
        return Some(format!("`{}` must not depend on `{name}`", from.name));
    }
    let ours = tree.packages.iter().any(|package| package.name == name);
    let Some(to) = crate_row(name) else {
        return ours.then(|| format!("`{}` depends on `{name}`, which has no layer", from.name));
    };
    let allowed = match (from.layer, to.layer) {
        (_, Layer::Task) => false,
        (Layer::Task, _) => true,
        // A crate may enable its own features for its tests.
        _ if from.name == to.name => development,
        (Layer::At(from), Layer::At(to)) => to < from,
        (Layer::At(_), Layer::Dev) => development || !from.library,
        (Layer::Dev, Layer::At(to)) => to < 6,
        (Layer::Dev, Layer::Dev) => true,
    };
    (!allowed).then(|| {
        let (from_name, from, to) = (from.name, from.layer, to.layer);
        format!("`{from_name}` ({from}) must not depend on `{name}` ({to})")
    })
}

/// Kind of the dependency table and name of the package, for each dependency.
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
    use super::super::locations;
    use super::*;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}")
    }

    fn found(name: &str, rest: &str) -> usize {
        locations(check, &[("crates/x/Cargo.toml", &manifest(name, rest))]).len()
    }

    #[test]
    fn lower_layers_are_allowed() {
        assert_eq!(found("forebay-cache", "[dependencies]\nforebay-base = \"1\"\nlibc = \"1\""), 0);
        assert_eq!(found("forebay-bench", "[dependencies]\nforebay-cache.path = \"../c\""), 0);
        assert_eq!(found("xtask", "[dependencies]\nforebay-cache.workspace = true"), 0);
    }

    #[test]
    fn higher_and_equal_layers_are_refused() {
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
    fn a_crate_depends_on_itself_in_its_tests_only() {
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
    fn forbidden_and_unknown_crates_and_missing_lints_are_refused() {
        assert_eq!(found("forebay-cache", "[dependencies]\ntokio = \"1\""), 1);
        assert_eq!(found("forebay-cache", "[dev-dependencies]\ntokio = \"1\""), 0);
        assert_eq!(found("forebay-attic", ""), 1);
        let bare = "[package]\nname = \"forebay-base\"\n";
        assert_eq!(locations(check, &[("crates/base/Cargo.toml", bare)]).len(), 1);
    }
}
