//! The roots under comparison: R2's before and after, and Forebay's.

use std::sync::Arc;

use forebay_io::{Device, Request, Roots};

use crate::baseline::LockedRoots;
use crate::options::Failure;

/// Number of roots in R2's "after".
const MANY_ROOTS: usize = 16;

/// A subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootsKind {
    /// R2's before.
    OneLocked,
    /// R2's after.
    SixteenLocked,
    /// Forebay's.
    Forebay,
}

impl RootsKind {
    /// All subjects.
    pub(crate) const ALL: [Self; 3] = [Self::OneLocked, Self::SixteenLocked, Self::Forebay];

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneLocked => "one-root-locked",
            Self::SixteenLocked => "16-roots-locked",
            Self::Forebay => "forebay",
        }
    }

    /// New roots over a device.
    pub(crate) fn open(self, device: &Arc<dyn Device>) -> AnyRoots {
        let locked =
            |count| AnyRoots::Locked(Box::new(LockedRoots::new(count)), Arc::clone(device));
        match self {
            Self::OneLocked => locked(1),
            Self::SixteenLocked => locked(MANY_ROOTS),
            // 0 is the default: one per CPU.
            Self::Forebay => AnyRoots::Forebay(Roots::new(Arc::clone(device), 0)),
        }
    }
}

/// Roots of either kind.
pub(crate) enum AnyRoots {
    /// Lists under locks, and their device.
    Locked(Box<LockedRoots>, Arc<dyn Device>),
    /// Forebay's.
    Forebay(Roots),
}

impl AnyRoots {
    /// Submits requests under roots.
    pub(crate) fn submit_all(&self, mut requests: Vec<Request>) {
        match self {
            Self::Locked(roots, device) => roots.submit_all(&**device, requests),
            Self::Forebay(roots) => roots.submit_all(&mut requests),
        }
    }

    /// Waits for all submitted requests.
    ///
    /// # Errors
    /// If requests failed.
    pub(crate) fn drain(&self) -> Result<(), Failure> {
        let failed = match self {
            Self::Locked(roots, _) => {
                roots.drain();
                roots.failed()
            }
            Self::Forebay(roots) => {
                roots.drain()?;
                roots.errors().total()
            }
        };
        if failed > 0 {
            Err(format!("{failed} requests failed under their roots").into())
        } else {
            Ok(())
        }
    }

    /// A description for the column `config`.
    pub(crate) fn config(&self) -> String {
        match self {
            Self::Locked(roots, _) => format!("{} under a lock each", roots.len()),
            Self::Forebay(roots) => format!("{} without locks", roots.len()),
        }
    }
}
