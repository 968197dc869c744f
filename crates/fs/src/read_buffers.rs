//! Buffers into which reads copy blocks.
//!
//! Each thread keeps a small one of its own. A thread that receives requests keeps a large one.
//! Workers and threads of I/O callbacks are many, and share a few large ones, so that the memory of
//! a file system does not grow with its threads, nor that of a followed pool with the groups whose
//! files are read. While all of them are used, a thread that may block waits for one. A read of
//! more than 1 MiB takes one of them, and memory of its own.
//!
//! # Locking
//!
//! `fs-read-buffers` protects the list of the shared ones. It is held for a push or a pop. Threads
//! that may block wait on it for one.

use std::cell::{Cell, RefCell};

use forebay_base::sync::{Condvar, Mutex, thread_local};

/// Largest buffer that is kept, in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Largest buffer that a thread keeps which does not receive requests, in bytes.
const SMALL_BYTES: usize = 128 << 10;

thread_local! {
    /// The thread's buffer.
    static OWN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread uses a shared buffer.
    static HAS_SHARED: Cell<bool> = const { Cell::new(false) };
}

/// The thread that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It has received the request, and does not block.
    Receiver,
    /// It may block: a worker.
    Blocking,
    /// It has ended a load for which the read waited: a thread of I/O callbacks, or any other. It
    /// may be in the middle of a read of its own.
    Loader,
}

/// Large buffers that workers and threads of I/O callbacks share, for reads of more than 128 KiB.
pub struct ReadBuffers {
    shared: Mutex<SharedBuffers>,
    returned: Condvar,
}

struct SharedBuffers {
    /// How many may be used at a time.
    max: usize,
    used: usize,
    /// Buffers that are kept, no more than are unused.
    kept: Vec<Vec<u8>>,
}

/// A shared buffer, which is returned when this is dropped.
struct SharedBuffer<'a> {
    owner: &'a ReadBuffers,
    bytes: Vec<u8>,
    /// Whether the thread had another one before.
    was_set: bool,
}

impl Drop for SharedBuffer<'_> {
    fn drop(&mut self) {
        HAS_SHARED.set(self.was_set);
        let bytes = std::mem::take(&mut self.bytes);
        let mut shared = self.owner.shared.lock();
        shared.used -= 1;
        if bytes.len() <= LARGE_BYTES {
            shared.kept.push(bytes);
        }
        drop(shared);
        self.owner.returned.notify_one();
    }
}

impl ReadBuffers {
    /// Buffers of 1 MiB, of `bytes` in all, at least one. A buffer takes memory once it is used.
    pub fn new(bytes: usize) -> Self {
        let max = (bytes / LARGE_BYTES).max(1);
        let shared = SharedBuffers { max, used: 0, kept: Vec::new() };
        Self { shared: Mutex::named("fs-read-buffers", shared), returned: Condvar::new() }
    }

    /// Calls `read` with a buffer of `len` bytes of any content. `read` may read another file.
    /// `None` if all buffers are used, and the thread may not wait for one.
    pub(crate) fn with<R>(
        &self,
        len: usize,
        reader: Reader,
        read: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        if len <= SMALL_BYTES || reader == Reader::Receiver {
            return Some(with_own(len, read));
        }
        let may_wait = reader == Reader::Blocking;
        // A read in a read does not wait for the buffer that its own thread uses.
        if may_wait && HAS_SHARED.get() {
            return Some(read(&mut vec![0; len]));
        }
        let mut buffer = self.take(may_wait)?;
        Some(read(of_len(&mut buffer.bytes, len)))
    }

    fn take(&self, may_wait: bool) -> Option<SharedBuffer<'_>> {
        let mut shared = self.shared.lock();
        while shared.used >= shared.max {
            if !may_wait {
                return None;
            }
            self.returned.wait(&mut shared);
        }
        shared.used += 1;
        let bytes = shared.kept.pop().unwrap_or_default();
        Some(SharedBuffer { owner: self, bytes, was_set: HAS_SHARED.replace(true) })
    }
}

/// Calls `read` with the thread's own buffer.
fn with_own<R>(len: usize, read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = OWN.take();
    let result = read(of_len(&mut buffer, len));
    if buffer.len() <= LARGE_BYTES {
        OWN.set(buffer);
    }
    result
}

/// `len` bytes of a buffer, which is replaced if it is smaller.
fn of_len(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        *buffer = vec![0; len];
    }
    &mut buffer[..len]
}

#[cfg(test)]
mod tests {
    use forebay_base::sync::Arc;
    use forebay_base::sync::thread::spawn_named;

    use super::*;

    const MAX: usize = 4;

