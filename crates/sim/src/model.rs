//! The reference model of a pool's datasets: objects are byte vectors, directories are maps.

use std::collections::BTreeMap;
use std::sync::Arc;

/// An object's key: the index of its dataset, and its number there.
pub type Key = (usize, u64);

/// A directory's names, with their values.
pub type Names = BTreeMap<Vec<u8>, Vec<u8>>;

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The object's bytes.
    Bytes(Vec<u8>),
    /// A directory's names.
    Names(Names),
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Encoded attributes.
    pub attributes: Vec<u8>,
    /// Bytes or names.
    pub content: Content,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change {
    /// An object or a directory is created.
    Create {
        /// Whether it is a directory.
        directory: bool,
        /// Encoded attributes.
        attributes: Vec<u8>,
    },
    /// The object and its content are destroyed.
    Destroy,
    /// The attributes are replaced.
    Attributes {
        /// Whether it is a directory. Attributes of a directory are as durable as its names.
        directory: bool,
        /// The new attributes.
        attributes: Vec<u8>,
    },
    /// Bytes are written.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The bytes.
        bytes: Arc<Vec<u8>>,
    },
    /// The object is truncated or extended with zeros.
    Truncate(u64),
    /// A range becomes zeros.
    Punch {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A name gets a value.
    Set(Vec<u8>, Vec<u8>),
    /// A name is removed.
    Remove(Vec<u8>),
}

impl Change {
    /// Whether every fsync makes this change durable, whichever object it is for. These are changes
    /// of existence and of names.
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

/// The state of all datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// All objects.
    pub entries: BTreeMap<Key, Entry>,
}

impl Model {
    /// Applies a change. Changes of destroyed objects are ignored.
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

    /// Keys of all directories, or of all other objects.
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
