use std::sync::Arc;

use forebay_io::{FileDevice, OpenOptions};
use forebay_l2::HybridCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A file or a block device. Nobody else can open it meanwhile.
    let options = OpenOptions { create_bytes: Some(1 << 30), ..OpenOptions::default() };
    let device = Arc::new(FileDevice::open("cache.bin", &options)?);
    let cache = HybridCache::<u64, Vec<u8>>::builder(device)
        .name("thumbnails")
        .capacity(64 << 20)
        .build()?;

    cache.insert(1, vec![1; 8192])?; // over whatever memory or device had
    if let Some(value) = cache.get(&1) {
        assert_eq!(value.len(), 8192); // from memory, or from the device
    }
    let value = cache.get_or_load(2, || read_from_afar(2))?;
    assert_eq!(value[0], 2);
    drop(value); // `close` waits until nobody holds a value

    cache.remove(&1)?; // never comes back, not even after a crash
    assert!(cache.get(&1).is_none());
    cache.close()?; // writes what is in memory only
    Ok(())
}

fn read_from_afar(key: u64) -> std::io::Result<Vec<u8>> {
    Ok(vec![key as u8; 8192])
}
