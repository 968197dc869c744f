//! The steps of each tier.
//!
//! The quick tiers need two builds: clippy, with all compatible features but `peers`, and the tests
//! of the workspace. The counting build and the model checks need builds of their own, and build
//! only the tests that they run.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::cargo;
use super::step::{Binary, Step};
use crate::tidy::publish::is_published;
use crate::tree::{Package, Tree};

/// The targets of the build of the tests: always the whole workspace. With fewer packages, cargo
/// would select other features of dependencies and rebuild them. An example with `harness = false`
/// is built with its own `main`, which the step runs as one test.
pub(crate) const WORKSPACE: &str = "--workspace --lib --bins --tests --examples";

/// Features that clippy checks in one build.
const FEATURES: [&str; 3] = ["counting", "bench_internals", "fuzzing"];
/// The feature of the benches with other caches and stores. Only [`full`] checks it, because it
/// adds forty crates, one of them in C, that no test builds.
const PEERS: &str = "peers";
/// With the value `1`, the tests of `forebay-io` run as if the kernel refused io_uring.
const REFUSE_IO_URING: &str = "FOREBAY_TEST_REFUSE_IO_URING";
/// The declaration, on two lines, of model checks that need private items of a crate.
const MODEL_MODULE: [&str; 2] = ["#[cfg(all(test, forebay_model))]", "mod model;"];

/// The steps to run before each commit: formatting, house rules, clippy, and the tests that neither
/// mount nor simulate devices.
pub(crate) fn check() -> Vec<Step> {
    let mut steps = static_checks(&FEATURES);
    steps.push(Step::tests("unit and property tests", WORKSPACE, is_quick));
    steps
}

/// Everything that a change must pass.
pub(crate) fn test(tree: &Tree) -> Vec<Step> {
    let mut steps = static_checks(&FEATURES);
    let (tests, models) = (Step::tests("tests", WORKSPACE, |_| true), model(tree));
    steps.extend(tests.build_only());
    // The tests leave a CPU idle for a quarter of their time.
    steps.extend(models.iter().filter_map(Step::build_beside));
    // It has cargo's lock on the build, for which later steps would wait. The tests need no lock.
    steps.push(documentation("--jobs 1").beside());
    steps.push(tests);
    // The build of the tests also built this binary.
    let binary = target().join("debug/forebay");
    let conformance = Step::xtask("conformance on a real mount", "conformance");
    steps.push(conformance.with("FOREBAY_BINARY", binary.to_string_lossy()).beside());
    steps.push(without_io_uring());
    steps.push(Step::run("tests of documentation", "test --workspace --doc"));
    steps.push(package(tree));
    steps.extend(counting(tree));
    steps.extend(models);
    steps
}

/// Cargo's output folder.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// The steps of [`test()`] in their long form, and steps that take minutes.
pub(crate) fn full(tree: &Tree) -> Vec<Step> {
    let mut steps = static_checks(&[&FEATURES[..], &[PEERS]].concat());
    steps.extend([deny(), advisories(), package(tree), documentation("")]);
    steps.push(Step::tests("tests", WORKSPACE, |_| true).long());
    steps.push(without_io_uring().long());
    steps.push(Step::run("tests of documentation", "test --workspace --doc").long());
    steps.extend(counting(tree).map(Step::long));
    steps.extend(model(tree).into_iter().map(Step::long));
    let smoke = "run --release -p forebay-bench --features peers -- smoke";
    steps.push(Step::run("benches, optimised, run small", smoke));
    steps.push(Step::xtask("conformance on a real mount", "conformance --full"));
    steps.push(Step::xtask("Python package", "python"));
    steps.push(soak(&["--minutes", "10", "--l2"]));
    steps.push(soak(&["--minutes", "10", "--mirror"]));
    // Five minutes of importing images, and one of reading traces.
    steps.push(fuzz("import", "-len_control=0 -max_len=200 -max_total_time=300"));
    steps.push(fuzz("trace", "-max_len=4000 -max_total_time=60"));
    steps.push(fuzz("object", "-max_len=12000 -max_total_time=60"));
    steps.extend([miri(), thread_sanitizer()]);
    steps
}

/// Steps that check the sources, with these features, and run no test.
fn static_checks(features: &[&str]) -> Vec<Step> {
    let targets = "--workspace --all-targets --features";
    let clippy = format!("clippy {targets} {} -- -D warnings", features.join(","));
    vec![
        Step::cargo("format", "fmt --all --check"),
        Step::xtask("tidy", "tidy"),
        Step::cargo("clippy", &clippy),
        Step::cargo(
            "forebay-cache without insight",
            "check -p forebay-cache --no-default-features",
        ),
    ]
}

