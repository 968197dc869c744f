//! The block cache of a storage engine on tokio: in memory and in a file.
//!
//! A table is a file of blocks of 4 to 64 KiB and a footer, in a store that is slow and fails at
//! times. A compaction rewrites a table in place, with other blocks. The program checks that no
//! lookup returns a block of an older table, also after a restart and after `kill -9`.
//!
//! ```sh
//! cargo run --release -p forebay --features bytes,serde --example lsm_block_cache
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use forebay::{Attributes, HybridCache, L2Key, L2Value, LoadError, Postcard};
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

type Failure = Box<dyn Error + Send + Sync>;

const TABLES: u64 = 16;
const BLOCKS_PER_TABLE: u64 = 20;
const ROWS_PER_BLOCK: u64 = 100;
const TASKS: u64 = 4;
/// Blocks of a compacted table that are cached at once.
const REFILL: usize = 4;
/// Larger blocks are not worth a write to the device.
const MAX_WRITTEN_BYTES: usize = 62 << 10;
/// The argument of a process that is killed.
const UNTIL_KILLED: &str = "--until-killed";

/// Table and offset of a block. The table is the group of the key.
type BlockKey = (u64, u64);

#[derive(Serialize, Deserialize)]
struct TableFooter {
    generation: u64,
    blocks: Vec<BlockHandle>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct BlockHandle {
    first_row: u64,
    offset: u64,
    bytes: u32,
}

/// The tables.
struct Store {
    folder: PathBuf,
    reads: AtomicU64,
}

impl Store {
    fn path(&self, table: u64) -> PathBuf {
        self.folder.join(format!("{table}.table"))
    }

    /// Replaces the file of a table. Each block begins with its table, generation and offset.
    fn write(&self, table: u64, generation: u64) -> io::Result<TableFooter> {
        let (mut content, mut blocks) = (Vec::new(), Vec::new());
        for number in 0..BLOCKS_PER_TABLE {
            let offset = content.len() as u64;
            let bytes = 4096 * (1 + (table + 5 * generation + 7 * number) % 16) as u32;
            for field in [table, generation, offset] {
                content.extend(field.to_le_bytes());
            }
            content.resize(offset as usize + bytes as usize, number as u8);
            blocks.push(BlockHandle { first_row: number * ROWS_PER_BLOCK, offset, bytes });
        }
        let (start, footer) = (content.len() as u64, TableFooter { generation, blocks });
        content.extend(postcard::to_allocvec(&footer).map_err(io::Error::other)?);
        content.extend(start.to_le_bytes());
        let temporary = self.path(table).with_extension("new");
        std::fs::write(&temporary, content)?;
        std::fs::rename(temporary, self.path(table))?;
        Ok(footer)
    }

    async fn read<T: Send + 'static>(
        &self,
        table: u64,
        read: impl FnOnce(File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        tokio::time::sleep(Duration::from_micros(200)).await;
        if self.reads.fetch_add(1, Relaxed) % 61 == 60 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the store does not answer"));
        }
        let path = self.path(table);
        tokio::task::spawn_blocking(move || read(File::open(path)?)).await?
    }

    async fn footer(&self, table: u64) -> io::Result<TableFooter> {
        self.read(table, |file| {
            let (end, mut start) = (file.metadata()?.len() - 8, [0; 8]);
            file.read_exact_at(&mut start, end)?;
            let start = u64::from_le_bytes(start);
            let mut encoded = vec![0; (end - start) as usize];
            file.read_exact_at(&mut encoded, start)?;
            postcard::from_bytes(&encoded).map_err(io::Error::other)
        })
        .await
    }

    async fn block(&self, table: u64, handle: BlockHandle) -> io::Result<Bytes> {
        self.read(table, move |file| {
            let mut block = vec![0; handle.bytes as usize];
            file.read_exact_at(&mut block, handle.offset)?;
            Ok(block.into())
        })
        .await
    }
}

struct Engine {
    store: Store,
    footers: HybridCache<u64, Postcard<TableFooter>>,
    blocks: HybridCache<BlockKey, Bytes>,
    /// The generation of each table. Lookups share the lock, a compaction has it alone.
    generations: Vec<RwLock<u64>>,
    retries: AtomicU64,
}

fn open_cache<K: L2Key, V: L2Value>(
    path: PathBuf,
    file_bytes: u64,
    memory_bytes: u64,
) -> Result<HybridCache<K, V>, forebay::l2::Error> {
    HybridCache::<K, V>::builder_at(path, file_bytes)
        .capacity(memory_bytes)
        .l2_tunable("write_max_bytes_per_s", "256MiB")
        .write_if(|_key, value: &V| value.encoded_len() <= MAX_WRITTEN_BYTES)
        .build()
}

fn is_time_out(error: &LoadError<io::Error>) -> bool {
    matches!(error, LoadError::Failed(error) if error.kind() == io::ErrorKind::TimedOut)
}

impl Engine {
    async fn open(folder: &Path) -> Result<Arc<Self>, Failure> {
        let store = Store { folder: folder.to_owned(), reads: AtomicU64::new(0) };
        let mut generations = Vec::new();
        for table in 0..TABLES {
            let footer = match store.path(table).exists() {
                true => store.footer(table).await?,
                false => store.write(table, 1)?,
            };
            generations.push(RwLock::new(footer.generation));
        }
        let footers = open_cache(folder.join("footers"), 16 << 20, 256 << 10)?;
        let blocks = open_cache(folder.join("blocks"), 64 << 20, 2 << 20)?;
        // They would serve at once. This example waits, so that it finds all that the device has.
        assert!(footers.l2().wait_rebuilt_async().await && blocks.l2().wait_rebuilt_async().await);
        let retries = AtomicU64::new(0);
        Ok(Arc::new(Self { store, footers, blocks, generations, retries }))
    }

