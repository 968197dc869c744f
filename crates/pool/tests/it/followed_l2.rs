//! The L2 of a host that follows a pool.

use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::{ErrorKind, FollowedPool, L2Device, L2DeviceState, Pool};

use crate::common::{MIB, arena, cache, copy_of, import, memory};
use crate::followed::{BYTES, Followed, counter, get};

/// An import that follows with an L2, as another process does.
struct Process {
    followed: Followed,
    pool: Pool,
}

impl Process {
    /// Begins with the newest group, whose state has `mark`, and opens the L2.
    fn begin(followed: Followed, l2: &Arc<dyn Device>, mark: u64, is_ancestor: bool) -> Self {
        let pool = followed.group();
        let opened = followed.shared.open_l2(&pool, Arc::clone(l2).into(), mark, |_| is_ancestor);
        opened.expect("the L2");
        followed.shared.wait_for_l2();
        // As its thread does now and then.
        followed.shared.note_state(mark, |_| panic!("it is the same"));
        Self { followed, pool }
    }

    fn l2(&self) -> L2Device {
        self.pool.l2_devices().into_iter().next().expect("an L2")
    }

    fn hits(&self) -> u64 {
        self.l2().stats.expect("it is in use").hits
    }

    fn records(&self) -> u64 {
        self.l2().stats.expect("it is in use").records
    }

    /// Bytes that reading an object fetched from the pool's device. It has this content.
    #[track_caller]
    fn fetched(&self, name: &str, content: u8) -> u64 {
        let before = counter(&self.pool, "read_bytes");
        assert_eq!(get(&self.pool, name), content);
        counter(&self.pool, "read_bytes") - before
    }

    /// Takes up the newest group, whose state has `mark`.
    fn advance(&mut self, mark: u64) -> Pool {
        self.followed.shared.note_state(mark, |_| true);
        let group = self.followed.group();
        std::mem::replace(&mut self.pool, group)
    }

    /// Ends it, and returns the pool that is still written, to be followed anew.
    fn end(self) -> Followed {
        self.followed.shared.fill_and_close_l2(&self.pool);
        let Self { followed: Followed { device, writer, .. }, pool } = self;
        drop(pool);
        Followed::of(device, writer)
    }
}

const HALF: u64 = BYTES as u64 / 2;

#[test]
fn an_l2_serves_all_groups_and_the_next_process() {
    let l2 = memory(64 * MIB);
    let followed = Followed::new();
    followed.put("other", 9);
    let mut process = Process::begin(followed, &l2, 1, false);
    assert_eq!(process.l2().state, L2DeviceState::Active);
    assert!(process.fetched("data", 1) >= BYTES as u64);
    // What one group has read is on the L2 for the next one.
    process.followed.put("other", 10);
    let first = process.advance(2);
    assert!(process.fetched("other", 10) >= BYTES as u64);

    // The next process finds both.
    let mut process = Process::begin(process.end(), &l2, 2, true);
    assert!(process.records() > 0);
    assert!(process.fetched("data", 1) < HALF && process.fetched("other", 10) < HALF);
    assert!(process.hits() > 0, "{:?}", process.l2());
    process.followed.put("data", 2);
    let before = process.advance(3);
    assert!(process.fetched("data", 2) >= BYTES as u64);
    let _ = process.followed.cache.cache().clear();
    // The writer has freed what the group before reads.
    let read = counter(&before, "read_bytes");
    assert_eq!(get(&before, "data"), 1);
    assert!(counter(&before, "read_bytes") - read < HALF, "it was fetched again");
    assert_eq!(get(&process.pool, "data"), 2);
    drop((first, before));
    process.end().writer.export().expect("an export");
}

/// The pool is set back to a copy of before, and other content gets the same addresses in groups of
/// the same numbers.
#[test]
fn an_l2_of_a_history_that_was_given_up_is_emptied() {
    let l2 = memory(64 * MIB);
    let followed = Followed::new();
    let copy = copy_of(&followed.device);
    followed.put("data", 2);
    let process = Process::begin(followed, &l2, 1, false);
    assert!(process.fetched("data", 2) >= BYTES as u64);
    process.end().writer.export().expect("an export");

    // As after a crash of its owner.
    let again = Followed::of(Arc::clone(&copy), import(&copy, &cache(16 * MIB)));
    (3..9).for_each(|content| again.put("data", content));
    let process = Process::begin(again, &l2, 7, false);
    assert_eq!(process.records(), 0);
    assert!(process.fetched("data", 8) >= BYTES as u64);
    process.end().writer.export().expect("an export");
}

/// The owner of before goes on after that, as far as the mark tells, but its newest group is older.
#[test]
fn an_l2_with_blocks_of_later_groups_is_emptied() {
    let l2 = memory(64 * MIB);
    let followed = Followed::new();
    let copy = copy_of(&followed.device);
    (2..6).for_each(|content| followed.put("data", content));
    let process = Process::begin(followed, &l2, 1, false);
    assert!(process.fetched("data", 5) >= BYTES as u64);
    let Followed { writer, .. } = process.end();

    let process = Process::begin(Followed::of(copy, writer), &l2, 1, true);
    assert_eq!(process.records(), 0);
    assert!(process.fetched("data", 1) >= BYTES as u64);
    process.end();
}

