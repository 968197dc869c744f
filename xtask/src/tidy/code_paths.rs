//! The files and folders that ARCHITECTURE.md names exist.
//!
//! Paths stand in code spans and are relative to `crates/`. A span is a path if its first part is a
//! folder there, or if its second part is `src`. Other spans are names of items, commands or parts
//! of paths.

use crate::tree::{Findings, Tree};

const RULE: &str = "code-paths";
const PAGE: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    let Some(page) = tree.texts.get(PAGE) else { return };
    for (at, line) in page.lines().enumerate() {
        for span in line.split('`').skip(1).step_by(2) {
            let Some((first, rest)) = span.split_once('/') else { continue };
            let is_path =
                rest.starts_with("src/") || tree.paths.contains(&format!("crates/{first}"));
            let path = format!("crates/{}", span.trim_end_matches('/'));
            if is_path && !tree.paths.contains(&path) {
                let message = format!("`{path}` does not exist: name the file that replaced it");
                out.error(RULE, PAGE, at + 1, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const SOURCE: (&str, &str) = ("crates/pool/src/log/ring.rs", "//! Fixture.\n");

    #[test]
    fn files_and_folders_pass() {
        let text =
            "| q | `pool/src/log/ring.rs` (`fsync`), `pool/src/log` |\n`/dev/fuse`, `tests/`";
        assert_eq!(locations(check, &[SOURCE, (PAGE, text)]), [""; 0]);
    }

    #[test]
    fn paths_without_a_file_are_found() {
        let text =
            "`pool/src/log/ring.rs`\n`pool/src/log/gone.rs`, `pool/src/ring`, `pol/src/log`\n";
        let expected = [2, 2, 2].map(|line| format!("{PAGE}:{line}"));
        assert_eq!(locations(check, &[SOURCE, (PAGE, text)]), expected);
    }
}
