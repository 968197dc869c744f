//! `cargo xtask test` and `cargo xtask model`: which steps there are, in which order.
//!
//! Cheap steps come first. Cargo features are looked up in the manifests: a crate that gains
//! `counting` or `peers` is checked with it from then on, without a change here.
//!
//! `--full` changes no step's code path, only how long it searches: tests read `FOREBAY_FULL`,
//! property tests `PROPTEST_CASES`.

use std::io;
use std::path::Path;

use crate::runner::{self, Step};
use crate::tree::{Package, Tree};

/// Set to `1` for long runs; tests and model checks multiply their iterations by what they like.
const FULL: &str = "FOREBAY_FULL";
/// Cases a property test tries in a long run.
const FULL_CASES: &str = "4096";
/// Set to `1`, it makes the tests of `forebay-io` have the kernel refuse io_uring to them.
const REFUSE_IO_URING: &str = "FOREBAY_TEST_REFUSE_IO_URING";
/// How a crate declares model checks that look inside it, on lines of their own.
const MODEL_INSIDE: [&str; 2] = ["#[cfg(all(test, forebay_model))]", "mod model;"];

/// Runs everything that a change must pass.
pub(crate) fn run(root: &Path, full: bool) -> io::Result<bool> {
    let tree = Tree::load(root)?;
    runner::run(root, &steps(&tree, full))
}

/// Runs the model checks alone.
pub(crate) fn model(root: &Path, full: bool) -> io::Result<bool> {
    let tree = Tree::load(root)?;
    let steps = model_steps(&tree, full);
    if steps.is_empty() {
        let [when, module] = MODEL_INSIDE;
        println!("no crate has a `tests/model/main.rs` or declares `{when} {module}`");
    }
    runner::run(root, &steps)
}

/// Runs `forebay-soak`, optimised, with these arguments.
pub(crate) fn soak(root: &Path, arguments: &[&str]) -> io::Result<bool> {
    let command = "run --release -p forebay-sim --bin forebay-soak --";
    let mut step = Step::new("soak", command);
    step.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    runner::run(root, &[step])
}

fn steps(tree: &Tree, full: bool) -> Vec<Step> {
    let mut steps = vec![
        Step::new("format", "fmt --all --check"),
        Step::new("tidy", "xtask tidy"),
        Step::new("clippy", "clippy --workspace --all-targets -- -D warnings"),
    ];
    for feature in ["counting", "bench_internals", "peers", "fuzzing"] {
        if let Some((features, _)) = with_feature(tree, feature) {
            let command =
                format!("clippy --workspace --all-targets --features {features} -- -D warnings");
            steps.push(Step::new(&format!("clippy with {feature}"), &command));
        }
    }
    steps.push(
        Step::new("documentation", "doc --workspace --no-deps").with("RUSTDOCFLAGS", "-D warnings"),
    );
    let tests = Step::new("tests", "test --workspace --lib --bins --tests --examples");
    steps.push(long(tests.needs_tests(), full));
    steps.push(long(Step::new("tests of documentation", "test --workspace --doc"), full));
    if let Some((features, packages)) = with_feature(tree, "counting") {
        let command = format!("test {packages} --lib --tests --features {features}");
        steps.push(long(Step::new("tests with counting", &command).needs_tests(), full));
    }
    if has_package(tree, "forebay-io") {
        let step =
            Step::new("tests of forebay-io without io_uring", "test -p forebay-io --lib --tests");
        steps.push(long(step.needs_tests().with(REFUSE_IO_URING, "1"), full));
    }
    steps.extend(model_steps(tree, full));
    if has_package(tree, "forebay-bench") {
        let smoke = Step::new("benches, run small", "run --release -p forebay-bench -- smoke");
        steps.push(long(smoke, full));
    }
    if has_package(tree, "forebay-cli") && has_package(tree, "forebay-fuse") {
        let command = if full { "xtask conformance --full" } else { "xtask conformance" };
        steps.push(Step::new("conformance on a real mount", command));
    }
    steps
}

