//! `cargo xtask tidy`: the house rules that neither the compiler nor clippy can check.
//!
//! Each rule is a function from the [`Tree`] to [`Findings`], in a file of its own with tests on
//! small fixtures. Rules read text and syntax only, so a run takes a second.
//!
//! A rule that can be wrong for a good reason accepts an exception in place: a comment "tidy: name
//! of the rule, because reason". The head of such a rule says so.

mod code_paths;
mod columns;
mod format_types;
mod layers;
mod leftovers;
mod links;
mod locks;
mod modules;
mod named_tests;
pub(crate) mod publish;
mod retired;
mod shim;
mod unsafety;
mod wording;

use std::io;
use std::path::Path;

use crate::tree::{Findings, Level, Tree};

/// Checks the workspace at `root` and prints the findings. Returns whether there is no error.
pub(crate) fn run(root: &Path) -> io::Result<bool> {
    let tree = Tree::load_with_sources(root)?;
    let mut out = Findings::default();
    check(&tree, &mut out);
    for finding in &out.all {
        let level = match finding.level {
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let (path, line, rule) = (&finding.path, finding.line, finding.rule);
        println!("{path}:{line}: {level}: {} [{rule}]", finding.message);
    }
    let (errors, warnings) = (out.errors(), out.all.len() - out.errors());
    println!(
        "tidy: {} Rust files, {} files in all: {errors} errors, {warnings} warnings",
        tree.sources.len(),
        tree.texts.len(),
    );
    Ok(errors == 0)
}

fn check(tree: &Tree, out: &mut Findings) {
    for (path, line, why) in &tree.parse_errors {
        out.error("parse", path, *line, format!("cannot be parsed: {why}"));
    }
    layers::check(tree, out);
    modules::check(tree, out);
    unsafety::check(tree, out);
    format_types::check(tree, out);
    leftovers::check(tree, out);
    shim::check(tree, out);
    wording::check(tree, out);
    links::check(tree, out);
    named_tests::check(tree, out);
    locks::check(tree, out);
    code_paths::check(tree, out);
    columns::check(tree, out);
    retired::check(tree, out);
    publish::check(tree, out);
}

/// The findings of a rule on a fixture, as `path:line`. For the tests of the rules.
#[cfg(test)]
fn locations(rule: fn(&Tree, &mut Findings), files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::fixture(files);
    assert!(tree.parse_errors.is_empty(), "a fixture does not parse: {:?}", tree.parse_errors);
    let mut out = Findings::default();
    rule(&tree, &mut out);
    out.all.iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
}
