//! Records: changes as the log keeps them, in memory and on devices alike.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{LOG_RECORD_MAX_BYTES, LogRecordKind, LogRecordPhys, ObjectKind};

/// Bytes of a record's head.
pub(super) const HEAD_BYTES: usize = size_of::<LogRecordPhys>();

/// A change of one object, as it is noted when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The object came into being.
    Create { kind: ObjectKind, record_shift: u8, attributes: &'a [u8] },
    /// It was destroyed.
    Destroy,
    /// It has these attributes now, and all commits are to know: they change with names. `touched`: they may have been noted by
    /// the next kind before.
    SetAttributes { attributes: &'a [u8], touched: bool },
    /// It has these attributes now, which matters to commits of this object only: an object's of bytes.
    TouchAttributes { attributes: &'a [u8] },
    /// A range of it was written.
    Write { offset: u64, len: u64 },
    /// It was cut or extended to this size.
    Truncate { size: u64 },
    /// A range of it became zero.
    Punch { offset: u64, len: u64 },
    /// No commit is to write the names that are noted from here on without the content that it has by now.
    Bind,
    /// The same for all objects of the pool.
    BindAll,
    /// A name was added.
    ZapInsert { name: &'a [u8], value: &'a [u8] },
    /// A name was added, or its value changed.
    ZapUpdate { name: &'a [u8], value: &'a [u8] },
    /// A name was removed.
    ZapRemove { name: &'a [u8] },
}

/// A change of one object, as it is stored and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// It came into being.
    Create { kind: ObjectKind, record_shift: u8, attributes: &'a [u8] },
    /// It was destroyed.
    Destroy,
    /// It has these attributes now.
    SetAttributes { attributes: &'a [u8] },
    /// These bytes were written to it.
    Write { offset: u64, bytes: &'a [u8] },
    /// It was cut or extended to this size.
    Truncate { size: u64 },
    /// A range of it became zero.
    Punch { offset: u64, len: u64 },
    /// A name was added.
    ZapInsert { name: &'a [u8], value: &'a [u8] },
    /// A name was added, or its value changed.
    ZapUpdate { name: &'a [u8], value: &'a [u8] },
    /// A name was removed.
    ZapRemove { name: &'a [u8] },
}

/// A record with what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// The transaction group of the change.
    pub(crate) txg: u64,
    /// Guid of the dataset.
    pub(crate) dataset: u64,
    /// Number of the object.
    pub(crate) object: u64,
    /// Order among the changes of one life of the pool.
    pub(crate) serial: u64,
    /// The change.
    pub(crate) record: Record<'a>,
}

/// What of a record its head does not say.
struct Parts<'a> {
    kind: LogRecordKind,
    object_kind: u8,
    argument: u64,
    name: &'a [u8],
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// `len` is where a punch's body is kept while it is encoded.
    fn parts(&self, len: &'a mut [u8; 8]) -> Parts<'a> {
        let parts = |kind, argument, name, body| {
            let object_kind = 0;
            Parts { kind, object_kind, argument, name, body }
        };
        match *self {
            Self::Create { kind, record_shift, attributes } => Parts {
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
            Self::ZapInsert { name, value } => parts(LogRecordKind::ZapInsert, 0, name, value),
            Self::ZapUpdate { name, value } => parts(LogRecordKind::ZapUpdate, 0, name, value),
            Self::ZapRemove { name } => parts(LogRecordKind::ZapRemove, 0, name, &[]),
        }
    }
}

impl<'a> Entry<'a> {
    /// Appends the record to `out`. False, and nothing appended, if it is too large.
    #[must_use]
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let mut len = [0; 8];
        let parts = self.record.parts(&mut len);
        let (name_bytes, body_bytes) = (parts.name.len(), parts.body.len());
        let Ok(name_u16) = u16::try_from(name_bytes) else { return false };
        if name_bytes + body_bytes > LOG_RECORD_MAX_BYTES {
            return false;
        }
        let head = LogRecordPhys {
            txg: U64::new(self.txg),
            dataset: U64::new(self.dataset),
            object: U64::new(self.object),
            serial: U64::new(self.serial),
            argument: U64::new(parts.argument),
            kind: parts.kind as u8,
            object_kind: parts.object_kind,
            name_bytes: U16::new(name_u16),
            body_bytes: U32::new(body_bytes as u32),
        };
        out.reserve(HEAD_BYTES + name_bytes + body_bytes);
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(parts.name);
        out.extend_from_slice(parts.body);
        true
    }

    /// Takes the first record from `bytes`: `None` in its place if it is void.
    ///
    /// # Errors
    /// `Corrupt`, if that is none.
    pub(super) fn parse(bytes: &mut &'a [u8]) -> Result<Option<Self>> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("log record: {what}"));
        let (head, rest) =
            LogRecordPhys::read_from_prefix(bytes).map_err(|_| corrupt("its head is cut off"))?;
        let name_bytes = usize::from(head.name_bytes.get());
        let body_bytes = head.body_bytes.get() as usize;
        if name_bytes + body_bytes > rest.len() {
            return Err(corrupt("it is longer than its block"));
        }
        let (content, rest) = rest.split_at(name_bytes + body_bytes);
        let (name, body) = content.split_at(name_bytes);
        *bytes = rest;
        let kind = LogRecordKind::from_raw(head.kind).ok_or_else(|| corrupt("unknown kind"))?;
        let argument = head.argument.get();
        let record = match kind {
            LogRecordKind::Void => return Ok(None),
            LogRecordKind::Create => Record::Create {
                kind: ObjectKind::from_raw(head.object_kind)
                    .ok_or_else(|| corrupt("unknown kind of object"))?,
                record_shift: u8::try_from(argument).map_err(|_| corrupt("bad record size"))?,
                attributes: body,
            },
            LogRecordKind::Destroy => Record::Destroy,
            LogRecordKind::SetAttributes => Record::SetAttributes { attributes: body },
            LogRecordKind::Write => {
                let end = argument.checked_add(body.len() as u64);
                end.ok_or_else(|| corrupt("a write past all ends"))?;
                Record::Write { offset: argument, bytes: body }
            }
            LogRecordKind::Truncate => Record::Truncate { size: argument },
            LogRecordKind::Punch => {
                let len = body.try_into().map_err(|_| corrupt("a punch without length"))?;
                let len = u64::from_le_bytes(len);
                argument.checked_add(len).ok_or_else(|| corrupt("a punch past all ends"))?;
                Record::Punch { offset: argument, len }
            }
            LogRecordKind::ZapInsert => Record::ZapInsert { name, value: body },
            LogRecordKind::ZapUpdate => Record::ZapUpdate { name, value: body },
            LogRecordKind::ZapRemove => Record::ZapRemove { name },
        };
        let (txg, serial) = (head.txg.get(), head.serial.get());
        let (dataset, object) = (head.dataset.get(), head.object.get());
        Ok(Some(Self { txg, dataset, object, serial, record }))
    }
}
