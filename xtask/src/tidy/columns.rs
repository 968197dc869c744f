//! Lines of prose have at most [`WIDEST`] columns.
//!
//! Prose is Markdown, comments in Rust, and lines that are comments in TOML, YAML and scripts.
//! Tables, code blocks and lines that consist of a link are exempt, because they cannot be broken.

use crate::source::Source;
use crate::tree::{Findings, Tree};

const RULE: &str = "columns";
/// Columns of a line, one per character.
const WIDEST: usize = 100;

pub(super) fn check(tree: &Tree, out: &mut Findings) {
    for source in &tree.sources {
        report(&source.path, &wide_comments(source), out);
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut prose = Prose::default();
        let lines = text.lines().enumerate();
        let wide = lines.filter(|(_, line)| prose.is_prose(line) && columns(line) > WIDEST);
        report(path, &wide.map(|(at, line)| (at + 1, columns(line))).collect::<Vec<_>>(), out);
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| has_hash_comments(path)) {
        let is_comment = |line: &str| line.trim_start().starts_with('#');
        let lines = text.lines().enumerate();
        let wide = lines.filter(|(_, line)| is_comment(line) && columns(line) > WIDEST);
        report(path, &wide.map(|(at, line)| (at + 1, columns(line))).collect::<Vec<_>>(), out);
    }
}

fn has_hash_comments(path: &str) -> bool {
    let is_script = |folder| path.starts_with(folder) && !path.ends_with(".md");
    ["scripts/", "packaging/", ".ci/"].into_iter().any(is_script)
        || path.ends_with(".toml")
        || path.ends_with(".yml")
}

fn report(path: &str, lines: &[(usize, usize)], out: &mut Findings) {
    for (line, columns) in lines {
        let message = format!("{columns} columns of prose, more than {WIDEST}: break the line");
        out.error(RULE, path, *line, message);
    }
}

fn columns(line: &str) -> usize {
    line.chars().count()
}

/// Number and width of each line that is too wide and has a comment.
fn wide_comments(source: &Source) -> Vec<(usize, usize)> {
    let mut wide = Vec::new();
    let mut prose = Prose::default();
    for (at, line) in source.lines.iter().enumerate() {
        let comment = source.comment(at + 1);
        if comment.is_empty() {
            // A code block ends with its comment.
            prose = Prose::default();
            continue;
        }
        let text = comment.trim_start_matches(['/', '!', '*']);
        if prose.is_prose(text) && columns(line) > WIDEST {
            wide.push((at + 1, columns(line)));
        }
    }
    wide
}

/// Reads Markdown line by line and tells prose from the rest.
#[derive(Default)]
struct Prose {
    in_code_block: bool,
}

impl Prose {
    fn is_prose(&mut self, line: &str) -> bool {
        let text = line.trim();
        if text.starts_with("```") {
            self.in_code_block = !self.in_code_block;
            return false;
        }
        !self.in_code_block && !text.starts_with('|') && !is_link_only(text)
    }
}

/// Whether the line is a link, a list item that is a link, or the definition of a link.
fn is_link_only(text: &str) -> bool {
    let text = text.trim_start_matches(['-', '*', ' ']);
    let definition = text.starts_with('[') && text.contains("]: ");
    let inline = text.starts_with(['[', '!']) && text.ends_with(')');
    let one = inline && text.matches("](").count() == 1 && !text.contains(") ");
    let bare = text.contains("://") && !text.contains(' ');
    definition || one || bare
}

#[cfg(test)]
mod tests {
    use super::super::locations;
    use super::*;

    const PATH: &str = "xtask/README.md";

    /// A line of `columns` columns that begins with `start`.
    fn line(start: &str, columns: usize) -> String {
        let rest = columns - start.chars().count();
        format!("{start}{}", "ü".repeat(rest))
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        locations(check, &[(path, text)])
    }

    #[test]
    fn wide_comments_of_scripts_are_found() {
        let text = format!("{}\n{}\n{}\n", line("# ", 100), line("  # ", 101), line("a ", 101));
        for path in ["scripts/stress", ".ci/run", ".github/workflows/ci.yml"] {
            assert_eq!(found(path, &text), [format!("{path}:2")]);
        }
    }

    #[test]
    fn wide_prose_is_found() {
        let text = format!("{}\n{}\n", line("a", WIDEST), line("a", WIDEST + 1));
        assert_eq!(found(PATH, &text), ["xtask/README.md:2"]);
        for start in ["// ", "/// ", "//! ", "fn f() {} // ", "/* */ // "] {
            let (good, bad) = (line(start, WIDEST), line(start, WIDEST + 1));
            let text = format!("{good}\nmod a {{\n{bad}\nfn g() {{}}\n}}\n");
            assert_eq!(found("xtask/src/lib.rs", &text), ["xtask/src/lib.rs:3"]);
        }
    }

    #[test]
    fn tables_code_blocks_and_links_pass() {
        let code = format!("```text\n{}\n```", line("a", 200));
        for free in [
            line("| ", 200),
            code,
            format!("[a](https://a.example/{})", line("a", 200)),
            format!("- ![a picture](docs/{})", line("a", 200)),
            format!("[a]: https://a.example/{}", line("a", 200)),
            format!("<https://a.example/{}>", line("a", 200)),
        ] {
            assert_eq!(found(PATH, &free), [""; 0], "{free}");
            let comment: Vec<String> = free.lines().map(|line| format!("//! {line}")).collect();
            assert_eq!(found("xtask/src/a.rs", &comment.join("\n")), [""; 0], "{free}");
        }
    }

    #[test]
    fn text_beside_a_link_and_after_a_code_block_is_prose() {
        let link = format!("see [a](https://a.example/{})", line("a", 200));
        assert_eq!(found(PATH, &link), ["xtask/README.md:1"]);
        let text = format!("```\na\n```\n{}", line("a", 101));
        assert_eq!(found(PATH, &text), ["xtask/README.md:4"]);
        let unclosed = format!("/// ```\nfn f() {{}}\n{}\nfn g() {{}}", line("/// ", 101));
        assert_eq!(found("xtask/src/a.rs", &unclosed), ["xtask/src/a.rs:3"]);
    }

    #[test]
    fn code_is_exempt() {
        let code = format!("const A: &str = \"{}\";", line("a", 200));
        assert_eq!(found("xtask/src/a.rs", &code), [""; 0]);
    }
}
