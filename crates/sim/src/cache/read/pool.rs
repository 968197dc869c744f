//! Reads traces of pools, which `forebay trace record` makes. Read-ahead is left out.

use std::io::BufRead;

use forebay_pool::trace::{TraceError, TraceItem, TraceOutcome, TraceReader};

use super::ReadErrorKind;
use crate::cache::trace::TraceBuilder;

/// Reads the accesses of a trace. One that is cut is read as far as it goes, and marked.
pub(super) fn read(
    input: &mut dyn BufRead,
    builder: &mut TraceBuilder,
) -> Result<(), ReadErrorKind> {
    let mut reader = TraceReader::new(input)?;
    while let Some(item) = reader.next_item()? {
        if let TraceItem::Record(record) = item
            && record.outcome != TraceOutcome::ReadAhead
        {
            builder.text_with_class(&record.identity(), record.is_metadata)?;
        }
    }
    if !reader.is_complete() {
        builder.mark_cut();
    }
    Ok(())
}

impl From<TraceError> for ReadErrorKind {
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::Io(error) => Self::Io(error),
            other => Self::Whole(other.to_string()),
        }
    }
}
