//! Every lock of a library crate is in the table of locks.
//!
//! `Mutex::named("name", ...)` names a lock. [`TABLE`] must contain that name between backticks.
//! The name must be a literal, so that readers can search for it. Test code is exempt.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::layers;
use crate::tree::{Findings, Tree};

const RULE: &str = "locks";
const TABLE: &str = "docs/locking.md";
/// The definition of the lock type.
const SHIM_FOLDER: &str = "crates/base/src/sync";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    let table = tree.texts.get(TABLE).map_or("", String::as_str);
    for source in tree.sources.iter().filter(|source| !source.path.starts_with(SHIM_FOLDER)) {
        let package = tree.package_of(&source.path).and_then(|p| layers::crate_row(&p.name));
        if !package.is_some_and(|row| row.library) {
            continue;
        }
        let mut names = Vec::new();
        collect(&source.tokens, &mut names);
        for (line, name) in names.into_iter().filter(|(line, _)| !source.is_test(*line)) {
            let message = match name {
                None => "the name of a lock must be a string literal".to_owned(),
                Some(name) if table.contains(&format!("`{name}`")) => continue,
                Some(name) => format!("lock `{name}` is missing in {TABLE}: add a row"),
            };
            out.error(RULE, &source.path, line, message);
        }
    }
}

/// The line of every call of `Mutex::named`, and the name if it is a literal.
fn collect(tokens: &TokenStream, names: &mut Vec<(usize, Option<String>)>) {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        let call = group.delimiter() == Delimiter::Parenthesis && at >= 4;
        if call && is_word(&tokens[at - 1], "named") && is_word(&tokens[at - 4], "Mutex") {
            let name = match group.stream().into_iter().next() {
                Some(TokenTree::Literal(name)) => {
                    Some(name.to_string().trim_matches('"').to_owned())
                }
                _ => None,
            };
            names.push((token.span().start().line, name));
        }
        collect(&group.stream(), names);
    }
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const CACHE: (&str, &str) = ("crates/cache/Cargo.toml", "[package]\nname = \"forebay-cache\"");
    const TABLE_FILE: (&str, &str) = (TABLE, "| `sublist` | one list |");
    const PATH: &str = "crates/cache/src/lib.rs";

    #[test]
    fn locks_in_the_table_pass() {
        let text =
            "fn f() { Mutex::named(\"sublist\", vec![sync::Mutex::named(\"sublist\", 1)]); }";
        assert_eq!(locations(check, &[CACHE, TABLE_FILE, (PATH, text)]), [""; 0]);
        let test = "#[cfg(test)]\nmod tests { fn f() { Mutex::named(\"x\", 1); } }";
        assert_eq!(locations(check, &[CACHE, TABLE_FILE, (PATH, test)]), [""; 0]);
    }

    #[test]
    fn unknown_and_computed_names_are_found() {
        let text = "fn f() {\n  Mutex::named(\"index\", 1);\n  Mutex::named(name, 1);\n}";
        let expected = ["crates/cache/src/lib.rs:2", "crates/cache/src/lib.rs:3"];
        assert_eq!(locations(check, &[CACHE, TABLE_FILE, (PATH, text)]), expected);
        let known = "fn f() { Mutex::named(\"sublist\", 1); }";
        assert_eq!(locations(check, &[CACHE, (PATH, known)]).len(), 1);
    }
}
