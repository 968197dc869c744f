//! External test suites and load generators: pjdfstest, fsx, fio, fs_mark.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use super::fixture::{Fixture, TestMount, cargo};
use super::{Failure, Outcome};

/// Versions of the suites on crates.io.
const PJDFSTEST: &str = "0.2.2";
const FSX: &str = "0.3.2";

/// Installs a suite below cargo's output folder, once per version.
fn installed(fixture: &Fixture, name: &str, version: &str) -> Result<PathBuf, Failure> {
    let tools = fixture.target.join("tools");
    let program = tools.join("bin").join(name);
    let stamp = tools.join(format!("{name}-{version}"));
    if program.is_file() && stamp.is_file() {
        return Ok(program);
    }
    let mut install = cargo();
    install.args(["install", "--quiet", "--locked", "--force", "--root"]).arg(&tools);
    install.arg(format!("{name}@{version}")).env("CARGO_TARGET_DIR", tools.join("target"));
    // A registry that is briefly unavailable must not fail the check.
    install.env("CARGO_NET_RETRY", "10");
    // Built faster, and not slower to run: the suites wait for the file system, and spend no time
    // in the crates that read their options.
    install.args(["--config", "profile.release.package.'*'.opt-level=0"]);
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    match install.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo install {name}@{version} ended with {status}")),
        Err(error) => return Err(format!("cargo install {name}@{version}: {error}")),
    }
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(program)
}

/// Whether a program is installed. Tries to install the Debian package if it is missing.
pub(super) fn packaged(program: &str, package: &str) -> bool {
    // Of two concurrent installations one would fail.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().expect("no check panics");
    let there = || {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
    };
    if there() {
        return true;
    }
    let install = Command::new("apt-get").args(["install", "-y", "-qq", package]).output();
    install.is_ok_and(|output| output.status.success()) && there()
}

/// The tests that remount the file system read-only. They run in a process of their own, because
/// the suite leaves files open, which makes the file system busy.
const REMOUNTING: &str = "erofs";

/// Runs pjdfstest. Every test passes, or `jobs/pjdfstest.toml` lists it with the limit that causes
/// the failure. Only a long run tests both modes, because the results rarely depend on the mode.
pub(super) fn pjdfstest(fixture: &Fixture) -> Result<Outcome, Failure> {
    let program = installed(fixture, "pjdfstest", PJDFSTEST)?;
    let mut summaries = Vec::new();
    let modes: &[bool] = if fixture.full { &[false, true] } else { &[false] };
    for &kernel_cache in modes {
        let name = if kernel_cache { "pjdfstest-cached" } else { "pjdfstest-direct" };
        let mounted = fixture.mounted(name, kernel_cache)?;
        for remounting in [false, true] {
            let config = pjdfstest_config(fixture, &mounted, remounting)?;
            let mut command = Command::new(&program);
            command.arg("-c").arg(&config).arg("-p").arg(&mounted.at);
            command.env("PATH", path_with(&mounted.scratch_path("bin")));
            if Path::new("/dev/shm").is_dir() {
                command.args(["-s", "/dev/shm"]);
            }
            if remounting {
                command.arg(REMOUNTING);
            }
            mounted.run_for(command, Duration::from_secs(300))?;
        }
        summaries.extend(
            mounted.logged().lines().filter(|line| line.contains("expected failures,")).map(plain),
        );
        mounted.end()?;
    }
    let wanted = 2 * modes.len();
    if summaries.len() != wanted {
        return Err(format!("the suite printed {} summaries, not {wanted}", summaries.len()));
    }
    let summaries: Vec<&str> =
        summaries.iter().map(|line| line.trim_start_matches("Summary: ")).collect();
    Ok(Outcome::Passed(format!("{}; {REMOUNTING} by itself: {}", summaries[0], summaries[1])))
}

/// Writes the configuration of the suite, and a `mount` script that calls no helper. The helper of
/// a FUSE mount would start a second mount instead of remounting.
fn pjdfstest_config(
    fixture: &Fixture,
    mounted: &TestMount,
    remounting: bool,
) -> Result<PathBuf, Failure> {
    let job = fixture.root.join("xtask/jobs/pjdfstest.toml");
    let mut config =
        fs::read_to_string(&job).map_err(|error| format!("{}: {error}", job.display()))?;
    config = config.replace("allow_remount = true", &format!("allow_remount = {remounting}"));
    // Every Debian system has these users. The group of `nobody` differs between systems.
    let group = Command::new("id").args(["-gn", "nobody"]).output();
    let group = group
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    config.push_str(&format!(
        "\n[dummy_auth]\nentries = [[\"nobody\", \"{group}\"], [\"daemon\", \"daemon\"]]\n"
    ));
    let write = || {
        let file = mounted.scratch_path("pjdfstest.toml");
        fs::write(&file, config)?;
        let folder = mounted.scratch_path("bin");
        fs::create_dir_all(&folder)?;
        let mount = folder.join("mount");
        fs::write(&mount, "#!/bin/sh\nexec /bin/mount -i \"$@\"\n")?;
        fs::set_permissions(&mount, fs::Permissions::from_mode(0o755))?;
        Ok(file)
    };
    write()
        .map_err(|error: std::io::Error| format!("writing the configuration of pjdfstest: {error}"))
}

