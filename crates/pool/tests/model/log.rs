//! The intent log: changes race commits and the end of a txg. A logged change implies all changes
//! that happened before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_pool::model::ModelLog;

use forebay_base::model::{below, check, join, spawn};

/// Changes of a thread are replayed in order. A change that saw another one is replayed after it.
/// Changes that a commit made durable are replayed.
#[test]
fn the_log_contains_a_consistent_prefix() {
    check(600, || {
        let log = Arc::new(ModelLog::new());
        let root = log.root_for(1);
        // The newest change that was noted.
        let newest = Arc::new(AtomicU64::new(0));
        let writer = |thread: u64| {
            let (log, newest) = (log.clone(), newest.clone());
            spawn(move || {
                let mut saw = Vec::new();
                let mut promised = false;
                for n in 1..3 {
                    let before = newest.load(Ordering::SeqCst);
                    let number = 10 * thread + n;
                    log.append(2, number);
                    newest.store(number, Ordering::SeqCst);
                    saw.push((number, before));
                    log.write(2, thread);
                    promised = below(2) == 0 && log.commit(thread);
                }
                (thread, saw, promised)
            })
        };
        let ended = join([writer(1), writer(2), writer(3)]);
        let (numbers, objects) = log.replay(&root);
        let index_of = |number: u64| numbers.iter().position(|found| *found == number);
        for (thread, saw, promised) in ended {
            for (number, before) in saw {
                let Some(at) = index_of(number) else {
                    assert!(!promised, "{number} was promised");
                    continue;
                };
                let before = (before != 0).then(|| index_of(before).expect("it was seen"));
                assert!(before.is_none_or(|before| before < at), "{number} out of order");
            }
            assert!(!promised || objects.contains(&thread), "{thread}'s content was promised");
        }
    });
}

/// A thread changes more of an object than the log keeps while others commit the object: no commit
/// succeeds without the content.
#[test]
fn content_beyond_the_log_is_not_reported_durable() {
    check(600, || {
        let log = Arc::new(ModelLog::new());
        let root = log.root_for(1);
        let writer = |too_much: bool| {
            let log = log.clone();
            spawn(move || {
                log.write(2, 1);
                if too_much {
                    log.write_too_much(2, 1);
                }
                let promised = log.commit(1);
                assert!(!(too_much && promised), "more than is kept was promised");
                promised
            })
        };
        let promised = join([writer(false), writer(true)]);
        let (_, objects) = log.replay(&root);
        for promised in promised {
            assert!(!promised || objects.contains(&1), "content was promised");
        }
    });
}

/// A name that needs the content of an object is never in the log without it, whichever thread
/// commits.
#[test]
fn a_name_is_not_logged_without_its_content() {
    check(600, || {
        let log = Arc::new(ModelLog::new());
        let root = log.root_for(1);
        let renamer = |object: u64| {
            let log = log.clone();
            spawn(move || {
                log.write(2, object);
                log.bind(2, object);
                log.append(2, object);
                0
            })
        };
        let committer = || {
            let log = log.clone();
            spawn(move || {
                log.append(2, 9);
                u64::from(log.commit(9))
            })
        };
        let promised = join([renamer(1), renamer(2), committer(), committer()]);
        let (numbers, objects) = log.replay(&root);
        for object in [1, 2] {
            assert!(!numbers.contains(&object) || objects.contains(&object), "{object}");
        }
        assert!(numbers.contains(&9) || promised.iter().sum::<u64>() == 0, "9 was promised");
    });
}

/// A txg becomes durable while other threads commit. A replay from either root yields all durable
/// changes that the root does not contain, and no change without its predecessors.
#[test]
fn commits_race_the_end_of_a_txg() {
    check(600, || {
        let log = Arc::new(ModelLog::new());
        log.append(2, 1);
        let root_1 = log.root_for(1);
        let committer = |number: u64| {
            let log = log.clone();
            spawn(move || {
                log.append(3, number);
                (number, log.commit(number))
            })
        };
        let threads = [committer(5), committer(6)];
        let root_2 = log.root_for(2);
        log.synced(2);
        let ended = join(threads);
        let (numbers, _) = log.replay(&root_2);
        for (number, promised) in ended {
            assert!(!promised || numbers.contains(&number), "{number} was promised");
        }
        assert!(!numbers.contains(&1), "it is in the txg");
        let (numbers, _) = log.replay(&root_1);
        assert!(numbers.is_empty() || numbers.contains(&1), "1 came before {numbers:?}");
    });
}

/// Truncates make a commit read content again, until it gives up. Meanwhile the txg of all that it
/// has read so far becomes durable. What the last attempt took is of the next one.
#[test]
fn a_commit_that_gives_up_promises_nothing_of_a_newer_txg() {
    check(2000, || {
        let log = Arc::new(ModelLog::new());
        log.write(2, 1);
        let committer = {
            let log = log.clone();
            spawn(move || u64::from(log.commit(1)))
        };
        for _ in 0..3 {
            log.truncate(2, 1);
        }
        log.append(3, 5);
        let root = log.root_for(2);
        log.synced(2);
        let promised = log.commit(5);
        join([committer]);
        let (numbers, _) = log.replay(&root);
        assert!(!promised || numbers.contains(&5), "5 was promised");
    });
}
