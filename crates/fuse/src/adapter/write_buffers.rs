//! How much data of writes waits in memory for a thread that may wait.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};

use crate::options::MAX_WRITE_BYTES;

/// Bytes of it, at most: some writes of the largest size. A kernel that writes back what it holds would hand over hundreds at once.
const BUFFERED_BYTES_MAX: usize = 16 * MAX_WRITE_BYTES as usize;

/// Counts bytes that were copied out of the transport's buffers.
#[derive(Clone, Default)]
pub(super) struct WriteBuffers {
    bytes: Arc<AtomicUsize>,
}

/// A copy. Dropping it makes room for others.
pub(super) struct BufferedWrite {
    pub(super) data: Vec<u8>,
    write_buffers: WriteBuffers,
}

impl WriteBuffers {
    /// A copy, if it finds room beside the others.
    pub(super) fn try_copy(&self, data: &[u8]) -> Option<BufferedWrite> {
        let before = self.bytes.fetch_add(data.len(), Ordering::Relaxed);
        if before + data.len() > BUFFERED_BYTES_MAX {
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
    fn so_much_is_copied_and_no_more_until_some_is_dropped() {
        let write_buffers = WriteBuffers::default();
        let data = vec![7; BUFFERED_BYTES_MAX / 4 + 1];
        let mut held: Vec<_> = std::iter::from_fn(|| write_buffers.try_copy(&data)).collect();
        assert_eq!(held.len(), 3);
        assert_eq!(held.pop().map(|copied| copied.data == data), Some(true));
        assert!(write_buffers.try_copy(&data).is_some(), "one was dropped");
        held.clear();
        assert!(write_buffers.try_copy(&vec![0; BUFFERED_BYTES_MAX]).is_some(), "all were");
        assert!(write_buffers.try_copy(&vec![0; BUFFERED_BYTES_MAX + 1]).is_none());
    }
}
