//! The head of every object that is not data: kind, identity and checksum.

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FormatError, Result, VERSION, take_one};

const MAGIC: [u8; 8] = *b"FBobject";

/// The kind of an object's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Super = 1,
    Root = 2,
    Checkpoint = 3,
    Log = 4,
    Fence = 5,
    Pin = 6,
    Freed = 7,
}

impl Kind {
    fn of(number: u32) -> Result<Self> {
        use Kind::{Checkpoint, Fence, Freed, Log, Pin, Root, Super};
        let all = [Super, Root, Checkpoint, Log, Fence, Pin, Freed];
        all.into_iter().find(|kind| *kind as u32 == number).ok_or(FormatError::Magic)
    }
}

/// What tells an object from all others: it is checked against the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// The epoch of its writer.
    pub(crate) epoch: u64,
    /// The number of a root or a log object; of a part: its index.
    pub(crate) number: u64,
    /// Unique for each content.
    pub(crate) nonce: u128,
}

/// The head of an object.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EnvelopePhys {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    epoch: U64,
    number: U64,
    nonce: U128,
    body_bytes: U64,
    /// XXH3 of all fields before it and of the body.
    checksum: U64,
}

const _: () = assert!(size_of::<EnvelopePhys>() == 64);

const CHECKED_BYTES: usize = size_of::<EnvelopePhys>() - 8;

/// Puts `body` into an envelope.
pub(crate) fn seal(kind: Kind, identity: Identity, body: &[u8]) -> Vec<u8> {
    let mut head = EnvelopePhys {
        magic: MAGIC,
        version: VERSION.into(),
        kind: (kind as u32).into(),
        epoch: identity.epoch.into(),
        number: identity.number.into(),
        nonce: identity.nonce.into(),
        body_bytes: (body.len() as u64).into(),
        checksum: U64::ZERO,
    };
    head.checksum = checksum(&head, body).into();
    [head.as_bytes(), body].concat()
}

fn checksum(head: &EnvelopePhys, body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&head.as_bytes()[..CHECKED_BYTES]);
    hash.update(body);
    hash.digest()
}

/// Opens an envelope, and returns what it says of itself and its body.
pub(crate) fn open(mut bytes: &[u8]) -> Result<(Kind, Identity, &[u8])> {
    let head = take_one::<EnvelopePhys>(&mut bytes)?;
    if head.magic != MAGIC {
        return Err(FormatError::Magic);
    }
    // Before the checksum, whose method may change with the version.
    if head.version.get() != VERSION {
        return Err(FormatError::Version(head.version.get()));
    }
    if head.body_bytes.get() != bytes.len() as u64 {
        return Err(FormatError::Short);
    }
    if head.checksum.get() != checksum(head, bytes) {
        return Err(FormatError::Checksum);
    }
    let (epoch, number, nonce) = (head.epoch.get(), head.number.get(), head.nonce.get());
    Ok((Kind::of(head.kind.get())?, Identity { epoch, number, nonce }, bytes))
}
