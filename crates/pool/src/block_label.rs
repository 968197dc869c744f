//! Labels of cached blocks: what a block belongs to within its dataset, for explanations of misses.
//!
//! A label is a kind in the top bits and an object number. The dataset is the owner in the block's
//! key.
//!
//! Locking: none.

use forebay_cache::Attributes;

const KIND_SHIFT: u32 = 62;
const OBJECT: u64 = 1;
const INDIRECT: u64 = 2;
const DNODES: u64 = 3;

/// What a block belongs to within its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockLabel {
    /// Not known: another block of metadata, or one that an L2 has brought back.
    Unknown,
    /// The content of the object with that number: data, or leaves of a directory.
    Object(u64),
    /// Pointers to blocks of objects.
    Indirect,
    /// Descriptors of objects.
    Dnodes,
}

impl BlockLabel {
    /// The label of a cached block, see [`Attributes::label`].
    pub fn of(label: u64) -> Self {
        match label >> KIND_SHIFT {
            OBJECT => Self::Object(label & !(OBJECT << KIND_SHIFT)),
            INDIRECT => Self::Indirect,
            DNODES => Self::Dnodes,
            _ => Self::Unknown,
        }
    }
}

/// Attributes of the content of an object.
pub(crate) fn of_object(attributes: Attributes, number: u64) -> Attributes {
    attributes.labelled(OBJECT << KIND_SHIFT | number)
}

/// Attributes of indirect blocks.
pub(crate) const INDIRECT_BLOCKS: Attributes =
    Attributes::METADATA.labelled(INDIRECT << KIND_SHIFT);
/// Attributes of blocks of dnodes.
pub(crate) const DNODE_BLOCKS: Attributes = Attributes::METADATA.labelled(DNODES << KIND_SHIFT);

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn labels_are_recognised() {
        let object = of_object(Attributes::DATA, 123_456).again();
        assert_eq!(BlockLabel::of(object.label), BlockLabel::Object(123_456));
        assert_eq!(BlockLabel::of(INDIRECT_BLOCKS.label), BlockLabel::Indirect);
        assert_eq!(BlockLabel::of(DNODE_BLOCKS.once().label), BlockLabel::Dnodes);
        assert_eq!(BlockLabel::of(Attributes::METADATA.label), BlockLabel::Unknown);
    }
}
