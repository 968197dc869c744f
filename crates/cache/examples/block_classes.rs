//! Loads blocks of both classes once each, from several threads, and prints statistics.
//!
//! ```sh
//! cargo run -p forebay-cache --example block_classes
//! ```

#![allow(clippy::disallowed_methods, reason = "a program: no model checker runs it")]

use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay_cache::{Attributes, Cache, Class};

const BLOCK_BYTES: u64 = 4096;
const THREADS: u64 = 4;
const BLOCKS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::<u64, Vec<u8>>::builder()
        .capacity(16 << 20)
        .weigher(|_key, block| block.len() as u64)
        .build()?;

    // Every tenth block refers to others, so its class is metadata.
    let loads = AtomicU64::new(0);
    let attributes = |key: u64| match key % 10 {
        0 => Attributes::METADATA,
        _ => Attributes::default(),
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for key in 0..BLOCKS {
                    let block = cache.get_or_load_with(key, attributes(key), || {
                        // Read it from a disk here.
                        loads.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Infallible>(vec![key as u8; BLOCK_BYTES as usize])
                    });
                    assert_eq!(block.expect("the cache has capacity")[0], key as u8);
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), BLOCKS, "each block was loaded once");

    // A reference pins its block: the value lives until the last one is dropped.
    let pinned = cache.get(&7).ok_or("block 7 was loaded")?;
    cache.remove(&7);
    assert_eq!(pinned.len() as u64, BLOCK_BYTES);
    drop(pinned);
    assert!(cache.get(&7).is_none());

    let stats = cache.stats();
    let bytes_of = |class| -> u64 {
        let resident = stats.states.iter().filter(|state| !state.state.ends_with("ghost"));
        resident.filter(|state| state.class == class).map(|state| state.bytes).sum()
    };
    println!("metadata {} bytes, data {} bytes", bytes_of(Class::Metadata), bytes_of(Class::Data));
    println!("hit ratio {:.2}", stats.hit_ratio());
    assert_eq!(bytes_of(Class::Metadata), BLOCKS / 10 * BLOCK_BYTES);
    assert_eq!(stats.resident_blocks(), BLOCKS - 1);
    assert!(stats.hits() > 0);

    // All statistics as text.
    print!("{stats}");
    Ok(())
}
