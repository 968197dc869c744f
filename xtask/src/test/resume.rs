//! The steps of a long run that passed, so that `--resume` skips them.
//!
//! The state has a hash of all source files. After a change all steps run again.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::tree::Tree;

/// The steps that passed, and the file that stores them.
pub(crate) struct ResumeState {
    file: PathBuf,
    sources: String,
    passed: BTreeSet<String>,
}

impl ResumeState {
    /// Reads the state. It is empty without `resume`, or if the sources have changed.
    pub(crate) fn open(root: &Path, tree: &Tree, resume: bool) -> io::Result<Self> {
        let folder = super::run::scratch(root)?;
        let mut hasher = DefaultHasher::new();
        tree.texts.hash(&mut hasher);
        let sources = format!("{:016x}", hasher.finish());
        let mut state =
            ResumeState { file: folder.join("full-passed"), sources, passed: BTreeSet::new() };
        if resume {
            let text = fs::read_to_string(&state.file).unwrap_or_default();
            state.read(&text);
        }
        Ok(state)
    }

    fn read(&mut self, text: &str) {
        let mut lines = text.lines();
        if lines.next() == Some(self.sources.as_str()) {
            self.passed = lines.map(str::to_owned).collect();
        } else if !text.is_empty() {
            println!("the sources have changed since the interrupted run: all steps run");
        }
    }

    /// Whether a step passed in the resumed run.
    pub(crate) fn has_passed(&self, step: &str) -> bool {
        self.passed.contains(step)
    }

    /// Stores that a step passed.
    pub(crate) fn pass(&mut self, step: &str) -> io::Result<()> {
        self.passed.insert(step.to_owned());
        let steps: Vec<&str> = self.passed.iter().map(String::as_str).collect();
        fs::write(&self.file, format!("{}\n{}\n", self.sources, steps.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ResumeState {
        ResumeState { file: PathBuf::new(), sources: "12ab".to_owned(), passed: BTreeSet::new() }
    }

    #[test]
    fn steps_of_the_same_sources_are_not_run_again() {
        let mut same = state();
        same.read("12ab\ntidy\nthe model checks\n");
        assert!(same.has_passed("tidy") && same.has_passed("the model checks"));
        assert!(!same.has_passed("clippy"));
        let mut other = state();
        other.read("77ff\ntidy\n");
        assert!(!other.has_passed("tidy"));
    }
}
