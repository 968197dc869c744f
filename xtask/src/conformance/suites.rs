//! Suites and load generators of others: pjdfstest, fsx, fio, fs_mark.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::bench::{Bench, Mounted, cargo};
use super::{Failure, Outcome};

/// Versions of the suites that crates.io has.
const PJDFSTEST: &str = "0.2.2";
const FSX: &str = "0.3.2";

/// Installs a suite below cargo's output folder, once a version.
fn installed(bench: &Bench, name: &str, version: &str) -> Result<PathBuf, Failure> {
    let tools = bench.target.join("tools");
    let program = tools.join("bin").join(name);
    let stamp = tools.join(format!("{name}-{version}"));
    if program.is_file() && stamp.is_file() {
        return Ok(program);
    }
    let mut install = cargo();
    install.args(["install", "--quiet", "--locked", "--force", "--root"]).arg(&tools);
    install.arg(format!("{name}@{version}")).env("CARGO_TARGET_DIR", tools.join("target"));
    // A registry that does not answer for a moment is no failure of what is tried here.
    install.env("CARGO_NET_RETRY", "10");
    match install.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo install {name}@{version} ended with {status}")),
        Err(error) => return Err(format!("cargo install {name}@{version}: {error}")),
    }
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(program)
}

/// A program of the system, installed from Debian's package of that name if it is missing and that can be done.
fn packaged(program: &str, package: &str) -> bool {
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

/// The tests that remount the file system read-only. The suite leaves files open as it goes, so that any file system is busy in
/// the middle of it: these run in a process of their own.
const REMOUNTING: &str = "erofs";

/// Every test passes, or is listed by name in `jobs/pjdfstest.toml` with the limit that causes it. In both
/// modes in a long run, in the default mode otherwise: what it tests hardly depends on the mode.
pub(super) fn pjdfstest(bench: &Bench) -> Result<Outcome, Failure> {
    let program = installed(bench, "pjdfstest", PJDFSTEST)?;
    let mut told = Vec::new();
    let modes: &[bool] = if bench.full { &[false, true] } else { &[false] };
    for &kernel_cache in modes {
        let name = if kernel_cache { "pjdfstest-cached" } else { "pjdfstest-direct" };
        let mounted = bench.mounted(name, kernel_cache)?;
        for remounting in [false, true] {
            let config = pjdfstest_config(bench, &mounted, remounting)?;
            let mut command = Command::new(&program);
            command.arg("-c").arg(&config).arg("-p").arg(&mounted.at);
            command.env("PATH", path_with(&mounted.beside("bin")));
            if Path::new("/dev/shm").is_dir() {
                command.args(["-s", "/dev/shm"]);
            }
            if remounting {
                command.arg(REMOUNTING);
            }
            mounted.run_for(command, Duration::from_secs(300))?;
        }
        told.extend(
            mounted.logged().lines().filter(|line| line.contains("expected failures,")).map(plain),
        );
        mounted.end()?;
    }
    let wanted = 2 * modes.len();
    if told.len() != wanted {
        return Err(format!("the suite printed {} summaries, not {wanted}", told.len()));
    }
    let told: Vec<&str> = told.iter().map(|line| line.trim_start_matches("Summary: ")).collect();
    Ok(Outcome::Passed(format!("{}; {REMOUNTING} by itself: {}", told[0], told[1])))
}

/// Writes what the suite has to be told, and a `mount` that calls no helper: remounting is a call of the system, and the
/// helper of a FUSE mount would begin a second one.
fn pjdfstest_config(
    bench: &Bench,
    mounted: &Mounted,
    remounting: bool,
) -> Result<PathBuf, Failure> {
    let job = bench.root.join("xtask/jobs/pjdfstest.toml");
    let mut config =
        fs::read_to_string(&job).map_err(|error| format!("{}: {error}", job.display()))?;
    config = config.replace("allow_remount = true", &format!("allow_remount = {remounting}"));
    // Two users that every Debian has; the group of `nobody` differs between systems.
    let group = Command::new("id").args(["-gn", "nobody"]).output();
    let group = group
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    config.push_str(&format!(
        "\n[dummy_auth]\nentries = [[\"nobody\", \"{group}\"], [\"daemon\", \"daemon\"]]\n"
    ));
    let write = || {
        let file = mounted.beside("pjdfstest.toml");
        fs::write(&file, config)?;
        let folder = mounted.beside("bin");
        fs::create_dir_all(&folder)?;
        let mount = folder.join("mount");
        fs::write(&mount, "#!/bin/sh\nexec /bin/mount -i \"$@\"\n")?;
        fs::set_permissions(&mount, fs::Permissions::from_mode(0o755))?;
        Ok(file)
    };
    write().map_err(|error: std::io::Error| format!("what the suite has to be told: {error}"))
}

/// The search path with a folder in front.
fn path_with(folder: &Path) -> OsString {
    let mut path = OsString::from(folder);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// Without the sequences that colour a terminal.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, text)| text));
    first + &rest.collect::<String>()
}

/// Random operations on one file, compared with a copy in memory; in both modes.
pub(super) fn fsx(bench: &Bench) -> Result<Outcome, Failure> {
    let program = installed(bench, "fsx", FSX)?;
    let operations = if bench.full { 1_000_000 } else { 30_000 };
    let seed = bench.seed;
    for kernel_cache in [false, true] {
        let mode = if kernel_cache { "kernel cache" } else { "direct" };
        let mounted =
            bench.mounted(if kernel_cache { "fsx-cached" } else { "fsx-direct" }, kernel_cache)?;
        let artifacts = mounted.beside("artifacts");
        fs::create_dir(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
        let mut command = Command::new(&program);
        command.arg("-f").arg(bench.root.join("xtask/jobs/fsx.toml"));
        command
            .args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"])
            .arg(&artifacts);
        command.arg(mounted.at.join("fsx"));
        mounted
            .run_for(command, Duration::from_secs(3600))
            .map_err(|why| format!("{mode}, `-S {seed} -N {operations}`: {why}"))?;
        mounted.end()?;
    }
    Ok(Outcome::Passed(format!("{operations} operations in each mode, seed {seed}")))
}

/// Content written by several engines is read back; then readers and writers side by side.
pub(super) fn fio(bench: &Bench) -> Result<Outcome, Failure> {
    if !packaged("fio", "fio") {
        return Ok(Outcome::Skipped(
            "fio",
            "fio is not installed, and could not be (package fio)".to_owned(),
        ));
    }
    let (loops, seconds) = if bench.full { ("8", "120") } else { ("1", "8") };
    for kernel_cache in [false, true] {
        let mounted =
            bench.mounted(if kernel_cache { "fio-cached" } else { "fio-direct" }, kernel_cache)?;
        for job in ["verify", "mixed"] {
            let mut command = Command::new("fio");
            command
                .arg(bench.root.join(format!("xtask/jobs/{job}.fio")))
                .current_dir(mounted.beside(""));
            command
                .env("FOREBAY_AT", &mounted.at)
                .env("FOREBAY_LOOPS", loops)
                .env("FOREBAY_SECONDS", seconds);
            mounted.run_for(command, Duration::from_secs(1200))?;
        }
        mounted.end()?;
    }
    Ok(Outcome::Passed("verify.fio and mixed.fio in each mode".to_owned()))
}

/// Files made by several threads, without and with fsync.
pub(super) fn fs_mark(bench: &Bench) -> Result<Outcome, Failure> {
    if !packaged("fs_mark", "fsmark") {
        return Ok(Outcome::Skipped(
            "fs_mark",
            "fs_mark is not installed, and could not be (package fsmark)".to_owned(),
        ));
    }
    let (empty, synced) = if bench.full { ("50000", "5000") } else { ("5000", "300") };
    let mounted = bench.mounted("fs_mark", false)?;
    for (files, size, sync) in [(empty, "0", "0"), (synced, "4096", "1")] {
        let folder = mounted.at.join(format!("sync{sync}"));
        let mut command = Command::new("fs_mark");
        command
            .arg("-d")
            .arg(&folder)
            .args(["-t", "4", "-D", "16", "-n", files, "-s", size, "-S", sync, "-k"]);
        command.current_dir(mounted.beside(""));
        mounted.run(command)?;
    }
    fs::remove_dir_all(mounted.at.join("sync0"))
        .map_err(|error| format!("removing what fs_mark made: {error}"))?;
    mounted.end()?;
    Ok(Outcome::Passed(format!("4 threads, {empty} empty files each, {synced} with fsync")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_off() {
        assert_eq!(
            plain("\u{1b}[1;32mSummary\u{1b}[0m: 0 \u{1b}[31mfailed\u{1b}[0m"),
            "Summary: 0 failed"
        );
        assert_eq!(plain("plain"), "plain");
    }
}
