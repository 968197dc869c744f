//! Reading of objects.

use crate::error::{Error, ErrorKind, Result};
use crate::prefetch::Found;

use super::node::{self, Node};
use super::RETRIES_MAX;

impl Node {
    /// Fills `out` from `offset` on, and returns how many bytes there were before the end.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let size = self.size();
        let len = (out.len() as u64).min(size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let mut done = 0;
        let mut first = None;
        while done < len {
            let at = offset + done as u64;
            let within = at as usize & (self.record_bytes() - 1);
            let part = (self.record_bytes() - within).min(len - done);
            let found = self.read_block(at >> self.record_shift, within, &mut out[done..done + part])?;
            // Told early: what comes next is read while the rest of this read is copied.
            if first.is_none() {
                first = Some(found);
                let last = (offset + len as u64 - 1) >> self.record_shift;
                self.note_read(at >> self.record_shift..last + 1, found);
            }
            done += part;
        }
        Ok(len)
    }

    fn read_block(&self, block: u64, within: usize, out: &mut [u8]) -> Result<Found> {
        let mut whence = Found::Hit;
        for _ in 0..RETRIES_MAX {
            let ptr = {
                let state = self.lock();
                match state.find(block) {
                    node::Found::Dirty(buffer) => {
                        copy_out(buffer, within, out);
                        return Ok(whence);
                    }
                    node::Found::Hole => {
                        out.fill(0);
                        return Ok(whence);
                    }
                    node::Found::Stored(ptr) => Some(ptr),
                    node::Found::Unknown => None,
                }
            };
            let Some(ptr) = ptr else {
                self.pin(block)?;
                continue;
            };
            if let Some(content) = self.objset.store.peek(&ptr) {
                copy_out(&content, within, out);
                return Ok(whence);
            }
            whence = match self.objset.store.is_read_ahead(&ptr) {
                true => Found::InFlight,
                false => Found::Miss,
            };
            if let Some(fetched) = self.fetch(block, &ptr)? {
                copy_out(&fetched.content, within, out);
                return Ok(whence);
            }
        }
        Err(self.naming(block, Error::new(ErrorKind::Corrupt, "it moves faster than it can be read")))
    }
}

/// Copies from a block that may be shorter than a record: the rest is zeros.
fn copy_out(content: &[u8], within: usize, out: &mut [u8]) {
    let there = content.get(within..).unwrap_or_default();
    let len = there.len().min(out.len());
    out[..len].copy_from_slice(&there[..len]);
    out[len..].fill(0);
}
