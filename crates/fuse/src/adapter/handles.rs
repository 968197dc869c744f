//! Open flags, encoded in handle numbers.
//!
//! The kernel sends the open flags with some requests, but not with `fallocate` and
//! `copy_file_range`. The upper bits of a handle number hold the flags that these need.

use std::collections::HashMap;

use forebay_base::sync::{Arc, Mutex};
use forebay_fs::Handle;

use crate::transport::{OpenHow, SyncMode};

const WRITES: u64 = 1 << 63;
const DATA: u64 = 1 << 62;
const ALL: u64 = 1 << 61;

/// Encodes a handle for the kernel.
pub(super) fn pack(handle: Handle, how: OpenHow) -> u64 {
    debug_assert!(handle.0 & (WRITES | DATA | ALL) == 0, "a handle has 61 bits");
    let sync_mode = match how.sync_mode {
        SyncMode::None => 0,
        SyncMode::Data => DATA,
        SyncMode::All => ALL,
    };
    handle.0 | sync_mode | if how.writes { WRITES } else { 0 }
}

/// Decodes the file system's handle.
pub(super) fn handle(number: u64) -> Handle {
    Handle(number & !(WRITES | DATA | ALL))
}

/// Decodes the sync mode of the handle.
pub(super) fn sync_mode(number: u64) -> SyncMode {
    match (number & ALL != 0, number & DATA != 0) {
        (true, _) => SyncMode::All,
        (false, true) => SyncMode::Data,
        (false, false) => SyncMode::None,
    }
}

/// Whether the handle is open for writing.
pub(super) fn writes(number: u64) -> bool {
    number & WRITES != 0
}

/// Counts handles open for writing, by inode. Such an inode may have dirty pages in the kernel, in
/// mappings or in its write-back cache.
#[derive(Clone)]
pub(super) struct Writers(Arc<[Mutex<HashMap<u64, u32>>]>);

const SHARDS: u64 = 16;

impl Default for Writers {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::named("mount-writers", HashMap::new())).collect())
    }
}

impl Writers {
    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, u32>> {
        &self.0[(ino % SHARDS) as usize]
    }

    /// Counts a new handle if it is open for writing.
    pub(super) fn opened(&self, ino: u64, how: OpenHow) {
        if !how.writes {
            return;
        }
        *self.shard(ino).lock().entry(ino).or_default() += 1;
    }

    /// Drops a handle that is open for writing.
    pub(super) fn released(&self, ino: u64) {
        let mut inodes = self.shard(ino).lock();
        if let Some(count) = inodes.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                inodes.remove(&ino);
            }
        }
    }

    /// Whether the inode is open for writing.
    pub(super) fn has(&self, ino: u64) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_numbers_encode_open_flags() {
        for how in [SyncMode::None, SyncMode::Data, SyncMode::All] {
            for writable in [false, true] {
                let how = OpenHow { truncate: false, writes: writable, sync_mode: how };
                let number = pack(Handle(77), how);
                assert_eq!((handle(number), writes(number)), (Handle(77), writable));
                assert_eq!(sync_mode(number), how.sync_mode);
            }
        }
    }

    #[test]
    fn writers_are_counted() {
        let writers = Writers::default();
        let how = |writes| OpenHow { truncate: false, writes, sync_mode: SyncMode::None };
        writers.opened(3, how(true));
        writers.opened(3, how(true));
        writers.opened(3, how(false));
        writers.released(3);
        assert!(writers.has(3) && !writers.has(4));
        writers.released(3);
        writers.released(3);
        assert!(!writers.has(3));
    }
}
