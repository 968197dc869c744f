//! A recording, and what a crash could have made of it.
//!
//! What is assumed of a medium: a write is certainly there once a flush that was submitted after
//! the write had ended well has itself ended well. Until then each of its sectors is the old one
//! or the new one, and one sector of it may be torn. So
//!
//! - a write that failed may be there in part, and no flush changes that;
//! - a discard may have made its sectors zero, or not, at any time, flushed or not;
//! - a request that was refused never happened.
//!
//! Writes to the same sector take effect in the order in which they were submitted. That loses no
//! possible image: in any order one of those that survive is last, and it is also the last when only
//! it survives.

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
        /// How many bytes.
        len: u64,
    },
    /// A flush was submitted.
    Flush,
    /// A request ended.
    Ended {
        /// The number of the event of its submission.
        begun: usize,
        /// How.
        outcome: Outcome,
    },
}

impl Event {
    /// Bytes of content that it keeps.
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

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Done,
    /// The device failed: it may have happened, in part.
    Failed,
    /// It was not begun: cancelled, or the device was closed.
    Refused,
}

/// Every write, discard and flush of a device for a while.
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

    /// The events, in the order in which they happened.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Number of events. A crash can be placed after each: at `0..=len()`.
    #[allow(clippy::len_without_is_empty, reason = "a recording without events has a crash point")]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it goes up to when it was taken. If not, its bound was reached.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// A crash after the first `position` events.
    ///
    /// # Panics
    /// If there are fewer.
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
        // What ended well before this flush began is there.
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

    /// The image in which all that was submitted among the first `position` events took effect.
    ///
    /// # Panics
    /// If there are fewer events.
    pub fn prefix(&self, position: usize) -> Image {
        self.at(position).at_most()
    }
}

/// A write or discard that a crash may have lost, in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// The number of the event of its submission.
    pub event: usize,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether it is a discard: surviving then means that it reads as zero.
    pub discard: bool,
}

/// What is left of an unflushed write or discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing.
    None,
    /// All of it.
    All,
    /// The first so many bytes. A sector that this cuts is torn: it begins as the new one and goes on
    /// as neither the new one nor the old one.
    Prefix(u64),
    /// Those of its sectors that are `true`; what is missing in the list is not there.
    Sectors(Vec<bool>),
}

impl Survives {
    /// Any of the possibilities for `write`, with sectors of `sector_bytes`.
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

/// A crash at some place of a recording.
#[derive(Clone, Debug)]
pub struct CrashPoint<'a> {
    recording: &'a Recording,
    // Number of the event, and whether it is certainly there.
    changes: Vec<(usize, bool)>,
}

impl CrashPoint<'_> {
    /// What may be there or not, in the order in which it was submitted.
    pub fn unflushed(&self) -> impl Iterator<Item = Unflushed> {
        self.changes.iter().filter(|(_, certain)| !certain).map(|&(at, _)| self.describe(at))
    }

    /// The image with what is certainly there and nothing else.
    pub fn at_least(&self) -> Image {
        self.image(|_| Survives::None)
    }

    /// The image with all that was submitted.
    pub fn at_most(&self) -> Image {
        self.image(|_| Survives::All)
    }

    /// One of the possible images, as the numbers of `rng` fall.
    pub fn sampled(&self, rng: &mut SmallRng) -> Image {
        let sector_bytes = self.recording.base.sector_bytes();
        self.image(|write| Survives::sample(write, sector_bytes, rng))
    }

    /// The image in which of each unflushed write there is what `choose` says. Asks in the order
    /// of submission.
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
            // Half a discard of a sector is none.
            Event::Discard { .. } if new_bytes == sector_bytes => image.clear(number),
            _ => {}
        }
    }
}

/// A sector of which the first `new_bytes` bytes are those of `new`, and each other one is neither
/// that of `new` nor that of `old`.
fn torn(new: &[u8], old: &[u8], new_bytes: usize) -> Vec<u8> {
    let mut bytes = new.to_vec();
    for (byte, old) in bytes.iter_mut().zip(old).skip(new_bytes) {
        let other = !*byte;
        *byte = if other == *old { other ^ 1 } else { other };
    }
    bytes
}
