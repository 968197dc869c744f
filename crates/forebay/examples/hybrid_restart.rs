//! A cache in memory and on an SSD that is warm after a restart.
//!
//! ```sh
//! cargo run -p forebay --example hybrid_restart
//! ```

use std::error::Error;

use forebay::HybridCache;

const PAGES: u64 = 500;

type Pages = HybridCache<u64, Vec<u8>>;

/// Bytes on the device and in memory.
const DEVICE: u64 = 64 << 20;
const MEMORY: u64 = 4 << 20;

/// Stands for a fetch that takes long.
fn fetch(page: u64) -> Vec<u8> {
    vec![page as u8; 4096]
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pages.cache");

    let cache = Pages::open(&path, DEVICE, MEMORY)?;
    for page in 0..PAGES {
        let value = cache.get_or_load(page, || Ok::<_, std::io::Error>(fetch(page)))?;
        assert_eq!(value[0], page as u8);
    }
    // Durable when it returns: the page never comes back, not even after a crash.
    cache.remove(&3)?;
    // Writes the pages that only memory has. Without it a restart finds those that memory had
    // evicted to the device.
    cache.close()?;
    drop(cache);

    let cache = Pages::open(&path, DEVICE, MEMORY)?;
    // The cache serves at once. This example waits, so that it always prints the same.
    cache.l2().wait_rebuilt();
    let mut fetched = Vec::new();
    for page in 0..PAGES {
        let value = cache.get_or_load(page, || {
            fetched.push(page);
            Ok::<_, std::io::Error>(fetch(page))
        })?;
        assert_eq!(value[0], page as u8);
    }
    println!("after the restart {} of {PAGES} pages were fetched", fetched.len());
    assert_eq!(fetched, [3]);
    cache.close()?;
    Ok(())
}
