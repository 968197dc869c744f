//! Values of any type that serde can encode.

use std::ops::Deref;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::values::L2Value;

/// The length of a value that cannot be encoded: more than any device takes, so that it is refused
/// as too large.
const UNENCODABLE: usize = u32::MAX as usize + 1;

/// A value that serde encodes, in the compact format of the crate `postcard`. Feature `serde`.
///
/// The encoding names no fields: a value that was written by a program with another type is a miss,
/// or, if the bytes happen to fit, a wrong value. So change the cache's
/// [name](super::HybridBuilder::name) with the type. A value whose `Serialize` fails is not cached.
///
/// The value is encoded once more to learn its weight, which is the encoded length and the size of
/// `T`. Small numbers are encoded in fewer bytes than they take in memory: a `Vec<u64>` of them
/// weighs an eighth of what it holds, and [`bound`](super::HybridBuilder::bound) counts no more
/// than the weight.
///
/// Implement [`L2Value`] for a type of your own if the weight is wrong or slow to learn, or if
/// bytes of a damaged device could cost too much to decode. Neither is limited here: the depth of a
/// recursive type, and the number of elements of no size, as of a `Vec<()>`.
///
/// ```
/// use forebay_l2::{HybridCache, Postcard};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Page {
///     title: String,
///     links: Vec<u64>,
/// }
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pages.cache");
/// let cache = HybridCache::<u64, Postcard<Page>>::open(&path, 64 << 20, 4 << 20)?;
/// let page = Page { title: "Forebay".to_owned(), links: vec![2, 3] };
/// cache.insert(1, Postcard(page))?;
/// assert_eq!(cache.get(&1).map(|page| page.title.clone()).as_deref(), Some("Forebay"));
/// cache.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Postcard<T>(pub T);

impl<T> Deref for Postcard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Postcard<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> L2Value for Postcard<T> {
    fn encoded_len(&self) -> usize {
        postcard::experimental::serialized_size(&self.0).unwrap_or(UNENCODABLE)
    }

    fn encode(&self, out: &mut [u8]) {
        let len = out.len();
        let used = postcard::to_slice(&self.0, out).map(|used| used.len());
        // The L2 catches the panic, counts it, and does not write the block.
        assert_eq!(used, Ok(len), "a value of the cache encodes in another way each time");
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(Self(value))
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize, Serializer};

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Node {
        Empty,
        Named { name: String, number: Option<i64> },
        Many(Vec<(u32, String)>, BTreeMap<u8, Vec<u8>>),
    }

    fn encoded(value: &Postcard<Node>) -> Vec<u8> {
        let mut bytes = vec![0; value.encoded_len()];
        value.encode(&mut bytes);
        bytes
    }

    fn nodes() -> impl Strategy<Value = Node> {
        let many = prop::collection::vec((any::<u32>(), any::<String>()), 0..8);
        let map = prop::collection::btree_map(any::<u8>(), any::<Vec<u8>>(), 0..8);
        prop_oneof![
            Just(Node::Empty),
            (any::<String>(), any::<Option<i64>>())
                .prop_map(|(name, number)| Node::Named { name, number }),
            (many, map).prop_map(|(many, map)| Node::Many(many, map)),
        ]
    }

    proptest! {
        #[test]
        fn values_survive_encoding(node in nodes()) {
            let value = Postcard(node);
            prop_assert_eq!(Postcard::decode(&encoded(&value)), Some(value));
        }

        /// Neither a panic, nor memory by a length that the bytes claim.
        #[test]
        fn any_bytes_decode_or_are_a_miss(bytes in any::<Vec<u8>>()) {
            if let Some(value) = Postcard::<Node>::decode(&bytes) {
                prop_assert_eq!(Postcard::decode(&encoded(&value)), Some(value));
            }
        }

        #[test]
        fn changed_and_cut_bytes_decode_or_are_a_miss(
            node in nodes(), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut bytes = encoded(&Postcard(node));
            let at = at.index(bytes.len());
            prop_assert_eq!(Postcard::<Node>::decode(&bytes[..at]), None);
            bytes[at] = byte;
            let _ = Postcard::<Node>::decode(&bytes);
            bytes.insert(at, byte);
            let _ = Postcard::<Node>::decode(&bytes);
        }
    }

    #[test]
    fn a_length_of_the_whole_address_space_is_a_miss() {
        // Variant 1 with a name of 2^63 bytes; variant 2 with as many pairs.
        for variant in [1, 2] {
            let mut bytes = vec![variant];
            bytes.extend([0x80; 9]);
            bytes.push(1);
            bytes.extend([b'a'; 64]);
            assert_eq!(Postcard::<Node>::decode(&bytes), None);
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_too_large() {
        #[derive(Deserialize)]
        struct Refusing;
        impl Serialize for Refusing {
            fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("not today"))
            }
        }
        let value = Postcard(Refusing);
        assert_eq!(value.encoded_len(), UNENCODABLE);
        assert!(value.memory_bytes() > u64::from(u32::MAX));
    }
}
