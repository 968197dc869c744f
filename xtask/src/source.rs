//! One Rust file, in the three views that the checks need: syntax, tokens, comments.
//!
//! `syn` sees functions and attributes, but neither comments nor the bodies of macros. The token
//! stream has the bodies of macros. Comments are the text without all tokens. The three views use
//! the same line numbers, which start at 1.

use std::ops::{Range, RangeInclusive};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A parsed file.
pub(crate) struct Source {
    /// Relative to the workspace, `/` between parts.
    pub(crate) path: String,
    pub(crate) file: syn::File,
    pub(crate) tokens: TokenStream,
    /// Every line, with everything blanked out except comments and doc comments.
    pub(crate) comments: Vec<String>,
    pub(crate) lines: Vec<String>,
    /// The whole file is test code.
    pub(crate) all_tests: bool,
    /// Names of modules declared here under `#[cfg(test)]` that live in files of their own.
    pub(crate) test_modules: Vec<String>,
    test_items: Vec<RangeInclusive<usize>>,
}

impl Source {
    /// Parses `text`. An error is a line and a message.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Source, (usize, String)> {
        let tokens: TokenStream = text
            .parse()
            .map_err(|e: proc_macro2::LexError| (e.span().start().line, e.to_string()))?;
        let file: syn::File =
            syn::parse2(tokens.clone()).map_err(|e| (e.span().start().line, e.to_string()))?;
        let mut finder = TestItems::default();
        finder.visit_file(&file);
        Ok(Source {
            path: path.to_owned(),
            comments: comments(text, &tokens),
            lines: text.lines().map(str::to_owned).collect(),
            all_tests: is_test_path(path),
            test_modules: finder.modules,
            test_items: finder.items,
            tokens,
            file,
        })
    }

    /// Whether the line belongs to test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.all_tests || self.test_items.iter().any(|lines| lines.contains(&line))
    }

    /// Number of lines that are not test code.
    pub(crate) fn lines_without_tests(&self) -> usize {
        (1..=self.lines.len()).filter(|line| !self.is_test(*line)).count()
    }

    /// The comment of a line; empty for a line that does not exist.
    pub(crate) fn comment(&self, line: usize) -> &str {
        line.checked_sub(1).and_then(|i| self.comments.get(i)).map_or("", |c| c.trim())
    }

    /// Whether a comment on `line`, or in the block of comments and attributes directly above it,
    /// contains `needle`.
    pub(crate) fn comment_above(&self, line: usize, needle: &str) -> bool {
        if self.comment(line).contains(needle) {
            return true;
        }
        let above = (1..line).rev().take_while(|l| {
            let text = self.lines.get(l - 1).map_or("", |t| t.trim());
            !self.comment(*l).is_empty() && text.starts_with(['/', '*']) || text.starts_with("#[")
        });
        above.into_iter().any(|l| self.comment(l).contains(needle))
    }

    /// Whether the line has an exception from `rule`, with its reason: a comment
    /// `tidy: <rule>, because <reason>`.
    pub(crate) fn has_exception(&self, line: usize, rule: &str) -> bool {
        self.comment_above(line, &format!("tidy: {rule}, because "))
    }
}

/// Calls `f` with every token and every group, at any depth.
pub(crate) fn walk(tokens: &TokenStream, f: &mut impl FnMut(&TokenTree)) {
    for token in tokens.clone() {
        f(&token);
        if let TokenTree::Group(group) = &token {
            walk(&group.stream(), f);
        }
    }
}

fn is_test_path(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    file == "tests.rs"
        || file.ends_with("_tests.rs")
        || path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
}

fn comments(text: &str, tokens: &TokenStream) -> Vec<String> {
    let mut bytes = text.as_bytes().to_vec();
    blank(&mut bytes, text, tokens);
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(str::to_owned).collect()
}

/// Blanks all tokens except doc comments, whose tokens span the text of the comment.
fn blank(bytes: &mut [u8], text: &str, tokens: &TokenStream) {
    for token in tokens.clone() {
        let range = token.span().byte_range();
        let here = text.get(range.clone()).unwrap_or("");
        if here.starts_with("//") || here.starts_with("/*") {
            continue;
        }
        match &token {
            TokenTree::Group(group) => {
                if group.delimiter() != Delimiter::None {
                    blank_range(bytes, group.span_open().byte_range());
                    blank_range(bytes, group.span_close().byte_range());
                }
                blank(bytes, text, &group.stream());
            }
            _ => blank_range(bytes, range),
        }
    }
}

fn blank_range(bytes: &mut [u8], range: Range<usize>) {
    for byte in bytes.get_mut(range).unwrap_or_default() {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

#[derive(Default)]
struct TestItems {
    items: Vec<RangeInclusive<usize>>,
    modules: Vec<String>,
}

impl<'ast> Visit<'ast> for TestItems {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes(item).iter().any(is_cfg_test) {
            self.items.push(item.span().start().line..=item.span().end().line);
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
            {
                self.modules.push(module.ident.to_string());
            }
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.attrs.iter().any(is_cfg_test) {
            self.items.push(item.span().start().line..=item.span().end().line);
        }
        visit::visit_impl_item_fn(self, item);
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, ...))]`, but not `#[cfg(not(test))]`.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let words: Vec<String> =
        list.tokens.to_string().split_whitespace().map(str::to_owned).collect();
    let text = words.concat();
    list.path.is_ident("cfg")
        && (text == "test" || (text.starts_with("all(") && has_word(&text, "test")))
        && !text.contains("not(test")
}

/// Whether `word` occurs in `text` with no letter, digit or underscore beside it.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(part)
            && !text[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! Module.
// plain
/// Doc — with a dash, and 'quote.
fn f() { let s = \"// no comment\"; } // trailing
/* block
   two lines */
#[cfg(test)]
mod tests {
    fn g() {}
}
";

    #[test]
    fn comments_are_the_text_without_tokens() {
        let source = Source::parse("a.rs", TEXT).unwrap();
        let comments: Vec<&str> = (1..=source.lines.len()).map(|l| source.comment(l)).collect();
        assert_eq!(
            comments,
            [
                "//! Module.",
                "// plain",
                "/// Doc — with a dash, and 'quote.",
                "// trailing",
                "/* block",
                "two lines */",
                "",
                "",
                "",
                ""
            ]
        );
    }

    #[test]
    fn test_items_are_known() {
        let source = Source::parse("a.rs", TEXT).unwrap();
        assert!(!source.is_test(4) && source.is_test(7) && source.is_test(10));
        assert_eq!(source.lines_without_tests(), 6);
        assert!(Source::parse("a/tests/it/main.rs", "fn f() {}").unwrap().is_test(1));
        let not = Source::parse("a.rs", "#[cfg(not(test))]\nfn f() {}").unwrap();
        assert!(!not.is_test(2));
    }

    #[test]
    fn an_exception_needs_a_reason_and_its_place() {
        let text = "// tidy: std, because it is a fixture\n#[inline]\nfn f() {}\n\nfn g() {}\n";
        let source = Source::parse("a.rs", text).unwrap();
        assert!(source.has_exception(3, "std"));
        assert!(!source.has_exception(3, "other rule"));
        assert!(!source.has_exception(5, "std"));
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("a test, b", "test"));
        assert!(!has_word("testing", "test"));
        assert!(!has_word("my_test", "test"));
    }
}
