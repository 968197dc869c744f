//! A file of all changes to a pool, which survives the process that made them.
//!
//! A change is written while its transaction is open, so nothing is durable in a pool before it is
//! in the journal. The file needs no flush, because a process is killed and not the machine. A torn
//! record at the end is discarded.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::history::{Fsync, History, ProgressSnapshot, TxgChange};
use crate::model::{Change, Content, Key, Model};

/// A journal open for writing.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<File>>);

/// A record of a journal.
pub(crate) enum JournalRecord<'a> {
    Change(u64, Key, &'a Change),
    FsyncBegins(Key),
    FsyncDone,
    /// All transaction groups up to this one are durable.
    Synced(u64),
}

impl Journal {
    /// Creates a journal that starts with the durable state.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn create(path: &Path, base: &Model) -> io::Result<Self> {
        let journal = Self(Arc::new(Mutex::new(File::create(path)?)));
        for (key, entry) in &base.entries {
            let directory = matches!(entry.content, Content::Names(_));
            let attributes = entry.attributes.clone();
            journal.write(&JournalRecord::Change(
                0,
                *key,
                &Change::Create { directory, attributes },
            ))?;
            match &entry.content {
                Content::Bytes(bytes) => {
                    let bytes = Arc::new(bytes.clone());
                    journal.write(&JournalRecord::Change(
                        0,
                        *key,
                        &Change::Write { offset: 0, bytes },
                    ))?;
                }
                Content::Names(names) => {
                    for (name, value) in names {
                        let change = Change::Set(name.clone(), value.clone());
                        journal.write(&JournalRecord::Change(0, *key, &change))?;
                    }
                }
            }
        }
        Ok(journal)
    }

    /// Opens an existing journal to append to it.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(OpenOptions::new().append(true).open(path)?))))
    }

    pub(crate) fn write(&self, record: &JournalRecord<'_>) -> io::Result<()> {
        let mut bytes = vec![0; 4];
        record.encode(&mut bytes);
        let len = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        // One call, so a killed process leaves the record whole or with a missing end.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
    }
}

impl JournalRecord<'_> {
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

/// Reads a journal: all changes, and the progress known at its end.
///
/// # Errors
/// The errors of the file, or `InvalidData` for a malformed record.
pub fn read(path: &Path) -> io::Result<(History, ProgressSnapshot)> {
    let bytes = std::fs::read(path)?;
    let (mut history, mut snapshot) = (History::default(), ProgressSnapshot::default());
    let mut rest = &bytes[..];
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let Some((record, behind)) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)
        else {
            break;
        };
        rest = behind;
        let malformed =
            || io::Error::new(io::ErrorKind::InvalidData, "malformed record in a journal");
        take(record, &mut history, &mut snapshot).ok_or_else(malformed)?;
    }
    // A change in progress has no record yet, so one more may have begun.
    snapshot.changes_begun = history.changes.len() + 1;
    Ok((history, snapshot))
}

fn take(record: &[u8], history: &mut History, snapshot: &mut ProgressSnapshot) -> Option<()> {
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
            history.changes.push(TxgChange { txg, key, change: decode_change(rest)? });
        }
        1 => {
            let key = (number()? as usize, number()?);
            history.fsyncs.push(Fsync { changes: history.changes.len(), key });
            snapshot.fsyncs_begun += 1;
        }
        2 => snapshot.fsyncs_done = history.fsyncs.len(),
        3 => snapshot.synced_txg = snapshot.synced_txg.max(number()?),
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
