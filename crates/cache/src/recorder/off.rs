//! The flight recorder of builds without the feature `insight`: it records nothing.

use crate::attributes::{Attributes, Cause, Class};
use crate::error::Refusal;
use crate::header::{Header, HeaderState};
use crate::inner::CacheInner;
use crate::key::{Key, OwnerId};
use crate::load::load_guard::LoadGuard;
use crate::secondary::SecondaryCache;

pub(crate) struct Recorder;

impl Recorder {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        0
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    pub(crate) fn record_miss(&self, _: u64, _: OwnerId, _: Attributes, _: u32, _: bool) {}

    pub(crate) fn record_not_in_secondary(
        &self,
        _: &dyn SecondaryCache<K, V>,
        _: u64,
        _: &K,
        _: Class,
    ) {
    }

    pub(crate) fn record_entry(&self, _: u64, _: OwnerId, _: Attributes, _: u32) {}

    pub(crate) fn record_load(&self, _: &LoadGuard<K, V>, _: u32, _: Option<Refusal>) {}

    pub(crate) fn record_abandoned(&self, _: u64) {}

    pub(crate) fn record_eviction(&self, _: u64, _: &K, _: HeaderState, _: &Header<K, V>) {}

    pub(crate) fn record_removal(&self, _: &K, _: Class, _: u32, _: Cause) {}
}
