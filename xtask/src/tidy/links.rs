//! Links in Markdown files have a target.
//!
//! A link to a file of the repository must name an existing file, and its anchor must name a
//! heading of that file. External links are not checked, because a check must not need the network.
//! Paths of items, in pages that are part of a crate's documentation, are checked by rustdoc.

use std::collections::BTreeSet;

use crate::tree::{Findings, Tree};

const RULE: &str = "links";

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            if let Err(message) = resolve(tree, path, &target) {
                out.error(RULE, path, line, message);
            }
        }
    }
}

fn resolve(tree: &Tree, from: &str, target: &str) -> Result<(), String> {
    let elsewhere = ["mailto:", "crate::"];
    if target.contains("://") || elsewhere.iter().any(|prefix| target.starts_with(prefix)) {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { Some(from.to_owned()) } else { join(from, file) };
    let path = path.filter(|path| path.is_empty() || tree.paths.contains(path));
    let Some(path) = path else {
        return Err(format!("`{target}` does not exist"));
    };
    match tree.texts.get(&path) {
        Some(text)
            if !anchor.is_empty() && path.ends_with(".md") && !anchors(text).contains(anchor) =>
        {
            Err(format!("`{path}` has no heading `#{anchor}`"))
        }
        _ => Ok(()),
    }
}

/// The path of `target`, relative to the file `from`; `None` if it is outside the repository.
fn join(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Every `[text](target)` outside code, with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        let mut rest = prose.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            let target = rest[..end].split_whitespace().next().unwrap_or("");
            found.push((line, target.trim_matches(['<', '>']).to_owned()));
        }
    }
    found
}

/// Lines outside fenced blocks, without the text of `code` spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((at + 1, line.split('`').step_by(2).collect::<Vec<_>>().join("``")));
        }
    }
    lines
}

/// The anchors of all headings, in the form that GitHub generates.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced && let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept =
                heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const LOCKS: (&str, &str) = ("docs/locking.md", "# Locks\n## R1 — the `mru` list\n");

    #[test]
    fn links_with_a_target_pass() {
        let text = "[a](docs/locking.md) [b](docs/locking.md#locks) [c](https://a.example/x)\n\
                    [h](crate::Item::function)\n\
                    [d](docs/locking.md#r1--the-mru-list) [e](#here)\n# Here\n`[f](nowhere)`\n\
                    ```\n[g](nowhere)\n```\n";
        assert_eq!(locations(check, &[LOCKS, ("README.md", text)]), [""; 0]);
        let back = ("docs/a.md", "[a](../README.md) [b](locking.md)");
        assert_eq!(locations(check, &[LOCKS, ("README.md", text), back]), [""; 0]);
    }

    #[test]
    fn links_without_a_target_are_found() {
        let text = "[a](docs/nowhere.md)\n[b](docs/locking.md#nowhere)\n[c](../outside.md)";
        assert_eq!(
            locations(check, &[LOCKS, ("README.md", text)]),
            ["README.md:1", "README.md:2", "README.md:3"]
        );
    }
}
