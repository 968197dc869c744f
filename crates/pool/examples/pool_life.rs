//! The life of a pool: create, write, fsync, export, import, read and check.
//!
//! ```sh
//! cargo run -p forebay-pool --example pool_life
//! ```

use std::error::Error;
use std::ops::ControlFlow;

use forebay_io::OpenOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};

const FILES: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tank.img");
    // One cache for all pools of a process. Its bound covers dirty data as well.
    let cache = BlockCache::new(BlockCacheOptions { bytes: 64 << 20, ..Default::default() })?;

    let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
    let options = CreateOptions::new("tank", cache.clone());
    let pool = Pool::create(vec![open_path(&path, &file)?], &options)?;
    let data = pool.create_dataset("data", &DatasetSettings::default())?;

    // A directory and its objects. The changes of a transaction become durable together.
    let tx = pool.begin()?;
    let top = data.create_directory(&tx, &[])?;
    drop(tx);
    for n in 0..FILES {
        let tx = pool.begin()?;
        let number = data.create_object(&tx, b"attributes are yours")?;
        data.object(number)?.write(&tx, 0, format!("content {n}").as_bytes())?;
        let name = format!("name-{n}");
        data.directory(top)?.insert(&tx, name.as_bytes(), &number.to_le_bytes())?;
        drop(tx);
        if n == FILES - 1 {
            data.fsync(number)?; // This object is durable now, through the intent log.
        }
    }
    drop(data);
    pool.export()?;

    let devices = vec![open_path(&path, &OpenOptions::default())?];
    let pool = Pool::import(devices, &ImportOptions::new(cache))?;
    let data = pool.dataset("data")?;
    for n in 0..FILES {
        let name = format!("name-{n}");
        let value = data.directory(top)?.lookup(name.as_bytes())?.ok_or("it was inserted")?;
        let number = u64::from_le_bytes((*value).try_into()?);
        let expected = format!("content {n}");
        let mut content = vec![0; expected.len()];
        data.object(number)?.read(0, &mut content)?;
        assert_eq!(content, expected.as_bytes());
    }
    println!("all {FILES} objects have their content");

    // Reads every copy of every block, and compares blocks with the free space.
    let report = pool.check(&mut |_| ControlFlow::Continue(()))?;
    println!("{report}");
    assert!(report.is_clean());
    drop(data);
    pool.export()?;
    Ok(())
}
