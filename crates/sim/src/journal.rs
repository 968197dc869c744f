//! What was done to a pool, in a file, so that it is known after whoever did it was killed.
//!
//! A change is written while its transaction lives, so nothing can be durable in a pool that is not in its journal. The file
//! needs no flush: what is killed is a process, not the machine. A torn record at the end is something that
//! was about to be told.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::history::{Done, Fsync, History, Now};
use crate::model::{Change, Content, Key, Model};

/// A journal that is written.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<File>>);

/// A line of a journal.
pub(crate) enum Note<'a> {
    Change(u64, Key, &'a Change),
    FsyncBegins(Key),
    FsyncDone,
    /// All groups up to this one are durable.
    Synced(u64),
}

impl Journal {
    /// A new journal that begins with what is durable.
    ///
    /// # Errors
    /// The file's.
    pub fn create(path: &Path, base: &Model) -> io::Result<Self> {
        let journal = Self(Arc::new(Mutex::new(File::create(path)?)));
        for (key, entry) in &base.entries {
            let directory = matches!(entry.content, Content::Names(_));
            let attributes = entry.attributes.clone();
            journal.note(&Note::Change(0, *key, &Change::Create { directory, attributes }))?;
            match &entry.content {
                Content::Bytes(bytes) => {
                    let bytes = Arc::new(bytes.clone());
                    journal.note(&Note::Change(0, *key, &Change::Write { offset: 0, bytes }))?;
                }
                Content::Names(names) => {
                    for (name, value) in names {
                        let change = Change::Set(name.clone(), value.clone());
                        journal.note(&Note::Change(0, *key, &change))?;
                    }
                }
            }
        }
        Ok(journal)
    }

    /// Goes on with one that is there.
    ///
    /// # Errors
    /// The file's.
    pub fn append(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(OpenOptions::new().append(true).open(path)?))))
    }

    pub(crate) fn note(&self, note: &Note<'_>) -> io::Result<()> {
        let mut bytes = vec![0; 4];
        note.encode(&mut bytes);
        let len = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        // In one call: who dies has written all of it, or the end is missing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
    }
}

impl Note<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Change(txg, key, change) => {
                out.push(0);
                put(out, &[*txg, key.0 as u64, key.1]);
                encode_change(change, out);
            }
            Self::FsyncBegins(key) => {
                out.push(1);
                put(out, &[key.0 as u64, key.1]);
            }
            Self::FsyncDone => out.push(2),
            Self::Synced(txg) => {
                out.push(3);
                put(out, &[*txg]);
            }
        }
    }
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn encode_change(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Create { directory, attributes } => {
            out.extend_from_slice(&[0, u8::from(*directory)]);
            out.extend_from_slice(attributes);
        }
        Change::Destroy => out.push(1),
        Change::Attributes { directory, attributes } => {
            out.extend_from_slice(&[2, u8::from(*directory)]);
            out.extend_from_slice(attributes);
        }
        Change::Write { offset, bytes } => {
            out.push(3);
            put(out, &[*offset]);
            out.extend_from_slice(bytes);
        }
        Change::Truncate(size) => {
            out.push(4);
            put(out, &[*size]);
        }
        Change::Punch { offset, len } => {
            out.push(5);
            put(out, &[*offset, *len]);
        }
        Change::Set(name, value) => {
            out.extend_from_slice(&[6, name.len() as u8]);
            out.extend_from_slice(name);
            out.extend_from_slice(value);
        }
        Change::Remove(name) => {
            out.push(7);
            out.extend_from_slice(name);
        }
    }
}

/// Reads a journal: all that was done, and what was known at its end.
///
/// # Errors
/// The file's, or that it makes no sense.
pub fn read(path: &Path) -> io::Result<(History, Now)> {
    let bytes = std::fs::read(path)?;
    let (mut history, mut now) = (History::default(), Now::default());
    let mut rest = &bytes[..];
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let Some((record, behind)) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)
        else {
            break;
        };
        rest = behind;
        let senseless = || io::Error::new(io::ErrorKind::InvalidData, "a journal without sense");
        take(record, &mut history, &mut now).ok_or_else(senseless)?;
    }
    // What was being done is in no note: one more change may have begun, which is in no group yet.
    now.changes_begun = history.changes.len() + 1;
    Ok((history, now))
}

fn take(record: &[u8], history: &mut History, now: &mut Now) -> Option<()> {
    let (kind, mut rest) = record.split_first()?;
    let mut number = || {
        let (bytes, behind) = rest.split_first_chunk::<8>()?;
        rest = behind;
        Some(u64::from_le_bytes(*bytes))
    };
    match kind {
        0 => {
            let txg = number()?;
            let key = (number()? as usize, number()?);
            history.changes.push(Done { txg, key, change: decode_change(rest)? });
        }
        1 => {
            let key = (number()? as usize, number()?);
            history.fsyncs.push(Fsync { changes: history.changes.len(), key });
            now.fsyncs_begun += 1;
        }
        2 => now.fsyncs_done = history.fsyncs.len(),
        3 => now.synced_txg = now.synced_txg.max(number()?),
        _ => return None,
    }
    Some(())
}

fn decode_change(bytes: &[u8]) -> Option<Change> {
    let (kind, rest) = bytes.split_first()?;
    let number = |at: usize| {
        let bytes = rest.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    Some(match kind {
        0 => {
            let (directory, attributes) = rest.split_first()?;
            Change::Create { directory: *directory != 0, attributes: attributes.to_vec() }
        }
        1 => Change::Destroy,
        2 => {
            let (directory, attributes) = rest.split_first()?;
            Change::Attributes { directory: *directory != 0, attributes: attributes.to_vec() }
        }
        3 => Change::Write { offset: number(0)?, bytes: Arc::new(rest[8..].to_vec()) },
        4 => Change::Truncate(number(0)?),
        5 => Change::Punch { offset: number(0)?, len: number(8)? },
        6 => {
            let (len, rest) = rest.split_first()?;
            let (name, value) = rest.split_at_checked(usize::from(*len))?;
            Change::Set(name.to_vec(), value.to_vec())
        }
        7 => Change::Remove(rest.to_vec()),
        _ => return None,
    })
}
