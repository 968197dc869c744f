//! Bytes as traces: they are read to the end, or refused. Reading does not panic, hang, or take
//! more memory than a frame.

#![no_main]

use forebay_pool::trace::{TraceItem, TraceReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = TraceReader::new(bytes) else { return };
    let mut records = 0;
    while let Ok(Some(item)) = reader.next_item() {
        records += u64::from(matches!(item, TraceItem::Record(_)));
    }
    // One that is refused is counted too.
    assert!(reader.records() - records <= 1);
});
