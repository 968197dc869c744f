use std::sync::Arc;

use forebay::HybridCache;
use forebay::io::{FileDevice, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = OpenOptions { create_bytes: Some(1 << 30), ..OpenOptions::default() };
    let device = Arc::new(FileDevice::open("cache.bin", &options)?);
    let cache = HybridCache::<u64, Vec<u8>>::builder(device)
        .name("thumbnails")
        .capacity(64 << 20)
        .build()?;

    let value = cache.get_or_load(2, || Ok::<_, std::io::Error>(vec![2; 8192]))?;
    assert_eq!(value[0], 2);
    drop(value); // `close` waits until nobody holds a value

    cache.remove(&2)?; // durable: it never comes back, not even after a crash
    assert!(cache.get(&2).is_none());
    cache.close()?; // writes values that only memory has
    Ok(())
}
