//! The images that a crash may leave.

use std::collections::HashSet;

use forebay_base::rng::SmallRng;
use forebay_io::record::{CrashPoint, Event, Image, Recording, Survives, Unflushed};

/// Bounds of the number of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Cuts before each flush: so many writes survive, and the later ones do not.
    pub(super) cuts: usize,
    /// Images before each flush in which writes are reordered, torn, lost or kept alone.
    pub(super) samples: usize,
}

/// A crash: a device position, and what survives of the unflushed writes.
pub(super) struct Crash {
    pub(super) position: usize,
    survivors: Vec<Survives>,
}

impl Crash {
    pub(super) fn image(&self, recording: &Recording) -> Image {
        let mut survivors = self.survivors.iter().cloned();
        recording.at(self.position).image(|_| survivors.next().expect("one for each write"))
    }
}

impl std::fmt::Display for Crash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "position {}, of the unflushed writes survive {:?}",
            self.position, self.survivors
        )
    }
}

/// Adds different crashes from `from` to `to`: at both ends, and before each flush. Before a flush
/// the most writes are unflushed, so crashes at earlier writes are cuts of it. Returns the number
/// of positions.
pub(super) fn crashes(
    recording: &Recording,
    (from, to): (usize, usize),
    bounds: Bounds,
    rng: &mut SmallRng,
    (known, out): (&mut HashSet<Vec<(usize, String)>>, &mut Vec<Crash>),
) -> usize {
    let events = &recording.events()[..to];
    let flushes = (from..to).filter(|at| matches!(events[*at], Event::Flush));
    let mut positions: Vec<usize> = flushes.collect();
    positions.extend([from, to]);
    positions.sort_unstable();
    positions.dedup();
    for &position in &positions {
        let point = recording.at(position);
        for survivors in choices(&point, bounds, rng) {
            if known.insert(identity(&events[..position], &point, &survivors)) {
                out.push(Crash { position, survivors });
            }
        }
    }
    positions.len()
}

/// Everything that is on the medium, so that images which are the same are found.
fn identity(
    events: &[Event],
    point: &CrashPoint<'_>,
    survivors: &[Survives],
) -> Vec<(usize, String)> {
    let mut unflushed = point.unflushed().zip(survivors).peekable();
    let mut there = Vec::new();
    for (at, _) in events.iter().enumerate().filter(|(_, event)| is_change(event)) {
        match unflushed.next_if(|(write, _)| write.event == at) {
            Some((_, Survives::None)) => {}
            Some((_, survives)) => there.push((at, format!("{survives:?}"))),
            None => there.push((at, format!("{:?}", Survives::All))),
        }
    }
    there
}

fn is_change(event: &Event) -> bool {
    matches!(event, Event::Write { .. } | Event::Discard { .. })
}

/// Choices of what survives.
fn choices(point: &CrashPoint<'_>, bounds: Bounds, rng: &mut SmallRng) -> Vec<Vec<Survives>> {
    let writes: Vec<Unflushed> = point.unflushed().collect();
    let count = writes.len();
    let cut = |kept: usize| {
        (0..count).map(|at| if at < kept { Survives::All } else { Survives::None }).collect()
    };
    let mut choices: Vec<Vec<Survives>> = match count < bounds.cuts {
        true => (0..=count).map(cut).collect(),
        false => {
            let last = bounds.cuts.max(2) - 1;
            (0..=last).map(|at| cut(count * at / last)).collect()
        }
    };
    if count == 0 {
        return choices;
    }
    for _ in 0..bounds.samples {
        let one = rng.below(count as u64) as usize;
        let (kind, reorder) = (rng.below(4), rng.next_u64());
        let torn = Survives::Prefix(rng.below(writes[one].len));
        let survives = |at: usize| match kind {
            0 if reorder >> (at % 64) & 1 == 0 => Survives::None,
            1 if at == one => torn.clone(),
            2 if at == one => Survives::None,
            3 if at != one => Survives::None,
            _ => Survives::All,
        };
        choices.push((0..count).map(survives).collect());
    }
    choices
}
