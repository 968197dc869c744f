//! `super`, which names the newest root, and the roots.

use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::delta::Delta;
use super::envelope::Identity;
use super::{FormatError, Result, take, take_one};

/// The most bytes of an owner's name.
pub(crate) const OWNER_BYTES: usize = 128;

/// The largest epoch: a key has eight digits for it.
const EPOCH_MAX: u64 = u32::MAX as u64;
/// Numbers are below: a key has twelve digits for them.
const NUMBERS: u64 = 1 << 48;
/// The most bytes of all deltas, or of a checkpoint, that are believed.
const BYTES_MAX: u64 = 1 << 40;

/// The identity of a root or a checkpoint.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct IdentityPhys {
    epoch: U64,
    number: U64,
    nonce: U128,
}

const _: () = assert!(size_of::<IdentityPhys>() == 32);

impl IdentityPhys {
    pub(super) fn of(id: Identity) -> Self {
        Self { epoch: id.epoch.into(), number: id.number.into(), nonce: id.nonce.into() }
    }

    pub(super) fn get(&self) -> Identity {
        Identity { epoch: self.epoch.get(), number: self.number.get(), nonce: self.nonce.get() }
    }
}

/// Whether epoch and number have room in a key. Both can then be counted up without an overflow.
pub(super) fn is_sound(id: Identity) -> bool {
    id.epoch <= EPOCH_MAX && id.number < NUMBERS
}

/// The body of `super`. The nonce of its envelope is unique for each write.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperPhys {
    /// Drawn at random when the store was created.
    store_guid: U64,
    /// Drawn at random when the owner took the store over.
    session: U128,
    root: IdentityPhys,
    /// 1 if the owner has closed it.
    closed: U32,
    owner_bytes: U32,
    owner: [u8; OWNER_BYTES],
}

const _: () = assert!(size_of::<SuperPhys>() == 192);

/// What `super` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Super {
    pub(crate) store_guid: u64,
    /// The epoch of the owner.
    pub(crate) epoch: u64,
    /// Two that take over at once may draw the same epoch, but not the same session.
    pub(crate) session: u128,
    /// The newest root.
    pub(crate) root: Identity,
    pub(crate) closed: bool,
    /// The name of the owner, for people.
    pub(crate) owner: String,
}

impl Super {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut owner = [0; OWNER_BYTES];
        let fits = |len: &usize| self.owner.is_char_boundary(*len);
        let len = (0..=OWNER_BYTES.min(self.owner.len())).rev().find(fits).unwrap_or(0);
        owner[..len].copy_from_slice(&self.owner.as_bytes()[..len]);
        let phys = SuperPhys {
            store_guid: self.store_guid.into(),
            session: self.session.into(),
            root: IdentityPhys::of(self.root),
            closed: u32::from(self.closed).into(),
            owner_bytes: (len as u32).into(),
            owner,
        };
        phys.as_bytes().to_vec()
    }

    pub(crate) fn decode(epoch: u64, mut body: &[u8]) -> Result<Self> {
        let phys = take_one::<SuperPhys>(&mut body)?;
        let owner = phys.owner.get(..phys.owner_bytes.get() as usize).ok_or(FormatError::Value)?;
        let owner = str::from_utf8(owner).map_err(|_| FormatError::Value)?.to_owned();
        let root = phys.root.get();
        // The next owner takes the next epoch.
        let sound = epoch < EPOCH_MAX && is_sound(root);
        if !sound || phys.closed.get() > 1 || !body.is_empty() {
            return Err(FormatError::Value);
        }
        Ok(Self {
            store_guid: phys.store_guid.get(),
            epoch,
            session: phys.session.get(),
            root,
            closed: phys.closed.get() == 1,
            owner,
        })
    }
}

/// The head of a root.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootPhys {
    /// Replay of the log starts here.
    log_epoch: U64,
    log_sequence: U64,
    checkpoint: IdentityPhys,
    /// Number of parts of the checkpoint; 0 if there is none.
    parts: U32,
    /// Number of links of the chain.
    links: U32,
    /// Bytes of the deltas after the checkpoint, up to and including this one.
    chain_bytes: U64,
    /// Bytes of the checkpoint.
    checkpoint_bytes: U64,
}

