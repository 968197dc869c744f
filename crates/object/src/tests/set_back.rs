//! Followers know whether the store was set back to a copy of before.

use super::cleaning::LABEL;
use super::following::{Follower, write_object};
use super::*;
use crate::format::MUTABLE_BYTES;

/// Publishes `count` roots.
async fn publish(session: &Session, count: u64) {
    for tag in 0..count {
        session.write(LABEL, 1, tag).await.unwrap();
        session.flush().await.unwrap();
    }
}

/// A host on the network of `memory`.
fn network(memory: &Arc<MemoryStore>, seed: u64) -> Arc<SimulatedStore> {
    SimulatedStore::new(Arc::clone(memory), Network::GOOD, seed)
}

/// Opens a follower, and asks whether the newest state descends from those of `marks`.
async fn descends(memory: &Arc<MemoryStore>, seed: u64, marks: &[u64]) -> Vec<bool> {
    let follower = Follower::open(&network(memory, seed), seed).await;
    let mut found = Vec::new();
    for mark in marks {
        found.push(follower.following.descends_from(*mark).await);
    }
    found
}

#[test]
fn a_state_descends_from_those_before_it_and_from_none_of_another_history() {
    simulate(async {
        let Host { memory, store, session } = Host::new(options("one", 1)).await;
        publish(&session, 2).await;
        let mut follower = Follower::open(&store, 2).await;
        let early = follower.following.mark().await;
        let copy = memory.fork();
        publish(&session, 2).await;
        follower.poll().await;
        let late = follower.following.mark().await;
        assert_ne!(early, late);
        assert_eq!(descends(&memory, 3, &[early, late, 0]).await, [true, true, false]);

        // The next owner goes on from there.
        let next = Session::open(&store, options("two", 4)).await.unwrap();
        assert_eq!(descends(&memory, 5, &[early, late]).await, [true, true]);
        publish(&next, 3).await;
        follower.poll().await;
        let newest = follower.following.mark().await;
        assert_eq!(descends(&memory, 6, &[early, late, newest]).await, [true; 3]);

        // The bucket was set back to the copy. Another owner writes the same addresses again.
        let other = Session::open(&network(&copy, 7), options("three", 8)).await.unwrap();
        other.write(MUTABLE_BYTES, 1, 9).await.unwrap();
        publish(&other, 9).await;
        let found = descends(&copy, 9, &[early, late, newest]).await;
        assert_eq!(found, [true, false, false]);
    });
}

#[test]
fn after_a_checkpoint_only_the_owner_before_it_is_known() {
    simulate(async {
        let often = |owner, seed| Options { chain_objects: 4, ..options(owner, seed) };
        let Host { memory, store, session } = Host::new(often("one", 1)).await;
        publish(&session, 1).await;
        let follower = Follower::open(&store, 2).await;
        let mark = follower.following.mark().await;
        publish(&session, 20).await;
        assert!(session.counter("checkpoints") > 1);
        assert_eq!(descends(&memory, 3, &[mark]).await, [true], "the owner is the same");
        let next = Session::open(&store, often("two", 4)).await.unwrap();
        publish(&next, 20).await;
        assert_eq!(descends(&memory, 5, &[mark]).await, [false], "nobody knows");
    });
}

/// The objects of both histories have the same key, and other sectors.
#[test]
fn a_follower_forgets_directories_of_a_history_that_was_given_up() {
    simulate(async {
        let Host { memory, store, session } = Host::new(options("one", 1)).await;
        publish(&session, 1).await;
        let copy = memory.fork();
        let (first, second) = ([0, 1, 5, 9], [0, 3, 5, 11]);
        let two = Session::open(&store, options("two", 2)).await.unwrap();
        write_object(&two, first.into_iter(), 2).await;
        publish(&two, 2).await;
        let mut follower = Follower::open(&network(&memory, 3), 3).await;
        for sector in first {
            follower.view.expect(MUTABLE_BYTES + sector * SECTOR, 1, 2).await;
        }
        let known = *follower.view.engine.lock().map.iter().next().unwrap();

        memory.set_back(&copy);
        let three = Session::open(&network(&memory, 4), options("three", 4)).await.unwrap();
        write_object(&three, second.into_iter(), 3).await;
        publish(&three, 3).await;
        assert!(follower.poll().await.is_some());
        let new = *follower.view.engine.lock().map.iter().next().unwrap();
        assert_eq!((new.first, new.epoch), (known.first, known.epoch), "the same key");
        assert_eq!(new.generation, known.generation);
        for sector in second {
            follower.view.expect(MUTABLE_BYTES + sector * SECTOR, 1, 3).await;
        }
    });
}
