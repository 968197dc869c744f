//! The result of a step: counts of tests, and the output that tells why it failed.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::time::Duration;

use super::resume::ResumeState;
use super::skip::Skip;
use super::step::Step;

/// Number of last lines of a failed step that the end of the run repeats.
const LAST_LINES: usize = 40;

/// Counts of tests, from the result lines of the harness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Result lines read.
    pub(crate) results: u64,
}

impl Tests {
    /// Adds the counts of a line such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`. Ignores other lines.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(counts) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        self.results += 1;
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                _ => {}
            }
        }
    }

    /// Counts a binary as one test, passed if `ok`, unless it printed a result line since `before`.
    /// An example has no harness, and a harness that crashed prints no result line.
    pub(super) fn count_binary(&mut self, before: Tests, ok: bool) {
        if self.results == before.results {
            self.passed += u64::from(ok);
            self.failed += u64::from(!ok);
        }
    }
}

/// The result of a step.
pub(crate) struct StepReport {
    pub(crate) name: String,
    pub(crate) ok: bool,
    pub(crate) building: Duration,
    pub(crate) running: Duration,
    pub(crate) tests: Tests,
    pub(crate) skips: Vec<Skip>,
    /// The last [`LAST_LINES`] lines of its output.
    pub(crate) last: VecDeque<String>,
    /// The failed tests of its binaries, by name.
    pub(crate) failed: Vec<String>,
    /// Its output so far, if it is to be printed later.
    pub(super) held: Option<Vec<u8>>,
    /// Gets what is held at once.
    pub(super) live: Option<fs::File>,
}

impl StepReport {
    pub(crate) fn new(name: &str) -> Self {
        StepReport {
            name: name.to_owned(),
            ok: true,
            building: Duration::ZERO,
            running: Duration::ZERO,
            tests: Tests::default(),
            skips: Vec::new(),
            last: VecDeque::new(),
            failed: Vec::new(),
            held: None,
            live: None,
        }
    }

    /// A report whose output [`append`](Self::append) prints.
    pub(super) fn held(name: &str) -> Self {
        StepReport { held: Some(Vec::new()), ..Self::new(name) }
    }

    /// Prints what was held and the result, and notes a step that passed.
    pub(super) fn end(mut self, step: &Step, state: Option<&mut ResumeState>) -> io::Result<Self> {
        if let Some(held) = self.held.take() {
            self.write(&held)?;
        }
        println!("--- {}: {}", self.name, if self.ok { "ok" } else { "FAILED" });
        if !self.ok {
            println!("\nrepeat this step with:\n    {}", step.command_line());
        }
        // A step with skips runs again, because its needs may be met then.
        if let Some(state) = state.filter(|_| self.ok && self.skips.is_empty()) {
            state.pass(&self.name)?;
        }
        Ok(self)
    }

    /// Adds a report of the same step, and prints its output.
    pub(super) fn append(&mut self, other: StepReport) -> io::Result<()> {
        self.write(&other.held.unwrap_or_default())?;
        self.tests.passed += other.tests.passed;
        self.tests.failed += other.tests.failed;
        self.tests.results += other.tests.results;
        self.skips.extend(other.skips);
        self.failed.extend(other.failed);
        if self.ok && !other.ok {
            (self.ok, self.last) = (false, other.last);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.held {
            Some(held) => {
                held.write_all(bytes)?;
                self.live.as_mut().map_or(Ok(()), |live| live.write_all(bytes))
            }
            None => io::stdout().write_all(bytes),
        }
    }

    /// Numbers of passed and failed tests. A step without tests counts as one test. So does a step
    /// that fails without a failed test, because it may not have compiled. The harness counts a
    /// skipped test as passed, because it returns early; this function does not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let Tests { passed, failed, .. } = self.tests;
        let skipped = self.skips.len() as u64;
        match (passed + failed > 0, self.ok) {
            (false, true) => (u64::from(skipped == 0), 0),
            (_, false) if failed == 0 => (passed.saturating_sub(skipped), 1),
            _ => (passed.saturating_sub(skipped), failed),
        }
    }

    pub(super) fn print_line(&mut self, line: &str) -> io::Result<()> {
        self.tests.read(line);
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.trim_end().to_owned());
        self.write(line.as_bytes())
    }

    /// Names the failed tests of `binary`, whose report this is, or the binary if it failed and
    /// names none.
    pub(super) fn name_failed(&mut self, binary: &str) {
        if self.ok {
            return;
        }
        let named = self.last.iter().filter_map(|line| {
            let name = line.strip_prefix("    ")?;
            (!name.contains(' ') && name.contains("::")).then(|| format!("{binary}: {name}"))
        });
        self.failed.extend(named);
        if self.failed.is_empty() {
            self.failed.push(binary.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::skip;
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let mut tests = Tests::default();
        tests.read("running 4 tests");
        tests.read("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; finished in 0.01s");
        tests.read("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured");
        assert_eq!(tests, Tests { passed: 8, failed: 2, results: 2 });
    }

    #[test]
    fn a_harness_counts_by_its_result_line() {
        let before = Tests { passed: 5, failed: 0, results: 1 };
        let mut tests = before;
        tests.read("test result: ok. 0 passed; 0 failed");
        tests.count_binary(before, true);
        assert_eq!((tests.passed, tests.failed), (5, 0), "an example with a harness has no tests");
        let before = tests;
        tests.count_binary(before, false);
        assert_eq!((tests.passed, tests.failed), (5, 1), "a harness that crashed");
    }

    fn counts(ok: bool, passed: u64, failed: u64, skipped: usize) -> (u64, u64) {
        let mut done = StepReport::new("x");
        (done.ok, done.tests) = (ok, Tests { passed, failed, results: 1 });
        done.skips = skip::read(&"a test\tfuse\tno /dev/fuse\n".repeat(skipped));
        done.counts()
    }

    #[test]
    fn a_step_counts_its_tests_or_itself() {
        assert_eq!(counts(true, 0, 0, 0), (1, 0));
        assert_eq!(counts(false, 0, 0, 0), (0, 1));
        assert_eq!(counts(true, 7, 0, 0), (7, 0));
        assert_eq!(counts(false, 7, 2, 0), (7, 2));
        assert_eq!(counts(false, 7, 0, 0), (7, 1), "one binary passed, the next did not compile");
    }

    #[test]
    fn skipped_tests_and_steps_are_not_passed() {
        assert_eq!(counts(true, 7, 0, 2), (5, 0));
        assert_eq!(counts(true, 0, 0, 1), (0, 0), "a step whose tool is missing");
    }

    #[test]
    fn failed_tests_are_named() {
        let mut done = StepReport::new("tests");
        done.last = ["failures:", "    memory::a_wait", "", "test result: FAILED."]
            .map(str::to_owned)
            .into();
        done.name_failed("io it");
        assert!(done.failed.is_empty(), "it passed");
        done.ok = false;
        done.name_failed("io it");
        assert_eq!(done.failed, ["io it: memory::a_wait"]);
        let mut crashed = StepReport { ok: false, ..StepReport::new("tests") };
        crashed.name_failed("l2 it");
        assert_eq!(crashed.failed, ["l2 it"]);
        done.append(crashed).unwrap();
        assert_eq!(done.failed, ["io it: memory::a_wait", "l2 it"]);
    }
}
