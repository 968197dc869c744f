//! Guides: which operations the caches have; the same program with another cache and with Forebay.
//!
//! These modules have no items. Each code block of Forebay is compiled and run as a test.

#[cfg(all(feature = "hybrid", feature = "insight"))]
#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("from_moka.md")]
pub mod from_moka {}

#[doc = include_str!("from_quick_cache.md")]
pub mod from_quick_cache {}

#[cfg(feature = "hybrid")]
#[doc = include_str!("from_foyer.md")]
pub mod from_foyer {}