#[test]
fn an_l2_in_use_is_given_up_if_the_pool_may_have_been_set_back() {
    let l2 = memory(64 * MIB);
    let process = Process::begin(Followed::new(), &l2, 1, false);
    assert_eq!(get(&process.pool, "data"), 1);
    process.followed.shared.note_state(2, |before| {
        assert_eq!(before, 1);
        false
    });
    let state = process.l2().state;
    let L2DeviceState::Unavailable(why) = &state else { panic!("{state:?}") };
    assert!(why.contains("set back"), "{why}");
    process.followed.put("data", 2);
    let group = process.followed.group();
    assert_eq!((get(&process.pool, "data"), get(&group, "data")), (1, 2));
    drop(group);
    // What it had is of no use for the next process either.
    let process = Process::begin(process.end(), &l2, 2, false);
    assert_eq!((process.records(), get(&process.pool, "data")), (0, 2));
    process.end();
}

/// Otherwise a later process could take blocks for those of the history before.
#[test]
fn nothing_goes_to_a_device_that_does_not_take_the_mark() {
    let below = memory(64 * MIB);
    let faults = Arc::new(FaultDevice::new(Arc::clone(&below), 3));
    let l2 = Arc::clone(&faults) as Arc<dyn Device>;
    let mut process = Process::begin(Followed::new(), &l2, 1, false);
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(0..4096));
    process.followed.put("data", 2);
    drop(process.advance(2));
    assert_eq!(get(&process.pool, "data"), 2);
    assert!(matches!(process.l2().state, L2DeviceState::Unavailable(_)), "{:?}", process.l2());
    faults.clear();
    let process = Process::begin(process.end(), &below, 3, true);
    assert!(process.fetched("data", 2) >= BYTES as u64, "it was written");
    process.end();
}

/// Opens an L2 for a follower of a new pool, and returns the error.
fn refused(l2: &Arc<dyn Device>) -> String {
    let followed = Followed::new();
    let pool = followed.group();
    let opened = followed.shared.open_l2(&pool, Arc::clone(l2).into(), 1, |_| true);
    let error = opened.expect_err("it holds something else");
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert_eq!(get(&pool, "data"), 1);
    error.to_string()
}

#[test]
fn devices_of_others_are_refused_and_those_of_other_followers_emptied() {
    // That of a pool which is written, and back.
    let of_pool = memory(64 * MIB);
    let Followed { writer, .. } = Followed::another(8);
    writer.add_l2_device(Arc::clone(&of_pool).into(), false).expect("an L2 device");
    let text = refused(&of_pool);
    assert!(text.contains(&format!("of the pool {:016x}", writer.guid())), "{text}");
    let of_follower = memory(64 * MIB);
    let process = Process::begin(Followed::new(), &of_follower, 1, false);
    assert_eq!(get(&process.pool, "data"), 1);
    process.end();
    let error = writer.add_l2_device(Arc::clone(&of_follower).into(), false);
    assert_eq!(error.expect_err("it is not its own").kind(), ErrorKind::Exists);
    writer.export().expect("an export");

    // Data of somebody.
    let data = memory(64 * MIB);
    let mut bytes = arena().alloc(4096).expect("memory");
    bytes.fill(7);
    data.run(Request::write(0, bytes)).result.expect("a write");
    let text = refused(&data);
    assert!(text.contains("other data"), "{text}");

    // The pool was destroyed, and another one created, in which addresses and groups are the same.
    let process = Process::begin(Followed::another(9), &of_follower, 1, true);
    assert_eq!((process.records(), get(&process.pool, "data")), (0, 1));
    process.end();
}

#[test]
fn a_followed_pool_has_one_l2() {
    let process = Process::begin(Followed::new(), &memory(64 * MIB), 1, false);
    let shared: FollowedPool = process.followed.shared.clone();
    let second = shared.open_l2(&process.pool, memory(64 * MIB).into(), 1, |_| true);
    assert_eq!(second.expect_err("one is enough").kind(), ErrorKind::Invalid);
    let followed = process.end();
    // Without one, these do nothing.
    shared.note_state(2, |before| before == 1);
    let pool = followed.group();
    shared.warm_up_l2(&pool);
    shared.fill_and_close_l2(&pool);
}

#[test]
fn a_warm_up_loads_what_the_process_before_has_read() {
    let l2 = memory(64 * MIB);
    let process = Process::begin(Followed::new(), &l2, 1, false);
    assert_eq!(get(&process.pool, "data"), 1);
    let process = Process::begin(process.end(), &l2, 1, true);
    // As a mount does.
    let data = process.pool.dataset("data").expect("the dataset");
    process.followed.shared.warm_up_l2(&process.pool);
    process.followed.shared.wait_for_l2();
    let hits = process.hits();
    assert!(process.fetched("data", 1) < HALF);
    assert!(process.hits() - hits < 4, "it was in memory");
    drop(data);
    process.end();
}
