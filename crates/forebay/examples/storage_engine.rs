//! A storage engine that caches the blocks of its tables.
//!
//! A table is a file: an index block, then data blocks. The key of a block names its table and its
//! number. Index blocks are metadata, a scan does not evict what lookups use, and dropping a table
//! removes its blocks.
//!
//! ```sh
//! cargo run -p forebay --example storage_engine
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay::{Attributes, Cache};

const BLOCK_BYTES: usize = 4096;
const ROWS_PER_BLOCK: u64 = 64;

/// Table and number of the block. Block 0 is the index.
type BlockKey = (u32, u32);

struct Engine {
    folder: PathBuf,
    tables: HashMap<u32, File>,
    cache: Cache<BlockKey, Vec<u8>>,
}

impl Engine {
    fn open(folder: &Path, cache_bytes: u64) -> Result<Self, Box<dyn Error>> {
        let cache = Cache::builder()
            .capacity(cache_bytes)
            .weigher(|_key, block: &Vec<u8>| block.len() as u64)
            .build()?;
        Ok(Self { folder: folder.to_path_buf(), tables: HashMap::new(), cache })
    }

    /// Writes a table whose row `n` is `table + n`.
    fn create(&mut self, table: u32, blocks: u32) -> io::Result<()> {
        let path = self.folder.join(format!("{table}.table"));
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let mut index = vec![0; BLOCK_BYTES];
        index[..4].copy_from_slice(&blocks.to_le_bytes());
        file.write_all_at(&index, 0)?;
        for number in 1..=blocks {
            let mut block = vec![0; BLOCK_BYTES];
            for (at, row) in block.chunks_exact_mut(8).take(ROWS_PER_BLOCK as usize).enumerate() {
                let row_number = u64::from(number - 1) * ROWS_PER_BLOCK + at as u64;
                row.copy_from_slice(&(u64::from(table) + row_number).to_le_bytes());
            }
            file.write_all_at(&block, u64::from(number) * BLOCK_BYTES as u64)?;
        }
        self.tables.insert(table, file);
        Ok(())
    }

    /// Calls `read` with a block, which comes from the cache or from its file.
    fn with_block<T>(
        &self,
        key: BlockKey,
        attributes: Attributes,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Box<dyn Error>> {
        let (table, number) = key;
        let file = self.tables.get(&table).ok_or("the table was dropped")?;
        let block = self.cache.get_or_load_with(key, attributes, || {
            let mut block = vec![0; BLOCK_BYTES];
            file.read_exact_at(&mut block, u64::from(number) * BLOCK_BYTES as u64)?;
            Ok::<_, io::Error>(block)
        })?;
        Ok(read(&block))
    }

    fn blocks(&self, table: u32) -> Result<u32, Box<dyn Error>> {
        self.with_block((table, 0), Attributes::METADATA, |index| {
            u32::from_le_bytes([index[0], index[1], index[2], index[3]])
        })
    }

    /// One row of a table.
    fn row(&self, table: u32, row: u64) -> Result<u64, Box<dyn Error>> {
        let number = (row / ROWS_PER_BLOCK) as u32 + 1;
        if number > self.blocks(table)? {
            return Err("the table has no such row".into());
        }
        let at = (row % ROWS_PER_BLOCK) as usize * 8;
        self.with_block((table, number), Attributes::DATA, |block| {
            let row = block[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(row)
        })
    }

    /// The number of data blocks that a scan of the table reads. It reads each once.
    fn scan(&self, table: u32) -> Result<u32, Box<dyn Error>> {
        let blocks = self.blocks(table)?;
        for number in 1..=blocks {
            // A block of a scan is evicted before all others, unless a lookup wants it, too.
            self.with_block((table, number), Attributes::DATA.once(), |_block| ())?;
        }
        Ok(blocks)
    }

    /// Drops a table. Returns how many of its blocks were cached.
    fn drop_table(&mut self, table: u32) -> io::Result<u64> {
        self.tables.remove(&table);
        let cached = self.cache.retain(|key, _block, _class| key.0 != table);
        std::fs::remove_file(self.folder.join(format!("{table}.table")))?;
        Ok(cached)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    // 64 blocks.
    let mut engine = Engine::open(folder.path(), 64 * BLOCK_BYTES as u64)?;
    engine.create(1, 16)?;
    engine.create(2, 1000)?;

    // Lookups use all of table 1, twice.
    for _ in 0..2 {
        for block in 0..16 {
            let row = block * ROWS_PER_BLOCK + 5;
            assert_eq!(engine.row(1, row)?, 1 + row);
        }
    }
    assert!(engine.row(1, 16 * ROWS_PER_BLOCK).is_err());

    // A scan of table 2 is much larger than the cache. Table 1 stays.
    assert_eq!(engine.scan(2)?, 1000);
    let kept = (1..=16).filter(|number| engine.cache.contains(&(1, *number))).count();
    println!("after the scan {kept} of 16 blocks of table 1 are cached");
    assert_eq!(kept, 16);

    let stats = engine.cache.stats();
    println!("hit ratio {:.2}", stats.hit_ratio());
    assert!(stats.hits() > 0);

    // The index block and the data blocks.
    assert_eq!(engine.drop_table(1)?, 17);
    assert!(!engine.cache.contains(&(1, 0)));
    assert!(engine.row(1, 0).is_err());
    engine.cache.close();
    Ok(())
}
