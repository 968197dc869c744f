//! The extras of an inode: symlink target and extended attributes.
//!
//! They are encoded as a list of items. A list that does not fit behind the inode is cut into
//! pieces, which are the names of a separate directory, the *spill*. Every fsync in the dataset
//! makes names durable, so the extras are there whenever the inode is. A spill never changes: a new
//! one replaces it.

use forebay_pool::{Cookie, Dataset, Transaction, Wait};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use crate::attrs::Extras;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    EXTRA_TARGET, EXTRA_XATTR, EXTRAS_MAX, ExtraPhys, INLINE_MAX, SPILL_PIECE, TARGET_MAX,
    VALUE_MAX,
};
use crate::ops::rolled_back;

/// One of the extras.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) kind: u8,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Item {
    pub(crate) fn target(path: &[u8]) -> Self {
        Self { kind: EXTRA_TARGET, name: Vec::new(), value: path.to_vec() }
    }

    pub(crate) fn xattr(name: &[u8], value: &[u8]) -> Self {
        Self { kind: EXTRA_XATTR, name: name.to_vec(), value: value.to_vec() }
    }

    pub(crate) fn is_xattr(&self) -> bool {
        self.kind == EXTRA_XATTR
    }
}

/// Encodes items. Names have at most 255 bytes.
///
/// # Errors
/// [`NoSpace`](ErrorKind::NoSpace) if they are too large.
pub(crate) fn encode(items: &[Item]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for item in items {
        let head = ExtraPhys {
            kind: item.kind,
            name_bytes: item.name.len() as u8,
            value_bytes: (item.value.len() as u32).into(),
        };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(&item.name);
        bytes.extend_from_slice(&item.value);
    }
    match bytes.len() <= EXTRAS_MAX {
        true => Ok(bytes),
        false => {
            let text = format!(
                "extended attributes of {} bytes are too large: at most {EXTRAS_MAX} per inode",
                bytes.len()
            );
            Err(Error::new(ErrorKind::NoSpace, text))
        }
    }
}

/// Decodes items.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt).
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Item>> {
    let corrupt = || Error::corrupt("invalid extended attributes or symlink target");
    let mut items = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (head, behind) = ExtraPhys::read_from_prefix(rest).map_err(|_| corrupt())?;
        let (name_len, value_len) = (usize::from(head.name_bytes), head.value_bytes.get() as usize);
        let (name, behind) = behind.split_at_checked(name_len).ok_or_else(corrupt)?;
        let (value, behind) = behind.split_at_checked(value_len).ok_or_else(corrupt)?;
        let makes_sense = match head.kind {
            EXTRA_TARGET => name_len == 0 && (1..=TARGET_MAX).contains(&value_len),
            EXTRA_XATTR => name_len > 0 && value_len <= VALUE_MAX,
            _ => false,
        };
        if !makes_sense {
            return Err(corrupt());
        }
        items.push(Item { kind: head.kind, name: name.to_vec(), value: value.to_vec() });
        rest = behind;
    }
    Ok(items)
}

/// Reads all extras of an inode.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt), or a read error.
pub(crate) fn read(dataset: &Dataset, extras: &Extras, wait: Wait) -> Result<Vec<Item>> {
    match extras {
        Extras::Inline(bytes) => decode(bytes),
        Extras::Spilled { object, bytes } => decode(&read_spill(dataset, *object, *bytes, wait)?),
    }
}

fn read_spill(dataset: &Dataset, object: u64, bytes: u32, wait: Wait) -> Result<Vec<u8>> {
    let doing = |error: Error| error.doing(format_args!("object {object} with extras of an inode"));
    let bytes = bytes as usize;
    let count = bytes.div_ceil(SPILL_PIECE);
    let directory =
        dataset.with_wait(wait).directory(object).map_err(|error| doing(error.into()))?;
    let entries = directory.with_wait(wait).entries(Cookie::START, count + 1);
    let entries = entries.map_err(|error| doing(error.into()))?;
    let mut pieces: Vec<&[u8]> = entries.iter().map(|entry| &*entry.name).collect();
    pieces.sort_unstable();
    let mut whole = Vec::with_capacity(bytes.min(EXTRAS_MAX));
    for (at, piece) in pieces.iter().enumerate() {
        let number = u16::try_from(at).unwrap_or(u16::MAX).to_be_bytes();
        let content = piece.strip_prefix(&number).filter(|_| whole.len() == at * SPILL_PIECE);
        let content = content.ok_or_else(|| doing(Error::corrupt("missing piece")))?;
        whole.extend_from_slice(content);
    }
    match whole.len() == bytes {
        true => Ok(whole),
        false => Err(doing(Error::corrupt("another length than recorded in the inode"))),
    }
}

/// Stores encoded extras: inline if they fit, otherwise in a new object.
///
/// # Errors
/// An error from creating the object. Then no object is left.
pub(crate) fn store(dataset: &Dataset, tx: &Transaction<'_>, bytes: Vec<u8>) -> Result<Extras> {
    if bytes.len() <= INLINE_MAX {
        return Ok(Extras::Inline(bytes.into()));
    }
    let object = dataset.create_directory(tx, &[])?;
    let fill = || {
        let directory = dataset.with_wait(tx.wait()).directory(object)?;
        for (at, piece) in bytes.chunks(SPILL_PIECE).enumerate() {
            let mut name = (at as u16).to_be_bytes().to_vec();
            name.extend_from_slice(piece);
            directory.insert(tx, &name, &[1])?;
        }
        Ok(())
    };
    let filled: forebay_pool::Result<()> = fill();
    if let Err(error) = filled {
        rolled_back(dataset.destroy(tx, object).map_err(Error::from))?;
        return Err(error.into());
    }
    Ok(Extras::Spilled { object, bytes: bytes.len() as u32 })
}

/// Destroys the spill object, if there is one.
///
/// # Errors
/// An error from destroying the object.
pub(crate) fn discard(dataset: &Dataset, tx: &Transaction<'_>, extras: &Extras) -> Result<()> {
    match extras {
        Extras::Inline(_) => Ok(()),
        Extras::Spilled { object, .. } => Ok(dataset.destroy(tx, *object)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn items_come_back_as_they_were(
            list in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..255), proptest::collection::vec(any::<u8>(), 0..300)),
                0..6,
            ),
        ) {
            let mut items: Vec<Item> =
                list.iter().map(|(name, value)| Item::xattr(name, value)).collect();
            items.insert(0, Item::target(b"some/where"));
            prop_assert_eq!(decode(&encode(&items).unwrap()).unwrap(), items);
        }

        #[test]
        fn any_bytes_are_an_error_or_items(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(items) = decode(&bytes) {
                prop_assert_eq!(encode(&items).unwrap(), bytes);
            }
        }
    }
}
