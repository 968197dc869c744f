//! The recorded misses one by one, for programs that sum them up in their own way.

use super::windows::Windows;
use super::{Miss, MissCause, SecondaryFate};
use crate::attributes::Class;
use crate::key::OwnerId;

/// A miss of a sampled block, from [`Cache::events`](crate::Cache::events).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissEvent {
    /// When its load began, by the clock of the cache.
    pub at_ns: u64,
    /// The owner in its key.
    pub owner: OwnerId,
    /// The label in its attributes.
    pub label: u64,
    /// Its class.
    pub class: Class,
    /// Why the block was not in memory.
    pub cause: MissCause,
    /// What the secondary cache did for it.
    pub secondary: SecondaryFate,
    /// Owner, label and class of the block whose insert evicted it, if that is known.
    pub evictor: Option<(OwnerId, u64, Class)>,
    /// Bytes by which the cache was too small to keep it; 0 if that is not known.
    pub lacking: u64,
    /// Time since it left; 0 if that is not known.
    pub gone_ns: u64,
    /// Duration of its load.
    pub waited_ns: u64,
    /// How many misses it stands for.
    pub stands_for: f64,
}

impl MissEvent {
    fn of((stands_for, miss): (f64, Miss)) -> Self {
        Self {
            at_ns: miss.at_ns,
            owner: miss.block.owner,
            label: miss.block.label,
            class: miss.block.class,
            cause: miss.cause,
            secondary: miss.secondary,
            evictor: miss.evictor.map(|by| (by.owner, by.label, by.class)),
            lacking: miss.lacking,
            gone_ns: miss.gone_ns,
            waited_ns: miss.waited_ns,
            stands_for,
        }
    }
}

/// The misses since `from_ns`, oldest first.
pub(super) fn since(windows: &Windows, from_ns: u64) -> Vec<MissEvent> {
    let (_, misses) = windows.since(from_ns);
    let mut events: Vec<MissEvent> = misses.into_iter().map(MissEvent::of).collect();
    // A window goes back further.
    events.retain(|event| event.at_ns >= from_ns);
    events.sort_by_key(|event| event.at_ns);
    events
}
