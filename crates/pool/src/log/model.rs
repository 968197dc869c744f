//! An in-memory intent log for the model checks in `tests/model`. Changes are numbers, which a
//! replay returns.

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::{Arc, Mutex};

use super::{Change, Committed, Extent, Fetch, IntentLog, LogStorage, LogTunables};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Dva, DvaPhys, LOG_SECTOR_BYTES, LogRecord, LogRootPhys};

const RING_BYTES: u64 = 128 << 10;

struct Memory {
    arena: Arc<Arena>,
    content: Mutex<Vec<u8>>,
}

impl LogStorage for Memory {
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.arena.alloc(bytes).map_err(|_| Error::new(ErrorKind::NoMemory, "no memory"))
    }

    fn read(&self, dva: Dva, _side: usize, mut buffer: Buffer) -> Result<Buffer> {
        let content = self.content.lock();
        let len = buffer.len();
        buffer.copy_from_slice(&content[dva.offset as usize..][..len]);
        Ok(buffer)
    }

    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()> {
        let mut content = self.content.lock();
        for (dva, buffer) in writes {
            content[dva.offset as usize..][..buffer.len()].copy_from_slice(&buffer);
        }
        Ok(())
    }

    fn flush(&self, _dva: Dva) -> Result<()> {
        Ok(())
    }

    fn flush_failures(&self) -> u64 {
        0
    }
}

/// Reads the object's number as its content.
struct ObjectNumbers;

impl Fetch for ObjectNumbers {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        f();
        Ok(())
    }

    fn content(&self, _: u64, object: u64, _: u64, out: &mut [u8]) -> Result<()> {
        out.fill(object as u8);
        Ok(())
    }
}

/// An intent log whose changes are numbers.
pub struct ModelLog {
    log: IntentLog,
    storage: Arc<Memory>,
}

impl ModelLog {
    /// Creates a log. The root of txg 1 is durable.
    pub fn new() -> Self {
        let config = ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("a megabyte");
        let content = Mutex::named("log-model", vec![0; (RING_BYTES + LOG_SECTOR_BYTES) as usize]);
        let storage = Arc::new(Memory { arena, content });
        let place = DvaPhys::new(Dva { device: 0, offset: LOG_SECTOR_BYTES });
        let extents = [Extent { place, bytes: RING_BYTES }];
        let dyn_storage: Arc<dyn LogStorage> = storage.clone();
        let log = IntentLog::create(&extents, 1, 1, dyn_storage, Arc::default());
        let log = log.expect("a sound ring");
        log.root_for(1);
        log.synced(1);
        Self { log, storage }
    }

    /// Records a change of names; the number selects the shard.
    pub fn append(&self, txg: u64, number: u64) {
        self.log.append(txg, 0, number, Change::ZapRemove { name: &number.to_le_bytes() });
    }

    /// Records a write of an object.
    pub fn write(&self, txg: u64, object: u64) {
        self.log.append(txg, 0, object, Change::Write { offset: object, len: 1 });
    }

    /// Records a truncate of an object.
    pub fn truncate(&self, txg: u64, object: u64) {
        self.log.append(txg, 0, object, Change::Truncate { size: object });
    }

    /// Binds an object.
    pub fn bind(&self, txg: u64, object: u64) {
        self.log.append(txg, 0, object, Change::Bind);
    }

    /// Records a write that exceeds the limit of content.
    pub fn write_too_much(&self, txg: u64, object: u64) {
        self.log.append(txg, 0, object, Change::Write { offset: object, len: 1 << 40 });
    }

    /// Commits. Returns true if the log made the changes durable.
    pub fn commit(&self, object: u64) -> bool {
        self.log.commit(Some((0, object)), &ObjectNumbers) == Committed::Durable
    }

    /// Returns the log's part of the root of `txg`.
    pub fn root_for(&self, txg: u64) -> LogRootPhys {
        self.log.root_for(txg)
    }

    /// The root of `txg` is durable.
    pub fn synced(&self, txg: u64) {
        self.log.synced(txg);
    }

    /// Replays from `root`. Returns the numbers of changes of names and of written objects.
    pub fn replay(&self, root: &LogRootPhys) -> (Vec<u64>, Vec<u64>) {
        let storage: Arc<dyn LogStorage> = self.storage.clone();
        let tunables = Arc::new(LogTunables::default());
        let log = IntentLog::open(root, root.txg.get(), storage, tunables).expect("a sound root");
        let mut replay = log.replay(root);
        let (mut numbers, mut objects) = (Vec::new(), Vec::new());
        while replay.next_batch().expect("sound blocks") {
            while let Some(entry) = replay.next().expect("sound records") {
                match entry.record {
                    LogRecord::ZapRemove { name } => {
                        let number = name.try_into().expect("eight bytes");
                        numbers.push(u64::from_le_bytes(number));
                    }
                    LogRecord::Write { .. } => objects.push(entry.object),
                    LogRecord::Truncate { .. } => {}
                    other => panic!("nobody made {other:?}"),
                }
            }
        }
        (numbers, objects)
    }
}

impl Default for ModelLog {
    fn default() -> Self {
        Self::new()
    }
}
