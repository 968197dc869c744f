//! Bounds the data of writes that wait for a worker thread: during write-back the kernel would send
//! hundreds of large writes at once.
//!
//! The bound is larger for writes that wait for the end of a suspension. Those do not end by
//! themselves, and must not occupy the threads that receive other requests.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};

/// Counts bytes copied out of receive buffers.
#[derive(Clone)]
pub(super) struct WriteBuffers {
    bytes: Arc<AtomicUsize>,
    /// Largest total in bytes.
    max: usize,
    /// The same, for writes that wait for the end of a suspension.
    max_suspended: usize,
}

/// A copy of the data of a write. Dropping it returns its bytes.
pub(super) struct BufferedWrite {
    pub(super) data: Vec<u8>,
    write_buffers: WriteBuffers,
}

impl WriteBuffers {
    pub(super) fn new(max: usize, max_suspended: usize) -> Self {
        Self { bytes: Arc::default(), max, max_suspended: max_suspended.max(max) }
    }

    /// Copies `data`, unless the limit would be exceeded.
    pub(super) fn try_copy(&self, data: &[u8]) -> Option<BufferedWrite> {
        self.try_copy_within(self.max, data)
    }

    /// As [`try_copy`](Self::try_copy), for a write that waits for the end of a suspension.
    pub(super) fn try_copy_suspended(&self, data: &[u8]) -> Option<BufferedWrite> {
        self.try_copy_within(self.max_suspended, data)
    }

    fn try_copy_within(&self, max: usize, data: &[u8]) -> Option<BufferedWrite> {
        let before = self.bytes.fetch_add(data.len(), Ordering::Relaxed);
        if before + data.len() > max {
            self.bytes.fetch_sub(data.len(), Ordering::Relaxed);
            return None;
        }
        Some(BufferedWrite { data: data.to_vec(), write_buffers: self.clone() })
    }
}

impl Drop for BufferedWrite {
    fn drop(&mut self) {
        self.write_buffers.bytes.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_until_some_are_dropped() {
        const MAX: usize = 4 << 20;
        let write_buffers = WriteBuffers::new(MAX, 2 * MAX);
        let data = vec![7; MAX / 4 + 1];
        let mut held: Vec<_> = std::iter::from_fn(|| write_buffers.try_copy(&data)).collect();
        assert_eq!(held.len(), 3);
        let more: Vec<_> = std::iter::from_fn(|| write_buffers.try_copy_suspended(&data)).collect();
        assert_eq!(more.len(), 4, "they have a bound of their own");
        drop(more);
        assert_eq!(held.pop().map(|copied| copied.data == data), Some(true));
        assert!(write_buffers.try_copy(&data).is_some(), "one was dropped");
        held.clear();
        assert!(write_buffers.try_copy(&vec![0; MAX]).is_some(), "all were");
        assert!(write_buffers.try_copy(&vec![0; MAX + 1]).is_none());
    }
}
