//! What a follower of the log has been given.
//!
//! New events come at once. An event that has happened again comes once more with its count, when
//! it has not happened for [`PAUSE_MS`], or its entry takes no more. So a device that fails each
//! request makes a few lines, and the last one has the whole count.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{EventLog, PoolEvent, REPEAT_MS};

/// Time without a repetition after which an event is given again.
const PAUSE_MS: u64 = 2000;

/// The events that a follower has been given.
#[derive(Debug, Default)]
pub struct Followed {
    newest: u64,
    /// Those that may repeat: count that was given, by number.
    given: BTreeMap<u64, u64>,
}

impl Followed {
    /// Nothing was given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next events, oldest first. Waits for a new one for at most `timeout` if there is none.
    pub fn next(&mut self, log: &EventLog, timeout: Duration) -> Vec<PoolEvent> {
        let new = match timeout.is_zero() {
            true => log.after(self.newest),
            false => log.wait_after(self.newest, timeout),
        };
        let now_ms = log.now_ms();
        let is_due = |event: &PoolEvent| {
            now_ms.saturating_sub(event.last_unix_ms) >= PAUSE_MS || !event.may_repeat(now_ms)
        };
        let again = self.repeated(log, is_due);
        // An entry that is gone or takes no more is not asked for again.
        self.given.retain(|number, _| log.get(*number).is_some_and(|one| one.may_repeat(now_ms)));
        for event in &new {
            self.newest = event.number;
            if event.kind.repeats() {
                self.given.insert(event.number, event.count);
            }
        }
        again.into_iter().chain(new).collect()
    }

    /// The events that have happened again since they were given.
    pub fn rest(&mut self, log: &EventLog) -> Vec<PoolEvent> {
        self.repeated(log, |_| true)
    }

    fn repeated(&mut self, log: &EventLog, is_due: impl Fn(&PoolEvent) -> bool) -> Vec<PoolEvent> {
        let mut due = Vec::new();
        for (number, given) in &mut self.given {
            if let Some(event) =
                log.get(*number).filter(|event| event.count > *given && is_due(event))
            {
                *given = event.count;
                due.push(event);
            }
        }
        due
    }
}

impl PoolEvent {
    /// Whether its entry still takes repetitions.
    fn may_repeat(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.unix_ms) < REPEAT_MS
    }
}
