//! No notes about unfinished work, in comments of Rust and in the text of other files.
//!
//! A word between backticks is a mention, not a note. Clippy refuses placeholders and debug prints.

use crate::source::has_word;
use crate::tree::{Findings, Tree};

const RULE: &str = "leftovers";
const NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        for (at, comment) in source.comments.iter().enumerate() {
            note(&source.path, at + 1, comment, out);
        }
    }
    let prose = |path: &&String| !path.ends_with(".rs") && !path.ends_with(".lock");
    for path in tree.texts.keys().filter(prose) {
        for (at, line) in tree.texts[path].lines().enumerate() {
            note(path, at + 1, line, out);
        }
    }
}

fn note(path: &str, line: usize, text: &str, out: &mut Findings) {
    // Every second piece between backticks is quoted.
    let unquoted: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    for word in NOTES.iter().filter(|word| has_word(&unquoted, word)) {
        out.error(RULE, path, line, format!("`{word}` is left over: do it, or open an issue"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    #[test]
    fn notes_are_found_in_comments_and_prose() {
        let files = [
            ("a.rs", "// TODO: later\nfn f() {} /* FIXME */\n/// XXX\nfn g() {}"),
            ("docs/a.md", "fine\nTODO"),
        ];
        assert_eq!(locations(check, &files), ["a.rs:1", "a.rs:2", "a.rs:3", "docs/a.md:2"]);
    }

    #[test]
    fn mentions_pass() {
        let files = [
            ("a.rs", "/// Refuses `TODO`.\nconst A: &str = \"TODO\";\nfn todo() {}"),
            ("a.md", "no `FIXME`, no XXXL"),
        ];
        assert_eq!(locations(check, &files), [""; 0]);
    }
}
