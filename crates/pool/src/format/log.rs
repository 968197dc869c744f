//! The intent log: its root, its blocks with their checksums, and the encoding of its records.
//!
//! [`LogEntry::parse`] and [`LogBlockPhys::read`] accept untrusted bytes: they return an error or
//! `None`, and never panic. A block that passes [`LogBlockPhys::is_sound`] must still match the
//! block that replay expects, see `log::replay`.

use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::DvaPhys;
use super::dnode::ObjectKind;
use crate::error::{Error, ErrorKind, Result};

/// Maximum number of extents of a log.
pub const LOG_EXTENTS_MAX: usize = 32;
/// Maximum size of a log block, header and padding included.
pub const LOG_BLOCK_MAX_BYTES: usize = 256 << 10;
/// Unit of offsets, blocks and extents of the log, whatever the sector size of the pool. So the
/// next block never shares a physical sector with one that holds fsynced changes.
pub const LOG_SECTOR_BYTES: u64 = 4096;
/// Maximum size of name and body of a record. A larger write is split into several records.
pub const LOG_RECORD_MAX_BYTES: usize = 128 << 10;
/// First bytes of a log root: "FBlogrt1".
pub const LOG_ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FBlogrt1");
/// First bytes of a log block after its checksum: "FBlogbk1".
pub const LOG_BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"FBlogbk1");

/// An extent of the log's ring.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogExtentPhys {
    /// Its address.
    pub start: DvaPhys,
    /// Its length in bytes.
    pub bytes: U64,
}

const _: () = assert!(size_of::<LogExtentPhys>() == 16);

/// The intent log's part of a root block: the extents of its ring, and the start of a replay.
///
/// An *offset* counts all bytes ever written to the log, padding included, and never decreases. Its
/// position in the ring, the concatenated extents, is the remainder by the ring's size.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogRootPhys {
    /// [`LOG_ROOT_MAGIC`].
    pub magic: U64,
    /// The GUID of the log.
    pub guid: U64,
    /// Current generation. Blocks of other generations are invalid.
    pub generation: U64,
    /// Records of this txg and older ones are not replayed.
    pub txg: U64,
    /// Offset of the first block to replay.
    pub head_offset: U64,
    /// Sequence number of that block.
    pub head_sequence: U64,
    /// Head of the previous root. Blocks from here on must not be overwritten.
    pub tail_offset: U64,
    /// Number of records from the head on whose changes this root's txg includes. Not zero only
    /// while a replay spans several txgs.
    pub replayed: U64,
    /// Number of extents in use.
    pub extent_count: U32,
    /// If the ring is on a log vdev: a device of it whose newest stamp is older lacks records, so
    /// it is an older copy. 0 otherwise.
    pub stamp: U64,
    /// Zeros.
    pub reserved: U32,
    /// The ring; unused extents are zero.
    pub extents: [LogExtentPhys; LOG_EXTENTS_MAX],
}

const _: () = assert!(size_of::<LogRootPhys>() == 592);

/// The ring in the space of the pool, while the log is on a log vdev.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogHomePhys {
    /// Number of extents in use; 0 if the log root itself has the ring.
    pub extent_count: U32,
    /// Zeros.
    pub reserved: [U32; 3],
    /// Its extents; unused ones are zero.
    pub extents: [LogExtentPhys; LOG_EXTENTS_MAX],
}

const _: () = assert!(size_of::<LogHomePhys>() == 528);

/// Header of a log block. Records follow, then zeros to a multiple of [`LOG_SECTOR_BYTES`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogBlockPhys {
    /// XXH3, 128 bits, of the rest of the header and the records.
    pub checksum: [u8; 16],
    /// [`LOG_BLOCK_MAGIC`].
    pub magic: U64,
    /// The GUID of the log.
    pub guid: U64,
    /// Generation of the log when the block was written.
    pub generation: U64,
    /// One more than in the previous block.
    pub sequence: U64,
    /// Offset of the block, see [`LogRootPhys`].
    pub offset: U64,
    /// A replay from a root with an older txg ends before this block.
    pub needs_txg: U64,
    /// The oldest txg of its records.
    pub txg_low: U64,
    /// The newest txg of its records.
    pub txg_high: U64,
    /// Size of the block.
    pub block_bytes: U32,
    /// Bytes of its records.
    pub payload_bytes: U32,
    /// Number of its records.
    pub records: U32,
    /// Number of blocks of the same batch that follow: one less from block to block, 0 in the last
    /// one. A batch is replayed completely or not at all.
    pub following: U32,
}

