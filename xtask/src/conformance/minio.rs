//! A MinIO server of this host: a store with the whole S3 API, for `object-store`.
//!
//! The Go module proxy has its source; Go builds it below cargo's output folder, once per version.
//! It serves a fresh folder on a loopback port, and keeps both while it is killed and started
//! again. Requests of the check itself are sent by curl, which can sign them.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::Scratch;
use super::suites::packaged;
use super::{Failure, Outcome};

/// The last version with a source: that of the release of 2025-09-07.
const VERSION: &str = "v0.0.0-20250907161309-07c3a429bfed";
/// The longest time until it answers.
const START_TIME: Duration = Duration::from_secs(60);
/// Credentials of a server that only this host reaches.
const USER: &str = "forebay";
const PASSWORD: &str = "not-a-secret";
/// The bucket that it has.
pub(super) const BUCKET: &str = "forebay";

/// The outcome if Go or curl is not installed.
pub(super) fn missing() -> Option<Outcome> {
    let has_go = Command::new("go").arg("version").output().is_ok_and(|it| it.status.success());
    if !has_go {
        let why = "Go is not installed, and MinIO is built from its source; install Go";
        return Some(Outcome::Skipped("go", why.to_owned()));
    }
    let why = "curl is not installed; install the package curl";
    (!packaged("curl", "curl")).then(|| Outcome::Skipped("curl", why.to_owned()))
}

/// Builds it, unless this version is there.
fn installed(target: &Path) -> Result<PathBuf, Failure> {
    let folder = target.join("tools/bin");
    let program = folder.join("minio");
    let stamp = target.join("tools").join(format!("minio-{VERSION}"));
    if program.is_file() && stamp.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let package = format!("github.com/minio/minio@{VERSION}");
    let mut install = Command::new("go");
    install.args(["install", "-ldflags=-s -w", &package]);
    install.env("GOBIN", &folder).env("CGO_ENABLED", "0");
    match install.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("go install {package} ended with {status}")),
        Err(error) => return Err(format!("go install {package}: {error}")),
    }
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(program)
}

/// A server, and its folder.
pub(super) struct Minio {
    program: PathBuf,
    address: SocketAddr,
    log: PathBuf,
    child: Option<Child>,
    // The last field, so that it is removed after the server has ended.
    scratch: Scratch,
}

impl Minio {
    /// Starts a server with an empty bucket. Program and log are below cargo's output folder.
    pub(super) fn start(target: &Path) -> Result<Self, Failure> {
        let program = installed(target)?;
        let failed = |error: std::io::Error| format!("minio: {error}");
        let scratch = Scratch::new().map_err(failed)?;
        // Free now, and hardly taken by another process before the server has it.
        let address =
            TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(failed)?;
        let logs = target.join("conformance");
        fs::create_dir_all(&logs).map_err(failed)?;
        let log = logs.join("minio.log");
        fs::write(&log, "").map_err(failed)?;
        let mut minio = Self { program, address, log, child: None, scratch };
        minio.restart()?;
        minio.ask("PUT", BUCKET, None)?;
        Ok(minio)
    }

    /// Where it is reached.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The environment of a process that reaches it at this address.
    pub(super) fn environment(at: SocketAddr) -> Vec<(&'static str, OsString)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{at}").into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", USER.into()),
            ("AWS_SECRET_ACCESS_KEY", PASSWORD.into()),
        ]
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it on the same port and folder, and waits until it answers.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.kill();
        let failed = |error: std::io::Error| format!("minio: {error}");
        let log = fs::File::options().append(true).open(&self.log).map_err(failed)?;
        let error_log = log.try_clone().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(["server", "--address", &self.address.to_string()]);
        command.arg(self.scratch.path.join("data"));
        // It keeps its certificates in the home folder.
        command.env("HOME", &self.scratch.path).current_dir(&self.scratch.path);
        command.env("MINIO_ROOT_USER", USER).env("MINIO_ROOT_PASSWORD", PASSWORD);
        command.env("MINIO_CI_CD", "1").env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
        command.stdin(Stdio::null()).stdout(log).stderr(error_log);
        self.child = Some(command.spawn().map_err(failed)?);
        let until = Instant::now() + START_TIME;
        // Ready is said too early: this needs the buckets, too.
        while let Err(why) = self.ask("GET", "", None) {
            if Instant::now() > until {
                return Err(format!("{why}; the log of MinIO is {}", self.log.display()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Stores an object that is not of a pool.
    pub(super) fn put(&self, key: &str) -> Result<(), Failure> {
        self.ask("PUT", &format!("{BUCKET}/{key}"), Some("theirs")).map(drop)
    }

    /// The keys and tags of all objects, of which there are few.
    pub(super) fn objects(&self) -> Result<Vec<String>, Failure> {
        let listed = self.ask("GET", &format!("{BUCKET}/?list-type=2"), None)?;
        if !listed.contains("<IsTruncated>false</IsTruncated>") {
            return Err(format!("{BUCKET} has too many objects, or no list: {listed}"));
        }
        let text = |from: &str, name: &str| {
            let (_, after) = from.split_once(&format!("<{name}>"))?;
            Some(after.split_once('<')?.0.to_owned())
        };
        let object = |content: &str| Some((text(content, "Key")?, text(content, "ETag")?));
        let objects = listed.split("<Contents>").skip(1).filter_map(object);
        Ok(objects.map(|(key, tag)| format!("{key} {tag}")).collect())
    }

    /// Sends a signed request, and returns the body of the answer.
    fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Result<String, Failure> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--max-time", "30", "-X", method]);
        command.args(["--aws-sigv4", "aws:amz:us-east-1:s3"]);
        // Old versions of curl sign the hash of the body, but do not send it.
        command.args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
        command.args(["--user", &format!("{USER}:{PASSWORD}")]);
        command.args(body.into_iter().flat_map(|body| ["--data-binary", body]));
        command.arg(format!("http://{}/{path}", self.address));
        let output = command.output().map_err(|error| format!("curl: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(format!("minio: {method} {path}: {}", said.trim()))
            }
        }
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.kill();
    }
}
