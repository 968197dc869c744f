//! A recording, and the images that a crash could leave.
//!
//! Assumptions about a medium: a write certainly survives once a flush that was submitted after the
//! write succeeded has itself succeeded. Until then each of its sectors is old or new, and one
//! sector may be torn. So:
//!
//! - a failed write may have happened in part, and no flush changes that;
//! - a discard may or may not have zeroed its sectors, at any time, flushed or not;
//! - a refused request never happened.
//!
//! Writes to one sector take effect in the order of submission. This loses no possible image: in
//! any order one of the surviving writes is last, and it is also last when only it survives.

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
    events: Vec<Event>,
    complete: bool,
}

impl Recording {
    pub(super) fn new(base: Image, events: Vec<Event>, complete: bool) -> Self {
        Self { base, events, complete }
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
            Some((at, certain))
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
    /// continues with bytes that are neither new nor old.
    Prefix(u64),
    /// The sectors that are `true`. Sectors missing in the list do not survive.
    Sectors(Vec<bool>),
}

impl Survives {
    /// Draws one of the possibilities for `write`, with sectors of `sector_bytes`.
    fn sample(write: &Unflushed, sector_bytes: u32, rng: &mut SmallRng) -> Self {
        match rng.below(4) {
            0 => Self::None,
            1 => Self::All,
            2 => Self::Prefix(rng.below(write.len)),
            _ => {
                let sectors = write.len / u64::from(sector_bytes);
                Self::Sectors((0..sectors).map(|_| rng.below(2) == 0).collect())
            }
        }
    }
}

/// A crash at some position of a recording.
#[derive(Clone, Debug)]
pub struct CrashPoint<'a> {
    recording: &'a Recording,
    // Number of the event, and whether it certainly survives.
    changes: Vec<(usize, bool)>,
}

impl CrashPoint<'_> {
    /// Iterates over the writes and discards that may be lost, in the order of submission.
    pub fn unflushed(&self) -> impl Iterator<Item = Unflushed> {
        self.changes.iter().filter(|(_, certain)| !certain).map(|&(at, _)| self.describe(at))
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
        let sector_bytes = self.recording.base.sector_bytes();
        self.image(|write| Survives::sample(write, sector_bytes, rng))
    }

    /// Returns the image in which `choose` decides what survives of each unflushed write. It is
    /// called in the order of submission.
    pub fn image(&self, mut choose: impl FnMut(&Unflushed) -> Survives) -> Image {
        let mut image = self.recording.base.clone();
        for &(at, certain) in &self.changes {
            let survives = if certain { Survives::All } else { choose(&self.describe(at)) };
            apply(&mut image, &self.recording.events[at], &survives);
        }
        image
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
