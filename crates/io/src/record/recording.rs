//! A recording, and the images that a crash could leave.
//!
//! Assumptions about a medium: a write certainly survives once a flush that was submitted after the
//! write succeeded has itself succeeded. Until then each of its physical sectors is old or new, and
//! one may be torn: sectors of it that the write does not cover are damaged too, whenever they were
//! written. So:
//!
//! - a failed write may have happened in part, and no flush changes that;
//! - a write that was torn when it failed damages nothing that was written to its neighbours later;
//! - a discard may or may not have zeroed its sectors, at any time, flushed or not;
//! - a refused request never happened.
//!
//! Writes to one sector take effect in the order of submission. This loses no possible image: in
//! any order one of the surviving writes is last, and it is also last when only it survives.

use std::collections::BTreeSet;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;

use super::image::Image;

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was submitted.
    Write {
        /// The first byte.
        offset: u64,
        /// The content.
        bytes: Arc<Vec<u8>>,
    },
    /// A discard was submitted.
    Discard {
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A flush was submitted.
    Flush,
    /// A request completed.
    Ended {
        /// The number of its submission's event.
        begun: usize,
        /// The outcome.
        outcome: Outcome,
    },
}

impl Event {
    /// Returns the bytes of content that it keeps.
    pub(super) fn content_bytes(&self) -> u64 {
        match self {
            Self::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }

    fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Write { offset, bytes } => Some((*offset, bytes.len() as u64)),
            Self::Discard { offset, len } => Some((*offset, *len)),
            Self::Flush | Self::Ended { .. } => None,
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// The device failed. The request may have happened in part.
    Failed,
    /// It was not started: cancelled, or the device was closed.
    Refused,
}

/// All writes, discards and flushes of a device during some time.
#[derive(Clone, Debug)]
pub struct Recording {
    base: Image,
    physical_bytes: u32,
    events: Vec<Event>,
    complete: bool,
}

impl Recording {
    pub(super) fn new(
        base: Image,
        physical_bytes: u32,
        events: Vec<Event>,
        complete: bool,
    ) -> Self {
        Self { base, physical_bytes, events, complete }
    }

    /// Returns the events in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of events. A crash can be placed after each: at `0..=len()`.
    #[allow(clippy::len_without_is_empty, reason = "a recording without events has a crash point")]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether the recording is complete. If not, the log reached its limit.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the crash after the first `position` events.
    ///
    /// # Panics
    /// If there are fewer events.
    pub fn at(&self, position: usize) -> CrashPoint<'_> {
        let events = &self.events[..position];
        let mut ended: Vec<Option<(usize, Outcome)>> = vec![None; position];
        for (at, event) in events.iter().enumerate() {
            if let Event::Ended { begun, outcome } = event {
                ended[*begun] = Some((at, *outcome));
            }
        }
        let flushed = |at: &usize| {
            matches!(events[*at], Event::Flush) && matches!(ended[*at], Some((_, Outcome::Done)))
        };
        // Writes that succeeded before this flush was submitted survive.
        let barrier = (0..position).rev().find(flushed).unwrap_or(0);
        let fate = |(at, event): (usize, &Event)| {
            let certain = match (event, ended[at]) {
                (_, Some((_, Outcome::Refused))) | (Event::Flush | Event::Ended { .. }, _) => {
                    return None;
                }
                (Event::Write { .. }, Some((ended, Outcome::Done))) => ended < barrier,
                (Event::Write { .. } | Event::Discard { .. }, _) => false,
            };
            let failed = matches!(ended[at], Some((_, Outcome::Failed)));
            Some(Change { at, certain, failed })
        };
        let changes = events.iter().enumerate().filter_map(fate).collect();
        CrashPoint { recording: self, changes }
    }

    /// Returns the image in which all of the first `position` events took effect.
    ///
    /// # Panics
    /// If there are fewer events.
    pub fn prefix(&self, position: usize) -> Image {
        self.at(position).at_most()
    }
}

/// A write or discard that a crash may lose, whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// The number of its submission's event.
    pub event: usize,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// It is a discard. If it survives, the bytes read as zero.
    pub discard: bool,
}

/// The surviving part of an unflushed write or discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing.
    None,
    /// All of it.
    All,
    /// This many bytes from the start. A sector cut by this is torn: it begins with new bytes, and
    /// continues with bytes that are neither new nor old. All other sectors of a physical sector
    /// cut by this are damaged, also those outside of the write.
    Prefix(u64),
    /// The sectors that are `true`. Sectors missing in the list do not survive.
    Sectors(Vec<bool>),
}

impl Survives {
    /// Draws one of the possibilities for `write`, with sectors and physical sectors of so many
    /// bytes.
    fn sample(
        write: &Unflushed,
        (sector_bytes, physical_bytes): (u32, u32),
        rng: &mut SmallRng,
    ) -> Self {
        match rng.below(4) {
            0 => Self::None,
            1 => Self::All,
            2 => Self::Prefix(rng.below(write.len)),
            _ => {
                let (sector, physical) = (u64::from(sector_bytes), u64::from(physical_bytes));
                let mut survives = (u64::MAX, false);
                let each = (0..write.len / sector).map(|index| {
                    let unit = (write.offset + index * sector) / physical;
                    if survives.0 != unit {
                        survives = (unit, rng.below(2) == 0);
                    }
                    survives.1
                });
                Self::Sectors(each.collect())
            }
        }
    }
}

