//! What a command says when it fails: one line on standard error, and an exit code.
//!
//! Messages name the thing and the way out. Errors of the libraries keep their text; what is said of arguments of their
//! functions is put into the words of the command line here, and nowhere else.

use std::fmt;
use std::io;
use std::path::Path;

use forebay_pool::ErrorKind as PoolErrorKind;

/// Something could not be done.
pub(crate) const FAILED: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) code: u8,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: FAILED }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: USAGE }
    }

    /// An error of the system about a path, with the way out that its kind suggests.
    pub(crate) fn about(path: &Path, doing: &str, error: &io::Error) -> Self {
        let way_out = match error.kind() {
            io::ErrorKind::NotFound => "; check the path",
            io::ErrorKind::PermissionDenied => "; run as a user who may, or as root",
            io::ErrorKind::ReadOnlyFilesystem => {
                "; the file system is read-only: use another place, or --read-only"
            }
            io::ErrorKind::StorageFull => {
                "; the file system is full: make room there, or use another place"
            }
            _ => "",
        };
        Self::new(format!("{}: cannot {doing}: {}{way_out}", path.display(), reason(error)))
    }

    /// The same, with what was being done in front of it.
    #[must_use]
    pub(crate) fn doing(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// What the system said, without the number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<forebay_pool::Error> for Failure {
    fn from(error: forebay_pool::Error) -> Self {
        let mut message =
            error.to_string().replace("open it with `read_only`", "use --read-only").replace(
                ", or give `create_bytes` to make a file",
                ", or make a pool there with `forebay create`",
            );
        let way_out = match error.kind() {
            PoolErrorKind::Suspended => {
                "; `forebay export` it, mend the device, and mount it again"
            }
            PoolErrorKind::NoMemory => "; give more with --memory",
            PoolErrorKind::NotAPool if message.ends_with("holds no pool") => {
                "; `forebay create` makes one"
            }
            _ => "",
        };
        message.push_str(way_out);
        Self::new(one_line(&message))
    }
}

/// A message is one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_speaks_without_numbers_and_with_a_way_out() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let said = Failure::about(Path::new("x/y"), "open it", &error).to_string();
        assert_eq!(
            said,
            "x/y: cannot open it: permission denied; run as a user who may, or as root"
        );
    }

    #[test]
    fn the_pools_words_become_those_of_the_command_line() {
        let said = forebay_pool::Error::new(
            PoolErrorKind::ReadOnly,
            "a: the medium is read-only;\n open it with `read_only`",
        );
        assert_eq!(Failure::from(said).message, "a: the medium is read-only; use --read-only");
    }
}
