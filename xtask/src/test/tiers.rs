//! Which steps each tier has.
//!
//! Two builds serve the quick tiers: the one of clippy, with all features that go together, and the
//! one of the workspace's tests. The counting build and the model checks need a build of their own,
//! and build no more than they run.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::cargo;
use super::step::{Binary, Step};
use crate::tree::{Package, Tree};

/// The targets that the build of the tests makes. Always all of the workspace: with fewer packages,
/// cargo would choose other features for crates of others, and build those again. An example whose
/// manifest says `harness = false` is built with its own `main`, which the step runs as one test.
pub(crate) const WORKSPACE: &str = "--workspace --lib --bins --tests --examples";

/// Features that clippy checks in one build.
const FEATURES: [&str; 4] = ["counting", "bench_internals", "peers", "fuzzing"];
/// Set to `1`, it makes the tests of `forebay-io` have the kernel refuse io_uring to them.
const REFUSE_IO_URING: &str = "FOREBAY_TEST_REFUSE_IO_URING";
/// How a crate declares model checks that look inside it, on lines of their own.
const MODEL_INSIDE: [&str; 2] = ["#[cfg(all(test, forebay_model))]", "mod model;"];

/// Formatting, the house rules, clippy, and the tests that need no mount and simulate no device's
/// life: what to run before each commit.
pub(crate) fn check() -> Vec<Step> {
    let mut steps = still();
    steps.push(Step::tests("unit and property tests", WORKSPACE, is_quick));
    steps
}

/// Everything that a change must pass.
pub(crate) fn test(tree: &Tree) -> Vec<Step> {
    let mut steps = still();
    steps.push(Step::tests("tests", WORKSPACE, |_| true));
    steps.push(without_io_uring());
    steps.push(Step::run("tests of documentation", "test --workspace --doc"));
    steps.push(
        Step::cargo("documentation", "doc --workspace --no-deps")
            .with("RUSTDOCFLAGS", "-D warnings"),
    );
    steps.extend(counting(tree));
    steps.extend(model(tree));
    // The binary that the build of the tests made beside them.
    let binary = target().join("debug/forebay");
    let conformance = Step::xtask("conformance on a real mount", "conformance");
    steps.push(conformance.with("FOREBAY_BINARY", binary.to_string_lossy()));
    steps
}

/// Cargo's output folder.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// The same, and all that takes minutes.
pub(crate) fn full(tree: &Tree) -> Vec<Step> {
    let mut steps = still();
    steps.extend([deny(), advisories()]);
    steps.push(
        Step::cargo("documentation", "doc --workspace --no-deps")
            .with("RUSTDOCFLAGS", "-D warnings"),
    );
    steps.push(Step::tests("tests", WORKSPACE, |_| true).long());
    steps.push(without_io_uring().long());
    steps.push(Step::run("tests of documentation", "test --workspace --doc").long());
    steps.extend(counting(tree).map(Step::long));
    steps.extend(model(tree).into_iter().map(Step::long));
    let smoke = "run --release -p forebay-bench --features peers -- smoke";
    steps.push(Step::run("benches, optimised, run small", smoke));
    steps.push(Step::xtask("conformance on a real mount", "conformance --full"));
    steps.push(soak(&["--minutes", "10"]));
    steps.extend([fuzz(), miri(), thread_sanitizer()]);
    steps
}

/// What reads the sources and runs nothing.
fn still() -> Vec<Step> {
    let features = "--workspace --all-targets --features";
    let clippy = format!("clippy {features} {} -- -D warnings", FEATURES.join(","));
    vec![
        Step::cargo("format", "fmt --all --check"),
        Step::xtask("tidy", "tidy"),
        Step::cargo("clippy", &clippy),
    ]
}

/// Unit tests, and the integration tests of crates whose tests neither mount nor simulate.
fn is_quick(binary: &Binary) -> bool {
    let slow = ["bench", "cli", "fs", "fuse", "sim"];
    binary.target != "it" || !slow.contains(&binary.package.as_str())
}

fn without_io_uring() -> Step {
    let is_io = |binary: &Binary| binary.package == "io";
    Step::tests("tests of io without io_uring", WORKSPACE, is_io).with(REFUSE_IO_URING, "1")
}