const _: () = assert!(size_of::<LogBlockPhys>() == 96);

/// Size of a block's header.
pub(crate) const LOG_BLOCK_HEAD_BYTES: usize = size_of::<LogBlockPhys>();

impl LogBlockPhys {
    /// Reads the header at the start of `bytes`, unchecked; `None` if they are too short.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(head, _)| head)
    }

    /// Writes the header, with the checksum of header and records, to the start of `block`. The
    /// records must be in place.
    pub(crate) fn seal(&self, block: &mut [u8]) {
        block[..LOG_BLOCK_HEAD_BYTES].copy_from_slice(self.as_bytes());
        let used = LOG_BLOCK_HEAD_BYTES + self.payload_bytes.get() as usize;
        let sum = log_checksum(&block[..used]);
        block[..sum.len()].copy_from_slice(&sum);
    }

    /// Whether the checksum matches the header and the records at the start of `block`.
    pub(crate) fn is_sound(&self, block: &[u8]) -> bool {
        let used = LOG_BLOCK_HEAD_BYTES.checked_add(self.payload_bytes.get() as usize);
        let covered = used.and_then(|used| block.get(..used));
        covered.is_some_and(|covered| log_checksum(covered) == self.checksum)
    }
}

/// Checksum of a block: of all bytes after the checksum field, to the end of the records.
fn log_checksum(head_and_records: &[u8]) -> [u8; 16] {
    let covered = head_and_records.get(size_of::<[u8; 16]>()..).unwrap_or_default();
    xxh3_128(covered).to_le_bytes()
}

/// Header of a record. Its name follows, then its body.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogRecordPhys {
    /// The txg of the change.
    pub txg: U64,
    /// The GUID of the dataset.
    pub dataset: U64,
    /// Number of the object.
    pub object: U64,
    /// Order among all changes since the import.
    pub serial: U64,
    /// Depends on the kind: an offset, a size, the shift of a record size, or zero.
    pub argument: U64,
    /// A [`LogRecordKind`].
    pub kind: u8,
    /// The kind of a created object, or zero.
    pub object_kind: u8,
    /// Length of the name.
    pub name_bytes: U16,
    /// Length of the body.
    pub body_bytes: U32,
}

const _: () = assert!(size_of::<LogRecordPhys>() == 48);

/// Size of a record's header.
pub(crate) const LOG_RECORD_HEAD_BYTES: usize = size_of::<LogRecordPhys>();

impl LogRecordPhys {
    /// Returns the txg of the record at the start of `bytes`; 0 if they are too short.
    pub(crate) fn txg_of(bytes: &[u8]) -> u64 {
        Self::read_from_prefix(bytes).map_or(0, |(head, _)| head.txg.get())
    }
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogRecordKind {
    /// No change: the object was destroyed before the block was written. Ignore the body.
    Void = 0,
    /// An object was created. Argument: log2 of its record size; body: its attributes.
    Create = 1,
    /// An object was destroyed.
    Destroy = 2,
    /// Body: the object's attributes.
    SetAttributes = 3,
    /// Argument: offset; body: the data written.
    Write = 4,
    /// Argument: the object's new size.
    Truncate = 5,
    /// Argument: offset; body: eight bytes, the length of the zeroed range.
    Punch = 6,
    /// Name; body: the value. The name was new.
    ZapInsert = 7,
    /// Name; body: the value.
    ZapUpdate = 8,
    /// Name.
    ZapRemove = 9,
    /// Argument: offset; body: eight bytes, the length of the preallocated range.
    Preallocate = 10,
}

impl LogRecordKind {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Void,
            1 => Self::Create,
            2 => Self::Destroy,
            3 => Self::SetAttributes,
            4 => Self::Write,
            5 => Self::Truncate,
            6 => Self::Punch,
            7 => Self::ZapInsert,
            8 => Self::ZapUpdate,
            9 => Self::ZapRemove,
            10 => Self::Preallocate,
            _ => return None,
        })
    }
}

