//! Tests of the log of events.

use forebay_base::clock::{ManualWallClock, UnixTime};
use forebay_base::sync::thread;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

fn log() -> (Arc<ManualWallClock>, Arc<EventLog>) {
    let clock = Arc::new(ManualWallClock::new(0));
    (Arc::clone(&clock), EventLog::with_clock(clock))
}

fn failed(events: &PoolEvents, device: &str) {
    events.note(EventKind::DeviceFailed, Event::of_device(device));
}

#[test]
fn events_are_numbered_and_kept_after_their_pool() {
    let (_, log) = log();
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    let other = PoolEvents::new(Some(&log), "other", 8);
    tank.note(EventKind::Imported, Event::default());
    other.note(EventKind::Suspended, Event::because("no device answers").in_txg(9));
    drop((tank, other));
    let all = log.after(0);
    let seen: Vec<_> = all.iter().map(|one| (one.number, &*one.pool, one.kind)).collect();
    assert_eq!(seen, [(1, "tank", EventKind::Imported), (2, "other", EventKind::Suspended)]);
    assert_eq!(all[1].to_string(), "suspended pool: no device answers");
    assert_eq!(log.after(1).len(), 1);
    assert!(log.after(2).is_empty());
}

#[test]
fn repeated_events_are_one_entry_until_their_time_is_over() {
    let (clock, log) = log();
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    for _ in 0..3 {
        failed(&tank, "a");
        failed(&tank, "b");
        tank.note(EventKind::Suspended, Event::default());
    }
    let counts =
        |log: &EventLog| -> Vec<u64> { log.after(0).iter().map(|one| one.count).collect() };
    assert_eq!(counts(&log), [3, 3, 1, 1, 1], "a suspension is never merged");
    clock.advance(60 * SECOND_NS);
    failed(&tank, "a");
    assert_eq!(counts(&log), [3, 3, 1, 1, 1, 1]);
    assert_eq!(tank.counters().sum(EventCounters::EVENTS.at(EventKind::DeviceFailed as usize)), 7);
    let other = PoolEvents::new(Some(&log), "other", 8);
    failed(&other, "a");
    assert_eq!(log.after(6).len(), 1, "it is another pool's");
}

#[test]
fn a_follower_gets_a_repeated_event_again_after_a_pause() {
    let (clock, log) = log();
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    let mut followed = Followed::new();
    let mut next = || -> Vec<(u64, u64)> {
        let events = followed.next(&log, Duration::ZERO);
        events.iter().map(|one| (one.number, one.count)).collect()
    };
    failed(&tank, "a");
    assert_eq!(next(), [(1, 1)]);
    clock.advance(SECOND_NS);
    failed(&tank, "a");
    failed(&tank, "a");
    assert_eq!(next(), [], "it may go on");
    tank.note(EventKind::Suspended, Event::default());
    clock.advance(2 * SECOND_NS);
    assert_eq!(next(), [(1, 3), (2, 1)], "with its count, before newer ones");
    assert_eq!(next(), []);
    let all = log.after(0);
    assert_eq!((all[0].unix_ms, all[0].last_unix_ms), (0, 1000));
    // One that does not pause is given when its entry takes no more.
    for _ in 0..60 {
        clock.advance(SECOND_NS);
        failed(&tank, "a");
    }
    assert_eq!(next(), [(1, 59), (3, 4)]);
    failed(&tank, "a");
    assert_eq!(next(), []);
    let rest = followed.rest(&log);
    assert_eq!((rest.len(), rest[0].count), (1, 5), "the last look waits for no pause");
}

/// A clock that lets `between` run between a look at it and what is done with the time.
struct SlowClock {
    inner: ManualWallClock,
    between: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl WallClock for SlowClock {
    fn unix_time(&self) -> UnixTime {
        let now = self.inner.unix_time();
        let between = self.between.lock().take();
        between.into_iter().for_each(|run| run());
        now
    }
}

#[test]
fn no_repetition_is_lost_while_its_entry_becomes_too_old() {
    let between = Mutex::named("test-between", None);
    let clock = Arc::new(SlowClock { inner: ManualWallClock::new(0), between });
    let log = EventLog::with_clock(clock.clone());
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    failed(&tank, "a");
    let mut followed = Followed::new();
    assert_eq!(followed.next(&log, Duration::ZERO).len(), 1);
    let follower = Arc::new(Mutex::named("test-follower", None));
    let (of_clock, of_log, thread) = (clock.clone(), log.clone(), follower.clone());
    *clock.between.lock() = Some(Box::new(move || {
        of_clock.inner.advance(60 * SECOND_NS);
        let ended = Arc::new((Mutex::named("test-ended", false), Condvar::new()));
        let tell = ended.clone();
        let follow = move || {
            let events = followed.next(&of_log, Duration::ZERO);
            *tell.0.lock() = true;
            tell.1.notify_all();
            (followed, events)
        };
        *thread.lock() = thread::spawn_named("follow", follow).ok();
        // It ends now, or waits for the lock of the log.
        let mut is_over = ended.0.lock();
        while !*is_over && !ended.1.wait_timeout(&mut is_over, Duration::from_millis(100)) {}
    }));
    failed(&tank, "a");
    let thread = follower.lock().take().expect("a thread");
    let (mut followed, mut events) = thread.join().expect("it ends");
    events.extend(followed.rest(&log));
    let seen: Vec<(u64, u64)> = events.iter().map(|one| (one.number, one.count)).collect();
    assert_eq!(seen, [(1, 2)]);
}

#[test]
fn the_log_forgets_the_oldest_events() {
    let (_, log) = log();
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    for _ in 0..EVENTS_MAX + 5 {
        tank.note(EventKind::Resumed, Event::default());
    }
    let kept = log.after(0);
    assert_eq!((kept.len(), kept[0].number), (EVENTS_MAX, 6));
    assert_eq!(log.after(EVENTS_MAX as u64).len(), 5);
}

#[test]
fn a_waiting_thread_gets_the_next_event() {
    let (_, log) = log();
    let tank = PoolEvents::new(Some(&log), "tank", 7);
    let waiting = thread::spawn_named("wait", move || {
        loop {
            let new = log.wait_after(0, Duration::from_secs(1));
            if let Some(first) = new.first() {
                return first.kind;
            }
        }
    });
    tank.note(EventKind::ScrubEnded, Event::default());
    assert_eq!(waiting.expect("a thread").join().expect("it ends"), EventKind::ScrubEnded);
}

#[test]
fn kinds_have_labels_in_the_order_of_their_numbers() {
    let labels = EventCounters::ROWS[0].labels;
    let names: Vec<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(labels, names);
    assert!(EventKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
}
