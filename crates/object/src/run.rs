//! The reads that one ranged get answers: neighbours in a dense object.
//!
//! The body is copied into their memory as it arrives, and never kept as a whole. Each read
//! completes once it has its bytes. If the get fails in the middle, what has arrived stays: a
//! repetition asks for the rest.
//!
//! A read of bytes in several dense objects is split. Each part shares the get of its neighbours,
//! and the read completes with its last part.
//!
//! # Locking
//! `object-run` is held for a copy; `object-split`, which is taken under it, too. No callback runs
//! under them: reads are completed afterwards.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_base::sync::{Arc, Mutex};
use forebay_io::Request;

use crate::engine::Engine;
use crate::format::SECTOR_BYTES;
use crate::map::{Map, Object};
use crate::store::{Sink, StoreError};

/// Reads, or parts of them, of adjacent bytes of one object.
pub(crate) struct Run {
    pub(crate) object: Object,
    engine: Arc<Engine>,
    filling: Mutex<Filling>,
}

struct Filling {
    /// What lacks bytes, in the order of the addresses. Only the first one has some.
    parts: VecDeque<Part>,
    /// Bytes of the first one that are there.
    filled: usize,
    /// Of the object, in bytes: from the next byte to arrive, to the end of the last read.
    rest: Range<u64>,
}

/// A read, or the part of one that is in one object.
pub(crate) enum Part {
    Whole(Request),
    Split(SplitPart),
}

/// A part of a read that is in several objects.
pub(crate) struct SplitPart {
    read: Arc<Mutex<SplitRead>>,
    /// The address of its first byte.
    offset: u64,
    /// Its bytes in the memory of the read.
    range: Range<usize>,
}

/// Protected by `object-split`.
struct SplitRead {
    /// Until the last part has ended.
    request: Option<Request>,
    parts: usize,
    /// The worst that a part has met.
    end: PartEnd,
}

/// How a read has ended, or a part of it.
#[derive(Clone)]
pub(crate) enum PartEnd {
    Filled,
    /// Its object is gone: the address must be resolved again.
    Gone,
    /// The key of the object, and the failure.
    Failed(String, StoreError),
}

impl PartEnd {
    fn worse(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Filled, other) => other.clone(),
            (Self::Gone, Self::Failed(..)) => other.clone(),
            (worst, _) => worst,
        }
    }
}

impl Part {
    /// Splits a read that begins in the dense object `first` and ends behind it. Gives it back if
    /// not all of it is in dense objects.
    pub(crate) fn split(
        map: &Map,
        first: Object,
        request: Request,
    ) -> Result<Vec<(Object, Self)>, Request> {
        let start = request.offset();
        let end = start + request.len();
        let (mut objects, mut covered) = (vec![(first, start)], first.end_byte());
        while covered < end {
            let Some(next) = map.dense_at(covered / SECTOR_BYTES) else { return Err(request) };
            objects.push((next, covered));
            covered = next.end_byte();
        }
        let read = SplitRead { request: Some(request), parts: objects.len(), end: PartEnd::Filled };
        let read = Arc::new(Mutex::named("object-split", read));
        let part = |(object, offset): (Object, u64)| {
            let range = (offset - start) as usize..(object.end_byte().min(end) - start) as usize;
            (object, Self::Split(SplitPart { read: Arc::clone(&read), offset, range }))
        };
        Ok(objects.into_iter().map(part).collect())
    }

    /// The address of its first byte.
    fn offset(&self) -> u64 {
        match self {
            Self::Whole(request) => request.offset(),
            Self::Split(part) => part.offset,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Whole(request) => request.len() as usize,
            Self::Split(part) => part.range.len(),
        }
    }

    /// Copies bytes into its memory, from its byte `at` on.
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        let copy = |request: &mut Request, at: usize| {
            let into = request.bytes_mut().expect("a read owns its memory");
            into[at..at + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Self::Whole(request) => copy(request, at),
            Self::Split(part) => {
                let mut read = part.read.lock();
                let request = read.request.as_mut().expect("this part has not ended");
                copy(request, part.range.start + at);
            }
        }
    }

    /// Ends it. Returns the read and how it has ended, unless other parts of it have not.
    pub(crate) fn end(self, end: &PartEnd) -> Option<(Request, PartEnd)> {
        match self {
            Self::Whole(request) => Some((request, end.clone())),
            Self::Split(part) => {
                let mut read = part.read.lock();
                let before = std::mem::replace(&mut read.end, PartEnd::Filled);
                read.end = before.worse(end);
                read.parts -= 1;
                if read.parts > 0 {
                    return None;
                }
                let request = read.request.take().expect("it ends once");
                Some((request, read.end.clone()))
            }
        }
    }
}

impl Run {
    /// Starts with a read, or a part of one, which lies in `object`.
    pub(crate) fn new(engine: &Arc<Engine>, object: Object, part: Part) -> Self {
        let start = part.offset() - object.first_byte();
        let filling = Filling {
            rest: start..start + part.len() as u64,
            parts: VecDeque::from([part]),
            filled: 0,
        };
        let filling = Mutex::named("object-run", filling);
        Self { object, engine: Arc::clone(engine), filling }
    }

    /// Adds a read of the bytes that follow, in the same object. Otherwise gives it back.
    pub(crate) fn add(&mut self, object: &Object, part: Part) -> Result<(), Part> {
        let filling = self.filling.get_mut();
        if self.object != *object || object.first_byte() + filling.rest.end != part.offset() {
            return Err(part);
        }
        filling.rest.end += part.len() as u64;
        filling.parts.push_back(part);
        Ok(())
    }

    /// What is to be read, in bytes of the object.
    pub(crate) fn rest(&self) -> Range<u64> {
        self.filling.lock().rest.clone()
    }

    /// What lacks bytes.
    pub(crate) fn into_parts(self) -> VecDeque<Part> {
        self.filling.into_inner().parts
    }
}

impl Sink for Run {
    fn write(&self, mut bytes: &[u8]) {
        let mut ended = Vec::new();
        {
            let mut filling = self.filling.lock();
            while !bytes.is_empty()
                && let Some(mut part) = filling.parts.pop_front()
            {
                let filled = filling.filled;
                let count = bytes.len().min(part.len() - filled);
                let is_full = filled + count == part.len();
                let (now, later) = bytes.split_at(count);
                part.fill(filled, now);
                bytes = later;
                filling.rest.start += count as u64;
                if is_full {
                    filling.filled = 0;
                    ended.push(part);
                } else {
                    filling.filled += count;
                    filling.parts.push_front(part);
                }
            }
        }
        self.engine.end_parts(ended, &PartEnd::Filled);
    }
}
