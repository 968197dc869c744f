//! Crash points against a reference model that keeps the possible contents of each sector.

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use proptest::prelude::*;

use super::{Event, Image, Outcome, Recording, Survives};

const SECTOR: u64 = 512;
const SECTORS: u64 = 6;

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        sectors: u64,
    },
    Discard {
        first: u64,
        sectors: u64,
    },
    Flush,
    /// Completes one of the running requests, selected by this number.
    End {
        which: usize,
        outcome: Outcome,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SECTORS).prop_flat_map(|first| (Just(first), 1..=SECTORS - first));
    let outcome = prop_oneof![
        6 => Just(Outcome::Done), 1 => Just(Outcome::Failed), 1 => Just(Outcome::Refused)
    ];
    prop_oneof![
        4 => range.clone().prop_map(|(first, sectors)| Step::Write { first, sectors }),
        1 => range.prop_map(|(first, sectors)| Step::Discard { first, sectors }),
        2 => Just(Step::Flush),
        6 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Step::End { which, outcome }),
    ]
}

/// The events of `steps`. Write number `n` fills its sectors with `n`.
fn events(steps: &[Step]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut running = Vec::new();
    let mut fill = 0;
    for step in steps {
        let event = match *step {
            Step::Write { first, sectors } => {
                fill += 1;
                let bytes = Arc::new(vec![fill; (sectors * SECTOR) as usize]);
                Event::Write { offset: first * SECTOR, bytes }
            }
            Step::Discard { first, sectors } => {
                Event::Discard { offset: first * SECTOR, len: sectors * SECTOR }
            }
            Step::Flush => Event::Flush,
            Step::End { .. } if running.is_empty() => continue,
            Step::End { which, outcome } => {
                let begun = running.swap_remove(which % running.len());
                events.push(Event::Ended { begun, outcome });
                continue;
            }
        };
        running.push(events.len());
        events.push(event);
    }
    events
}

fn recording(events: Vec<Event>) -> Recording {
    let image = Image::zero(SECTORS * SECTOR, SECTOR as u32);
    Recording::new(image, SECTOR as u32, events, true)
}

/// The fills that `sector` may have after `events`: the oldest, the newest (if all events took
/// effect), and all.
fn possible(events: &[Event], sector: u64) -> (u8, u8, Vec<u8>) {
    let covers = |offset: u64, len: u64| (offset..offset + len).contains(&(sector * SECTOR));
    let outcome = |of: usize, before: usize| {
        events[..before].iter().find_map(|event| match event {
            Event::Ended { begun, outcome } if *begun == of => Some(*outcome),
            _ => None,
        })
    };
    let (mut least, mut most, mut all) = (0, 0, vec![0]);
    for (at, event) in events.iter().enumerate() {
        if outcome(at, events.len()) == Some(Outcome::Refused) {
            continue;
        }
        match event {
            Event::Write { offset, bytes } if covers(*offset, bytes.len() as u64) => {
                let durable = events.iter().enumerate().any(|(flush, event)| {
                    matches!(event, Event::Flush)
                        && outcome(at, flush) == Some(Outcome::Done)
                        && outcome(flush, events.len()) == Some(Outcome::Done)
                });
                if durable {
                    (least, all) = (bytes[0], Vec::new());
                }
                most = bytes[0];
                all.push(bytes[0]);
            }
            Event::Discard { offset, len } if covers(*offset, *len) => {
                most = 0;
                all.push(0);
            }
            _ => {}
        }
    }
    (least, most, all)
}

fn sector_of(image: &Image, sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR as usize];
    image.read(sector * SECTOR, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn images_are_possible_and_the_bounds_are_exact(
        steps in prop::collection::vec(step(), 0..40),
        seed in any::<u64>(),
    ) {
        let events = events(&steps);
        let recording = recording(events.clone());
        let mut rng = SmallRng::from_seed(seed);
        for position in 0..=recording.len() {
            let crash = recording.at(position);
            let sampled = crash.sampled(&mut rng);
            let (at_least, at_most) = (crash.at_least(), recording.prefix(position));
            for sector in 0..SECTORS {
                let (least, most, all) = possible(&events[..position], sector);
                let whole = |fill| vec![fill; SECTOR as usize];
                prop_assert_eq!(sector_of(&at_least, sector), whole(least));
                prop_assert_eq!(sector_of(&at_most, sector), whole(most));
                let found = sector_of(&sampled, sector);
                let torn = found.iter().any(|&byte| byte != found[0]) || !all.contains(&found[0]);
                prop_assert!(!torn || all.len() > 1, "a durable sector is torn: {found:?}");
            }
        }
    }

    #[test]
    fn every_possible_fill_of_a_sector_can_be_chosen(
        steps in prop::collection::vec(step(), 0..24),
        sector in 0..SECTORS,
    ) {
        let events = events(&steps);
        let recording = recording(events.clone());
        let (_, _, all) = possible(&events, sector);
        for fill in all {
            // Only the event with this fill survives, and nothing after it.
            let image = recording.at(recording.len()).image(|change| match &events[change.event] {
                Event::Write { bytes, .. } if bytes[0] == fill => Survives::All,
                Event::Discard { .. } if fill == 0 => Survives::All,
                _ => Survives::None,
            });
            prop_assert_eq!(sector_of(&image, sector)[0], fill);
        }
    }
}

