//! Builds test binaries with cargo, once per command, and reads their paths from its messages.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::step::Binary;

/// The builds of this run. A second step with the same command and environment reuses the build.
#[derive(Default)]
pub(crate) struct Builds(HashMap<String, Vec<Binary>>);

impl Builds {
    /// The test binaries of `arguments`, a `cargo test .. --no-run`. `None` if the build failed.
    pub(crate) fn binaries(
        &mut self,
        root: &Path,
        arguments: &[String],
        environment: &[(&'static str, String)],
    ) -> io::Result<Option<Vec<Binary>>> {
        let key = format!("{arguments:?} {environment:?}");
        if let Some(binaries) = self.0.get(&key) {
            return Ok(Some(binaries.clone()));
        }
        let mut command = cargo();
        command.args(arguments).arg("--message-format=json-render-diagnostics").current_dir(root);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut binaries = Vec::new();
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines() {
                binaries.extend(binary(&line?));
            }
        }
        if !child.wait()?.success() {
            return Ok(None);
        }
        // Cargo prints binaries in the order of completion. A fixed order makes runs comparable.
        binaries.sort_by_key(Binary::name);
        self.0.insert(key, binaries.clone());
        Ok(Some(binaries))
    }
}

/// The test binary in a line of cargo's messages.
fn binary(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"] == Value::Bool(true);
    if message["reason"] != "compiler-artifact" || !is_test {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    Some(Binary {
        package,
        target: message["target"]["name"].as_str()?.to_owned(),
        path: PathBuf::from(message["executable"].as_str()?),
        folder,
    })
}

/// Cargo, without the variables that it set for this package, which are wrong for other packages.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_test_binaries_are_read() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/cache/Cargo.toml",
            "target":{"name":"it","kind":["test"]},"profile":{"test":true},"executable":"/t/it-1"}"#;
        let it = binary(line).expect("a test binary");
        assert_eq!((it.name().as_str(), it.path.to_str()), ("cache it", Some("/t/it-1")));
        assert_eq!(it.folder, Path::new("/w/crates/cache"));
        assert!(binary(&line.replace(r#""test":true"#, r#""test":false"#)).is_none());
        assert!(binary("not json").is_none());
    }
}
