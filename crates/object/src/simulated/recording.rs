//! A recording of the changes of a store, and the states that a crash of its client may leave.
//!
//! After a crash at one moment, the store has all changes that it had executed until then. Each
//! request that was under way may be executed later, in any order, or never. It may come so late
//! that the next host has opened the store already.
//!
//! Locking: `store-recording`, held while a change is executed, so that the order of events is the
//! order of changes. `memory-store` is taken under it.

use forebay_base::sync::{Arc, Mutex};

use crate::memory::MemoryStore;
use crate::store::{Body, Condition, StoreError, Version};

/// A request that changes the store.
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes an object.
    Put {
        /// Its key.
        key: String,
        /// Its content.
        body: Body,
        /// When it takes effect.
        condition: Condition,
    },
    /// Deletes an object.
    Delete {
        /// Its key.
        key: String,
    },
}

impl Change {
    /// Executes it. A delete returns a version without a meaning.
    pub(super) fn execute(&self, store: &MemoryStore) -> Result<Version, StoreError> {
        match self {
            Self::Put { key, body, condition } => store.put_now(key, body, condition),
            Self::Delete { key } => {
                store.delete_now(key);
                Ok(Version(String::new()))
            }
        }
    }

    /// A copy that does not keep the memory of the client's requests.
    fn copy(&self) -> Self {
        match self {
            Self::Put { key, body, condition } => {
                let body = Body::from(body.parts().concat());
                Self::Put { key: key.clone(), body, condition: condition.clone() }
            }
            Self::Delete { key } => Self::Delete { key: key.clone() },
        }
    }

    /// Whether its condition may be false.
    pub(super) fn is_conditional(&self) -> bool {
        matches!(self, Self::Put { condition, .. } if *condition != Condition::Always)
    }
}

/// What happened to the change of an index.
#[derive(Clone, Copy, Debug)]
enum Event {
    Sent(usize),
    Executed(usize),
    /// It will never be executed any more.
    Ended(usize),
}

/// A recording.
pub(super) struct Recording(Mutex<Recorded>);

#[derive(Default)]
struct Recorded {
    changes: Vec<Change>,
    events: Vec<Event>,
}

/// The state of a store after a crash of its client.
pub struct CrashedStore {
    /// What the store has.
    pub memory: Arc<MemoryStore>,
    /// Requests that were under way.
    pub under_way: Vec<Change>,
}

impl Recording {
    pub(super) fn new() -> Self {
        Self(Mutex::named("store-recording", Recorded::default()))
    }

    /// Number of events until now.
    pub(super) fn position(&self) -> usize {
        self.0.lock().events.len()
    }

    fn send(&self, change: &Change) -> usize {
        let mut recorded = self.0.lock();
        let index = recorded.changes.len();
        recorded.changes.push(change.copy());
        recorded.events.push(Event::Sent(index));
        index
    }

    /// The store after a crash when `position` events had happened. It was empty at first.
    pub(super) fn crash_at(&self, position: usize) -> CrashedStore {
        let recorded = self.0.lock();
        let memory = MemoryStore::new();
        let mut under_way = Vec::new();
        for event in &recorded.events[..position] {
            match event {
                Event::Sent(index) => under_way.push(*index),
                Event::Executed(index) => {
                    under_way.retain(|other| other != index);
                    // Its condition is as true as it was.
                    drop(recorded.changes[*index].execute(&memory));
                }
                Event::Ended(index) => under_way.retain(|other| other != index),
            }
        }
        let under_way = under_way.into_iter().map(|index| recorded.changes[index].clone());
        CrashedStore { memory, under_way: under_way.collect() }
    }
}

/// A change that is under way. Once it is dropped it will never be executed.
pub(super) struct UnderWay {
    change: Change,
    recorded: Option<(Arc<Recording>, usize)>,
    /// Counts the puts that are under way.
    _count: Option<Arc<()>>,
}

impl UnderWay {
    pub(super) fn new(
        change: Change,
        recording: Option<&Arc<Recording>>,
        count: Option<Arc<()>>,
    ) -> Self {
        let recorded = recording.map(|recording| (Arc::clone(recording), recording.send(&change)));
        Self { change, recorded, _count: count }
    }

    pub(super) fn execute(mut self, store: &MemoryStore) -> Result<Version, StoreError> {
        let Some((recording, index)) = self.recorded.take() else {
            return self.change.execute(store);
        };
        let mut recorded = recording.0.lock();
        recorded.events.push(Event::Executed(index));
        self.change.execute(store)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((recording, index)) = self.recorded.take() {
            recording.0.lock().events.push(Event::Ended(index));
        }
    }
}
