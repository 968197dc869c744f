//! Reading of objects.
//!
//! A read of a cached block takes the object's lock once, to find out where the block is, and pins the block in the
//! cache. Where the cache had it is remembered beside the pinned indirect block that points to it, so that the next
//! read spares the cache's index.

use forebay_base::sync::hint;
use forebay_cache::Place;

use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::prefetch;

use super::RETRIES_MAX;
use super::node::{Found, Node, State};

/// Bytes of a processor's cache line.
const LINE_BYTES: usize = 64;
/// Lines of a block that are fetched before it is known that the block is still there.
const LINES_AHEAD: usize = 4;

/// What a look at an object's state came to.
enum Looked {
    /// The bytes are copied.
    Done,
    /// They are in that block, which the cache may have at that place.
    Stored(BlockPtrPhys, Place),
    /// The indirect block that knows is not pinned.
    Unknown,
}

/// A part of a read: bytes of one block.
struct Part<'a> {
    block: u64,
    within: usize,
    out: &'a mut [u8],
}

impl Node {
    /// Fills `out` from `offset` on, and returns how many bytes there were before the end.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut state = self.lock();
        let len = (out.len() as u64).min(state.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let mut parts = self.parts(offset, &mut out[..len]);
        let mut first = parts.next();
        let last = (offset + len as u64 - 1) >> self.record_shift;
        let blocks = (offset >> self.record_shift)..last + 1;
        let again = state.unserved.take(&blocks);
        let plan = if again { None } else { self.note_read(&mut state, &blocks) };
        // Not written to for nothing: most reads leave none, and others read that line.
        let postponed = if state.postponed.is_some() { state.postponed.take() } else { None };
        let looked = first.as_mut().map_or(Looked::Done, |part| self.look(&state, part));
        drop(state);
        for plan in [postponed, plan].into_iter().flatten() {
            self.read_ahead(plan);
        }
        let finished = || {
            if let Some(part) = &mut first {
                self.finish(looked, part, again)?;
            }
            parts.try_for_each(|mut part| {
                let looked = self.look(&self.lock(), &mut part);
                self.finish(looked, &mut part, again)
            })
        };
        match finished() {
            Ok(()) => Ok(len),
            Err(error) => {
                if error.kind() == ErrorKind::WouldBlock {
                    self.lock().unserved.put(blocks);
                }
                Err(error)
            }
        }
    }

    /// Cuts a read where blocks end.
    fn parts<'a>(
        &self,
        offset: u64,
        out: &'a mut [u8],
    ) -> impl Iterator<Item = Part<'a>> + use<'a> {
        let (shift, record) = (self.record_shift, self.record_bytes());
        let (mut at, mut rest) = (offset, out);
        std::iter::from_fn(move || {
            let within = at as usize & (record - 1);
            let len = (record - within).min(rest.len());
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(len);
            let part = Part { block: at >> shift, within, out };
            (rest, at) = (behind, at + len as u64);
            (len > 0).then_some(part)
        })
    }

    #[inline]
    fn look(&self, state: &State, part: &mut Part<'_>) -> Looked {
        let (place, content) = state.pins.spot(part.block);
        self.objset.store.approach(place);
        if let Some(content) = content {
            // The processor follows a copy once it has begun: what takes long is the beginning.
            let from = content.wrapping_add(part.within);
            let lines = part.out.len().div_ceil(LINE_BYTES).min(LINES_AHEAD);
            (0..lines).for_each(|line| hint::prefetch(from.wrapping_add(line * LINE_BYTES)));
        }
        match state.find(part.block) {
            Found::Dirty(buffer) => copy_out(buffer, part),
            Found::Hole => part.out.fill(0),
            Found::Stored(ptr) => return Looked::Stored(ptr, place),
            Found::Unknown => return Looked::Unknown,
        }
        Looked::Done
    }

    /// Goes on until the bytes are there. `again`: what the read found was noted already.
    fn finish(&self, mut looked: Looked, part: &mut Part<'_>, again: bool) -> Result<()> {
        for _ in 0..RETRIES_MAX {
            match looked {
                Looked::Done => return Ok(()),
                Looked::Unknown => self.pin(part.block)?,
                Looked::Stored(ptr, place) => {
                    if let Some(content) = self.objset.store.peek_at(&ptr, place) {
                        copy_out(&content, part);
                        if content.place() != place {
                            self.lock().pins.set_spot(part.block, content.place(), &content);
                        }
                        return Ok(());
                    }
                    if !again {
                        self.lock().last_found = match self.objset.store.is_read_ahead(&ptr) {
                            true => prefetch::Found::InFlight,
                            false => prefetch::Found::Miss,
                        };
                    }
                    if let Some(fetched) = self.fetch(part.block, &ptr)? {
                        copy_out(&fetched.content, part);
                        return Ok(());
                    }
                }
            }
            looked = self.look(&self.lock(), part);
        }
        let error = Error::new(ErrorKind::Corrupt, "it moves faster than it can be read");
        Err(self.naming(part.block, error))
    }
}

/// Copies from a block that may be shorter than a record: the rest is zeros.
#[inline]
fn copy_out(content: &[u8], part: &mut Part<'_>) {
    let there = content.get(part.within..).unwrap_or_default();
    let len = there.len().min(part.out.len());
    part.out[..len].copy_from_slice(&there[..len]);
    part.out[len..].fill(0);
}
