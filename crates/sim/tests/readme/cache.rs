use forebay_cache::{Attributes, Cache};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 64 MiB of blocks; what a block weighs is for you to say.
    let cache = Cache::<u64, Vec<u8>>::builder()
        .capacity(64 << 20)
        .weigher(|_key, block| block.len() as u64)
        .build()?;

    cache.insert(7, vec![0; 8192])?;

    // A hit pins the block and borrows the cache. It takes no lock.
    if let Some(block) = cache.get(&7) {
        assert_eq!(block.len(), 8192);
    }

    // Several at once take a fraction of the time: lookups wait for memory side by side.
    let mut found = Vec::new();
    cache.get_many(&[7, 8, 9], &mut found);
    assert_eq!(found.iter().flatten().count(), 1);

    // One load a block, however many threads ask for it at once.
    let block = cache.get_or_load(8, 8192, Attributes::METADATA, || {
        Ok::<_, std::io::Error>(vec![8; 8192]) // read it from a disk here
    })?;
    assert_eq!(block[0], 8);
    Ok(())
}
