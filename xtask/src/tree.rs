//! The files of the workspace, as the checks of `tidy` see them.
//!
//! A [`Tree`] is built once, from disk or from a fixture of a test, and then only read. A check is
//! a function from a tree to [`Findings`] and does no I/O.
//!
//! It does not use git, so a tarball without history is checked the same way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::{fs, io};

use crate::source::Source;

/// Whether a finding fails `tidy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Warning,
    Error,
}

/// A message of a check about one line or file.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) rule: &'static str,
    pub(crate) path: String,
    /// Starts at 1; 0 means the whole file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

/// The findings of all checks, in the order of the checks.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) all: Vec<Finding>,
}

impl Findings {
    /// Adds a finding that fails the run.
    pub(crate) fn error(&mut self, rule: &'static str, path: &str, line: usize, message: String) {
        self.push(Level::Error, rule, path, line, message);
    }

    /// Adds a finding that is only printed.
    pub(crate) fn warn(&mut self, rule: &'static str, path: &str, line: usize, message: String) {
        self.push(Level::Warning, rule, path, line, message);
    }

    /// Number of findings that fail the run.
    pub(crate) fn errors(&self) -> usize {
        self.all.iter().filter(|f| f.level == Level::Error).count()
    }

    fn push(&mut self, level: Level, rule: &'static str, path: &str, line: usize, message: String) {
        self.all.push(Finding { level, rule, path: path.to_owned(), line, message });
    }
}

/// A package of the workspace.
pub(crate) struct Package {
    /// Path of its `Cargo.toml`.
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) manifest: toml::Table,
}

/// All files that the checks read.
pub(crate) struct Tree {
    /// Text of every UTF-8 file, by its path relative to the workspace.
    pub(crate) texts: BTreeMap<String, String>,
    /// Every file and folder, text or not: the valid targets of links.
    pub(crate) paths: BTreeSet<String>,
    /// The Rust files, parsed. Only a tree [with sources](Self::load_with_sources) has them.
    pub(crate) sources: Vec<Source>,
    pub(crate) packages: Vec<Package>,
    /// Files that do not parse: path, line, message.
    pub(crate) parse_errors: Vec<(String, usize, String)>,
}

/// Folders that the project does not own.
const SKIPPED: [&str; 6] =
    [".git", "target", "node_modules", "fuzz/artifacts", "fuzz/corpus", "python/target"];

impl Tree {
    /// Reads everything below `root` except build output and `.git`, and parses the Rust files,
    /// which takes seconds.
    pub(crate) fn load_with_sources(root: &Path) -> io::Result<Tree> {
        Ok(Tree::load(root)?.with_sources())
    }

    /// Reads everything below `root` except build output and `.git`. Parses manifests only.
    pub(crate) fn load(root: &Path) -> io::Result<Tree> {
        let mut texts = BTreeMap::new();
        let mut paths = BTreeSet::new();
        let mut folders = VecDeque::from([root.to_path_buf()]);
        while let Some(folder) = folders.pop_front() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                let relative = path.strip_prefix(root).unwrap_or(&path);
                let relative = relative.to_string_lossy().replace('\\', "/");
                if SKIPPED.contains(&relative.as_str()) || path.is_symlink() {
                    continue;
                }
                paths.insert(relative.clone());
                if path.is_dir() {
                    folders.push_back(path);
                } else if let Ok(text) = String::from_utf8(fs::read(&path)?) {
                    texts.insert(relative, text);
                }
            }
        }
        Ok(Tree::with_packages(texts, paths))
    }

    /// A tree from literals, for the tests of the checks.
    #[cfg(test)]
    pub(crate) fn fixture(files: &[(&str, &str)]) -> Tree {
        let texts: BTreeMap<_, _> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let with_folders = texts.keys().flat_map(|path| Path::new(path).ancestors());
        let paths = with_folders.map(|path| path.to_string_lossy().into_owned()).collect();
        Tree::with_packages(texts, paths).with_sources()
    }

    fn with_packages(texts: BTreeMap<String, String>, paths: BTreeSet<String>) -> Tree {
        let mut tree =
            Tree { texts, paths, sources: vec![], packages: vec![], parse_errors: vec![] };
        let is_manifest = |path: &str| path == "Cargo.toml" || path.ends_with("/Cargo.toml");
        for (path, text) in tree.texts.iter().filter(|(path, _)| is_manifest(path)) {
            match text.parse::<toml::Table>() {
                Ok(manifest) => tree.packages.extend(package(path, manifest)),
                Err(why) => tree.parse_errors.push((path.clone(), 0, why.message().to_owned())),
            }
        }
        tree
    }

    fn with_sources(mut self) -> Tree {
        for (path, text) in self.texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => self.sources.push(source),
                Err((line, why)) => self.parse_errors.push((path.clone(), line, why)),
            }
        }
        self.mark_test_modules();
        self
    }

    /// Marks files of modules that are declared with `#[cfg(test)] mod name;` as test code.
    fn mark_test_modules(&mut self) {
        let mut homes: Vec<String> = Vec::new();
        for source in &self.sources {
            homes.extend(
                source.test_modules.iter().flat_map(|name| module_homes(&source.path, name)),
            );
        }
        for source in &mut self.sources {
            let inside = |home: &String| {
                source.path == format!("{home}.rs") || source.path.starts_with(&format!("{home}/"))
            };
            if homes.iter().any(inside) {
                source.all_tests = true;
            }
        }
    }

    /// The package whose folder holds `path`; the innermost one, if packages nest.
    pub(crate) fn package_of(&self, path: &str) -> Option<&Package> {
        self.packages
            .iter()
            .filter(|package| path.starts_with(package.path.trim_end_matches("Cargo.toml")))
            .max_by_key(|package| package.path.len())
    }
}

fn package(path: &str, manifest: toml::Table) -> Option<Package> {
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    Some(Package { path: path.to_owned(), name, manifest })
}

/// Possible paths, without `.rs`, of the module that `mod name;` in the file `path` declares.
fn module_homes(path: &str, name: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "lib.rs" | "main.rs" | "mod.rs" => vec![format!("{folder}/{name}")],
        _ => vec![format!("{folder}/{}/{name}", file.trim_end_matches(".rs"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_declared_for_tests_only_is_test_code() {
        let tree = Tree::fixture(&[
            ("crates/a/src/lib.rs", "mod list;"),
            ("crates/a/src/list.rs", "#[cfg(test)] mod naive;"),
            ("crates/a/src/list/naive.rs", "fn f() {}"),
            ("crates/a/src/naive.rs", "fn f() {}"),
        ]);
        let tests: Vec<_> =
            tree.sources.iter().filter(|s| s.all_tests).map(|s| s.path.as_str()).collect();
        assert_eq!(tests, ["crates/a/src/list/naive.rs"]);
    }

    #[test]
    fn files_that_do_not_parse_are_reported_with_their_line() {
        let tree = Tree::fixture(&[("a.rs", "fn f() {}\nfn {"), ("Cargo.toml", "[")]);
        assert_eq!(tree.parse_errors.len(), 2);
        assert!(tree.sources.is_empty());
    }
}
