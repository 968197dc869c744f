//! Memory that travels with a request.

use std::fmt;

use forebay_base::arena::Buffer;

/// Bytes with a stable address while they are owned.
///
/// # Safety
///
/// While the value exists, and however often it is moved, [`bytes`](Self::bytes) must return the
/// same address and length, and these bytes must not be written to.
pub unsafe trait StableBytes: Send + Sync {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
}

// SAFETY: a buffer's block stays until it is dropped, and writing needs `&mut`.
unsafe impl StableBytes for Buffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the count keeps the buffer, whose block stays until it is dropped, and a shared buffer
// hands out no `&mut`.
unsafe impl StableBytes for forebay_base::sync::Arc<Buffer> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// The memory of a read or write.
pub enum Payload {
    /// A buffer of the request's own. Reads need one.
    Owned(Buffer),
    /// Bytes that others may read at the same time, such as a cached block during its write. For
    /// writes only.
    Shared(Box<dyn StableBytes>),
}

impl Payload {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(shared) => shared.bytes(),
        }
    }

    /// Returns the bytes, mutably, if they are the request's own.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::Shared(_) => None,
        }
    }

    /// Returns the buffer, if it is the request's own.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::Shared(_) => None,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len) = match self {
            Self::Owned(buffer) => ("owned", buffer.len()),
            Self::Shared(shared) => ("shared", shared.bytes().len()),
        };
        write!(f, "{kind} ({len} bytes)")
    }
}
