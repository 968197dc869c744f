//! Generated files are what their generator makes of today's tables.

use crate::docs::Generated;
use crate::tree::{Findings, Tree};

const RULE: &str = "generated";

pub(super) fn check(tree: &Tree, generated: &[Generated], out: &mut Findings) {
    for file in generated {
        if tree.texts.get(file.path) != Some(&file.text) {
            let message = "is stale: run `cargo xtask docs`".to_owned();
            out.error(RULE, file.path, 0, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_missing_files_are_found() {
        let file = |path, text: &str| Generated { path, text: text.to_owned() };
        let generated = [file("a.md", "new"), file("b.md", "same"), file("c.md", "missing")];
        let mut out = Findings::default();
        check(&Tree::fixture(&[("a.md", "old"), ("b.md", "same")]), &generated, &mut out);
        let paths: Vec<_> = out.all.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["a.md", "c.md"]);
    }
}
