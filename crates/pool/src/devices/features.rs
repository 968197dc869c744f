//! Features: what a pool may use beyond the base of its format version.
//!
//! A feature has a name and a class, which says what a build may do with the pool that does not
//! know the name. It is *enabled* if the label lists it, and *active* if something uses it; only an
//! active one matters to other builds. Unknown features that are not in the way are written back
//! as they were found.

use zerocopy::little_endian::U64;

use super::config::{put_text, text_of};
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{FeatureClass, FeaturePhys, LabelPhys, MAX_FEATURES};

/// Mirrors among the top-level vdevs.
pub(crate) const MIRRORS: &str = "forebay:mirrors";

/// Devices that are being replaced.
pub(crate) const REPLACING: &str = "forebay:replacing";

/// An object store as the top-level vdev.
pub(crate) const OBJECT_STORE: &str = "forebay:object-store";

/// A log vdev.
pub(crate) const LOG_DEVICE: &str = "forebay:log-device";

/// The features that this build knows.
const KNOWN: [(&str, FeatureClass); 4] = [
    (MIRRORS, FeatureClass::Incompatible),
    (REPLACING, FeatureClass::Incompatible),
    (OBJECT_STORE, FeatureClass::Incompatible),
    (LOG_DEVICE, FeatureClass::Incompatible),
];

/// A feature that is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    pub(crate) name: String,
    /// A [`FeatureClass`] as it is stored, of this build or not.
    class: u8,
    /// How many things use it.
    pub(crate) uses: u64,
}

impl Feature {
    fn class(&self) -> FeatureClass {
        // What else a class of a later build may forbid is not known.
        FeatureClass::from_raw(self.class).unwrap_or(FeatureClass::Incompatible)
    }

    fn is_known(&self) -> bool {
        KNOWN.iter().any(|(name, _)| *name == self.name)
    }

    /// A feature of another build.
    #[cfg(test)]
    pub(crate) fn of_another_build(name: &str, class: FeatureClass, uses: u64) -> Self {
        Self { name: name.to_owned(), class: class as u8, uses }
    }
}

/// Returns the features of a new pool: all that this build knows, none of them in use.
pub(crate) fn of_new_pool() -> Vec<Feature> {
    let enabled = |(name, class): (&str, FeatureClass)| Feature {
        name: name.to_owned(),
        class: class as u8,
        uses: 0,
    };
    KNOWN.into_iter().map(enabled).collect()
}

/// Sets how many things use a feature, and enables it if necessary.
pub(crate) fn set_uses(features: &mut Vec<Feature>, name: &str, uses: u64) {
    if let Some(found) = features.iter_mut().find(|one| one.name == name) {
        found.uses = uses;
    } else if let Some(known) = of_new_pool().into_iter().find(|one| one.name == name)
        && features.len() < MAX_FEATURES
    {
        features.push(Feature { uses, ..known });
    }
}

/// Checks that this build may import a pool with these features.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it uses some that are not known, with what is still possible.
pub(crate) fn check(features: &[Feature], what: &str, read_only: bool) -> Result<()> {
    let in_the_way = |feature: &&Feature| match feature.class() {
        _ if feature.uses == 0 || feature.is_known() => false,
        FeatureClass::Compatible => false,
        FeatureClass::ReadOnlyCompatible => !read_only,
        FeatureClass::Incompatible => true,
    };
    let found: Vec<&Feature> = features.iter().filter(in_the_way).collect();
    if found.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = found.iter().map(|feature| &*feature.name).collect();
    let names = names.join(", ");
    let may_read = found.iter().all(|one| one.class() == FeatureClass::ReadOnlyCompatible);
    let way_out = match may_read {
        true => "it can be read: import it read-only, or use a newer build to write",
        false => "it can be neither read nor written: use a newer build",
    };
    let text = format!("{what} uses features that this build does not know ({names}); {way_out}");
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Encodes features into a label.
pub(super) fn encode(features: &[Feature], label: &mut LabelPhys) {
    assert!(features.len() <= MAX_FEATURES, "more features than a label can name");
    label.feature_count.set(features.len() as u16);
    for (phys, feature) in label.features.iter_mut().zip(features) {
        put_text(&mut phys.name, &feature.name);
        phys.class = feature.class;
        phys.uses = U64::new(feature.uses);
    }
}

/// Decodes the features of a label.
pub(crate) fn decode(label: &LabelPhys) -> Vec<Feature> {
    let count = usize::from(label.feature_count.get()).min(MAX_FEATURES);
    let feature = |phys: &FeaturePhys| Feature {
        name: text_of(&phys.name),
        class: phys.class,
        uses: phys.uses.get(),
    };
    label.features[..count].iter().map(feature).collect()
}
