//! Files have a bounded length and start with their purpose, in a head of bounded length.
//!
//! The length does not include test code. Files of tests are exempt, and so are the heads of
//! crates, which show examples.

use crate::tree::{Findings, Tree};

const RULE: &str = "modules";
/// A longer file is an error.
const REFUSED: usize = 1000;
/// A longer file is a warning.
const WARNED: usize = 700;
/// A longer head is an error: what explains an item stands there, what explains more in `docs/`.
const HEAD_MAX: usize = 25;

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
        let head = head_lines(&source.lines);
        if head > HEAD_MAX && !source.path.ends_with("/lib.rs") {
            let message = format!(
                "the `//!` head has {head} lines, more than {HEAD_MAX}: move parts to their items"
            );
            out.error(RULE, &source.path, 1, message);
        }
    }
}

/// Number of lines of the first `//!` comment.
fn head_lines(lines: &[String]) -> usize {
    let is_head = |line: &&String| line.starts_with("//!");
    lines.iter().skip_while(|line| !is_head(line)).take_while(is_head).count()
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
    fn long_heads_are_refused() {
        let head =
            |lines: usize| format!("#![allow(x)]\n{}fn f() {{}}\n", "//! Line.\n".repeat(lines));
        let of = |path, text: &str| locations(check, &[(path, text)]);
        assert_eq!(of("crates/cache/src/a.rs", &head(HEAD_MAX)), [""; 0]);
        assert_eq!(of("crates/cache/src/a.rs", &head(HEAD_MAX + 1)), ["crates/cache/src/a.rs:1"]);
        assert_eq!(of("crates/cache/src/lib.rs", &head(HEAD_MAX + 1)), [""; 0]);
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
