//! Retired names do not come back.
//!
//! [`LIST`] holds one identifier per line: names that the project replaced by the terms of the
//! field. None of them may occur as a whole identifier in Rust, Markdown, TOML, scripts or
//! workflows. The rule reads the whole text, so comments and strings count too.

use std::collections::BTreeSet;

use crate::tree::{Findings, Tree};

const RULE: &str = "retired";
const LIST: &str = "xtask/retired-names.txt";
const EXTENSIONS: [&str; 5] = [".rs", ".md", ".toml", ".yml", ".sh"];
/// Folders whose files are all read, because scripts have no extension.
const FOLDERS: [&str; 4] = ["scripts/", "packaging/", ".ci/", ".github/"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    let list = tree.texts.get(LIST).map_or("", String::as_str);
    let mut retired = BTreeSet::new();
    for (at, name) in list.lines().enumerate() {
        if !is_identifier(name) {
            let message = format!("`{name}` is not one identifier: write one on each line");
            out.error(RULE, LIST, at + 1, message);
        } else if !retired.insert(name) {
            out.error(RULE, LIST, at + 1, format!("`{name}` is listed twice: remove this line"));
        }
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_checked(path)) {
        for (at, line) in text.lines().enumerate() {
            for name in identifiers(line).filter(|name| retired.contains(name)) {
                let message = format!("`{name}` is retired: use the name that replaced it");
                out.error(RULE, path, at + 1, message);
            }
        }
    }
}

fn is_checked(path: &str) -> bool {
    EXTENSIONS.iter().any(|extension| path.ends_with(extension))
        || FOLDERS.iter().any(|folder| path.starts_with(folder))
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && identifiers(name).eq([name])
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const NAMES: (&str, &str) = (LIST, "retired_fn\nRetiredType\n");

    #[test]
    fn a_retired_name_is_found_in_code_prose_and_scripts() {
        let files = [
            NAMES,
            ("a.rs", "fn f() {\n    x.retired_fn();\n}"),
            ("b.rs", "// A RetiredType.\nconst A: &str = \"RetiredType\";"),
            ("docs/c.md", "See `cache::RetiredType`."),
            ("d.toml", "name = \"retired_fn\""),
            ("scripts/e", "echo retired_fn"),
            (".github/workflows/f.yml", "run: RetiredType"),
        ];
        assert_eq!(
            locations(check, &files),
            [
                ".github/workflows/f.yml:1",
                "a.rs:2",
                "b.rs:1",
                "b.rs:2",
                "d.toml:1",
                "docs/c.md:1",
                "scripts/e:1"
            ]
        );
    }

    #[test]
    fn longer_identifiers_and_other_files_pass() {
        let files = [
            NAMES,
            (
                "a.rs",
                "fn retired_fn_block(f: RetiredTypes) {} // retiredtype, retiredFn, un_retired_fn",
            ),
            ("data.csv", "retired_fn"),
        ];
        assert_eq!(locations(check, &files), [""; 0]);
        assert_eq!(locations(check, &[("a.rs", "fn retired_fn() {}")]), [""; 0], "without a list");
    }

    #[test]
    fn the_list_has_one_identifier_per_line() {
        let list = "a::b\n\ntwo words\n9lives\ngood\ngood\n";
        let expected = [1, 2, 3, 4, 6].map(|line| format!("{LIST}:{line}"));
        assert_eq!(locations(check, &[(LIST, list)]), expected);
    }
}
