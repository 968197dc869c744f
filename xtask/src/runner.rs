//! Runs steps one after another and keeps count.
//!
//! A step is a command. Its standard output is passed on line by line and read on the way for
//! the result lines of Rust's test harness, so that tests can be counted, not only steps. The
//! first step that fails ends the run, and the summary repeats the end of what it printed: of a long log, that is
//! what one gets to see.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Lines of a failed step that the summary repeats.
const LAST_LINES: usize = 25;

/// One command to run.
pub(crate) struct Step {
    /// A heading of a few words.
    pub(crate) name: String,
    /// Arguments of `cargo`.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The step fails if it runs no test: a wrong flag would leave nothing to run, silently.
    pub(crate) needs_tests: bool,
}

impl Step {
    /// A step without environment; `command` is split at blanks.
    pub(crate) fn new(name: &str, command: &str) -> Step {
        Step {
            name: name.to_owned(),
            arguments: command.split_whitespace().map(str::to_owned).collect(),
            environment: Vec::new(),
            needs_tests: false,
        }
    }

    /// Makes it a failure to run no test.
    pub(crate) fn needs_tests(self) -> Step {
        Step { needs_tests: true, ..self }
    }

    /// Adds an environment variable.
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<String>) -> Step {
        self.environment.push((key, value.into()));
        self
    }

    /// The line to type to run this step alone.
    pub(crate) fn command_line(&self) -> String {
        let mut words: Vec<String> = self
            .environment
            .iter()
            .map(|(key, value)| format!("{key}={}", quoted(value)))
            .collect();
        words.push("cargo".to_owned());
        words.extend(self.arguments.iter().map(|argument| quoted(argument)));
        words.join(" ")
    }

    fn command(&self, root: &Path) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        // What `cargo run` tells about this crate would be wrong for the crates of the step.
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&key);
            }
        }
        command.args(&self.arguments).current_dir(root);
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

/// How many tests a harness ran, as its result lines tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tests {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Tests {
    /// Adds the counts of a line such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`; others are passed over.
    fn read(&mut self, line: &str) {
        let Some(counts) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.ignored += count,
                _ => {}
            }
        }
    }

    fn any(self) -> bool {
        self.passed + self.failed > 0
    }
}

/// What became of a step.
struct Done {
    name: String,
    took: Duration,
    ok: bool,
    tests: Tests,
    /// The end of its output, as far as [`LAST_LINES`].
    last: VecDeque<String>,
}

impl Done {
    /// What the step counts for: its tests where it has any, one otherwise. A step that fails
    /// though none of its tests did (it may not have compiled) counts as one failure more.
    fn counts(&self) -> (u64, u64) {
        let Tests { passed, failed, .. } = self.tests;
        match (self.tests.any(), self.ok) {
            (false, true) => (1, 0),
            (_, false) if failed == 0 => (passed, 1),
            _ => (passed, failed),
        }
    }
}

/// Runs the steps until one fails; prints a summary whose last line is `N passed, N failed`.
pub(crate) fn run(root: &Path, steps: &[Step]) -> io::Result<bool> {
    let mut done: Vec<Done> = Vec::new();
    let start = Instant::now();
    for (at, step) in steps.iter().enumerate() {
        println!("\n=== {}/{} {}\n    {}", at + 1, steps.len(), step.name, step.command_line());
        let one = run_step(root, step)?;
        let verdict = if one.ok { "ok" } else { "FAILED" };
        println!("--- {}: {verdict}, {:.1} s", one.name, one.took.as_secs_f64());
        let ok = one.ok;
        done.push(one);
        if !ok {
            println!("\nto repeat it:\n    {}", step.command_line());
            break;
        }
    }
    summarise(&done, steps, start.elapsed());
    Ok(done.len() == steps.len() && done.iter().all(|one| one.ok))
}

fn run_step(root: &Path, step: &Step) -> io::Result<Done> {
    let start = Instant::now();
    io::stdout().flush()?;
    let mut child = step.command(root).stdout(Stdio::piped()).spawn()?;
    let mut tests = Tests::default();
    let mut last = VecDeque::new();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            tests.read(&text);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text.trim_end().to_owned());
            io::stdout().write_all(&line)?;
            line.clear();
        }
    }
    let mut ok = child.wait()?.success();
    if ok && step.needs_tests && !tests.any() {
        println!("no test ran, though this step is there to run some");
        ok = false;
    }
    Ok(Done { name: step.name.clone(), took: start.elapsed(), ok, tests, last })
}

fn summarise(done: &[Done], steps: &[Step], took: Duration) {
    println!("\n=== summary, {:.0} s", took.as_secs_f64());
    let (mut passed, mut failed) = (0, 0);
    for one in done {
        let (ok, not) = one.counts();
        passed += ok;
        failed += not;
        let verdict = if one.ok { "ok" } else { "FAILED" };
        let tests = match one.tests {
            Tests { ignored: 0, passed, .. } if one.tests.any() => {
                format!(", {passed} tests passed")
            }
            Tests { ignored, passed, .. } if one.tests.any() => {
                format!(", {passed} tests passed, {ignored} ignored")
            }
            _ => String::new(),
        };
        println!("{verdict:>6}  {:6.1} s  {}{tests}", one.took.as_secs_f64(), one.name);
    }
    for step in &steps[done.len()..] {
        println!("{:>6}  {:>8}  {}", "not run", "", step.name);
    }
    for one in done.iter().filter(|one| !one.ok) {
        println!("the end of what `{}` printed:", one.name);
        one.last.iter().for_each(|line| println!("    {line}"));
    }
    println!("{passed} passed, {failed} failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let mut tests = Tests::default();
        tests.read("running 4 tests");
        tests.read("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s");
        tests
            .read("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tests, Tests { passed: 8, failed: 2, ignored: 1 });
    }

    fn counts(ok: bool, passed: u64, failed: u64) -> (u64, u64) {
        let tests = Tests { passed, failed, ignored: 0 };
        Done { name: String::new(), took: Duration::ZERO, ok, tests, last: VecDeque::new() }
            .counts()
    }

    #[test]
    fn a_step_counts_its_tests_or_itself() {
        assert_eq!(counts(true, 0, 0), (1, 0));
        assert_eq!(counts(false, 0, 0), (0, 1));
        assert_eq!(counts(true, 7, 0), (7, 0));
        assert_eq!(counts(false, 7, 2), (7, 2));
        assert_eq!(counts(false, 7, 0), (7, 1), "one binary passed, the next did not compile");
    }

    #[test]
    fn a_command_line_can_be_pasted() {
        let step = Step::new("x", "test -p a").with("RUSTFLAGS", "--cfg a_model");
        assert_eq!(step.command_line(), "RUSTFLAGS='--cfg a_model' cargo test -p a");
    }
}
