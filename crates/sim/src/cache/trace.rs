//! A trace: a sequence of accesses to keys.
//!
//! Keys are numbered in the order of their first access, so a policy can keep its state in arrays.
//! The original keys are forgotten; no policy may depend on them.

use std::collections::HashMap;

/// Largest number of accesses of a trace, since a packed file may expand without end.
pub const MAX_ACCESSES: usize = 1 << 30;

/// A sequence of accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    name: String,
    accesses: Vec<u32>,
    unique: u32,
    /// Whether each key is metadata; empty if none is.
    metadata: Vec<bool>,
    /// Lines of the file that were skipped.
    skipped: u64,
    is_cut: bool,
}

impl Trace {
    /// The trace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames the trace.
    pub fn set_name(&mut self, name: String) {
        self.name = name;
    }

    /// The key number of each access, below [`unique`](Self::unique).
    pub fn accesses(&self) -> &[u32] {
        &self.accesses
    }

    /// The number of different keys.
    pub fn unique(&self) -> usize {
        self.unique as usize
    }

    /// Whether a key is metadata. Of traces from files, only those of pools have any.
    #[inline]
    pub fn is_metadata(&self, key: u32) -> bool {
        self.metadata.get(key as usize).copied().unwrap_or(false)
    }

    /// Lines of the file that were skipped because they are deletions.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether the end of the trace is missing.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// Builds a trace access by access.
#[derive(Default)]
pub struct TraceBuilder {
    accesses: Vec<u32>,
    numbers: HashMap<u64, u32>,
    texts: HashMap<u128, u32>,
    unique: u32,
    metadata: Vec<bool>,
    skipped: u64,
    is_cut: bool,
}

/// The trace has the maximum number of accesses.
#[derive(Debug)]
pub struct TooLong;

impl TraceBuilder {
    /// An empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access to a numeric key.
    ///
    /// # Errors
    /// If the trace has the maximum number of accesses.
    #[inline]
    pub fn number(&mut self, key: u64) -> Result<(), TooLong> {
        let next = self.unique;
        let id = *self.numbers.entry(key).or_insert(next);
        self.push(id)
    }

    /// Adds an access to a text key, which is identified by a 128-bit hash.
    ///
    /// # Errors
    /// If the trace has the maximum number of accesses.
    pub fn text(&mut self, key: &[u8]) -> Result<(), TooLong> {
        let next = self.unique;
        let id = *self.texts.entry(xxhash_rust::xxh3::xxh3_128(key)).or_insert(next);
        self.push(id)
    }

    /// As [`text`](Self::text). The first access to a key decides whether it is metadata; all
    /// accesses of a trace are added like this, or none.
    ///
    /// # Errors
    /// If the trace has the maximum number of accesses.
    pub fn text_with_class(&mut self, key: &[u8], metadata: bool) -> Result<(), TooLong> {
        let before = self.unique;
        self.text(key)?;
        if self.unique > before {
            self.metadata.push(metadata);
        }
        Ok(())
    }

    /// Adds an access to a numeric key. The first access to a key decides whether it is metadata.
    pub(crate) fn push_with_class(&mut self, key: u64, metadata: bool) {
        let before = self.unique;
        self.number(key).expect("synthetic traces are short");
        if self.unique > before {
            self.metadata.push(metadata);
        }
    }

    /// Marks the trace as one whose end is missing.
    pub fn mark_cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether its end is missing.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Counts a skipped line.
    pub fn skip(&mut self) {
        self.skipped += 1;
    }

    #[inline]
    fn push(&mut self, id: u32) -> Result<(), TooLong> {
        // There are no more keys than accesses, so their numbers fit too.
        if self.accesses.len() == MAX_ACCESSES {
            return Err(TooLong);
        }
        self.unique += u32::from(id == self.unique);
        self.accesses.push(id);
        Ok(())
    }

    /// Whether there are no accesses yet.
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }

    /// Finishes the trace.
    pub fn build(self, name: impl Into<String>) -> Trace {
        let Self { mut accesses, unique, metadata, skipped, is_cut, .. } = self;
        accesses.shrink_to_fit();
        Trace { name: name.into(), accesses, unique, metadata, skipped, is_cut }
    }
}

#[cfg(test)]
mod tests {
    use super::TraceBuilder;

    #[test]
    fn keys_are_numbered_as_they_come() {
        let mut builder = TraceBuilder::new();
        for key in [900, 7, 900, u64::MAX, 7] {
            builder.number(key).unwrap();
        }
        builder.text(b"900").unwrap();
        let trace = builder.build("t");
        assert_eq!(trace.accesses(), [0, 1, 0, 2, 1, 3]);
        assert_eq!(trace.unique(), 4);
    }
}
