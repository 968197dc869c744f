//! Keys of objects. Numbers are hexadecimal with leading zeros, so that lists are in their order.

use super::WINDOW_BYTES;
use super::envelope::Identity;
use crate::map::Object;

pub(crate) const SUPER: &str = "super";
pub(crate) const DATA: &str = "data/";
pub(crate) const LOGS: &str = "log/";
pub(crate) const ROOTS: &str = "txg/";
pub(crate) const CHECKPOINTS: &str = "map/";
pub(crate) const PROBES: &str = "probe/";
pub(crate) const PINS: &str = "pins/";
pub(crate) const FREED: &str = "free/";

/// The end of the key of an owner's last list of freed objects.
const LAST: &str = ".last";

/// Number of shards of data objects: stores limit the requests for keys with a common prefix.
pub(crate) const SHARDS: u64 = 16;

/// The key of a data object.
pub(crate) fn data(object: &Object) -> String {
    let shard = shard_of(object.first_byte());
    format!(
        "{}{:014x}.{:08x}.{:04x}",
        shard_prefix(shard),
        object.first_byte(),
        object.epoch,
        object.generation
    )
}

fn shard_of(first_byte: u64) -> u64 {
    first_byte / WINDOW_BYTES % SHARDS
}

/// The common start of the keys of a shard.
pub(crate) fn shard_prefix(shard: u64) -> String {
    format!("{DATA}{shard:x}/")
}

/// A key of `shard` before all objects whose first byte is at `first_byte` or after.
pub(crate) fn shard_start(shard: u64, first_byte: u64) -> String {
    format!("{}{first_byte:014x}", shard_prefix(shard))
}

/// First byte, epoch and generation of the data object with `key`.
pub(crate) fn parse_data(key: &str) -> Option<(u64, u32, u16)> {
    let (shard, name) = key.strip_prefix(DATA)?.split_once('/')?;
    let mut parts = name.split('.');
    let first = hex(parts.next()?, 14)?;
    let epoch = hex(parts.next()?, 8)? as u32;
    let generation = hex(parts.next()?, 4)? as u16;
    let rest = parts.next();
    (rest.is_none() && hex(shard, 1)? == shard_of(first)).then_some((first, epoch, generation))
}

/// The key of a log object.
pub(crate) fn log(epoch: u64, sequence: u64) -> String {
    format!("{LOGS}{epoch:08x}/{sequence:012x}")
}

/// Epoch and sequence of the log object with `key`.
pub(crate) fn parse_log(key: &str) -> Option<(u64, u64)> {
    let (epoch, sequence) = key.strip_prefix(LOGS)?.split_once('/')?;
    Some((hex(epoch, 8)?, hex(sequence, 12)?))
}

/// The key of a root.
pub(crate) fn root(id: Identity) -> String {
    format!("{ROOTS}{}", identity(id))
}

/// The identity of the root with `key`.
pub(crate) fn parse_root(key: &str) -> Option<Identity> {
    parse_identity(key.strip_prefix(ROOTS)?)
}

/// The key of a part of a checkpoint.
pub(crate) fn checkpoint(id: Identity, part: u32) -> String {
    format!("{CHECKPOINTS}{}/{part:04x}", identity(id))
}

/// Identity and part of the object of a checkpoint with `key`.
pub(crate) fn parse_checkpoint(key: &str) -> Option<(Identity, u32)> {
    let (id, part) = key.strip_prefix(CHECKPOINTS)?.split_once('/')?;
    Some((parse_identity(id)?, hex(part, 4)? as u32))
}

/// The key of a probe.
pub(crate) fn probe(nonce: u128) -> String {
    format!("{PROBES}{nonce:032x}")
}

/// Whether `key` is that of a probe.
pub(crate) fn is_probe(key: &str) -> bool {
    key.strip_prefix(PROBES).is_some_and(|nonce| hex128(nonce).is_some())
}

