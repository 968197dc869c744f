//! How a store is opened.

use std::time::Duration;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this host, for messages of others. It is public.
    pub owner: String,
    /// Take the store over although another host has not closed it.
    pub force: bool,
    /// Bytes of a label: a flush of blocks in the first or last ones publishes a root.
    pub label_bytes: u64,
    /// How long one request may take, beside the time that its body takes on a slow link.
    pub request_timeout: Duration,
    /// How long reads are retried while the store is away. Writes and flushes are retried until the
    /// device is closed.
    pub read_budget: Duration,
    /// How long a store is tried that is to be opened, created or taken over for its destruction.
    pub open_budget: Duration,
    /// How long a close waits for requests while the store is away, about. Then they fail. It waits
    /// for a store that answers.
    pub close_budget: Duration,
    /// How long a window waits for more writes before its object is written.
    pub seal_after: Duration,
    /// How long objects are kept after the last root that names them, for readers.
    pub grace: Duration,
    /// How long a follower's pin lasts that is not renewed.
    pub lease: Duration,
    /// Time between two looks at the pins of followers, while objects are to be deleted.
    pub pin_check: Duration,
    /// How long pins keep objects after `grace`, at most.
    pub pin_hold: Duration,
    /// Freed objects, or runs of log objects, that wait for their deletion in memory: 48 bytes
    /// each. More go to lists in the store.
    pub freed_max: usize,
    /// Requests at a time: puts of data.
    pub puts: usize,
    /// Requests at a time: gets.
    pub gets: usize,
    /// Requests at a time: cleaner, deletes and lists.
    pub background: usize,
    /// Objects of the chain after which the map is written as a whole.
    pub chain_objects: u64,
    /// Seed of nonces and of jitter; drawn by the system if `None`. For tests.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            owner: "unnamed".to_owned(),
            force: false,
            label_bytes: 256 << 10,
            request_timeout: Duration::from_secs(30),
            read_budget: Duration::from_secs(60),
            open_budget: Duration::from_secs(120),
            close_budget: Duration::from_secs(10),
            seal_after: Duration::from_millis(5),
            grace: Duration::from_secs(600),
            lease: Duration::from_secs(60),
            pin_check: Duration::from_secs(10),
            pin_hold: Duration::from_secs(24 * 3600),
            freed_max: 8192,
            puts: 32,
            gets: 128,
            background: 16,
            chain_objects: 1024,
            seed: None,
        }
    }
}
