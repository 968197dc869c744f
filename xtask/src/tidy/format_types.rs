//! On-disk types are in `format` files and have a fixed size.
//!
//! A type whose name ends in [`SUFFIX`] describes bytes on a device. It is in a file `format*.rs`
//! or below a folder `format`, and has a fixed layout. The same file has a compile-time assertion
//! of its size: `const _: () = assert!(size_of::<LabelPhys>() == 4096);`.

use proc_macro2::TokenTree;
use quote::ToTokens;
use syn::visit::{self, Visit};

use crate::source::{Source, walk};
use crate::tree::{Findings, Tree};

const RULE: &str = "format_types";
const SUFFIX: &str = "Phys";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        let mut types = Types::default();
        types.visit_file(&source.file);
        for found in &types.found {
            for message in objections(source, found, &types.asserted) {
                out.error(RULE, &source.path, found.line, message);
            }
        }
    }
}

struct OnDisk {
    name: String,
    line: usize,
    fixed: bool,
}

#[derive(Default)]
struct Types {
    found: Vec<OnDisk>,
    /// Every identifier of a `const _` that contains `size_of`.
    asserted: Vec<String>,
}

fn objections(source: &Source, found: &OnDisk, asserted: &[String]) -> Vec<String> {
    let name = &found.name;
    let mut messages = Vec::new();
    if !is_format_path(&source.path) {
        messages.push(format!("`{name}` is an on-disk type: move it to a `format` file"));
    }
    if !found.fixed {
        messages.push(format!("`{name}` needs `#[repr(C)]`, `transparent` or an integer type"));
    }
    if !asserted.contains(name) {
        let assert = format!("const _: () = assert!(size_of::<{name}>() == N);");
        messages.push(format!("`{name}` needs its size asserted in this file: `{assert}`"));
    }
    messages
}

fn is_format_path(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let file = parts.next().unwrap_or(path);
    file.starts_with("format") || parts.any(|folder| folder == "format")
}

impl Types {
    fn found(&mut self, ident: &syn::Ident, attributes: &[syn::Attribute]) {
        if ident.to_string().ends_with(SUFFIX) {
            let fixed = attributes.iter().any(is_fixed_layout);
            self.found.push(OnDisk {
                name: ident.to_string(),
                line: ident.span().start().line,
                fixed,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.found(&item.ident, &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.found(&item.ident, &item.attrs);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.found(&item.ident, &item.attrs);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let (mut words, mut sized) = (Vec::new(), false);
        walk(&item.expr.to_token_stream(), &mut |token| {
            if let TokenTree::Ident(ident) = token {
                sized |= ident == "size_of";
                words.push(ident.to_string());
            }
        });
        if sized && item.ident == "_" {
            self.asserted.append(&mut words);
        }
        visit::visit_item_const(self, item);
    }
}

fn is_fixed_layout(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let text = list.tokens.to_string();
    let integer = ["u8", "u16", "u32", "u64"].contains(&text.trim());
    list.path.is_ident("repr") && (text.contains('C') || text.contains("transparent") || integer)
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const GOOD: &str = "#[repr(C)]\nstruct LabelPhys { a: u64 }\nconst _: () = assert!(size_of::<LabelPhys>() == 8);";

    #[test]
    fn a_type_in_its_place_passes() {
        for path in ["a/src/format.rs", "a/src/format_label.rs", "a/src/format/label.rs"] {
            assert_eq!(locations(check, &[(path, GOOD)]), [""; 0], "{path}");
        }
    }

    #[test]
    fn each_requirement_is_checked() {
        assert_eq!(locations(check, &[("a/src/label.rs", GOOD)]).len(), 1);
        let loose = GOOD.replace("#[repr(C)]", "");
        assert_eq!(locations(check, &[("a/src/format.rs", &loose)]).len(), 1);
        let other = GOOD.replace("<LabelPhys>", "<OtherPhys>");
        assert_eq!(locations(check, &[("a/src/format.rs", &other)]).len(), 1);
        assert_eq!(locations(check, &[("a/src/label.rs", "struct LabelPhys;")]).len(), 3);
    }

    #[test]
    fn other_types_are_free() {
        assert_eq!(locations(check, &[("a/src/label.rs", "struct Physics;")]), [""; 0]);
    }
}