/// A crash at some position of a recording.
#[derive(Clone, Debug)]
pub struct CrashPoint<'a> {
    recording: &'a Recording,
    changes: Vec<Change>,
}

/// A write or discard of a recording.
#[derive(Clone, Copy, Debug)]
struct Change {
    // Number of the event.
    at: usize,
    // Whether it certainly survives.
    certain: bool,
    // Whether it had failed.
    failed: bool,
}

impl CrashPoint<'_> {
    /// Iterates over the writes and discards that may be lost, in the order of submission.
    pub fn unflushed(&self) -> impl Iterator<Item = Unflushed> {
        let unflushed = self.changes.iter().filter(|change| !change.certain);
        unflushed.map(|change| self.describe(change.at))
    }

    /// Returns the image with only what certainly survives.
    pub fn at_least(&self) -> Image {
        self.image(|_| Survives::None)
    }

    /// Returns the image with everything that was submitted.
    pub fn at_most(&self) -> Image {
        self.image(|_| Survives::All)
    }

    /// Returns one of the possible images, drawn by `rng`.
    pub fn sampled(&self, rng: &mut SmallRng) -> Image {
        let bytes = (self.recording.base.sector_bytes(), self.recording.physical_bytes);
        self.image(|write| Survives::sample(write, bytes, rng))
    }

    /// Returns the image in which `choose` decides what survives of each unflushed write. It is
    /// called in the order of submission.
    pub fn image(&self, mut choose: impl FnMut(&Unflushed) -> Survives) -> Image {
        let mut image = self.recording.base.clone();
        let mut neighbours = BTreeSet::new();
        for change in &self.changes {
            let survives = match change.certain {
                true => Survives::All,
                false => choose(&self.describe(change.at)),
            };
            let event = &self.recording.events[change.at];
            apply(&mut image, event, &survives);
            let damaged = self.torn_neighbours(event, &survives);
            match change.failed {
                true => damaged.for_each(|number| damage(&mut image, number)),
                // It was torn by the crash.
                false => neighbours.extend(damaged),
            }
        }
        neighbours.into_iter().for_each(|number| damage(&mut image, number));
        image
    }

    /// Returns the numbers of the sectors that share a physical sector with the place where a write
    /// was cut, except the sectors that it has written and the one that is cut.
    fn torn_neighbours(
        &self,
        change: &Event,
        survives: &Survives,
    ) -> impl Iterator<Item = u64> + use<> {
        let sector = u64::from(self.recording.base.sector_bytes());
        let physical = u64::from(self.recording.physical_bytes);
        let torn = match (change, survives) {
            (Event::Write { offset, bytes }, Survives::Prefix(prefix))
                if *prefix > 0 && *prefix < bytes.len() as u64 =>
            {
                let cut = offset + prefix;
                (cut % physical > 0).then(|| (*offset, cut, cut / physical * physical))
            }
            _ => None,
        };
        let end = self.recording.base.size_bytes();
        torn.into_iter().flat_map(move |(offset, cut, start)| {
            let numbers = start / sector..(start + physical).min(end) / sector;
            let written = offset / sector..cut.div_ceil(sector);
            numbers.filter(move |number| !written.contains(number))
        })
    }

    fn describe(&self, event: usize) -> Unflushed {
        let change = &self.recording.events[event];
        let (offset, len) = change.range().expect("changes have a range");
        Unflushed { event, offset, len, discard: matches!(change, Event::Discard { .. }) }
    }
}

fn apply(image: &mut Image, change: &Event, survives: &Survives) {
    let sector_bytes = u64::from(image.sector_bytes());
    let (offset, len) = change.range().expect("changes have a range");
    for index in 0..len / sector_bytes {
        let (number, start) = (offset / sector_bytes + index, index * sector_bytes);
        let new_bytes = match survives {
            Survives::None => 0,
            Survives::All => sector_bytes,
            Survives::Prefix(bytes) => bytes.saturating_sub(start).min(sector_bytes),
            Survives::Sectors(there) => match there.get(index as usize) {
                Some(true) => sector_bytes,
                _ => 0,
            },
        };
        match change {
            _ if new_bytes == 0 => {}
            Event::Write { bytes, .. } if new_bytes == sector_bytes => {
                image.set(number, Arc::clone(bytes), start as usize);
            }
            Event::Write { bytes, .. } => {
                let whole = &bytes[start as usize..(start + sector_bytes) as usize];
                let old = image.sector(number);
                image.set(number, Arc::new(torn(whole, &old, new_bytes as usize)), 0);
            }
            // A discard of part of a sector has no effect.
            Event::Discard { .. } if new_bytes == sector_bytes => image.clear(number),
            _ => {}
        }
    }
}

/// Changes every byte of a sector.
fn damage(image: &mut Image, number: u64) {
    let bytes = image.sector(number).into_iter().map(|byte| !byte);
    image.set(number, Arc::new(bytes.collect()), 0);
}

/// Returns a torn sector: its first `new_bytes` bytes are those of `new`, and every other byte
/// differs from both `new` and `old`.
fn torn(new: &[u8], old: &[u8], new_bytes: usize) -> Vec<u8> {
    let mut bytes = new.to_vec();
    for (byte, old) in bytes.iter_mut().zip(old).skip(new_bytes) {
        let other = !*byte;
        *byte = if other == *old { other ^ 1 } else { other };
    }
    bytes
}
