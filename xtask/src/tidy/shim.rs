//! Library crates take clock, randomness, locks, atomics and threads from `forebay-base`.
//!
//! The disallowed lists of clippy overlap with this rule, but an `allow` silences them, they match
//! listed paths only, and they do not distinguish tests from code. This rule reads paths by token,
//! so it covers use trees and bodies of macros. It accepts the exception "std" at the line. Test
//! code is exempt.

use std::iter::Peekable;

use proc_macro2::token_stream::IntoIter;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::layers;
use crate::tree::{Findings, Tree};

const RULE: &str = "shim";

/// The files of `forebay-base` that wrap the originals.
const SHIM_FILES: [&str; 4] = [
    "crates/base/src/sync.rs",
    "crates/base/src/sync/",
    "crates/base/src/clock.rs",
    "crates/base/src/rng.rs",
];

/// Refused paths, each with its replacement. A prefix of whole segments matches.
const REFUSED: [(&str, &str); 10] = [
    ("std::sync", "forebay_base::sync"),
    ("core::sync", "forebay_base::sync"),
    ("alloc::sync", "forebay_base::sync"),
    ("std::thread", "forebay_base::sync::thread"),
    ("std::hint::spin_loop", "forebay_base::sync::hint::spin_loop"),
    ("parking_lot", "forebay_base::sync"),
    ("Instant::now", "an injected forebay_base::clock::Clock"),
    ("SystemTime::now", "an injected forebay_base::clock::Clock"),
    ("rand", "an injected forebay_base::rng::SmallRng"),
    ("RandomState", "an injected seed"),
];

/// Items of refused modules that affect neither scheduling nor time.
const ALLOWED: [&str; 2] = ["std::thread::available_parallelism", "std::thread::panicking"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        let package = tree.package_of(&source.path).and_then(|p| layers::crate_row(&p.name));
        let is_shim = SHIM_FILES.iter().any(|file| source.path.starts_with(file));
        if is_shim || !package.is_some_and(|row| row.library) {
            continue;
        }
        let mut paths = Vec::new();
        collect(&source.tokens, "", &mut paths);
        for (line, path) in paths {
            if source.is_test(line) || source.has_exception(line, "std") {
                continue;
            }
            if let Some(instead) = refused(&path) {
                let message = format!("`{path}` in a library crate: use {instead}");
                out.error(RULE, &source.path, line, message);
            }
        }
    }
}

fn refused(path: &str) -> Option<&'static str> {
    if ALLOWED.contains(&path) {
        return None;
    }
    let whole = |rest: &str| rest.is_empty() || rest.starts_with("::");
    let matches = |prefix: &str| {
        if prefix.contains(char::is_uppercase) {
            // A type, with any path before it.
            let at = path.find(prefix).filter(|at| *at == 0 || path[..*at].ends_with("::"));
            at.is_some_and(|at| whole(&path[at + prefix.len()..]))
        } else {
            // The name of a crate alone may also be the name of a variable.
            let rest = path.strip_prefix(prefix);
            let module = prefix.contains("::");
            rest.is_some_and(|rest| whole(rest) && (module || !rest.is_empty()))
        }
    };
    REFUSED.iter().find(|(prefix, _)| matches(prefix)).map(|(_, instead)| *instead)
}

/// All paths of the tokens, with the line of their last segment. Use trees are expanded.
fn collect(tokens: &TokenStream, prefix: &str, paths: &mut Vec<(usize, String)>) {
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(first) => {
                let (line, first) = (first.span().start().line, first.to_string());
                read_path(&mut tokens, line, join(prefix, &first), paths);
            }
            TokenTree::Group(group) => collect(&group.stream(), "", paths),
            _ => {}
        }
    }
}

fn read_path(
    tokens: &mut Peekable<IntoIter>,
    mut line: usize,
    mut path: String,
    paths: &mut Vec<(usize, String)>,
) {
    while skip_path_separator(tokens) {
        match tokens.peek() {
            Some(TokenTree::Ident(segment)) => {
                line = segment.span().start().line;
                path = join(&path, &segment.to_string());
                tokens.next();
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                collect(&group.stream(), &path, paths);
                tokens.next();
                return;
            }
            _ => break,
        }
    }
    paths.push((line, path));
}

/// Consumes `::` if it is next. Also consumes a single colon, which a type follows.
fn skip_path_separator(tokens: &mut Peekable<IntoIter>) -> bool {
    let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ':');
    tokens.next_if(colon).is_some() && tokens.next_if(colon).is_some()
}

fn join(prefix: &str, segment: &str) -> String {
    match (prefix, segment) {
        ("", _) => segment.to_owned(),
        (_, "self") => prefix.to_owned(),
        _ => format!("{prefix}::{segment}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const CACHE: (&str, &str) = ("crates/cache/Cargo.toml", "[package]\nname = \"forebay-cache\"");
    const BASE: (&str, &str) = ("crates/base/Cargo.toml", "[package]\nname = \"forebay-base\"");
    const BENCH: (&str, &str) = ("crates/bench/Cargo.toml", "[package]\nname = \"forebay-bench\"");

    fn cache(text: &str) -> Vec<String> {
        locations(check, &[CACHE, ("crates/cache/src/lib.rs", text)])
    }

    #[test]
    fn originals_are_refused_in_every_notation() {
        for text in [
            "use std::sync::Arc;",
            "use std::{mem, sync::atomic::AtomicU8};",
            "use std::{mem, sync::{self}};",
            "fn f() { std::thread::spawn(g); }",
            "fn f() { let t = Instant::now(); }",
            "fn f() { let t = std::time::SystemTime::now(); }",
            "fn f(a: std::sync::Weak<u8>) {}",
            "macro_rules! m { () => { core::sync::atomic::fence(x) } }",
            "use rand::Rng;",
            "use std::thread;",
        ] {
            assert_eq!(cache(text), ["crates/cache/src/lib.rs:1"], "{text}");
        }
    }

    #[test]
    fn similar_names_pass() {
        for text in [
            "use forebay_base::sync::Arc;",
            "use std::{mem, time::Duration};",
            "fn f() { let n = std::thread::available_parallelism(); }",
            "fn f(rand: u8) -> MyInstant { let sync: u8 = rand; g::<u8>() }",
            "/// Unlike std::sync::Mutex.\nfn f() {}",
            "fn f() { let t = self.clock.now(); Instant::nowhere() }",
        ] {
            assert_eq!(cache(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tests_shim_files_tools_and_exceptions_are_exempt() {
        let text = "use std::sync::Mutex;";
        for (manifest, path) in [
            (CACHE, "crates/cache/tests/it/main.rs"),
            (BASE, "crates/base/src/sync/lock.rs"),
            (BENCH, "crates/bench/src/main.rs"),
        ] {
            assert_eq!(locations(check, &[manifest, (path, text)]), [""; 0], "{path}");
        }
        assert_eq!(cache(&format!("#[cfg(test)]\nmod tests {{ {text} }}")), [""; 0]);
        assert_eq!(cache(&format!("// tidy: std, because it is a fixture\n{text}")), [""; 0]);
        assert_eq!(locations(check, &[BASE, ("crates/base/src/vm.rs", text)]).len(), 1);
    }
}
