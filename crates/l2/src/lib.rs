//! A persistent second level for a cache: a log of blocks on a device, in segments that are used in turn.
//!
//! * [`Codec`]: how keys and values of a cache become bytes, and what may be written.
//!
//! # Words
//!
//! A *level* is a second level on one device. Its *ring* is its *segments* in the order of their use. A *batch* is
//! one sequential write: a log block, then blocks. A *record* is one line of a log block: a block, or a
//! *tombstone*, which says that older blocks of a key are not to be returned. A *place* says where a block lies. The
//! *identity* of a key is its hash, by which log and index know it.

mod codec;
mod counters;
mod error;
mod feed;
mod forget;
mod format;
mod geometry;
mod index;
mod inner;
mod label;
mod level;
mod load;
mod medium;
mod options;
mod record;
mod recover;
mod ring;
mod stats;
mod tunables;
mod writer;

pub use codec::{Codec, MAX_KEY_BYTES, Refusal};
pub use counters::LevelCounters;
pub use error::{Error, ErrorKind, Result};
pub use inner::Health;
pub use label::{LabelInfo, read_label};
pub use level::Level;
pub use options::LevelOptions;
pub use recover::RebuildStats;
pub use stats::LevelStats;
pub use tunables::LevelTunables;
