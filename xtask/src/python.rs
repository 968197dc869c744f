//! Builds and tests the Python package, in a venv below cargo's output folder.
//!
//! Without Python, or without the tools that pip would have to download, it is reported as skipped.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::test::skip;

const TEST: &str = "Python package";
const NEED: &str = "python3";
/// What the build and the tests need of pip.
const TOOLS: [&str; 2] = ["maturin>=1.9,<2", "pytest"];

/// Returns whether the tests passed, or are skipped.
pub(crate) fn run(root: &Path) -> io::Result<bool> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?.join("python");
    let venv = target.join("venv");
    if let Err(reason) = prepare(&venv) {
        return match skip::report(TEST, NEED, &reason) {
            Ok(()) => Ok(true),
            Err(error) => Err(io::Error::other(error)),
        };
    }
    let folder = root.join("python");
    let status = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(venv.join("bin").join(program));
        command.args(arguments).current_dir(&folder).env_remove("RUSTFLAGS");
        command.env("VIRTUAL_ENV", &venv).env("CARGO_TARGET_DIR", &target).status()
    };
    Ok(status("maturin", &["develop", "--locked"])?.success()
        && status("pytest", &["-q", "-p", "no:cacheprovider"])?.success())
}

/// Makes the venv with the tools, unless it has them. The error says what is missing.
fn prepare(venv: &Path) -> Result<(), String> {
    let bin = venv.join("bin");
    if bin.join("maturin").is_file() && bin.join("pytest").is_file() {
        return Ok(());
    }
    run_quietly(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    run_quietly(Command::new(bin.join("python")).args(["-m", "pip", "install", "-q"]).args(TOOLS))
}

fn run_quietly(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, text.lines().last().unwrap_or_default()))
}
