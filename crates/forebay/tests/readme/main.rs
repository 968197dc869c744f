//! Runs the examples of README.md. Each is a file here that must equal the text in README.md.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "examples are of programs, which need no shim"
)]

/// One example as a module, with a way to run it.
macro_rules! example {
    ($name:ident, $file:literal) => {
        mod $name {
            include!($file);

            pub(super) const TEXT: &str = include_str!($file);

            pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
                main()
            }
        }
    };
}

example!(cache, "cache.rs");
example!(hybrid, "hybrid.rs");

type Run = fn() -> Result<(), Box<dyn std::error::Error>>;

/// In the order of README.md.
const EXAMPLES: [(&str, &str, Run); 2] =
    [("cache.rs", cache::TEXT, cache::run), ("hybrid.rs", hybrid::TEXT, hybrid::run)];

#[test]
fn the_examples_of_the_readme_are_these() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(path).expect("README.md of the repository");
    let blocks: Vec<&str> = readme
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert_eq!(blocks.len(), EXAMPLES.len(), "README.md has examples that do not run here");
    for (block, (file, text, _)) in blocks.into_iter().zip(EXAMPLES) {
        assert_eq!(
            block, text,
            "README.md shows another example than crates/forebay/tests/readme/{file}"
        );
    }
}

/// The only test that looks at the working directory, which is the process's.
#[test]
fn the_examples_of_the_readme_run() {
    for (file, _, run) in EXAMPLES {
        println!("{file}");
        let folder = tempfile::tempdir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        run().unwrap_or_else(|error| panic!("{file}: {error}"));
        // The temporary folder is removed from outside of it.
        std::env::set_current_dir("/").unwrap();
    }
}
