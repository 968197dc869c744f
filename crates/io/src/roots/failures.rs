//! Failures and statistics of a set of roots.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Errors that a root keeps in full, per generation. Further ones are only counted.
const MAX_ERRORS: usize = 8;

/// Failures of requests: counts by kind, and the first few errors.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    by_kind: [u64; ErrorKind::ALL.len()],
    panics: u64,
    first: Vec<Error>,
}

impl Failures {
    /// Returns the number of requests that failed with `kind`.
    pub fn of(&self, kind: ErrorKind) -> u64 {
        self.by_kind[kind.index()]
    }

    /// Returns the number of requests that failed.
    pub fn total(&self) -> u64 {
        self.by_kind.iter().sum()
    }

    /// Returns the number of callbacks that panicked.
    pub fn panics(&self) -> u64 {
        self.panics
    }

    /// Returns the first few errors of each root, in the order of the roots.
    pub fn first(&self) -> &[Error] {
        &self.first
    }

    /// Returns whether no request failed and no callback panicked.
    pub fn is_empty(&self) -> bool {
        self.total() == 0 && self.panics == 0
    }

    pub(super) fn note(&mut self, error: &Error) {
        self.by_kind[error.kind().index()] += 1;
        if self.first.len() < MAX_ERRORS {
            self.first.push(error.clone());
        }
    }

    pub(super) fn note_panic(&mut self) {
        self.panics += 1;
    }

    /// Adds the counts and errors of `other`.
    pub(super) fn add(&mut self, mut other: Self) {
        self.add_counts(&other);
        self.first.append(&mut other.first);
    }

    /// Adds the counts of `other`.
    pub(super) fn add_counts(&mut self, other: &Self) {
        for (sum, count) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += count;
        }
        self.panics += other.panics;
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.total())?;
        for kind in ErrorKind::ALL.into_iter().filter(|kind| self.of(*kind) > 0) {
            write!(f, ", {}: {}", kind.name(), self.of(kind))?;
        }
        if self.panics > 0 {
            write!(f, ", panics in callbacks: {}", self.panics)?;
        }
        for error in &self.first {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

/// The result of a drain.
#[derive(Clone, Debug)]
pub struct Drained {
    /// Requests in flight when the drain began. Requests submitted by their callbacks were waited
    /// for too, but are not counted here.
    pub waited_for: u64,
    /// Failures of requests submitted between the begin of the previous drain and the begin of this
    /// one. So exactly one drain reports each failure.
    pub failures: Failures,
}

/// Statistics of a set of roots.
#[derive(Clone, Debug)]
pub struct RootsStats {
    /// Requests in flight, by root.
    pub in_flight: Vec<u64>,
    /// Drains that have begun.
    pub drains: u64,
    /// The set is closed.
    pub closed: bool,
    /// Requests refused because the set was closed.
    pub refused: u64,
    /// Requests that failed, since the set was created.
    pub failed: u64,
    /// Callbacks that panicked, since the set was created.
    pub panics: u64,
}

impl RootsStats {
    /// Returns the requests in flight, of all roots.
    pub fn total_in_flight(&self) -> u64 {
        self.in_flight.iter().sum()
    }
}

impl fmt::Display for RootsStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (roots, total) = (self.in_flight.len(), self.total_in_flight());
        let state = if self.closed { "closed" } else { "open" };
        writeln!(f, "{roots} roots, {state}: {total} in flight {:?}", self.in_flight)?;
        let Self { drains, refused, failed, panics, .. } = self;
        write!(f, "{drains} drains, {failed} failed, {refused} refused, {panics} panics")
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{Failures, MAX_ERRORS};
    use crate::error::{Error, ErrorKind};
    use crate::request::Op;

    fn error(kind: ErrorKind, offset: u64) -> Error {
        Error::new(kind, Op::Read, &"disk".into(), (offset, 512), "it is so")
    }

    #[test]
    fn counts_are_complete_and_errors_bounded() {
        let mut failures = Failures::default();
        assert!(failures.is_empty());
        for offset in 0..100 {
            failures.note(&error(ErrorKind::Device, offset));
        }
        failures.note(&error(ErrorKind::Gone, 7));
        failures.note_panic();
        assert_eq!((failures.of(ErrorKind::Device), failures.of(ErrorKind::Gone)), (100, 1));
        assert_eq!((failures.total(), failures.panics()), (101, 1));
        let offsets: Vec<u64> = failures.first().iter().map(|error| error.range().0).collect();
        assert_eq!(offsets, (0..MAX_ERRORS as u64).collect::<Vec<_>>());

        let mut sum = failures.clone();
        sum.add(failures.clone());
        sum.add_counts(&failures);
        assert_eq!((sum.total(), sum.panics(), sum.first().len()), (303, 3, 2 * MAX_ERRORS));
    }

    #[test]
    fn a_panic_alone_is_a_failure() {
        let mut failures = Failures::default();
        failures.note_panic();
        assert!(!failures.is_empty());
        assert_eq!(failures.to_string(), "0 failed, panics in callbacks: 1");
    }

    #[test]
    fn it_prints_operation_and_device() {
        let mut failures = Failures::default();
        failures.note(&error(ErrorKind::NoSpace, 1024));
        let text = failures.to_string();
        assert_eq!(text, "1 failed, no_space: 1\n  read of 512 bytes at 1024 of disk: it is so");
    }

    #[test]
    fn kinds_match_their_indexes() {
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), at);
        }
    }
}
