//! The errors of loads, typed by the loader's error.
//!
//! A load has one error, which all its waiters share, and waiters may expect errors of different
//! types. So it travels as a [`LoadError`] without a type, and each request converts it to its own:
//! [`LoadError::typed`].
//!
//! Locking: none.

use std::any::Any;
use std::error::Error;
use std::fmt;
// tidy: std, because the user's trait objects coerce into std's `Arc` only.
use std::sync::Arc as StdArc;

/// An error of unknown type, shared by all waiters of a load.
pub(crate) type SharedError = StdArc<dyn Error + Send + Sync>;

/// Why a load returned no block. Each waiter gets a clone. Never cached.
///
/// `E` is the error of the loader: that of the closure of
/// [`get_or_load`](crate::Cache::get_or_load). Without it, as for [`InFlight`](crate::InFlight),
/// the error can be of any type, and [`typed`](Self::typed) names one.
#[non_exhaustive]
pub enum LoadError<E: ?Sized = dyn Error + Send + Sync> {
    /// The loader failed. The next request loads again.
    Failed(StdArc<E>),
    /// The loader of another request failed, which this one waited for, with an error of another
    /// type. The next request loads again.
    OtherFailed(SharedError),
    /// The loader panicked. The next request loads again.
    Panicked,
    /// The load guard was dropped or withdrawn. The next request loads again.
    Abandoned,
    /// The cache or the key's owner is closed.
    Closed,
    /// There is no memory for the cache's own structures. Free some and request again.
    NoMemory(String),
    /// The loader of this block requested the block itself, and would have waited for itself.
    Recursive,
}

impl LoadError {
    /// A failure with `source` as its cause.
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(SharedError::from(source.into()))
    }

    /// Names the type of the loader's error: [`Failed`](Self::Failed) if it is `E`, otherwise
    /// [`OtherFailed`](Self::OtherFailed).
    pub fn typed<E: fmt::Display + Send + Sync + 'static>(self) -> LoadError<E> {
        match self {
            Self::Failed(source) | Self::OtherFailed(source) => {
                match source.downcast_ref::<OfLoader<E>>() {
                    Some(OfLoader(error)) => LoadError::Failed(StdArc::clone(error)),
                    None => LoadError::OtherFailed(source),
                }
            }
            Self::Panicked => LoadError::Panicked,
            Self::Abandoned => LoadError::Abandoned,
            Self::Closed => LoadError::Closed,
            Self::NoMemory(why) => LoadError::NoMemory(why),
            Self::Recursive => LoadError::Recursive,
        }
    }
}

impl<E: fmt::Display + Send + Sync + 'static> LoadError<E> {
    /// Forgets the type of the loader's error, which [`typed`](LoadError::typed) finds again: for
    /// [`LoadGuard::fail`](crate::LoadGuard::fail).
    pub fn untyped(self) -> LoadError {
        match self {
            Self::Failed(error) => LoadError::Failed(StdArc::new(OfLoader(error))),
            Self::OtherFailed(source) => LoadError::Failed(source),
            Self::Panicked => LoadError::Panicked,
            Self::Abandoned => LoadError::Abandoned,
            Self::Closed => LoadError::Closed,
            Self::NoMemory(why) => LoadError::NoMemory(why),
            Self::Recursive => LoadError::Recursive,
        }
    }
}

/// The error of a loader, as an [`Error`]: loaders may fail with a `String`, which is none.
struct OfLoader<E>(StdArc<E>);

impl<E: fmt::Display> fmt::Display for OfLoader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Display> fmt::Debug for OfLoader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.to_string())
    }
}

impl<E: fmt::Display> Error for OfLoader<E> {}

// By hand, because derives would ask for `E: Clone`.
impl<E: ?Sized> Clone for LoadError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(StdArc::clone(error)),
            Self::OtherFailed(source) => Self::OtherFailed(StdArc::clone(source)),
            Self::Panicked => Self::Panicked,
            Self::Abandoned => Self::Abandoned,
            Self::Closed => Self::Closed,
            Self::NoMemory(why) => Self::NoMemory(why.clone()),
            Self::Recursive => Self::Recursive,
        }
    }
}

impl<E: fmt::Debug + ?Sized> fmt::Debug for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
            Self::OtherFailed(source) => f.debug_tuple("OtherFailed").field(source).finish(),
            Self::Panicked => f.write_str("Panicked"),
            Self::Abandoned => f.write_str("Abandoned"),
            Self::Closed => f.write_str("Closed"),
            Self::NoMemory(why) => f.debug_tuple("NoMemory").field(why).finish(),
            Self::Recursive => f.write_str("Recursive"),
        }
    }
}

impl<E: fmt::Display + ?Sized> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "cannot load the block: {error}"),
            Self::OtherFailed(source) => write!(f, "cannot load the block: {source}"),
            Self::Panicked => {
                f.write_str("cannot load the block: its loader panicked; request it again to retry")
            }
            Self::Abandoned => {
                f.write_str("the load of the block was abandoned; request it again to retry")
            }
            Self::Closed => {
                f.write_str("cannot load the block: the cache or the block's owner is closed")
            }
            Self::NoMemory(why) => write!(
                f,
                "no memory for the cache's own structures: {why}; free some and request the block \
                 again"
            ),
            Self::Recursive => f.write_str(
                "cannot load the block: its own loader requested it; let the loader read it from \
                 where it is kept",
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display + ?Sized + 'static> Error for LoadError<E> {
    /// The loader's error if its type is unknown. Otherwise match on [`Failed`](Self::Failed).
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = match self {
            Self::Failed(error) => (error as &dyn Any).downcast_ref::<SharedError>()?,
            Self::OtherFailed(source) => source,
            _ => return None,
        };
        Some(&**source)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::error::Error;
    use std::io;

    use super::LoadError;

    #[test]
    fn an_error_keeps_its_type_through_a_load() {
        let failed = LoadError::Failed(std::sync::Arc::new(io::Error::other("the disk is gone")));
        let shared = failed.untyped();
        assert_eq!(shared.to_string(), "cannot load the block: the disk is gone");
        assert_eq!(shared.source().unwrap().to_string(), "the disk is gone");
        let LoadError::Failed(error) = shared.clone().typed::<io::Error>() else { panic!() };
        assert_eq!(error.kind(), io::ErrorKind::Other);
        // Another type gets the text, and loses nothing.
        let other = shared.typed::<String>();
        assert_eq!(other.to_string(), "cannot load the block: the disk is gone");
        assert_eq!(other.source().unwrap().to_string(), "the disk is gone");
        let again = other.untyped().typed::<io::Error>();
        assert!(matches!(again, LoadError::Failed(_)), "{again:?}");
    }

    #[test]
    fn the_other_outcomes_have_no_type() {
        let all: [LoadError; 5] = [
            LoadError::Panicked,
            LoadError::Abandoned,
            LoadError::Closed,
            LoadError::NoMemory("of 64 bytes".to_owned()),
            LoadError::Recursive,
        ];
        for error in all {
            let (text, debug) = (error.to_string(), format!("{error:?}"));
            assert!(error.source().is_none());
            let typed = error.typed::<String>();
            assert_eq!((typed.to_string(), format!("{typed:?}")), (text.clone(), debug));
            assert_eq!(typed.untyped().to_string(), text);
        }
    }
}
