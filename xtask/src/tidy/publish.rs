//! The manifest of a crate that is to be published has what readers of a registry look for.
//!
//! That it can be packaged at all is a step of `cargo xtask test`.

use crate::tree::{Findings, Package, Tree};

const RULE: &str = "publish";
const REQUIRED: [&str; 7] =
    ["description", "license", "rust-version", "documentation", "readme", "keywords", "categories"];
/// The most keywords of a crate, and the most characters of one, that crates.io accepts.
const KEYWORDS: usize = 5;
const KEYWORD: usize = 20;

/// Whether a package is to be published.
pub(crate) fn is_published(package: &Package) -> bool {
    let about = package.manifest.get("package");
    let refused = Some(&toml::Value::Boolean(false));
    about.is_some_and(|about| about.get("publish") != refused)
}

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for package in tree.packages.iter().filter(|package| is_published(package)) {
        let about = package.manifest.get("package").and_then(toml::Value::as_table);
        let Some(about) = about else { continue };
        for key in REQUIRED.iter().filter(|key| !about.contains_key(**key)) {
            let message = format!("has no `{key}`: add it, or `publish = false`");
            out.error(RULE, &package.path, 0, message);
        }
        let keywords = about.get("keywords").and_then(toml::Value::as_array);
        let keywords = keywords.map(Vec::as_slice).unwrap_or_default();
        let long = |word: &toml::Value| word.as_str().is_none_or(|word| word.len() > KEYWORD);
        if keywords.len() > KEYWORDS || keywords.iter().any(long) {
            let message =
                format!("crates.io takes {KEYWORDS} keywords of {KEYWORD} characters at most");
            out.error(RULE, &package.path, 0, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const COMPLETE: &str = "[package]\nname = \"a\"\ndescription = \"A.\"\nlicense = \"MIT\"\n\
                            rust-version.workspace = true\ndocumentation = \"https://docs.rs/a\"\n\
                            readme = \"README.md\"\nkeywords = [\"cache\"]\n\
                            categories = [\"caching\"]\n";

    fn found(manifest: &str) -> usize {
        locations(check, &[("crates/a/Cargo.toml", manifest)]).len()
    }

    #[test]
    fn complete_manifests_pass() {
        assert_eq!(found(COMPLETE), 0);
    }

    #[test]
    fn missing_keys_are_found_unless_the_crate_is_not_published() {
        let bare = "[package]\nname = \"a\"\n";
        assert_eq!(found(bare), REQUIRED.len());
        assert_eq!(found(&format!("{bare}publish = false")), 0);
        assert_eq!(found(&format!("{bare}publish = true")), REQUIRED.len());
        assert_eq!(found(&format!("{bare}publish = [\"crates-io\"]")), REQUIRED.len());
    }

    #[test]
    fn too_many_or_too_long_keywords_are_found() {
        let with = |words: &str| COMPLETE.replace("\"cache\"", words);
        assert_eq!(found(&with("\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"")), 1);
        assert_eq!(found(&with("\"a-keyword-that-is-longer\"")), 1);
    }
}
