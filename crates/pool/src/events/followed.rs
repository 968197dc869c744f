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
        let mut due = self.repeated(log, false);
        for event in &new {
            self.newest = event.number;
            if event.kind.repeats() {
                self.given.insert(event.number, event.count);
            }
        }
        due.extend(new);
        due
    }

    /// The events that have happened again since they were given.
    pub fn rest(&mut self, log: &EventLog) -> Vec<PoolEvent> {
        self.repeated(log, true)
    }

    /// The events that have happened again since they were given: all of them, or those that have
    /// paused or whose entry takes no more. Looks at each once, so that no count is missed. Forgets
    /// an entry that is gone or takes no more.
    fn repeated(&mut self, log: &EventLog, all: bool) -> Vec<PoolEvent> {
        let now_ms = log.now_ms();
        let mut due = Vec::new();
        self.given.retain(|number, given| {
            let Some(event) = log.get(*number) else { return false };
            let may_repeat = event.may_repeat(now_ms);
            let has_paused = now_ms.saturating_sub(event.last_unix_ms) >= PAUSE_MS;
            if event.count > *given && (all || has_paused || !may_repeat) {
                *given = event.count;
                due.push(event);
            }
            may_repeat
        });
        due
    }
}

impl PoolEvent {
    /// Whether its entry still takes repetitions.
    fn may_repeat(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.unix_ms) < REPEAT_MS
    }
}
