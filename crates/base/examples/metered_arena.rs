//! Buffers under a hard limit, with counters and a tunable that can be set at run time.
//!
//! ```sh
//! cargo run -p forebay-base --example metered_arena
//! ```

use std::error::Error;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::Arc;

forebay_base::counters! {
    /// Counters of the store.
    table StoreCounters;
    labels outcome = ["stored", "refused"];
    /// Requests to store a buffer.
    stores: outcome;
}

forebay_base::tunables! {
    /// Tunables of the store.
    table StoreTunables;
    /// Length of each buffer.
    buffer_bytes: bytes = 64 << 10, 512..=1 << 20, runtime, "bytes";
}

/// Keeps buffers until the arena reaches its limit.
struct Store {
    arena: Arc<Arena>,
    counters: StoreCounters,
    tunables: StoreTunables,
    buffers: Vec<Buffer>,
}

impl Store {
    fn store(&mut self, byte: u8) {
        match self.arena.alloc(self.tunables.buffer_bytes() as usize) {
            Ok(mut buffer) => {
                buffer.fill(byte);
                self.buffers.push(buffer);
                self.counters.add(StoreCounters::STORES, 0, 1);
            }
            Err(_) => self.counters.add(StoreCounters::STORES, 1, 1),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let limit_bytes = 8 << 20;
    let config = ArenaConfig { limit_bytes, huge_pages: HugePages::Never };
    let mut store = Store {
        arena: Arena::new(config)?,
        counters: StoreCounters::new(),
        tunables: StoreTunables::default(),
        buffers: Vec::new(),
    };

    // 400 buffers of 64 KiB do not fit in 8 MiB. The arena refuses the others and keeps its limit.
    for n in 0..400_u32 {
        store.store(n as u8);
    }
    let (stored, refused) = (
        store.counters.sum(StoreCounters::STORES.at(0)),
        store.counters.sum(StoreCounters::STORES.at(1)),
    );
    println!("stored {stored} and refused {refused} buffers of 64 KiB");
    assert_eq!(stored, store.buffers.len() as u64);
    assert!(refused > 0 && stored + refused == 400);
    assert!(store.arena.committed_bytes() <= limit_bytes);

    // Freed memory serves any other size at once.
    store.buffers.clear();
    store.tunables.set("buffer_bytes", "512K")?;
    store.store(7);
    assert_eq!(store.buffers[0].len(), 512 << 10);
    assert!(store.buffers[0].iter().all(|&byte| byte == 7));

    // A value outside the range is refused, with the range in the message.
    let error = store.tunables.set("buffer_bytes", "2M").unwrap_err();
    println!("{error}");
    assert_eq!(store.tunables.buffer_bytes(), 512 << 10);

    for row in store.counters.snapshot() {
        println!("{} {} {}: {}", row.name, row.label.unwrap_or(""), row.value, row.help);
    }
    Ok(())
}
