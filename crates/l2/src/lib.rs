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
mod error;
mod index;
mod record;

pub use codec::{Codec, MAX_KEY_BYTES, Refusal};
pub use error::{Error, ErrorKind, Result};
