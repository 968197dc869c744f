use std::ops::ControlFlow;

use forebay_io::OpenOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::path::Path::new("tank.img");
    // One cache for all pools of a process; its bound covers dirty data as well.
    let cache = BlockCache::new(BlockCacheOptions { bytes: 64 << 20, ..Default::default() })?;

    let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
    let options = CreateOptions::new("tank", cache.clone());
    let pool = Pool::create(vec![open_path(path, &file)?], &options)?;
    let data = pool.create_dataset("data", &DatasetSettings::default())?;

    // What one transaction changes becomes durable together.
    let tx = pool.begin()?;
    let top = data.create_directory(&tx, &[])?;
    let number = data.create_object(&tx, b"attributes are yours")?;
    data.object(number)?.write(&tx, 0, b"content")?;
    data.directory(top)?.insert(&tx, b"name", &number.to_le_bytes())?;
    drop(tx);
    data.fsync(number)?; // only now is it durable, by the intent log
    drop(data);
    pool.export()?;

    let devices = vec![open_path(path, &OpenOptions::default())?];
    let pool = Pool::import(devices, &ImportOptions::new(cache))?;
    let data = pool.dataset("data")?;
    let value = data.directory(top)?.lookup(b"name")?.expect("it was inserted");
    assert_eq!(*value, number.to_le_bytes());
    let mut content = [0; 7];
    data.object(number)?.read(0, &mut content)?;
    assert_eq!(&content, b"content");

    let report = pool.check(&mut |_| ControlFlow::Continue(()))?;
    assert!(report.is_clean(), "{report}");
    Ok(())
}