/// Whether a binary has unit tests, or integration tests that neither mount nor simulate.
fn is_quick(binary: &Binary) -> bool {
    let slow = ["bench", "cli", "fs", "fuse", "sim"];
    binary.target != "it" || !slow.contains(&binary.package.as_str())
}

/// The documentation of our crates, without a broken link. `options` are cargo's.
fn documentation(options: &str) -> Step {
    let command = format!("doc --workspace --no-deps {options}");
    Step::cargo("documentation", &command).with("RUSTDOCFLAGS", "-D warnings")
}

fn without_io_uring() -> Step {
    let is_io = |binary: &Binary| binary.package == "io";
    Step::tests("tests of io without io_uring", WORKSPACE, is_io).with(REFUSE_IO_URING, "1")
}

/// The tests that count locks and compare-and-swaps, in the counting build.
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
    // They count, and are quick in any build. So the crates that the features rebuild are not
    // optimised, which takes half of the time.
    let unoptimised: Vec<String> = ["base", "cache", "io", "l2", "pool"]
        .map(|name| format!("--config profile.dev.package.forebay-{name}.opt-level=0"))
        .into();
    let build = format!(
        "{} --workspace --test counting --features {}",
        unoptimised.join(" "),
        features.join(",")
    );
    (!features.is_empty()).then(|| Step::tests("tests with counting", &build, |_| true))
}

/// The model checks. The profile `model` optimises them, because they try many schedules, and keeps
/// assertions. The flag rebuilds every crate, so the build has a target folder of its own.
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
    let integration = with(&|package| {
        tree.texts.contains_key(&package.path.replace("Cargo.toml", "tests/model/main.rs"))
    });
    let unit = with(&|package| has_model_module(tree, package));
    let mut steps = Vec::new();
    if !unit.is_empty() {
        // Other unit tests of the crate may use threads and locks outside the model checker.
        let step = step("model checks inside crates", format!("{unit} --lib"));
        steps.push(step.argument("model::"));
    }
    if !integration.is_empty() {
        steps.push(step("model checks of crates", format!("{integration} --test model")));
    }
    steps
}

fn has_model_module(tree: &Tree, package: &Package) -> bool {
    let folder = package.path.replace("Cargo.toml", "src/");
    let declares = |text: &str| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.windows(2).any(|two| two == MODEL_MODULE)
    };
    tree.texts
        .iter()
        .any(|(path, text)| path.starts_with(&folder) && path.ends_with(".rs") && declares(text))
}

/// Random operations and faults on pools, in a release build.
pub(crate) fn soak(arguments: &[&str]) -> Step {
    let arguments = arguments.join(" ");
    let command = format!("run --release -p forebay-sim --bin forebay-soak -- {arguments}");
    Step::run("soak", &command)
}

/// Fuzzes a target.
fn fuzz(target: &str, options: &str) -> Step {
    let command = format!("+nightly fuzz run {target} --features fuzzer -- {options}");
    Step::run(&format!("fuzzing of {target}"), &command).needs("cargo-fuzz", || {
        subcommand_exists(&["+nightly", "fuzz", "--version"])
            .map_err(|why| format!("{why}; `cargo install cargo-fuzz` and a nightly toolchain"))
    })
}

/// Licences, duplicates and sources of dependencies, as `deny.toml` allows them.
fn deny() -> Step {
    let step = Step::run("licences of dependencies", "deny check licenses bans sources");
    step.needs("cargo-deny", || {
        subcommand_exists(&["deny", "--version"])
            .map_err(|why| format!("{why}; `cargo install cargo-deny`"))
    })
}

/// Packages the crates that are to be published, together, without building the packages.
fn package(tree: &Tree) -> Step {
    let names = tree.packages.iter().filter(|package| is_published(package));
    let names: Vec<String> = names.map(|package| format!("-p {}", package.name)).collect();
    let command = format!("package --offline --no-verify --allow-dirty {}", names.join(" "));
    Step::run("packages of the published crates", &command)
}

/// Known vulnerabilities of dependencies, from a database that is downloaded.
fn advisories() -> Step {
    let step = Step::run("advisories on dependencies", "deny check advisories");
    step.needs("advisory-db", || {
        subcommand_exists(&["deny", "fetch", "db"])
            .map_err(|why| format!("{why}; needs cargo-deny, network"))
    })
}

