//! One step of a tier: its build, the binaries that it runs, and its needs.

/// Selects the test binaries of a build that a step runs.
pub(crate) type Pick = fn(&Binary) -> bool;

/// A test binary that cargo built.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) package: String,
    /// Name of the target: `it`, `model`, or the name of the crate for its unit tests.
    pub(crate) target: String,
    pub(crate) path: std::path::PathBuf,
    /// The package's folder, where its tests run.
    pub(crate) folder: std::path::PathBuf,
}

impl Binary {
    /// The display name, `package target`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }
}

/// The work of a step.
pub(crate) enum Work {
    /// A cargo command that builds or checks, and runs nothing.
    Cargo(Vec<String>),
    /// Builds by `cargo test --no-run`, for later steps that run binaries of the same build.
    Build(Vec<String>),
    /// Builds by `cargo test --no-run` with `build`, then runs the binaries that `pick` accepts.
    Tests { build: Vec<String>, pick: Pick, arguments: Vec<String> },
    /// A cargo command that builds and runs.
    Run(Vec<String>),
    /// A command of this program.
    Xtask(Vec<String>),
}

/// One step.
pub(crate) struct Step {
    /// A heading of a few words. `--resume` uses it as key.
    pub(crate) name: String,
    pub(crate) work: Work,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// A need of the step: one word, and a check whose error is the reason that it is not met.
    pub(crate) needs: Option<(&'static str, fn() -> Result<(), String>)>,
    /// Whether it runs beside the steps after it.
    pub(crate) is_beside: bool,
}

impl Step {
    fn new(name: &str, work: Work) -> Self {
        Step { name: name.to_owned(), work, environment: Vec::new(), needs: None, is_beside: false }
    }

    /// A step of a cargo command that builds or checks. `command` is split at spaces.
    pub(crate) fn cargo(name: &str, command: &str) -> Self {
        Self::new(name, Work::Cargo(words(command)))
    }

    /// A step of a cargo command that builds and runs.
    pub(crate) fn run(name: &str, command: &str) -> Self {
        Self::new(name, Work::Run(words(command)))
    }

    /// A step of a command of this program.
    pub(crate) fn xtask(name: &str, command: &str) -> Self {
        Self::new(name, Work::Xtask(words(command)))
    }

    /// A step that builds `cargo test {build} --no-run` and runs the binaries that `pick` selects.
    pub(crate) fn tests(name: &str, build: &str, pick: Pick) -> Self {
        let build = words(&format!("test {build} --no-run"));
        Self::new(name, Work::Tests { build, pick, arguments: Vec::new() })
    }

    /// Adds an argument that each test binary gets.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        if let Work::Tests { arguments, .. } = &mut self.work {
            arguments.push(argument.to_owned());
        }
        self
    }

    /// Adds an environment variable.
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((key, value.into()));
        self
    }

    /// Lets the step run beside the steps after it: it waits most of the time, or takes what CPU
    /// time they leave.
    pub(crate) fn beside(self) -> Self {
        Step { is_beside: true, ..self }
    }

    /// A step that only builds what this one runs, which then does not ask cargo again. `None` if
    /// it runs no test binaries.
    pub(crate) fn build_only(&self) -> Option<Self> {
        self.building(Work::Build)
    }

    /// A step beside others that only builds what this one runs, with one job.
    pub(crate) fn build_beside(&self) -> Option<Self> {
        let one_job = |build: Vec<String>| Work::Cargo([build, words("--jobs 1")].concat());
        self.building(one_job).map(Self::beside)
    }

    fn building(&self, work: impl FnOnce(Vec<String>) -> Work) -> Option<Self> {
        let Work::Tests { build, .. } = &self.work else { return None };
        let step = Self::new(&format!("build of {}", self.name), work(build.clone()));
        Some(Step { environment: self.environment.clone(), ..step })
    }

    /// Skips the step if `missing` returns an error.
    pub(crate) fn needs(self, need: &'static str, missing: fn() -> Result<(), String>) -> Self {
        Step { needs: Some((need, missing)), ..self }
    }

    /// The long form, in which the same tests search longer.
    pub(crate) fn long(self) -> Self {
        self.with("FOREBAY_FULL", "1").with("PROPTEST_CASES", "4096")
    }

    /// A command line that runs this step only.
    pub(crate) fn command_line(&self) -> String {
        let environment = self.environment.iter();
        let mut line: Vec<String> =
            environment.map(|(key, value)| format!("{key}={}", quoted(value))).collect();
        let (start, rest, after) = match &self.work {
            Work::Cargo(rest) | Work::Build(rest) | Work::Run(rest) => ("cargo", rest, &[][..]),
            Work::Xtask(rest) => ("cargo xtask", rest, &[][..]),
            Work::Tests { build, arguments, .. } => ("cargo", build, &arguments[..]),
        };
        line.push(start.to_owned());
        let runs = matches!(self.work, Work::Tests { .. });
        let rest = rest.iter().filter(|word| !runs || *word != "--no-run");
        line.extend(rest.map(|word| quoted(word)));
        if !after.is_empty() {
            line.push("--".to_owned());
            line.extend(after.iter().map(|word| quoted(word)));
        }
        line.join(" ")
    }
}

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted() {
        let step = Step::tests("x", "-p a --test model", |_| true);
        let step = step.argument("model::").with("RUSTFLAGS", "--cfg a_model");
        let line = "RUSTFLAGS='--cfg a_model' cargo test -p a --test model -- model::";
        assert_eq!(step.command_line(), line);
        assert_eq!(Step::xtask("tidy", "tidy").command_line(), "cargo xtask tidy");
        assert!(Step::xtask("tidy", "tidy").build_only().is_none());
        let line = "RUSTFLAGS='--cfg a_model' cargo test -p a --test model --no-run";
        let build = step.build_only().expect("it has a build");
        assert_eq!((build.name.as_str(), build.command_line().as_str()), ("build of x", line));
        // By this the step that runs them finds what was built.
        let (Work::Build(built), Work::Tests { build, .. }) = (&build.work, &step.work) else {
            panic!("a build and tests");
        };
        assert_eq!(built, build);
        let build = step.build_beside().expect("it has a build");
        assert!(build.is_beside);
        assert_eq!(build.command_line(), format!("{line} --jobs 1"));
    }
}
