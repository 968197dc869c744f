//! Waiting for a load that somebody else has begun (single flight).
//!
//! A request that joins a load holds a pin on its header, so that the block cannot go
//! before the request has seen it, and leaves a [`Seat`] in the table of flights. Whoever ends the load
//! takes the seats and settles them, in the order in which they were taken. Who gives up waiting takes its seat
//! back. Nothing is allocated for a load that nobody joins.
//!
//! Locking: `flights` (sharded by header), then nothing; `flight-seat` is a leaf lock.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::error::LoadError;

const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 16 };

/// How a load ended: the header is filled, or an error.
pub(crate) type Ending = Result<(), LoadError>;

/// Run once, when the load has ended.
pub(crate) type Callback = Box<dyn FnOnce(Ending) + Send>;

/// One request's place among those that wait for a load.
pub(crate) struct Seat {
    state: Mutex<SeatState>,
    settled: Condvar,
}

enum SeatState {
    Waiting(Option<Waker>),
    Callback(Callback),
    Settled(Ending),
    /// Its callback has taken the ending.
    Done,
}

/// What is to be done once no lock is held any more.
pub(crate) enum Notice {
    None,
    Wake(Waker),
    Call(Callback, Ending),
}

impl Notice {
    pub(crate) fn deliver(self) {
        match self {
            Self::None => {}
            Self::Wake(waker) => waker.wake(),
            Self::Call(callback, ending) => callback(ending),
        }
    }
}

impl Seat {
    pub(crate) fn new() -> Arc<Self> {
        let state = Mutex::named("flight-seat", SeatState::Waiting(None));
        Arc::new(Self { state, settled: Condvar::new() })
    }

    pub(crate) fn settle(&self, ending: Ending) -> Notice {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut *state, SeatState::Settled(ending.clone()));
        match before {
            SeatState::Waiting(waker) => {
                drop(state);
                self.settled.notify_all();
                waker.map_or(Notice::None, Notice::Wake)
            }
            SeatState::Callback(callback) => {
                *state = SeatState::Done;
                Notice::Call(callback, ending)
            }
            SeatState::Settled(_) | SeatState::Done => unreachable!("a load ends once"),
        }
    }

    pub(crate) fn wait(&self) -> Ending {
        let mut state = self.state.lock();
        loop {
            if let SeatState::Settled(ending) = &*state {
                return ending.clone();
            }
            self.settled.wait(&mut state);
        }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Option<Ending> {
        let mut state = self.state.lock();
        match &mut *state {
            SeatState::Settled(ending) => Some(ending.clone()),
            SeatState::Waiting(slot) => {
                *slot = Some(waker.clone());
                None
            }
            SeatState::Callback(_) | SeatState::Done => unreachable!("one way of waiting a seat"),
        }
    }

    /// Runs `callback` when the load ends, at once if it has.
    pub(crate) fn on_ready(&self, callback: Callback) {
        let mut state = self.state.lock();
        if let SeatState::Settled(ending) = &*state {
            let ending = ending.clone();
            drop(state);
            callback(ending);
        } else {
            *state = SeatState::Callback(callback);
        }
    }
}

/// All seats.
pub(crate) struct Flights {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Default)]
struct Shard {
    /// By header; those of one by their numbers.
    seats: HashMap<usize, BTreeMap<u64, Arc<Seat>>>,
    /// The next seat's number: none is used twice, so that nobody gives up another's seat.
    next: u64,
}

impl Flights {
    pub(crate) fn new() -> Self {
        let shard = || Mutex::named("flights", Shard::default());
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, header: usize) -> &Mutex<Shard> {
        &self.shards[(header >> 6) % SHARDS]
    }

    /// Takes a seat for the header, if `still_loading` (asked under the flight's lock) says that its
    /// ending has yet to be told. Returns it with its number.
    pub(crate) fn join(
        &self,
        header: usize,
        still_loading: impl FnOnce() -> bool,
    ) -> Option<(u64, Arc<Seat>)> {
        let mut shard = self.shard(header).lock();
        if !still_loading() {
            return None;
        }
        let (number, seat) = (shard.next, Seat::new());
        shard.next += 1;
        shard.seats.entry(header).or_default().insert(number, seat.clone());
        Some((number, seat))
    }

    /// Gives up a seat, unless the load has ended.
    pub(crate) fn leave(&self, header: usize, number: u64) {
        let mut shard = self.shard(header).lock();
        let Some(seats) = shard.seats.get_mut(&header) else { return };
        let seat = seats.remove(&number);
        if seats.is_empty() {
            shard.seats.remove(&header);
        }
        drop(shard);
        // Not under the lock: with it goes a waker.
        drop(seat);
    }

    /// Tells all who wait for the header how its load ended. Returns how many of their callbacks and
    /// wakers panicked: that must not keep the others from hearing of it.
    pub(crate) fn land(&self, header: usize, ending: &Ending) -> u64 {
        let seats = self.shard(header).lock().seats.remove(&header).unwrap_or_default();
        let settle = |seat: &Arc<Seat>| seat.settle(ending.clone());
        let notices: Vec<Notice> = seats.values().map(settle).collect();
        let panicked =
            |notice: Notice| catch_unwind(AssertUnwindSafe(|| notice.deliver())).is_err();
        notices.into_iter().map(|notice| u64::from(panicked(notice))).sum()
    }

    /// Seats that are taken, for audits.
    pub(crate) fn seats(&self) -> usize {
        let of =
            |shard: &Mutex<Shard>| shard.lock().seats.values().map(BTreeMap::len).sum::<usize>();
        self.shards.iter().map(of).sum()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::Flights;

    #[test]
    fn a_seat_that_is_given_up_takes_no_memory() {
        let flights = Flights::new();
        let join = |header| flights.join(header, || true).unwrap().0;
        let others = [join(64), join(128)];
        let rounds = if cfg!(miri) { 300 } else { 1_000_000 };
        for n in 0..rounds {
            // Now of the header that somebody else waits for, now of one that nobody does.
            let header = 64 << (2 * (n % 2));
            let numbers = [join(header), join(header)];
            numbers.into_iter().for_each(|number| flights.leave(header, number));
        }
        assert_eq!(flights.seats(), 2);
        let of_headers = |flights: &Flights| {
            flights.shards.iter().map(|s| s.lock().seats.capacity()).max().unwrap()
        };
        assert!(of_headers(&flights) < 10, "the table has grown: {}", of_headers(&flights));
        // Too late, and twice: nobody else's seat is given up.
        assert_eq!(flights.land(64, &Ok(())), 0);
        let again = join(64);
        flights.leave(64, others[0]);
        flights.leave(128, again);
        assert_eq!(flights.seats(), 2);
        flights.leave(64, again);
        flights.leave(128, others[1]);
        assert_eq!(flights.seats(), 0);
    }
}
