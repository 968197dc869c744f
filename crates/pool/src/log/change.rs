//! The changes that callers report to the intent log.

use crate::format::ObjectKind;

/// A change of one object, as it is noted when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The object came into being.
    Create { kind: ObjectKind, record_shift: u8, attributes: &'a [u8] },
    /// It was destroyed.
    Destroy,
    /// It has these attributes now, and all commits are to know: they change with names. `touched`:
    /// they may have been noted by the next kind before.
    SetAttributes { attributes: &'a [u8], touched: bool },
    /// It has these attributes now, which matters to commits of this object only: an object's of
    /// bytes.
    TouchAttributes { attributes: &'a [u8] },
    /// A range of it was written.
    Write { offset: u64, len: u64 },
    /// It was cut or extended to this size.
    Truncate { size: u64 },
    /// A range of it became zero.
    Punch { offset: u64, len: u64 },
    /// No commit is to write the names that are noted from here on without the content that it has
    /// by now.
    Bind,
    /// The same for all objects of the pool.
    BindAll,
    /// A name was added.
    ZapInsert { name: &'a [u8], value: &'a [u8] },
    /// A name was added, or its value changed.
    ZapUpdate { name: &'a [u8], value: &'a [u8] },
    /// A name was removed.
    ZapRemove { name: &'a [u8] },
}
