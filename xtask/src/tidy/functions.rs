//! Functions fit a screen.
//!
//! The length of a function is from its signature to its closing brace, both included. Takes an
//! excuse, "long function", above the function. Also here, because it is a matter of functions:
//! a test that is ignored says why.
//!
//! Not measured: functions that a macro's body declares.

use proc_macro2::Span;
use syn::visit::{self, Visit};

use crate::source::Source;
use crate::tree::{Findings, Tree};

const RULE: &str = "functions";
/// The most lines of a function.
const LONGEST: usize = 70;

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        Measure { source, out }.visit_file(&source.file);
    }
}

struct Measure<'a> {
    source: &'a Source,
    out: &'a mut Findings,
}

impl Measure<'_> {
    fn function(&mut self, signature: &syn::Signature, end: Span) {
        let (first, last) = (signature.fn_token.span.start().line, end.end().line);
        let lines = last + 1 - first;
        if lines > LONGEST && !self.source.excused(first, "long function") {
            let name = &signature.ident;
            let message = format!("`{name}` has {lines} lines, more than {LONGEST}");
            self.out.error(RULE, &self.source.path, first, message);
        }
    }
}

impl<'ast> Visit<'ast> for Measure<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, item.block.brace_token.span.close());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, item.block.brace_token.span.close());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block.brace_token.span.close());
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if attribute.path().is_ident("ignore") && matches!(attribute.meta, syn::Meta::Path(_)) {
            let line = attribute.pound_token.spans[0].start().line;
            let message = "an ignored test says why: `#[ignore = \"reason\"]`".to_owned();
            self.out.error(RULE, &self.source.path, line, message);
        }
        visit::visit_attribute(self, attribute);
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    fn found(text: &str) -> Vec<String> {
        places(check, &[("a.rs", text)])
    }

    #[test]
    fn long_functions_are_refused_everywhere() {
        assert!(found(&function(LONGEST)).is_empty());
        assert_eq!(found(&function(LONGEST + 1)), ["a.rs:1"]);
        assert_eq!(found(&format!("impl A {{\n{}}}", function(LONGEST + 1))), ["a.rs:2"]);
        assert_eq!(found(&format!("trait A {{\n{}}}", function(LONGEST + 1))), ["a.rs:2"]);
        assert_eq!(found(&format!("fn a() {{\n{}\n}}", function(LONGEST + 1))).len(), 2);
    }

    #[test]
    fn an_excuse_counts_with_its_reason() {
        let long = function(LONGEST + 1);
        let excused = "// tidy: long function, because a table reads best in one piece\n";
        assert!(found(&format!("{excused}#[inline]\n{long}")).is_empty());
        assert_eq!(found(&format!("// tidy: long function\n{long}")).len(), 1);
        assert_eq!(found(&format!("{excused}\nstruct A;\n{long}")).len(), 1);
    }

    #[test]
    fn an_ignored_test_says_why() {
        assert_eq!(found("#[test]\n#[ignore]\nfn f() {}"), ["a.rs:2"]);
        assert!(found("#[test]\n#[ignore = \"needs a device\"]\nfn f() {}").is_empty());
    }
}