#[test]
fn a_torn_sector_is_neither_the_old_nor_the_new_one() {
    let bytes = Arc::new(vec![9; 3 * SECTOR as usize]);
    let recording = recording(vec![Event::Write { offset: 0, bytes }]);
    let image = recording.at(1).image(|_| Survives::Prefix(SECTOR + 100));
    assert_eq!(sector_of(&image, 0), vec![9; SECTOR as usize]);
    let torn = sector_of(&image, 1);
    assert!(torn[..100].iter().all(|&byte| byte == 9));
    assert!(torn[100..].iter().all(|&byte| byte != 9 && byte != 0));
    assert_eq!(sector_of(&image, 2), vec![0; SECTOR as usize]);
    let image = recording.at(1).image(|_| Survives::Sectors(vec![false, true]));
    assert_eq!(image.sectors().map(|(offset, _)| offset).collect::<Vec<_>>(), [SECTOR]);
}

/// A recording on a device with two physical sectors, each of 3 sectors.
fn of_large_physical_sectors(events: Vec<Event>) -> Recording {
    let image = Image::zero(SECTORS * SECTOR, SECTOR as u32);
    Recording::new(image, 3 * SECTOR as u32, events, true)
}

fn write_of(first: u64, sectors: u64, fill: u8) -> Event {
    let bytes = Arc::new(vec![fill; (sectors * SECTOR) as usize]);
    Event::Write { offset: first * SECTOR, bytes }
}

fn done(begun: usize) -> Event {
    Event::Ended { begun, outcome: Outcome::Done }
}

#[test]
fn a_torn_write_damages_its_physical_sector() {
    let flushed = |fill| [write_of(0, 6, fill), done(0), Event::Flush, done(2)];
    let mut events = flushed(1).to_vec();
    events.push(write_of(1, 3, 2));
    let recording = of_large_physical_sectors(events);
    let crash = recording.at(recording.len());
    let fills = |prefix| -> Vec<u8> {
        let image = crash.image(|_| Survives::Prefix(prefix));
        (0..SECTORS).map(|sector| sector_of(&image, sector)[511]).collect()
    };
    // Neither a whole write, nor one that is cut between physical sectors, damages anything.
    assert_eq!(fills(0), [1; 6]);
    assert_eq!(fills(2 * SECTOR), [1, 2, 2, 1, 1, 1]);
    assert_eq!(fills(3 * SECTOR), [1, 2, 2, 2, 1, 1]);
    let torn = !1;
    assert_eq!(fills(SECTOR), [torn, 2, torn, 1, 1, 1], "before and after the cut");
    let cut = fills(2 * SECTOR + 1);
    assert_eq!((&cut[..3], &cut[4..]), (&[1, 2, 2][..], &[torn, torn][..]));
    assert!(![1, 2].contains(&cut[3]), "{cut:?}");
    // A drawn image does too, sometimes, and leaves the other physical sector alone.
    let mut rng = SmallRng::from_seed(7);
    let mut damaged = 0;
    for _ in 0..64 {
        let image = crash.sampled(&mut rng);
        let first = sector_of(&image, 0);
        damaged += u32::from(first == [torn; 512]);
        assert!([[1; 512], [torn; 512]].iter().any(|fill| *fill == first[..]));
        let rest = [1, 2].map(|sector| sector_of(&image, sector)[0]);
        assert!(rest.contains(&torn) || rest == [1, 1] || rest == [2, 2], "half: {rest:?}");
    }
    assert!(damaged > 0);
}

#[test]
fn a_write_that_failed_long_ago_damages_no_later_neighbour() {
    let outcome = |begun, outcome| Event::Ended { begun, outcome };
    let failed = [write_of(0, 2, 2), outcome(0, Outcome::Failed)];
    let later = [write_of(2, 1, 3), done(2), Event::Flush, done(4)];
    let in_flight = [write_of(0, 2, 4)];
    let events: Vec<Event> = [&failed[..], &later, &in_flight].concat();
    let recording = of_large_physical_sectors(events);
    let at = |position: usize| {
        let image = recording.at(position).image(|_| Survives::Prefix(SECTOR));
        sector_of(&image, 2)[0]
    };
    assert_eq!(at(2), !0, "the failed write was torn");
    assert_eq!(at(6), 3, "and its neighbour written afterwards");
    assert_eq!(at(7), !3, "which the write in flight tears");
}

#[test]
fn images_compare_by_content() {
    let mut image = Image::zero(SECTORS * SECTOR, SECTOR as u32);
    image.set(2, Arc::new(vec![0; SECTOR as usize]), 0);
    assert_eq!(image, Image::zero(SECTORS * SECTOR, SECTOR as u32));
    image.set(2, Arc::new(vec![1; SECTOR as usize]), 0);
    assert_ne!(image, Image::zero(SECTORS * SECTOR, SECTOR as u32));
    let mut across = [0; 4];
    image.read(2 * SECTOR - 2, &mut across);
    assert_eq!(across, [0, 0, 1, 1]);
}
