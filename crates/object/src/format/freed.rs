//! Lists of freed objects: which objects published roots have released. They wait for their
//! deletion, in this import of the store or in a later one.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::envelope::Identity;
use super::root::{Chain, IdentityPhys, Link, is_sound};
use super::{DEVICE_BYTES, FormatError, Result, SECTOR_BYTES, names, take};
use crate::map::Object;

/// Freed objects: one, or neighbours in a log.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FreedPhys {
    /// 1 a data object, 2 a root, 3 a part of a checkpoint, 4 log objects.
    kind: U32,
    /// The generation of a data object; the index of a part; else 0.
    part: U32,
    /// Of a root or a checkpoint. Else the epoch, and the first sector or sequence.
    id: IdentityPhys,
    /// One past the last sequence of log objects; else 0.
    end: U64,
}

const _: () = assert!(size_of::<FreedPhys>() == 48);

/// The most parts of a checkpoint, and generations of an object: keys have four digits.
const PARTS: u32 = 1 << 16;
/// The most log objects of one entry that are believed.
const LOGS_MAX: u64 = 1 << 32;

/// Freed objects: one, or neighbours in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Data { first: u64, epoch: u32, generation: u16 },
    Root(Identity),
    Part(Identity, u32),
    Logs { epoch: u64, start: u64, end: u64 },
}

impl Freed {
    /// The object that has this key; `None` if it is of another kind.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        let data = names::parse_data(key).map(|(first_byte, epoch, generation)| Self::Data {
            first: first_byte / SECTOR_BYTES,
            epoch,
            generation,
        });
        let root = || names::parse_root(key).map(Self::Root);
        let part = || names::parse_checkpoint(key).map(|(id, part)| Self::Part(id, part));
        let log = || {
            let (epoch, start) = names::parse_log(key)?;
            Some(Self::Logs { epoch, start, end: start + 1 })
        };
        data.or_else(root).or_else(part).or_else(log)
    }

    /// All objects that a chain names.
    pub(crate) fn of_chain(chain: &Chain) -> Vec<Self> {
        let parts = (0..chain.parts).map(|part| Self::Part(chain.checkpoint, part));
        let links = chain.links.iter().map(|link| match *link {
            Link::Root(id) => Self::Root(id),
            Link::Logs { epoch, start, end } => Self::Logs { epoch, start, end },
        });
        parts.chain(links).collect()
    }

    /// Number of objects.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Logs { start, end, .. } => end - start,
            _ => 1,
        }
    }

    /// Its objects, one by one.
    pub(crate) fn each(self) -> impl Iterator<Item = Self> {
        let (epoch, logs) = match self {
            Self::Logs { epoch, start, end } => (epoch, start..end),
            _ => (0, 0..0),
        };
        let other = Some(self).filter(|freed| !matches!(freed, Self::Logs { .. }));
        let logs = logs.map(move |start| Self::Logs { epoch, start, end: start + 1 });
        other.into_iter().chain(logs)
    }

    /// The key of one object.
    pub(crate) fn key(&self) -> String {
        match *self {
            Self::Data { first, epoch, generation } => {
                names::data(&Object { first, epoch, generation, ..Object::default() })
            }
            Self::Root(id) => names::root(id),
            Self::Part(id, part) => names::checkpoint(id, part),
            Self::Logs { epoch, start, .. } => names::log(epoch, start),
        }
    }
}

impl From<&Object> for Freed {
    fn from(object: &Object) -> Self {
        Self::Data { first: object.first, epoch: object.epoch, generation: object.generation }
    }
}

/// Encodes the body of a list.
pub(crate) fn encode(list: &[Freed]) -> Vec<u8> {
    let mut body = Vec::with_capacity(std::mem::size_of_val(list));
    for freed in list {
        let (kind, part, id, end) = match *freed {
            Freed::Data { first, epoch, generation } => {
                let id = Identity { epoch: epoch.into(), number: first, nonce: 0 };
                (1, generation.into(), id, 0)
            }
            Freed::Root(id) => (2, 0, id, 0),
            Freed::Part(id, part) => (3, part, id, 0),
            Freed::Logs { epoch, start, end } => {
                (4, 0, Identity { epoch, number: start, nonce: 0 }, end)
            }
        };
        let phys = FreedPhys {
            kind: U32::new(kind),
            part: U32::new(part),
            id: IdentityPhys::of(id),
            end: U64::new(end),
        };
        body.extend_from_slice(phys.as_bytes());
    }
    body
}

/// Decodes the body of a list.
pub(crate) fn decode(mut body: &[u8]) -> Result<Vec<Freed>> {
    let count = body.len() / size_of::<FreedPhys>();
    let list = take::<FreedPhys>(&mut body, count)?;
    if !body.is_empty() {
        return Err(FormatError::Short);
    }
    list.iter().map(freed_of).collect()
}

fn freed_of(phys: &FreedPhys) -> Result<Freed> {
    let (id, part, end) = (phys.id.get(), phys.part.get(), phys.end.get());
    let named = is_sound(id) && part < PARTS;
    let no_nonce = id.nonce == 0;
    let freed = match phys.kind.get() {
        1 if end == 0 && no_nonce && id.number < DEVICE_BYTES / SECTOR_BYTES => {
            Freed::Data { first: id.number, epoch: id.epoch as u32, generation: part as u16 }
        }
        2 if end == 0 && part == 0 => Freed::Root(id),
        3 if end == 0 => Freed::Part(id, part),
        4 if part == 0 && no_nonce => {
            let last = Identity { number: end, ..id };
            let count = end.checked_sub(id.number).filter(|count| (1..=LOGS_MAX).contains(count));
            count.filter(|_| is_sound(last)).ok_or(FormatError::Value)?;
            Freed::Logs { epoch: id.epoch, start: id.number, end }
        }
        _ => return Err(FormatError::Value),
    };
    named.then_some(freed).ok_or(FormatError::Value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> Vec<Freed> {
        let id = Identity { epoch: 3, number: 9, nonce: u128::MAX - 5 };
        vec![
            Freed::Data { first: 77, epoch: 7, generation: 2 },
            Freed::Root(id),
            Freed::Part(id, 3),
            Freed::Logs { epoch: 4, start: 5, end: 8 },
        ]
    }

    #[test]
    fn a_list_is_decoded_as_encoded_and_others_are_refused() {
        let body = encode(&list());
        assert_eq!(decode(&body), Ok(list()));
        assert_eq!(decode(&[]), Ok(Vec::new()));
        for len in (0..body.len()).filter(|len| !len.is_multiple_of(48)) {
            assert_eq!(decode(&body[..len]), Err(FormatError::Short));
        }
        let hostile = [
            Freed::Logs { epoch: 4, start: 5, end: 5 },
            Freed::Logs { epoch: 4, start: 5, end: u64::MAX },
            Freed::Logs { epoch: 1 << 40, start: 5, end: 6 },
            Freed::Data { first: DEVICE_BYTES / SECTOR_BYTES, epoch: 1, generation: 0 },
            Freed::Part(Identity::default(), PARTS),
        ];
        for freed in hostile {
            assert_eq!(decode(&encode(&[freed])), Err(FormatError::Value), "{freed:?}");
        }
    }

    #[test]
    fn each_object_has_its_key() {
        for freed in list() {
            let single: Vec<Freed> = freed.each().collect();
            assert_eq!(single.len() as u64, freed.count());
            for one in single {
                assert_eq!(Freed::of_key(&one.key()), Some(one));
            }
        }
        assert_eq!(Freed::of_key(names::SUPER), None);
        assert_eq!(Freed::of_key(&names::pin(3)), None);
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