/// The tests that count locks and compare-and-swaps, in a build that counts them.
fn counting(tree: &Tree) -> Option<Step> {
    let counts = |package: &&Package| {
        tree.texts.contains_key(&package.path.replace("Cargo.toml", "tests/counting.rs"))
    };
    let features: Vec<String> = tree
        .packages
        .iter()
        .filter(counts)
        .map(|package| format!("{}/counting", package.name))
        .collect();
    let build = format!("--workspace --test counting --features {}", features.join(","));
    (!features.is_empty()).then(|| Step::tests("tests with counting", &build, |_| true))
}

/// The model checks. Optimised, since they try many schedules, with the assertions that tests rely
/// on; the profile `model` says how. The flag rebuilds every crate, so they have a folder of their own.
pub(crate) fn model(tree: &Tree) -> Vec<Step> {
    let folder = target().join("model");
    let step = |name: &str, build: String| {
        Step::tests(name, &format!("--profile model {build}"), |_| true)
            .with("RUSTFLAGS", "--cfg forebay_model")
            .with("CARGO_TARGET_DIR", folder.to_string_lossy())
    };
    let with = |has: &dyn Fn(&Package) -> bool| {
        let names = tree.packages.iter().filter(|package| has(package));
        names.map(|package| format!("-p {}", package.name)).collect::<Vec<_>>().join(" ")
    };
    let outside = with(&|package| {
        tree.texts.contains_key(&package.path.replace("Cargo.toml", "tests/model/main.rs"))
    });
    let inside = with(&|package| has_model_inside(tree, package));
    let mut steps = Vec::new();
    if !inside.is_empty() {
        // The other tests of the crate may start threads and locks outside of the checker.
        let step = step("model checks inside crates", format!("{inside} --lib"));
        steps.push(step.argument("model::"));
    }
    if !outside.is_empty() {
        steps.push(step("model checks of crates", format!("{outside} --test model")));
    }
    steps
}

fn has_model_inside(tree: &Tree, package: &Package) -> bool {
    let folder = package.path.replace("Cargo.toml", "src/");
    let declares = |text: &str| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.windows(2).any(|two| two == MODEL_INSIDE)
    };
    tree.texts
        .iter()
        .any(|(path, text)| path.starts_with(&folder) && path.ends_with(".rs") && declares(text))
}

/// The random life of pools, optimised.
pub(crate) fn soak(arguments: &[&str]) -> Step {
    let arguments = arguments.join(" ");
    let command = format!("run --release -p forebay-sim --bin forebay-soak -- {arguments}");
    Step::run("soak", &command)
}

/// Five minutes of images that a fuzzer changes.
fn fuzz() -> Step {
    let command = "+nightly fuzz run import --features fuzzer -- -len_control=0 -max_len=200 \
                   -max_total_time=300";
    Step::run("fuzzing of import", command).needs("cargo-fuzz", || {
        answers(&["+nightly", "fuzz", "--version"])
            .map_err(|why| format!("{why}; `cargo install cargo-fuzz` and a nightly toolchain"))
    })
}

/// Licences, duplicates and sources of dependencies, as `deny.toml` allows them.
fn deny() -> Step {
    let step = Step::run("licences of dependencies", "deny check licenses bans sources");
    step.needs("cargo-deny", || {
        answers(&["deny", "--version"]).map_err(|why| format!("{why}; `cargo install cargo-deny`"))
    })
}

/// Known vulnerabilities of dependencies, by a database from the network.
fn advisories() -> Step {
    let step = Step::run("advisories on dependencies", "deny check advisories");
    step.needs("advisory-db", || {
        answers(&["deny", "fetch", "db"]).map_err(|why| format!("{why}; needs cargo-deny, network"))
    })
}

/// Undefined behaviour in what has `unsafe` and needs no device.
fn miri() -> Step {
    let command = "+nightly miri test -p forebay-base -p forebay-cache -p forebay-l2 --lib -- \
                   arena:: index:: header:: slab:: lists::";
    let step = Step::run("Miri on base, cache and the index of l2", command);
    step.with("MIRIFLAGS", "-Zmiri-disable-isolation").needs("miri", || {
        answers(&["+nightly", "miri", "--version"])
            .map_err(|why| format!("{why}; `rustup +nightly component add miri rust-src`"))
    })
}

/// Data races under load.
fn thread_sanitizer() -> Step {
    let command = "+nightly test -Zbuild-std --target x86_64-unknown-linux-gnu \
                   -p forebay-cache -p forebay-io --test it -- threads stress storm";
    let step = Step::run("ThreadSanitizer on stress", command);
    let step = step.with("RUSTFLAGS", "-Zsanitizer=thread");
    step.with("CARGO_TARGET_DIR", target().join("tsan").to_string_lossy()).needs("rust-src", || {
        let output = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
        let root = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let source = Path::new(&root.unwrap_or_default())
            .join("lib/rustlib/src/rust/library/std/Cargo.toml");
        match source.is_file() {
            true => Ok(()),
            false => Err("`rustup +nightly component add rust-src`".to_owned()),
        }
    })
}

