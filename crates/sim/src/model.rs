//! The naive twin of a pool's datasets: objects are vectors of bytes, directories are maps.

use std::collections::BTreeMap;
use std::sync::Arc;

/// An object's name: the dataset's place in the list of datasets, and the number in it.
pub type Key = (usize, u64);

/// Names of a directory, with their values.
pub type Names = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an object holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes, to the end of the object.
    Bytes(Vec<u8>),
    /// Names.
    Names(Names),
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes.
    pub attributes: Vec<u8>,
    /// What it holds.
    pub content: Content,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change {
    /// An object came to be: a directory, or bytes.
    Create {
        /// Whether it is a directory.
        directory: bool,
        /// Its attributes.
        attributes: Vec<u8>,
    },
    /// It went, with all that was in it.
    Destroy,
    /// Its attributes changed.
    Attributes {
        /// Whether it is a directory: its attributes are as durable as its names.
        directory: bool,
        /// What they are now.
        attributes: Vec<u8>,
    },
    /// Bytes were written.
    Write {
        /// From here on.
        offset: u64,
        /// These.
        bytes: Arc<Vec<u8>>,
    },
    /// The object was cut off, or grew by zeros.
    Truncate(u64),
    /// Bytes became zeros.
    Punch {
        /// From here on.
        offset: u64,
        /// So many.
        len: u64,
    },
    /// A name got a value.
    Set(Vec<u8>, Vec<u8>),
    /// A name went.
    Remove(Vec<u8>),
}

impl Change {
    /// Whether it is one of those that every fsync makes durable, whichever object it is for: what exists, and under which
    /// names.
    pub fn is_of_names(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Destroy
                | Self::Set(..)
                | Self::Remove(_)
                | Self::Attributes { directory: true, .. }
        )
    }
}

/// A state of all datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// All objects.
    pub entries: BTreeMap<Key, Entry>,
}

impl Model {
    /// Makes a change. What was changed and is gone by now stays gone.
    pub fn apply(&mut self, key: Key, change: &Change) {
        match change {
            Change::Create { directory, attributes } => {
                let content = match directory {
                    true => Content::Names(Names::new()),
                    false => Content::Bytes(Vec::new()),
                };
                self.entries.insert(key, Entry { attributes: attributes.clone(), content });
            }
            Change::Destroy => {
                self.entries.remove(&key);
            }
            other => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.apply(other);
                }
            }
        }
    }

    /// The bytes of an object.
    pub fn bytes(&self, key: Key) -> Option<&Vec<u8>> {
        match &self.entries.get(&key)?.content {
            Content::Bytes(bytes) => Some(bytes),
            Content::Names(_) => None,
        }
    }

    /// The names of a directory.
    pub fn names(&self, key: Key) -> Option<&Names> {
        match &self.entries.get(&key)?.content {
            Content::Names(names) => Some(names),
            Content::Bytes(_) => None,
        }
    }

    /// Objects of bytes, or directories.
    pub fn keys(&self, directories: bool) -> Vec<Key> {
        let is_wanted = |entry: &Entry| matches!(entry.content, Content::Names(_)) == directories;
        self.entries.iter().filter(|(_, entry)| is_wanted(entry)).map(|(key, _)| *key).collect()
    }
}

impl Entry {
    fn apply(&mut self, change: &Change) {
        match (change, &mut self.content) {
            (Change::Attributes { attributes, .. }, _) => self.attributes.clone_from(attributes),
            (Change::Write { offset, bytes }, Content::Bytes(content)) => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if !bytes.is_empty() {
                    content.resize(content.len().max(end), 0);
                    content[start..end].copy_from_slice(bytes);
                }
            }
            (Change::Truncate(size), Content::Bytes(content)) => content.resize(*size as usize, 0),
            (Change::Punch { offset, len }, Content::Bytes(content)) => {
                let end = (offset + len).min(content.len() as u64) as usize;
                if let Some(range) = content.get_mut(*offset as usize..end) {
                    range.fill(0);
                }
            }
            (Change::Set(name, value), Content::Names(names)) => {
                names.insert(name.clone(), value.clone());
            }
            (Change::Remove(name), Content::Names(names)) => {
                names.remove(name);
            }
            (other, _) => panic!("a change of the wrong kind of object: {other:?}"),
        }
    }
}
