//! The parsers of the object format, for the fuzzer. The format itself is private.
//!
//! Checksums are made good first, because no fuzzer finds one. What a parser accepts must be the
//! same once it was encoded and parsed again.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::delta::Delta;
use crate::format::directory::{self, bytes_of};
use crate::format::envelope::{self, Identity, Kind};
use crate::format::freed;
use crate::format::names;
use crate::format::root::{Super, decode_root, encode_root};
use crate::map::Object;

/// The parsers.
const PARSERS: [fn(&[u8]) -> bool; 7] =
    [parse_envelope, parse_super, parse_root, parse_delta, parse_directory, parse_key, parse_freed];

/// Gives bytes to the parser that the first byte selects. Returns whether it has accepted them.
///
/// # Panics
/// If a parser is wrong.
pub fn parse(bytes: &[u8]) -> bool {
    let Some((selector, body)) = bytes.split_first() else { return false };
    PARSERS[usize::from(*selector) % PARSERS.len()](body)
}

fn parse_envelope(bytes: &[u8]) -> bool {
    let id = Identity { epoch: 1, number: 2, nonce: 3 };
    let sealed = envelope::seal(Kind::Log, id, bytes);
    let opened = envelope::open(&sealed).expect("what was sealed");
    assert_eq!(opened, (Kind::Log, id, bytes));
    envelope::open(bytes).is_ok()
}

fn parse_super(bytes: &[u8]) -> bool {
    let Ok(found) = Super::decode(1, bytes) else { return false };
    assert_eq!(Super::decode(1, &found.encode()), Ok(found));
    true
}

fn parse_root(bytes: &[u8]) -> bool {
    let Ok((chain, delta)) = decode_root(bytes) else { return false };
    assert_eq!(decode_root(&encode_root(&chain, &delta)), Ok((chain, delta)));
    true
}

fn parse_delta(bytes: &[u8]) -> bool {
    let Ok(delta) = Delta::decode(bytes) else { return false };
    let mut again = Vec::new();
    delta.encode(&mut again);
    assert_eq!(Delta::decode(&again), Ok(delta));
    true
}

fn parse_freed(bytes: &[u8]) -> bool {
    let Ok(list) = freed::decode(bytes) else { return false };
    assert_eq!(freed::decode(&freed::encode(&list)), Ok(list));
    true
}

/// Of an object that the first bytes describe.
fn parse_directory(bytes: &[u8]) -> bool {
    let Some((head, body)) = bytes.split_at_checked(8) else { return false };
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let object = Object {
        first: number(0).into(),
        span: number(2).into(),
        epoch: 1,
        payload_sectors: number(4),
        extents: number(6),
        ..Object::default()
    };
    let mut sealed = body.to_vec();
    sealed.extend_from_slice(&xxh3_64(body).to_le_bytes());
    let Ok(extents) = directory::decode(&object, &sealed) else { return false };
    let sectors: u64 = extents.iter().map(|extent| bytes_of(extent.sectors)).sum();
    assert_eq!(sectors, object.payload_bytes());
    assert!(extents.windows(2).all(|pair| pair[0].end() <= pair[1].start));
    assert_eq!(directory::decode(&object, &directory::encode(&object, &extents)), Ok(extents));
    true
}

fn parse_key(bytes: &[u8]) -> bool {
    let Ok(key) = std::str::from_utf8(bytes) else { return false };
    let again = [
        names::parse_log(key).map(|(epoch, sequence)| names::log(epoch, sequence)),
        names::parse_root(key).map(names::root),
        names::parse_freed(key).map(|(id, last)| names::freed(id, last)),
        names::parse_checkpoint(key).map(|(id, part)| names::checkpoint(id, part)),
        names::parse_data(key).map(|(first_byte, epoch, generation)| {
            let first = first_byte / crate::SECTOR_BYTES;
            names::data(&Object { first, epoch, generation, ..Object::default() })
        }),
    ];
    let parsed = again.into_iter().flatten().next();
    assert!(parsed.iter().all(|again| again == key), "{key} is {parsed:?}");
    assert!(parsed.is_none() || names::is_ours(key), "{key} is one of ours");
    parsed.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::freed::Freed;

    #[test]
    fn each_parser_is_reached_with_bytes_that_it_accepts() {
        let chain = crate::format::root::Chain::default();
        let mut delta = Vec::new();
        Delta { next_unused: crate::MUTABLE_BYTES, ..Delta::default() }.encode(&mut delta);
        let content = Super {
            store_guid: 1,
            epoch: 1,
            session: 2,
            root: Identity::default(),
            closed: false,
            owner: "host".to_owned(),
        };
        let next = Delta { next_unused: crate::MUTABLE_BYTES, ..Delta::default() };
        let object =
            Object { span: 1, epoch: 1, payload_sectors: 1, extents: 1, ..Object::default() };
        let extent = directory::Extent { start: 0, sectors: 1, offset: 0, checksum: 0 };
        let mut directory = vec![0, 0, 1, 0, 1, 0, 1, 0];
        let encoded = directory::encode(&object, &[extent]);
        directory.extend_from_slice(&encoded[..encoded.len() - 8]);
        let bodies = [
            envelope::seal(Kind::Fence, Identity::default(), &[]),
            content.encode(),
            encode_root(&chain, &next),
            delta,
            directory,
            names::log(1, 2).into_bytes(),
            freed::encode(&[Freed::Logs { epoch: 1, start: 2, end: 3 }]),
        ];
        for (selector, body) in (0..).zip(bodies) {
            let bytes = [&[selector], &body[..]].concat();
            assert!(parse(&bytes), "parser {selector}");
            for len in 0..bytes.len() {
                parse(&bytes[..len]);
            }
        }
    }
}
