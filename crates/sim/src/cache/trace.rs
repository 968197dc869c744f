//! A trace: which key was asked for, again and again.
//!
//! Keys are numbered in the order in which they first come, so that a policy can keep what it knows of them in
//! arrays. Which key had which number is forgotten: no policy may depend on it.

use std::collections::HashMap;

/// Accesses that a trace may have: a bound for files that unpack without end.
pub const MOST_ACCESSES: usize = 1 << 30;

/// A sequence of accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    name: String,
    accesses: Vec<u32>,
    unique: u32,
    /// Of each key whether it is metadata; empty if none is.
    metadata: Vec<bool>,
    /// Lines of the file that are no accesses.
    left_out: u64,
}

impl Trace {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls it something else.
    pub fn set_name(&mut self, name: String) {
        self.name = name;
    }

    /// The number of the key of each access; below [`unique`](Self::unique).
    pub fn accesses(&self) -> &[u32] {
        &self.accesses
    }

    /// How many keys there are.
    pub fn unique(&self) -> usize {
        self.unique as usize
    }

    /// Whether a key is metadata. Traces from files know of none.
    #[inline]
    pub fn is_metadata(&self, key: u32) -> bool {
        self.metadata.get(key as usize).copied().unwrap_or(false)
    }

    /// Lines of the file that are no accesses: deletions.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Puts a trace together, access by access.
#[derive(Default)]
pub struct TraceBuilder {
    accesses: Vec<u32>,
    numbers: HashMap<u64, u32>,
    texts: HashMap<u128, u32>,
    unique: u32,
    metadata: Vec<bool>,
    left_out: u64,
}

/// No more accesses, or keys, are taken.
#[derive(Debug)]
pub struct TooLong;

impl TraceBuilder {
    /// A trace without accesses.
    pub fn new() -> Self {
        Self::default()
    }

    /// An access to a key that is a number.
    ///
    /// # Errors
    /// If the trace has as many accesses as it may.
    #[inline]
    pub fn number(&mut self, key: u64) -> Result<(), TooLong> {
        let next = self.unique;
        let id = *self.numbers.entry(key).or_insert(next);
        self.push(id)
    }

    /// An access to a key that is a text. It is remembered as 128 bits of a hash.
    ///
    /// # Errors
    /// If the trace has as many accesses as it may.
    pub fn text(&mut self, key: &[u8]) -> Result<(), TooLong> {
        let next = self.unique;
        let id = *self.texts.entry(xxhash_rust::xxh3::xxh3_128(key)).or_insert(next);
        self.push(id)
    }

    /// An access to a key that is a number, and of the class metadata if `metadata` says so when it first comes.
    pub(crate) fn classed(&mut self, key: u64, metadata: bool) {
        let before = self.unique;
        self.number(key).expect("synthetic traces are short");
        if self.unique > before {
            self.metadata.push(metadata);
        }
    }

    /// A line that is no access.
    pub fn leave_out(&mut self) {
        self.left_out += 1;
    }

    #[inline]
    fn push(&mut self, id: u32) -> Result<(), TooLong> {
        // Keys are no more than accesses, so that their numbers fit as well.
        if self.accesses.len() == MOST_ACCESSES {
            return Err(TooLong);
        }
        self.unique += u32::from(id == self.unique);
        self.accesses.push(id);
        Ok(())
    }

    /// Whether there is no access yet.
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }

    /// The trace.
    pub fn build(self, name: impl Into<String>) -> Trace {
        let Self { mut accesses, unique, metadata, left_out, .. } = self;
        accesses.shrink_to_fit();
        Trace { name: name.into(), accesses, unique, metadata, left_out }
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
