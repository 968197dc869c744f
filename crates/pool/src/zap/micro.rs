//! A micro directory: its entries are the inline content, unordered.

use zerocopy::{FromBytes, IntoBytes};

use super::NameChange;
use super::entry::{Value, first_position, hash_at, home_of, next_collision};
use super::leaf::{Builder, Change, LeafDefect, Record};
use crate::format::{ZAP_MICRO, ZapHeadPhys, ZapMicroEntryPhys};

const HEAD: usize = size_of::<ZapHeadPhys>();
const ENTRY: usize = size_of::<ZapMicroEntryPhys>();

/// The validated inline content of a micro directory.
#[derive(Clone)]
pub(super) struct Micro {
    content: Vec<u8>,
    seed: u64,
    len: usize,
}

/// An entry of a micro directory.
#[derive(Clone, Copy)]
pub(super) struct MicroEntry<'a> {
    pub(super) position: u64,
    pub(super) record: Record<'a>,
    /// Offset in the content.
    at: usize,
}

impl MicroEntry<'_> {
    fn bytes(&self) -> usize {
        entry_bytes(self.record.name.len(), self.record.value.len())
    }
}

/// Bytes of an entry with a name and a value of these lengths.
pub(super) fn entry_bytes(name: usize, value: usize) -> usize {
    ENTRY + name + value
}

impl Micro {
    /// A directory without entries.
    pub(super) fn new(seed: u64) -> Self {
        let head = ZapHeadPhys { form: ZAP_MICRO, reserved: [0; 3], seed: seed.into() };
        Self { content: head.as_bytes().to_vec(), seed, len: 0 }
    }

    /// From inline content whose head has this form.
    pub(super) fn read(content: Vec<u8>, seed: u64) -> Result<Self, LeafDefect> {
        let mut positions = Vec::new();
        let mut rest = content.get(HEAD..).unwrap_or_default();
        while !rest.is_empty() {
            let (position, record, after) = read_entry(rest, seed)?;
            if Value::new(record.value).is_none() || record.name.is_empty() {
                return Err(LeafDefect("a name or value has an invalid length"));
            }
            positions.push((position, record.name));
            rest = after;
        }
        let len = positions.len();
        positions.sort_unstable();
        if positions.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(LeafDefect("two entries have the same position"));
        }
        // Equal names have equal hashes.
        positions.sort_unstable_by_key(|entry| entry.1);
        if positions.windows(2).any(|two| two[0].1 == two[1].1) {
            return Err(LeafDefect("a name exists twice"));
        }
        Ok(Self { content, seed, len })
    }

    /// The inline content.
    pub(super) fn content(&self) -> &[u8] {
        &self.content
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Seed of the name hash.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The entries, unordered.
    pub(super) fn entries(&self) -> impl Iterator<Item = MicroEntry<'_>> {
        let mut rest = self.content.get(HEAD..).unwrap_or_default();
        std::iter::from_fn(move || {
            let at = self.content.len() - rest.len();
            let (position, record, after) = read_entry(rest, self.seed).ok()?;
            rest = after;
            Some(MicroEntry { position, record, at })
        })
    }

    /// The entries in the order of the directory.
    pub(super) fn sorted(&self) -> Vec<MicroEntry<'_>> {
        let mut entries: Vec<_> = self.entries().collect();
        entries.sort_unstable_by_key(|entry| entry.position);
        entries
    }

    /// The value of the name.
    pub(super) fn find(&self, name: &[u8]) -> Option<Value> {
        let mut rest = self.content.get(HEAD..).unwrap_or_default();
        while let Some((_, record, after)) = split_entry(rest) {
            if record.name == name {
                return Value::new(record.value);
            }
            rest = after;
        }
        None
    }

    /// Result of a change, and the new directory if it differs. `Full` if the new directory is
    /// longer than `capacity`.
    pub(super) fn change(
        &self,
        kind: NameChange,
        name: &[u8],
        value: &[u8],
        capacity: usize,
    ) -> (Change, Option<Self>) {
        let old = self.entries().find(|entry| entry.record.name == name);
        let old_value = old.and_then(|entry| Value::new(entry.record.value));
        match (kind, old, old_value) {
            (NameChange::Insert | NameChange::Restore, Some(_), Some(value)) => {
                (Change::Exists(value), None)
            }
            (NameChange::Replace | NameChange::Remove, None, _) => (Change::Missing, None),
            (NameChange::Remove, Some(entry), _) => {
                (Change::Done(old_value), Some(self.without(&entry)))
            }
            (_, Some(entry), _) => {
                let mut new = self.without(&entry);
                new.push(entry.position, name, value);
                new.if_fits(capacity, old_value)
            }
            (_, None, _) => {
                let mut new = self.clone();
                new.push(self.free_position(name), name, value);
                new.if_fits(capacity, None)
            }
        }
    }

    /// Fills a buffer with a leaf of all entries.
    pub(super) fn fill_leaf(&self, bytes: &mut [u8]) -> Result<(), LeafDefect> {
        let entries = self.sorted();
        let mut builder = Builder::new(bytes, 0, 0, entries.len())?;
        for entry in entries {
            builder.push(entry.position, entry.record)?;
        }
        builder.finish();
        Ok(())
    }

    /// Adds an entry. Its name must be new, and its position free.
    pub(super) fn push(&mut self, position: u64, name: &[u8], value: &[u8]) {
        let head = ZapMicroEntryPhys {
            collision: (position as u16).into(),
            name_bytes: name.len() as u8,
            value_bytes: value.len() as u8,
        };
        self.content.extend_from_slice(head.as_bytes());
        self.content.extend_from_slice(name);
        self.content.extend_from_slice(value);
        self.len += 1;
    }

    fn if_fits(self, capacity: usize, old: Option<Value>) -> (Change, Option<Self>) {
        if self.content.len() > capacity {
            return (Change::Full, None);
        }
        (Change::Done(old), Some(self))
    }

    fn without(&self, entry: &MicroEntry<'_>) -> Self {
        let mut new = self.clone();
        new.content.drain(entry.at..entry.at + entry.bytes());
        new.len -= 1;
        new
    }

    /// The first free position for this name.
    fn free_position(&self, name: &[u8]) -> u64 {
        let mut position = home_of(self.seed, name);
        while self.entries().any(|entry| entry.position == position) {
            position = next_collision(position);
        }
        position
    }
}

fn split_entry(bytes: &[u8]) -> Option<(u16, Record<'_>, &[u8])> {
    let (head, rest) = ZapMicroEntryPhys::ref_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(usize::from(head.name_bytes))?;
    let (value, rest) = rest.split_at_checked(usize::from(head.value_bytes))?;
    Some((head.collision.get(), Record { name, value }, rest))
}

fn read_entry(bytes: &[u8], seed: u64) -> Result<(u64, Record<'_>, &[u8]), LeafDefect> {
    let (collision, record, rest) =
        split_entry(bytes).ok_or(LeafDefect("an entry is truncated"))?;
    let hash = hash_at(home_of(seed, record.name));
    let position = first_position(hash) | u64::from(collision);
    Ok((position, record, rest))
}
