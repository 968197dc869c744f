//! A folder to work in, pools and mounts in it, and commands whose output is kept.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Failure;

/// Names a binary to try instead of this workspace's.
const BINARY: &str = "FOREBAY_BINARY";
/// Memory of a server, small enough that caches turn over.
const MEMORY: &str = "256MiB";
/// A server has so long to come up, and to end.
const SERVER_TIME: Duration = Duration::from_secs(60);
/// The longest wait for any command that names no other.
const COMMAND_TIME: Duration = Duration::from_secs(600);
/// Bytes of a log's end that a failure shows.
const TAIL: u64 = 3000;

/// Whether mounts can be made here; if not, what is missing and why.
pub(super) fn permitted() -> Result<(), (&'static str, String)> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| ("fuse", format!("/dev/fuse: {error}")))?;
    // Who owns what this process makes is who it runs as.
    let probe = std::env::temp_dir().join(format!("forebay-probe-{}", std::process::id()));
    let owner = File::create(&probe)
        .and_then(|file| file.metadata())
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m));
    let _ = fs::remove_file(&probe);
    match owner {
        Ok(0) => Ok(()),
        Ok(_) => Err(("root", "the suites change users".to_owned())),
        Err(error) => Err(("root", format!("{}: {error}", probe.display()))),
    }
}

/// The seed of random work: `FOREBAY_SEED`, otherwise 1, or the clock in a long run.
fn seed(full: bool) -> Result<u64, Failure> {
    match std::env::var("FOREBAY_SEED") {
        Ok(text) => text.parse().map_err(|_| format!("FOREBAY_SEED={text} is not a number")),
        Err(_) if full => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(now.as_nanos() as u64 >> 10)
        }
        Err(_) => Ok(1),
    }
}

/// What all checks share.
pub(super) struct Bench {
    pub(super) root: PathBuf,
    /// Cargo's output folder.
    pub(super) target: PathBuf,
    forebay: PathBuf,
    /// Long runs.
    pub(super) full: bool,
    /// `FOREBAY_SEED`; without it, the same in every ordinary run.
    pub(super) seed: u64,
}

impl Bench {
    /// Builds the binary.
    pub(super) fn new(root: &Path, full: bool) -> Result<Self, Failure> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = std::path::absolute(target).map_err(|error| error.to_string())?;
        let seed = seed(full)?;
        println!("FOREBAY_SEED={seed}");
        let root = root.to_path_buf();
        if let Some(binary) = std::env::var_os(BINARY) {
            let forebay = std::path::absolute(binary).map_err(|error| error.to_string())?;
            return Ok(Self { root, forebay, target, full, seed });
        }
        let mut build = cargo();
        build.args(["build", "--quiet", "-p", "forebay-cli"]).current_dir(&root);
        let built = build.status().map_err(|error| format!("cargo: {error}"))?;
        if !built.success() {
            return Err("the forebay binary cannot be built".to_owned());
        }
        Ok(Self { root, forebay: target.join("debug/forebay"), target, full, seed })
    }

    /// A folder for the check of this name, and a mount in it.
    pub(super) fn mounted(&self, name: &str, kernel_cache: bool) -> Result<Mounted, Failure> {
        let mut mounted = self.pool(name)?;
        mounted.mount(kernel_cache)?;
        Ok(mounted)
    }

    /// The same, not mounted yet.
    pub(super) fn pool(&self, name: &str) -> Result<Mounted, Failure> {
        let scratch = Scratch::new().map_err(|error| format!("a folder to work in: {error}"))?;
        let logs = self.target.join("conformance");
        fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let at = scratch.path.join("mnt");
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mounted = Mounted {
            pool: scratch.path.join("pool.img"),
            at,
            log: logs.join(format!("{name}.log")),
            forebay: self.forebay.clone(),
            server: None,
            scratch,
        };
        File::create(&mounted.log)
            .map_err(|error| format!("{}: {error}", mounted.log.display()))?;
        let mut create = mounted.forebay(&["create", "--size", "16GiB"]);
        create.arg(&mounted.pool);
        mounted.run(create)?;
        Ok(mounted)
    }
}

/// Cargo, without what it told this process.
pub(super) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// A folder that goes when it is dropped. Everybody may enter it, because the suites change users.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short: paths of sockets are bounded at 108 bytes, and the suites make sockets deep in it.
        let path = std::env::temp_dir().join(format!("fbc-{}-{count}", std::process::id()));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A pool in a folder of its own, and perhaps the server that has it mounted.
