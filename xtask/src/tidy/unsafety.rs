//! Every `unsafe` block and `unsafe impl` has its own `SAFETY:` comment, and every `unsafe fn` says
//! what its caller has to ensure.
//!
//! The comment of a block stands directly above its keyword, or on its line, and states the
//! argument: "as above" and "as in `f`" go stale unseen. The duties of a function's caller stand
//! in its docs under `# Safety`. A function with the ABI of C may have them in its module instead,
//! because its docs become a header.
//!
//! Clippy has lints for this, but the clippy step does not compile the model build and Miri's
//! code, the lints check macros only where they are expanded, accept a comment above the whole
//! statement, and pass over private functions. This rule reads tokens and covers all of them.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{Findings, Tree};

const RULE: &str = "unsafety";
const COMMENT: &str = "SAFETY:";
/// How a comment begins that only points to another one.
const REFERENCES: [&str; 4] = ["as above", "as in ", "as for ", "see "];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        let mut blocks = Vec::new();
        find_blocks(&source.tokens, &mut blocks);
        for line in blocks {
            if !source.comment_above(line, COMMENT) {
                let message = "`unsafe` without a `// SAFETY:` comment directly above it; name the \
                     invariant that makes it sound";
                out.error(RULE, &source.path, line, message.to_owned());
            }
        }
        for (at, comment) in source.comments.iter().enumerate() {
            let argument = comment.split_once(COMMENT).map_or("", |(_, argument)| argument.trim());
            if REFERENCES.iter().any(|reference| argument.starts_with(reference)) {
                let message = "a `SAFETY:` comment that points to another one; state the argument";
                out.error(RULE, &source.path, at + 1, message.to_owned());
            }
        }
        let mut functions = Functions::default();
        functions.visit_file(&source.file);
        for line in functions.undocumented {
            let message =
                "`unsafe fn` without `# Safety` in its docs; state what its caller ensures";
            out.error(RULE, &source.path, line, message.to_owned());
        }
    }
}

/// Adds the line of each `unsafe` that begins a block or an `impl`.
fn find_blocks(tokens: &TokenStream, lines: &mut Vec<usize>) {
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        match (&token, tokens.peek()) {
            (TokenTree::Group(group), _) => find_blocks(&group.stream(), lines),
            (token, Some(next)) if is_word(token, "unsafe") && is_claim(next) => {
                lines.push(token.span().start().line);
            }
            _ => {}
        }
    }
}

/// Whether the code claims that a contract is met if this follows `unsafe`. `unsafe fn`, `unsafe
/// trait`, `unsafe extern` and `#[unsafe(...)]` state a contract.
fn is_claim(next: &TokenTree) -> bool {
    matches!(next, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
        || is_word(next, "impl")
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

/// Finds unsafe functions whose docs do not say what the caller has to ensure.
#[derive(Default)]
struct Functions {
    undocumented: Vec<usize>,
}

impl Functions {
    fn look(&mut self, signature: &syn::Signature, attributes: &[syn::Attribute]) {
        let (syn::Safety::Unsafe(word), None) = (&signature.safety, &signature.abi) else { return };
        if !attributes.iter().any(is_contract) {
            self.undocumented.push(word.span.start().line);
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.sig, &item.attrs);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for part in &item.items {
            // The contract of a trait's function is the trait's.
            if let (syn::ImplItem::Fn(function), None) = (part, &item.trait_) {
                self.look(&function.sig, &function.attrs);
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.look(&item.sig, &item.attrs);
        visit::visit_trait_item_fn(self, item);
    }
}

/// Whether an attribute is a line of docs that begins the section of the caller's duties.
fn is_contract(attribute: &syn::Attribute) -> bool {
    let syn::Meta::NameValue(value) = &attribute.meta else { return false };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &value.value else {
        return false;
    };
    value.path.is_ident("doc") && text.value().trim() == "# Safety"
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
    fn a_comment_directly_above_or_on_the_line_is_enough() {
        for text in [
            "fn f() {\n    // SAFETY: pinned.\n    let a = unsafe { g() };\n}",
            "fn f() {\n    let a = h(\n        1,\n        // SAFETY: pinned.\n        unsafe { g() },\n    );\n}",
            "fn f() {\n    unsafe { g() } // SAFETY: pinned.\n}",
            "// SAFETY: no thread owns it.\n// Two lines.\nunsafe impl Send for A {}",
            "// SAFETY: pinned.\n#[allow(unused)]\nconst A: u8 = unsafe { g() };",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_comment_further_up_or_inside_is_refused() {
        let statement =
            "fn f() {\n    // SAFETY: pinned.\n    let a = h(\n        unsafe { g() },\n    );\n}";
        assert_eq!(found(statement), ["a.rs:4"]);
        let inside = "fn f() {\n    unsafe {\n        // SAFETY: pinned.\n        g()\n    }\n}";
        assert_eq!(found(inside), ["a.rs:2"]);
    }

    #[test]
    fn one_comment_does_not_cover_the_next_statement() {
        let text = "fn f() {\n    // SAFETY: pinned.\n    unsafe { g() };\n    unsafe { h() };\n}";
        assert_eq!(found(text), ["a.rs:4"]);
    }

    #[test]
    fn a_comment_states_its_argument() {
        let text = "// SAFETY: a number.\nunsafe impl A for B {}\n// SAFETY: as above.\nunsafe impl A for C {}";
        assert_eq!(found(text), ["a.rs:3"]);
        assert_eq!(
            found("fn f() {\n    // SAFETY: as in `g`, pinned.\n    unsafe { g() }\n}"),
            ["a.rs:2"]
        );
    }

    #[test]
    fn an_unsafe_function_states_the_duties_of_its_caller() {
        assert_eq!(found("unsafe fn f() {}"), ["a.rs:1"]);
        assert_eq!(found("impl A {\n    /// Frees it.\n    pub unsafe fn f() {}\n}"), ["a.rs:3"]);
        assert_eq!(found("trait A {\n    unsafe fn f();\n}"), ["a.rs:2"]);
        for text in [
            "/// Frees it.\n///\n/// # Safety\n/// It is owned.\nunsafe fn f() {}",
            "impl A for B {\n    unsafe fn f() {}\n}",
            "unsafe extern \"C\" fn f() {}",
            "unsafe trait A {}",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}