/// A change of one object, as it is stored and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecord<'a> {
    /// The object was created.
    Create { kind: ObjectKind, record_shift: u8, attributes: &'a [u8] },
    /// The object was destroyed.
    Destroy,
    /// The object has new attributes.
    SetAttributes { attributes: &'a [u8] },
    /// Bytes were written.
    Write { offset: u64, bytes: &'a [u8] },
    /// The object was truncated or extended to this size.
    Truncate { size: u64 },
    /// A range was zeroed.
    Punch { offset: u64, len: u64 },
    /// Holes in a range were preallocated.
    Preallocate { offset: u64, len: u64 },
    /// A name was added.
    ZapInsert { name: &'a [u8], value: &'a [u8] },
    /// A name was added, or its value changed.
    ZapUpdate { name: &'a [u8], value: &'a [u8] },
    /// A name was removed.
    ZapRemove { name: &'a [u8] },
}

/// A record with its object, txg and serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry<'a> {
    /// The txg of the change.
    pub(crate) txg: u64,
    /// The GUID of the dataset.
    pub(crate) dataset: u64,
    /// Number of the object.
    pub(crate) object: u64,
    /// Order among all changes since the import.
    pub(crate) serial: u64,
    /// The change.
    pub(crate) record: LogRecord<'a>,
}

/// The parts of a record that depend on its kind.
struct RecordParts<'a> {
    kind: LogRecordKind,
    object_kind: u8,
    argument: u64,
    name: &'a [u8],
    body: &'a [u8],
}

impl<'a> LogRecord<'a> {
    /// Returns the parts. `len` holds a body that is a length while it is encoded.
    fn parts(&self, len: &'a mut [u8; 8]) -> RecordParts<'a> {
        let parts = |kind, argument, name, body| {
            let object_kind = 0;
            RecordParts { kind, object_kind, argument, name, body }
        };
        match *self {
            Self::Create { kind, record_shift, attributes } => RecordParts {
                object_kind: kind as u8,
                ..parts(LogRecordKind::Create, u64::from(record_shift), &[], attributes)
            },
            Self::Destroy => parts(LogRecordKind::Destroy, 0, &[], &[]),
            Self::SetAttributes { attributes } => {
                parts(LogRecordKind::SetAttributes, 0, &[], attributes)
            }
            Self::Write { offset, bytes } => parts(LogRecordKind::Write, offset, &[], bytes),
            Self::Truncate { size } => parts(LogRecordKind::Truncate, size, &[], &[]),
            Self::Punch { offset, len: bytes } => {
                *len = bytes.to_le_bytes();
                parts(LogRecordKind::Punch, offset, &[], len)
            }
            Self::Preallocate { offset, len: bytes } => {
                *len = bytes.to_le_bytes();
                parts(LogRecordKind::Preallocate, offset, &[], len)
            }
            Self::ZapInsert { name, value } => parts(LogRecordKind::ZapInsert, 0, name, value),
            Self::ZapUpdate { name, value } => parts(LogRecordKind::ZapUpdate, 0, name, value),
            Self::ZapRemove { name } => parts(LogRecordKind::ZapRemove, 0, name, &[]),
        }
    }
}

impl<'a> LogEntry<'a> {
    /// Writes the header of a [`Write`](LogRecordKind::Write) of `len` bytes at `offset` of this
    /// entry's object, or of a [`Void`](LogRecordKind::Void) that replaces it.
    pub(crate) fn encode_write_head(
        &self,
        kind: LogRecordKind,
        offset: u64,
        len: usize,
        head: &mut [u8],
    ) {
        let empty = RecordParts { kind, object_kind: 0, argument: offset, name: &[], body: &[] };
        let phys = LogRecordPhys { body_bytes: U32::new(len as u32), ..self.head(&empty, 0) };
        head.copy_from_slice(phys.as_bytes());
    }

    fn head(&self, parts: &RecordParts<'_>, name_bytes: u16) -> LogRecordPhys {
        LogRecordPhys {
            txg: U64::new(self.txg),
            dataset: U64::new(self.dataset),
            object: U64::new(self.object),
            serial: U64::new(self.serial),
            argument: U64::new(parts.argument),
            kind: parts.kind as u8,
            object_kind: parts.object_kind,
            name_bytes: U16::new(name_bytes),
            body_bytes: U32::new(parts.body.len() as u32),
        }
    }

    /// Appends the record to `out`. Returns false and appends nothing if it is too large.
    #[must_use]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let mut len = [0; 8];
        let parts = self.record.parts(&mut len);
        let (name_bytes, body_bytes) = (parts.name.len(), parts.body.len());
        let Ok(name_u16) = u16::try_from(name_bytes) else { return false };
        if name_bytes + body_bytes > LOG_RECORD_MAX_BYTES {
            return false;
        }
        let head = self.head(&parts, name_u16);
        out.reserve(LOG_RECORD_HEAD_BYTES + name_bytes + body_bytes);
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(parts.name);
        out.extend_from_slice(parts.body);
        true
    }

    /// Removes the first record from `bytes` and returns it; `None` for a void record.
    ///
    /// # Errors
    /// `Corrupt` for an invalid record.
    pub(crate) fn parse(bytes: &mut &'a [u8]) -> Result<Option<Self>> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("log record: {what}"));
        let (head, rest) =
            LogRecordPhys::read_from_prefix(bytes).map_err(|_| corrupt("truncated header"))?;
        let name_bytes = usize::from(head.name_bytes.get());
        let body_bytes = head.body_bytes.get() as usize;
        if name_bytes + body_bytes > rest.len() {
            return Err(corrupt("it exceeds its block"));
        }
        let (content, rest) = rest.split_at(name_bytes + body_bytes);
        let (name, body) = content.split_at(name_bytes);
        *bytes = rest;
        let kind = LogRecordKind::from_raw(head.kind).ok_or_else(|| corrupt("unknown kind"))?;
        let argument = head.argument.get();
        let record = match kind {
            LogRecordKind::Void => return Ok(None),
            LogRecordKind::Create => LogRecord::Create {
                kind: ObjectKind::from_raw(head.object_kind)
                    .ok_or_else(|| corrupt("unknown object kind"))?,
                record_shift: u8::try_from(argument).map_err(|_| corrupt("invalid record size"))?,
                attributes: body,
            },
            LogRecordKind::Destroy => LogRecord::Destroy,
            LogRecordKind::SetAttributes => LogRecord::SetAttributes { attributes: body },
            LogRecordKind::Write => {
                let end = argument.checked_add(body.len() as u64);
                end.ok_or_else(|| corrupt("a write exceeds the maximum size"))?;
                LogRecord::Write { offset: argument, bytes: body }
            }
            LogRecordKind::Truncate => LogRecord::Truncate { size: argument },
            LogRecordKind::Punch | LogRecordKind::Preallocate => {
                let len = body.try_into().map_err(|_| corrupt("a range has no length"))?;
                let len = u64::from_le_bytes(len);
                argument
                    .checked_add(len)
                    .ok_or_else(|| corrupt("a range exceeds the maximum size"))?;
                match kind {
                    LogRecordKind::Punch => LogRecord::Punch { offset: argument, len },
                    _ => LogRecord::Preallocate { offset: argument, len },
                }
            }
            LogRecordKind::ZapInsert => LogRecord::ZapInsert { name, value: body },
            LogRecordKind::ZapUpdate => LogRecord::ZapUpdate { name, value: body },
            LogRecordKind::ZapRemove => LogRecord::ZapRemove { name },
        };
        let (txg, serial) = (head.txg.get(), head.serial.get());
        let (dataset, object) = (head.dataset.get(), head.object.get());
        Ok(Some(Self { txg, dataset, object, serial, record }))
    }
}
