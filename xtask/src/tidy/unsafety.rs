//! Every `unsafe` block and `unsafe impl` has a `SAFETY:` comment.
//!
//! The comment is on the line of the keyword, above it, above its statement, or first in the block.
//!
//! Clippy has a lint for this, but the clippy step does not compile the model build and Miri's
//! code, and the lint checks macros only where they are expanded. This rule reads tokens and covers
//! both.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::source::Source;
use crate::tree::{Findings, Tree};

const RULE: &str = "unsafety";
const COMMENT: &str = "SAFETY:";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        let mut undocumented = Vec::new();
        visit(source, &source.tokens, &[], &mut undocumented);
        for line in undocumented {
            let message = "`unsafe` without a `// SAFETY:` comment that names the invariant";
            out.error(RULE, &source.path, line, message.to_owned());
        }
    }
}

/// `outer` has the first lines of the statements that enclose these tokens, up to the nearest
/// brace.
fn visit(source: &Source, tokens: &TokenStream, outer: &[usize], undocumented: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut start = None;
    for (at, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        let statement = *start.get_or_insert(line);
        let mut lines = outer.to_vec();
        lines.extend([statement, line]);
        if is_word(token, "unsafe") && !has_safety_comment(source, &tokens[at + 1..], &lines) {
            undocumented.push(line);
        }
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                visit(source, &group.stream(), &[], undocumented);
                // A statement ends with a block, unless the block is part of an expression.
                if !matches!(tokens.get(at + 1), Some(TokenTree::Punct(_))) {
                    start = None;
                }
            }
            TokenTree::Group(group) => visit(source, &group.stream(), &lines, undocumented),
            TokenTree::Punct(punct) if matches!(punct.as_char(), ';' | ',') => start = None,
            _ => {}
        }
    }
}

/// Whether the `unsafe` before `next` needs no comment, or has one near one of `lines`.
fn has_safety_comment(source: &Source, next: &[TokenTree], lines: &[usize]) -> bool {
    let block = match next.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => Some(group),
        Some(token) if is_word(token, "impl") => None,
        // `unsafe fn`, `unsafe trait`, `unsafe extern`, `#[unsafe(...)]`: the user has the duty.
        _ => return true,
    };
    if lines.iter().any(|line| source.comment_above(*line, COMMENT)) {
        return true;
    }
    block.is_some_and(|group| {
        let open = group.span_open().start().line;
        let first = group.stream().into_iter().next();
        let first = first.map_or(group.span_close().start().line, |t| t.span().start().line);
        (open..=first).any(|line| source.comment(line).contains(COMMENT))
    })
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        locations(check, &[("a.rs", text)])
    }

    #[test]
    fn unsafe_without_a_comment_is_refused() {
        assert_eq!(found("fn f() {\n    unsafe { g() };\n}"), ["a.rs:2"]);
        assert_eq!(found("unsafe impl Send for A {}"), ["a.rs:1"]);
        assert_eq!(found("macro_rules! m { () => {\n unsafe { g() } } }"), ["a.rs:2"]);
        assert_eq!(found("/// SAFETY is far away.\nfn f() {\n    unsafe { g() }\n}"), ["a.rs:3"]);
    }

    #[test]
    fn a_comment_at_any_of_its_places_is_enough() {
        for text in [
            "fn f() {\n    // SAFETY: pinned.\n    unsafe { g() }\n}",
            "fn f() {\n    // SAFETY: pinned.\n    let a = h(\n        1,\n        unsafe { g() },\n    );\n}",
            "fn f() {\n    unsafe { g() } // SAFETY: pinned.\n}",
            "fn f() {\n    unsafe {\n        // SAFETY: pinned.\n        g()\n    }\n}",
            "// SAFETY: no thread owns it.\n// Two lines.\nunsafe impl Send for A {}",
            "// SAFETY: pinned.\n#[allow(unused)]\nconst A: u8 = unsafe { g() };",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn one_comment_does_not_cover_the_next_statement() {
        let text = "fn f() {\n    // SAFETY: pinned.\n    unsafe { g() };\n    unsafe { h() };\n}";
        assert_eq!(found(text), ["a.rs:4"]);
    }

    #[test]
    fn declarations_need_no_comment() {
        assert_eq!(found("unsafe fn f() {}\nunsafe trait A {}"), [""; 0]);
    }
}
