//! The tests that `docs/durability.md` names exist.
//!
//! Names stand in code spans: those that end in `…`, which are beginnings of names, and all in the
//! first column of the table below the heading "Tests". Each must be a function or a module.

use std::collections::BTreeSet;

use crate::tree::{Findings, Tree};

const RULE: &str = "named-tests";
const PAGE: &str = "docs/durability.md";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    let Some(page) = tree.texts.get(PAGE) else { return };
    let sources = tree.texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let defined: BTreeSet<&str> = sources.flat_map(|(_, text)| definitions(text)).collect();
    let mut in_table = false;
    for (at, line) in page.lines().enumerate() {
        if line.starts_with('#') {
            in_table = line == "## Tests";
        }
        let first_column = line.split('|').nth(1).filter(|_| in_table).unwrap_or("");
        for span in spans(line) {
            let (name, begins) = span.strip_suffix('…').map_or((span, false), |name| (name, true));
            let listed = begins || spans(first_column).any(|other| other == span);
            let exists = match begins {
                true => defined.range(name..).next().is_some_and(|found| found.starts_with(name)),
                false => defined.contains(name),
            };
            if listed && is_name(name) && !exists {
                let message = format!("there is no test `{span}`: name the one that replaced it");
                out.error(RULE, PAGE, at + 1, message);
            }
        }
    }
}

/// The names that follow `fn` or `mod`, also in macros.
fn definitions(text: &str) -> impl Iterator<Item = &str> {
    let after = |keyword| text.split(keyword).skip(1);
    let rest = after("fn ").chain(after("mod "));
    rest.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""))
}

fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const SOURCE: (&str, &str) = ("a/tests/it/crash.rs", "mod ace;\nfn a_file_survives() {}\n");

    #[test]
    fn names_of_tests_pass() {
        let text = "`a_file…`, `st_blocks`\n## Tests\n| `ace`: `a_file_…`, `a_file_survives` | \
                    `crates/fs` |\n| `synchronous = FULL` | `other` |\n";
        assert_eq!(locations(check, &[SOURCE, (PAGE, text)]), [""; 0]);
    }

    #[test]
    fn names_without_a_test_are_found() {
        let text = "`a_name…`\n## Tests\n| `a_file_surv` | x |\n| `b` | x |\n## Next\n`c`\n";
        let expected = [1, 3, 4].map(|line| format!("{PAGE}:{line}"));
        assert_eq!(locations(check, &[SOURCE, (PAGE, text)]), expected);
    }
}