/// Undefined behaviour in code with `unsafe` that needs no device.
fn miri() -> Step {
    let command = "+nightly miri test -p forebay-base -p forebay-cache -p forebay-l2 --lib -- \
                   arena:: index:: header:: slab:: lists::";
    let step = Step::run("Miri on base, cache and the index of l2", command);
    step.with("MIRIFLAGS", "-Zmiri-disable-isolation").needs("miri", || {
        subcommand_exists(&["+nightly", "miri", "--version"])
            .map_err(|why| format!("{why}; `rustup +nightly component add miri rust-src`"))
    })
}

/// Data races in stress tests.
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

/// Succeeds if cargo has a subcommand; the error is the reason otherwise.
fn subcommand_exists(arguments: &[&str]) -> Result<(), String> {
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
    fn crates_that_are_not_published_are_not_packaged() {
        let xtask = ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\npublish = false");
        let line = package(&Tree::fixture(&[BASE, CACHE, xtask])).command_line();
        assert!(line.ends_with("-p forebay-base -p forebay-cache"), "{line}");
    }

    #[test]
    fn counting_and_models_make_steps_where_they_exist() {
        let none = lines(&test(&Tree::fixture(&[BASE, CACHE])));
        assert!(!none.iter().any(|line| line.contains("test counting") || line.contains("model")));
        let counting = ("crates/cache/tests/counting.rs", "//! Counts.");
        let model = ("crates/cache/tests/model/main.rs", "//! Models.");
        let some = lines(&test(&Tree::fixture(&[BASE, CACHE, counting, model])));
        let counting = "--workspace --test counting --features forebay-cache/counting";
        assert!(some.iter().any(|line| line.ends_with(counting)), "{some:?}");
        let runs = |line: &&String| line.contains("forebay_model") && !line.contains("--no-run");
        let models: Vec<_> = some.iter().filter(runs).collect();
        assert_eq!(models.len(), 1, "{models:?}");
        assert!(models[0].ends_with("--profile model -p forebay-cache --test model"));
    }

    #[test]
    fn model_checks_and_documentation_are_built_while_the_tests_run() {
        let model = ("crates/cache/tests/model/main.rs", "//! Models.");
        let steps = test(&Tree::fixture(&[BASE, CACHE, model]));
        let at = |name: &str| steps.iter().position(|step| step.name == name).expect(name);
        let (build, run) = (at("build of model checks of crates"), at("model checks of crates"));
        // After the build of the tests, so that it runs beside the tests and not beside that.
        assert!(at("build of tests") < build && build < at("tests") && at("tests") < run);
        assert!(steps[build].is_beside && !steps[run].is_beside);
        let line = steps[run].command_line();
        assert_eq!(steps[build].command_line(), format!("{line} --no-run --jobs 1"));
        let documentation = at("documentation");
        assert!(at("build of tests") < documentation && documentation < at("tests"));
        assert!(steps[documentation].is_beside);
        assert!(steps[documentation].command_line().ends_with("--no-deps --jobs 1"));
    }

    #[test]
    fn models_inside_a_crate_are_found_by_their_declaration() {
        let text = "mod a;\n#[cfg(all(test, forebay_model))]\nmod model;\n#[cfg(forebay_model)]";
        let unit = Tree::fixture(&[BASE, ("crates/base/src/arena/mod.rs", text)]);
        let step = "--profile model -p forebay-base --lib -- model::";
        let found = lines(&model(&unit));
        assert!(found.iter().any(|line| line.ends_with(step)), "{found:?}");
        // A module that only other targets use has no unit tests.
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
    fn only_long_runs_check_the_benches_with_peers() {
        let tree = Tree::fixture(&[BASE]);
        let clippy = |steps: &[Step]| {
            let lines = lines(steps).into_iter();
            lines.filter(|line| line.contains("cargo clippy")).collect::<Vec<_>>()
        };
        let (quick, short, full) = (clippy(&check()), clippy(&test(&tree)), clippy(&full(&tree)));
        // One build of clippy for the quick tiers.
        assert!(quick == short && quick.len() == 1 && !quick[0].contains("peers"), "{quick:?}");
        assert!(full.len() == 1 && full[0].contains("bench_internals"), "{full:?}");
        assert!(full[0].contains("peers"), "{full:?}");
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