/// Whether cargo has a subcommand; if not, why.
fn answers(arguments: &[&str]) -> Result<(), String> {
    let output = cargo().args(arguments).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("`cargo {}` ended with {}", arguments.join(" "), output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: (&str, &str) =
        ("crates/base/Cargo.toml", "[package]\nname = \"forebay-base\"\n[features]\ncounting = []");
    const CACHE: (&str, &str) = (
        "crates/cache/Cargo.toml",
        "[package]\nname = \"forebay-cache\"\n[features]\ncounting = [\"forebay-base/counting\"]",
    );

    fn lines(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::command_line).collect()
    }

    #[test]
    fn counting_and_models_make_steps_where_they_exist() {
        let none = lines(&test(&Tree::fixture(&[BASE, CACHE])));
        assert!(!none.iter().any(|line| line.contains("test counting") || line.contains("model")));
        let counting = ("crates/cache/tests/counting.rs", "//! Counts.");
        let model = ("crates/cache/tests/model/main.rs", "//! Models.");
        let some = lines(&test(&Tree::fixture(&[BASE, CACHE, counting, model])));
        let counting = "cargo test --workspace --test counting --features forebay-cache/counting";
        assert!(some.iter().any(|line| line == counting), "{some:?}");
        let models: Vec<_> = some.iter().filter(|line| line.contains("forebay_model")).collect();
        assert_eq!(models.len(), 1, "{models:?}");
        assert!(models[0].ends_with("--profile model -p forebay-cache --test model"));
    }

    #[test]
    fn models_inside_a_crate_are_found_by_their_declaration() {
        let text = "mod a;\n#[cfg(all(test, forebay_model))]\nmod model;\n#[cfg(forebay_model)]";
        let inside = Tree::fixture(&[BASE, ("crates/base/src/arena/mod.rs", text)]);
        let step = "--profile model -p forebay-base --lib -- model::";
        let found = lines(&model(&inside));
        assert!(found.iter().any(|line| line.ends_with(step)), "{found:?}");
        // A module that tests of another target use holds no tests of the crate.
        let text = "#[cfg(forebay_model)]\npub mod model;";
        let helper = Tree::fixture(&[CACHE, ("crates/cache/src/lib.rs", text)]);
        assert!(model(&helper).is_empty());
    }

    #[test]
    fn one_build_serves_the_tests_of_io_with_and_without_io_uring() {
        let steps = test(&Tree::fixture(&[BASE]));
        let line = format!("{REFUSE_IO_URING}=1 cargo test {WORKSPACE}");
        assert!(lines(&steps).contains(&line), "{:?}", lines(&steps));
        assert!(lines(&steps).contains(&format!("cargo test {WORKSPACE}")));
    }

    #[test]
    fn long_runs_say_so_to_tests() {
        let tree = Tree::fixture(&[BASE]);
        assert!(!lines(&test(&tree)).iter().any(|line| line.contains("FOREBAY_FULL")));
        let full = lines(&full(&tree));
        let tests = full.iter().filter(|line| line.contains("cargo test --workspace"));
        assert!(tests.clone().count() > 1 && tests.clone().all(|l| l.contains("FOREBAY_FULL=1")));
    }

    #[test]
    fn only_long_runs_look_at_dependencies() {
        let tree = Tree::fixture(&[BASE]);
        let asks = |step: &&Step| step.command_line().contains("cargo deny check");
        assert!(!check().iter().chain(&test(&tree)).any(|step| asks(&step)));
        let full = full(&tree);
        let asking: Vec<_> = full.iter().filter(asks).collect();
        assert_eq!(asking.len(), 2);
        assert!(asking.iter().all(|step| step.needs.is_some()), "skipped without cargo-deny");
    }

    #[test]
    fn the_quick_tier_neither_mounts_nor_simulates() {
        let binary = |package: &str, target: &str| Binary {
            package: package.to_owned(),
            target: target.to_owned(),
            path: "".into(),
            folder: "".into(),
        };
        assert!(is_quick(&binary("cache", "it")) && is_quick(&binary("fuse", "forebay_fuse")));
        assert!(!is_quick(&binary("fuse", "it")) && !is_quick(&binary("sim", "it")));
    }
}
