//! `forebay events`: lists what has happened to pools, and follows it.
//!
//! Events are in the memory of the daemons. A thread per daemon receives them, because each sends
//! new ones when it has them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};

use forebay_base::sync::thread::spawn_named;
use forebay_pool::utc;

use crate::args::EventsArgs;
use crate::control::Request;
use crate::control::client::{self, Part, Process, Target};
use crate::control::messages::EventInfo;
use crate::error::{Failure, Result};
use crate::{output, pools};

pub(crate) fn run(args: &EventsArgs) -> Result<()> {
    let stop = output::interruptible()?;
    let (processes, wanted) = wanted(args.pool.as_deref())?;
    if args.follow {
        return follow(args, &processes, &wanted, &stop);
    }
    let mut events = Vec::new();
    for process in &processes {
        receive(process, false, &stop, &mut |event| events.push(event))?;
    }
    events.retain(|event| wanted.includes(event));
    // Numbers order the events of one daemon, also if its clock was set back.
    events.sort_by_key(|event| event.unix_ms);
    events.iter().try_for_each(|event| show(args, event))
}

/// The events to show.
enum Wanted {
    All,
    /// Those of the pool with this guid.
    Pool(u64),
    /// Those of pools with this name, which may be exported.
    Name(String),
}

impl Wanted {
    fn includes(&self, event: &EventInfo) -> bool {
        match self {
            Self::All => true,
            Self::Pool(guid) => event.guid == *guid,
            Self::Name(name) => event.pool == *name,
        }
    }
}

/// The daemons that know the events of a pool, and which events these are.
fn wanted(pool: Option<&str>) -> Result<(Vec<Process>, Wanted)> {
    let Some(spec) = pool else { return Ok((client::processes_of(None)?, Wanted::All)) };
    match client::find(spec) {
        Ok(Target::InUse { process, pool }) => Ok((vec![*process], Wanted::Pool(pool.guid))),
        Ok(Target::Paths(_)) if pools::paths_of(spec).is_some() => Err(Failure::new(format!(
            "{spec}: the pool is not in use, and events are kept in memory; the log of its daemon has older ones"
        ))),
        Err(error) if pools::paths_of(spec).is_some() => Err(error),
        // A daemon knows the events of pools that it has exported.
        _ => Ok((client::processes_of(None)?, Wanted::Name(spec.to_owned()))),
    }
}

/// Shows events until the daemons have ended, or the user stops it.
fn follow(
    args: &EventsArgs,
    processes: &[Process],
    wanted: &Wanted,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let (sender, events) = channel();
    for process in processes {
        let (process, stop, sender) = (process.clone(), Arc::clone(stop), sender.clone());
        let receive = move || receive_all(&process, &stop, &sender);
        spawn_named("forebay-events", receive)
            .map_err(|error| Failure::no_thread("cannot print events", &error))?;
    }
    drop(sender);
    for event in events {
        let event = event?;
        if wanted.includes(&event) {
            show(args, &event)?;
        }
    }
    Ok(())
}

fn receive_all(process: &Process, stop: &Arc<AtomicBool>, to: &Sender<Result<EventInfo>>) {
    // Nobody receives any more only if the command has ended.
    let ended = receive(process, true, stop, &mut |event| drop(to.send(Ok(event))));
    if let Err(error) = ended {
        let _ = to.send(Err(error));
    }
}

fn receive(
    process: &Process,
    follow: bool,
    stop: &Arc<AtomicBool>,
    take: &mut dyn FnMut(EventInfo),
) -> Result<()> {
    let mut receive = |part: Part<'_>| {
        if let Part::Event(event) = part {
            take(event);
        }
        Ok(())
    };
    process.receive_until(&Request::Events { follow }, &mut receive, stop)
}

fn show(args: &EventsArgs, event: &EventInfo) -> Result<()> {
    if args.json {
        let text = serde_json::to_string(event);
        output::line(&text.map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?);
        return Ok(());
    }
    let last = match event.count {
        1 => String::new(),
        _ => format!(", last at {}", utc(event.last_unix_ms)),
    };
    output::line(&format!("{}  {}  {}{last}", utc(event.unix_ms), event.pool, event.text));
    Ok(())
}
