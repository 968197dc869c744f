//! Scratch folders with pools and mounts, and commands whose output goes to a log.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Failure;

/// Names a binary to test instead of the one of this workspace.
const BINARY: &str = "FOREBAY_BINARY";
/// Memory of a server, small enough that its cache evicts.
const MEMORY: &str = "256MiB";
/// The longest time that a server takes to mount, and to exit.
const SERVER_TIME: Duration = Duration::from_secs(60);
/// The longest time of a command, unless the caller sets another.
const COMMAND_TIME: Duration = Duration::from_secs(600);
/// A shell script that names the host after its first argument and becomes the command of the
/// others.
const RENAMED: &str = "echo \"$0\" >/proc/sys/kernel/hostname && exec \"$@\"";
/// Bytes of the end of a log that a failure prints.
const TAIL: u64 = 3000;

/// Succeeds if this process can mount. The error is the missing need and the reason.
pub(super) fn permitted() -> Result<(), (&'static str, String)> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| ("fuse", format!("/dev/fuse: {error}")))?;
    // The owner of a new file is the user of this process.
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

/// The seed: `FOREBAY_SEED`, otherwise 1, or the clock in a long run. As
/// `forebay_base::testing::seed`; this crate does not depend on it.
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

/// Cargo's output folder.
pub(super) fn target(root: &Path) -> Result<PathBuf, Failure> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    std::path::absolute(target).map_err(|error| error.to_string())
}

/// The settings that all checks share.
pub(super) struct Fixture {
    pub(super) root: PathBuf,
    /// Cargo's output folder.
    pub(super) target: PathBuf,
    forebay: PathBuf,
    /// Whether this is a long run.
    pub(super) full: bool,
    /// Minutes of a check that can take any time.
    pub(super) minutes: Option<u64>,
    /// The seed; without `FOREBAY_SEED` every ordinary run has the same one.
    pub(super) seed: u64,
}

impl Fixture {
    /// Builds the binary.
    pub(super) fn new(root: &Path, full: bool, minutes: Option<u64>) -> Result<Self, Failure> {
        let target = target(root)?;
        let seed = seed(full)?;
        println!("FOREBAY_SEED={seed}");
        let root = root.to_path_buf();
        if let Some(binary) = std::env::var_os(BINARY) {
            let forebay = std::path::absolute(binary).map_err(|error| error.to_string())?;
            return Ok(Self { root, forebay, target, full, minutes, seed });
        }
        let mut build = cargo();
        // The feature adds the power cuts.
        let package = ["-p", "forebay-cli", "--features", "forebay-pool/testing"];
        build.args(["build", "--quiet"]).args(package).current_dir(&root);
        let built = build.status().map_err(|error| format!("cargo: {error}"))?;
        if !built.success() {
            return Err(
                "the forebay binary does not build; see the errors of cargo above".to_owned()
            );
        }
        Ok(Self { root, forebay: target.join("debug/forebay"), target, full, minutes, seed })
    }

    /// Creates a scratch folder with a mounted pool, for the check of this name.
    pub(super) fn mounted(&self, name: &str, kernel_cache: bool) -> Result<TestMount, Failure> {
        let mut mounted = self.pool(name)?;
        mounted.mount(kernel_cache)?;
        Ok(mounted)
    }

    /// As [`mounted`](Self::mounted), without mounting the pool.
    pub(super) fn pool(&self, name: &str) -> Result<TestMount, Failure> {
        let mounted = self.scratch(name, &["pool.img"])?;
        let mut create = mounted.forebay(&["create", "--size", "16GiB"]);
        create.arg(&mounted.pool);
        mounted.run(create)?;
        Ok(mounted)
    }

    /// As [`pool`](Self::pool), on a mirror of two files of this size.
    pub(super) fn mirror(&self, name: &str, side_bytes: u64) -> Result<TestMount, Failure> {
        let mounted = self.scratch(name, &["a.img", "b.img"])?;
        let mut create = mounted.forebay(&["create", "--name", "mirror", "--mirror"]);
        create.args(mounted.devices()).args(["--size", &side_bytes.to_string()]);
        mounted.run(create)?;
        Ok(mounted)
    }

    /// A scratch folder for a pool on an object store, which is not created. With `host` it is that
    /// of another machine, which has this name.
    pub(super) fn on_store(
        &self,
        name: &str,
        url: &str,
        environment: Vec<(&'static str, OsString)>,
        host: Option<&'static str>,
    ) -> Result<TestMount, Failure> {
        let mut mounted = self.scratch(name, &[])?;
        mounted.pool = url.to_owned();
        (mounted.environment, mounted.host) = (environment, host);
        Ok(mounted)
    }

    /// Creates a scratch folder for a pool on these files in it.
    fn scratch(&self, name: &str, devices: &[&str]) -> Result<TestMount, Failure> {
        let scratch =
            Scratch::new().map_err(|error| format!("creating the scratch folder: {error}"))?;
        let logs = self.target.join("conformance");
        fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let at = scratch.path.join("mnt");
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let path_of = |device: &&str| scratch.path.join(device).to_string_lossy().into_owned();
        let mounted = TestMount {
            pool: devices.iter().map(path_of).collect::<Vec<_>>().join(":"),
            at,
            log: logs.join(format!("{name}.log")),
            forebay: self.forebay.clone(),
            environment: Vec::new(),
            host: None,
            server: None,
            scratch,
        };
        File::create(&mounted.log)
            .map_err(|error| format!("{}: {error}", mounted.log.display()))?;
        Ok(mounted)
    }
}

/// Cargo, without the variables that it set for this package.
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

/// A folder that is removed when it is dropped. All users may enter it, because the suites change
/// users.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // The name is short: paths of sockets have at most 108 bytes, and the suites create sockets
        // in nested folders.
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

/// A pool in a scratch folder, and the server if it is mounted.
pub(super) struct TestMount {
    pub(super) at: PathBuf,
    /// The paths of its devices, joined by `:`, or the URL of its store.
    pool: String,
    log: PathBuf,
    forebay: PathBuf,
    /// Variables of all commands.
    environment: Vec<(&'static str, OsString)>,
    /// The name of the host as which all commands run, if it is not this one.
    host: Option<&'static str>,
    server: Option<Child>,
    // The last field, so that it is removed after the mount.
    scratch: Scratch,
}

impl TestMount {
    /// A path in the scratch folder, outside the mount.
    pub(super) fn scratch_path(&self, name: &str) -> PathBuf {
        self.scratch.path.join(name)
    }

