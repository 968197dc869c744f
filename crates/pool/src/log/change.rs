//! The changes that are recorded in the intent log.

use crate::format::ObjectKind;

/// A change of one object, recorded when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The object was created.
    Create { kind: ObjectKind, record_shift: u8, attributes: &'a [u8] },
    /// The object was destroyed.
    Destroy,
    /// The object has new attributes, and every commit writes them: they change together with
    /// names. `touched`: `TouchAttributes` may have recorded older ones before.
    SetAttributes { attributes: &'a [u8], touched: bool },
    /// The object, a data object, has new attributes. Only commits of this object write them.
    TouchAttributes { attributes: &'a [u8] },
    /// A range was written.
    Write { offset: u64, len: u64 },
    /// The object was truncated or extended to this size.
    Truncate { size: u64 },
    /// A range was zeroed.
    Punch { offset: u64, len: u64 },
    /// Holes in a range were preallocated.
    Preallocate { offset: u64, len: u64 },
    /// Commits that write names recorded from here on must also write the content that the object
    /// has now.
    Bind,
    /// As `Bind`, for all objects of the pool.
    BindAll,
    /// A name was added.
    ZapInsert { name: &'a [u8], value: &'a [u8] },
    /// A name was added, or its value changed.
    ZapUpdate { name: &'a [u8], value: &'a [u8] },
    /// A name was removed.
    ZapRemove { name: &'a [u8] },
}
