//! No file names a home directory, which exists on one machine only.
//!
//! This file is exempt, because it lists their prefixes.

use crate::tree::{Findings, Tree};

const RULE: &str = "wording";
const THIS_FILE: &str = "xtask/src/tidy/wording.rs";

/// Prefixes of home directories.
const HOME_FOLDERS: [&str; 3] = ["/root/", "/home/", "/Users/"];

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for (path, text) in &tree.texts {
        if path == THIS_FILE || path.ends_with(".lock") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if let Some(word) = HOME_FOLDERS.iter().find(|place| starts_path(line, place)) {
                let message =
                    format!("`{word}` is a home directory: use a path that other machines have");
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
    use super::super::locations;
    use super::*;

    #[test]
    fn home_directories_are_found_in_all_files() {
        let files = [("a.md", "see /root/notes"), ("a.rs", "const A: &str = \"/home/me/x\";")];
        assert_eq!(locations(check, &files), ["a.md:1", "a.rs:1"]);
    }

    #[test]
    fn other_paths_and_words_pass() {
        let text = "docs/home/x, https://a.example/home/x, /tmp/x";
        assert_eq!(locations(check, &[("a.md", text)]), [""; 0]);
    }
}
