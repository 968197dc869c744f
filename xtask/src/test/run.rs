//! Runs steps one after another and counts their tests.
//!
//! Output is searched for the result lines of Rust's test harness. The first step that fails ends
//! the run. The end of the run repeats its last lines, so that a reader of a long log finds the
//! cause.
//!
//! Tests that wait for other processes leave the CPUs idle. So several binaries of a step run at
//! once, and some steps run beside the next ones. Their output is held and printed afterwards. That
//! of a binary is also in a file while it runs, for a run that hangs or is killed.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::build::{Builds, cargo};
use super::report::StepReport;
use super::resume::ResumeState;
use super::skip::{self, Skip};
use super::step::{Binary, Step, Work};
use super::table;

/// Binaries whose tests compute that run at once. One alone leaves CPUs idle while its last tests
/// run, and while some of its tests wait.
const COMPUTING: usize = 2;
/// Test threads, however many cores there are, for tests that wait for other processes or the
/// kernel.
const PROCESS_TEST_THREADS: &str = "6";
/// A command that prints nothing for this long is killed, and its step fails.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(900);

/// The folder for the state of runs, below cargo's output folder.
pub(crate) fn scratch(root: &Path) -> io::Result<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let folder = std::path::absolute(target)?.join("xtask");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs the steps until one fails, and prints the table. A step that runs beside others begins in
/// its turn, and is awaited and printed at the end. If it has failed, no further step begins.
pub(crate) fn run(root: &Path, steps: &[Step], mut state: Option<ResumeState>) -> io::Result<bool> {
    let mut runner = Runner::new(root)?;
    let mut done: Vec<StepReport> = Vec::new();
    let (start, mut not_run) = (Instant::now(), &steps[..0]);
    let failed_beside = AtomicBool::new(false);
    thread::scope(|scope| {
        let (mut beside, failed_beside) = (Vec::new(), &failed_beside);
        for (at, step) in steps.iter().enumerate() {
            if failed_beside.load(Ordering::Relaxed) {
                not_run = &steps[at..];
                break;
            }
            println!("\n=== {}/{} {}\n    {}", at + 1, steps.len(), step.name, step.command_line());
            if state.as_ref().is_some_and(|state| state.has_passed(&step.name)) {
                println!("passed in the resumed run");
                continue;
            }
            if step.is_beside {
                println!("it runs beside the next steps, and is printed after them");
                let mut other = runner.second(&format!("step-{at}"));
                let held = StepReport::held(&step.name);
                let running = scope.spawn(move || {
                    let one = other.step(step, held);
                    let ok = one.as_ref().is_ok_and(|one| one.ok);
                    failed_beside.fetch_or(!ok, Ordering::Relaxed);
                    one
                });
                beside.push((step, running));
                continue;
            }
            let one = runner.step(step, StepReport::new(&step.name))?;
            done.push(one.end(step, state.as_mut())?);
            if !done.last().is_some_and(|one| one.ok) {
                not_run = &steps[at + 1..];
                break;
            }
        }
        for (step, running) in beside {
            println!("\n=== {}", step.name);
            let one = running.join().expect("no panic")?;
            done.push(one.end(step, state.as_mut())?);
        }
        io::Result::Ok(())
    })?;
    let not_run: Vec<_> = not_run.iter().map(|step| step.name.as_str()).collect();
    table::print(&done, &not_run, start.elapsed(), table::processor_time());
    Ok(done.iter().all(|one| one.ok))
}

/// Runs steps and reuses their builds.
pub(crate) struct Runner {
    root: PathBuf,
    builds: Builds,
    /// The file to which tests report that they were skipped.
    skips: PathBuf,
}

