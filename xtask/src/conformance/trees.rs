//! Real file trees: tar in and out, a git clone, a cargo build.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::fixture::{self, Fixture, TestMount};
use super::{Failure, Outcome};

/// A tree that most machines with a compiler have.
const SYSTEM_TREE: &str = "/usr/include";

/// Extracts a tree with tar and compares it with the archive: kinds, modes, owners, times, content.
/// Compares again after a remount, with a cold cache.
pub(super) fn tar(fixture: &Fixture) -> Result<Outcome, Failure> {
    let mut trees = vec![
        (fixture.root.clone(), "crates"),
        (fixture.root.clone(), "docs"),
        (fixture.root.clone(), "xtask"),
    ];
    if Path::new(SYSTEM_TREE).is_dir() {
        trees.push(("/".into(), "usr/include"));
    }
    let mut mounted = fixture.mounted("tar", false)?;
    let archive = mounted.scratch_path("tree.tar");
    let mut pack = Command::new("tar");
    pack.arg("-cf").arg(&archive);
    for (folder, tree) in &trees {
        pack.arg("-C").arg(folder).arg(tree);
    }
    mounted.run(pack)?;
    let unpack = |mounted: &TestMount, how: &str| {
        let mut command = Command::new("tar");
        command.arg("-C").arg(&mounted.at).args([how, "--numeric-owner", "-p", "-f"]).arg(&archive);
        mounted.run(command)
    };
    for kernel_cache in [false, true] {
        unpack(&mounted, "--extract")?;
        unpack(&mounted, "--compare")?;
        mounted.unmount()?;
        mounted.mount(!kernel_cache)?;
        unpack(&mounted, "--compare")?;
        for folder in ["crates", "docs", "xtask", "usr"] {
            let folder = mounted.at.join(folder);
            if folder.exists() {
                fs::remove_dir_all(&folder)
                    .map_err(|error| format!("{}: {error}", folder.display()))?;
            }
        }
    }
    let megabytes = fs::metadata(&archive).map_or(0, |archive| archive.len() >> 20);
    mounted.end()?;
    Ok(Outcome::Passed(format!(
        "{megabytes} MiB extracted and compared, also with a cold cache, in each mode"
    )))
}

/// Clones this repository and runs git's checks on the clone.
pub(super) fn git(fixture: &Fixture) -> Result<Outcome, Failure> {
    if !fixture.root.join(".git").exists() {
        return Ok(Outcome::Skipped("git", "the workspace is not a git repository".to_owned()));
    }
    for kernel_cache in [false, true] {
        let mut mounted = fixture
            .mounted(if kernel_cache { "git-cached" } else { "git-direct" }, kernel_cache)?;
        let clone = mounted.at.join("clone");
        let git = |mounted: &TestMount, words: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-c", "safe.directory=*", "-C"]).arg(&clone).args(words);
            mounted.run(command)
        };
        let mut command = Command::new("git");
        command
            .args(["-c", "safe.directory=*", "clone", "--quiet", "--no-local"])
            .arg(&fixture.root)
            .arg(&clone);
        mounted.run(command)?;
        git(&mounted, &["fsck", "--full", "--strict"])?;
        mounted.unmount()?;
        mounted.mount(kernel_cache)?;
        git(&mounted, &["fsck", "--full", "--strict"])?;
        git(&mounted, &["diff", "--exit-code", "HEAD"])?;
        git(&mounted, &["gc", "--quiet"])?;
        mounted.end()?;
    }
    Ok(Outcome::Passed("clone, fsck, gc, also with a cold cache, in each mode".to_owned()))
}

/// Builds and tests a small crate with a build script, so that programs are compiled, mapped and
/// run in the mount.
pub(super) fn cargo(fixture: &Fixture) -> Result<Outcome, Failure> {
    const FILES: [(&str, &str); 4] = [
        (
            "Cargo.toml",
            "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n",
        ),
        ("build.rs", "fn main() { println!(\"cargo::rustc-env=SMALL=from the build script\"); }\n"),
        ("src/lib.rs", "pub fn word() -> &'static str { env!(\"SMALL\") }\n"),
        (
            "tests/it.rs",
            "#[test]\nfn word() { assert_eq!(small::word(), \"from the build script\"); }\n",
        ),
    ];
    for kernel_cache in [false, true] {
        let mounted = fixture
            .mounted(if kernel_cache { "cargo-cached" } else { "cargo-direct" }, kernel_cache)?;
        let at = mounted.at.join("small");
        for (name, text) in FILES {
            let file = at.join(name);
            let made = file
                .parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| fs::write(&file, text));
            made.map_err(|error| format!("{}: {error}", file.display()))?;
        }
        for _ in 0..2 {
            let mut command = cargo_in(&at);
            command.args(["test", "--offline"]);
            mounted.run(command)?;
            // The next round rebuilds from the existing files.
            fs::write(at.join("src/lib.rs"), format!("{}\n", FILES[2].1))
                .map_err(|error| error.to_string())?;
        }
        mounted.end()?;
    }
    Ok(Outcome::Passed("built, rebuilt and tested in each mode".to_owned()))
}

fn cargo_in(at: &Path) -> Command {
    let mut command = fixture::cargo();
    command.current_dir(at).env("CARGO_TARGET_DIR", at.join("target"));
    // As cargo builds by default: incremental builds link and lock files.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_INCREMENTAL");
    command
}
