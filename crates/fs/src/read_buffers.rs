//! Buffers into which reads copy blocks.
//!
//! Each thread keeps a small one of its own. A thread that receives requests keeps a large one.
//! Workers and threads of I/O callbacks are many, and take large ones from a list of a few, so that
//! the memory of a file system does not grow with its threads.
//!
//! # Locking
//!
//! `fs-read-buffers` protects that list. It is held for a push or a pop.

use std::cell::RefCell;

use forebay_base::sync::{Mutex, thread_local};
use forebay_pool::Wait;

/// Largest buffer that is kept, in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Largest buffer that a thread keeps which does not receive requests, in bytes.
const SMALL_BYTES: usize = 128 << 10;
/// Largest number of buffers in the list. A copy is short, so few threads need one at a time.
const SHARED_MAX: usize = 4;

thread_local! {
    /// The thread's buffer.
    static OWN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Large buffers of threads that do not receive requests.
pub(crate) struct ReadBuffers {
    shared: Mutex<Vec<Vec<u8>>>,
}

impl ReadBuffers {
    pub(crate) fn new() -> Self {
        Self { shared: Mutex::named("fs-read-buffers", Vec::new()) }
    }

    /// Calls `read` with a buffer of `len` bytes of any content. `read` may read another file.
    pub(crate) fn with<R>(&self, len: usize, wait: Wait, read: impl FnOnce(&mut [u8]) -> R) -> R {
        let receives_requests = wait == Wait::Refused && !forebay_io::in_callback();
        let is_own = len <= SMALL_BYTES || receives_requests;
        let mut buffer = match is_own {
            true => OWN.take(),
            false => self.shared.lock().pop().unwrap_or_default(),
        };
        if buffer.len() < len {
            buffer = vec![0; len];
        }
        let result = read(&mut buffer[..len]);
        if is_own && buffer.len() <= LARGE_BYTES {
            OWN.set(buffer);
        } else if buffer.len() <= LARGE_BYTES {
            let mut shared = self.shared.lock();
            if shared.len() < SHARED_MAX {
                shared.push(buffer);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::sync::Arc;
    use forebay_base::sync::thread::spawn_named;

    use super::*;

    fn own_bytes() -> usize {
        OWN.with_borrow(Vec::capacity)
    }

    fn use_at_once(buffers: &ReadBuffers, number: usize) {
        if number > 0 {
            buffers.with(LARGE_BYTES, Wait::Allowed, |_| use_at_once(buffers, number - 1));
        }
    }

    #[test]
    fn a_thread_that_receives_requests_keeps_a_large_buffer_and_others_share_a_few() {
        let buffers = Arc::new(ReadBuffers::new());
        buffers.with(LARGE_BYTES, Wait::Refused, |buffer| assert_eq!(buffer.len(), LARGE_BYTES));
        assert_eq!(own_bytes(), LARGE_BYTES);
        assert!(buffers.shared.lock().is_empty());
        let shared = Arc::clone(&buffers);
        let work = move || {
            shared.with(SMALL_BYTES, Wait::Allowed, |_| ());
            use_at_once(&shared, 3 * SHARED_MAX);
            own_bytes()
        };
        assert_eq!(spawn_named("worker", work).unwrap().join().unwrap(), SMALL_BYTES);
        assert_eq!(buffers.shared.lock().len(), SHARED_MAX);
        buffers.with(LARGE_BYTES, Wait::Allowed, |_| {
            assert_eq!(buffers.shared.lock().len(), SHARED_MAX - 1, "one of them is used");
        });
    }

    #[test]
    fn a_read_in_a_read_has_another_buffer_and_a_huge_one_is_not_kept() {
        let buffers = ReadBuffers::new();
        for (len, wait) in [(100, Wait::Refused), (SMALL_BYTES + 1, Wait::Allowed)] {
            buffers.with(len, wait, |outer| {
                outer.fill(1);
                buffers.with(len, wait, |inner| inner.fill(2));
                assert!(outer.iter().all(|byte| *byte == 1));
            });
        }
        for wait in [Wait::Refused, Wait::Allowed] {
            buffers.with(LARGE_BYTES + 1, wait, |buffer| assert_eq!(buffer.len(), LARGE_BYTES + 1));
        }
        assert!(own_bytes() <= LARGE_BYTES);
        assert!(buffers.shared.lock().iter().all(|buffer| buffer.len() <= LARGE_BYTES));
    }
}