impl Runner {
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let skips = scratch(root)?.join(format!("skips-{}", std::process::id()));
        Ok(Runner { root: root.to_path_buf(), builds: Builds::default(), skips })
    }

    /// A runner that may run beside this one.
    fn second(&self, name: &str) -> Self {
        let mut skips = self.skips.clone().into_os_string();
        skips.push(".");
        skips.push(name);
        let skips = skips.into();
        Runner { root: self.root.clone(), builds: Builds::default(), skips }
    }

    /// The file with the output of a running binary.
    fn output_of(&self, binary: &str) -> PathBuf {
        let name = format!("output-{}-{}", std::process::id(), binary.replace(' ', "-"));
        self.skips.with_file_name(name)
    }

    /// Runs one step.
    pub(super) fn step(&mut self, step: &Step, mut done: StepReport) -> io::Result<StepReport> {
        if let Some((need, Err(why))) = step.needs.map(|(need, missing)| (need, missing())) {
            return missing_tool(done, need, why);
        }
        let start = Instant::now();
        match &step.work {
            Work::Cargo(arguments) => {
                let mut command = self.command(cargo(), arguments, step);
                match done.held {
                    // Silent while it waits for another build, or for a large crate.
                    Some(_) => self.run_and_read(command, Duration::MAX, &mut done)?,
                    None => done.ok = command.status()?.success(),
                }
                (done.building, done.running) = (start.elapsed(), Duration::ZERO);
            }
            Work::Build(build) => {
                let built = self.builds.binaries(&self.root, build, &step.environment)?;
                (done.ok, done.building) = (built.is_some(), start.elapsed());
            }
            Work::Run(arguments) => {
                let command = self.command(cargo(), arguments, step);
                self.run_and_count(command, &mut done)?;
            }
            Work::Xtask(arguments) => {
                let command = self.command(Command::new(std::env::current_exe()?), arguments, step);
                self.run_and_count(command, &mut done)?;
            }
            Work::Tests { build, pick, arguments } => {
                let binaries = self.builds.binaries(&self.root, build, &step.environment)?;
                done.building = start.elapsed();
                let binaries = binaries.map(|all| all.into_iter().filter(pick).collect::<Vec<_>>());
                self.binaries(step, binaries, arguments, &mut done)?;
            }
        }
        Ok(done)
    }

    /// Runs all binaries of a build, also after a failure, so that one failure does not hide
    /// another. [`COMPUTING`] of them run at once, and beside them one of those that mostly wait.
    /// The output of each is printed when it ends.
    fn binaries(
        &self,
        step: &Step,
        binaries: Option<Vec<Binary>>,
        arguments: &[String],
        done: &mut StepReport,
    ) -> io::Result<()> {
        let Some(binaries) = binaries else {
            done.ok = false;
            return Ok(());
        };
        let start = Instant::now();
        let (waiting, mut computing): (Vec<_>, Vec<_>) =
            binaries.into_iter().partition(mostly_waits);
        computing.sort_by_key(place);
        let queue = |all: Vec<Binary>| Mutex::new(VecDeque::from(all));
        let (waiting, computing) = (queue(waiting), queue(computing));
        let queues = [&[&waiting][..], &[&computing; COMPUTING]].concat();
        let report = Mutex::new(&mut *done);
        thread::scope(|scope| {
            let (report, mut workers) = (&report, Vec::new());
            for (number, queue) in queues.into_iter().enumerate() {
                let runner = self.second(&format!("worker-{number}"));
                let work = move || runner.work(step, queue, arguments, report);
                workers.push(scope.spawn(work));
            }
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
        done.running = start.elapsed();
        if done.ok && done.tests.passed == 0 {
            done.print_line("no test ran: this step must run at least one\n")?;
            done.ok = false;
        }
        Ok(())
    }

    /// Runs binaries of a queue until it is empty. The last lines of the report are those of the
    /// first binary that failed.
    fn work(
        &self,
        step: &Step,
        queue: &Mutex<VecDeque<Binary>>,
        arguments: &[String],
        report: &Mutex<&mut StepReport>,
    ) -> io::Result<()> {
        let next = || queue.lock().expect("no panic").pop_front();
        while let Some(binary) = next() {
            let name = binary.name();
            let live = self.output_of(&name);
            let shown = live.display();
            println!("    {name} begins; its output is in {shown}, and follows when it has ended");
            let mut held = StepReport::held(&step.name);
            held.live = Some(fs::File::create(&live)?);
            held.write(format!("\n    {name} ({})\n", binary.path.display()).as_bytes())?;
            if let Err(error) = self.binary(&binary, arguments, &step.environment, &mut held) {
                held.print_line(&format!("{name} cannot be run: {error}\n"))?;
                held.tests.failed += 1;
                held.ok = false;
            }
            held.name_failed(&name);
            report.lock().expect("no panic").append(held)?;
            fs::remove_file(&live)?;
        }
        Ok(())
    }

    /// Runs one test binary, or an example without a harness, in the environment that cargo sets.
    fn binary(
        &self,
        binary: &Binary,
        arguments: &[String],
        environment: &[(&'static str, String)],
        done: &mut StepReport,
    ) -> io::Result<()> {
        let mut command = Command::new(&binary.path);
        command.args(arguments).current_dir(&binary.folder);
        command.env("CARGO_MANIFEST_DIR", &binary.folder);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        if mostly_waits(binary) {
            command.env("RUST_TEST_THREADS", PROCESS_TEST_THREADS);
        }
        let before = done.tests;
        self.run_and_count(command, done)?;
        done.tests.count_binary(before, done.ok);
        Ok(())
    }

    fn command(&self, mut command: Command, arguments: &[String], step: &Step) -> Command {
        command.args(arguments).current_dir(&self.root);
        command.envs(step.environment.iter().map(|(key, value)| (key, value)));
        command
    }

    /// Runs a command, prints its output and counts its tests. Kills it if it prints nothing for
    /// [`OUTPUT_TIMEOUT`].
    fn run_and_count(&self, command: Command, done: &mut StepReport) -> io::Result<()> {
        self.run_and_read(command, OUTPUT_TIMEOUT, done)
    }

    fn run_and_read(
        &self,
        mut command: Command,
        timeout: Duration,
        done: &mut StepReport,
    ) -> io::Result<()> {
        let start = Instant::now();
        io::stdout().flush()?;
        let _ = fs::remove_file(&self.skips);
        command.env("FOREBAY_SKIPS", &self.skips);
        // Property tests know only the second one.
        let [seed, own] = ["FOREBAY_SEED", "PROPTEST_RNG_SEED"].map(std::env::var_os);
        if let Some(seed) = seed.filter(|_| own.is_none()) {
            command.env("PROPTEST_RNG_SEED", seed);
        }
        let (child, output): (_, Box<dyn Read + Send>) = if done.held.is_some() {
            // Errors too: amid the output of another step nobody would know whose they are.
            let (output, into) = io::pipe()?;
            let child = command.stdout(into.try_clone()?).stderr(into).spawn()?;
            // It has copies of the pipe, which would not end.
            drop(command);
            (child, Box::new(output))
        } else {
            let mut child = command.stdout(Stdio::piped()).spawn()?;
            let output = child.stdout.take().expect("its output is piped");
            (child, Box::new(output))
        };
        done.ok = read_output(child, output, timeout, done)?;
        done.skips.extend(skip::read(&fs::read_to_string(&self.skips).unwrap_or_default()));
        let _ = fs::remove_file(&self.skips);
        done.running += start.elapsed();
        Ok(())
    }
}

/// Prints the output of a command until it ends. Kills it if it prints nothing for `timeout`.
fn read_output(
    mut child: Child,
    output: Box<dyn Read + Send>,
    timeout: Duration,
    done: &mut StepReport,
) -> io::Result<bool> {
    let (sender, lines) = channel();
    let reader = thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            if sender.send(text).is_err() {
                break;
            }
        }
    });
    loop {
        match lines.recv_timeout(timeout) {
            Ok(line) => done.print_line(&line)?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                done.print_line(&format!(
                    "nothing was printed for {} s: killed\n",
                    timeout.as_secs()
                ))?;
                child.kill()?;
                child.wait()?;
                // Processes that the command started may hold the pipe, so do not read to its end.
                return Ok(false);
            }
        }
    }
    let _ = reader.join();
    Ok(child.wait()?.success())
}

