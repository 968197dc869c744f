//! The reads that one ranged get answers: neighbours in a dense object.
//!
//! The body is copied into their memory as it arrives, and never kept as a whole. Each read
//! completes once it has its bytes. If the get fails in the middle, what has arrived stays: a
//! repetition asks for the rest.
//!
//! # Locking
//! `object-run` is held for a copy. No callback runs under it: reads are completed afterwards.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_base::sync::{Arc, Mutex};
use forebay_io::Request;

use crate::engine::Engine;
use crate::map::Object;
use crate::store::Sink;

/// Reads of adjacent bytes of one object.
pub(crate) struct Run {
    pub(crate) object: Object,
    engine: Arc<Engine>,
    filling: Mutex<Filling>,
}

struct Filling {
    /// The reads that lack bytes, in the order of their addresses. Only the first one has some.
    reads: VecDeque<Request>,
    /// Bytes of the first one that are there.
    filled: usize,
    /// Of the object, in bytes: from the next byte to arrive, to the end of the last read.
    rest: Range<u64>,
}

impl Run {
    /// Starts with one read, which lies in `object`.
    pub(crate) fn new(engine: &Arc<Engine>, object: Object, read: Request) -> Self {
        let start = read.offset() - object.first_byte();
        let filling =
            Filling { rest: start..start + read.len(), reads: VecDeque::from([read]), filled: 0 };
        let filling = Mutex::named("object-run", filling);
        Self { object, engine: Arc::clone(engine), filling }
    }

    /// Adds a read of the bytes that follow, in the same object. Otherwise gives it back.
    pub(crate) fn add(&mut self, object: &Object, read: Request) -> Result<(), Request> {
        let filling = self.filling.get_mut();
        if self.object != *object || object.first_byte() + filling.rest.end != read.offset() {
            return Err(read);
        }
        filling.rest.end += read.len();
        filling.reads.push_back(read);
        Ok(())
    }

    /// What is to be read, in bytes of the object.
    pub(crate) fn rest(&self) -> Range<u64> {
        self.filling.lock().rest.clone()
    }

    /// The reads that lack bytes.
    pub(crate) fn into_reads(self) -> VecDeque<Request> {
        self.filling.into_inner().reads
    }
}

impl Sink for Run {
    fn write(&self, mut bytes: &[u8]) {
        let mut ended = Vec::new();
        {
            let mut filling = self.filling.lock();
            while !bytes.is_empty()
                && let Some(mut read) = filling.reads.pop_front()
            {
                let filled = filling.filled;
                let into = read.bytes_mut().expect("a read owns its memory");
                let count = bytes.len().min(into.len() - filled);
                let is_full = filled + count == into.len();
                let (now, later) = bytes.split_at(count);
                into[filled..filled + count].copy_from_slice(now);
                bytes = later;
                filling.rest.start += count as u64;
                if is_full {
                    filling.filled = 0;
                    ended.push((read, Ok(())));
                } else {
                    filling.filled += count;
                    filling.reads.push_front(read);
                }
            }
        }
        if !ended.is_empty() {
            self.engine.finish(ended);
        }
    }
}