    /// Finds the block of a row. A load that failed is tried again: errors are not cached.
    async fn look_up(&self, table: u64, row: u64, attributes: Attributes) -> Result<(), Failure> {
        let generation = self.generations[table as usize].read().await;
        loop {
            match self.find(table, row, attributes).await {
                Ok(found) => {
                    assert_eq!(found, *generation, "an older block of table {table}");
                    return Ok(());
                }
                Err(error) if is_time_out(&error) => self.retries.fetch_add(1, Relaxed),
                Err(error) => return Err(error.into()),
            };
        }
    }

    /// The generation of the table that the block of the row belongs to.
    async fn find(
        &self,
        table: u64,
        row: u64,
        attributes: Attributes,
    ) -> Result<u64, LoadError<io::Error>> {
        let load = || async { self.store.footer(table).await.map(Postcard) };
        let footer = self.footers.get_or_load_async(table, load).await?;
        let after = footer.blocks.partition_point(|block| block.first_row <= row);
        let handle = footer.blocks[after - 1];
        let load = || self.store.block(table, handle);
        let key = (table, handle.offset);
        let block = self.blocks.get_or_load_with_async(key, attributes, load).await?;
        let fields = [0, 8, 16].map(|at| block[at..at + 8].try_into().expect("eight bytes"));
        let [of_table, generation, offset] = fields.map(u64::from_le_bytes);
        assert_eq!((of_table, offset, block.len()), (key.0, key.1, handle.bytes as usize));
        assert_eq!(generation, footer.generation);
        Ok(generation)
    }

    /// Rewrites a table. The removals are durable before the new file is there: whenever the
    /// process is killed, no block of the old file is found beside it.
    async fn compact(&self, table: u64) -> Result<(), Failure> {
        let mut generation = self.generations[table as usize].write().await;
        self.footers.remove_async(&table).await?;
        self.blocks.remove_group_async(table).await?;
        *generation += 1;
        let footer = self.store.write(table, *generation)?;
        for handle in &footer.blocks[..REFILL] {
            if let Ok(block) = self.store.block(table, *handle).await {
                let (key, attributes) = ((table, handle.offset), Attributes::DATA.again());
                self.blocks.insert_with_async(key, block, attributes).await?;
            }
        }
        Ok(())
    }

    /// Returns how many blocks came from the device.
    async fn close(&self, phase: &str) -> Result<u64, Failure> {
        let stats = self.blocks.stats();
        self.footers.close_async().await?;
        self.blocks.close_async().await?;
        let (reads, retries) = (self.store.reads.load(Relaxed), self.retries.load(Relaxed));
        println!(
            "{phase}: blocks from memory {}, from the device {}; reads of the store {reads}, \
             retries {retries}; {} KiB written",
            stats.memory.hits(),
            stats.l2.hits,
            stats.l2.count("written_bytes") >> 10
        );
        Ok(stats.l2.hits)
    }
}

/// Several tasks that look rows up, scan tables, and compact them.
async fn work(engine: &Arc<Engine>, lookups: u64, is_watched: bool) -> Result<(), Failure> {
    let task = |task: u64| {
        let engine = engine.clone();
        async move {
            for number in 0..lookups {
                // Each task begins elsewhere. Small tables are read most.
                let draw = (number * 7919 + task * 104_729) % 4096;
                let table = draw * draw * TABLES / (4096 * 4096);
                let row = number * 31 % (BLOCKS_PER_TABLE * ROWS_PER_BLOCK);
                engine.look_up(table, row, Attributes::DATA).await?;
                if number % 100 == 99 {
                    for block in 0..BLOCKS_PER_TABLE {
                        let scanned = (number / 100 + task) % TABLES;
                        engine
                            .look_up(scanned, block * ROWS_PER_BLOCK, Attributes::DATA.once())
                            .await?;
                    }
                }
                if number % 50 == 25 {
                    engine.compact((number / 50 * 5 + task) % TABLES).await?;
                    if is_watched {
                        println!("compacted");
                    }
                }
            }
            Ok::<_, Failure>(())
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|number| tokio::spawn(task(number))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Looks all blocks up once.
async fn read_all(engine: &Engine) -> Result<(), Failure> {
    for block in 0..TABLES * BLOCKS_PER_TABLE {
        let row = block % BLOCKS_PER_TABLE * ROWS_PER_BLOCK;
        engine.look_up(block / BLOCKS_PER_TABLE, row, Attributes::DATA).await?;
    }
    Ok(())
}

/// Lets a process work until it is killed.
fn work_and_kill(folder: &Path) -> Result<(), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(UNTIL_KILLED)
        .arg(folder)
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let compactions = lines.take(40).filter(|line| line.is_ok()).count();
    child.kill()?;
    child.wait()?;
    assert_eq!(compactions, 40);
    Ok(())
}

async fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == UNTIL_KILLED) {
        let engine = Engine::open(Path::new(&arguments[2])).await?;
        return work(&engine, u64::MAX, true).await;
    }
    let folder = tempfile::tempdir()?;
    let engine = Engine::open(folder.path()).await?;
    work(&engine, 400, false).await?;
    assert!(engine.retries.load(Relaxed) > 0, "errors of the loader reach the callers");
    engine.close("work").await?;
    drop(engine);

    let engine = Engine::open(folder.path()).await?;
    read_all(&engine).await?;
    assert!(engine.close("after a restart").await? > 0);
    drop(engine);

    work_and_kill(folder.path())?;
    let engine = Engine::open(folder.path()).await?;
    read_all(&engine).await?;
    assert!(engine.close("after kill -9").await? > 0);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_time().build()?;
    runtime.block_on(run()).map_err(|error| error.to_string().into())
}