/// `PATH` with a folder prepended.
fn path_with(folder: &Path) -> OsString {
    let mut path = OsString::from(folder);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// `text` without ANSI escape sequences for colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, text)| text));
    first + &rest.collect::<String>()
}

/// Runs fsx: random operations on one file, compared with a copy in memory, in both modes.
pub(super) fn fsx(fixture: &Fixture) -> Result<Outcome, Failure> {
    let operations = if fixture.full { 1_000_000 } else { 30_000 };
    let seed = fixture.seed;
    for kernel_cache in [false, true] {
        let mode = if kernel_cache { "kernel cache" } else { "direct" };
        let mounted = fixture
            .mounted(if kernel_cache { "fsx-cached" } else { "fsx-direct" }, kernel_cache)?;
        fsx_on(fixture, &mounted, operations).map_err(|why| format!("{mode}, {why}"))?;
        mounted.end()?;
    }
    Ok(Outcome::Passed(format!("{operations} operations in each mode, seed {seed}")))
}

/// Runs so many operations of fsx on a mount.
pub(super) fn fsx_on(
    fixture: &Fixture,
    mounted: &TestMount,
    operations: u64,
) -> Result<(), Failure> {
    let seed = fixture.seed;
    let artifacts = mounted.scratch_path("artifacts");
    fs::create_dir_all(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
    let mut command = Command::new(installed(fixture, "fsx", FSX)?);
    command.arg("-f").arg(fixture.root.join("xtask/jobs/fsx.toml"));
    command
        .args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"])
        .arg(&artifacts)
        .arg(mounted.at.join("fsx"));
    mounted
        .run_for(command, Duration::from_secs(3600))
        .map_err(|why| format!("`-S {seed} -N {operations}`: {why}"))
}

/// Runs fio: verifies content that several engines write, then runs concurrent readers and writers.
pub(super) fn fio(fixture: &Fixture) -> Result<Outcome, Failure> {
    if !packaged("fio", "fio") {
        return Ok(Outcome::Skipped(
            "fio",
            "fio is not installed; install the package fio".to_owned(),
        ));
    }
    for kernel_cache in [false, true] {
        let mounted = fixture
            .mounted(if kernel_cache { "fio-cached" } else { "fio-direct" }, kernel_cache)?;
        fio_on(fixture, &mounted)?;
        mounted.end()?;
    }
    Ok(Outcome::Passed("verify.fio and mixed.fio in each mode".to_owned()))
}

/// Runs both jobs of fio on a mount.
pub(super) fn fio_on(fixture: &Fixture, mounted: &TestMount) -> Result<(), Failure> {
    let (loops, seconds) = if fixture.full { ("8", "120") } else { ("1", "8") };
    for job in ["verify", "mixed"] {
        let mut command = Command::new("fio");
        command
            .arg(fixture.root.join(format!("xtask/jobs/{job}.fio")))
            .current_dir(mounted.scratch_path(""));
        command
            .env("FOREBAY_AT", &mounted.at)
            .env("FOREBAY_LOOPS", loops)
            .env("FOREBAY_SECONDS", seconds);
        mounted.run_for(command, Duration::from_secs(1200))?;
    }
    Ok(())
}

/// Runs fs_mark: several threads create files, without and with fsync.
pub(super) fn fs_mark(fixture: &Fixture) -> Result<Outcome, Failure> {
    if !packaged("fs_mark", "fsmark") {
        return Ok(Outcome::Skipped(
            "fs_mark",
            "fs_mark is not installed; install the package fsmark".to_owned(),
        ));
    }
    let (empty, synced) = if fixture.full { ("50000", "5000") } else { ("5000", "300") };
    let mounted = fixture.mounted("fs_mark", false)?;
    for (files, size, sync) in [(empty, "0", "0"), (synced, "4096", "1")] {
        let folder = mounted.at.join(format!("sync{sync}"));
        let mut command = Command::new("fs_mark");
        command
            .arg("-d")
            .arg(&folder)
            .args(["-t", "4", "-D", "16", "-n", files, "-s", size, "-S", sync, "-k"]);
        command.current_dir(mounted.scratch_path(""));
        mounted.run(command)?;
    }
    fs::remove_dir_all(mounted.at.join("sync0"))
        .map_err(|error| format!("removing the files of fs_mark: {error}"))?;
    mounted.end()?;
    Ok(Outcome::Passed(format!("4 threads, {empty} empty files each, {synced} with fsync")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed() {
        assert_eq!(
            plain("\u{1b}[1;32mSummary\u{1b}[0m: 0 \u{1b}[31mfailed\u{1b}[0m"),
            "Summary: 0 failed"
        );
        assert_eq!(plain("plain"), "plain");
    }
}