    /// Where reads stay until it is open.
    #[derive(Default)]
    struct Gate {
        is_open: bool,
        inside: usize,
        most: usize,
    }

    fn pass((gate, changed): &(Mutex<Gate>, Condvar)) {
        let mut gate = gate.lock();
        gate.inside += 1;
        gate.most = gate.most.max(gate.inside);
        changed.notify_all();
        while !gate.is_open {
            changed.wait(&mut gate);
        }
        gate.inside -= 1;
    }

    fn own_bytes() -> usize {
        OWN.with_borrow(Vec::capacity)
    }

    fn kept(buffers: &ReadBuffers) -> usize {
        buffers.shared.lock().kept.len()
    }

    #[test]
    fn a_thread_that_receives_requests_keeps_a_large_buffer_and_others_share_them() {
        let buffers = Arc::new(ReadBuffers::new(MAX * LARGE_BYTES));
        buffers.with(LARGE_BYTES, Reader::Receiver, |buffer| assert_eq!(buffer.len(), LARGE_BYTES));
        assert_eq!(own_bytes(), LARGE_BYTES);
        assert_eq!(kept(&buffers), 0);
        let shared = Arc::clone(&buffers);
        let work = move || {
            shared.with(SMALL_BYTES, Reader::Blocking, |_| ());
            shared.with(LARGE_BYTES, Reader::Blocking, |_| ());
            own_bytes()
        };
        assert_eq!(spawn_named("worker", work).unwrap().join().unwrap(), SMALL_BYTES);
        assert_eq!(kept(&buffers), 1);
        buffers
            .with(LARGE_BYTES, Reader::Blocking, |_| assert_eq!(kept(&buffers), 0, "it is used"));
    }

    #[test]
    fn a_thread_waits_for_a_large_buffer_while_all_are_used() {
        let buffers = Arc::new(ReadBuffers::new(MAX * LARGE_BYTES));
        let gate = Arc::new((Mutex::named("test-gate", Gate::default()), Condvar::new()));
        let threads: Vec<_> = (0..3 * MAX)
            .map(|_| {
                let (buffers, gate) = (Arc::clone(&buffers), Arc::clone(&gate));
                let work = move || buffers.with(LARGE_BYTES, Reader::Blocking, |_| pass(&gate));
                spawn_named("worker", work).unwrap()
            })
            .collect();
        let mut seen = gate.0.lock();
        while seen.inside < MAX {
            gate.1.wait(&mut seen);
        }
        let read = buffers.with(LARGE_BYTES, Reader::Loader, |_| ());
        assert!(read.is_none(), "no buffer is free, and it may not wait");
        seen.is_open = true;
        drop(seen);
        gate.1.notify_all();
        threads.into_iter().for_each(|thread| assert!(thread.join().unwrap().is_some()));
        assert_eq!(gate.0.lock().most, MAX);
        assert_eq!(kept(&buffers), MAX);
        assert!(buffers.with(LARGE_BYTES, Reader::Loader, |_| ()).is_some());
        assert!(own_bytes() <= SMALL_BYTES, "what ends a load keeps no large buffer");
    }

    #[test]
    fn a_read_in_a_read_has_another_buffer_and_a_huge_one_is_not_kept() {
        let buffers = ReadBuffers::new(0);
        for (len, reader) in [(100, Reader::Receiver), (SMALL_BYTES + 1, Reader::Blocking)] {
            let read = buffers.with(len, reader, |outer| {
                outer.fill(1);
                assert!(buffers.with(len, reader, |inner| inner.fill(2)).is_some());
                assert!(outer.iter().all(|byte| *byte == 1));
            });
            assert!(read.is_some());
        }
        for reader in [Reader::Receiver, Reader::Blocking] {
            buffers
                .with(LARGE_BYTES + 1, reader, |buffer| assert_eq!(buffer.len(), LARGE_BYTES + 1));
        }
        // Nor does a thread in a read take more for the reads of others whose load it ends.
        let read = buffers.with(LARGE_BYTES, Reader::Blocking, |_| {
            buffers.with(LARGE_BYTES, Reader::Loader, |_| ()).is_none()
        });
        assert_eq!(read, Some(true));
        assert!(own_bytes() <= LARGE_BYTES);
        assert!(buffers.shared.lock().kept.iter().all(|buffer| buffer.len() <= LARGE_BYTES));
    }

    #[test]
    fn a_read_that_panics_returns_its_buffer() {
        let buffers = ReadBuffers::new(0);
        let read = || buffers.with(LARGE_BYTES, Reader::Blocking, |_| panic!("no data"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_err();
        assert!(buffers.take(false).is_some());
    }
}