/// The key of a pin.
pub(crate) fn pin(nonce: u128) -> String {
    format!("{PINS}{nonce:032x}")
}

/// Whether `key` is that of a pin.
pub(crate) fn is_pin(key: &str) -> bool {
    key.strip_prefix(PINS).is_some_and(|nonce| hex128(nonce).is_some())
}

/// The key of a list of freed objects. `last` says that its owner has closed the store, and that
/// nothing else was unnamed then.
pub(crate) fn freed(id: Identity, last: bool) -> String {
    format!("{FREED}{}{}", identity(id), if last { LAST } else { "" })
}

/// The identity of the list of freed objects with `key`, and whether it is the last of its owner.
pub(crate) fn parse_freed(key: &str) -> Option<(Identity, bool)> {
    let name = key.strip_prefix(FREED)?;
    match name.strip_suffix(LAST) {
        Some(name) => Some((parse_identity(name)?, true)),
        None => Some((parse_identity(name)?, false)),
    }
}

/// Whether `key` is one that this crate writes. Others are never touched.
pub(crate) fn is_ours(key: &str) -> bool {
    key == SUPER
        || is_probe(key)
        || is_pin(key)
        || parse_data(key).is_some()
        || parse_log(key).is_some()
        || parse_root(key).is_some()
        || parse_checkpoint(key).is_some()
        || parse_freed(key).is_some()
}

fn identity(id: Identity) -> String {
    format!("{:012x}.{:08x}.{:032x}", id.number, id.epoch, id.nonce)
}

fn parse_identity(text: &str) -> Option<Identity> {
    let mut parts = text.split('.');
    let number = hex(parts.next()?, 12)?;
    let epoch = hex(parts.next()?, 8)?;
    let nonce = hex128(parts.next()?)?;
    parts.next().is_none().then_some(Identity { epoch, number, nonce })
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn hex(text: &str, digits: usize) -> Option<u64> {
    is_hex(text, digits).then(|| u64::from_str_radix(text, 16).ok())?
}

fn hex128(text: &str) -> Option<u128> {
    is_hex(text, 32).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_back_and_strangers_are_left_alone() {
        let object = Object { first: 12_345, epoch: 7, generation: 2, ..Object::default() };
        let key = data(&object);
        assert_eq!(parse_data(&key), Some((object.first_byte(), 7, 2)));
        let id = Identity { epoch: 3, number: 9, nonce: u128::MAX - 5 };
        assert_eq!(parse_root(&root(id)), Some(id));
        assert_eq!(parse_checkpoint(&checkpoint(id, 3)), Some((id, 3)));
        assert_eq!(parse_log(&log(4, 5)), Some((4, 5)));
        assert_eq!(parse_freed(&freed(id, true)), Some((id, true)));
        assert_eq!(parse_freed(&freed(id, false)), Some((id, false)));
        let lists = [freed(id, false), freed(id, true)];
        let others = [root(id), checkpoint(id, 3), log(4, 5), probe(1), pin(1)];
        let others = [&others[..], &lists[..]].concat();
        for ours in others.iter().map(String::as_str).chain([key.as_str(), SUPER]) {
            assert!(is_ours(ours), "{ours}");
            assert!(!is_ours(&format!("{ours}x")), "{ours}");
        }
        // The same object in another shard, and names of people.
        assert!(!is_ours(&key.replacen("data/", "data/f", 1)));
        for other in
            ["", "data/", "data/photo.jpg", "log/a/b", "txg/1.2.3", "superb", "probe/1", "pins/1"]
        {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn lists_from_an_address_on_find_later_objects() {
        let object = |first| Object { first, epoch: 1, ..Object::default() };
        let start = shard_start(0, 4096 * 2048 * 16);
        assert!(data(&object(2048 * 16)) > start);
        assert!(data(&object(2048 * 16 - 2048 * 16)) < start);
    }
}