/// Whether the tests of a binary wait most of the time: for other processes, the kernel, leases and
/// outages.
fn mostly_waits(binary: &Binary) -> bool {
    ["cli", "fuse"].contains(&binary.package.as_str()) && binary.target == "it"
}

/// The place of a binary that computes: integration tests take longest, most of all those of
/// `forebay-sim`, so they must not be the last ones.
fn place(binary: &Binary) -> (bool, bool) {
    (binary.target != "it", binary.package != "sim")
}

/// Reports a step whose tool is missing as skipped, or as failed if the tool is required.
fn missing_tool(mut done: StepReport, need: &str, reason: String) -> io::Result<StepReport> {
    done.ok = !skip::is_required(need);
    done.write(format!("SKIPPED: no {need}: {reason}\n").as_bytes())?;
    let test = format!("the step `{}`", done.name);
    done.skips.push(Skip { test, need: need.to_owned(), reason });
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A runner in an empty folder.
    fn fixture(name: &str) -> Runner {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Runner { skips: root.join("s"), root, builds: Builds::default() }
    }

    /// Runs a script as the tests of the command line, and as those of these packages.
    fn run_script(name: &str, packages: &[&str], script: &str) -> StepReport {
        let runner = fixture(name);
        let binary = |package: &&str| {
            let folder = runner.root.join(package);
            fs::create_dir_all(&folder).unwrap();
            let (package, target) = (package.to_string(), "it".to_owned());
            Binary { package, target, path: PathBuf::from("/bin/sh"), folder }
        };
        let binaries = Some(["cli"].iter().chain(packages).map(binary).collect());
        let (step, arguments) = (Step::tests("x", "", |_| true), ["-c", script].map(str::to_owned));
        // As if it were printed later, so that the test sees it.
        let mut done = StepReport::held("x");
        runner.binaries(&step, binaries, &arguments, &mut done).unwrap();
        fs::remove_dir_all(&runner.root).unwrap();
        done
    }

    #[test]
    fn several_binaries_run_at_once_and_each_is_printed_as_a_whole() {
        // Each one waits for the others.
        let script = r#"
            me=$(basename "$PWD"); touch ../ran-$me; rounds=0
            until [ -e ../ran-cli -a -e ../ran-pool -a -e ../ran-sim ]; do
                rounds=$((rounds + 1)); [ $rounds -gt 12000 ] && exit 1; sleep 0.01
            done
            printf 'a test\t%s\tmissing\n' $me >> "$FOREBAY_SKIPS"
            echo "trouble of $me" >&2; echo "test $me"; echo "test result: ok. 2 passed; 0 failed""#;
        let done = run_script("beside", &["pool", "sim"], script);
        let output = String::from_utf8(done.held.clone().unwrap()).unwrap();
        assert!(done.ok, "{output}");
        assert_eq!(done.counts(), (3, 0), "six passed, three of which were skipped");
        let needs: BTreeSet<_> = done.skips.iter().map(|skip| skip.need.as_str()).collect();
        assert_eq!(needs, ["cli", "pool", "sim"].into());
        for name in ["cli", "pool", "sim"] {
            let whole = format!(
                "\n    {name} it (/bin/sh)\ntrouble of {name}\ntest {name}\ntest result: ok."
            );
            assert!(output.contains(&whole), "{output}");
        }
    }

    #[test]
    fn a_binary_that_cannot_be_run_is_named_and_the_others_run() {
        let runner = fixture("missing");
        let binary = |package: &str, path: &str| Binary {
            package: package.to_owned(),
            target: "it".to_owned(),
            path: PathBuf::from(path),
            folder: runner.root.clone(),
        };
        let binaries = vec![binary("pool", "/no/such/program"), binary("sim", "/bin/true")];
        let mut done = StepReport::held("x");
        let step = Step::tests("x", "", |_| true);
        runner.binaries(&step, Some(binaries), &[], &mut done).unwrap();
        assert_eq!((done.ok, done.counts()), (false, (1, 1)));
        assert!(done.last.back().unwrap().starts_with("pool it cannot be run: "));
        assert_eq!(fs::read_dir(&runner.root).unwrap().count(), 0, "no file is left");
        fs::remove_dir_all(&runner.root).unwrap();
    }

    #[test]
    fn what_takes_long_begins_first() {
        let binary = |(package, target): (&str, &str)| Binary {
            package: package.to_owned(),
            target: target.to_owned(),
            path: PathBuf::new(),
            folder: PathBuf::new(),
        };
        let names = [("base", "forebay_base"), ("fs", "it"), ("sim", "forebay_sim"), ("sim", "it")];
        let mut binaries = names.map(binary);
        binaries.sort_by_key(place);
        let order = binaries.map(|binary| binary.name());
        assert_eq!(order, ["sim it", "fs it", "sim forebay_sim", "base forebay_base"]);
    }

    #[test]
    fn a_step_beside_others_can_fail_the_run() {
        let runner = fixture("steps");
        let result = |steps: &[Step]| run(&runner.root, steps, None).unwrap();
        // This program is a harness, which knows no such test and no such option.
        let well = || Step::xtask("well", "no::such::test");
        let broken = || Step::xtask("broken", "--no-such-option").beside();
        assert!(result(&[well().beside(), well()]));
        assert!(!result(&[broken(), well()]));
        assert!(!result(&[well().beside(), Step::xtask("broken", "--no-such-option")]));
        // What only builds as well.
        let build = |command| Step::cargo("build", command).beside();
        assert!(result(&[build("--version"), well()]));
        assert!(!result(&[build("no-such-command"), well()]));
        fs::remove_dir_all(&runner.root).unwrap();
    }

    #[test]
    fn no_step_begins_after_one_beside_it_has_failed() {
        static BEGAN: AtomicBool = AtomicBool::new(false);
        let runner = fixture("early");
        let well = || Step::xtask("well", "no::such::test");
        let noted = well().needs("nothing", || {
            BEGAN.store(true, Ordering::Relaxed);
            Ok(())
        });
        // Each step waits for a process. By far before the last one, the first one has failed.
        let mut steps = vec![Step::xtask("broken", "--no-such-option").beside()];
        steps.extend((0..2000).map(|_| well()));
        steps.push(noted);
        assert!(!run(&runner.root, &steps, None).unwrap());
        assert!(!BEGAN.load(Ordering::Relaxed));
        fs::remove_dir_all(&runner.root).unwrap();
    }

    #[test]
    fn the_last_lines_are_those_of_the_binary_that_failed() {
        for fails in ["cli", "pool"] {
            let script = format!(
                "case $PWD in */{fails}) echo broken; exit 1;; esac; echo well; \
                 echo 'test result: ok. 1 passed; 0 failed'"
            );
            let done = run_script(fails, &["pool", "sim"], &script);
            assert_eq!((done.ok, done.counts()), (false, (2, 1)), "{fails}");
            assert_eq!(done.last.back().unwrap(), "broken", "{fails}");
            assert_eq!(done.failed, [format!("{fails} it")]);
        }
    }

    #[test]
    fn an_example_counts_as_one_test() {
        let runner = fixture("example");
        let root = runner.root.clone();
        let run = |script: &str| {
            let path = PathBuf::from("/bin/sh");
            let (package, target) = ("cache".to_owned(), "classes".to_owned());
            let binary = Binary { package, target, path, folder: root.clone() };
            let mut done = StepReport::new("examples");
            runner.binary(&binary, &["-c".to_owned(), script.to_owned()], &[], &mut done).unwrap();
            (done.ok, done.tests.passed, done.tests.failed)
        };
        assert_eq!(run("echo it holds"), (true, 1, 0));
        assert_eq!(run("exit 101"), (false, 0, 1));
        fs::remove_dir_all(&root).unwrap();
    }
}
