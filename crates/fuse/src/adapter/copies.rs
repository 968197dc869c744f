//! How much data of writes waits in memory for a thread that may wait.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};

use crate::options::MAX_WRITE_BYTES;

/// Bytes of it, at most: some writes of the largest size. A kernel that writes back what it holds would hand over hundreds at once.
const MOST_BYTES: usize = 16 * MAX_WRITE_BYTES as usize;

/// Counts bytes that were copied out of the transport's buffers.
#[derive(Clone, Default)]
pub(super) struct Copies {
    bytes: Arc<AtomicUsize>,
}

/// A copy. Dropping it makes room for others.
pub(super) struct Copied {
    pub(super) data: Vec<u8>,
    copies: Copies,
}

impl Copies {
    /// A copy, if it finds room beside the others.
    pub(super) fn of(&self, data: &[u8]) -> Option<Copied> {
        let before = self.bytes.fetch_add(data.len(), Ordering::Relaxed);
        if before + data.len() > MOST_BYTES {
            self.bytes.fetch_sub(data.len(), Ordering::Relaxed);
            return None;
        }
        Some(Copied { data: data.to_vec(), copies: self.clone() })
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.copies.bytes.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_copied_and_no_more_until_some_is_dropped() {
        let copies = Copies::default();
        let data = vec![7; MOST_BYTES / 4 + 1];
        let mut held: Vec<_> = std::iter::from_fn(|| copies.of(&data)).collect();
        assert_eq!(held.len(), 3);
        assert_eq!(held.pop().map(|copied| copied.data == data), Some(true));
        assert!(copies.of(&data).is_some(), "one was dropped");
        held.clear();
        assert!(copies.of(&vec![0; MOST_BYTES]).is_some(), "all were");
        assert!(copies.of(&vec![0; MOST_BYTES + 1]).is_none());
    }
}
