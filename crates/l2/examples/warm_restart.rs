//! A cache in memory and on a device that is still warm after a restart.
//!
//! ```sh
//! cargo run -p forebay-l2 --example warm_restart
//! ```

use std::error::Error;
use std::path::Path;

use forebay_l2::HybridCache;

const VALUES: u64 = 500;

type Thumbnails = HybridCache<u64, Vec<u8>>;

fn open(path: &Path) -> Result<Thumbnails, Box<dyn Error>> {
    let builder = Thumbnails::builder_at(path, 64 << 20);
    Ok(builder.name("thumbnails").capacity(4 << 20).build()?)
}

/// Stands for an expensive computation or a fetch.
fn render(key: u64) -> Vec<u8> {
    vec![key as u8; 4096]
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cache.bin");

    let cache = open(&path)?;
    for key in 0..VALUES {
        cache.insert(key, render(key))?;
    }
    // After `remove` returns, the value never comes back, not even after a crash.
    assert!(cache.remove(&1)?);
    // Writes values that are only in memory. Without it, a restart finds the values that were
    // evicted to the device.
    cache.close()?;
    drop(cache);

    let cache = open(&path)?;
    // The cache serves while the rebuild reads the log. Waiting makes this example deterministic.
    cache.l2().wait_rebuilt();
    let mut rendered = 0;
    for key in 0..VALUES {
        let value = cache.get_or_load(key, || {
            rendered += 1;
            Ok::<_, std::io::Error>(render(key))
        })?;
        assert_eq!(value[0], key as u8);
    }
    println!("after the restart {rendered} of {VALUES} values were rendered again");
    assert_eq!(rendered, 1, "only the value that was removed");

    let stats = cache.stats();
    println!("{} values on the device, health {:?}", stats.l2.records, stats.l2.health);
    cache.close()?;
    Ok(())
}
