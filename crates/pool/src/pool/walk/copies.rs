//! Reads of all copies of one block.

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, Dva};
use crate::store::Store;

use super::visit::is_damage;

/// The copies of a block.
pub(super) struct ReadCopies {
    pub(super) content: Option<Vec<u8>>,
    pub(super) extents: Vec<(Dva, u64)>,
    /// Why the pieces of a gang are not known.
    pub(super) lost_extents: Option<Error>,
    pub(super) bad: Vec<(usize, Error)>,
    pub(super) copies: usize,
    /// Copies that were read.
    pub(super) tried: usize,
}

impl ReadCopies {
    /// The first failure of a device.
    pub(super) fn device_error(&self) -> Option<&Error> {
        let mut all = self.bad.iter().map(|(_, error)| error).chain(&self.lost_extents);
        all.find(|error| error.kind() == ErrorKind::Device)
    }
}

/// Reads the copies of a block that are wanted. The content is kept if it is.
///
/// # Errors
/// Errors that are no damage.
pub(super) fn read_copies(
    store: &Store,
    ptr: &BlockPtrPhys,
    wants_content: bool,
    wants: &dyn Fn(usize) -> bool,
) -> Result<ReadCopies> {
    let (extents, lost_extents) = match store.extents(ptr) {
        Ok(extents) => (extents, None),
        Err(error) if is_damage(&error) => (Vec::new(), Some(error)),
        Err(error) => return Err(error),
    };
    let copies = store.place_count(ptr);
    let mut read =
        ReadCopies { content: None, extents, lost_extents, bad: Vec::new(), copies, tried: 0 };
    for copy in (0..copies).filter(|copy| wants(*copy)) {
        read.tried += 1;
        if !wants_content && store.is_empty(ptr, copy) {
            let text = format!("{ptr:?}: the device of copy {copy} has no blocks yet");
            read.bad.push((copy, Error::new(ErrorKind::Corrupt, text)));
            continue;
        }
        match store.read_copy(ptr, copy) {
            Ok(content) if wants_content && read.content.is_none() => {
                read.content = Some(content.to_vec());
            }
            Ok(_) => {}
            // Its device was taken out of use.
            Err(_) if !store.has_place(ptr, copy) => {}
            Err(error) if is_damage(&error) => read.bad.push((copy, error)),
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