const _: () = assert!(size_of::<RootPhys>() == 72);

/// A link of the chain: a root, or log objects of one epoch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LinkPhys {
    /// Of the root. Of log objects: the epoch, and the first sequence.
    id: IdentityPhys,
    /// One past the last sequence; 0 for a root.
    end: U64,
}

const _: () = assert!(size_of::<LinkPhys>() == 40);

/// A delta after the checkpoint, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The delta of a root.
    Root(Identity),
    /// The log objects of `epoch` from `start` to before `end`.
    Logs { epoch: u64, start: u64, end: u64 },
}

/// What a root says of all before its own delta.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Epoch and sequence of the first log object that is not part of the chain.
    pub(crate) log: (u64, u64),
    pub(crate) checkpoint: Identity,
    pub(crate) parts: u32,
    pub(crate) checkpoint_bytes: u64,
    /// The deltas after the checkpoint, the oldest first.
    pub(crate) links: Vec<Link>,
    pub(crate) chain_bytes: u64,
}

impl Chain {
    /// Number of objects of its links.
    pub(crate) fn objects(&self) -> u64 {
        let of = |link: &Link| match link {
            Link::Root(_) => 1,
            Link::Logs { start, end, .. } => end - start,
        };
        self.links.iter().map(of).sum()
    }

    /// Adds the log object `sequence` of `epoch`.
    pub(crate) fn push_log(&mut self, epoch: u64, sequence: u64) {
        self.log = (epoch, sequence + 1);
        if let Some(Link::Logs { epoch: last, end, .. }) = self.links.last_mut()
            && (*last, *end) == (epoch, sequence)
        {
            *end += 1;
            return;
        }
        self.links.push(Link::Logs { epoch, start: sequence, end: sequence + 1 });
    }
}

/// Encodes the body of a root.
pub(crate) fn encode_root(chain: &Chain, delta: &Delta) -> Vec<u8> {
    let head = RootPhys {
        log_epoch: chain.log.0.into(),
        log_sequence: chain.log.1.into(),
        checkpoint: IdentityPhys::of(chain.checkpoint),
        parts: chain.parts.into(),
        links: (chain.links.len() as u32).into(),
        chain_bytes: chain.chain_bytes.into(),
        checkpoint_bytes: chain.checkpoint_bytes.into(),
    };
    let mut body = head.as_bytes().to_vec();
    for link in &chain.links {
        let (id, end) = match *link {
            Link::Root(id) => (id, 0),
            Link::Logs { epoch, start, end } => (Identity { epoch, number: start, nonce: 0 }, end),
        };
        body.extend_from_slice(LinkPhys { id: IdentityPhys::of(id), end: end.into() }.as_bytes());
    }
    delta.encode(&mut body);
    body
}

/// The most objects of a chain that are believed, many more than there ever are. It bounds the
/// tasks of an open, which fetches all at once.
const OBJECTS_MAX: u64 = 1 << 16;

