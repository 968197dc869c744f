//! Doubly linked lists of chunks, linked through their headers.
//!
//! Purpose: constant-time lists without allocation. A chunk has two pairs of links, one for
//! the list from which blocks are taken and one for the list in which purgers look.
//!
//! Locking: a list and the chunks in it belong to one class or to the pool, and are touched
//! under that one's lock only.

use std::ptr::NonNull;

use super::chunk::Chunk;

/// A chunk's header, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPtr(pub(super) NonNull<Chunk>);

// SAFETY: only an address; `ChunkPtr::get` says who may use it.
unsafe impl Send for ChunkPtr {}

impl ChunkPtr {
    /// The header of the chunk `index` places behind this one.
    ///
    /// # Safety
    /// That chunk lies in the same region.
    pub(super) unsafe fn add(self, index: usize) -> Self {
        // SAFETY: the headers of a region are an array.
        Self(unsafe { self.0.add(index) })
    }

    /// The header.
    ///
    /// # Safety
    /// The caller owns the chunk as the head of [`super::chunk`] says, and holds no other
    /// reference to this header.
    #[inline]
    pub(super) unsafe fn get<'a>(self) -> &'a mut Chunk {
        // SAFETY: headers live as long as their arena, and the caller has the only reference.
        unsafe { &mut *self.0.as_ptr() }
    }
}

/// Which pair of links a list runs through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Chunks from which blocks can be taken.
    Alloc = 0,
    /// Chunks with pages that can be released.
    Idle = 1,
}

/// A chunk's neighbours, a pair a lane, and the number of the list it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    lanes: [Option<Link>; 2],
}

impl Links {
    /// In no list.
    pub(super) const NONE: Self = Self { lanes: [None; 2] };
}

#[derive(Clone, Copy, Debug)]
struct Link {
    list: u8,
    previous: Option<ChunkPtr>,
    next: Option<ChunkPtr>,
}

/// Several numbered lists in one lane.
pub(super) struct Lists<const N: usize> {
    lane: Lane,
    heads: [Option<ChunkPtr>; N],
}

impl<const N: usize> Lists<N> {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, heads: [None; N] }
    }

    /// The first chunk of list `number`.
    pub(super) fn first(&self, number: usize) -> Option<ChunkPtr> {
        self.heads[number]
    }

    /// Moves `chunk` to list `number`, or out of all lists; nothing happens if it is there.
    ///
    /// # Safety
    /// The caller owns the chunk and the chunks in these lists, holds no reference to any of
    /// their headers, and the chunk is in no other `Lists` in this lane.
    pub(super) unsafe fn place(&mut self, chunk: ChunkPtr, number: Option<usize>) {
        // SAFETY: forwarded from the caller; each reference ends before the next begins.
        unsafe {
            let here = chunk.get().links.lanes[self.lane as usize];
            if here.map(|link| link.list as usize) == number {
                return;
            }
            if let Some(link) = here {
                match link.previous {
                    Some(previous) => self.link(previous, |l| l.next = link.next),
                    None => self.heads[link.list as usize] = link.next,
                }
                if let Some(next) = link.next {
                    self.link(next, |l| l.previous = link.previous);
                }
                chunk.get().links.lanes[self.lane as usize] = None;
            }
            if let Some(number) = number {
                let next = self.heads[number].replace(chunk);
                if let Some(next) = next {
                    self.link(next, |l| l.previous = Some(chunk));
                }
                chunk.get().links.lanes[self.lane as usize] =
                    Some(Link { list: number as u8, previous: None, next });
            }
        }
    }

    /// # Safety
    /// As [`place`](Self::place).
    unsafe fn link(&self, chunk: ChunkPtr, change: impl FnOnce(&mut Link)) {
        // SAFETY: forwarded from the caller.
        let link = unsafe { &mut chunk.get().links.lanes[self.lane as usize] };
        change(link.as_mut().expect("a neighbour in a list is linked"));
    }

    /// Calls `f` for each chunk of every list.
    ///
    /// # Safety
    /// As [`place`](Self::place); `f` must not change links.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) unsafe fn for_each(&self, mut f: impl FnMut(usize, ChunkPtr)) {
        for number in 0..N {
            let mut at = self.heads[number];
            while let Some(chunk) = at {
                f(number, chunk);
                // SAFETY: forwarded from the caller.
                let link = unsafe { chunk.get() }.links.lanes[self.lane as usize];
                let link = link.expect("a chunk in a list is linked");
                assert_eq!(link.list as usize, number, "a chunk knows its list");
                at = link.next;
            }
        }
    }
}
