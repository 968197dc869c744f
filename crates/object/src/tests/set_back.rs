//! Followers know whether the store was set back to a copy of before.

use super::cleaning::LABEL;
use super::following::Follower;
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
