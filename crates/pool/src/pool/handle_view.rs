//! Handles together with whether their calls may wait.
//!
//! A view has the calls that read and may have to wait, and those that begin a transaction. Changes
//! have the mode of their [`Transaction`]. All other calls of a handle either never wait, or always
//! do, such as an fsync, and have no non-blocking form.
//!
//! # Locking
//!
//! None.

use crate::error::Result;
use crate::object::SeekTarget;
use crate::reservation::Intent;
use crate::tx::Transaction;
use crate::wait::Wait;
use crate::zap::{Cookie, Entry, Value};

use super::Pool;
use super::handles::{Dataset, Directory, Object, ObjectInfo};

/// A borrowed handle together with whether its calls may wait. They are described at the handle. In
/// non-blocking mode each may also fail with
/// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
///
/// ```
/// # use forebay_pool::{ErrorKind, Object};
/// fn read(object: &Object, out: &mut [u8]) -> forebay_pool::Result<usize> {
///     match object.non_blocking().read(0, out) {
///         Err(error) if error.kind() == ErrorKind::WouldBlock => {
///             object.read(0, out) // On a thread that may block.
///         }
///         done => done,
///     }
/// }
/// ```
#[derive(Debug)]
pub struct HandleView<'a, H> {
    handle: &'a H,
    wait: Wait,
}

impl<H> Clone for HandleView<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for HandleView<'_, H> {}

macro_rules! views {
    ($($handle:ident)*) => {$(
        impl $handle {
            /// This handle, with calls that wait as `wait` says.
            #[inline]
            pub fn with_wait(&self, wait: Wait) -> HandleView<'_, Self> {
                HandleView { handle: self, wait }
            }

            /// This handle in non-blocking mode.
            #[inline]
            pub fn non_blocking(&self) -> HandleView<'_, Self> {
                self.with_wait(Wait::Refused)
            }
        }
    )*};
}

views!(Pool Dataset Object Directory);

impl<'a> HandleView<'a, Pool> {
    /// As [`Pool::begin`]. Changes with the transaction wait as this call does.
    pub fn begin(self) -> Result<Transaction<'a>> {
        self.handle.inner.begin(Intent::Use, self.wait)
    }

    /// As [`Pool::begin_update`]. Changes with the transaction wait as this call does.
    pub fn begin_update(self) -> Result<Transaction<'a>> {
        self.handle.inner.begin(Intent::Update, self.wait)
    }

    /// As [`Pool::begin_freeing`]. Changes with the transaction wait as this call does.
    pub fn begin_freeing(self) -> Result<Transaction<'a>> {
        self.handle.inner.begin(Intent::Free, self.wait)
    }
}

impl HandleView<'_, Dataset> {
    /// As [`Dataset::object_info`].
    pub fn object_info(self, number: u64) -> Result<ObjectInfo> {
        self.handle.info_of(number, self.wait)
    }

    /// As [`Dataset::object_version`].
    pub fn object_version(self, number: u64) -> Result<u64> {
        self.handle.version_of(number, self.wait)
    }

    /// As [`Dataset::object`].
    pub fn object(self, number: u64) -> Result<Object> {
        self.handle.open_object(number, self.wait)
    }

    /// As [`Dataset::directory`].
    pub fn directory(self, number: u64) -> Result<Directory> {
        self.handle.open_directory(number, self.wait)
    }
}

impl HandleView<'_, Object> {
    /// As [`Object::read`].
    pub fn read(self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.handle.node.read(offset, out, self.wait)
    }

    /// As [`Object::next_data`].
    pub fn next_data(self, from: u64) -> Result<Option<u64>> {
        self.handle.node.seek(from, SeekTarget::Data, self.wait)
    }

    /// As [`Object::next_hole`].
    pub fn next_hole(self, from: u64) -> Result<Option<u64>> {
        self.handle.node.seek(from, SeekTarget::Hole, self.wait)
    }

    /// As [`Object::hole_bytes`].
    pub fn hole_bytes(self, offset: u64, len: u64) -> Result<u64> {
        self.handle.node.hole_bytes(offset, len, self.wait)
    }
}

impl<'a> HandleView<'a, Directory> {
    /// As [`Directory::pace`].
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock) if it would wait and must not.
    pub fn pace(self) -> Result<()> {
        self.handle.zap.pace(self.wait)
    }

    /// As [`Directory::warm`].
    pub fn warm(self, name: &[u8]) -> Result<()> {
        self.handle.zap.warm(name, self.wait)
    }

    /// As [`Directory::lookup`].
    pub fn lookup(self, name: &[u8]) -> Result<Option<Value>> {
        self.handle.zap.lookup(name, self.wait)
    }

    /// As [`Directory::entries`].
    pub fn entries(self, from: Cookie, limit: usize) -> Result<Vec<Entry>> {
        self.handle.zap.entries(from, limit, self.wait)
    }

    /// As [`Directory::iter`].
    pub fn iter(self) -> impl Iterator<Item = Result<Entry>> + use<'a> {
        self.handle.zap.cursor(Cookie::START, self.wait)
    }
}
