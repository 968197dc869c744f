//! Files have a bounded length and start with their purpose.
//!
//! The length does not include test code. Files of tests are exempt.

use crate::tree::{Findings, Tree};

const RULE: &str = "modules";
/// A longer file is an error.
const REFUSED: usize = 1000;
/// A longer file is a warning.
const WARNED: usize = 700;

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in tree.sources.iter().filter(|source| !source.all_tests) {
        let lines = source.lines_without_tests();
        let message = format!("{lines} lines without its tests: split it by concept");
        if lines > REFUSED {
            out.error(RULE, &source.path, 0, message);
        } else if lines > WARNED {
            out.warn(RULE, &source.path, 0, message);
        }
        let opening = source.lines.iter().find(|line| !line.trim().is_empty());
        if !opening.is_some_and(|line| line.starts_with("//!") || line.starts_with("#![")) {
            let message =
                "the file must start with a `//!` comment that states its purpose".to_owned();
            out.error(RULE, &source.path, 1, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;
    use crate::tree::Level;

    fn levels(text: &str) -> Vec<Level> {
        let mut out = Findings::default();
        check(&Tree::fixture(&[("crates/cache/src/lib.rs", text)]), &mut out);
        out.all.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn long_files_are_warned_about_then_refused() {
        let file = |lines: usize| format!("//! Fixture.\n{}", "// line\n".repeat(lines - 1));
        assert_eq!(levels(&file(WARNED)), []);
        assert_eq!(levels(&file(WARNED + 1)), [Level::Warning]);
        assert_eq!(levels(&file(REFUSED)), [Level::Warning]);
        assert_eq!(levels(&file(REFUSED + 1)), [Level::Error]);
    }

    #[test]
    fn tests_do_not_count() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// line\n".repeat(REFUSED));
        assert_eq!(levels(&format!("//! Fixture.\n{tests}")), []);
        let long = "// line\n".repeat(2 * REFUSED);
        assert!(locations(check, &[("crates/cache/src/tests.rs", &long)]).is_empty());
    }

    #[test]
    fn a_file_starts_with_its_purpose() {
        assert_eq!(locations(check, &[("a/src/lib.rs", "fn f() {}")]), ["a/src/lib.rs:1"]);
        assert_eq!(levels("//! Fixture.\nfn f() {}"), []);
    }
}
