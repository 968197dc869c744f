//! Cost of directory operations: `cargo test --release -p forebay-pool zap_costs -- --ignored
//! --nocapture`.

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, thread};

use super::super::Zap;
use super::super::memory::MemoryStore;
use super::new;
use crate::wait::Wait;

const NAMES: u32 = 1_000_000;
const DIRECTORIES: u32 = 32;

fn each(order: &[u32], zaps: &[Zap<MemoryStore>], mut f: impl FnMut(&Zap<MemoryStore>, &[u8])) {
    let mut name = [0; 7];
    for &number in order {
        let mut left = 500_000 + number;
        let digits = if left >= 1_000_000 { 7 } else { 6 };
        for digit in name[..digits].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        f(&zaps[(number % DIRECTORIES) as usize], &name[..digits]);
    }
}

#[test]
#[ignore = "a benchmark"]
fn zap_costs() {
    let clock = SystemClock::new();
    let zaps: Arc<Vec<_>> = Arc::new((0..DIRECTORIES).map(|n| new(u64::from(n))).collect());
    let mut order: Vec<u32> = (0..NAMES).collect();
    let mut rng = SmallRng::from_seed(1);
    let timed = |what: &str, f: &mut dyn FnMut()| {
        let start = clock.now_ns();
        f();
        println!("{what}: {} ns", (clock.now_ns() - start) / u64::from(NAMES));
    };
    let insert = |zap: &Zap<MemoryStore>, name: &[u8]| {
        zap.insert(&(), name, &[7; 9]).expect("it is new");
    };
    let lookup = |zap: &Zap<MemoryStore>, name: &[u8]| {
        assert!(zap.lookup(name, Wait::Allowed).expect("it is possible").is_some());
    };
    let remove = |zap: &Zap<MemoryStore>, name: &[u8]| {
        zap.remove(&(), name).expect("it is there");
    };
    timed("insert", &mut || each(&order, &zaps, insert));
    for index in (1..order.len()).rev() {
        order.swap(index, rng.below(index as u64 + 1) as usize);
    }
    timed("lookup, open leaves", &mut || each(&order, &zaps, lookup));
    zaps.iter().for_each(|zap| zap.store().commit());
    timed("lookup, stored leaves", &mut || each(&order, &zaps, lookup));
    let order = Arc::new(order);
    timed("lookup, two threads, all names each", &mut || {
        let other: Vec<u32> = order.iter().rev().copied().collect();
        let threads = [Arc::clone(&order), Arc::new(other)].map(|order| {
            let zaps = Arc::clone(&zaps);
            let work = move || each(&order, &zaps, lookup);
            thread::spawn_named("zap-test", work).expect("threads can be had")
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it did not panic"));
    });
    println!("{}", zaps[0].stats().expect("it is valid"));
    timed("remove", &mut || each(&order, &zaps, remove));
}
