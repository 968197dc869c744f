use forebay::HybridCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A file of 1 GiB, which is created if it does not exist, and 64 MiB of memory.
    let cache = HybridCache::<u64, Vec<u8>>::open("cache.bin", 1 << 30, 64 << 20)?;

    let value = cache.get_or_load(2, || Ok::<_, std::io::Error>(vec![2; 8192]))?;
    assert_eq!(value[0], 2);
    drop(value); // `close` waits until nobody holds a value

    cache.remove(&2)?; // durable: after a crash it is still gone
    assert!(cache.get(&2).is_none());
    cache.close()?; // writes values that only memory has
    Ok(())
}