    /// The paths of its devices.
    pub(super) fn devices(&self) -> Vec<PathBuf> {
        self.pool.split(':').map(PathBuf::from).collect()
    }

    /// Another device has taken the place of one.
    pub(super) fn replaced(&mut self, old: &Path, new: &Path) {
        let mut devices = self.devices();
        devices.iter_mut().filter(|one| *one == old).for_each(|one| new.clone_into(one));
        let texts: Vec<String> = devices.iter().map(|one| one.display().to_string()).collect();
        self.pool = texts.join(":");
    }

    /// The paths of its devices, or the URL of its store, as a command takes them.
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// Runs a command on the pool. The last arguments are paths.
    pub(super) fn forebay_on_pool(&self, command: &str, paths: &[&Path]) -> Result<(), Failure> {
        let mut forebay = self.forebay(&[command]);
        forebay.arg(&self.pool).args(paths);
        self.run(forebay)
    }

    /// The command `forebay` with these arguments.
    pub(super) fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = match self.host {
            None => Command::new(&self.forebay),
            Some(host) => {
                let mut command = Command::new("unshare");
                command.args(["--uts", "sh", "-c", RENAMED, host]).arg(&self.forebay);
                command
            }
        };
        command.args(arguments);
        for (name, folder) in [("FOREBAY_RUN_DIR", "run"), ("FOREBAY_STATE_DIR", "state")] {
            command.env(name, self.scratch.path.join(folder));
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Mounts, and waits until the mount exists.
    pub(super) fn mount(&mut self, kernel_cache: bool) -> Result<(), Failure> {
        self.mount_with(kernel_cache, |_| ())
    }

    /// As [`mount`](Self::mount), after `change` has completed the command.
    pub(super) fn mount_with(
        &mut self,
        kernel_cache: bool,
        change: impl FnOnce(&mut Command),
    ) -> Result<(), Failure> {
        let mut command = self.forebay(&["mount", "--memory", MEMORY]);
        if kernel_cache {
            command.arg("--kernel-cache");
        }
        change(&mut command);
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
                return Err(format!("forebay mount did not finish in time{}", self.tail()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Unmounts cleanly. The server must exit successfully.
    pub(super) fn unmount(&mut self) -> Result<(), Failure> {
        let mut umount = self.forebay(&["umount"]);
        umount.arg(&self.at);
        self.run(umount)?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        match wait_for(&mut server, SERVER_TIME) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("the server exited with an error{}", self.tail())),
            None => Err(format!("the server did not exit in time{}", self.tail())),
        }
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Unmounts the dead mount of a killed server.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        let mut umount = self.forebay(&["umount"]);
        umount.arg(&self.at);
        self.run(umount)
    }

    /// Runs `forebay check` on the pool, which must find no error.
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

    pub(super) fn outputs(&self) -> Result<(Stdio, Stdio), Failure> {
        let log = File::options().append(true).create(true).open(&self.log);
        let log = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let stderr = log.try_clone().map_err(|error| format!("{}: {error}", self.log.display()))?;
        Ok((log.into(), stderr.into()))
    }

    /// Runs a command to its end. Its output goes to the log.
    pub(super) fn run(&self, command: Command) -> Result<(), Failure> {
        self.run_for(command, COMMAND_TIME)
    }

    /// As [`run`](Self::run), with another time limit.
    pub(super) fn run_for(&self, mut command: Command, time: Duration) -> Result<(), Failure> {
        let (out, err) = self.outputs()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let first = command
            .get_args()
            .next()
            .map(|word| format!(" {}", word.to_string_lossy()))
            .unwrap_or_default();
        let name = format!("{program}{first}");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let mut child = child.map_err(|error| format!("{program}: {error}"))?;
        match wait_for(&mut child, time) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("{name} failed{}", self.tail())),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{name} did not end within {} s{}", time.as_secs(), self.tail()))
            }
        }
    }

    /// The output of all commands so far.
    pub(super) fn logged(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// The path of the log and its last lines, to append to a message.
    pub(super) fn tail(&self) -> String {
        let mut end = String::new();
        if let Ok(mut log) = File::open(&self.log) {
            let length = log.metadata().map_or(0, |metadata| metadata.len());
            let mut bytes = Vec::new();
            let _ = log.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
            let _ = log.read_to_end(&mut bytes);
            end = String::from_utf8_lossy(&bytes).into_owned();
        }
        let lines: Vec<String> = end.lines().map(|line| format!("    | {line}")).collect();
        format!("; the log is {}\n{}", self.log.display(), lines.join("\n"))
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.kill();
        if is_mount_point(&self.at) {
            let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
        }
    }
}

/// Whether the process succeeded; `None` if it did not end in time.
pub(super) fn wait_for(child: &mut Child, time: Duration) -> Option<bool> {
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

/// Whether the mount table has a mount at `path`. A dead mount counts.
fn is_mount_point(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == path))
}