/// Decodes the body of a root.
pub(crate) fn decode_root(mut body: &[u8]) -> Result<(Chain, Delta)> {
    let head = take_one::<RootPhys>(&mut body)?;
    let links = take::<LinkPhys>(&mut body, head.links.get() as usize)?;
    let mut objects = 0;
    let link = |phys: &LinkPhys| {
        let (id, end) = (phys.id.get(), phys.end.get());
        let (link, count) = match end {
            0 => (Link::Root(id), Some(1)),
            _ => {
                let count = end.checked_sub(id.number).filter(|count| *count > 0);
                (Link::Logs { epoch: id.epoch, start: id.number, end }, count)
            }
        };
        let count = count.filter(|_| is_sound(id) && end < NUMBERS).ok_or(FormatError::Value)?;
        objects = count.checked_add(objects).ok_or(FormatError::Value)?;
        let sound = objects <= OBJECTS_MAX;
        sound.then_some(link).ok_or(FormatError::Value)
    };
    let chain = Chain {
        log: (head.log_epoch.get(), head.log_sequence.get()),
        checkpoint: head.checkpoint.get(),
        parts: head.parts.get(),
        checkpoint_bytes: head.checkpoint_bytes.get(),
        links: links.iter().map(link).collect::<Result<_>>()?,
        chain_bytes: head.chain_bytes.get(),
    };
    let log = Identity { epoch: chain.log.0, number: chain.log.1, nonce: 0 };
    let sound = is_sound(log)
        && is_sound(chain.checkpoint)
        && chain.chain_bytes <= BYTES_MAX
        && chain.checkpoint_bytes <= BYTES_MAX
        // The keys have four digits.
        && chain.parts <= 0xffff;
    if !sound {
        return Err(FormatError::Value);
    }
    Ok((chain, Delta::decode(body)?))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn super_is_decoded_as_encoded_with_a_cut_name() {
        let root = Identity { epoch: 1, number: 2, nonce: 3 };
        let owner = format!("{}ä", "x".repeat(OWNER_BYTES - 1));
        let written = Super { store_guid: 5, epoch: 9, session: 77, root, closed: true, owner };
        let read = Super::decode(9, &written.encode()).unwrap();
        assert_eq!(read.owner, "x".repeat(OWNER_BYTES - 1));
        assert_eq!(Super { owner: written.owner.clone(), ..read }, written);
    }

    #[test]
    fn a_root_is_decoded_as_encoded() {
        let mut chain =
            Chain { parts: 3, checkpoint_bytes: 10, chain_bytes: 20, ..Chain::default() };
        chain.links.push(Link::Root(Identity { epoch: 1, number: 2, nonce: 3 }));
        for sequence in 4..9 {
            chain.push_log(1, sequence);
        }
        chain.push_log(2, 0);
        assert_eq!(chain.links.len(), 3);
        assert_eq!(chain.objects(), 7);
        let delta = Delta { next_unused: 1 << 30, removed: vec![4], ..Delta::default() };
        let body = encode_root(&chain, &delta);
        assert_eq!(decode_root(&body), Ok((chain, delta)));
        for len in 0..body.len() {
            assert!(decode_root(&body[..len]).is_err());
        }
    }

    #[test]
    fn numbers_that_would_overflow_or_never_end_are_refused() {
        let links = |links: &[Link]| Chain { links: links.to_vec(), ..Chain::default() };
        let logs = |start, end| Link::Logs { epoch: 1, start, end };
        let many = [logs(0, OBJECTS_MAX / 2), logs(1 << 30, (1 << 30) + OBJECTS_MAX / 2)];
        assert!(decode_root(&encode_root(&links(&many), &Delta::default())).is_ok());
        let late = Identity { epoch: 1, number: NUMBERS, nonce: 0 };
        let hostile = [
            links(&[many[0], many[1], Link::Root(Identity::default())]),
            links(&[logs(7, 7)]),
            links(&[logs(7, 6)]),
            links(&[logs(0, u64::MAX)]),
            links(&[logs(u64::MAX - 1, u64::MAX)]),
            links(&[Link::Root(late)]),
            Chain { log: (1, u64::MAX), ..Chain::default() },
            Chain { log: (EPOCH_MAX + 1, 0), ..Chain::default() },
            Chain { checkpoint: late, ..Chain::default() },
            Chain { chain_bytes: u64::MAX, ..Chain::default() },
            Chain { checkpoint_bytes: u64::MAX, ..Chain::default() },
            Chain { parts: 0x1_0000, ..Chain::default() },
        ];
        for chain in hostile {
            let body = encode_root(&chain, &Delta::default());
            assert_eq!(decode_root(&body), Err(FormatError::Value), "{chain:?}");
        }
        let content = |root| Super {
            store_guid: 1,
            epoch: 1,
            session: 1,
            root,
            closed: false,
            owner: String::new(),
        };
        assert_eq!(Super::decode(1, &content(late).encode()), Err(FormatError::Value));
        let body = content(Identity::default()).encode();
        assert_eq!(Super::decode(EPOCH_MAX, &body), Err(FormatError::Value));
        assert!(Super::decode(EPOCH_MAX - 1, &body).is_ok());
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_decoded(bytes in vec(any::<u8>(), 0..400)) {
            let _ = Super::decode(1, &bytes);
            if let Ok((chain, _)) = decode_root(&bytes) {
                prop_assert!(chain.objects() <= OBJECTS_MAX);
            }
        }
    }
}
