//! Failures of commands: a message of one line, and an exit code.
//!
//! A message names the object, the cause and the next step. Errors of the libraries keep their
//! text. Only this module replaces names of library arguments with options of the command line.

use std::fmt;
use std::io;
use std::path::Path;

use forebay_pool::ErrorKind as PoolErrorKind;

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a wrong command line.
pub(crate) const USAGE: u8 = 2;

/// Advice to use `--read-only`, and what replaces it in commands without that option.
const READ_ONLY_ADVICE: [(&str, &str); 3] = [
    (", or use --read-only if only writing is not allowed", ""),
    (", or use --read-only", ""),
    ("; use --read-only", "; make it writable, or use another one"),
];

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) code: u8,
    /// True if the command did its work, and found problems or was interrupted.
    pub(crate) found_trouble: bool,
    /// The process that was asked is ending: another one can do it.
    pub(crate) is_ending: bool,
    /// It has done nothing about the request, so the request is not why it ends.
    pub(crate) did_nothing: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: FAILED,
            found_trouble: false,
            is_ending: false,
            did_nothing: false,
        }
    }

    /// The system gives no thread for `what`.
    pub(crate) fn no_thread(what: &str, cause: &std::io::Error) -> Self {
        Self::new(format!("{what}: the system gives no thread: {cause}; end other programs"))
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(message) }
    }

    /// What a check or scrub has found, or that it was interrupted.
    pub(crate) fn trouble(message: impl Into<String>) -> Self {
        Self { found_trouble: true, ..Self::new(message) }
    }

    /// The process that was asked is ending, or has ended, and has done nothing.
    pub(crate) fn ending(message: impl Into<String>) -> Self {
        Self { is_ending: true, did_nothing: true, ..Self::new(message) }
    }

    /// An error of the system on a path, with a hint that depends on its kind.
    pub(crate) fn about(path: &Path, doing: &str, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "; check the path",
            io::ErrorKind::PermissionDenied => "; run as a user with access, or as root",
            io::ErrorKind::ReadOnlyFilesystem => {
                "; the file system is read-only: use another path, or use --read-only"
            }
            io::ErrorKind::StorageFull => {
                "; the file system is full: free space there, or use another path"
            }
            _ => "",
        };
        Self::new(format!("{}: cannot {doing}: {}{hint}", path.display(), reason(error)))
    }

    /// Without the advice to use `--read-only`, for a command that has no such option.
    #[must_use]
    pub(crate) fn without_read_only(mut self) -> Self {
        for (advice, instead) in READ_ONLY_ADVICE {
            self.message = self.message.replace(advice, instead);
        }
        self
    }

    /// Prefixes the message with the operation that failed.
    #[must_use]
    pub(crate) fn doing(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// The text of a system error without its number.
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
        let mut message = error
            .to_string()
            .replace("open it with `read_only`", "use --read-only")
            .replace(
                ", or set `create_bytes` to create a file",
                ", or create a pool there with `forebay create`",
            )
            .replace("`rewind` goes back", "--rewind goes back")
            .replace("the option `txg`", "--txg")
            .replace("use another cache", "use another cache (--separate)");
        let hint = match error.kind() {
            PoolErrorKind::Suspended => "; see `forebay status` for the cause, and `forebay clear`",
            // The message has the way out.
            PoolErrorKind::NoMemory
                if message.contains("gives no thread") || message.contains("fit one cache") =>
            {
                ""
            }
            PoolErrorKind::NoMemory => "; give more with --memory",
            PoolErrorKind::NotAPool if message.ends_with("holds no pool") => {
                "; check the path, or look at its labels with `forebay inspect DEVICE label`: a damaged pool has none that can be read"
            }
            _ => "",
        };
        message.push_str(hint);
        Self::new(one_line(&message))
    }
}

/// Joins the lines of a message.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_has_no_number_and_a_hint() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let said = Failure::about(Path::new("x/y"), "open it", &error).to_string();
        assert_eq!(
            said,
            "x/y: cannot open it: permission denied; run as a user with access, or as root"
        );
    }

    #[test]
    fn without_read_only_no_advice_names_it() {
        for (text, wanted) in [
            (
                "a: the medium is read-only; use --read-only",
                "a: the medium is read-only; make it writable, or use another one",
            ),
            ("a: busy; unmount it, or use --read-only", "a: busy; unmount it"),
            (
                "a: denied; give access, or use --read-only if only writing is not allowed",
                "a: denied; give access",
            ),
        ] {
            assert_eq!(Failure::new(text).without_read_only().message, wanted);
        }
    }

    #[test]
    fn a_pool_error_names_options_of_the_command_line() {
        let said = forebay_pool::Error::new(
            PoolErrorKind::ReadOnly,
            "a: the medium is read-only;\n open it with `read_only`",
        );
        assert_eq!(Failure::from(said).message, "a: the medium is read-only; use --read-only");
    }
}
