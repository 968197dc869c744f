//! Reads a pool and compares it with its model.

use std::collections::{BTreeMap, BTreeSet};

use forebay_pool::{Cookie, Dataset, Error, ErrorKind, Result};

use crate::model::{Content, Entry, Key, Model, Names};

/// Names per call of a directory listing.
const NAMES_PER_BATCH: usize = 500;
/// Bytes per read of an object.
const PIECE_BYTES: usize = 192 << 10;

/// Reads those of `keys` that exist.
///
/// # Errors
/// The errors of reading.
pub fn read_all(datasets: &[Dataset], keys: impl Iterator<Item = Key>) -> Result<Model> {
    let keys: BTreeSet<Key> = keys.collect();
    let mut entries = BTreeMap::new();
    for key in keys {
        match read(&datasets[key.0], key.1) {
            Ok(entry) => {
                entries.insert(key, entry);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.doing(format_args!("reading {key:?}"))),
        }
    }
    Ok(Model { entries })
}

/// Reads an object or a directory.
///
/// # Errors
/// The errors of reading; `NotFound` if it does not exist.
pub fn read(dataset: &Dataset, number: u64) -> Result<Entry> {
    let attributes = dataset.object_info(number)?.attributes;
    let content = match dataset.object(number) {
        Ok(object) => {
            let size = object.size() as usize;
            let mut bytes = vec![0xa5; size];
            for (at, piece) in bytes.chunks_mut(PIECE_BYTES).enumerate() {
                let read = object.read((at * PIECE_BYTES) as u64, piece)?;
                assert_eq!(read, piece.len(), "object {number} of {size} bytes has less");
            }
            Content::Bytes(bytes)
        }
        Err(error) if error.kind() == ErrorKind::Invalid => Content::Names(names(dataset, number)?),
        Err(error) => return Err(error),
    };
    Ok(Entry { attributes, content })
}

/// All names of a directory. Asserts that the listing, the length and some lookups agree.
///
/// # Errors
/// The errors of reading.
pub fn names(dataset: &Dataset, number: u64) -> Result<Names> {
    let directory = dataset.directory(number)?;
    directory.audit()?;
    let mut names = Names::new();
    let mut from = Cookie::START;
    loop {
        let batch = directory.entries(from, NAMES_PER_BATCH)?;
        let Some(last) = batch.last() else { break };
        from = last.next;
        for (index, entry) in batch.iter().enumerate() {
            let (name, value) = (entry.name.to_vec(), entry.value.to_vec());
            if index % 50 == 0 {
                let found = directory.lookup(&name)?;
                let found = found.as_deref().map(<[u8]>::to_vec);
                assert_eq!(found.as_ref(), Some(&value), "directory {number}, {name:?}");
            }
            let twice = names.insert(name, value);
            assert!(twice.is_none(), "directory {number} lists {:?} twice", entry.name);
        }
        let bound = directory.len() + 1;
        if names.len() as u64 > bound {
            let text = format!("directory {number} lists more than its {bound} names");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
    }
    assert_eq!(directory.len(), names.len() as u64, "length of directory {number}");
    Ok(names)
}

/// A description of the difference between two states, or `None`.
pub fn difference(found: &Model, wanted: &Model) -> Option<String> {
    let keys: BTreeSet<_> = found.entries.keys().chain(wanted.entries.keys()).collect();
    let mut lines = Vec::new();
    for key in keys {
        match (found.entries.get(key), wanted.entries.get(key)) {
            (Some(found), Some(wanted)) if found == wanted => {}
            (Some(found), Some(wanted)) => lines.push(entry_difference(*key, found, wanted)),
            (Some(_), None) => lines.push(format!("{key:?} exists but should not")),
            (None, _) => lines.push(format!("{key:?} is missing")),
        }
        if lines.len() == 12 {
            lines.push("...".to_owned());
            break;
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn entry_difference(key: Key, found: &Entry, wanted: &Entry) -> String {
    if found.attributes != wanted.attributes {
        let (found, wanted) = (&found.attributes, &wanted.attributes);
        return format!("{key:?}: attributes {found:?} instead of {wanted:?}");
    }
    match (&found.content, &wanted.content) {
        (Content::Bytes(found), Content::Bytes(wanted)) => {
            let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
            let differ = found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count();
            format!(
                "{key:?}: {} bytes instead of {}, {differ} differ, the first at {at:?}",
                found.len(),
                wanted.len()
            )
        }
        (Content::Names(found), Content::Names(wanted)) => {
            let missing = wanted.keys().filter(|name| !found.contains_key(*name)).count();
            let more = found.keys().filter(|name| !wanted.contains_key(*name)).count();
            let other = found.iter().filter(|(n, v)| wanted.get(*n).is_some_and(|w| w != *v));
            format!(
                "{key:?}: {} names, {} wanted: {missing} missing, {more} too many, {} with other values",
                found.len(),
                wanted.len(),
                other.count()
            )
        }
        _ => format!("{key:?}: a directory instead of an object, or the reverse"),
    }
}
