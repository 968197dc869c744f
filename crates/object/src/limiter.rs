//! How many requests of a kind are in flight: additive increase, multiplicative decrease.
//!
//! The limit halves when the store asks for fewer requests, or does not answer in time: on a slow
//! link too many requests at once all time out. It halves once for the requests that were in flight
//! together. It grows by one after as many successes as the limit. A permit that is returned while
//! there are too many is destroyed.
//!
//! Locking: `object-limiter`, a leaf lock, held for a look.

use forebay_base::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limit.
pub(crate) struct Limiter {
    permits: Arc<Semaphore>,
    state: Mutex<State>,
    max: usize,
}

struct State {
    limit: usize,
    /// Permits in use that are destroyed when they come back.
    surplus: usize,
    successes: usize,
    /// Times that the limit was halved.
    halved: u64,
}

/// A request that may be in flight.
pub(crate) struct Permit {
    permit: OwnedSemaphorePermit,
    /// Times that the limit was halved before.
    halved: u64,
}

impl Limiter {
    /// Creates a limit that starts at its maximum.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        let state = State { limit: max, surplus: 0, successes: 0, halved: 0 };
        Self {
            permits: Arc::new(Semaphore::new(max)),
            state: Mutex::named("object-limiter", state),
            max,
        }
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(&self) -> Permit {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        Permit { permit, halved: self.state.lock().halved }
    }

    /// Returns a permit after a request, which says whether there should be fewer.
    pub(crate) fn release(&self, permit: Permit, fewer: bool) {
        let mut state = self.state.lock();
        if fewer && permit.halved == state.halved {
            let removed = state.limit - state.limit.div_ceil(2);
            state.limit -= removed;
            state.successes = 0;
            state.halved += 1;
            state.surplus += removed - self.permits.forget_permits(removed);
        } else if !fewer {
            state.successes += 1;
            if state.successes >= state.limit && state.limit < self.max {
                (state.successes, state.limit) = (0, state.limit + 1);
                match state.surplus {
                    0 => self.permits.add_permits(1),
                    _ => state.surplus -= 1,
                }
            }
        }
        if state.surplus > 0 {
            state.surplus -= 1;
            permit.permit.forget();
        }
    }

    /// The current limit.
    #[cfg(test)]
    fn limit(&self) -> usize {
        self.state.lock().limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_limit_halves_and_grows_back_slowly() {
        let limiter = Limiter::new(8);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(limiter.acquire().await);
        }
        limiter.release(held.pop().unwrap(), true);
        assert_eq!(limiter.limit(), 4);
        // Seven are out, four are allowed: three of them are destroyed.
        for permit in held {
            limiter.release(permit, false);
        }
        assert_eq!(limiter.permits.available_permits(), limiter.limit());
        for _ in 0..2 {
            let permit = limiter.acquire().await;
            limiter.release(permit, true);
        }
        let before = limiter.limit();
        for _ in 0..1000 {
            let permit = limiter.acquire().await;
            limiter.release(permit, false);
        }
        assert!(before < 8);
        assert_eq!(limiter.limit(), 8);
        assert_eq!(limiter.permits.available_permits(), 8);
    }

    #[tokio::test]
    async fn requests_in_flight_together_halve_the_limit_once() {
        let limiter = Limiter::new(8);
        for expected in [4, 2] {
            let mut held = Vec::new();
            for _ in 0..limiter.limit() {
                held.push(limiter.acquire().await);
            }
            for permit in held {
                limiter.release(permit, true);
            }
            assert_eq!(
                (limiter.limit(), limiter.permits.available_permits()),
                (expected, expected)
            );
        }
    }

    #[tokio::test]
    async fn one_request_is_always_allowed() {
        let limiter = Limiter::new(4);
        for _ in 0..10 {
            let permit = limiter.acquire().await;
            limiter.release(permit, true);
        }
        assert_eq!((limiter.limit(), limiter.permits.available_permits()), (1, 1));
    }
}
