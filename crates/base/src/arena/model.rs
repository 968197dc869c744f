//! Model checks of the arena: no deadlock, no lost block, exact counts, destruction once.

use super::{AllocError, Arena, ArenaConfig, HugePages};
use crate::sync::Arc;
use crate::sync::thread::spawn_named;

const SCHEDULES: usize = 300;

fn arena(limit_bytes: u64) -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes, huge_pages: HugePages::Never }).unwrap()
}

#[test]
fn threads_that_compete_for_the_last_pages_lose_none() {
    let body = || {
        let arena = arena(32 << 10);
        let worker = |first: usize, second: usize| {
            let arena = Arc::clone(&arena);
            spawn_named("worker", move || {
                for len in [first, second] {
                    match arena.alloc(len) {
                        Ok(mut buffer) => buffer.fill(1),
                        Err(AllocError::Exhausted { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                    assert!(arena.committed_bytes() <= 32 << 10);
                }
            })
            .unwrap()
        };
        let threads = [worker(16 << 10, 512), worker(8192, 20 << 10)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(arena.used_bytes(), 0);
        drop(arena.alloc(32 << 10).expect("all memory can be allocated again"));
        arena.purge();
        assert_eq!(arena.committed_bytes(), 0);
    };
    shuttle::check_random(body, SCHEDULES);
}

#[test]
fn handles_and_buffers_may_be_dropped_in_any_order() {
    let body = || {
        let arena = arena(64 << 10);
        let buffers = [512, 8192, 40 << 10].map(|len| arena.alloc(len).unwrap());
        let threads = buffers.map(|buffer| spawn_named("end", move || drop(buffer)).unwrap());
        drop(arena);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_random(body, SCHEDULES);
}

#[test]
fn a_lower_limit_is_met_once_buffers_are_freed() {
    let body = || {
        let arena = arena(64 << 10);
        let buffers: Vec<_> = (0..4).map(|_| arena.alloc(8192).unwrap()).collect();
        let freer = spawn_named("freer", move || drop(buffers)).unwrap();
        arena.set_limit(8192);
        freer.join().unwrap();
        // A concurrently freed block may be in a magazine. It counts, and this call finds it.
        arena.set_limit(8192);
        assert!(arena.committed_bytes() <= 8192);
        drop(arena.alloc(8192).expect("one buffer fits"));
    };
    shuttle::check_random(body, SCHEDULES);
}
