//! A host dies at each of its changes. Whatever a flush has acknowledged is there for the next one.

use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::testing;

use super::*;
use crate::format::{DEVICE_BYTES, MUTABLE_BYTES, TAIL_BYTES, WINDOW_BYTES};

/// Blocks of the mutable area that each round writes: both labels, and two of the ring.
const PLACES: [u64; 4] = [8192, DEVICE_BYTES - TAIL_BYTES + 8192, 1 << 20, MUTABLE_BYTES - 4096];

/// What a host has done, as far as its user knows.
#[derive(Clone, Debug, Default)]
struct History {
    /// The round that the newest successful flush has published.
    acked: u64,
    /// The newest round that was written.
    written: u64,
    /// Address, sectors and round of each write that has completed.
    data: Vec<(u64, u64, u64)>,
    next: u64,
}

/// Rounds of writes and flushes. Each round writes its number to the ring, every third one also to
/// the labels.
async fn work(session: &Session, history: &Mutex<History>, rounds: u64, rng: &mut SmallRng) {
    let first = history.lock().written + 1;
    for round in first..first + rounds {
        let mut writes = Vec::new();
        let mut next = history.lock().next;
        for _ in 0..rng.below(6) {
            let sectors = 1 + rng.below(5);
            writes.push((next, sectors, round));
            next += sectors * SECTOR;
            // Gaps, and jumps over the end of a window.
            next += match rng.below(10) {
                0 => SECTOR,
                1 => WINDOW_BYTES / 2,
                _ => 0,
            };
        }
        history.lock().next = next;
        // In any order, and more than one at a time.
        for at in (1..writes.len()).rev() {
            writes.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let tasks: Vec<_> = writes
            .iter()
            .map(|&(offset, sectors, round)| {
                let session = session.clone();
                tokio::spawn(async move { session.write(offset, sectors, round).await })
            })
            .collect();
        for (task, write) in tasks.into_iter().zip(writes) {
            if task.await.unwrap().is_ok() {
                history.lock().data.push(write);
            }
        }
        history.lock().written = round;
        let places = if round.is_multiple_of(3) { &PLACES[..] } else { &PLACES[2..] };
        for place in places {
            session.write(*place, 1, round).await.unwrap();
        }
        if session.flush().await.is_ok() {
            history.lock().acked = round;
        }
    }
}

/// Checks what the next host finds.
async fn verify(session: &Session, history: &mut History, what: &str) {
    let ring = session.read(PLACES[2], 1).await.unwrap();
    let round = u64::from_le_bytes(ring[8..16].try_into().unwrap());
    let History { acked, written, .. } = *history;
    assert!((acked..=written).contains(&round), "{what}: {round} is not in {acked}..={written}");
    if round > 0 {
        for place in &PLACES[2..] {
            session.expect(*place, 1, round).await;
        }
    }
    if round >= 3 {
        for place in &PLACES[..2] {
            session.expect(*place, 1, round / 3 * 3).await;
        }
    }
    for (offset, sectors, written) in &history.data {
        if *written <= acked {
            session.expect(*offset, *sectors, *written).await;
        }
    }
    // What was not acknowledged may be lost. Its addresses are not used again.
    let unused = session.engine.first_unused;
    assert!(
        unused >= history.data.iter().map(|(offset, n, _)| offset + n * SECTOR).max().unwrap_or(0)
    );
    history.data.retain(|(_, _, written)| *written <= acked);
    (history.acked, history.written) = (round, round);
    history.next = unused;
}

/// Runs a host that dies after `changes`, and one that finds what it has left. Returns whether the
/// first one died.
fn crash_after(changes: u64, network: &Network, seed: u64) -> bool {
    let memory = MemoryStore::new();
    let history = Mutex::named("history", History { next: MUTABLE_BYTES, ..History::default() });
    let history = Arc::new(history);
    let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
    simulate(async {
        let session = Session::create(&store, options("one", seed)).await;
        session.close().await;
    });
    let mut died = false;
    for host in 0..3 {
        let seed = seed + 1000 * host;
        let store = SimulatedStore::new(Arc::clone(&memory), network.clone(), seed + 1);
        // Later hosts die, too, but not always at their first change.
        store.die_after(changes + 7 * host);
        let history = Arc::clone(&history);
        let worker = Arc::clone(&store);
        simulate(async move {
            let task = tokio::spawn(async move {
                let mut options = options(&format!("host {host}"), seed);
                options.chain_objects = 8;
                let Ok(session) = Session::open(&worker, options).await else { return };
                let mut found = history.lock().clone();
                verify(&session, &mut found, &format!("host {host}, {changes} changes")).await;
                *history.lock() = found;
                let mut rng = SmallRng::from_seed(seed + 2);
                work(&session, &history, 12, &mut rng).await;
                session.close().await;
            });
            // A dead host hangs; nothing takes as long as this.
            if let Ok(done) = tokio::time::timeout(Duration::from_secs(3600), task).await {
                done.unwrap();
            }
        });
        died |= host == 0 && store.is_dead();
    }
    simulate(async {
        let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed + 3);
        let session = Session::open_read_only(&store).await.unwrap();
        let mut found = history.lock().clone();
        found.data.retain(|(_, _, round)| *round <= found.acked);
        verify_read_only(&session, &found).await;
        let session = Session::open(&store, options("last", seed + 4)).await.unwrap();
        verify(&session, &mut found, "last host").await;
        session.close().await;
    });
    died
}

async fn verify_read_only(session: &Session, history: &History) {
    let ring = session.read(PLACES[2], 1).await.unwrap();
    let round = u64::from_le_bytes(ring[8..16].try_into().unwrap());
    assert!((history.acked..=history.written).contains(&round));
    for (offset, sectors, round) in &history.data {
        session.expect(*offset, *sectors, *round).await;
    }
}

fn crash_at_each_change(network: &Network, seed: u64, step: u64) {
    let mut changes = 0;
    while crash_after(changes, network, seed) {
        changes += step;
    }
    assert!(changes > 30, "the run has only {changes} changes");
}

#[test]
fn acknowledged_flushes_survive_a_crash_at_each_change() {
    crash_at_each_change(&Network::GOOD, testing::seed(1), 1);
}

#[test]
fn acknowledged_flushes_survive_crashes_on_a_bad_network() {
    let seed = testing::seed(2);
    for round in 0..if testing::full() { 20 } else { 2 } {
        crash_at_each_change(&Network::BAD, seed + 10_000 * round, 1);
    }
}

#[test]
fn a_closed_store_is_found_as_it_was() {
    let memory = MemoryStore::new();
    let store = SimulatedStore::new(Arc::clone(&memory), Network::BAD, 1);
    simulate(async {
        let session = Session::create(&store, options("one", 2)).await;
        session.write(MUTABLE_BYTES, 300, 1).await.unwrap();
        session.write(PLACES[0], 1, 1).await.unwrap();
        // The close publishes, without a flush.
        session.close().await;
        let mut careful = options("two", 3);
        careful.force = false;
        let session = Session::open(&store, careful).await.unwrap();
        session.expect(MUTABLE_BYTES, 300, 1).await;
        session.expect(PLACES[0], 1, 1).await;
        let mut careful = options("three", 4);
        careful.force = false;
        let refused = Session::open(&store, careful).await.map(|_| ());
        assert!(matches!(refused, Err(Error::InUse { owner, .. }) if owner == "two"));
    });
}
