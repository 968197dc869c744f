//! The parts of `Serialize` that no derive writes: GUIDs and bytes in hexadecimal digits, a hole as
//! null, and what is computed from the statistics of a directory.

use serde::{Serialize, Serializer};

use super::pointer::BlockPtrInfo;
use crate::zap::{LeavesByPointers, ZapStats};

/// Serialises a GUID or a host's id as 16 hexadecimal digits. Many readers of JSON round integers
/// of 64 bits.
pub(super) fn guid<S: Serializer>(guid: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{guid:016x}"))
}

/// Serialises bytes as hexadecimal digits.
pub(super) fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    serializer.serialize_str(&digits)
}

/// Serialises bytes as hexadecimal digits, or null.
pub(super) fn hex_if_any<S: Serializer>(
    bytes: &Option<Vec<u8>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => hex(bytes, serializer),
        None => serializer.serialize_none(),
    }
}

/// Serialises the statistics of a directory with what is computed from them.
pub(super) fn directory_stats<S: Serializer>(
    stats: &ZapStats,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Computed<'a> {
        #[serde(flatten)]
        stats: &'a ZapStats,
        fill: f64,
        bytes_per_entry: f64,
        leaves_by_pointers: Vec<LeavesByPointers>,
    }
    let computed = Computed {
        stats,
        fill: stats.fill(),
        bytes_per_entry: stats.bytes_per_entry(),
        leaves_by_pointers: stats.by_pointers(),
    };
    computed.serialize(serializer)
}

impl Serialize for BlockPtrInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.is_hole() && !self.preallocated {
            true => serializer.serialize_none(),
            // The derived function, which `remote` made an inherent one.
            false => Self::serialize(self, serializer),
        }
    }
}
