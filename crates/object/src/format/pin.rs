//! Pins: by them followers say which root they need, and for how long they say so.

use std::time::Duration;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FormatError, Result, take_one};

/// The longest lease that is believed.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(600);

/// The body of a pin. The envelope has the nonce of its follower, and the number of the root.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PinPhys {
    /// That of the store, so that a pin of a pool that was destroyed does not count.
    store_guid: U64,
    /// Counts the renewals: the content changes although the root stays.
    beat: U64,
    lease_ms: U32,
    zero: U32,
}

const _: () = assert!(size_of::<PinPhys>() == 24);

/// What a pin says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) store_guid: u64,
    pub(crate) beat: u64,
    /// It holds until it has not changed for so long, by the clock of the pool's owner.
    pub(crate) lease: Duration,
}

impl Pin {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let phys = PinPhys {
            store_guid: self.store_guid.into(),
            beat: self.beat.into(),
            lease_ms: (self.lease.min(LEASE_MAX).as_millis() as u32).into(),
            zero: U32::ZERO,
        };
        phys.as_bytes().to_vec()
    }

    pub(crate) fn decode(mut body: &[u8]) -> Result<Self> {
        let phys = take_one::<PinPhys>(&mut body)?;
        let lease = Duration::from_millis(phys.lease_ms.get().into());
        if lease > LEASE_MAX || !body.is_empty() {
            return Err(FormatError::Value);
        }
        Ok(Self { store_guid: phys.store_guid.get(), beat: phys.beat.get(), lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_decoded_as_encoded_and_others_are_refused() {
        let pin = Pin { store_guid: 7, beat: u64::MAX, lease: Duration::from_millis(1234) };
        let body = pin.encode();
        assert_eq!(Pin::decode(&body), Ok(pin));
        for len in 0..body.len() {
            assert!(Pin::decode(&body[..len]).is_err());
        }
        assert_eq!(Pin::decode(&[&body[..], &[0]].concat()), Err(FormatError::Value));
        let mut long = body;
        long[16..20].fill(0xff);
        assert_eq!(Pin::decode(&long), Err(FormatError::Value));
    }
}
