//! Sends the events of pools to a client, and goes on with new ones if it follows them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use forebay_pool::{Followed, PoolEvent};

use super::Daemon;
use crate::control::messages::EventInfo;
use crate::error::Result;

/// Time after which a client that follows is looked for, if nothing happens.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// Sends an event to the client. `None` only asks whether it is there. `Break` if it wants no more.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Option<EventInfo>) -> Result<ControlFlow<()>>;

/// Sends what is remembered. With `follow` goes on until the client ends it, or the last pool is
/// exported.
///
/// # Errors
/// If the client is gone.
pub(crate) fn send(daemon: &Arc<Daemon>, follow: bool, sink: Sink<'_>) -> Result<()> {
    let (log, mut followed) = (&daemon.event_log, Followed::new());
    loop {
        // Before the look at the events: the export of the last pool is one of them.
        let is_over = !follow || daemon.has_ended_pools();
        let mut due = if is_over { followed.rest(log) } else { Vec::new() };
        due.extend(followed.next(log, if is_over { Duration::ZERO } else { LOOK_PERIOD }));
        for event in due {
            if sink(Some(info(&event)))?.is_break() {
                return Ok(());
            }
        }
        if is_over || sink(None)?.is_break() {
            return Ok(());
        }
    }
}

fn info(event: &PoolEvent) -> EventInfo {
    EventInfo {
        number: event.number,
        unix_ms: event.unix_ms,
        last_unix_ms: event.last_unix_ms,
        pool: event.pool.to_string(),
        guid: event.pool_guid,
        kind: event.kind.name().to_owned(),
        device: event.device.as_deref().map(str::to_owned),
        detail: event.detail.clone(),
        count: event.count,
        text: event.to_string(),
    }
}
