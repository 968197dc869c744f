//! Doubly linked lists of chunks, linked through their headers.
//!
//! The lists take constant time and allocate nothing. A chunk has two pairs of links, one for the
//! lists of allocation and one for the lists of purgers.
//!
//! Locking: a list and its chunks belong to a class or to the pool, and are accessed under that
//! lock.

use std::ptr::NonNull;

use super::chunk::Chunk;

/// The address of a chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPtr(pub(super) NonNull<Chunk>);

// SAFETY: only an address; `ChunkPtr::get` states who may dereference it.
unsafe impl Send for ChunkPtr {}

impl ChunkPtr {
    /// The header of the chunk at distance `index` after this one.
    ///
    /// # Safety
    /// That chunk is in the same region.
    pub(super) unsafe fn add(self, index: usize) -> Self {
        // SAFETY: the headers of a region are an array.
        Self(unsafe { self.0.add(index) })
    }

    /// The header.
    ///
    /// # Safety
    /// The caller owns the chunk, as [`super::chunk`] defines it, and has no other reference to
    /// this header.
    #[inline]
    pub(super) unsafe fn get<'a>(self) -> &'a mut Chunk {
        // SAFETY: a header exists as long as its arena, and the caller has the only reference.
        unsafe { &mut *self.0.as_ptr() }
    }
}

/// The kind of a list, which selects the pair of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    /// Chunks from which blocks can be allocated, or chunks in the pool with backed pages.
    Alloc = 0,
    /// Chunks with pages that can be released.
    Idle = 1,
}

/// The links of a chunk, one per kind of list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    by_kind: [Option<Link>; 2],
}

impl Links {
    /// In no list.
    pub(super) const NONE: Self = Self { by_kind: [None; 2] };
}

/// The neighbours of a chunk in a list, and the number of the list.
#[derive(Clone, Copy, Debug)]
struct Link {
    list: u8,
    previous: Option<ChunkPtr>,
    next: Option<ChunkPtr>,
}

/// Numbered lists of one kind.
pub(super) struct Lists<const N: usize> {
    kind: ListKind,
    heads: [Option<ChunkPtr>; N],
}

impl<const N: usize> Lists<N> {
    pub(super) fn new(kind: ListKind) -> Self {
        Self { kind, heads: [None; N] }
    }

    /// The first chunk of list `number`.
    pub(super) fn first(&self, number: usize) -> Option<ChunkPtr> {
        self.heads[number]
    }

    /// Moves `chunk` to list `number`, or out of all lists. Does nothing if it is there already.
    ///
    /// # Safety
    /// The caller owns the chunk and the chunks in these lists and has no reference to their
    /// headers. The chunk is in no other `Lists` of this kind.
    pub(super) unsafe fn move_to(&mut self, chunk: ChunkPtr, number: Option<usize>) {
        // SAFETY: forwarded from the caller; each reference ends before the next starts.
        unsafe {
            let here = chunk.get().links.by_kind[self.kind as usize];
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
                chunk.get().links.by_kind[self.kind as usize] = None;
            }
            if let Some(number) = number {
                let next = self.heads[number].replace(chunk);
                if let Some(next) = next {
                    self.link(next, |l| l.previous = Some(chunk));
                }
                chunk.get().links.by_kind[self.kind as usize] =
                    Some(Link { list: number as u8, previous: None, next });
            }
        }
    }

    /// # Safety
    /// As [`move_to`](Self::move_to).
    unsafe fn link(&self, chunk: ChunkPtr, change: impl FnOnce(&mut Link)) {
        // SAFETY: forwarded from the caller.
        let link = unsafe { &mut chunk.get().links.by_kind[self.kind as usize] };
        change(link.as_mut().expect("a neighbour in a list has links"));
    }

    /// Calls `f` for each chunk of every list.
    ///
    /// # Safety
    /// As [`move_to`](Self::move_to); `f` must not change links.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) unsafe fn for_each(&self, mut f: impl FnMut(usize, ChunkPtr)) {
        for number in 0..N {
            let mut at = self.heads[number];
            while let Some(chunk) = at {
                f(number, chunk);
                // SAFETY: forwarded from the caller.
                let link = unsafe { chunk.get() }.links.by_kind[self.kind as usize];
                let link = link.expect("a chunk in a list has links");
                assert_eq!(
                    link.list as usize, number,
                    "the links of a chunk have the number of its list"
                );
                at = link.next;
            }
        }
    }
}
