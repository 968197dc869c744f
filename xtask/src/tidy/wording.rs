//! Text makes sense to a stranger who has nothing but this repository.
//!
//! So it names no home directory. This file, which has to spell them, is the one exception.

use crate::tree::{Findings, Tree};

const RULE: &str = "wording";
const THIS_FILE: &str = "xtask/src/tidy/wording.rs";

/// Beginnings of paths that exist on one machine only.
const PLACES: [&str; 3] = ["/root/", "/home/", "/Users/"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for (path, text) in &tree.texts {
        if path == THIS_FILE || path.ends_with(".lock") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if let Some(word) = PLACES.iter().find(|place| starts_path(line, place)) {
                let message = format!("`{word}` is a path of one machine");
                out.error(RULE, path, at + 1, message);
            }
        }
    }
}

/// Whether an absolute path in `line` begins with `place`.
fn starts_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | ')'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn places_are_found_anywhere() {
        let files = [("a.md", "see /root/notes"), ("a.rs", "const A: &str = \"/home/me/x\";")];
        assert_eq!(places(check, &files), ["a.md:1", "a.rs:1"]);
    }

    #[test]
    fn other_paths_and_words_pass() {
        let text = "docs/home/x, https://a.example/home/x, /tmp/x";
        assert_eq!(places(check, &[("a.md", text)]), [""; 0]);
    }
}