/// The model checks: their own build folder, since the flag rebuilds every crate. Optimised, since
/// they try many schedules, but with the assertions that tests rely on.
fn model_steps(tree: &Tree, full: bool) -> Vec<Step> {
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let step = |what: &str, name: &str, tests: &str| {
        let step =
            Step::new(&format!("{what} {name}"), &format!("test -p {name} --release {tests}"))
                .with("RUSTFLAGS", "--cfg forebay_model")
                .with("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
                .with("CARGO_TARGET_DIR", format!("{folder}/model"));
        long(step.needs_tests(), full)
    };
    let mut steps = Vec::new();
    for package in &tree.packages {
        if has_model_inside(tree, package) {
            // The other tests of the crate may start threads and locks outside of the checker.
            steps.push(step("model checks inside", &package.name, "--lib -- model::"));
        }
        if tree.texts.contains_key(&package.path.replace("Cargo.toml", "tests/model/main.rs")) {
            steps.push(step("model checks of", &package.name, "--test model"));
        }
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

fn has_package(tree: &Tree, name: &str) -> bool {
    tree.packages.iter().any(|package| package.name == name)
}

fn long(step: Step, full: bool) -> Step {
    if full { step.with(FULL, "1").with("PROPTEST_CASES", FULL_CASES) } else { step }
}

/// For all packages that have the feature: the value of `--features`, and the `-p` options.
fn with_feature(tree: &Tree, feature: &str) -> Option<(String, String)> {
    let names: Vec<&str> = tree
        .packages
        .iter()
        .filter(|package| package.has_feature(feature))
        .map(|package| package.name.as_str())
        .collect();
    let features: Vec<String> = names.iter().map(|name| format!("{name}/{feature}")).collect();
    let packages: Vec<String> = names.iter().map(|name| format!("-p {name}")).collect();
    (!names.is_empty()).then(|| (features.join(","), packages.join(" ")))
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

    fn lines(tree: &Tree, full: bool) -> Vec<String> {
        steps(tree, full).iter().map(Step::command_line).collect()
    }

    #[test]
    fn features_and_models_make_steps_where_they_exist() {
        let none = lines(&Tree::fixture(&[]), false);
        assert!(!none.iter().any(|line| line.contains("features") || line.contains("model")));
        let model = ("crates/cache/tests/model/main.rs", "//! Models.");
        let some = lines(&Tree::fixture(&[BASE, CACHE, model]), false);
        assert!(
            some.contains(
                &"cargo test -p forebay-base -p forebay-cache --lib --tests --features \
              forebay-base/counting,forebay-cache/counting"
                    .to_owned()
            )
        );
        let models: Vec<_> = some.iter().filter(|line| line.contains("forebay_model")).collect();
        assert_eq!(models.len(), 1, "{models:?}");
        assert!(models[0].contains("-p forebay-cache --release --test model"));
        assert!(models[0].contains("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true"));
    }

    #[test]
    fn models_inside_a_crate_are_found_by_their_declaration() {
        let text = "mod a;\n#[cfg(all(test, forebay_model))]\nmod model;\n#[cfg(forebay_model)]";
        let declared =
            lines(&Tree::fixture(&[BASE, ("crates/base/src/arena/mod.rs", text)]), false);
        let step = "cargo test -p forebay-base --release --lib -- model::";
        assert!(declared.iter().any(|line| line.ends_with(step)), "{declared:?}");
        // What tests of another target use is no test of the crate.
        let text = "#[cfg(forebay_model)]\npub mod model;";
        let helper = lines(&Tree::fixture(&[CACHE, ("crates/cache/src/lib.rs", text)]), false);
        assert!(!helper.iter().any(|line| line.contains("model::")), "{helper:?}");
    }

    #[test]
    fn io_is_tested_without_io_uring_too() {
        let io = ("crates/io/Cargo.toml", "[package]\nname = \"forebay-io\"");
        let found = lines(&Tree::fixture(&[io]), false);
        let step = "FOREBAY_TEST_REFUSE_IO_URING=1 cargo test -p forebay-io --lib --tests";
        assert!(found.iter().any(|line| line == step), "{found:?}");
        assert!(!lines(&Tree::fixture(&[BASE]), false).iter().any(|line| line.contains("URING")));
    }

    #[test]
    fn a_mount_is_tried_with_tools_of_others() {
        let cli = ("crates/cli/Cargo.toml", "[package]\nname = \"forebay-cli\"");
        let fuse = ("crates/fuse/Cargo.toml", "[package]\nname = \"forebay-fuse\"");
        let found = lines(&Tree::fixture(&[cli, fuse]), true);
        assert_eq!(found.last().map(String::as_str), Some("cargo xtask conformance --full"));
        assert!(
            !lines(&Tree::fixture(&[fuse]), false).iter().any(|line| line.contains("conformance"))
        );
    }

    #[test]
    fn long_runs_say_so_to_tests() {
        let tree = Tree::fixture(&[BASE]);
        assert!(!lines(&tree, false).iter().any(|line| line.contains(FULL)));
        let tests = |line: &&String| line.contains("cargo test");
        assert!(lines(&tree, true).iter().filter(tests).all(|line| line.contains(FULL)));
    }
}
