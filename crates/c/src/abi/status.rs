//! Statuses, and the last error of each thread.
//!
//! Locking: none; errors are thread-local.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::l2::{Error, ErrorKind};
use forebay::{BuildError, LoadError, Refusal, Refused};

use super::loader::LoaderFailed;

/// How a function ended. All but `OK` and `NOT_FOUND` have a message: forebay_error_message().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what it says.
    Ok = 0,
    /// The key has no value.
    NotFound = 1,
    /// An argument is invalid.
    Invalid = 2,
    /// The value was not cached: it is too large, or all other values are in use. An older value of
    /// the key was removed.
    Refused = 3,
    /// The loader failed, in this thread or in the one that this one waited for.
    LoaderFailed = 4,
    /// The loader requested the key that it loads.
    Recursive = 5,
    /// The cache is closed.
    Closed = 6,
    /// There is no memory.
    NoMemory = 7,
    /// The device failed. After a change, an older value may return when the cache is opened again.
    Device = 8,
    /// The file holds other data, or a cache of another kind or version.
    Foreign = 9,
    /// The system refused to start a thread.
    Thread = 10,
    /// A bug of this library.
    Panic = 11,
}

/// Why a function failed.
pub(super) struct Failure {
    status: Status,
    message: String,
    /// What the loader returned, if it failed.
    loader_code: c_int,
}

forebay::base::sync::thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
    static LOADER_CODE: Cell<c_int> = const { Cell::new(0) };
}

impl Failure {
    pub(super) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), loader_code: 0 }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::Invalid, message)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let status = match error {
            BuildError::Memory(_) => Status::NoMemory,
            BuildError::Thread(_) => Status::Thread,
            _ => Status::Invalid,
        };
        Self::new(status, error.to_string())
    }
}

impl<V> From<Refused<V>> for Failure {
    fn from(refused: Refused<V>) -> Self {
        let status = match refused.reason {
            Refusal::Closed => Status::Closed,
            Refusal::NoMemory => Status::NoMemory,
            _ => Status::Refused,
        };
        Self::new(status, refused.to_string())
    }
}

impl From<LoadError<LoaderFailed>> for Failure {
    fn from(error: LoadError<LoaderFailed>) -> Self {
        let status = match error {
            LoadError::Failed(_) | LoadError::OtherFailed(_) => Status::LoaderFailed,
            LoadError::Closed => Status::Closed,
            LoadError::NoMemory(_) => Status::NoMemory,
            LoadError::Recursive => Status::Recursive,
            // Loaders of C do not panic, and loads of C are not abandoned.
            _ => Status::Panic,
        };
        let mut failure = Self::new(status, error.to_string());
        if let LoadError::Failed(failed) = error {
            failure.loader_code = failed.0;
        }
        failure
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotAnL2 | ErrorKind::Foreign | ErrorKind::Unsupported => Status::Foreign,
            ErrorKind::Invalid | ErrorKind::TooSmall | ErrorKind::ReadOnly => Status::Invalid,
            ErrorKind::NoMemory => Status::NoMemory,
            ErrorKind::Closed => Status::Closed,
            ErrorKind::Thread => Status::Thread,
            ErrorKind::Codec => Status::Panic,
            _ => Status::Device,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs the body of a function of C.
pub(super) fn guard(body: impl FnOnce() -> Result<Status, Failure>) -> Status {
    // Whatever the panic left behind is in a cache, which bears panics, or is leaked.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Failure::new(
            Status::Panic,
            format!("a bug in forebay: {}; please report it", text.unwrap_or("no message")),
        ))
    });
    outcome.unwrap_or_else(|failure| {
        let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
        // A thread that is ending has no message any more.
        let _ = MESSAGE.try_with(|slot| *slot.borrow_mut() = message);
        let _ = LOADER_CODE.try_with(|slot| slot.set(failure.loader_code));
        failure.status
    })
}

/// Why the last function of this thread failed that did: what was to be done, the cause, and what
/// helps. Empty if none failed. Valid until another one fails in this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_error_message() -> *const c_char {
    MESSAGE.try_with(|slot| slot.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What the loader returned, if the last function of this thread that failed did so because of a
/// loader. Otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_code() -> c_int {
    LOADER_CODE.try_with(Cell::get).unwrap_or(0)
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.message)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message() -> String {
        // SAFETY: it is valid until the next failure of this thread.
        unsafe { CStr::from_ptr(forebay_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(guard(|| panic!("on {}", "purpose")), Status::Panic);
        assert_eq!(message(), "a bug in forebay: on purpose; please report it");
    }

    #[test]
    fn a_message_stays_until_the_next_failure() {
        assert_eq!(message(), "");
        assert_eq!(guard(|| Err(Failure::invalid("first\0part"))), Status::Invalid);
        assert_eq!(guard(|| Ok(Status::NotFound)), Status::NotFound);
        assert_eq!((message().as_str(), forebay_loader_code()), ("first part", 0));
        let failed = LoadError::Failed(std::sync::Arc::new(LoaderFailed(7)));
        assert_eq!(guard(|| Err(failed.into())), Status::LoaderFailed);
        assert_eq!(forebay_loader_code(), 7);
    }
}
