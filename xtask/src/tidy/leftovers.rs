//! Nothing unfinished is left behind: no notes to self, no placeholders, no debug prints.
//!
//! Notes are looked for in comments of Rust files and in the text of all others; placeholders by
//! token, so that text which merely speaks of them passes. A word between backticks is spoken of.

use proc_macro2::TokenTree;

use crate::source::{Source, has_word};
use crate::tree::{Findings, Tree};

const RULE: &str = "leftovers";
const NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];
const PLACEHOLDERS: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        for (at, comment) in source.comments.iter().enumerate() {
            note(&source.path, at + 1, comment, out);
        }
        for (line, name) in placeholders(source) {
            out.error(RULE, &source.path, line, format!("`{name}!` is left over"));
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
    let spoken: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    for word in NOTES.iter().filter(|word| has_word(&spoken, word)) {
        out.error(RULE, path, line, format!("`{word}` is left over: do it, or open an issue"));
    }
}

fn placeholders(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut before: Option<(String, usize)> = None;
    crate::source::walk(&source.tokens, &mut |token| {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '!' => {
                if let Some((name, line)) = before.take()
                    && PLACEHOLDERS.contains(&name.as_str())
                {
                    found.push((line, name));
                }
            }
            TokenTree::Ident(ident) => {
                before = Some((ident.to_string(), ident.span().start().line));
                return;
            }
            _ => {}
        }
        before = None;
    });
    found
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn notes_are_found_in_comments_and_prose() {
        let files = [
            ("a.rs", "// TODO: later\nfn f() {} /* FIXME */\n/// XXX\nfn g() {}"),
            ("docs/a.md", "fine\nTODO"),
        ];
        assert_eq!(places(check, &files), ["a.rs:1", "a.rs:2", "a.rs:3", "docs/a.md:2"]);
    }

    #[test]
    fn speaking_of_them_is_allowed() {
        let files = [
            ("a.rs", "/// Refuses `TODO`.\nconst A: &str = \"TODO\";\nfn todo() {}"),
            ("a.md", "no `FIXME`, no XXXL"),
        ];
        assert_eq!(places(check, &files), [""; 0]);
    }

    #[test]
    fn placeholders_are_found_by_token() {
        let text = "fn f() {\n    todo!()\n}\nfn g() { h(dbg!(1), unimplemented!()) }";
        assert_eq!(places(check, &[("a.rs", text)]), ["a.rs:2", "a.rs:4", "a.rs:4"]);
    }
}
