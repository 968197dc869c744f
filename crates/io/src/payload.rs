//! Memory that travels with a request.

use std::fmt;

use forebay_base::arena::Buffer;

/// Bytes that stay where they are while they are owned.
///
/// # Safety
///
/// As long as the value exists, and however often it is moved, [`bytes`](Self::bytes) returns the
/// same address and length, and nobody writes to these bytes.
pub unsafe trait StableBytes: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

// SAFETY: a buffer's block stays until it is dropped, and writing needs `&mut`.
unsafe impl StableBytes for Buffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: as for `Buffer`; nothing hands out `&mut` to what is shared.
unsafe impl StableBytes for forebay_base::sync::Arc<Buffer> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// What a request reads into or writes from.
pub enum Payload {
    /// A buffer of the request's own. A read needs one.
    Owned(Buffer),
    /// Bytes that others may read at the same time: a block that stays in a cache while it is
    /// written. For writes only.
    Shared(Box<dyn StableBytes>),
}

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(shared) => shared.bytes(),
        }
    }

    /// The bytes for writing, if they are the request's own.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::Shared(_) => None,
        }
    }

    /// The buffer, if it was the request's own.
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