pub(super) struct Mounted {
    pub(super) at: PathBuf,
    pool: PathBuf,
    log: PathBuf,
    forebay: PathBuf,
    server: Option<Child>,
    // The last field: it goes when nothing is mounted in it any more.
    scratch: Scratch,
}

impl Mounted {
    /// A place beside the mount, on the machine's own file system.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.scratch.path.join(name)
    }

    fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.forebay);
        command.args(arguments).env("FOREBAY_RUN_DIR", self.scratch.path.join("run"));
        command
    }

    /// Mounts, and waits until it is there.
    pub(super) fn mount(&mut self, kernel_cache: bool) -> Result<(), Failure> {
        let mut command = self.forebay(&["mount", "--memory", MEMORY]);
        if kernel_cache {
            command.arg("--kernel-cache");
        }
        command.arg(&self.pool).arg(&self.at).stdin(Stdio::null());
        let (out, err) = self.outputs()?;
        let mut server =
            command.stdout(out).stderr(err).spawn().map_err(|error| format!("forebay: {error}"))?;
        let start = Instant::now();
        while !is_mount_point(&self.at) {
            if let Ok(Some(status)) = server.try_wait() {
                return Err(format!("forebay mount ended with {status}{}", self.tail()));
            }
            if start.elapsed() > SERVER_TIME {
                let _ = server.kill();
                let _ = server.wait();
                return Err(format!("forebay mount does not come up{}", self.tail()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Unmounts in the clean way; the server must end well.
    pub(super) fn unmount(&mut self) -> Result<(), Failure> {
        let mut umount = self.forebay(&["umount"]);
        umount.arg(&self.at);
        self.run(umount)?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        match wait_for(&mut server, SERVER_TIME) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("the server ended badly{}", self.tail())),
            None => Err(format!("the server does not end{}", self.tail())),
        }
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Clears the mount that a killed server left.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        let mut umount = self.forebay(&["umount"]);
        umount.arg(&self.at);
        self.run(umount)
    }

    /// Reads all of the pool; it must be clean.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut check = self.forebay(&["check"]);
        check.arg(&self.pool);
        self.run(check)
    }

    /// Unmounts and checks.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.unmount()?;
        self.check()
    }

    fn outputs(&self) -> Result<(Stdio, Stdio), Failure> {
        let log = File::options().append(true).create(true).open(&self.log);
        let log = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let twin = log.try_clone().map_err(|error| format!("{}: {error}", self.log.display()))?;
        Ok((log.into(), twin.into()))
    }

    /// Runs a command to its end; its output goes to the log.
    pub(super) fn run(&self, command: Command) -> Result<(), Failure> {
        self.run_for(command, COMMAND_TIME)
    }

    /// The same, with another bound on its time.
    pub(super) fn run_for(&self, mut command: Command, time: Duration) -> Result<(), Failure> {
        let (out, err) = self.outputs()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let first = command
            .get_args()
            .next()
            .map(|word| format!(" {}", word.to_string_lossy()))
            .unwrap_or_default();
        let what = format!("{program}{first}");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let mut child = child.map_err(|error| format!("{program}: {error}"))?;
        match wait_for(&mut child, time) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("{what} failed{}", self.tail())),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{what} did not end within {} s{}", time.as_secs(), self.tail()))
            }
        }
    }

    /// All that commands have printed so far.
    pub(super) fn logged(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// The end of the log, and where all of it is.
    fn tail(&self) -> String {
        let mut end = String::new();
        if let Ok(mut log) = File::open(&self.log) {
            let length = log.metadata().map_or(0, |metadata| metadata.len());
            let mut bytes = Vec::new();
            let _ = log.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
            let _ = log.read_to_end(&mut bytes);
            end = String::from_utf8_lossy(&bytes).into_owned();
        }
        let lines: Vec<String> = end.lines().map(|line| format!("    | {line}")).collect();
        format!("; all of it in {}\n{}", self.log.display(), lines.join("\n"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.kill();
        if is_mount_point(&self.at) {
            let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
        }
    }
}

/// Whether it ended well; `None` if it has not ended in time.
fn wait_for(child: &mut Child, time: Duration) -> Option<bool> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if start.elapsed() < time => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return None,
            Err(_) => return Some(false),
        }
    }
}

/// Whether something is mounted at `path`, as the table of mounts tells; so a dead mount counts.
fn is_mount_point(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == path))
}
