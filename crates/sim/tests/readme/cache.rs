use forebay_cache::{Attributes, Cache};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::<u64, Vec<u8>>::builder()
        .capacity(64 << 20)
        .weigher(|_key, block| block.len() as u64)
        .build()?;

    cache.insert(7, vec![0; 8192])?;
    assert!(cache.get(&7).is_some()); // takes no lock

    // One load per block, however many threads ask for it at once.
    let block = cache.get_or_load_with(8, Attributes::METADATA, || {
        Ok::<_, std::io::Error>(vec![8; 8192]) // read it from a disk here
    })?;
    assert_eq!(block[0], 8);
    Ok(())
}
