//! Library crates take clock, randomness, locks, atomics and threads from `forebay-base`.
//!
//! Clippy's disallowed lists say the same, but an `allow` silences them, they know no path that
//! nobody listed, and they do not tell tests from code. This rule reads paths by token, so use
//! trees and bodies of macros count too. Takes an excuse, "std", at the line. Test code is free.

use std::iter::Peekable;

use proc_macro2::token_stream::IntoIter;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::layers;
use crate::tree::{Findings, Tree};

const RULE: &str = "shim";

/// The homes of the originals: the files of `forebay-base` that wrap them.
const HOMES: [&str; 4] = [
    "crates/base/src/sync.rs",
    "crates/base/src/sync/",
    "crates/base/src/clock.rs",
    "crates/base/src/rng.rs",
];

/// Path that is refused, and what to use instead. A prefix of whole segments matches.
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

/// Parts of refused modules that touch neither scheduling nor time.
const HARMLESS: [&str; 2] = ["std::thread::available_parallelism", "std::thread::panicking"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        let package = tree.package_of(&source.path).and_then(|p| layers::crate_row(&p.name));
        let home = HOMES.iter().any(|home| source.path.starts_with(home));
        if home || !package.is_some_and(|row| row.library) {
            continue;
        }
        let mut paths = Vec::new();
        collect(&source.tokens, "", &mut paths);
        for (line, path) in paths {
            if source.is_test(line) || source.excused(line, "std") {
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
    if HARMLESS.contains(&path) {
        return None;
    }
    let whole = |rest: &str| rest.is_empty() || rest.starts_with("::");
    let matches = |prefix: &str| {
        if prefix.contains(char::is_uppercase) {
            // A type, under whatever path or import it is reached.
            let at = path.find(prefix).filter(|at| *at == 0 || path[..*at].ends_with("::"));
            at.is_some_and(|at| whole(&path[at + prefix.len()..]))
        } else {
            // A crate's own name alone may as well be the name of a variable.
            let rest = path.strip_prefix(prefix);
            let module = prefix.contains("::");
            rest.is_some_and(|rest| whole(rest) && (module || !rest.is_empty()))
        }
    };
    REFUSED.iter().find(|(prefix, _)| matches(prefix)).map(|(_, instead)| *instead)
}

/// All paths of the tokens with the line of their last segment; use trees are multiplied out.
fn collect(tokens: &TokenStream, prefix: &str, paths: &mut Vec<(usize, String)>) {
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(first) => {
                let (line, first) = (first.span().start().line, first.to_string());
                follow(&mut tokens, line, join(prefix, &first), paths);
            }
            TokenTree::Group(group) => collect(&group.stream(), "", paths),
            _ => {}
        }
    }
}

fn follow(
    tokens: &mut Peekable<IntoIter>,
    mut line: usize,
    mut path: String,
    paths: &mut Vec<(usize, String)>,
) {
    while eat_colons(tokens) {
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

/// Takes `::` if it comes next. A single colon is taken too: what follows is then a type.
fn eat_colons(tokens: &mut Peekable<IntoIter>) -> bool {
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
    use super::super::places;
    use super::*;

    const CACHE: (&str, &str) = ("crates/cache/Cargo.toml", "[package]\nname = \"forebay-cache\"");
    const BASE: (&str, &str) = ("crates/base/Cargo.toml", "[package]\nname = \"forebay-base\"");
    const BENCH: (&str, &str) = ("crates/bench/Cargo.toml", "[package]\nname = \"forebay-bench\"");

    fn cache(text: &str) -> Vec<String> {
        places(check, &[CACHE, ("crates/cache/src/lib.rs", text)])
    }

    #[test]
    fn originals_are_refused_however_they_are_named() {
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
    fn what_merely_looks_like_them_passes() {
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
    fn tests_homes_tools_and_excuses_are_free() {
        let text = "use std::sync::Mutex;";
        for (manifest, path) in [
            (CACHE, "crates/cache/tests/it/main.rs"),
            (BASE, "crates/base/src/sync/lock.rs"),
            (BENCH, "crates/bench/src/main.rs"),
        ] {
            assert_eq!(places(check, &[manifest, (path, text)]), [""; 0], "{path}");
        }
        assert_eq!(cache(&format!("#[cfg(test)]\nmod tests {{ {text} }}")), [""; 0]);
        assert_eq!(cache(&format!("// tidy: std, because it is a fixture\n{text}")), [""; 0]);
        assert_eq!(places(check, &[BASE, ("crates/base/src/vm.rs", text)]).len(), 1);
    }
}
