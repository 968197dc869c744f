//! A folder of a test's own, with a run directory in it, and the program run there.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What is waited for comes within this time, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// The program with these arguments, in this place.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_forebay")), arguments)
    }

    pub(crate) fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder.path());
        command
            .env("FOREBAY_RUN_DIR", self.run_dir())
            .env("FOREBAY_STATE_DIR", self.path("state"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program runs")
    }

    /// Runs it, and it must succeed; what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        out
    }

    /// Runs it, and it must fail as users are promised; what it said. For commands that monitors
    /// call, it must fail because the pool cannot be used.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        failed(&self.run(arguments), failure_code(arguments), arguments)
    }

    /// Runs it, and it must find the command line wrong; what it said.
    #[track_caller]
    pub(crate) fn misused(&self, arguments: &[&str]) -> String {
        failed(&self.run(arguments), 2, arguments)
    }

    /// Starts it in the foreground.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Running { child: Some(command.spawn().expect("the program starts")) }
    }

    /// Processes with pools, as `list --json` has them: those that answer.
    pub(crate) fn processes(&self) -> Vec<serde_json::Value> {
        let (out, _) = texts(&self.run(&["list", "--json"]));
        if out.is_empty() {
            return Vec::new();
        }
        let listed: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        listed.as_array().expect("a list").clone()
    }

    /// Whether a daemon lists a mount at a place.
    fn lists(&self, at: &Path) -> bool {
        let processes = self.processes();
        let lists = |of: &serde_json::Value, name: &str| of[name].as_array().cloned();
        let pools = processes.iter().filter_map(|process| lists(process, "pools")).flatten();
        let mut mounts = pools.filter_map(|pool| lists(&pool, "mounts")).flatten();
        mounts.any(|mount| mount["at"].as_str().map(Path::new) == Some(at))
    }

    /// Makes a pool of 64 MiB in a file.
    pub(crate) fn pool(&self, file: &str) {
        self.ok(&["create", file, "--size", "64M"]);
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("a folder");
        path
    }
}

/// A log that stays says that something went wrong in the background.
fn assert_no_panics(run_dir: &Path) {
    let Ok(entries) = std::fs::read_dir(run_dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(!log.contains("panicked"), "{}: {log}", path.display());
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop_all();
        if !std::thread::panicking() {
            assert_no_panics(&self.run_dir());
        }
    }
}

impl Fixture {
    fn stop_all(&self) {
        // What a failed test leaves running.
        let Ok(entries) = std::fs::read_dir(self.run_dir()) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let pid = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .and_then(|stem| stem.parse::<i32>().ok());
            if let Some(pid) = pid.filter(|pid| is_ours(*pid)) {
                signal(pid, libc::SIGTERM);
                let until = Instant::now() + PATIENCE;
                while is_ours(pid) && Instant::now() < until {
                    pause();
                }
            }
        }
    }
}

fn is_ours(pid: i32) -> bool {
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    command.trim().contains("forebay")
}

pub(crate) fn signal(pid: i32, signal: i32) {
    // SAFETY: it takes numbers only.
    unsafe { libc::kill(pid, signal) };
}

pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}: in vain");
        pause();
    }
}

/// The exit code of a command that cannot use the pool, or fails otherwise.
pub(crate) fn failure_code(arguments: &[&str]) -> i32 {
    match ["list", "status", "scrub", "check"].contains(&arguments[0]) {
        true => 2,
        false => 1,
    }
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A failure is one line on standard error that begins with the program's name, with the right exit
/// code.
#[track_caller]
pub(crate) fn failed(output: &Output, code: i32, what: &[&str]) -> String {
    let (out, err) = texts(output);
    assert_eq!(output.status.code(), Some(code), "{what:?}: {out}{err}");
    let mut lines = err.lines();
    let line = lines.next().unwrap_or_default().to_owned();
    assert!(line.starts_with("forebay: "), "{what:?}: {err}");
    assert_eq!(lines.next(), None, "{what:?} says more than a line: {err}");
    line
}

/// A process in the foreground.
pub(crate) struct Running {
    child: Option<Child>,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    /// Reads lines of its standard output up to the first that has this text.
    #[track_caller]
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let output = self.child.as_mut().and_then(|child| child.stdout.as_mut()).expect("it runs");
        Self::read_lines(output, text)
    }

    /// As [`read_until`](Self::read_until), of its standard error.
    #[track_caller]
    pub(crate) fn read_error_until(&mut self, text: &str) -> String {
        let output = self.child.as_mut().and_then(|child| child.stderr.as_mut()).expect("it runs");
        Self::read_lines(output, text)
    }

    #[track_caller]
    fn read_lines(output: &mut impl Read, text: &str) -> String {
        let (mut read, mut byte) = (Vec::new(), [0]);
        // Byte by byte: what follows is for others to read.
        while output.read(&mut byte).expect("its output") > 0 {
            read.push(byte[0]);
            if byte[0] == b'\n' && String::from_utf8_lossy(&read).contains(text) {
                return String::from_utf8_lossy(&read).into_owned();
            }
        }
        panic!("it ended without {text:?}: {}", String::from_utf8_lossy(&read));
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Output {
        self.child.take().expect("it runs").wait_with_output().expect("it ends")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            signal(child.id() as i32, libc::SIGTERM);
            let _ = child.wait();
        }
    }
}

/// Whether something is mounted at a place.
pub(crate) fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let at = at.to_str().expect("a plain path");
    table.lines().any(|line| line.split(' ').nth(4) == Some(at))
}

/// Whether FUSE works here; says that the test is skipped if not.
pub(crate) fn fuse() -> bool {
    match forebay_fuse::available() {
        Ok(()) => true,
        Err(error) => {
            forebay_base::testing::skip("fuse", error);
            false
        }
    }
}

/// Whether this is root; says that the test is skipped if not.
pub(crate) fn root() -> bool {
    // SAFETY: it has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        forebay_base::testing::skip("root", "the test changes users, or mounts by itself");
    }
    root
}

/// Starts a mount in the foreground, and waits until it is there and its daemon lists it. The
/// kernel shows it a little earlier.
pub(crate) fn mounted(fixture: &Fixture, arguments: &[&str], at: &Path) -> Running {
    let mut running = fixture.start(arguments);
    wait_until("it is mounted", || {
        assert!(!running.has_ended(), "it has ended");
        is_mounted(at) && fixture.lists(at)
    });
    running
}
